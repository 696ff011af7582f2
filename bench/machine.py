"""Description of the machine that the numbers were measured on."""

import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PROBE_WRITES = 200
PROBE_BYTES = 4096
_IN_MEMORY = ("tmpfs", "ramfs")


def describe() -> dict[str, str]:
    """Facts that a reader needs to judge the numbers. Probes the disk for under a second."""
    return {
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{_distribution()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "data folder": f"{tempfile.gettempdir()} on {file_system(tempfile.gettempdir())}",
        "write + fdatasync of 4 KiB": f"{_sync_ms():.2f} ms (median of {PROBE_WRITES})",
        "load average before": f"{os.getloadavg()[0]:.2f}",
    }


def run_facts() -> dict[str, Any]:
    """Date, command and commit of the run that begins now, and the machine before it. The command
    is that of the process."""
    program = sys.modules["__main__"].__spec__
    command = ["python", "-m", program.name] if program is not None else ["python"]
    return {
        "date": now(),
        "command": shlex.join([*command, *sys.argv[1:]]),
        "commit": commit(),
        "machine": describe(),
    }


def now() -> str:
    """The date and time, as results tell it."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def commit() -> str:
    """The commit of the code that measures, short, with `+` if the code has changes beside it."""
    here = Path(__file__).parents[1]
    git = ("git", "-C", str(here))
    try:
        head = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*git, "status", "--porcelain", "--", "raftmq", "bench"])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def warning() -> str | None:
    """Why this machine gives wrong numbers; None: no reason is known."""
    kind = file_system(tempfile.gettempdir())
    if kind in _IN_MEMORY:
        return (
            f"{tempfile.gettempdir()} is {kind}: a sync costs nothing there; set TMPDIR to a disk"
        )
    return None


def file_system(folder: str) -> str:
    """The type of the file system that holds `folder`, such as ext4."""
    best, kind = "", "unknown"
    path = os.path.realpath(folder)
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, this_kind, *_ = line.split()
        is_inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if is_inside and len(mount) >= len(best):
            best, kind = mount, this_kind
    return kind


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _sync_ms() -> float:
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(PROBE_WRITES):
            start = time.perf_counter()
            os.write(file.fileno(), b"\1" * PROBE_BYTES)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - start)
    return sorted(took)[PROBE_WRITES // 2] * 1000.0
