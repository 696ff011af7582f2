"""The state of a report, as one file: `DIR/state`.

The file is replaced after each round, and durable before anything of the round is published. The
file also holds what is to be published (`outbox`); so the next start after a crash publishes the
outbox again, which changes nothing where it was published before.

The bytes are msgpack. An unknown version is refused: a report can be made again from the log, as
far back as the log reaches.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

from .minute_ledger import Ledger
from .rules import Alert, Judge
from .tables import Row

VERSION = 1


class Outbox(msgspec.Struct):
    """The rows and alerts that are to be published."""

    rows: list[Row] = []
    """Rows of the table `report_minute`."""
    alerts: list[Alert] = []
    """Alerts for the table and the topic."""


class State(msgspec.Struct):
    """The whole state."""

    name: str
    """The report's name, made at random: it names the session that sends the alerts."""
    version: int = VERSION
    """The version of these bytes."""
    offsets: dict[int, int] = {}
    """Partition group → the next record to read."""
    carries: dict[int, bytes] = {}
    """Partition group → the memory of all records before that one: see `fold_state`."""
    attached: dict[int, list[int]] = {}
    """Partition group → the numbers of the attachments whose levels were taken."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """Minutes."""
    judge: Judge = msgspec.field(default_factory=Judge)
    """Alerts."""
    outbox: Outbox = msgspec.field(default_factory=Outbox)
    """The rows and alerts that the last round publishes."""


def load(folder: Path) -> State | None:
    """The state of a report; None: it never ran.

    Raises:
        PipelineError: the file is damaged, or of another version.
    """
    path = folder / "state"
    if not path.exists():
        return None
    fix = f"make the report again: move {folder} away"
    try:
        data = path.read_bytes()
        version = msgspec.msgpack.decode(data, type=_Head).version
        if version != VERSION:
            raise PipelineError(f"{path} is of version {version}, not {VERSION}", fix)
        return msgspec.msgpack.decode(data, type=State)
    except msgspec.MsgspecError as error:
        raise PipelineError(f"{path} is damaged: {error}", fix) from error


class _Head(msgspec.Struct):
    version: int


def save(folder: Path, state: State) -> None:
    """Replace the file; durable on return."""
    durable.replace(folder / "state", msgspec.msgpack.encode(state))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside, no other process has the folder, which is made if there is none.

    Raises:
        PipelineError: another process has the folder, or it cannot be made.
    """
    busy, fix = f"another report is written to {folder}", "end it, or name another folder"
    with ExitStack() as stack:
        try:
            durable.make_folders(folder)
            stack.enter_context(durable.locked(folder / "lock", busy=busy, fix=fix))
        except OSError as error:
            message = f"{folder} cannot be used: {error}"
            raise PipelineError(message, "name another folder") from error
        yield
