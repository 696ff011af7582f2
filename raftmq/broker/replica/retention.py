"""The index up to which retention drops a group's log: dead letters hold it up for a while.

    segments      [ 1..900 ][ 901..1800 ][ 1801..2700 ][ 2701..   ]
    settings       too old    too old                                 wanted: 1801
    dead letter                 ^ 1200                                dropped up to 901
    dead_ms later, or more than dead_bytes                            dropped up to 1801

The messages of a dead letter stand where they were stored, and nowhere else. So that operators can
still read them and have them handed out again, the segment with the first message stays, and all
segments after it: for `log.dead_ms` more, and up to `log.dead_bytes` more. Then the messages are
gone: the letter stays, and redriving it counts its messages as lost. The node's status shows how
many are gone.

A topic may have a time of its own (`log.retention_ms` of the topic). A segment stays as long as any
topic with messages in it says, so messages of other topics stay with it.

Invariants:
- Messages stay at least as long as their topic says, unless `log.retention_bytes` is less.
- Dead letters keep no more than the two settings say, and nothing while the leader's disk is full.
- Only the leader's proposal is held up. The machine knows nothing of this: any replica that
  leads decides by the log that it has.

Left out: writing the messages again at the log's end, as is done with delayed ones, so that no
other message is kept for their sake. The copies would have other offsets, or stand outside their
queue.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from raftmq.broker.loop_budget import Turn
from raftmq.broker.settings import Log
from raftmq.log.index import LogIndex
from raftmq.log.index_file import IndexDamaged
from raftmq.log.store import SegmentSize
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.dead_letters import DeadLetter

from .group import Group

LOOK_MS = 10_000
"""Milliseconds between two looks at all dead letters of a partition group: 100,000 of them take
about 30 ms, in turns."""

LETTERS_IN_PIECE = 1000
"""Dead letters that are surveyed between two checks of the clock."""


class TopicTimes(Protocol):
    """How long topics keep their messages: see `raftmq.broker.dynamic.topic_retention`."""

    def times(self) -> Mapping[int, int]:
        """Milliseconds by topic id."""

    def is_fresh(self) -> bool:
        """Whether the times are the newest."""


class DeadNeeds(NamedTuple):
    """The part of a log that dead letters need."""

    floor: int | None
    """The first record that holds a message of a dead letter; None: no kept record does."""
    gone: int
    """Messages of dead letters that are no longer kept."""


class _Look(NamedTuple):
    """The result of a look at all dead letters of a partition group."""

    wanted: int
    """The index before which retention wanted to drop."""
    drops: int
    """How often retention had moved by then: `LogIndex.drops`."""
    at: int
    """Time of the look, in milliseconds."""
    needs: DeadNeeds
    """The part of the log that the letters need."""
    seen: dict[int, int]
    """Consumer group → how many of its messages had been buried."""


class Held(NamedTuple):
    """The part of a log that is kept for the sake of dead letters."""

    first: int
    """Index of the first record."""
    stop: int
    """Index after the last record that retention would drop without them."""
    bytes: int
    """Bytes of that part on each replica's disk."""


class Retention:
    """The retention of the data groups that this node leads."""

    def __init__(self, settings: Callable[[], Log], topics: TopicTimes) -> None:
        """`settings` gives those that hold now."""
        self._settings = settings
        self._topics = topics
        self._looks: dict[int, _Look] = {}
        self.held: dict[int, Held] = {}
        """Partition group → the part of its log that is kept beyond retention."""
        self.gone: dict[int, int] = {}
        """Partition group → messages of its dead letters that are no longer kept, as of the last
        look (`LOOK_MS`). A group that is missing here lacks none."""

    def keep_from(self, group: Group, *, now: int) -> int:
        """The first index of a group's log to keep; 0: all of it."""
        segments = group.store.segments()
        look = self._looks.get(group.number)
        # Before the first look it is not known what dead letters need, so all of the log stays.
        if look is None:
            return 0
        # Beyond `look.wanted`, dead letters have not been looked for yet.
        wanted = kept = min(look.wanted, self._wanted(group, now=now))
        floor = _with_newer(group, look)
        if floor is not None and wanted > group.machine.log_start and not group.full:
            kept_ms = partial(self._kept_ms, group)
            furthest = dead_start(segments, self._settings(), kept_ms, wanted=wanted, now=now)
            needed = next((each.base for each in segments if each.last >= floor), wanted)
            kept = max(furthest, min(wanted, needed))
        self.held.pop(group.number, None)
        beyond = [each.bytes for each in segments if kept <= each.last < wanted]
        if beyond:
            self.held[group.number] = Held(kept, wanted, sum(beyond))
        return kept

    def _wanted(self, group: Group, *, now: int) -> int:
        """The first index that the settings keep, by times of topics that are surely the latest."""
        segments, settings = group.store.segments(), self._settings()
        start = retention_start(segments, settings, partial(self._kept_ms, group), now=now)
        if start <= group.machine.log_start or self._topics.is_fresh():
            return start
        # The node's bound of bytes needs no word of others: a disk must not fill up meanwhile.
        return retention_start(segments, settings, lambda _: 0, now=now)

    def _kept_ms(self, group: Group, segment: SegmentSize) -> int:
        """Milliseconds for which a segment is kept; 0: for ever."""
        own, of_topics = self._settings().retention_ms, self._topics.times()
        if not of_topics:
            return own
        topics = _topics_in(group, segment)
        if topics is None:
            times = {own, *of_topics.values()}
        else:
            times = {of_topics.get(topic, own) for topic in topics} or {own}
        return 0 if 0 in times else max(times)

    def forget(self, led: Iterable[int]) -> None:
        """Drop the looks of all partition groups but those that are led from here."""
        for number in self._looks.keys() - set(led):
            del self._looks[number]
            self.held.pop(number, None)
            self.gone.pop(number, None)

    async def look(self, group: Group, *, now: int) -> None:
        """Survey a data group's dead letters, if that is due; other tasks have turns meanwhile.

        Cancelling keeps the result of the last look.
        """
        wanted = self._wanted(group, now=now)
        look, drops = self._looks.get(group.number), group.index.drops
        if look and (look.wanted, look.drops) == (wanted, drops) and look.at >= now - LOOK_MS:
            return
        survey, seen, turn = Survey(group.index), dict[int, int](), Turn()
        assert isinstance(group.machine, PartitionMachine)
        for number, attached in list(group.machine.pop_groups.attached.items()):
            seen[number] = attached.group.buried
            letters = list(attached.group.dead.values())
            for at in range(0, len(letters), LETTERS_IN_PIECE):
                survey.add(letters[at : at + LETTERS_IN_PIECE])
                await turn.pause_if_over()
        needs = survey.needs()
        self._looks[group.number] = _Look(wanted, drops, now, needs, seen)
        self.gone.pop(group.number, None)
        if needs.gone:
            self.gone[group.number] = needs.gone


