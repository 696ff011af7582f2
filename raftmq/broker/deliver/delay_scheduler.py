"""Delayed messages on their way: a leader lets time pass, releases what is due, and carries.

    timer at the next due time ──> Tick ──> apply: rows are due ──> read their records
                                                 │                        │
    any record of that time or later ────────────┘              one batch ──> propose ──> placed

While records flow, they let time pass, and no Tick is needed. At most one release of a queue is
under way; the next one starts from the state that applying it left. Reading and encoding run beside
the event loop. The machine decides which messages are placed, when, and that each is placed once
(`raftmq.machine.delays`).

*Carrying.* When retention wants to drop the beginning of the log, messages that wait there are
written again at the end of the log, some hundred at a time, before the log is trimmed.

Invariants:
- A leader that has not applied all that was committed before its time releases nothing.
- Nothing polls: with no delayed message there is no timer, no Tick and no look.
- A release or a copy that gets lost is made again, by this leader or the next.

Left out: a queue whose record cannot be read (rot that is being repaired) waits for the repair.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import Answer, OpenRequest
from raftmq.broker.serve.dispatcher import data_group, group_route
from raftmq.broker.service import Service
from raftmq.broker.tickets import Callback, retry_seconds
from raftmq.broker.timers import Timer, Timers
from raftmq.broker.world import Worker
from raftmq.errors import Reason
from raftmq.log.record import Kind, Record
from raftmq.log.store import LogStore
from raftmq.machine.commands import encode_commands
from raftmq.machine.delay_queue import Key, Rows
from raftmq.machine.delays import ITEMS_MAX, Cancel
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.releases import copy, indexes_of, release
from raftmq.pop import calls
from raftmq.results import Changed, Result
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.producing import CancelDelayed, DelayedCancelled

MESSAGES_MAX = 1024
"""Messages of one release or copy."""
READ_BYTES_MAX = 4 * 1024 * 1024
"""Bytes read at once for one release or copy; one record more may be read."""
QUEUES_MAX = 64
"""Queues of a partition group with a release under way."""
SLEEP_SECONDS_MAX = 60.0
"""Longest sleep before the next due time is checked again: the wall clock may be set meanwhile."""


class _Carrying(NamedTuple):
    """Progress of carrying in a group: the messages that must still be written again."""

    before: int
    """Messages whose record stands before this index."""
    queue: int
    """Messages of this queue and of queues with a higher number."""
    after: Key
    """In `queue`, only rows after this key."""


class _State:
    """Work under way for a replica; another replica of the group begins with none."""

    __slots__ = ("armed", "carried", "carrying", "is_ticking", "under_way")

    def __init__(self) -> None:
        self.under_way: set[int] = set()
        """Queues with a release under way."""
        self.armed: tuple[int, Timer] | None = None
        """The due time at which the machine is checked again, in ms, and its timer."""
        self.is_ticking = False
        """True if a Tick is under way."""
        self.carrying: _Carrying | None = None
        self.carried: tuple[int, int] | None = None
        """Index before which everything was carried, and the term in which that was done."""


class DelayScheduler(Service):
    """The delayed messages of all data groups that this node leads."""

    def __init__(self, node: Host, *, timers: Timers, reader: Worker, batch_bytes_max: int) -> None:
        self._node = node
        self._timers = timers
        self._reader = reader
        self._batch_bytes_max = batch_bytes_max
        self._states: dict[Group, _State] = {}
        self.routes = {
            FrameKind.CANCEL: group_route(CancelDelayed, data_group(node), self._cancel),
        }

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Release what is due: the log's time may have passed."""
        self._look(group)

    def _look(self, group: Group) -> None:
        machine = group.machine
        if not isinstance(machine, PartitionMachine) or not machine.delays.count:
            return
        if not _may_propose(group):
            return
        due = machine.delays.next_due
        if due is not None and due <= machine.delays.now:
            self._release_due(group, machine)
        self._arm(group, machine)

    def trimmable(self, group: Group, index: int) -> int:
        """Index up to which the log may be trimmed now, if retention wants `index`. Messages that
        stand before `index` are being written again."""
        assert isinstance(group.machine, PartitionMachine)
        floor = group.machine.delays.floor
        if floor is None or floor >= index:
            return index
        state = self._of(group)
        is_done = state.carried == (index, group.raft.term)
        if state.carrying is None and not is_done and _may_propose(group):
            state.carrying = _Carrying(index, -1, Key(0, 0))
            self._carry(group, state.carrying)
        return floor

    def forget(self, group: Group) -> None:
        """Drop the work of a replica that was retired."""
        state = self._states.pop(group, None)
        if state is not None and state.armed is not None:
            state.armed[1].cancel()

    def _of(self, group: Group) -> _State:
        """Work under way for a group; none is kept for a retired one."""
        return _State() if group.is_retired else self._states.setdefault(group, _State())

    # Cancelling

    def _cancel(self, request: CancelDelayed, group: Group, asked: OpenRequest) -> Answer:
        if len(request.queues) > ITEMS_MAX:
            message = f"{len(request.queues)} messages in one CANCEL; the limit is {ITEMS_MAX}"
            return ErrorReply(Reason.TOO_LARGE.value, message)
        command = Cancel(request.queues, request.dues, request.numbers, request.request)
        # Cancelling gives space back, so a full disk is no reason to refuse it.
        return asked.propose(group, [command], DelayedCancelled, is_upkeep=True)

    # Releases

    def _release_due(self, group: Group, machine: PartitionMachine) -> None:
        under_way = self._of(group).under_way
        room = QUEUES_MAX - len(under_way)
        if room <= 0:
            return
        # Queues under way are among the due ones, so the limit has to leave room for them.
        due = [q for q in machine.delays.due_queues(QUEUES_MAX + room) if q not in under_way]
        for queue in due[:room]:
            under_way.add(queue)
            rows = machine.delays.due(queue, MESSAGES_MAX)
            make = partial(_make_release, queue, rows, self._batch_bytes_max)
            self._read(group, rows, make, partial(self._made, group, queue))

    def _made(
        self, group: Group, queue: int, payload: bytes | None, error: BaseException | None
    ) -> None:
        if payload is None:
            assert error is not None
            self._not_released(group, queue, self._node.read_failed(error))
        elif _may_propose(group):
            ticket = Callback(
                lambda _: self._of(group).under_way.discard(queue),
                partial(self._not_released, group, queue),
            )
            group.propose(Kind.BATCH, payload, ticket)
        else:
            # The leadership was lost during the read: the next leader releases these messages.
            self._of(group).under_way.discard(queue)

    def _not_released(self, group: Group, queue: int, error: ErrorReply) -> None:
        self._of(group).under_way.discard(queue)
        # Other queues must not wait for this one, so a Tick lets time pass for them.
        self._timers.call_after(retry_seconds(error), partial(self._tick, group))

    def _read(
        self,
        group: Group,
        rows: Rows,
        make: Callable[[dict[int, Record]], bytes],
        done: Callable[[bytes | None, BaseException | None], None],
    ) -> None:
        """Make a payload of the records that rows stand in, beside the event loop."""
        found = {index: group.cache.get(index) for index in indexes_of(rows)}
        cached = {index: record for index, record in found.items() if record is not None}
        missing = [index for index in found if index not in cached]
        first = indexes_of(Rows(rows.dues[:1], rows.numbers[:1], rows.places[:1]))[0]

        def job() -> bytes:
            return make(cached | _from_disk(group.store, missing, first))

        self._reader.submit(job, done)

    # Time

    def _arm(self, group: Group, machine: PartitionMachine) -> None:
        """Come back when the next message falls due."""
        due = machine.delays.next_due
        state = self._of(group)
        armed = state.armed
        # For messages due by the log's time a timer would spin: `_look` releases them.
        if due is None or due <= machine.delays.now or (armed is not None and armed[0] <= due):
            return
        if armed is not None:
            armed[1].cancel()
        seconds = max((due - self._node.now_ms()) / 1000, 0.0)
        wake = partial(self._let_pass, group)
        timer = self._timers.call_after(min(seconds, SLEEP_SECONDS_MAX), wake)
        state.armed = (due, timer)

    def _let_pass(self, group: Group) -> None:
        """Propose that time passes, if no other record let it pass meanwhile."""
        self._of(group).armed = None
        machine = group.machine
        assert isinstance(machine, PartitionMachine)
        if not _may_propose(group):
            return
        due = machine.delays.next_due
        # Not due by the clock: the sleep was cut to its limit, or the clock was set back.
        if due is None or due <= machine.delays.now or due > self._node.now_ms():
            self._look(group)
        else:
            self._tick(group)

    def _tick(self, group: Group) -> None:
        state = self._of(group)
        if not _may_propose(group) or state.is_ticking:
            return
        state.is_ticking = True

        def passed(_: object) -> None:
            state.is_ticking = False

        def failed(error: ErrorReply) -> None:
            state.is_ticking = False
            self._timers.call_after(retry_seconds(error), partial(self._tick, group))

        ticket = Callback(passed, failed)
        group.propose(Kind.COMMANDS, encode_commands([calls.Tick()]), ticket)

    # Carrying

    def _carry(self, group: Group, carrying: _Carrying) -> None:
        """Write the next messages again, or note that all of them are."""
        machine = group.machine
        assert isinstance(machine, PartitionMachine)
        for queue in sorted(q for q in machine.delays.queues if q >= carrying.queue):
            after = carrying.after if queue == carrying.queue else Key(0, 0)
            rows = machine.delays.standing_before(
                carrying.before, queue=queue, after=after, limit=MESSAGES_MAX
            )
            if rows.dues:
                make = partial(_make_copy, queue, rows, self._batch_bytes_max)
                done = partial(self._copied, group, carrying, queue, rows)
                self._read(group, rows, make, done)
                return
        state = self._of(group)
        state.carrying, state.carried = None, (carrying.before, group.raft.term)

    def _copied(
        self,
        group: Group,
        carrying: _Carrying,
        queue: int,
        rows: Rows,
        payload: bytes | None,
        error: BaseException | None,
    ) -> None:
        state = self._of(group)
        if payload is None or not _may_propose(group):
            # The next `trimmable` begins the carrying again.
            state.carrying = None
            if error is not None:
                self._node.read_failed(error)
            return

        def done(results: list[Result]) -> None:
            assert isinstance(results[0], Changed), results
            # Not all rows may have fitted in, or still waited: at least the first `moved` are done.
            moved, after = results[0].value, Key(0, 0)
            if moved:
                after = Key(rows.dues[moved - 1], rows.numbers[moved - 1])
            state.carrying = _Carrying(carrying.before, queue, after)
            self._carry(group, state.carrying)

        def failed(_: ErrorReply) -> None:
            state.carrying = None

        ticket = Callback(done, failed)
        group.propose(Kind.COMMANDS, payload, ticket, is_upkeep=True)


def _may_propose(group: Group) -> bool:
    return group.is_leader and group.is_current and not group.stopping and not group.is_retired


def _from_disk(store: LogStore, indexes: list[int], first: int) -> dict[int, Record]:
    """On the reading thread: records at rising indexes, as many as memory allows. The record at
    `first`, if it is asked for, is always among them."""
    if not indexes:
        return {}
    found = {record.index: record for record in store.read_at(indexes, READ_BYTES_MAX)}
    if first in indexes and first not in found:
        found[first] = store.read_at([first], READ_BYTES_MAX)[0]
    return found


def _make_release(queue: int, rows: Rows, bytes_max: int, records: dict[int, Record]) -> bytes:
    return release(queue, rows, records, bytes_max=bytes_max)


def _make_copy(queue: int, rows: Rows, bytes_max: int, records: dict[int, Record]) -> bytes:
    return encode_commands([copy(queue, rows, records, bytes_max=bytes_max)])
