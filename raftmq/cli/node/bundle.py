"""The archive of `raftmq doctor --bundle`: what remote support needs.

| file | what |
|---|---|
| `README.txt` | what is inside, and what is not |
| `findings.json` | what `raftmq doctor` found |
| `machine.json` | versions, processors, memory, load |
| `node.toml` | the settings of `-c`, as the node reads them |
| `folder.txt` | names, sizes and times of the files in the data folder |
| `cluster.json` | the picture of `raftmq cluster status` |
| `status/node-N.json` | the status of each node |
| `logs/...` | the ends of the files that `--log` names |

Invariants:
- Of files, the archive holds the settings, as the node reads them, and the logs that `--log` names,
  as they are; of the data folder it holds names, sizes and times. So no message, key, certificate,
  password or token gets in.
- A part that cannot be had is a file that says why; the others are there.
- The archive is made with mode 0600, and takes no other file's place.
"""

import heapq
import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from raftmq.cli.exits import Failure
from raftmq.cli.session import Session
from raftmq.version import VERSION

from .findings import Finding

if TYPE_CHECKING:
    from raftmq.broker.settings import Settings
    from raftmq.client import Client

LOG_BYTES = 4 * 1024**2
"""Bytes of a log's end that are kept."""
FILES_MAX = 20_000
"""Files of the data folder that are listed."""
README = """\
Written by `raftmq doctor --bundle` at {now} with raftmq {version}.

Inside: versions and facts of this machine, the settings of the node, names and sizes of its files,
the status of each node that answered, and the ends of the logs that were named. Settings and
statuses tell hosts, paths, addresses of clients, and names of users and topics. Logs are copied as
they are.

Not inside: messages, keys, certificates, passwords and tokens.

Look through it before you send it.
"""


class Bundle:
    """An archive that is being written."""

    def __init__(self, path: Path) -> None:
        """Raises `Failure`: the file is there already, or cannot be made."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise Failure(f"{path} is there already", fix="give another name") from error
        except OSError as error:
            raise Failure(
                f"{path}: {error.strerror}", fix="name a file in a folder that exists"
            ) from error
        self._file = os.fdopen(descriptor, "wb")
        self._archive = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115
        self._folder = path.name.partition(".")[0]
        self.names: list[str] = []
        """The files that are in it."""

    def add(self, name: str, data: bytes | Callable[[], bytes]) -> None:
        """Add a file; where making it fails, the file says why."""
        try:
            content = data if isinstance(data, bytes) else data()
        except (OSError, Failure) as error:
            content = _missing(error)
        entry = tarfile.TarInfo(f"{self._folder}/{name}")
        entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
        self._archive.addfile(entry, io.BytesIO(content))
        self.names.append(name)

    def close(self) -> None:
        """End the archive."""
        self._archive.close()
        self._file.close()


def write_bundle(
    path: Path,
    session: Session,
    settings: "Settings | None",
    findings: Sequence[Finding],
    logs: Sequence[Path],
) -> list[str]:
    """Write the archive; the names of the files in it."""
    bundle = Bundle(path)
    is_whole = False
    try:
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        bundle.add("README.txt", README.format(now=now, version=VERSION).encode())
        bundle.add("findings.json", _json([asdict(each) for each in findings]))
        bundle.add("machine.json", lambda: _json(machine_facts()))
        if settings is not None:
            folder = Path(settings.node.data)
            bundle.add("node.toml", lambda: _toml(settings))
            bundle.add("folder.txt", lambda: "\n".join(listing(folder)).encode() + b"\n")
        for name, answer in _answers(session).items():
            bundle.add(name, answer)
        for number, log in enumerate(logs, 1):
            bundle.add(f"logs/{number}-{log.name}", lambda log=log: _end_of(log))  # type: ignore[misc]
        is_whole = True
    finally:
        bundle.close()
        if not is_whole:
            path.unlink()
    return bundle.names


def machine_facts() -> dict[str, Any]:
    """Facts of this machine and this Python."""
    packages = sorted(
        {each.metadata["Name"]: each.version for each in metadata.distributions()}.items()
    )
    return {
        "raftmq": VERSION,
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg(),
        "time_ms": int(time.time() * 1000),
        "packages": dict(packages),
    }


def listing(folder: Path) -> list[str]:
    """Bytes, time and path of each file below a folder: the first `FILES_MAX` by path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    found: list[str] = []
    for path in heapq.nsmallest(FILES_MAX + 1, files):
        state = path.stat()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(state.st_mtime))
        found.append(f"{state.st_size:>15,} {stamp} {path.relative_to(folder)}")
    if len(found) > FILES_MAX:
        found[FILES_MAX:] = ["..."]
    return found or [f"no files in {folder}"]


def _answers(session: Session) -> dict[str, bytes]:
    """The picture of the cluster and the status of each node, by the names of their files."""
    from raftmq.cli.cluster.picture import picture_of
    from raftmq.errors import RaftmqError

    async def ask(mq: "Client") -> dict[str, bytes]:
        picture = await picture_of(mq)
        found = {"cluster.json": _json(picture)}
        for node in picture["nodes"]:
            try:
                content = _json(await mq.admin.status(node["id"]))
            except RaftmqError as error:
                content = _missing(error)
            found[f"status/node-{node['id']}.json"] = content
        return found

    try:
        return session.run(ask)
    except Failure as failure:
        return {"cluster.json": _missing(failure)}


def _missing(error: Exception) -> bytes:
    return f"not there: {error}\n".encode()


def _toml(settings: "Settings") -> bytes:
    """Settings as TOML, with all defaults."""
    from raftmq.broker.local_nodes import toml_text

    tables = msgspec.to_builtins(settings)
    return toml_text(tables).encode()


def _end_of(log: Path) -> bytes:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str).encode() + b"\n"