def _with_newer(group: Group, look: _Look) -> int | None:
    """The first record that a dead letter needs, those that came after the look included."""
    assert isinstance(group.machine, PartitionMachine)
    survey = Survey(group.index)
    for number, attached in group.machine.pop_groups.attached.items():
        seen = look.seen.get(number, 0)
        newer = range(seen + 1, attached.group.buried + 1)
        dead = attached.group.dead
        survey.add(dead[letter] for letter in newer if letter in dead)
    floors = [look.needs.floor, survey.needs().floor]
    return min((floor for floor in floors if floor is not None), default=None)


class Survey:
    """The part of a data group's log that dead letters need, gathered piece by piece."""

    def __init__(self, index: LogIndex) -> None:
        self._index = index
        self._earliest: dict[int, int | None] = {}
        # Queue → the lowest offset that is needed of it.
        self._lowest: dict[int, int] = {}
        self._gone = 0

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Survey these letters, too."""
        earliest, lowest = self._earliest, self._lowest
        for letter in letters:
            queue, messages = letter.queue, letter.messages
            if queue not in earliest:
                earliest[queue] = self._index.earliest(queue)
            first = earliest[queue]
            if first is None or messages.stop <= first:
                self._gone += messages.size
                continue
            base = messages.base
            if base < first:
                lacking, _ = messages.before(first)
                self._gone += 0 if lacking is None else lacking.size
                base = first
            if base < lowest.get(queue, base + 1):
                lowest[queue] = base

    def needs(self) -> DeadNeeds:
        """The part that all letters need, and the number of their messages that are gone."""
        found = [self._index.lookup(queue, base, 1) for queue, base in self._lowest.items()]
        floor = min((placements[0].index for placements in found if placements), default=None)
        return DeadNeeds(floor, self._gone)


def _topics_in(group: Group, segment: SegmentSize) -> list[int] | None:
    """Ids of the topics with messages in a segment; None: not known, as the segment has no sound
    index file yet."""
    sealed = next((each for each in group.store.sealed if each.base == segment.base), None)
    if sealed is None:
        return None
    try:
        queues = np.asarray(sealed.column("queues"))
    except IndexDamaged:
        return None
    topics: list[int] = np.unique(queues >> np.uint64(QUEUE_BITS)).tolist()
    return topics


def retention_start(
    segments: list[SegmentSize],
    settings: Log,
    kept_ms: Callable[[SegmentSize], int],
    *,
    now: int,
) -> int:
    """The first index that the settings keep, given all segments of a log, oldest first.

    The newest segment always stays. 0 if everything is kept. `kept_ms` gives the milliseconds for
    which a segment is kept; 0: for ever.
    """
    kept_bytes = sum(segment.bytes for segment in segments)
    start = 0
    for segment in segments[:-1]:
        is_over = settings.retention_bytes and kept_bytes > settings.retention_bytes
        if not is_over:
            time = kept_ms(segment)
            if not time or segment.last_timestamp >= now - time:
                break
        kept_bytes -= segment.bytes
        start = segment.last + 1
    return start


def dead_start(
    segments: list[SegmentSize],
    settings: Log,
    kept_ms: Callable[[SegmentSize], int],
    *,
    wanted: int,
    now: int,
) -> int:
    """The first index that dead letters may keep, if retention wants to drop what stands before
    `wanted`."""
    start, room = wanted, settings.dead_bytes
    for segment in reversed([each for each in segments if each.last < wanted]):
        room -= segment.bytes
        if room < 0:
            break
        time = kept_ms(segment)
        if time and now - segment.last_timestamp > time + settings.dead_ms:
            break
        start = segment.base
    return start
