"""Open minutes, closed minutes, and the rows that are to be published of them.

Partition groups are read at their own pace. A minute is closed once each group was read past the
minute's end, or to the end of its log when the minute had been over for `GRACE_MS`; then the
minute's rows are made: one for each topic, and one for each of its consumer groups.

A closed minute stays here for `KEPT_MS`. An event of that minute that comes late, as the clock of
another leader is behind, changes the minute's rows, which are published again. An event that comes
later still is counted in the oldest minute that is here.

Invariants:
- Rows follow from the facts that were taken and from the looks at the cluster.
- From the first to the last closed minute each topic and group that there is has one row a minute.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from . import durations
from .minute_facts import COUNTS, MINUTE_MS, Facts, Flow, Key, Level
from .minute_fold import Attachment
from .tables import Row

GRACE_MS = 1_500
"""How far the clocks of leaders may be behind this one without a minute being published twice."""
KEPT_MS = 10 * MINUTE_MS
"""Age up to which a minute may be changed."""


class Standing(msgspec.Struct, frozen=True):
    """The state of a group that reads by offset, in a topic, at the time of a look."""

    topic: str
    """Name of the topic."""
    group: str
    """The consumer group; `group@instance`: an instance of one that broadcasts."""
    mode: str
    """`pull` or `broadcast`."""
    lag: int | None
    """Messages that are kept and not read, of queues in which the group has committed; None: that
    number is 0, and there are messages in other queues."""


class Look(msgspec.Struct, frozen=True):
    """A look at a cluster at one time."""

    time: int
    """When the asking began, milliseconds since 1970."""
    ranges: dict[int, tuple[int, int]]
    """Partition group → the first record that its log has, and the one after its last."""
    topics: tuple[str, ...]
    """All topics."""
    modes: dict[Key, str]
    """The mode of each group that pops, by topic and group."""
    attachments: tuple[Attachment, ...]
    """Attachments of groups that pop."""
    standings: tuple[Standing, ...]
    """Positions of groups that read by offset."""


class Ledger(msgspec.Struct):
    """The report's memory, but for each partition group's carry."""

    closed: int = 0
    """All minutes before this one are closed; milliseconds since 1970, 0: nothing was seen."""
    whole_from: int = 0
    """Rows of minutes before this one are partial: the log no longer held all of their events."""
    flows: dict[int, dict[Key, Flow]] = {}
    """Minute → the flows of each topic and group."""
    levels: dict[int, dict[Key, dict[int, Level]]] = {}
    """Partition group → the levels of each topic and group, by minute, rising."""
    bounds: dict[int, int] = {}
    """Partition group → its events before this time were taken, but for those that come late."""
    since: dict[Key, int] = {}
    """The first minute of each topic and group."""
    reopened: set[int] = set()
    """Closed minutes that are to be published again."""

    def take(self, partition_group: int, facts: Facts, *, is_first: bool) -> None:
        """Take the facts of a batch; `is_first`: the batch begins where the log begins."""
        floor = max(0, self.closed - KEPT_MS)
        for (minute, topic, group), flow in sorted(facts.flows.items()):
            minute = max(minute, floor)
            self.flows.setdefault(minute, {}).setdefault((topic, group), Flow()).add(flow)
            self.since.setdefault((topic, group), minute)
            if minute < self.closed:
                self.reopened.add(minute)
        standing = self.levels.setdefault(partition_group, {})
        for (minute, topic, group), level in sorted(facts.levels.items()):
            minute = max(minute, floor)
            by_minute = standing.setdefault((topic, group), {})
            # A late event changes the levels at the ends of all minutes since.
            by_minute[minute] = level
            self.reopened.update(range(minute, self.closed, MINUTE_MS))
        minutes = [minute for minute, *_ in facts.flows]
        if minutes and is_first and facts.is_cut:
            self.whole_from = max(self.whole_from, min(minutes) + MINUTE_MS)
        self.bounds[partition_group] = max(self.bounds.get(partition_group, 0), facts.last)

    def reached_end(self, partition_group: int, time: int) -> None:
        """Note that all records that the log had at `time` were read."""
        known = self.bounds.get(partition_group, 0)
        self.bounds[partition_group] = max(known, time - GRACE_MS)

    def see(self, look: Look) -> None:
        """Give new topics and groups rows from now on, and drop those that are gone."""
        minute = look.time - look.time % MINUTE_MS
        there = {(topic, "") for topic in look.topics} | look.modes.keys()
        for key in sorted(there - self.since.keys()):
            self.since[key] = minute
        # The last levels of a deleted partition group would count in all later minutes.
        for number in self.bounds.keys() - look.ranges.keys():
            del self.bounds[number]
            self.levels.pop(number, None)
        for standing in self.levels.values():
            for key in standing.keys() - look.modes.keys():
                del standing[key]

    def close(self, look: Look) -> Iterator[tuple[int, list[Row]]]:
        """Each minute to publish with its rows: those that were reopened, then new ones, rising."""
        for minute in sorted(self.reopened):
            yield minute, list(self._rows(minute, look))
        self.reopened.clear()
        while (following := self._next(look)) is not None:
            rows = list(self._rows(following, look))
            self.closed = following + MINUTE_MS
            yield following, rows
            self._forget()

    def _next(self, look: Look) -> int | None:
        bound = min((self.bounds.get(number, 0) for number in look.ranges), default=0)
        if not bound or not self.since:
            return None
        self.closed = self.closed or min(self.since.values())
        return self.closed if self.closed + MINUTE_MS <= bound else None

    def _forget(self) -> None:
        oldest = self.closed - KEPT_MS
        for minute in [minute for minute in self.flows if minute < oldest]:
            del self.flows[minute]
        for standing in self.levels.values():
            for by_minute in standing.values():
                # The last level before the oldest minute is the level at that minute's beginning.
                for minute in sorted(minute for minute in by_minute if minute < oldest)[:-1]:
                    del by_minute[minute]

    def _rows(self, minute: int, look: Look) -> Iterator[Row]:
        flows = self.flows.get(minute, {})
        keys = {(topic, "") for topic in look.topics} | look.modes.keys()
        keys = {key for key in keys if self.since.get(key, minute + 1) <= minute} | flows.keys()
        for key in sorted(keys):
            mode = look.modes.get(key, "pop" if key[1] else "")
            level = self._level(minute, key) if key in look.modes else None
            yield _row(minute, key, mode, flows.get(key, Flow()), level, self.whole_from)
        # Standings are of the time of the look, so a minute that is long over gets none.
        if minute + 2 * MINUTE_MS > look.time:
            for each in look.standings:
                key = (each.topic, each.group)
                row = dict.fromkeys(_NUMBERS) | {"lag": each.lag, "origin": "snapshot"}
                yield _named(minute, key, each.mode, is_partial=False) | row

    def _level(self, minute: int, key: Key) -> Level:
        found = Level(0, 0, 0)
        for standing in self.levels.values():
            by_minute: Mapping[int, Level] = standing.get(key, {})
            until = [each for each in by_minute if each <= minute]
            if until:
                found = found.plus(by_minute[max(until)])
        return found


_TIMES = ("wait_p50_ms", "wait_p99_ms", "service_p50_ms", "service_p99_ms")
_NUMBERS = (*COUNTS, "lag", "fresh", "oldest_ms", *_TIMES, "producers", "consumers")


def _named(minute: int, key: Key, mode: str, *, is_partial: bool) -> Row:
    topic, group = key
    return {
        "minute": minute,
        "topic": topic,
        "group": group,
        "mode": mode,
        "origin": "log",
        "is_partial": is_partial,
    }


def _row(minute: int, key: Key, mode: str, flow: Flow, level: Level | None, whole: int) -> Row:
    row = _named(minute, key, mode, is_partial=minute < whole) | dict.fromkeys(_NUMBERS)
    if not key[1]:
        return row | {"stored": flow.stored, "producers": len(flow.producers)}
    counts: Sequence[str] = [name for name in COUNTS if name != "stored"]
    row |= {name: getattr(flow, name) for name in counts}
    row["consumers"] = len(flow.consumers)
    quantiles = [
        durations.quantile(times, share)
        for times in (flow.waits, flow.services)
        for share in (0.5, 0.99)
    ]
    row |= dict(zip(_TIMES, quantiles, strict=True))
    if level is not None:
        row |= {"lag": level.lag, "fresh": level.fresh}
        row["oldest_ms"] = max(0, minute + MINUTE_MS - level.oldest) if level.oldest else None
    return row
