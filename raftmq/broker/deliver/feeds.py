"""Feeds: which messages match a group's filter, and their keys, before the messages may go out.

The machine knows offsets, not contents. For a group with a filter or an order by key, the leader
reads ahead and tells all replicas by a record which messages match, and which keys they have.

    wants ──> placements ──┬─ filter: what the matching knows ──┬──> records ──> Feed ──> window
                           └─ no filter: all of them ───────────┘   (cache, disk)

No byte is read of a batch in which nothing matches. At the end of a queue, a group without a filter
is not fed by records at all: the machine takes the keys from the batch that it places.

Invariants:
- One feed at a time for a queue of a group; a feed continues what the group knows, or changes
  nothing.
- The log says which filter holds for a batch (`subscriptions`), whichever node leads.
- A feed that was refused, or whose records cannot be read, is tried again after a pause.
- The loop is held for one turn (`loop_budget`), or for as long as `FED_QUEUES_MAX` queues of one
  group take.

Left out: feeding only groups with a waiting consumer. A window is bounded.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from raftmq.batch import peek
from raftmq.broker.host import Host
from raftmq.broker.loop_budget import MaskBudget, Turn
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.broker.tickets import Callback, retry_seconds
from raftmq.broker.timers import Timers
from raftmq.broker.world import Worker
from raftmq.errors import CorruptRecord
from raftmq.log.builder import Placement
from raftmq.log.record import Kind, Record
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.subscriptions import Wanted
from raftmq.pop import calls
from raftmq.results import Result
from raftmq.wire.messages import ErrorReply

from .matching import Matching

MESSAGES_MAX = 16_384
"""Messages of one feed."""
PLACEMENTS_MAX = 1024
"""Batches of one feed."""
READ_BYTES = 4 * 1024 * 1024
"""Bytes read at once of records that have left the cache."""


class _Key(NamedTuple):
    """A queue of a group."""

    partition_group: int
    number: int
    queue: int


class _Look(NamedTuple):
    """A feed to be: the range of offsets, its batches, and the filter that holds for each batch."""

    base: int
    stop: int
    placements: list[Placement]
    wanted: Sequence[Wanted]
    """The filter that holds for each placement; empty for a group without a filter."""
    subscription: int
    """The number of the group's latest filter when the look was taken; 0: no filter. If the number
    has changed once the records are read, the look is dropped."""


class Feeds(Service):
    """The feeding of all groups in the data groups that this node leads."""

    def __init__(self, node: Host, *, matching: Matching, timers: Timers, reader: Worker) -> None:
        self._node = node
        self._matching = matching
        self._timers = timers
        self._reader = reader
        self._under_way: set[_Key] = set()
        # Queue → the feeds that wait until batches of the queue are matched.
        self._needing: dict[int, set[_Key]] = {}
        # Data group → its consumer groups that `_go_on` has still to feed, in this turn or later.
        self._rest: dict[int, dict[int, None]] = {}
        # Data groups for which `_think_again` is scheduled.
        self._soon: set[int] = set()

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Feed what the records want."""
        self._think(group)

    def _think(self, group: Group) -> None:
        """Feed the consumer groups of a data group that want it, in as many turns as needed."""
        machine = group.machine
        if not isinstance(machine, PartitionMachine) or not group.is_leader:
            return
        rest = self._rest.get(group.number)
        if rest is not None:
            # Groups that wait keep their place, so that frequent calls starve none of them.
            rest.update(dict.fromkeys(machine.pop_groups.fed))
            return
        self._rest[group.number] = dict.fromkeys(machine.pop_groups.fed)
        self._go_on(group.number)

    def _go_on(self, partition_group: int) -> None:
        """Feed consumer groups for one turn; the rest follows in the next turns."""
        rest = self._rest[partition_group]
        turn = Turn()
        for number in list(rest):
            del rest[number]
            self._feed_group(partition_group, number)
            if rest and turn.is_over:
                self._timers.call_after(0, partial(self._go_on, partition_group))
                return
        del self._rest[partition_group]

    def _feed_group(self, partition_group: int, number: int) -> None:
        group = self._node.group(partition_group)
        if group is None or not group.is_leader:
            return
        assert isinstance(group.machine, PartitionMachine)
        pop_group = group.machine.pop_groups.fed.get(number)
        if pop_group is None:
            return
        for queue, start in pop_group.wants_feed(group.machine.ends):
            key = _Key(partition_group, number, queue)
            if key not in self._under_way:
                self._feed(group, key, start)

    def _think_again(self, partition_group: int) -> None:
        self._soon.discard(partition_group)
        group = self._node.group(partition_group)
        if group is not None:
            self._think(group)

    def led(self, group: Group, is_leader: bool) -> None:
        """Drop the group's feeds, and begin again if leading."""
        for key in [key for key in self._under_way if key.partition_group == group.number]:
            self._under_way.discard(key)
        if is_leader:
            self._think(group)

    def matched(self, queue: int, error: ErrorReply | None) -> None:
        """Go on with the feeds that waited for a queue's batches: these were matched, or `error`
        says why they cannot be read."""
        if error is not None:
            for key in sorted(self._needing.pop(queue, set())):
                self._try_later(key, error)
            return
        keys = self._needing.pop(queue, set())
        self._under_way -= keys
        for number in sorted({key.partition_group for key in keys}):
            group = self._node.group(number)
            if group is not None:
                self._think(group)

    def _feed(self, group: Group, key: _Key, start: int) -> None:
        assert isinstance(group.machine, PartitionMachine)
        attached = group.machine.pop_groups.attached[key.number]
        kept = group.machine.subscriptions.of(attached.topic, attached.name)
        look = (
            self._look_filtered(group, key, kept, start)
            if kept
            else _look_plain(group, key.queue, start)
        )
        if look is None:
            return
        self._under_way.add(key)
        records = {p.index: group.cache.get(p.index) for p in look.placements}
        missing = [index for index, record in records.items() if record is None]
        found = {index: record for index, record in records.items() if record is not None}
        if not missing:
            self._propose(group, key, look, found)
            return

        def read(more: list[Record] | None, error: BaseException | None) -> None:
            if more is None:
                assert error is not None
                self._try_later(key, self._node.read_failed(error))
                return
            self._propose(group, key, look, found | {record.index: record for record in more})

        self._reader.submit(partial(group.store.read_at, missing, READ_BYTES), read)

    def _look_filtered(
        self, group: Group, key: _Key, kept: Sequence[Wanted], start: int
    ) -> _Look | None:
        scan = self._matching.scan(group, kept, key.queue, start)
        if scan.reached > start:
            count = 0
            for placement in MaskBudget().afford(scan.found):
                count += 1
                if placement.base_offset - start >= MESSAGES_MAX:
                    break
            stop = scan.reached
            if count < len(scan.found):
                stop = scan.found[count].base_offset
            stop = min(stop, start + MESSAGES_MAX)
            found = [p for p in scan.found[:count] if p.base_offset < stop]
            return _Look(start, stop, found, scan.wanted[: len(found)], kept[-1].number)
        if scan.unknown:
            self._under_way.add(key)
            self._needing.setdefault(key.queue, set()).add(key)
            self._matching.want(group, scan.unknown)
        return None

    def _propose(self, group: Group, key: _Key, look: _Look, records: dict[int, Record]) -> None:
        # While the records were read, the filter may have changed or the leadership been lost.
        if look.subscription != _subscription(group, key):
            self._done(key)
            return
        stop = look.stop
        for placement in look.placements:
            if placement.index not in records:
                # One reading had no room for this record: feed only what stands before it.
                stop = min(stop, placement.base_offset)
        mask: bytes | None = None
        if look.subscription:
            mask, stop = self._mask(group, look, stop, records)
            if stop == look.base:
                # The first mask takes long: it is made to order.
                self._needing.setdefault(key.queue, set()).add(key)
                return
        keys = _keys(look, stop, records)
        command = calls.Feed(
            key.number, key.queue, look.base, stop - look.base, mask, keys, look.subscription
        )
        payload = encode_commands([command])
        ticket = Callback(lambda _: self._done(key), partial(self._try_later, key))
        group.propose(Kind.COMMANDS, payload, ticket, is_upkeep=True)

    def _mask(
        self, group: Group, look: _Look, stop: int, records: dict[int, Record]
    ) -> tuple[bytes, int]:
        """The messages that match, up to `stop` or the offset that is returned."""
        within = [placement for placement in look.placements if placement.base_offset < stop]
        found = [records[placement.index] for placement in within]
        masks = list(self._matching.masks(group, within, look.wanted, found, MaskBudget()))
        if len(masks) < len(within):
            stop = max(look.base, within[len(masks)].base_offset)
        matches = np.zeros(stop - look.base, np.bool_)
        for placement, mask in zip(within, masks, strict=False):
            _put(matches, mask, placement.base_offset - look.base)
        return np.packbits(matches, bitorder="little").tobytes(), stop

    def _try_later(self, key: _Key, error: ErrorReply) -> None:
        """A feed was refused or cannot be made: look again after a pause. Without the pause this
        would spin: during a hand-over each proposal is refused before the loop does other work."""
        self._timers.call_after(retry_seconds(error), partial(self._done, key))

    def _done(self, key: _Key) -> None:
        """A feed is applied, or its pause is over: look again soon."""
        self._under_way.discard(key)
        # One look serves all feeds of the data group that end in this step.
        if key.partition_group not in self._soon:
            self._soon.add(key.partition_group)
            self._timers.call_after(0, partial(self._think_again, key.partition_group))


