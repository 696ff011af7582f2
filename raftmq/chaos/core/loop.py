"""Virtual time: a heap of the events to come, in microseconds, and a hash of the events that were.

Nothing waits: the loop takes the next event, sets the clock to its time, and calls it. Events of
the same time happen in the order they were asked for.

Invariants:
- Time never falls or stands still: more than `MOMENT_EVENTS_MAX` events at one moment end the run.
- Equal runs give equal hashes, in two processes too: only integers enter it.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush

from raftmq.chaos.core.checks.broken import Broken

Call = Callable[..., None]

MOMENT_EVENTS_MAX = 10_000
"""Events at one moment; runs without a finding have up to some hundred."""

_BUFFER_INTEGERS = 4096


class Loop:
    """The events to come."""

    __slots__ = ("_heap", "count", "effects", "now_us")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Call, tuple[object, ...]]] = []
        self.count = 0
        """Events asked for so far."""
        self.now_us = 0
        self.effects: Counter[str] = Counter()
        """By effect of faults: how often the effect was seen; see `faults.effects`."""

    @property
    def now_ms(self) -> int:
        """The time, in whole milliseconds."""
        return self.now_us // 1000

    def at(self, at_us: int, call: Call, *args: object) -> None:
        """Plan a call at a time that is not past."""
        self.count += 1
        heappush(self._heap, (at_us, self.count, call, args))

    def after(self, delay_us: int, call: Call, *args: object) -> None:
        """Plan a call after a delay."""
        self.count += 1
        heappush(self._heap, (self.now_us + delay_us, self.count, call, args))

    def run_until(self, end_us: int) -> None:
        """Make all calls that are due up to and at a time.

        Raises:
            Broken: time does not go on.
        """
        heap, moment_us, events = self._heap, -1, 0
        while heap and heap[0][0] <= end_us:
            self.now_us, _, call, args = heappop(heap)
            if self.now_us != moment_us:
                moment_us, events = self.now_us, 0
            events += 1
            if events > MOMENT_EVENTS_MAX:
                text = f"{events} events at {moment_us} us, the next one {call}: time stands still"
                raise Broken("V6", text)
            call(*args)
        self.now_us = end_us


class Trace:
    """A hash over all integers noted so far."""

    __slots__ = ("_buffer", "_hash")

    def __init__(self) -> None:
        self._buffer = array("q")
        self._hash = blake2b(digest_size=16)

    def note(self, *integers: int) -> None:
        """Add to the hash."""
        buffer = self._buffer
        buffer.extend(integers)
        if len(buffer) > _BUFFER_INTEGERS:
            self._hash.update(buffer.tobytes())
            del buffer[:]

    def hexdigest(self) -> str:
        """The hash of all integers noted so far."""
        self._hash.update(self._buffer.tobytes())
        del self._buffer[:]
        return self._hash.hexdigest()
