"""`raftmq doctor`: examine this machine, and a cluster if one answers, and say what to mend."""

import errno
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode
from raftmq.cli.output import Result, bytes_text, note, with_output
from raftmq.cli.session import Session, with_session
from raftmq.errors import Rejected
from raftmq.words import counted

from .findings import Finding, result_of

if TYPE_CHECKING:
    from raftmq.broker.settings import NodeSettings, Settings

FSYNCS = 50
FSYNC_BYTES = 4096
FSYNC_MS_WARN = 20.0
"""Milliseconds of an fsync above which the disk is slow: each ack waits for one on a majority."""

FSYNC_MS_LIE = 0.02
"""No disk makes 4 KiB durable this fast: it is memory, or a disk that lies about durability."""

FREE_BYTES_FAIL = 256 * 1024**2
FREE_BYTES_WARN = 5 * 1024**3
FILES_WARN = 4_096
CLOCK_SECONDS = 0.2
CLOCK_JUMP_MS = 20.0

MODULES = ["anyio", "cbor2", "google_crc32c", "lz4", "msgspec", "numpy", "trio", "zstandard"]


@click.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Examine the data folder and the address that the settings of a node name.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="TABLE.NAME=VALUE",
    help="With -c: replace a setting of the file, as node.id=2 (repeat).",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Examine the disk of this folder.  [default: node.data of -c, or the present folder]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Check that a node can listen at this port.  [default: node.port of -c, or the first "
    "one of --url]",
)
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tar.gz",
    help="Also write what remote support needs: the findings, facts of the machine, settings, "
    "names of files, the status of each node. No messages, keys or tokens.",
)
@click.option(
    "--log",
    "logs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="With --bundle: a log, whose last 4 MiB are added as they are (repeat).",
)
@with_output
@with_session
def doctor(
    session: Session,
    config: Path | None,
    overrides: tuple[str, ...],
    data: Path | None,
    port: int | None,
    bundle: Path | None,
    logs: tuple[Path, ...],
) -> Result:
    """Examine this machine, and the cluster if one answers; suggest repairs.

    Exits with 4 if something fails. It writes some KiB into the folder of --data and removes them.

    \b
    raftmq doctor -c node.toml
    raftmq doctor -c node.toml --bundle case.tar.gz --log node.log
    """
    from raftmq.broker.settings import Log

    from .settings_file import read_settings

    if overrides and config is None:
        raise click.UsageError("--set replaces settings of a file: name it with -c")
    if logs and bundle is None:
        raise click.UsageError("--log adds to an archive: name it with --bundle")
    settings = None if config is None else read_settings(config, overrides)
    host, usual, reserve = "127.0.0.1", Path(), Log().reserve_bytes
    if settings is not None:
        host, usual = settings.node.host, Path(settings.node.data)
        reserve = settings.log.reserve_bytes
        port = port or settings.node.port
    folder = usual if data is None else data
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_assertions,
        check_modules,
        *_checks_of(settings),
        lambda: check_port(port or _port_of(session.url), host),
        lambda: check_disk(folder),
        lambda: check_space(folder, reserve),
        check_files,
        check_clock,
        check_clock_source,
        lambda: check_cluster(session),
    ]
    findings = [check() for check in checks]
    if bundle is not None:
        from .bundle import write_bundle

        names = write_bundle(bundle, session, settings, findings, logs)
        note(f"{bundle} has {counted(len(names), 'file')}: look through it before you send it")
    return result_of(findings)


def _checks_of(settings: "Settings | None") -> "list[Callable[[], Finding]]":
    """Checks of the data folder and the address that the settings name."""
    if settings is None:
        return []
    own = settings.node
    checks = [lambda: check_data(Path(own.data)), lambda: check_address(own)]
    checks += [partial(check_data, Path(folder), "node.disks") for folder in own.disks]
    return [*checks, lambda: check_tls(settings)] if settings.tls.cert else checks


