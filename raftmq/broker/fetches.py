"""Reading queues: answers at once, from memory or from disk, or when the next batch commits.

A fetch names queues and offsets. What is there is answered: recent batches from the cache, older
ones by large reads on the reading thread. If nothing is there, the fetch is *parked* under its
queues; the apply of a batch wakes the fetches of its queue, once per pump. Nothing polls.

A fetch may name a consumer group that has subscribed to the topic. Then batches that hold nothing
for it are passed over without reading them (`matching`), the others come with a mask, and `next`
says how far the answer goes. Such a fetch is parked under its queue *and group*, and woken by a
batch of which the group wants something; when its wait ends, it is told what it has passed over.

Invariants:
- Only committed and applied batches are ever given, whole, byte for byte as they were produced.
- Each fetch is answered once: with batches, with an error of a queue, or empty when its wait ends.
- No message before `next` that was not sent matches the filter that holds for it.
- An answer is bounded: `bytes_max` over all its queues, one batch at the least, a header that stays
  below 3 MiB, and masks that take some milliseconds to make.
"""

from collections.abc import Callable, Sequence
from functools import partial
from struct import pack as pack_struct
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from raftmq.batch import BATCH_BYTES_MAX
from raftmq.log.builder import Placement
from raftmq.log.record import HEADER_BYTES, Record
from raftmq.pop.catalog import QUEUE_BITS
from raftmq.pop.machine import PartitionMachine
from raftmq.pop.subscriptions import Subscriptions, Wanted
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    ErrorReply,
    Fetch,
    Fetched,
    FetchedQueue,
    FetchFrom,
    FrameKind,
)

from .connection import Connection
from .group import Group
from .matching import Matching
from .settings import Limits
from .timers import Timer, Timers
from .turns import MaskBudget, Turn
from .world import Worker

PLACEMENTS_MAX = 1024
"""Batches of one queue in one answer."""
BATCHES_MAX = 64 * 1024
"""Batches of all queues in one answer: each takes 20 bytes of its header."""
QUEUES_MAX = 4096
"""Queues in one answer, about 200 bytes of the header each if they come with an error; a client
asks again, and other queues come first then."""
BYTES_MAX = BATCH_BYTES_MAX
"""Of an answer, whatever is asked and set: with one batch more it still fits into a frame."""


K = TypeVar("K", int, str)


class Source(NamedTuple):
    """Where one queue is read."""

    group: Group
    """The partition group's replica."""
    end: int
    """The offset after the queue's last message."""

    def earliest(self, queue: int) -> int:
        """The queue's first kept offset; its end if nothing is kept."""
        earliest = self.group.index.earliest(queue)
        return self.end if earliest is None else earliest


class Catalogue(Protocol):
    """What fetches need of the node."""

    def source(self, queue: int) -> Source | ErrorReply:
        """Where a queue is read on this node, or why it is not."""

    def group(self, number: int) -> Group | None:
        """This node's replica of a partition group."""


class _Found(NamedTuple):
    """The batches to give for one queue."""

    queue: int
    source: Source
    placements: list[Placement]
    filtered: "_Filtered | None" = None


class _Filtered(NamedTuple):
    """What a filter has to do with the batches of one queue."""

    offset: int
    """What was asked for."""
    wanted: list[Wanted]
    """The filter that holds for each batch."""
    reached: int
    """Where to go on after the last batch."""


_Read = list[tuple[_Found, list[Record]]]
"""Queues and the records that were read of each."""


