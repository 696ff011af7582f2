"""Disks of the nodes: an overlay that can fail, where this machine allows one; else plain folders.

Invariants:
- The mount is gone when `disks` exits, also after an error.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import trio

DEVICE = Path("/dev/fuse")
START_SECONDS_MAX = 20.0


def why_no_overlay() -> str:
    """Why disks cannot fail on this machine, and a remedy; empty: they can."""
    if find_spec("pyfuse3") is None:
        return (
            "pyfuse3 is not installed: apt-get install libfuse3-dev fuse3 pkg-config, then "
            "pip install 'raftmq[chaos-disk]'"
        )
    if not DEVICE.exists():
        return f"there is no {DEVICE}: load the module fuse, or run the container with --device"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"{DEVICE} may not be opened: give this user the right to"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is missing: apt-get install fuse3"
    return ""


class Disks:
    """The disks of all nodes, by folders `node-N` below `folder`."""

    def __init__(self, folder: Path, process: "trio.Process | None") -> None:
        self.folder = folder
        """The folder with the data folders of all nodes."""
        self.process = process
        """The process of the overlay; None: plain folders."""
        self._lock = trio.Lock()
        self._waiting = b""

    @property
    def can_fail(self) -> bool:
        """False for plain folders."""
        return self.process is not None

    async def set(self, node: int, **fields: object) -> None:
        """Change fields of a disk's `Faults`."""
        await self._order({"set": fields, "disk": _name(node)})

    async def work_for(self, node: int, process: int) -> None:
        """Note a node's new process, so that the overlay can tell which disk's space it asks."""
        if self.can_fail:
            await self._order({"process": process, "disk": _name(node)})

    async def refuse(self, node: int, call: str, number: int) -> None:
        """Let the next `write`, `fsync` or `read` of a disk fail with an errno."""
        await self._order({"refuse": {call: number}, "disk": _name(node)})

    async def power_loss(self, node: int) -> dict[str, int]:
        """Lose what was not synced, or a part of it. The node's process must be gone."""
        return await self._order({"power_loss": _name(node)})

    async def evict(self, node: int) -> int:
        """Empty a disk's cache; returns the number of bytes that a sync lied about."""
        return int((await self._order({"evict": _name(node)}))["bytes"])

    @asynccontextmanager
    async def spared(self, node: int) -> AsyncIterator[None]:
        """No fault strikes the disk while the context is open: the harness itself works on it."""
        if not self.can_fail:
            yield
            return
        await self._order({"spare": _name(node)})
        try:
            yield
        finally:
            await self._order({"strike": _name(node)})

    async def heal(self, node: int) -> dict[str, int]:
        """End all faults of a disk; returns the number of hits of each fault."""
        if not self.can_fail:
            return {}
        struck: dict[str, int] = (await self._order({"heal": _name(node)}))["struck"]
        return struck

    async def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process is not None, "these disks cannot fail"
        assert self.process.stdin is not None
        # A cancelled order would leave its answer unread, and the next order would read it.
        answer: dict[str, Any] = {}
        with trio.CancelScope(shield=True):
            async with self._lock:
                await self.process.stdin.send_all(msgspec.json.encode(order) + b"\n")
                answer = await self.answer()
        return answer

    async def answer(self) -> dict[str, Any]:
        """The next line that the overlay writes. Raises `OSError` if the overlay has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        while b"\n" not in self._waiting:
            data = await self.process.stdout.receive_some(65_536)
            if not data:
                raise OSError("the overlay ended")
            self._waiting += data
        line, self._waiting = self._waiting.split(b"\n", 1)
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer


def _name(node: int) -> str:
    return f"node-{node}"


@asynccontextmanager
async def disks(folder: Path, *, seed: int, can_fail: bool) -> AsyncIterator[Disks]:
    """`async with disks(...) as made:`; `can_fail` needs `why_no_overlay` to be empty.

    Raises:
        OSError: the overlay does not start; the message has the end of the overlay's log.
    """
    await trio.Path(folder).mkdir(parents=True, exist_ok=True)
    if not can_fail:
        yield Disks(folder, None)
        return
    command = [sys.executable, "-m", "raftmq.chaos.real.disk.overlay", str(folder), str(seed)]
    words = folder.with_name(folder.name + ".log")
    with words.open("wb") as log:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=0,
        )
    made = Disks(folder, process)
    try:
        with trio.fail_after(START_SECONDS_MAX):
            await made.answer()
        yield made
    except (OSError, trio.TooSlowError) as error:
        raise OSError(f"{error}; the overlay says: {words.read_text()[-1000:]}") from error
    finally:
        with trio.CancelScope(shield=True):
            await _end(process, folder)


async def _end(process: trio.Process, folder: Path) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with trio.move_on_after(5.0):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    if process.returncode != 0:
        # The overlay did not unmount, and its dead mount point refuses every call.
        command = ["fusermount3", "-u", "-z", str(folder)]
        await trio.run_process(command, check=False, capture_stderr=True)