def check_data(folder: Path, setting: str = "node.data") -> Finding:
    """The folder of a setting is there, or can be made, and this user may write there."""
    existing, whole = _existing(folder), folder.absolute()
    fix = f"make it, and run doctor as the user that runs the node; or correct {setting}"
    if not existing.is_dir():
        return Finding(setting, "fail", f"{existing} is no folder", fix)
    if not os.access(existing, os.W_OK | os.X_OK):
        found = f"{existing} cannot be written by user {os.getuid()}"
        return Finding(setting, "fail", found, fix)
    if existing != whole:
        return Finding(setting, "ok", f"{whole} is not there yet: the node makes it")
    return Finding(setting, "ok", f"{whole} can be written")


def check_tls(settings: "Settings") -> Finding:
    """The files of `[tls]` can be used, and the certificate is this node's and in time."""
    from raftmq.cli.exits import Failure

    from .certificates import certificate_text, contexts_of

    try:
        contexts = contexts_of(settings)
    except Failure as failure:
        return Finding("tls", "fail", str(failure), failure.fix)
    assert contexts is not None
    if text := certificate_text(contexts.ends_ms):
        is_over = contexts.ends_ms <= time.time() * 1000
        return Finding("tls", "fail" if is_over else "warn", f"the certificate: {text}")
    if contexts.doubt:
        fix = "that is right only if the other nodes have other authorities in `tls.ca`"
        return Finding("tls", "warn", f"the certificate: {contexts.doubt}", fix)
    return Finding("tls", "ok", f"the certificate is that of node {settings.node.id}")


def check_address(own: "NodeSettings") -> Finding:
    """A founder listens at the address that its own row in `peers` tells the others."""
    from raftmq.broker.settings import listens_elsewhere

    if found := listens_elsewhere(own):
        fix = "make both the same, unless the address of the row is forwarded to this node"
        return Finding("address", "warn", found, fix)
    where = "as in `peers`" if own.peers else "as told by `raftmq cluster add`"
    return Finding("address", "ok", f"node {own.id} at {own.host}:{own.port}, {where}")


def check_python() -> Finding:
    """Its version: an older one than raftmq needs could not have run this."""
    return Finding("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def check_assertions() -> Finding:
    """Python's assertions, which guard a node's data, are on."""
    if __debug__:
        return Finding("assertions", "ok", "on")
    return Finding("assertions", "fail", "off", "start Python without -O and PYTHONOPTIMIZE")


def check_modules() -> Finding:
    """All packages that raftmq needs can be imported."""
    broken = []
    for name in MODULES:
        try:
            import_module(name)
        except ImportError as error:
            broken.append(f"{name}: {error}")
    if broken:
        return Finding("modules", "fail", "; ".join(broken), "`pip install --upgrade raftmq`")
    names = ("trio", "cbor2", "numpy", "google-crc32c")
    return Finding("modules", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in names))


def _port_of(url: str) -> int:
    """The port of the URL's first address; the default if the URL is wrong, which `check_cluster`
    reports."""
    from raftmq.client.address import PORT_DEFAULT, parse_url

    try:
        return parse_url(url).addresses[0].port
    except Rejected:
        return PORT_DEFAULT


def check_port(port: int, host: str = "127.0.0.1") -> Finding:
    """A node can listen at the port, or one listens already."""
    name = f"port {port}"
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            fix = "give an address of this machine as node.host, and a port that this user may use"
            return Finding(name, "fail", f"cannot listen at {host}: {error.strerror}", fix)
        found = f"taken: {error.strerror}"
        fix = "that is right if a node runs here; else --port of `raftmq up`, or node.port"
        return Finding(name, "warn", found, fix)
    return Finding(name, "ok", "free")


