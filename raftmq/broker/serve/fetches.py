"""Reading queues: answers at once, from memory or from disk, or when the next batch commits.

A fetch belongs to a session (`fetch_sessions`), which knows queues and offsets. Batches that are
there are answered at once: recent ones from the cache, older ones by large reads on the reading
thread. A queue without further batches *rests*: the session is registered under it. The apply of a
batch marks the queue in the registered sessions, once per pump, and a look reads marked queues
alone. Nothing polls.

A session may name a consumer group that has subscribed to the topic. Then the node passes over
batches without a match, unread (`matching`), sends the others with a mask, and `next` is the offset
that the answer has reached. Such a session is registered under its queue *and group*, and a batch
with a match marks its queue; when the wait of a fetch ends, the answer moves the offsets over the
batches that were passed over.

Invariants:
- Each queue of a session is either marked or registered.
- Only committed and applied batches are ever given, whole, byte for byte as they were produced.
- Each fetch is answered once: with batches, with an error of a queue, or empty when its wait ends.
- No message before `next` that was not sent matches the filter that holds for it.
- An answer is bounded: `bytes_max` over all its queues, one batch at the least, a header that stays
  below 3 MiB, and masks that take some milliseconds to make.
- A look is bounded, too: another turn of the loop goes on with the marked queues that are left.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from raftmq.batch import BATCH_BYTES_MAX
from raftmq.broker.deliver.matching import Matching
from raftmq.broker.host import Host, Source, Taken
from raftmq.broker.loop_budget import MaskBudget, Turn, in_another_turn
from raftmq.broker.quotas.message_budget import MessageBudget
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.broker.settings import Limits
from raftmq.broker.timers import Timers
from raftmq.broker.world import Worker
from raftmq.log.builder import Placement
from raftmq.log.record import HEADER_BYTES, Record
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.machine.subscriptions import Subscriptions, Wanted
from raftmq.results import Result
from raftmq.wire.fetches import NO_SESSION, Fetch, Fetched, FetchedQueue
from raftmq.wire.frame import Frame, FramePart
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.numbers import LIST_MAX

from .answers import LATER, Answer, OpenRequest, out_of_range, unknown_queue
from .connection import Connection
from .dispatcher import frame_route, route
from .fetch_sessions import FetchSession, FetchSessions, leave

PLACEMENTS_MAX = 1024
"""Batches of one queue in one answer."""
BATCHES_MAX = 8 * 1024
"""Batches of all queues in one answer: each takes 20 bytes of its header, and 2 us of the loop."""
QUEUES_MAX = 4096
"""Queues in one answer, about 200 bytes of the header each if they come with an error. The client
asks again, and other queues come first in the next answer."""
QUEUE_WORK = 2
"""Work of a look for a queue, beside its batches; a look has `BATCHES_MAX` of both."""
BYTES_MAX = BATCH_BYTES_MAX
"""Bytes of an answer, whatever is asked and set: with one batch more, a frame still has room."""


class _Found(NamedTuple):
    """The batches to give for one queue."""

    queue: int
    source: Source
    placements: list[Placement]
    filtered: "_Filtered | None" = None


class _Filtered(NamedTuple):
    """The filter of a group, for the batches of one queue."""

    offset: int
    """The offset that was asked for."""
    wanted: list[Wanted]
    """The filter that holds for each batch."""
    reached: int
    """The offset to go on with after the last batch."""


_Read = list[tuple[_Found, list[Record]]]
"""Queues and the records that were read of each."""


class Fetches(Service):
    """All fetches of a node that are under way."""

    def __init__(self, node: Host, *, timers: Timers, reader: Worker, limits: Limits) -> None:
        self._node = node
        self.matching = Matching(
            node.group, self, reader=reader, on_error=node.read_failed, on_caught_up=node.think
        )
        """Which filters want something of which batch."""
        self.when_matched: Callable[[int, ErrorReply | None], None] = lambda *_: None
        """Called with a queue whose batches were matched, or with the error in reading them."""
        self._timers = timers
        self._reader = reader
        self._limits = limits
        queues_max = limits.fetch_session_queues_max
        self.sessions = FetchSessions(queues_max=queues_max, end=self._end)
        """The queues and offsets of each consumer."""
        # Where sessions rest, in the order in which they came: a set's changes from run to run.
        self._parked: dict[int, dict[FetchSession, None]] = {}
        # Sessions with a filter that rest: queue → consumer group → sessions.
        self._filtered: dict[int, dict[str, dict[FetchSession, None]]] = {}
        # Queue → the offset from which on batches have still to be matched for `_filtered`.
        self._ahead: dict[int, int] = {}
        # Queue → sessions that cannot go on before batches of the queue are matched.
        self._needing: dict[int, dict[FetchSession, None]] = {}
        # Partition group → the last change of its subscriptions that was noted.
        self._noted: dict[int, int] = {}
        self._have_filters_changed = False
        self._is_looking_again = False
        # Work of the look that is under way.
        self._work = 0
        self.routes = {
            FrameKind.FETCH: route(Fetch, self._start),
            FrameKind.FORGET: frame_route(self._give_up),
        }

    def _start(self, request: Fetch, asked: OpenRequest) -> Answer:
        connection, correlation = asked.connection, asked.correlation
        if request.session and request.epoch == NO_SESSION:
            self._end_session(connection, request.session)
            return Fetched([])
        session = self.sessions.find(connection, request, correlation)
        if isinstance(session, ErrorReply):
            self._end_session(connection, request.session)
            return session
        for queue in request.forgotten:
            self._remove(session, queue)
        # Another queue comes first each time, so that no queue starves without a session either.
        unknown: list[FetchedQueue] = []
        shift = correlation % max(1, len(request.queues))
        for item in request.queues[shift:] + request.queues[:shift]:
            self._unregister(session, item.queue)
            if self._node.catalog.topic_of(item.queue) is None:
                # The gate judged no right to it, and a later topic may get its number.
                session.remove(item.queue)
                unknown.append(_failed(item.queue, unknown_queue(item.queue)))
            else:
                session.put(item.queue, item.offset)
        self.sessions.count(session)
        session.throttle_ms = asked.throttle_ms
        wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max) - asked.throttle_ms
        if asked.throttle_ms and connection.is_clogged:
            # Others were held on this connection, and have been answered.
            self._reply(session, unknown, [])
        elif not self._look(session, unknown):
            if wait_ms <= 0:
                self._time_out(session)
            else:
                seconds = wait_ms / 1000
                session.timer = self._timers.call_after(seconds, partial(self._time_out, session))
        return LATER

    def _give_up(self, _: Frame, asked: OpenRequest) -> Answer:
        """Answer a waiting fetch at once, without batches: the client gives up the wait."""
        session = self.sessions.asked(asked.connection, asked.correlation)
        if session is not None and session.is_waiting:
            self._reply(session, [], [])
        return LATER

    def wake(self, queues: set[int]) -> None:
        """Answer the fetches that wait for these queues: new batches were applied."""
        if not self._parked and not self._filtered:
            return
        woken: dict[FetchSession, None] = {}
        for queue in queues:
            for session in list(self._parked.get(queue, ())):
                self._mark(session, queue)
                woken[session] = None
            if queue in self._filtered:
                woken.update(self._look_ahead(queue))
        for session in woken:
            self._node.turns.make(session.connection, partial(self._retry, session))

    async def matched(self, queue: int, names: set[str], turn: Turn) -> None:
        """Batches of a queue were matched; these consumer groups want something of them."""
        waiting = self._filtered.get(queue, {})
        ready = dict.fromkeys(self._needing.get(queue, ()))
        for name, sessions in waiting.items():
            ready.update(sessions if name in names else {})
        for session in ready:
            if queue in session.offsets:
                self._mark(session, queue)
                self._retry(session)
            await turn.pause_if_over()
        self.when_matched(queue, None)

    def not_matched(self, queue: int, why: ErrorReply) -> None:
        """Batches of a queue could not be read: fetches that need them are answered with `why`."""
        for session in list(self._needing.get(queue, ())):
            self._mark(session, queue)
            if session.is_waiting:
                self._remove(session, queue)
                self._reply(session, [_failed(queue, why)], [])
        self.when_matched(queue, why)

    def passed(self, queue: int, consumer_group: str) -> int:
        """Messages of a queue that a consumer group passed over here: see `CommittedOffset`."""
        return self.matching.passed(queue, consumer_group)

    async def match(self) -> None:
        """Match batches for fetches that wait with a filter, until cancelled."""
        await self.matching.run()

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """If the records changed filters, sessions with those filters look again."""
        if not isinstance(group.machine, PartitionMachine):
            return
        changed = group.machine.subscriptions.changed
        if self._noted.get(group.number, 0) != changed:
            self._noted[group.number] = changed
            self._have_filters_changed = True
            if not self._is_looking_again:
                self._is_looking_again = True
                self._node.start_soon(self._look_again)

    async def _look_again(self) -> None:
        """Look again for sessions whose filter has changed since they were parked, in turns."""
        turn = Turn()
        while self._have_filters_changed:
            self._have_filters_changed = False
            for session in self.sessions.with_groups():
                changed = [each for each in session.numbers if self._has_new_filter(session, each)]
                for queue in changed:
                    self._mark(session, queue)
                if changed and session.is_waiting:
                    self._look(session)
                await turn.pause_if_over()
        self._is_looking_again = False

    def _has_new_filter(self, session: FetchSession, queue: int) -> bool:
        source = self._node.source(queue)
        # A session that waits for a queue that cannot be read here is refused elsewhere.
        return isinstance(source, Source) and session.has_new_filter(queue, _subscriptions(source))

    def closed(self, connection: Connection) -> None:
        """Forget the connection's fetches."""
        sessions = self.sessions.of(connection)
        for session in sessions:
            if session.correlation is not None:
                self.sessions.answered(session, session.correlation)
                session.close_request()
        self._end_all(sessions)

    def _end_all(self, sessions: list[FetchSession]) -> None:
        """End sessions, as many in a turn of the loop as have the queues of one."""
        ended = 0
        while sessions and ended < LIST_MAX:
            session = sessions.pop(0)
            ended += len(session.offsets)
            self._end(session)
        if sessions:
            self._node.start_soon(in_another_turn, partial(self._end_all, sessions))

    def led(self, group: Group, is_leader: bool) -> None:
        """Refuse the fetches of a group that this node no longer leads: waking them does it."""
        if not is_leader:
            group_of, number = self._node.catalog.group_of, group.number
            self.wake({q for q in [*self._parked, *self._filtered] if group_of(q) == number})

    def forget(self, group: Group) -> None:
        """Refuse the group's fetches."""
        self.led(group, is_leader=False)

    def look_for_lost(self) -> None:
        """Refuse the fetches of topics that are gone, after a change of the catalog."""
        queues, topic_of = [*self._parked, *self._filtered], self._node.catalog.topic_of
        topics = {queue >> QUEUE_BITS for queue in queues}
        if gone := {each for each in topics if topic_of(each << QUEUE_BITS) is None}:
            self.wake({queue for queue in queues if queue >> QUEUE_BITS in gone})

    def _end_session(self, connection: Connection, number: int) -> None:
        session = self.sessions.named(connection, number)
        if session is not None:
            self.sessions.release(session)
            if session.correlation is None:
                self._end(session)

    def _end(self, session: FetchSession) -> None:
        """Read nothing more for a session."""
        self.sessions.release(session)
        for queue in session.offsets:
            self._unregister(session, queue)
        session.offsets.clear()

    def _retry(self, session: FetchSession) -> None:
        if not session.is_waiting:
            return
        connection = session.connection
        if connection.is_clogged or self._node.quotas.must_wait(connection, session.topics):
            # The client does not read its answers, or others have used its quota up. An empty
            # answer ends this fetch, and the next fetch is taken only when there is room.
            self._reply(session, [], [])
        else:
            self._look(session)

    def _look_ahead(self, queue: int) -> dict[FetchSession, None]:
        """Have new batches of a queue matched, for the sessions that wait for a match. If the queue
        cannot be read here, return those sessions, so that they are refused."""
        source = self._node.source(queue)
        if isinstance(source, ErrorReply):
            told = {session: None for of in self._filtered[queue].values() for session in of}
            for session in told:
                self._mark(session, queue)
            return told
        index, offset = source.group.index, self._ahead[queue]
        while placements := index.lookup(queue, offset, PLACEMENTS_MAX):
            self.matching.want(source.group, placements)
            offset = placements[-1].base_offset + placements[-1].count
        self._ahead[queue] = offset
        return {}

    def _time_out(self, session: FetchSession) -> None:
        if not session.is_waiting:
            return
        # Batches were matched meanwhile without a match for this group: pass over them now.
        for queue in list(session.reached):
            self._mark(session, queue)
        if not self._look(session):
            self._reply(session, self._passed_over(session), [])

    def _passed_over(self, session: FetchSession) -> list[FetchedQueue]:
        """The queues in which a fetch passed over batches without a match, moved past those."""
        moved: list[FetchedQueue] = []
        for queue, reached in session.reached.items():
            offset = session.offsets[queue]
            source = self._node.source(queue) if reached > offset else None
            if not isinstance(source, Source) or len(moved) >= QUEUES_MAX:
                continue
            if not session.has_new_filter(queue, _subscriptions(source)):
                found = _Found(queue, source, [], _Filtered(offset, [], reached))
                moved.append(self._describe(session, found, [], MaskBudget())[0])
                session.offsets[queue] = reached
        return moved

    def _mark(self, session: FetchSession, queue: int) -> None:
        """Look at this queue of a session at the next opportunity."""
        self._unregister(session, queue)
        session.marked[queue] = None

    def _rest(self, session: FetchSession, queue: int) -> None:
        """Register a session that has all messages of a queue, until the queue has new ones."""
        del session.marked[queue]
        if queue not in session.reached:
            self._parked.setdefault(queue, {})[session] = None
            return
        groups = self._filtered.setdefault(queue, {})
        groups.setdefault(session.consumer_group, {})[session] = None
        if queue not in self._ahead:
            source = self._node.source(queue)
            is_here = isinstance(source, Source)
            self._ahead[queue] = source.end if is_here else session.offsets[queue]

    def _remove(self, session: FetchSession, queue: int) -> None:
        self._unregister(session, queue)
        session.remove(queue)

    def _unregister(self, session: FetchSession, queue: int) -> None:
        leave(self._parked, queue, session)
        leave(self._needing, queue, session)
        groups = self._filtered.get(queue)
        if groups is not None:
            leave(groups, session.consumer_group, session)
            if not groups:
                del self._filtered[queue]
                del self._ahead[queue]

    def _look(self, session: FetchSession, known: Sequence[FetchedQueue] = ()) -> bool:
        """Answer if there are batches or errors, as `known`; False: the fetch has to wait."""
        errors = list(known)
        found: list[_Found] = []
        self._work = 0
        for queue in list(session.marked):
            if len(errors) + len(found) >= QUEUES_MAX or self._work >= BATCHES_MAX:
                break
            self._work += QUEUE_WORK
            source = self._node.source(queue)
            if isinstance(source, ErrorReply):
                error: ErrorReply | None = source
            else:
                error = out_of_range(session.offsets[queue], source.earliest(queue), source.end)
            if error is not None:
                errors.append(_failed(queue, error))
                self._remove(session, queue)
                continue
            assert isinstance(source, Source)
            item = self._find(session, queue, source)
            if item is None:
                self._rest(session, queue)
            else:
                found.append(item)
        if found or errors:
            self._read(session, found, errors)
            return True
        if session.marked:
            self._node.start_soon(in_another_turn, partial(self._retry, session))
        return False

    def _find(self, session: FetchSession, queue: int, source: Source) -> "_Found | None":
        """Batches of a queue for a session."""
        if session.consumer_group and session.note_filter(queue, _subscriptions(source)):
            return self._find_filtered(session, queue, source)
        session.reached.pop(queue, None)
        offset = session.offsets[queue]
        if offset == source.end:
            return None
        placements = source.group.index.lookup(queue, offset, PLACEMENTS_MAX)
        self._work += len(placements)
        return _Found(queue, source, placements)

    def _find_filtered(self, session: FetchSession, queue: int, source: Source) -> "_Found | None":
        """Batches of a queue for a consumer group with a filter."""
        offset = session.offsets[queue]
        reached = session.reached.setdefault(queue, offset)
        if session.numbers[queue] == -1:
            # The log lacks the filter yet: `applied` looks again once the log has it.
            return None
        kept = _subscriptions(source).of(queue >> QUEUE_BITS, session.consumer_group)
        scan = self.matching.scan(source.group, kept, queue, reached)
        self._work += scan.looked
        if scan.found:
            filtered = _Filtered(offset, scan.wanted, scan.reached)
            return _Found(queue, source, scan.found, filtered)
        session.reached[queue] = scan.reached
        if scan.unknown:
            self._needing.setdefault(queue, {})[session] = None
            self.matching.want(source.group, scan.unknown)
        elif scan.reached > offset:
            # An answer without batches lets the consumer go on from there, and keeps its lag true.
            return _Found(queue, source, [], _Filtered(offset, [], scan.reached))
        return None

    def _read(self, session: FetchSession, found: list[_Found], errors: list[FetchedQueue]) -> None:
        budget = max(1, min(session.bytes_max, self._limits.fetch_bytes_max, BYTES_MAX))
        queues = [item.queue for item in found]
        room = self._node.quotas.room(session.connection, queues)
        budget = int(min(budget, room.size))
        read, cold = _from_memory(found, budget, room.messages)
        # The first queue may be on disk: queues that always have messages must not overtake it.
        if errors or not cold or (read and cold[0] is not found[0]):
            self._answer(session, errors, read)
            return
        assert session.correlation is not None
        session.is_reading = True
        self._node.quotas.expect(session.connection, session.correlation, budget, queues)
        self._reader.submit(
            partial(_from_disk, cold, budget, room.messages),
            partial(self._read_done, session, cold),
        )

    def _read_done(
        self,
        session: FetchSession,
        cold: list[_Found],
        read: _Read | None,
        error: BaseException | None,
    ) -> None:
        reply = self._node.read_failed(error) if error is not None else None
        if session.correlation is None:
            return  # the connection is gone
        if reply is None:
            assert read is not None
            self._answer(session, [], read)
            return
        for found in cold:
            self._remove(session, found.queue)
        self._reply(session, [_failed(found.queue, reply) for found in cold], [])

    def _answer(self, session: FetchSession, errors: list[FetchedQueue], read: _Read) -> None:
        budget, given = MaskBudget(), []
        queues: list[FetchedQueue] = []
        for item, found in read:
            described, records = self._describe(session, item, found, budget)
            queues.append(described)
            given.append((item, records))
            if described.next >= 0:
                session.put(item.queue, described.next)
            elif records:
                last = item.placements[len(records) - 1]
                session.put(item.queue, last.base_offset + last.count)
        if self._node.quotas.is_on:
            self._node.quotas.charge(session.connection, [_taken(*each) for each in given])
        body = [record.held_payload for _, records in given for record in records]
        self._reply(session, errors + queues, body)

    def _reply(
        self, session: FetchSession, queues: list[FetchedQueue], body: Sequence[FramePart]
    ) -> None:
        assert session.correlation is not None
        self.sessions.answered(session, session.correlation)
        self.sessions.count(session)
        session.answer(queues, body)
        if not session.number:
            self._end(session)

    def _describe(
        self, session: FetchSession, item: _Found, records: list[Record], budget: MaskBudget
    ) -> tuple[FetchedQueue, list[Record]]:
        """The answer for a queue, and the records that it has: those whose masks can be made."""
        masks: list[np.ndarray] = []
        if item.filtered is not None:
            offset, wanted, following = item.filtered
            group = item.source.group
            masks = list(self.matching.masks(group, item.placements, wanted, records, budget))
            records = records[: len(masks)]
        described = item.source.describe(
            item.queue,
            bases=[placement.base_offset for placement in item.placements[: len(records)]],
            timestamps=[record.timestamp for record in records],
            sizes=[len(record.encoded) - HEADER_BYTES for record in records],
        )
        if item.filtered is None:
            return described, records
        if len(records) < len(item.placements):
            following = max(offset, item.placements[len(records)].base_offset)
        packed, matching = b"", 0
        for placement, mask in zip(item.placements, masks, strict=False):
            if placement.base_offset < offset:
                mask = mask.copy()
                mask[: offset - placement.base_offset] = False
            matching += int(np.count_nonzero(mask))
            packed += np.packbits(mask, bitorder="little").tobytes()
        passed = following - offset - matching
        self.matching.count_passed(item.queue, session.consumer_group, passed)
        return msgspec.structs.replace(described, next=following, masks=packed), records