class Fetches:
    """All fetches of a node that are under way."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        timers: Timers,
        reader: Worker,
        limits: Limits,
        on_error: Callable[[BaseException], ErrorReply],
    ) -> None:
        self._catalogue = catalogue
        self.matching = Matching(catalogue.group, self, reader=reader, on_error=on_error)
        """Which filters want something of which batch."""
        self.when_matched: Callable[[int, ErrorReply | None], None] = lambda *_: None
        """Told of a queue after batches of it were matched, or why they could not be read."""
        self._timers = timers
        self._reader = reader
        self._limits = limits
        self._on_error = on_error
        # In the order in which they came: a set's would change from run to run.
        self._parked: dict[int, dict[_Pending, None]] = {}
        # Those with a filter: queue → consumer group → fetches.
        self._filtered: dict[int, dict[str, dict[_Pending, None]]] = {}
        # Queue → the offset from which on batches are to be matched for them.
        self._ahead: dict[int, int] = {}
        # Queue → those that cannot go on before batches of it are matched.
        self._needing: dict[int, dict[_Pending, None]] = {}
        # Partition group → the last change of its subscriptions that was noted.
        self._noted: dict[int, int] = {}
        # The same ones by who asked, and under which correlation.
        self._waiting: dict[Connection, dict[int, _Pending]] = {}

    def start(self, connection: Connection, frame: Frame) -> None:
        """Answer a FETCH frame, now or later."""
        request = unpack(Fetch, frame.header)
        # Each fetch starts with another queue, so that a busy one cannot starve the others.
        shift = frame.correlation % max(1, len(request.queues))
        queues = request.queues[shift:] + request.queues[:shift]
        request = msgspec.structs.replace(request, queues=queues)
        pending = _Pending(connection, frame.correlation, request)
        if self._try(pending):
            self._unpark(pending)
            return
        wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max)
        if wait_ms <= 0:
            self._time_out(pending)
            return
        self._park(pending)
        pending.timer = self._timers.call_after(wait_ms / 1000, partial(self._time_out, pending))

    def forget(self, connection: Connection, frame: Frame) -> None:
        """Nobody waits for this fetch any more: it must not count until its wait ends."""
        pending = self._waiting.get(connection, {}).get(frame.correlation)
        if pending is not None:
            self._unpark(pending)
            pending.answer([], [])

    def wake(self, queues: set[int]) -> None:
        """New batches were applied to these queues."""
        if not self._parked and not self._filtered:
            return
        for queue in queues:
            for pending in list(self._parked.get(queue, ())):
                self._retry(pending)
            if queue in self._filtered:
                self._look_ahead(queue)

    async def matched(self, queue: int, names: set[str], turn: Turn) -> None:
        """Batches of a queue were matched; these consumer groups want something of them."""
        waiting = self._filtered.get(queue, {})
        ready = list(self._needing.get(queue, ()))
        ready += [pending for name, of in waiting.items() if name in names for pending in of]
        for pending in ready:
            self._retry(pending)
            await turn.pause_if_over()
        self.when_matched(queue, None)

    def not_matched(self, queue: int, why: ErrorReply) -> None:
        """Batches of a queue could not be read: who needs them is told."""
        for pending in list(self._needing.get(queue, ())):
            self._unpark(pending)
            pending.answer([_failed(queue, why)], [])
        self.when_matched(queue, why)

    def passed(self, queue: int, consumer_group: str) -> int:
        """Messages of a queue that a consumer group passed over here: see `CommittedOffset`."""
        return self.matching.passed(queue, consumer_group)

    async def match(self) -> None:
        """Match batches for those who wait with a filter, until cancelled."""
        await self.matching.run()

    def note_subscriptions(self, group: Group) -> None:
        """Records were applied: if they changed filters, those who wait with them start anew."""
        if not isinstance(group.machine, PartitionMachine):
            return
        changed = group.machine.subscriptions.changed
        if self._noted.get(group.number, 0) != changed:
            self._noted[group.number] = changed
            self._start_anew(group.machine.subscriptions)

    def _start_anew(self, subscriptions: Subscriptions) -> None:
        """Look again for those whose filter, as they were parked, is another one now."""
        again: dict[_Pending, None] = {}
        for groups in self._filtered.values():
            again.update((pending, None) for of in groups.values() for pending in of)
        for plain in self._parked.values():
            again.update((p, None) for p in plain if p.request.consumer_group)
        for pending in again:
            name = pending.request.consumer_group
            if all(
                number == _number(subscriptions, queue, name)
                for queue, number in pending.numbers.items()
            ):
                continue
            self._unpark(pending)
            pending.reached.clear()
            if not self._try(pending):
                self._park(pending)

    def drop(self, connection: Connection) -> None:
        """The connection is gone: forget its fetches."""
        for pending in list(self._waiting.get(connection, {}).values()):
            pending.end()
            self._unpark(pending)

    def refuse(self, is_lost: Callable[[int], bool]) -> None:
        """Wake the fetches of the queues that this node leads no more, so that they are told."""
        self.wake({queue for queue in [*self._parked, *self._filtered] if is_lost(queue)})

    def _retry(self, pending: "_Pending") -> None:
        if pending.is_answered:
            return
        if pending.connection.is_clogged:
            # It does not read: it is told that there is nothing, and its next fetch waits until
            # there is room.
            self._unpark(pending)
            pending.answer([], [])
        elif self._try(pending):
            self._unpark(pending)

    def _look_ahead(self, queue: int) -> None:
        """Have new batches of a queue matched, for those that wait for a match."""
        source = self._catalogue.source(queue)
        if isinstance(source, ErrorReply):
            for pending in [p for of in self._filtered[queue].values() for p in of]:
                self._retry(pending)
            return
        index, offset = source.group.index, self._ahead[queue]
        while placements := index.lookup(queue, offset, PLACEMENTS_MAX):
            self.matching.want(source.group, placements)
            offset = placements[-1].base_offset + placements[-1].count
        self._ahead[queue] = offset

    def _time_out(self, pending: "_Pending") -> None:
        if pending.is_answered:
            return
        # What was matched meanwhile without a match for this group shows now.
        is_answered = pending.request.consumer_group and self._try(pending)
        if not is_answered:
            pending.answer(self._passed_over(pending), [])
        self._unpark(pending)

    def _passed_over(self, pending: "_Pending") -> list[FetchedQueue]:
        """How far a fetch has come without finding anything for its group."""
        moved = []
        for item in pending.request.queues[:QUEUES_MAX]:
            reached = pending.reached.get(item.queue, 0)
            source = self._catalogue.source(item.queue) if reached > item.offset else None
            if isinstance(source, Source):
                found = _Found(item.queue, source, [], _Filtered(item.offset, [], reached))
                moved.append(self._describe(pending, found, []))
        return moved

    def _park(self, pending: "_Pending") -> None:
        self._waiting.setdefault(pending.connection, {})[pending.correlation] = pending
        name = pending.request.consumer_group
        for item in pending.request.queues:
            if item.queue not in pending.reached:
                self._parked.setdefault(item.queue, {})[pending] = None
                continue
            groups = self._filtered.setdefault(item.queue, {})
            groups.setdefault(name, {})[pending] = None
            if item.queue not in self._ahead:
                source = self._catalogue.source(item.queue)
                self._ahead[item.queue] = source.end if isinstance(source, Source) else item.offset

    def _unpark(self, pending: "_Pending") -> None:
        waiting = self._waiting.get(pending.connection)
        if waiting is not None and waiting.get(pending.correlation) is pending:
            del waiting[pending.correlation]
            if not waiting:
                del self._waiting[pending.connection]
        for item in pending.request.queues:
            _leave(self._parked, item.queue, pending)
            if item.queue not in pending.reached:
                continue
            _leave(self._needing, item.queue, pending)
            groups = self._filtered.get(item.queue)
            if groups is not None:
                _leave(groups, pending.request.consumer_group, pending)
                if not groups:
                    del self._filtered[item.queue]
                    del self._ahead[item.queue]

    def _try(self, pending: "_Pending") -> bool:
        """Answer if there is anything to say; False if the fetch has to wait."""
        errors: list[FetchedQueue] = []
        found: list[_Found] = []
        for item in pending.request.queues:
            if len(errors) + len(found) >= QUEUES_MAX:
                break
            source = self._catalogue.source(item.queue)
            if isinstance(source, ErrorReply):
                errors.append(_failed(item.queue, source))
            elif pending.request.consumer_group and self._try_filtered(
                pending, item, source, found, errors
            ):
                continue
            elif item.offset < source.end or item.offset > source.end:
                self._look_up(item, source, found, errors)
        if not found and not errors:
            return False
        pending.is_answered = True
        self._read(pending, found, errors)
        return True

    def _look_up(
        self, item: FetchFrom, source: Source, found: list[_Found], errors: list[FetchedQueue]
    ) -> None:
        error = _out_of_range(item, source)
        if error is not None:
            errors.append(error)
            return
        placements = source.group.index.lookup(item.queue, item.offset, PLACEMENTS_MAX)
        found.append(_Found(item.queue, source, placements))

    def _try_filtered(
        self,
        pending: "_Pending",
        item: FetchFrom,
        source: Source,
        found: list[_Found],
        errors: list[FetchedQueue],
    ) -> bool:
        """Look a queue up for a consumer group; False: it has no filter and gets everything."""
        assert isinstance(source.group.machine, PartitionMachine)
        subscriptions, queue = source.group.machine.subscriptions, item.queue
        kept = subscriptions.of(queue >> QUEUE_BITS, pending.request.consumer_group)
        is_early = subscriptions.version < pending.request.subscribed
        name = pending.request.consumer_group
        pending.numbers[queue] = -1 if is_early else _number(subscriptions, queue, name)
        if not kept and not is_early:
            return False
        error = _out_of_range(item, source)
        if error is not None:
            errors.append(error)
            return True
        reached = pending.reached.setdefault(queue, item.offset)
        _leave(self._needing, queue, pending)
        if is_early:
            # `note_subscriptions` comes back to it.
            return True
        scan = self.matching.scan(source.group, kept, queue, reached)
        if scan.found:
            filtered = _Filtered(item.offset, scan.wanted, scan.reached)
            found.append(_Found(queue, source, scan.found, filtered))
            return True
        pending.reached[queue] = scan.reached
        if scan.unknown:
            self._needing.setdefault(queue, {})[pending] = None
            self.matching.want(source.group, scan.unknown)
        elif scan.reached > item.offset:
            # It goes on from there, and its lag is true.
            filtered = _Filtered(item.offset, [], scan.reached)
            found.append(_Found(queue, source, [], filtered))
        return True

    def _read(self, pending: "_Pending", found: list[_Found], errors: list[FetchedQueue]) -> None:
        budget = max(1, min(pending.request.bytes_max, self._limits.fetch_bytes_max, BYTES_MAX))
        read, cold = _from_memory(found, budget)
        if read or errors or not cold:
            self._answer(pending, errors, read)
            return
        pending.connection.expect(pending.correlation, budget)
        self._reader.submit(
            partial(_from_disk, cold, budget), partial(self._read_done, pending, cold)
        )

    def _read_done(
        self,
        pending: "_Pending",
        cold: list[_Found],
        read: _Read | None,
        error: BaseException | None,
    ) -> None:
        if read is not None:
            self._answer(pending, [], read)
            return
        assert error is not None
        reply = self._on_error(error)
        pending.answer([_failed(found.queue, reply) for found in cold], [])

    def _answer(self, pending: "_Pending", errors: list[FetchedQueue], read: _Read) -> None:
        queues = [self._describe(pending, item, records) for item, records in read]
        body = [record.encoded[HEADER_BYTES:] for _, records in read for record in records]
        pending.answer(errors + queues, body)

    def _describe(self, pending: "_Pending", item: _Found, records: list[Record]) -> FetchedQueue:
        described = describe(
            item.queue,
            item.source,
            bases=[placement.base_offset for placement in item.placements[: len(records)]],
            timestamps=[record.timestamp for record in records],
            sizes=[len(record.encoded) - HEADER_BYTES for record in records],
        )
        if item.filtered is None:
            return described
        offset, wanted, following = item.filtered
        if len(records) < len(item.placements):
            following = item.placements[len(records)].base_offset
        masks, matching = b"", 0
        for placement, wish, record in zip(item.placements, wanted, records, strict=False):
            mask = self.matching.mask(item.source.group, placement, wish, record)
            if placement.base_offset < offset:
                mask = mask.copy()
                mask[: offset - placement.base_offset] = False
            matching += int(np.count_nonzero(mask))
            masks += np.packbits(mask, bitorder="little").tobytes()
        passed = following - offset - matching
        self.matching.count_passed(item.queue, pending.request.consumer_group, passed)
        return msgspec.structs.replace(described, next=following, masks=masks)


class _Pending:
    """One fetch and who waits for it."""

    __slots__ = (
        "connection",
        "correlation",
        "is_answered",
        "numbers",
        "reached",
        "request",
        "timer",
    )

    def __init__(self, connection: Connection, correlation: int, request: Fetch) -> None:
        self.connection = connection
        self.correlation = correlation
        self.request = request
        self.is_answered = False
        self.timer: Timer | None = None
        # Queue with a filter → the offset before which nothing matches.
        self.reached: dict[int, int] = {}
        # Queue → the number of the group's subscription as it was last looked at; 0: it has none,
        # -1: the log does not know it yet.
        self.numbers: dict[int, int] = {}

    def end(self) -> None:
        """Nothing waits for it: its timer must not hold request and connection until it is due."""
        self.is_answered = True
        if self.timer is not None:
            self.timer.cancel()

    def answer(self, queues: list[FetchedQueue], body: list[bytes]) -> None:
        self.end()
        header = pack(Fetched(queues))
        self.connection.reply(FrameKind.FETCH, self.correlation, header, body)


def _failed(queue: int, error: ErrorReply) -> FetchedQueue:
    return FetchedQueue(queue, -1, -1, b"", b"", b"", error)


def _number(subscriptions: Subscriptions, queue: int, name: str) -> int:
    """The number of a group's subscription to a queue's topic; 0: it has none."""
    kept = subscriptions.of(queue >> QUEUE_BITS, name)
    return kept[-1].number if kept else 0


def _leave(waiting: "dict[K, dict[_Pending, None]]", key: K, pending: "_Pending") -> None:
    """Take a fetch out of those that wait under a key."""
    fetches = waiting.get(key)
    if fetches is not None:
        fetches.pop(pending, None)
        if not fetches:
            del waiting[key]


def _out_of_range(item: FetchFrom, source: Source) -> FetchedQueue | None:
    """The refusal of an offset that a queue does not have."""
    earliest = source.earliest(item.queue)
    if earliest <= item.offset <= source.end:
        return None
    message = f"offset {item.offset} is not within {earliest}..{source.end}"
    error = ErrorReply("offset_out_of_range", message, earliest=earliest, end=source.end)
    return _failed(item.queue, error)


def _from_memory(found: list[_Found], budget: int) -> tuple[_Read, list[_Found]]:
    """What the caches hold of `found`, within `budget` bytes; and the queues they do not start."""
    read: _Read = []
    cold: list[_Found] = []
    batches = 0
    masks = MaskBudget()
    for item in found:
        if budget <= 0 or batches >= BATCHES_MAX or masks.is_spent:
            break
        records: list[Record] = []
        for placement in _afforded(item, masks):
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


def _from_disk(cold: list[_Found], budget: int) -> _Read:
    """On the reading thread: the batches of queues whose next one has left the cache."""
    read: _Read = []
    batches = 0
    masks = MaskBudget()
    for item in cold:
        if budget <= 0 or batches >= BATCHES_MAX or masks.is_spent:
            break
        wanted = [placement.index for placement in _afforded(item, masks)]
        records = item.source.group.store.read_at(wanted, budget)
        budget -= sum([len(record.encoded) for record in records])
        batches += len(records)
        read.append((item, records))
    return read


def _afforded(item: _Found, masks: MaskBudget) -> list[Placement]:
    """The batches of a queue that one answer may have."""
    return item.placements if item.filtered is None else masks.afford(item.placements)


def describe(
    queue: int,
    source: Source,
    *,
    bases: Sequence[int],
    timestamps: Sequence[int],
    sizes: Sequence[int],
) -> FetchedQueue:
    """What was read of a queue: of each batch its base offset, its stamp and its size."""
    count = len(bases)
    return FetchedQueue(
        queue,
        source.earliest(queue),
        source.end,
        pack_struct(f"<{count}Q", *bases),
        pack_struct(f"<{count}q", *timestamps),
        pack_struct(f"<{count}I", *sizes),
    )
