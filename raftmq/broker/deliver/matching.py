"""Which subscriptions want something of which batch: matched once per batch, for all groups.

For each batch that a consumer with a filter may read, the node keeps the *set* of subscriptions
that want something of the batch, as a sorted vector of their numbers:

    record 812   [3, 7, 19]      one vector for all records with the same set
    record 813   []
    record 814   [7]

A fetch of group 7's consumers looks at the vectors, passes over record 813, and reads the others.
A vector is made from the batch's columns by the index of all filters of the topic
(`raftmq.filters.Index`), when the first fetch needs the vector; a fetch that waits at the end of a
queue needs the vector of each batch at once. Nothing is kept on disk: after a restart, a change of
leader, or when the oldest gave way, the vectors are made again, of those batches that are read.

One task of the loop does the work in short turns (`loop_budget`), which end in the middle of a
batch too: neither thousands of filters nor a long batch hold up everything else. The order of the
batches, and the vectors, do not depend on where the task pauses.

A reader asks for the mask of each batch that it gives. The batches that were matched last are still
decoded, with the masks that took long. The mask of an older one is made again: at once if that is
one step of work, otherwise *to order*, by the task, one at a time for each queue and filter.

Invariants:
- A vector names each subscription of the topic that wants something of the batch and holds for it.
  The vector may name others, which hold for later batches only: no look-up asks for those.
- A batch that cannot be decoded counts as wanted by all subscriptions: consumers find the damage.
- Vectors take at most `SETS_BYTES_MAX`, outdated ones included; the oldest are dropped first.
- A reader makes no mask that takes longer than a step, and masks of one step for one answer.
- Only the task changes an index, and never while a batch is matched with it.
- A batch is matched in the end, however often filters change: they wait for it (`RESTARTS_MAX`).

Left out: steps within one message, one filter, or the reading of one column. A message that
thousands of filters must be evaluated on one by one, a filter of hundreds of comparisons on texts,
or 65,536 long texts hold the loop for longer. So does a change of one of 100,000 filters of a
topic, which are compared with those in the index: for 20 ms.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count, islice
from typing import NamedTuple, Protocol

import numpy as np
import trio

from raftmq.batch import Batch
from raftmq.broker.loop_budget import MaskBudget, Turn
from raftmq.broker.replica.group import Group
from raftmq.broker.world import Worker
from raftmq.errors import CorruptRecord
from raftmq.filters import Index, Matches
from raftmq.filters import compile as compile_filter
from raftmq.filters.masks import STEP_BYTES, BatchView
from raftmq.log.builder import Placement
from raftmq.log.record import Record
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.machine.subscriptions import Subscriptions, Wanted, valid_at
from raftmq.wire.messages import ErrorReply

SETS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of all vectors of a node, with their entries."""
SCAN_MAX = 1024
"""Batches that one look-up goes through."""
AHEAD_MAX = 64
"""Batches that a reader far behind has matched at once."""
SPARE_FILTERS = 16
"""An index may hold this many filters more than twice those in use; beyond, it is tidied."""
READ_BYTES = 256 * 1024
"""Bytes read at once of records that have left the cache."""
RESTARTS_MAX = 3
"""Times that filters may come before a match is done; then leaders let in none until it is."""
RECENT_MAX = 32
RECENT_BYTES_MAX = 8 * 1024 * 1024
"""Batches that stay decoded for the masks of all groups, and their bytes together."""
ORDERED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the masks that were made to order, and are kept for whoever asked for them."""
COUNTS_MAX = 100_000
"""Pairs of queue and consumer group for which the messages passed over are counted."""

_ENTRY_BYTES = 200
"""Bytes of a record's entry, measured: dictionary, queue, numbers."""
_VECTOR_BYTES = 150
"""Bytes of a vector beside its numbers, measured likewise."""
_EVERYBODY = b"*"
"""Stands for a vector: the batch cannot be decoded."""

_compiled = lru_cache(maxsize=4096)(compile_filter)


class Scan(NamedTuple):
    """The batches of a queue for one consumer group, from an offset on, as far as matched."""

    found: list[Placement]
    """Batches that hold something for it."""
    wanted: list[Wanted]
    """The filter that holds for each of them."""
    reached: int
    """The offset before which everything is known."""
    unknown: list[Placement]
    """Batches to match next; empty: all batches in reach are matched."""
    looked: int
    """Number of batches that were looked up."""


