"""One member's part in one epoch: pysyncobj's objects, without its thread, sockets and files.

pysyncobj has a thread that ticks each object, and its lock manager has one that prolongs locks.
Neither runs here: the owner calls `tick`, and `leases` prolongs, so that all happens on one loop
and by one clock.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.batteries import ReplCounter, ReplDict, ReplLockManager

from raftmq.wire.directory import LEASE_SECONDS, SoftMessage

from .post import Member, Post

ENTRIES_MAX = 2_000
"""Length of the log, at which it is compacted; with `directory.CHUNK_BYTES` its bound in bytes."""
_PACE = {
    "appendEntriesPeriod": 0.25,
    "raftMinTimeout": 1.5,
    "raftMaxTimeout": 3.0,
    "leaderFallbackTimeout": 5.0,
    "connectionTimeout": 5.0,
}
"""In seconds, a quarter of pysyncobj's own pace or less: an idle node hardly works for it."""

Done = Callable[[Any, int], None]
"""Called with the result of a call and pysyncobj's reason, 0: it was made."""


class Rows(ReplDict):  # type: ignore[misc]
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
        send: Callable[[int, SoftMessage], bool],
        is_connected: Callable[[int], bool],
    ) -> None:
        others = [Member(number) for number in members if number != own]
        self._post = Post(others, send, is_connected)
        self._rows, self._starts = Rows(), ReplCounter()
        manager = ReplLockManager(LEASE_SECONDS, selfID=str(own))
        # Its thread ends before it does anything: see above.
        manager.destroy()
        self.locks: Any = manager._consumer()
        """The locks: `acquire`, `prolongate`, `release` and `isAcquired`, by name and member."""
        conf = SyncObjConf(
            autoTick=False,
            commandsWaitLeader=False,
            commandsQueueSize=10_000,
            logCompactionMinEntries=ENTRIES_MAX,
            logCompactionMinTime=10**9,
            **_PACE,
        )
        consumers = [self._rows, self._starts, self.locks]
        self._object = SyncObj(Member(own), others, conf, consumers=consumers, transport=self._post)

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
        """Members that have entered this epoch."""
        return int(self._starts.get())

    def tick(self) -> None:
        """Let time pass: elections, appends, calls that are committed."""
        self._post.look()
        self._object.doTick(0.0)

    def take(self, sender: int, message: SoftMessage) -> None:
        """Act on a message of another member."""
        self._post.take(sender, message)

    def put(self, rows: Mapping[str, Any], done: Done) -> None:
        """Have all members put these rows."""
        self._rows.update(dict(rows), callback=done)

    def drop(self, keys: list[str], done: Done) -> None:
        """Have all members remove these rows."""
        self._rows.drop(keys, callback=done)

    def note_start(self, done: Done) -> None:
        """Count that this member has entered."""
        self._starts.inc(callback=done)

    def close(self) -> None:
        """Take no further part."""
        self._object.destroy()
