"""How many messages a second come into topics lately, for the queues that this node leads."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from raftmq.broker.replica.group import Group
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS

LOOK_SECONDS = 10.0
"""Between two looks."""
SMOOTHING_SECONDS = 60.0
"""Time constant of the exponential mean."""
TOPICS_MAX = 100
"""Topics whose rates are told."""
RATE_MIN = 0.01
"""Lower rates are left out; a topic of such a rate begins again with what it gets next."""


class _Seen(NamedTuple):
    """A group at a look."""

    at: float
    """When, by trio's clock."""
    ends: Mapping[int, int]
    """Topic → the sum of its queues' ends."""


class TopicRates:
    """The rates of one node."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._rates: dict[int, float] = {}
        self._looked_at = -math.inf

    def look(self, groups: Iterable[Group], now: float) -> None:
        """Measure the groups that this node leads, if it is time."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        share = 1 - math.exp((self._looked_at - now) / SMOOTHING_SECONDS)
        self._looked_at = now
        seen: dict[int, _Seen] = {}
        rates: dict[int, float] = defaultdict(float)
        for group in groups:
            machine = group.machine
            if not group.is_leader or not isinstance(machine, PartitionMachine):
                continue
            seen[group.number] = after = _Seen(now, _ends(machine))
            # A group counts from its second look on: the end before its first one is not known.
            before = self._seen.get(group.number)
            if before is not None:
                for topic, end in after.ends.items():
                    grown = end - before.ends.get(topic, 0)
                    rates[topic] += grown / (now - before.at)
        self._seen = seen
        topics = rates.keys() | self._rates.keys()
        means = {topic: _mean(self._rates.get(topic), rates[topic], share) for topic in topics}
        self._rates = {topic: rate for topic, rate in means.items() if rate >= RATE_MIN}

    def largest(self) -> dict[int, float]:
        """Topic → messages a second; the largest `TOPICS_MAX`, with three digits."""
        found = sorted(self._rates.items(), key=lambda each: (-each[1], each[0]))
        return {topic: float(f"{rate:.3g}") for topic, rate in found[:TOPICS_MAX]}


def _ends(machine: PartitionMachine) -> Counter[int]:
    ends = Counter[int]()
    for queue, end in machine.ends.items():
        ends[queue >> QUEUE_BITS] += end
    return ends


def _mean(before: float | None, rate: float, share: float) -> float:
    return rate if before is None else before + share * (rate - before)