def check_disk(folder: Path) -> Finding:
    """The time that the disk takes to make 4 KiB durable."""
    try:
        times = _fsync_times(folder)
    except OSError as error:
        fix = "name a folder on a disk that can be written with --data"
        return Finding("disk", "fail", f"{folder.absolute()}: {error.strerror}", fix)
    median, worst = times[len(times) // 2] * 1000, times[-1] * 1000
    found = f"write + fdatasync of 4 KiB: median {median:.2f} ms, worst of {FSYNCS} {worst:.1f} ms"
    if median < FSYNC_MS_LIE:
        fix = "use a real disk for data that must survive a power loss"
        return Finding("disk", "warn", f"{found}: too fast to be durable", fix)
    if median > FSYNC_MS_WARN:
        fix = "use an SSD, one that nothing else writes to; each ack waits for it"
        return Finding("disk", "warn", found, fix)
    return Finding("disk", "ok", found)


def _fsync_times(folder: Path) -> list[float]:
    times = []
    existing = _existing(folder)
    with tempfile.NamedTemporaryFile(dir=existing, prefix="raftmq-doctor-") as file:
        for _ in range(FSYNCS):
            started = time.perf_counter()
            os.write(file.fileno(), b"\0" * FSYNC_BYTES)
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(time.perf_counter() - started)
    return sorted(times)


def check_space(folder: Path, reserve: int) -> Finding:
    """Free space of the disk; with less than `reserve` bytes a node takes no messages."""
    usage = shutil.disk_usage(_existing(folder))
    found = f"{bytes_text(usage.free)} free of {bytes_text(usage.total)}"
    fix = (
        f"free some: below log.reserve_bytes, {bytes_text(reserve)}, a node takes no messages; "
        "log.retention_bytes bounds what it keeps"
    )
    if usage.free < max(FREE_BYTES_FAIL, reserve):
        return Finding("space", "fail", found, fix)
    if usage.free < FREE_BYTES_WARN:
        return Finding("space", "warn", found, fix)
    return Finding("space", "ok", found)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    whole = folder.absolute()
    return next(path for path in (whole, *whole.parents) if path.exists())


def check_files() -> Finding:
    """The number of files and connections that a process may have open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} (up to {hard})"
    if soft >= FILES_WARN or soft == resource.RLIM_INFINITY:
        return Finding("open files", "ok", found)
    fix = "`ulimit -n 65536`, or LimitNOFILE= in the unit, for many connections"
    return Finding("open files", "warn", found, fix)


def check_clock() -> Finding:
    """The wall clock runs as fast as the monotonic one, and is not before 2026."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_SECONDS)
    drift_ms = abs((time.time() - wall) - (time.monotonic() - steady)) * 1000
    found = f"off by {drift_ms:.2f} ms in {CLOCK_SECONDS * 1000:.0f} ms"
    if time.gmtime(wall).tm_year < 2026 or drift_ms > CLOCK_JUMP_MS:
        fix = "let chrony or systemd-timesyncd keep the clock; stamps and retention go by it"
        return Finding("clock", "fail", found, fix)
    return Finding("clock", "ok", found)


def check_clock_source() -> Finding:
    """Whether the system reports that its clock is synchronized."""
    if sys.platform != "linux":
        return Finding("clock source", "ok", "not known on this system")
    import ctypes

    time_error = 5
    # `struct timex` is smaller than this; all zero asks without changing anything.
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    if state == time_error:
        fix = "start chrony or systemd-timesyncd: nodes need clocks that agree within seconds"
        return Finding("clock source", "warn", "nothing synchronizes the clock", fix)
    return Finding("clock source", "ok", "synchronized")


def check_cluster(session: Session) -> Finding:
    """The cluster's health, if one answers."""
    from raftmq.cli.cluster.picture import picture_of
    from raftmq.cli.exits import Failure

    try:
        picture = session.run(picture_of)
    except Failure as failure:
        found = f"none answers at {session.url}"
        if failure.code != ExitCode.UNREACHABLE:
            found = str(failure)
        return Finding("cluster", "warn", found, "`raftmq up` starts one; or --url, RAFTMQ_URL")
    if picture["problems"]:
        fix = "`raftmq cluster status` shows all; look at the logs of the nodes it names"
        return Finding("cluster", "fail", "; ".join(picture["problems"]), fix)
    nodes, groups = (counted(len(picture[f"{what}s"]), what) for what in ("node", "group"))
    return Finding("cluster", "ok", f"{nodes}, {groups}, each with a leader")