class Waiting(Protocol):
    """A caller that waits for batches to be matched."""

    async def matched(self, queue: int, names: set[str], turn: Turn) -> None:
        """Batches of a queue were matched; these consumer groups want something of them."""

    def not_matched(self, queue: int, why: ErrorReply) -> None:
        """Batches of a queue could not be read."""


class _Known:
    """The vectors of one partition group."""

    __slots__ = ("sets", "subscriptions", "widened")

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.subscriptions = subscriptions
        self.widened = subscriptions.widened
        self.sets: dict[int, bytes] = {}

    def is_of(self, subscriptions: Subscriptions) -> bool:
        """False once a filter holds for batches that were matched without that filter."""
        return self.subscriptions is subscriptions and self.widened == subscriptions.widened


class _Topic:
    """All filters of one topic."""

    __slots__ = ("index", "numbers", "seen")

    def __init__(self) -> None:
        self.index: Index[int] = Index()
        self.numbers: set[int] = set()
        # Partition group → the subscriptions whose filters the index has, as of this change.
        self.seen: dict[int, tuple[Subscriptions, int]] = {}


class Matching:
    """The matching of one node."""

    def __init__(
        self,
        group: Callable[[int], Group | None],
        waiting: Waiting,
        *,
        reader: Worker,
        on_error: Callable[[BaseException], ErrorReply],
        on_caught_up: Callable[[], None],
        bytes_max: int = SETS_BYTES_MAX,
    ) -> None:
        """`group` gives this node's replica of a partition group; `on_error` says what to answer
        when records cannot be read; `on_caught_up` is called when `is_behind_filters` ends."""
        self._group = group
        self._waiting = waiting
        self._reader = reader
        self._on_error = on_error
        self._on_caught_up = on_caught_up
        self._bytes_max = bytes_max
        self._known: dict[int, _Known] = {}
        self._order: deque[tuple[_Known, int]] = deque()
        # Vector → the one that all entries share, and how many do.
        self._shared: dict[bytes, tuple[bytes, int]] = {}
        self._topics: dict[int, _Topic] = {}
        self._wanted: dict[tuple[int, int], Placement] = {}
        # Partition group and record index → the matches of the batch, and its bytes.
        self._recent: OrderedDict[tuple[int, int], tuple[Matches[int], int]] = OrderedDict()
        self._recent_bytes = 0
        # Partition group, queue and subscription → the mask to be made: one at a time.
        self._orders: dict[tuple[int, int, int], tuple[Placement, Wanted]] = {}
        # Partition group, record index and subscription → the mask that was made to order.
        self._ordered: OrderedDict[tuple[int, int, int], np.ndarray] = OrderedDict()
        self._ordered_bytes = 0
        self._passed: dict[tuple[int, str], int] = {}
        self._wake = trio.Event()
        # Times that filters came before a match was done, since the last one that was.
        self._restarts = 0
        self.bytes = 0
        """Bytes that the vectors take, approximately."""
        self.batches = 0
        """Batches matched since the start."""

    @property
    def is_behind_filters(self) -> bool:
        """True: filters changed `RESTARTS_MAX` times before a match was done. Leaders propose none
        until one is."""
        return self._restarts >= RESTARTS_MAX

    # Calls of fetches

    def scan(self, group: Group, kept: Sequence[Wanted], queue: int, offset: int) -> Scan:
        """Look up the batches from `offset` on for a consumer group with these filters."""
        sets = self._sets(group)
        found: list[Placement] = []
        wanted: list[Wanted] = []
        reached = offset
        placements = group.index.lookup(queue, offset, SCAN_MAX)
        for at, placement in enumerate(placements):
            members = sets.get(placement.index)
            if members is None:
                unknown = placements[at : at + AHEAD_MAX]
                return Scan(found, wanted, reached, unknown, len(placements))
            valid = valid_at(kept, placement.index)
            if _holds(members, valid.number):
                if (group.number, queue, valid.number) in self._orders:
                    return Scan(found, wanted, reached, [placement], len(placements))
                found.append(placement)
                wanted.append(valid)
            reached = placement.base_offset + placement.count
        return Scan(found, wanted, reached, [], len(placements))

    def want(self, group: Group, placements: Sequence[Placement]) -> None:
        """Have these batches matched soon; `Waiting.matched` reports them."""
        sets = self._sets(group)
        for placement in placements:
            if placement.index not in sets:
                self._wanted[group.number, placement.index] = placement
        if self._wanted:
            self._wake.set()

    def masks(
        self,
        group: Group,
        placements: Sequence[Placement],
        wanted: Sequence[Wanted],
        records: Sequence[Record],
        budget: MaskBudget,
    ) -> Iterator[np.ndarray]:
        """The masks of the first of these batches, as many as can be made now: see `mask`."""
        for placement, each, record in zip(placements, wanted, records, strict=False):
            mask = self.mask(group, placement, each, record, budget)
            if mask is None:
                break
            yield mask

    def mask(
        self, group: Group, placement: Placement, wanted: Wanted, record: Record, budget: MaskBudget
    ) -> np.ndarray | None:
        """One bool per message of a batch: does the filter match? It matches at least one.

        None: the budget is spent; or the mask takes long, so that it is made to order. `scan` has
        the batch among the unknown ones meanwhile, and `Waiting.matched` reports it.
        """
        if placement.count == 1:
            return np.ones(1, np.bool_)
        ordered = self._ordered.get((group.number, placement.index, wanted.number))
        if ordered is not None:
            return ordered
        recent = self._recent.get((group.number, placement.index))
        if recent is not None:
            cost, mask = recent[0].cost(wanted.number), partial(recent[0].mask, wanted.number)
        else:
            try:
                view = BatchView(Batch.decode(record.payload, check=False))
            except CorruptRecord:
                return np.ones(placement.count, np.bool_)
            formula = _compiled(wanted.expression).formula
            cost, mask = view.cost(formula), partial(view.mask, formula)
        if cost > STEP_BYTES:
            key = group.number, placement.queue, wanted.number
            self._orders.setdefault(key, (placement, wanted))
            self._wake.set()
            return None
        return mask() if budget.spend(cost) else None

    def count_passed(self, queue: int, consumer_group: str, messages: int) -> None:
        """A consumer group passed over messages that it does not want."""
        if not messages:
            return
        key = queue, consumer_group
        self._passed[key] = self._passed.pop(key, 0) + messages
        if len(self._passed) > COUNTS_MAX:
            del self._passed[next(iter(self._passed))]

    def passed(self, queue: int, consumer_group: str) -> int:
        """How many messages of a queue a consumer group passed over, since this node started."""
        return self._passed.get((queue, consumer_group), 0)

    # The task.

    async def run(self) -> None:
        """Match what is wanted, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._wanted or self._orders:
                if self._orders:
                    await self._carry_out_one()
                if self._wanted:
                    await self._step()
                await trio.lowlevel.checkpoint()
            # Nothing is left to match, so filters need not wait.
            self._caught_up()

    async def _step(self) -> None:
        number, _ = next(iter(self._wanted))
        group = self._group(number)
        if group is None or not group.is_leader:
            # A fetch that waits for these batches is refused by its next look at the queue.
            self._wanted = {key: p for key, p in self._wanted.items() if key[0] != number}
            self._caught_up()
            return
        work = self._work(number)
        records = [group.cache.get(placement.index) for placement in work]
        if records[0] is None:
            await self._read(group, work)
            return
        await self._match(group, work, [record for record in records if record is not None])

    def _work(self, number: int) -> list[Placement]:
        """The next batches of one topic of a partition group, by their index."""
        topic = next(iter(self._wanted.values())).queue >> QUEUE_BITS
        same = (
            placement
            for (group, _), placement in self._wanted.items()
            if group == number and placement.queue >> QUEUE_BITS == topic
        )
        return sorted(islice(same, AHEAD_MAX), key=_index)

    async def _read(self, group: Group, work: list[Placement]) -> None:
        """Match batches that have left the cache."""
        indexes = [p.index for p in work if group.cache.get(p.index) is None]
        records = await self._read_at(group, indexes)
        if isinstance(records, ErrorReply):
            for placement in work:
                self._wanted.pop((group.number, placement.index), None)
            for queue in dict.fromkeys(placement.queue for placement in work):
                self._waiting.not_matched(queue, records)
            return
        await self._match(group, work, records)

    async def _read_at(self, group: Group, indexes: list[int]) -> list[Record] | ErrorReply:
        """The first of these records, at least one, on the reading thread."""
        done = trio.Event()
        outcome: list[list[Record] | BaseException | None] = []

        def finished(records: list[Record] | None, error: BaseException | None) -> None:
            outcome.append(records if error is None else error)
            done.set()

        self._reader.submit(partial(group.store.read_at, indexes, READ_BYTES), finished)
        await done.wait()
        records = outcome[0]
        if isinstance(records, BaseException):
            return self._on_error(records)
        assert records
        return records

    async def _carry_out_one(self) -> None:
        """Make the mask that was ordered first, and report it."""
        key, (placement, wanted) = next(iter(self._orders.items()))
        number, queue, _ = key
        turn = Turn()
        group = self._group(number)
        error: ErrorReply | None = None
        # If another node leads, whoever waits for the mask is refused by the next look.
        if group is not None and group.is_leader:
            error = await self._make_mask(group, placement, wanted, turn)
        del self._orders[key]
        if error is not None:
            self._waiting.not_matched(queue, error)
        else:
            await self._waiting.matched(queue, set(), turn)

    async def _make_mask(
        self, group: Group, placement: Placement, wanted: Wanted, turn: Turn
    ) -> ErrorReply | None:
        """Make a mask in steps, and keep it; the oldest make room."""
        record = group.cache.get(placement.index)
        if record is None:
            records = await self._read_at(group, [placement.index])
            if isinstance(records, ErrorReply):
                return records
            record = records[0]
        formula = _compiled(wanted.expression).formula
        masks: list[np.ndarray] = []
        for view in BatchView.parts(Batch.decode(record.payload, check=False)):
            for _ in view.mask_in_steps(formula):
                await turn.pause_if_over()
            masks.append(view.mask(formula))
        mask = np.concatenate(masks)
        mask.flags.writeable = False
        key = group.number, placement.index, wanted.number
        self._ordered_bytes -= len(self._ordered.pop(key, ()))
        self._ordered[key] = mask
        self._ordered_bytes += len(mask)
        while self._ordered_bytes > ORDERED_BYTES_MAX and len(self._ordered) > 1:
            self._ordered_bytes -= len(self._ordered.popitem(last=False)[1])
        return None

    async def _match(self, group: Group, work: list[Placement], records: list[Record]) -> None:
        """Match these records, all or as many as a turn allows; each stands in `work`."""
        at = {placement.index: placement for placement in work}
        topic = await self._prepare(group, work[0].queue >> QUEUE_BITS)
        known = self._known_of(group)
        turn = Turn()
        found: dict[int, set[int]] = {}
        for record in records:
            ids = await self._match_one(group, known, topic, record, turn)
            if ids is None:
                self._restarts += 1
                break
            self._caught_up()
            self._wanted.pop((group.number, record.index), None)
            found.setdefault(at[record.index].queue, set()).update(ids)
            if turn.is_over:
                break
        for queue, numbers in found.items():
            names = {known.subscriptions.name(number) for number in numbers}
            await self._waiting.matched(queue, {name for name in names if name is not None}, turn)

    def _caught_up(self) -> None:
        """Filters may come again."""
        was_behind, self._restarts = self.is_behind_filters, 0
        if was_behind:
            self._on_caught_up()

    async def _match_one(
        self, group: Group, known: _Known, topic: _Topic, record: Record, turn: Turn
    ) -> frozenset[int] | None:
        """The subscriptions that want something of a batch; None: the match was in vain, because a
        filter that holds for the batch came meanwhile, or another replica of the group."""
        matches: Matches[int] | None = None
        with suppress(CorruptRecord):
            batch = Batch.decode(record.payload, check=False)
            for step in topic.index.match_in_steps(batch):
                matches = step
                await turn.pause_if_over()
        if self._group(group.number) is not group or self._known_of(group) is not known:
            return None
        self.batches += 1
        if matches is None:
            self._keep(known, record.index, _EVERYBODY)
            return frozenset(topic.numbers)
        ids = matches.ids
        vector = np.fromiter(ids, np.uint32, len(ids))
        vector.sort()
        self._keep(known, record.index, vector.tobytes())
        self._remember((group.number, record.index), matches, len(record.encoded))
        return ids

    async def _prepare(self, group: Group, number: int) -> _Topic:
        """The index of a topic with all filters that this partition group's log has."""
        if number not in self._topics:
            self._topics = {each: t for each, t in self._topics.items() if self._is_used(each, t)}
            self._topics[number] = _Topic()
        topic = self._topics[number]
        turn = Turn()
        for rounds in count():
            subscriptions = _subscriptions(group)
            now = (subscriptions, subscriptions.changed)
            if topic.seen.get(group.number) == now:
                break
            # Filters changed while the index was prepared. Another leader lets them in as it likes.
            self._restarts += rounds > 0 and group.is_leader
            filters = subscriptions.filters(number)
            for each in [each for each in filters if each not in topic.numbers]:
                topic.index.add(each, filters[each])
                topic.numbers.add(each)
                await turn.pause_if_over()
            topic.seen[group.number] = now
            await self._tidy(topic, number, turn)
        return topic

    def _is_used(self, number: int, topic: _Topic) -> bool:
        """Whether there is still a filter of the topic; it may have been deleted."""
        groups = [self._group(each) for each in topic.seen]
        return any(group is not None and _subscriptions(group).has(number) for group in groups)

    async def _tidy(self, topic: _Topic, number: int, turn: Turn) -> None:
        """Once more than half of an index is of no use, remove those filters."""
        groups = [self._group(each) for each in topic.seen]
        needed: set[int] = set()
        for group in groups:
            if group is not None:
                needed.update(_subscriptions(group).filters(number))
        if len(topic.numbers) > 2 * len(needed) + SPARE_FILTERS:
            for each in sorted(topic.numbers - needed):
                topic.index.remove(each)
                topic.numbers.discard(each)
                await turn.pause_if_over()

    # The vectors.

    def _known_of(self, group: Group) -> _Known:
        subscriptions = _subscriptions(group)
        known = self._known.get(group.number)
        if known is None or not known.is_of(subscriptions):
            # The old vectors may be many: `_keep` drops them one by one, as the oldest.
            known = self._known[group.number] = _Known(subscriptions)
            for key in [key for key in self._recent if key[0] == group.number]:
                self._forget(key)
        return known

    def _sets(self, group: Group) -> dict[int, bytes]:
        return self._known_of(group).sets

    def _keep(self, known: _Known, index: int, vector: bytes) -> None:
        self._drop(known, index)
        shared, uses = self._shared.get(vector, (vector, 0))
        self._shared[shared] = (shared, uses + 1)
        if not uses:
            self.bytes += len(vector) + _VECTOR_BYTES
        known.sets[index] = shared
        self._order.append((known, index))
        self.bytes += _ENTRY_BYTES
        while self.bytes > self._bytes_max and len(self._order) > 1:
            self._drop(*self._order.popleft())

    def _remember(self, key: tuple[int, int], matches: Matches[int], size: int) -> None:
        self._forget(key)
        self._recent[key] = (matches, size)
        self._recent_bytes += size
        while len(self._recent) > RECENT_MAX or self._recent_bytes > RECENT_BYTES_MAX:
            self._forget(next(iter(self._recent)))

    def _forget(self, key: tuple[int, int]) -> None:
        self._recent_bytes -= self._recent.pop(key, (None, 0))[1]

    def _drop(self, known: _Known, index: int) -> None:
        vector = known.sets.pop(index, None)
        if vector is None:
            return
        self.bytes -= _ENTRY_BYTES
        shared, uses = self._shared[vector]
        if uses > 1:
            self._shared[vector] = (shared, uses - 1)
        else:
            del self._shared[vector]
            self.bytes -= len(vector) + _VECTOR_BYTES


def _subscriptions(group: Group) -> Subscriptions:
    assert isinstance(group.machine, PartitionMachine)
    return group.machine.subscriptions


def _index(placement: Placement) -> int:
    return placement.index


def _holds(vector: bytes, number: int) -> bool:
    """Is this number in the sorted vector?"""
    if vector == _EVERYBODY:
        return True
    with memoryview(vector).cast("I") as numbers:
        at = bisect_left(numbers, number)
        return at < len(numbers) and numbers[at] == number
