"""Group commit: the writes of all groups of a node go to disk in passes.

While a pass runs on the disk thread, new writes wait and make the next pass. A pass writes each
group's records with one call, then syncs each of those files once; then all answers go out
together. So the busier the node, the more messages share an fsync. A small pass on a quick disk
runs on the event loop itself (`Worker.try_now`), once the messages to followers have been sent.

Faults:
- A failed fsync is final: the kernel may have dropped the pages and would report success next time
  (ATC '20, "Can applications recover from fsync failures?"). The node stops.
- A full disk is not final: the group's writes stay queued and are tried again every second. Until
  then the node takes neither messages nor commands; reads by offset go on, and acked records are
  safe, as they were written before. Requests that wait for records under way are refused. The
  reserve should keep a disk from filling up this far: see `space`.
- A slow disk has leaders send ahead, each group up to its window. Beyond `unwritten_bytes_max` for
  the whole node, records that come from leaders are dropped, as if lost on the network. Records of
  groups that this node leads do not count: they would leave the other groups no room.
- A disk that stands still gathers the answers to its leaders, one a heartbeat: appends are dropped
  beyond `messages_max` storage messages of a group.

Invariants:
- Storage messages of a group become durable in the order they were written.
- `persisted` is called for a message only after the fdatasync that covers it.
"""

from collections.abc import Callable
from functools import partial

from raftmq.broker.timers import Timers
from raftmq.broker.world import Worker
from raftmq.consensus import Message, MessageKind
from raftmq.log.faults import DiskFull

from .group import Group
from .space import Space
from .writes import Write

SMALL_BYTES = 16 * 1024
"""A pass of up to this size may run on the event loop: while the disk is quick, the pass takes less
time than to wake another thread and to be woken by it."""

WINDOWS_MAX = 4
"""Storage messages of one group that wait, in windows of appends (`raft.inflight_messages_max`): a
disk that keeps pace never has as many. A message takes about 1 KiB without its records."""

FULL_RETRY_SECONDS = 1.0
"""Pause before a write that met a full disk is tried again."""


class DiskLoop:
    """The passes of one node."""

    def __init__(
        self,
        worker: Worker,
        timers: Timers,
        *,
        begin: Callable[[], None],
        persisted: Callable[[Group, list[Message]], None],
        settle: Callable[[], None],
        on_fault: Callable[[BaseException], None],
        space: Space,
        unwritten_bytes_max: int,
        messages_max: int,
    ) -> None:
        self._worker = worker
        self._timers = timers
        self._begin = begin
        self._persisted = persisted
        self._settle = settle
        self._on_fault = on_fault
        self._space = space
        self._unwritten_bytes_max = unwritten_bytes_max
        self._messages_max = messages_max
        self._pending: dict[int, Write] = {}
        self._postponed: dict[int, Write] = {}
        # The groups whose last write met a full disk.
        self._failing: set[int] = set()
        self._is_busy = False
        self.unwritten_bytes = 0
        """Bytes of records from leaders in all writes that are not done, those of the running pass
        too."""
        self.passes = 0
        """Passes done, for people who want to know how many records share an fsync."""

    @property
    def is_idle(self) -> bool:
        """True if no pass runs and no write is due."""
        return not self._is_busy and not any(write.is_due for write in self._pending.values())

    def write(self, group: Group, message: Message) -> None:
        """Queue a storage message; `flush` starts the pass."""
        write = self._waiting(group)
        if write is None:
            write = self._pending[group.number] = Write(group)
        before = write.sent_size
        write.add(message)
        self.unwritten_bytes += write.sent_size - before

    def _waiting(self, group: Group) -> Write | None:
        # Messages after one that met a full disk wait behind it: the group's order stays.
        return self._postponed.get(group.number) or self._pending.get(group.number)

    def refuses(self, group: Group, message: Message) -> bool:
        """Must a peer's message be dropped, as too much waits for the disk already?"""
        if message.kind is not MessageKind.APPEND:
            return False
        if message.entries and self.unwritten_bytes >= self._unwritten_bytes_max:
            return True
        write = self._waiting(group)
        return write is not None and len(write.messages) >= self._messages_max

    def forget(self, group: Group) -> None:
        """Drop the writes of a group that this node no longer carries."""
        for queue in (self._pending, self._postponed):
            write = queue.pop(group.number, None)
            if write is not None:
                self.unwritten_bytes -= write.sent_size
        self._failing.discard(group.number)

    def flush(self) -> None:
        """Start a pass with all writes that are due, unless a pass runs; a small one is done on
        return."""
        if self._is_busy or not self._pending:
            return
        writes = [write for write in self._pending.values() if write.is_due]
        if not writes:
            return
        self._is_busy = True
        for write in writes:
            del self._pending[write.group.number]
        job = partial(_run_pass, writes, self._space)
        outcome = self._worker.try_now(job) if _is_small(writes) else None
        if outcome is None:
            self._worker.submit(job, self._done)
        else:
            self._done(*outcome)

    def _done(self, done: tuple[list[Write], int] | None, error: BaseException | None) -> None:
        self._is_busy = False
        self.passes += 1
        if error is not None:
            self._on_fault(error)
            return
        assert done is not None
        writes, free = done
        self._begin()
        for write in writes:
            if write.full is None or write.group.is_retired:
                self.unwritten_bytes -= write.sent_size
                self._failing.discard(write.group.number)
            else:
                self._postpone(write)
        self._space.note(free, is_failing=bool(self._failing))
        for write in writes:
            if write.group.is_retired:
                continue
            if write.full is None:
                self._persisted(write.group, write.messages)
            else:
                write.group.give_up(self._space.refusal)
        self._settle()

    def note_space(self, free: int) -> None:
        """Note how many bytes are free, as measured between two passes."""
        self._space.note(free, is_failing=bool(self._failing))

    def _postpone(self, write: Write) -> None:
        # Out of reach of `flush` until the retry, so that a full disk makes no busy loop.
        later = self._pending.pop(write.group.number, None)
        if later is not None:
            write.messages.extend(later.messages)
            write.size += later.size
            write.sent_size += later.sent_size
        self._postponed[write.group.number] = write
        self._failing.add(write.group.number)
        self._timers.call_after(FULL_RETRY_SECONDS, partial(self._retry, write))

    def _retry(self, write: Write) -> None:
        # The replica may have been retired meanwhile, and another one opened for the group.
        if self._postponed.get(write.group.number) is not write:
            return
        del self._postponed[write.group.number]
        write.full = None
        self._pending[write.group.number] = write
        self.flush()


def _is_small(writes: list[Write]) -> bool:
    if sum(write.size for write in writes) > SMALL_BYTES:
        return False
    return not any(message.snapshot for write in writes for message in write.messages)


def _run_pass(writes: list[Write], space: Space) -> tuple[list[Write], int]:
    """Write everything, then sync everything; also the free bytes."""
    for write in writes:
        try:
            write.perform()
        except DiskFull as full:
            write.full = full
    for write in writes:
        if write.full is None:
            write.group.store.sync()
    return writes, space.measure()