def _subscriptions(source: Source) -> Subscriptions:
    assert isinstance(source.group.machine, PartitionMachine)
    return source.group.machine.subscriptions


def _failed(queue: int, error: ErrorReply) -> FetchedQueue:
    return FetchedQueue(queue, -1, -1, b"", b"", b"", error)


def _taken(item: _Found, records: list[Record]) -> Taken:
    size = sum([len(record.encoded) - HEADER_BYTES for record in records])
    return Taken(item.queue, size, sum([each.count for each in item.placements[: len(records)]]))


def _from_memory(found: list[_Found], budget: int, count: float) -> tuple[_Read, list[_Found]]:
    """The batches of `found` in the caches, within `budget` bytes and `count` messages; and the
    queues whose first batch is not there."""
    read: _Read = []
    cold: list[_Found] = []
    batches = 0
    masks, messages = MaskBudget(), MessageBudget(count)
    for item in found:
        if budget <= 0 or batches >= BATCHES_MAX or masks.is_spent or messages.is_spent:
            break
        records: list[Record] = []
        for placement in messages.afford(_afforded(item, masks)):
            record = item.source.group.cache.get(placement.index)
            if record is None or budget <= 0:
                break
            records.append(record)
            budget -= len(record.encoded)
        batches += len(records)
        if records or not item.placements:
            read.append((item, records))
        else:
            cold.append(item)
    return read, cold


def _from_disk(cold: list[_Found], budget: int, count: float) -> _Read:
    """On the reading thread: the batches of queues whose next batch has left the cache."""
    read: _Read = []
    batches = 0
    masks, messages = MaskBudget(), MessageBudget(count)
    for item in cold:
        if budget <= 0 or batches >= BATCHES_MAX or masks.is_spent or messages.is_spent:
            break
        wanted = [placement.index for placement in messages.afford(_afforded(item, masks))]
        records = item.source.group.store.read_at(wanted, budget)
        budget -= sum([len(record.encoded) for record in records])
        batches += len(records)
        read.append((item, records))
    return read


def _afforded(item: _Found, masks: MaskBudget) -> list[Placement]:
    """The batches of a queue that one answer may have."""
    return item.placements if item.filtered is None else masks.afford(item.placements)