def _look_plain(group: Group, queue: int, start: int) -> _Look | None:
    placements = group.index.lookup(queue, start, PLACEMENTS_MAX)
    count = 0
    while count < len(placements) and placements[count].base_offset - start < MESSAGES_MAX:
        count += 1
    placements = placements[:count]
    if not placements:
        return None
    stop = min(placements[-1].base_offset + placements[-1].count, start + MESSAGES_MAX)
    return _Look(start, stop, placements, [], 0)


def _subscription(group: Group, key: _Key) -> int:
    """The number of a group's latest filter, as the log has it now; 0: the group has no filter; -1:
    there is no such group here, or another node leads."""
    assert isinstance(group.machine, PartitionMachine)
    attached = group.machine.pop_groups.attached.get(key.number)
    if attached is None or not group.is_leader:
        return -1
    return group.machine.subscriptions.number_of(attached.topic, attached.name)


def _keys(look: _Look, stop: int, records: dict[int, Record]) -> bytes:
    """The hashes of the messages' keys; empty if none has a key."""
    hashes = np.zeros(stop - look.base, "<u4")
    has_some = False
    for placement in look.placements:
        if placement.base_offset >= stop:
            break
        payload = records[placement.index].payload
        try:
            at = peek(payload).key_hashes_at
        except CorruptRecord:
            # The consumer finds the damage; without a key the messages hold up no others.
            continue
        if at:
            of_batch = np.frombuffer(payload, "<u4", placement.count, at)
            _put(hashes, of_batch, placement.base_offset - look.base)
            has_some = True
    return hashes.tobytes() if has_some else b""


def _put(column: np.ndarray, part: np.ndarray, at: int) -> None:
    """Write a batch's values into their place in a column; values outside the column are left
    out."""
    first, stop = max(0, -at), min(len(part), len(column) - at)
    column[at + first : at + stop] = part[first:stop]
