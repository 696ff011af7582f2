"""Up to where retention drops a group's log: dead letters hold it up for a while.

    segments      [ 1..900 ][ 901..1800 ][ 1801..2700 ][ 2701..   ]
    settings       too old    too old                                 wanted: 1801
    dead letter                 ^ 1200                                dropped up to 901
    dead_ms later, or more than dead_bytes                            dropped up to 1801

The messages of a dead letter stand where they were stored, and nowhere else. So that somebody can
still look at them and hand them out again, the segment that holds the first one stays, and what
comes after it: for `log.dead_ms` more, and up to `log.dead_bytes` more. Then they are gone: the
letter stays, and redriving it counts its messages as lost. How many are gone, operators are told.

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
"""How often all dead letters of a group are gone through: 100,000 of them take about 30 ms."""


class DeadNeeds(NamedTuple):
    """What dead letters need of a log."""

    floor: int | None
    """The first record that holds a message of one; None: none of what is kept does."""
    gone: int
    """How many of their messages are not kept any more."""


class _Look(NamedTuple):
    """What they were found to need."""

    wanted: int
    """Up to where retention wanted to drop."""
    drops: int
    """How often it had."""
    at: int
    """When, milliseconds."""
    needs: DeadNeeds
    """What."""


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
        self.gone: dict[int, int] = {}
        """Partition group → how many messages of its dead letters are not kept any more, as far as
        was looked (`LOOK_MS`); none are of those that are not named."""

    def keep_from(self, group: Group, *, now: int) -> int:
        """The first index of a group's log to keep; 0: all of it."""
        segments = group.store.segments()
        wanted = kept = retention_start(segments, self._settings, now=now)
        floor = self._look(group, wanted, now).floor
        if floor is not None and wanted > group.machine.log_start and not group.full:
            furthest = dead_start(segments, self._settings, wanted=wanted, now=now)
            needed = next((each.base for each in segments if each.last >= floor), wanted)
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
            self.gone.pop(number, None)

    def _look(self, group: Group, wanted: int, now: int) -> DeadNeeds:
        assert isinstance(group.machine, PartitionMachine)
        look, drops = self._looks.get(group.number), group.index.drops
        if look is None or (look.wanted, look.drops) != (wanted, drops) or look.at < now - LOOK_MS:
            needs = dead_needs(group.machine.serving, group.index)
            look = self._looks[group.number] = _Look(wanted, drops, now, needs)
            self.gone.pop(group.number, None)
            if needs.gone:
                self.gone[group.number] = needs.gone
        return look.needs


def dead_needs(serving: Serving, index: LogIndex) -> DeadNeeds:
    """What the dead letters of a data group need of its log, and how much of it is gone."""
    earliest: dict[int, int | None] = {}
    lowest: dict[int, int] = {}
    gone = 0
    for attached in serving.attached.values():
        for letter in attached.group.dead.values():
            queue, messages = letter.queue, letter.messages
            if queue not in earliest:
                earliest[queue] = index.earliest(queue)
            first = earliest[queue]
            if first is None or messages.stop <= first:
                gone += messages.size
                continue
            base = messages.base
            if base < first:
                lacking, _ = messages.before(first)
                gone, base = gone + (0 if lacking is None else lacking.size), first
            if base < lowest.get(queue, base + 1):
                lowest[queue] = base
    found = [index.lookup(queue, base, 1) for queue, base in lowest.items()]
    floor = min((placements[0].index for placements in found if placements), default=None)
    return DeadNeeds(floor, gone)


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
