"""The nodes of the etcd replay: a core, its storage, the work of its threads, and its output.

Source: the behaviour of these parts is fixed by etcd-io/raft's rafttest package.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from raftmq.consensus import (
    Change,
    Config,
    Event,
    HardState,
    MemoryStorage,
    Message,
    Raft,
    Snapshot,
    SnapshotMeta,
    decode_change,
)
from raftmq.log.record import HEADER_BYTES, Kind, Record
from tests.consensus import etcd_describe as describe


class CommandFailed(Exception):
    """The text that the command prints instead of, or after, its output."""


class HistoryStorage(MemoryStorage):
    """Sends the machine's latest state as the snapshot, wherever the log was compacted to."""

    def __init__(self) -> None:
        super().__init__(protobuf_bytes)
        self.history: list[Snapshot] = []

    def snapshot(self) -> Snapshot:
        """The state after the last applied record."""
        return self.history[-1]


def protobuf_bytes(records: Sequence[Record]) -> int:
    """Size of the same entries in etcd's encoding."""
    total = 0
    for record in records:
        size = len(record.encoded) - HEADER_BYTES
        total += 2 + (1 + _varint(record.term)) + (1 + _varint(record.index))
        total += 1 + _varint(size) + size if size else 0
    return total


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


@dataclass
class Node:
    """One node with its storage and the work that waits for its two threads."""

    raft: Raft
    config: Config
    storage: HistoryStorage
    append_work: list[Message] = field(default_factory=list)
    apply_work: list[Message] = field(default_factory=list)


class Output:
    """A command's output; level NONE silences all of it."""

    def __init__(self) -> None:
        self.level = describe.DEBUG
        self.parts: list[str] = []

    @property
    def is_quiet(self) -> bool:
        return self.level == describe.SILENT

    def write(self, text: str) -> None:
        if not self.is_quiet:
            self.parts.append(text)

    def trace(self, event: Event, own: int, fields: tuple[object, ...]) -> None:
        level, line = describe.event_line(event, own, fields)
        if level >= self.level:
            self.write(f"{describe.LEVELS[level]} {line}\n")

    @contextmanager
    def indented(self) -> Iterator[None]:
        outer, self.parts = self.parts, []
        try:
            yield
        finally:
            inner = "".join(self.parts)
            self.parts = outer
            self.parts.extend(f"  {line}\n" for line in inner.splitlines())


def parse_changes(text: str) -> Iterator[Change]:
    """Read changes like `v1 l2 r3 u4`."""
    for token in text.split():
        if len(token) < 2:
            raise CommandFailed(f"unknown token {token}")
        if token[0] not in describe.CHANGE_LETTERS:
            raise CommandFailed(f"unknown input: {token}")
        yield Change(describe.CHANGE_LETTERS[token[0]], int(token[1:]))


def append(
    node: Node,
    hard_state: HardState | None,
    records: Sequence[Record],
    snapshot: Snapshot | None,
) -> None:
    """Write what a Ready or a storage message asks to be written."""
    if hard_state is not None:
        node.storage.hard_state = hard_state
    if snapshot is not None and snapshot.meta.index:
        if records:
            raise CommandFailed("can't apply snapshot and entries at the same time")
        node.storage.install(snapshot)
        return
    node.storage.append(records)


def apply(node: Node, records: Sequence[Record]) -> None:
    """Apply committed records to a machine that appends their payloads to its state."""
    history = node.storage.history
    for record in records:
        before = history[-1]
        state, update = before.meta.conf_state, b""
        if record.kind == Kind.MEMBERSHIP:
            state = node.raft.apply_membership(decode_change(record.payload))
        else:
            update = bytes(record.payload)
        meta = SnapshotMeta(record.index, record.term, state, record.crc, record.timestamp)
        history.append(Snapshot(meta, before.data + update))
