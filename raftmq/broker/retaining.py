"""Up to where retention drops a group's log: dead letters hold it up for a while.

    segments      [ 1..900 ][ 901..1800 ][ 1801..2700 ][ 2701..   ]
    settings       too old    too old                                 wanted: 1801
    dead letter                 ^ 1200                                dropped up to 901
    dead_ms later, or more than dead_bytes                            dropped up to 1801

The messages of a dead letter stand where they were stored, and nowhere else. So that somebody can
still look at them and hand them out again, the segment that holds the first one stays, and what
comes after it: for `log.dead_ms` more, and up to `log.dead_bytes` more. Then they are gone: the
letter stays, and redriving it counts its messages as lost.

Invariants:
- Dead letters keep no more than the two settings say, and nothing while the leader's disk is full.
- Only the leader's wish is held up. The machine knows nothing of it: any replica that leads decides
  by the log that it has.

Left out: writing the messages again at the log's end, as is done with delayed ones, so that nothing
else is kept for their sake. They would come under other offsets, or from outside their queue.
"""

from collections.abc import Iterable
from typing import NamedTuple

from raftmq.log.index import LogIndex
from raftmq.log.store import SegmentSize
from raftmq.pop.machine import PartitionMachine
from raftmq.pop.serving import Serving

from .group import Group
from .settings import Log

LOOK_MS = 10_000
"""How often all dead letters of a group are gone through while they hold it up: 100,000 of them
take about 30 ms."""


class _Look(NamedTuple):
    """What dead letters need."""

    wanted: int
    """Up to where retention wanted to drop."""
    drops: int
    """How often it had."""
    at: int
    """When, milliseconds."""
    floor: int | None
    """The first record that holds one of them; None: none of what is kept does."""


class Held(NamedTuple):
    """What is kept for the sake of dead letters."""

    first: int
    """Index of the first record."""
    stop: int
    """Index after the last record that retention would drop without them."""
    bytes: int
    """How much that is on each replica's disk."""


class Retaining:
    """The retention of the data groups that this node leads."""

    def __init__(self, settings: Log) -> None:
        self._settings = settings
        self._looks: dict[int, _Look] = {}
        self.held: dict[int, Held] = {}
        """Partition group → what is kept beyond retention."""

    def keep_from(self, group: Group, *, now: int) -> int:
        """The first index of a group's log to keep; 0: all of it."""
        segments = group.store.segments()
        wanted = kept = retention_start(segments, self._settings, now=now)
        if wanted > group.machine.log_start and not group.full:
            furthest = dead_start(segments, self._settings, wanted=wanted, now=now)
            floor = self._floor(group, wanted, now) if furthest < wanted else None
            if floor is not None:
                needed = next(each.base for each in segments if each.last >= floor)
                kept = max(furthest, min(wanted, needed))
        self.held.pop(group.number, None)
        beyond = [each.bytes for each in segments if kept <= each.last < wanted]
        if beyond:
            self.held[group.number] = Held(kept, wanted, sum(beyond))
        return kept

    def forget(self, led: Iterable[int]) -> None:
        """Only these partition groups are led from here."""
        for number in self._looks.keys() - set(led):
            del self._looks[number]
            self.held.pop(number, None)

    def _floor(self, group: Group, wanted: int, now: int) -> int | None:
        assert isinstance(group.machine, PartitionMachine)
        look, drops = self._looks.get(group.number), group.index.drops
        if look is None or (look.wanted, look.drops) != (wanted, drops) or look.at < now - LOOK_MS:
            floor = dead_floor(group.machine.serving, group.index)
            look = self._looks[group.number] = _Look(wanted, drops, now, floor)
        return look.floor


def dead_floor(serving: Serving, index: LogIndex) -> int | None:
    """The first record that holds a message of a dead letter; None: none of what is kept does."""
    earliest: dict[int, int | None] = {}
    lowest: dict[int, int] = {}
    for attached in serving.attached.values():
        for letter in attached.group.dead.values():
            queue, base = letter.queue, letter.messages.base
            if queue not in earliest:
                earliest[queue] = index.earliest(queue)
            first = earliest[queue]
            if first is None or letter.messages.stop <= first:
                continue
            base = max(base, first)
            if base < lowest.get(queue, base + 1):
                lowest[queue] = base
    found = [index.lookup(queue, base, 1) for queue, base in lowest.items()]
    return min((placements[0].index for placements in found if placements), default=None)


def retention_start(segments: list[SegmentSize], settings: Log, *, now: int) -> int:
    """The first index that the settings keep, given all segments of a log, oldest first.

    The newest segment always stays. 0 if everything is kept.
    """
    kept_bytes = sum(segment.bytes for segment in segments)
    start = 0
    for segment in segments[:-1]:
        is_old = settings.retention_ms and segment.last_timestamp < now - settings.retention_ms
        is_over = settings.retention_bytes and kept_bytes > settings.retention_bytes
        if not (is_old or is_over):
            break
        kept_bytes -= segment.bytes
        start = segment.last + 1
    return start


def dead_start(segments: list[SegmentSize], settings: Log, *, wanted: int, now: int) -> int:
    """The first index that dead letters may keep, if retention wants to drop what stands before
    `wanted`."""
    start, room = wanted, settings.dead_bytes
    for segment in reversed([each for each in segments if each.last < wanted]):
        room -= segment.bytes
        age_ms = now - segment.last_timestamp
        if room < 0 or (
            settings.retention_ms and age_ms > settings.retention_ms + settings.dead_ms
        ):
            break
        start = segment.base
    return start
