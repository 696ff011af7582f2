"""The arithmetic of rates: a bucket that leaks at the rate, and requests that wait for their turn.

Each request pours its amount into the bucket when it arrives, and may start once at most one
second's worth of the amounts before it is still in the bucket:

    rate 10 a second         poured   before it   starts
    t=0     a request of 25      25           0   at once: any request may start at an empty bucket
    t=0     one of 5             30          25   t=1.5: 10 of those 25 are left
    t=0     one of 5             35          30   t=2.0

Positions are amounts and not times, so after a change of the rate every request that waits has the
start that it would have by the new rate, in the same order.

A request that ends before it starts is *taken back*: what has not leaked of its amount leaves the
bucket. Requests after it start that much sooner, those before it as they would have. Positions
stand, so the bucket remembers what was taken back at which one:

    rate 10 a second         poured   before it   starts
    t=0     a request of 25      25           0   at once
    t=0     one of 15, held      40          25   t=1.5
    t=0     one of 5, held       45          40   t=3.0; once the 15 are taken back, t=1.5

Invariants:
- Of the requests that start at the times told here, those within any `t` seconds have together at
  most the amount `rate * (t + BURST_SECONDS)` and one request more.
- A request starts as soon as the amounts before it allow; its own amount delays later ones.

Sources: the leaky bucket as a meter (ITU-T I.371, Annex A), which is the virtual clock of GCRA
counted in amounts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from raftmq.machine.catalog.quotas import Quota, Subject

BURST_SECONDS = 1.0
"""A subject that was idle may take this many seconds' worth at once."""
ROUNDING_SECONDS = 1e-6
"""Waits that are shorter come from the rounding of floating point numbers."""
WRITES = ("write_bytes", "write_messages")
"""Amounts of what comes in."""
READS = ("read_bytes", "read_messages")
"""Amounts of what goes out."""
MEAN_SHARE = 0.25
"""Weight of the newest answer in the mean size of messages."""


class Bucket:
    """One rate of one subject. `now` is `trio.current_time()`: seconds that never go back."""

    __slots__ = ("_at", "_level", "_rate", "_sums", "_taken", "poured", "reserved")

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._level = 0.0
        self._at = 0.0
        # By position what was taken back; and for each the sum of what was at it and after it.
        self._taken: list[tuple[int, float]] = []
        self._sums: list[float] = []
        self.poured = 0
        """Everything that was ever poured in: the position of the next request."""
        self.reserved: dict[Reserved, None] = {}
        """Reservations that are not given back yet, in the order in which they leak."""

    @property
    def rate(self) -> int:
        """Units a second; 0: without a bound."""
        return self._rate

    def set_rate(self, rate: int, now: float, seconds_max: float) -> None:
        """Leak at another rate from now on. The surplus that a lower rate could not leak within
        `seconds_max` is dropped: the rate before allowed it."""
        self._level, self._at = self.level(now), now
        if 0 < rate < self._rate:
            self._level = min(self._level, rate * seconds_max)
        self._rate = rate

    def level(self, now: float) -> float:
        """The amount in the bucket; 0: everything that was poured in has leaked."""
        if not self._rate:
            return 0.0
        return max(self._level - (now - self._at) * self._rate, 0.0)

    def is_open(self, now: float) -> bool:
        """True if the next request need not wait."""
        if not self._rate:
            return True
        level = self._level - (now - self._at) * self._rate
        self._level, self._at = max(0.0, level), now
        return level <= self._rate * BURST_SECONDS

    def pour(self, amount: int, now: float) -> int:
        """Take up the amount of a request; returns the request's position."""
        if self._rate:
            if now != self._at:
                self._level, self._at = self.level(now), now
            self._level += amount
        position = self.poured
        self.poured = position + amount
        return position

    def take_back(self, requests: Iterable[tuple[int, int]], now: float) -> None:
        """Requests, by position and amount, end before they start: what has not leaked of them
        leaves the bucket."""
        left = [(at, min(amount, amount + self._before(at, now))) for at, amount in requests]
        left = [each for each in left if each[1] > 0]
        if not self._rate or not left:
            return
        # Where all before a position has leaked, no request waits before it. The amount before a
        # position grows with the position.
        leaked = bisect_right(self._taken, 0.0, key=lambda each: self._before(each[0], now))
        kept = self._taken[leaked:]
        self._level = max(self.level(now) - sum(amount for _, amount in left), 0.0)
        self._at = now
        self._taken = sorted(kept + left)
        self._sums = list(accumulate(amount for _, amount in reversed(self._taken)))[::-1]

    def drain(self, amount: float, now: float) -> None:
        """Take an amount out of a bucket in which no request waits for a position."""
        self._level, self._at = max(self.level(now) - amount, 0.0), now

    def wait_seconds(self, position: int, now: float) -> float:
        """Seconds until the request at a position may start; 0.0: it may start now."""
        if not self._rate:
            return 0.0
        seconds = self._before(position, now) / self._rate - BURST_SECONDS
        return seconds if seconds > ROUNDING_SECONDS else 0.0

    def wait_of_next(self, now: float) -> float:
        """Seconds until the next request may start; 0.0: it may start now."""
        return self.wait_seconds(self.poured, now)

    def _before(self, position: int, now: float) -> float:
        """The amount in the bucket before a position; negative: that amount after the position has
        leaked as well."""
        after: float = self.poured - position
        if self._taken:
            at = bisect_left(self._taken, (position, 0.0))
            after -= self._sums[at] if at < len(self._sums) else 0
        return self.level(now) - after

    def room(self, now: float) -> int:
        """The amount that could be poured in before the next request has to wait; at least 1."""
        assert self._rate, "a bucket without a rate has room for everything"
        return max(int(self._rate * BURST_SECONDS - self.level(now)), 1)


