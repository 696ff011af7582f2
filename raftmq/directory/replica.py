"""One member's part in one epoch: pysyncobj's objects, without its thread, sockets and files.

pysyncobj has a thread that ticks each object. Here the owner calls `tick`, and `leases` prolongs
locks, so that all happens on one loop and by one clock.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated

# The lock manager around it has a thread of its own, which prolongs by the wall clock.
from pysyncobj.batteries import ReplCounter, ReplDict, _ReplLockManagerImpl

from raftmq.wire.directory import LEASE_SECONDS, ReplicaMessage

from .transport import LinkTransport, Member

ENTRIES_MAX = 2_000
"""Length of the log, at which it is compacted; with `directory.CHUNK_BYTES` its bound in bytes."""
BATCH_BYTES = 512 * 1024
"""Bytes of entries in one message. A lone entry of this size would travel in parts, which
`transport` does not send; the frame of a node has twice the room."""

# Its members' states drift apart now and then, and agree after two rounds (decision 0048). Its line
# for that, "state machine may have diverged", would have operators fear for their messages.
logging.getLogger("pysyncobj.syncobj").addFilter(
    lambda line: "already-applied" not in str(line.msg)
)

Done = Callable[[Any, int], None]
"""Called with the result of a call and pysyncobj's reason, 0: it was made."""


def _conf() -> Any:
    return SyncObjConf(
        autoTick=False,
        # A call fails at once while there is no leader, and is made again at the next beat.
        commandsWaitLeader=False,
        commandsQueueSize=10_000,
        appendEntriesBatchSizeBytes=BATCH_BYTES,
        # The log is compacted by its length alone.
        logCompactionMinEntries=ENTRIES_MAX,
        logCompactionMinTime=10**9,
        # Appends and elections are two to four times as slow as by default: an idle node does
        # little. A leader without a majority steps down sooner.
        appendEntriesPeriod=0.25,
        raftMinTimeout=1.5,
        raftMaxTimeout=3.0,
        leaderFallbackTimeout=5.0,
    )


class _Unsaved:
    """A part of the state that snapshots leave out: they never travel, and to pickle all rows would
    hold the event loop."""

    def _serialize(self) -> dict[str, Any]:
        return {}


class Locks(_Unsaved, _ReplLockManagerImpl):  # type: ignore[misc]
    """The locks: `acquire`, `prolongate`, `release` and `isAcquired`, by name and member."""

    def names_of(self, member: str) -> list[str]:
        """The locks that a member has, or had: others may have them by now."""
        locks = self._ReplLockManagerImpl__locks
        return [name for name, (holder, _) in locks.items() if holder == member]


class Rows(_Unsaved, ReplDict):  # type: ignore[misc]
    """The rows of all members, by key."""

    @replicated  # type: ignore[untyped-decorator]
    def drop(self, keys: list[str]) -> None:
        """Remove some rows."""
        for key in keys:
            self.pop(key, _doApply=True)


class Replica:
    """What one member holds in one epoch."""

    def __init__(
        self,
        own: int,
        members: Iterable[int],
        send: Callable[[int, ReplicaMessage], bool],
        is_connected: Callable[[int], bool],
    ) -> None:
        others = [Member(number) for number in members if number != own]
        self._transport = LinkTransport(others, send, is_connected)
        self._rows, self._starts = Rows(), ReplCounter()
        self.locks = Locks(LEASE_SECONDS)
        """The locks of all members."""
        consumers = [self._rows, self._starts, self.locks]
        self._object = SyncObj(
            Member(own), others, _conf(), consumers=consumers, transport=self._transport
        )

    @property
    def leader(self) -> int:
        """The member that leads; 0: none is known."""
        leader = self._object._getLeader()
        # Without links to a majority pysyncobj keeps the leader it had.
        return leader.number if leader is not None and self._object.hasQuorum else 0

    @property
    def rows(self) -> Mapping[str, Any]:
        """The rows of all members, as far as they have come here."""
        found: Mapping[str, Any] = self._rows.rawData()
        return found

    @property
    def starts(self) -> int:
        """Members that have entered this epoch, about."""
        return int(self._starts.get())

    def tick(self) -> None:
        """Run elections, appends and calls that are due."""
        self._transport.look()
        self._object.doTick(0.0)

    def receive(self, sender: int, message: ReplicaMessage) -> None:
        """Act on a message of another member."""
        self._transport.receive(sender, message)

    def put(self, rows: Mapping[str, Any], done: Done) -> None:
        """Have all members put these rows."""
        self._rows.update(dict(rows), callback=done)

    def drop(self, keys: list[str], done: Done) -> None:
        """Have all members remove these rows."""
        self._rows.drop(keys, callback=done)

    def count_start(self, done: Done) -> None:
        """Count that this member has entered."""
        self._starts.inc(callback=done)

    def close(self) -> None:
        """Take no further part."""
        self._object.destroy()
