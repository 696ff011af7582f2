"""Filters that come, change and go by chance in a random log, and feeds that cross with them.

    feed of g, made with filter 1       stands on the network
    Resubscribe: filter 2 of g          holds from here on
    feed of g, made with filter 1       arrives: nothing of it may be taken in

A filter is a number n: a message passes unless its offset plus n - 1 is a multiple of three. As on
a leader, the place of a message's batch in the log decides which filter holds for the message.

All draws come from a `Random` of its own, so the other parts of the log do not change.
"""

from random import Random

from raftmq.chaos.ledger.followed_log import FollowedLog
from raftmq.machine.subscriptions import Change, Resubscribe, valid_at
from raftmq.pop.calls import Feed

CHANGES = 1 / 40
"""Chance that a filter changes at a step."""
GOES = 1 / 4
"""Share of the changes by which a filter is taken away."""
HELD = 1 / 5
"""Share of the feeds that are held up on the network for a while."""
ARRIVES = 1 / 3
"""Chance that a feed that was held up arrives at a step."""


class RandomFilters:
    """The part of a random log that is about filters."""

    def __init__(self, rng: Random, log: FollowedLog, topic: int) -> None:
        self._rng = rng
        self._log = log
        self._topic = topic
        self._numbers = 1
        self._held: list[Feed] = []
        self.late = 0
        """Feeds that arrived after a change of their group's filter."""

    def set(self, group: int, number: int) -> None:
        """A group has another filter from now on; 0: none."""
        version = self._log.machine.subscriptions.version
        change = Change(self._topic, f"g{group}", number, f"filter {number}" if number else "")
        self._log.commands([Resubscribe(version, version + 1, [change])])

    def step(self) -> None:
        """Change a filter, or let a feed arrive that was held up; mostly nothing."""
        rng = self._rng
        if rng.random() < CHANGES:
            group = rng.choice(list(self._log.modes))
            has_one = self._log.machine.subscriptions.number_of(self._topic, f"g{group}")
            if has_one and rng.random() < GOES:
                self.set(group, 0)
            else:
                self._numbers += 1
                self.set(group, self._numbers)
        if self._held and rng.random() < ARRIVES:
            feed = self._held.pop(0)
            subscriptions = self._log.machine.subscriptions
            wanted = subscriptions.number_of(self._topic, f"g{feed.number}")
            self.late += feed.subscription != wanted
            self._log.commands([feed])

    def is_held(self, feed: Feed) -> bool:
        """Whether a feed is held up on the network: then it is kept here, and arrives later."""
        if self._rng.random() >= HELD:
            return False
        self._held.append(feed)
        return True

    def mask(self, group: int, indexes: list[int], base: int) -> tuple[int, bytes | None]:
        """The number of a group's latest filter, and which messages match.

        Args:
            group: its number.
            indexes: of each message, its batch's place in the log.
            base: offset of the first message.
        """
        kept = self._log.machine.subscriptions.of(self._topic, f"g{group}")
        if not kept:
            return 0, None
        bits = 0
        for place, index in enumerate(indexes):
            number = valid_at(kept, index).number
            bits |= bool((base + place + number - 1) % 3) << place
        return kept[-1].number, bits.to_bytes(len(indexes) // 8 + 1, "little")
