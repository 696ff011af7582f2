"""Observations of the servers of one group: the input of the invariants.

A harness fills in the parts that it can see; an invariant whose part is empty answers "unknown". No
part needs a running broker: the logs can be read from the disks of stopped nodes, the timeline from
the nodes' status or from a simulator that looks inside.

    >>> log = (Entry(1, 1, crc=7, chain=0), Entry(2, 1, crc=9, chain=7))
    >>> evidence = Evidence(nodes=(NodeLog(1, log, commit=2), NodeLog(2, log, commit=1)))
    >>> evidence.committed()[2]
    Entry(index=2, term=1, crc=9, chain=7)

| part | where it comes from | needed by |
|---|---|---|
| `nodes` | disks after the run, or cores in a simulator | R3-R5, R13, R15, R19, R21, R23, L7, L8 |
| `timeline` | status of each node, over time | R1, R2, R6-R8, R11, R12, R15, R16, R18 |
| `progress` | leaders' view of their followers, over time | R9, R10 |
| `acknowledged` | answers to producers, with the entry they stand for | R13, L5, L8 |
| `recoveries`, `served`, `sync_failures`, `derived` | the harness around the disks | L1-L6 |

Sources: Raft figure 2 for the fields; etcd's robustness tests, which check the WAL against the
answers to clients.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Entry(NamedTuple):
    """A log entry, without its payload."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    crc: int
    """Checksum of all the entry's bytes: equal checksums stand for equal entries."""
    chain: int
    """Checksum of the entry before it; 0 for the first of a log."""


NO_ENTRY = Entry(0, 0, 0, 0)
"""The place before the first entry of a log."""


class EntryAt(NamedTuple):
    """An entry as one node holds it."""

    node: int
    entry: Entry

    def __str__(self) -> str:
        index, term, crc, _ = self.entry
        return f"node {self.node}: index {index}, term {term}, crc {crc:08x}"


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The final contents of one node's disk and state machine."""

    node: int
    entries: tuple[Entry, ...]
    """In order, without gaps, beginning after `base`."""
    base: Entry = NO_ENTRY
    """The last entry that the snapshot covers; index 0: there is no snapshot."""
    commit: int = 0
    applied: int = 0
    digests: Mapping[int, int] = field(default_factory=dict)
    """Running digest of the machine's state, by the index of the entry applied last."""
    is_voter: bool = True
    """Whether the node is a voter of the final membership."""

    @property
    def last(self) -> Entry:
        """The last entry, or the last that the snapshot covers."""
        return self.entries[-1] if self.entries else self.base

    def at(self, index: int) -> Entry | None:
        """The entry of this index, if the node still has it."""
        if index == self.base.index and index:
            return self.base
        place = index - self.base.index - 1
        return self.entries[place] if 0 <= place < len(self.entries) else None

    def covers(self, index: int) -> bool:
        """Whether the node holds the index, as an entry or inside its snapshot."""
        return index <= self.last.index


class Moment(NamedTuple):
    """One node's state at one time, as far as the harness could see it."""

    time: int
    node: int
    incarnation: int
    """Counts the starts of its process."""
    role: str
    """follower, candidate, leader; learners are followers with `is_voter` false."""
    term: int
    vote: int
    """The candidate that it voted for in `term`; 0: none."""
    commit: int
    applied: int
    last: int
    """Index of its last entry."""
    last_crc: int
    is_voter: bool = True


class ProgressAt(NamedTuple):
    """A leader's view of a follower at one time."""

    time: int
    node: int
    term: int
    peer: int
    match: int
    next: int


class Acknowledged(NamedTuple):
    """An entry that was acknowledged to a client."""

    time: int
    node: int
    incarnation: int
    entry: Entry


class Recovery(NamedTuple):
    """A start from a disk, done twice from copies of the same bytes."""

    node: int
    durable: int
    """Last index that was synced before, as the harness's disk knows."""
    last: int
    """Last index after the recovery."""
    digest: int
    """Digest of all bytes that the recovery left on disk."""
    digest_again: int
    """Digest after recovering a second time."""


class Served(NamedTuple):
    """An entry that a node sent to a peer or a consumer."""

    node: int
    index: int  # type: ignore[assignment]
    crc: int


class SyncFailed(NamedTuple):
    """An fsync that reported an error."""

    time: int
    node: int
    incarnation: int


class Derived(NamedTuple):
    """A file that can be rebuilt: its digest before it was deleted, and after the rebuild."""

    node: int
    name: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All observations of one group. Every part may be empty."""

    nodes: tuple[NodeLog, ...] = ()
    timeline: tuple[Moment, ...] = ()
    """In the order of time; moments of one node in the order of its life."""
    progress: tuple[ProgressAt, ...] = ()
    acknowledged: tuple[Acknowledged, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    served: tuple[Served, ...] = ()
    sync_failures: tuple[SyncFailed, ...] = ()
    derived: tuple[Derived, ...] = ()
    positions: Mapping[int, int] = field(default_factory=dict)
    """By value code of the history: the index of the entry that carried the value."""

    def committed(self) -> dict[int, Entry]:
        """Committed entries by index. Of nodes that hold different ones, the first counts."""
        found: dict[int, Entry] = {}
        for node in self.nodes:
            for entry in node.entries:
                if entry.index <= node.commit:
                    found.setdefault(entry.index, entry)
        return found

    def entries_of(self, values: Iterable[int]) -> tuple[EntryAt, ...]:
        """Every copy of the entries that carried these values, by index and node."""
        indexes = sorted({self.positions[value] for value in values if value in self.positions})
        copies = [(node, node.at(index)) for index in indexes for node in self.nodes]
        return tuple(EntryAt(node.node, entry) for node, entry in copies if entry is not None)