class Reserved:
    """An amount in a bucket of reads for an answer that is not made yet."""

    __slots__ = ("_amount", "_before", "_since", "bucket")

    def __init__(self, bucket: Bucket, amount: int, now: float) -> None:
        self.bucket = bucket
        self._amount = amount
        # The amount that leaks before this one.
        self._before = bucket.level(now)
        self._since = now
        bucket.pour(amount, now)
        bucket.reserved[self] = None

    def give_back(self, now: float) -> None:
        """The answer is made, or there is none: what has not leaked leaves the bucket."""
        leaked = max((now - self._since) * self.bucket.rate - self._before, 0.0)
        left = max(self._amount - leaked, 0.0)
        self.bucket.drain(left, now)
        for each in reversed(self.bucket.reserved):
            if each is self:
                break
            each._before -= left
        del self.bucket.reserved[self]


class Meter:
    """The rates of one subject."""

    __slots__ = ("quota", "read_mean_bytes", "reads", "subject", "writes")

    def __init__(self, subject: Subject, quota: Quota) -> None:
        self.subject = subject
        """The user or topic itself, also if the quota is that of all."""
        self.quota = quota
        """The quota that holds for it."""
        self.writes = Bucket(quota.write_bytes), Bucket(quota.write_messages)
        """Bytes and messages that come in."""
        self.reads = Bucket(quota.read_bytes), Bucket(quota.read_messages)
        """Bytes and messages that go out."""
        self.read_mean_bytes = 0.0
        """Mean size of the messages that went out lately; 0.0: none did."""

    @property
    def buckets(self) -> dict[str, Bucket]:
        """All buckets by the name of their amount."""
        return dict(zip(WRITES + READS, self.writes + self.reads, strict=True))

    def change(self, quota: Quota, now: float, *, seconds_max: float) -> None:
        """From now on another quota holds; `seconds_max`: see `Bucket.set_rate`."""
        self.quota = quota
        for name, bucket in self.buckets.items():
            bucket.set_rate(getattr(quota, name), now, seconds_max)

    def is_empty(self, now: float) -> bool:
        """True: nothing is left in the buckets. Only the mean size of messages is lost with the
        meter."""
        return not any(bucket.level(now) for bucket in self.buckets.values())

    def pour_read(self, size: int, messages: int, now: float) -> None:
        """Messages went out."""
        self.reads[0].pour(size, now)
        self.reads[1].pour(messages, now)
        if messages:
            mean = size / messages
            before = self.read_mean_bytes or mean
            self.read_mean_bytes = before + MEAN_SHARE * (mean - before)
