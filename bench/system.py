"""The interface of a system under test, and the meter that counts its work.

A *system* is a cluster of three server processes on loopback plus the load that drives it. Its
methods block: each one runs its own event loop, so a trio client, an asyncio client and a callback
client look alike. Each call is one measurement:

    with system:                       # three servers in a temporary folder, ready to serve
        stored = system.produce(size=100, batch=100, window=256, seconds=6.0)
        read = system.consume(size=100, batch=100, window=256, seconds=6.0)

A load reports each acknowledgement to a `Meter`; the meter ignores acknowledgements during the
warm-up and after the deadline.

Invariants:
- `messages` counts acknowledged (or, in `consume`, delivered) messages only; in `pop` those whose
  acknowledgement is confirmed, where the protocol confirms it.
- Latency runs from just before the send of a message (or batch) to its acknowledgement in the
  client, so it includes the time spent waiting behind the window's other batches.
- A system without a feature raises `Unsupported`; it never measures something else instead.
"""

import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

import numpy as np

WARM_UP_SECONDS_MAX = 1.0
SETTLE_SECONDS, REST_SECONDS = 2.0, 5.0
"""Time that servers at rest get to settle, and in which their processor time then counts."""
CREATE_SECONDS_MAX = 60.0
"""Time in which a system makes as many queues as it can, up to the wanted number."""
PROBE_SECONDS_MAX = 30.0
"""Time of all probes of consumers that wait, at most."""
READ_ALIKE = "of reading in like batches"
"""Name of a figure: the rate of popping over that of reading by as many messages, just before."""
COUNT_SECONDS = 0.1
"""Length of a step of `Sample.counts`."""


class Unsupported(Exception):
    """The system has no such operation, or refuses this size; the message says which."""


class NothingCounted(RuntimeError):
    """A measurement ended without one message: there is no rate."""

    def __init__(self) -> None:
        super().__init__("nothing was acknowledged in the measured part")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. All fields cover the measured part only, without the warm-up."""

    messages: int
    """Messages acknowledged or delivered."""
    size: int
    """Bytes of one message's body."""
    seconds: float
    """Length of the measured part."""
    p50_ms: float | None
    """Median latency of an acknowledgement; None where the operation has none (reading back)."""
    p99_ms: float | None
    """99th percentile of the latency; None like `p50_ms`."""
    began: float
    """Moment at which the measured part began, of `time.perf_counter`."""
    settings: str = ""
    """Deviations of this call from its arguments, such as a smaller window."""
    counts: Sequence[int] = ()
    """Of work with a given number of messages: those counted in each `COUNT_SECONDS`."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Other measured numbers, by the names of `bench.results.FIGURES`."""
    rest: Sequence[float] | None = None
    """Begin and end of a time, like `began`, in which the servers had nothing to do."""
    note: str = ""
    """The reason why less was reached than was wanted."""

    @property
    def messages_per_s(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Bodies' bytes a second, in units of 10^6."""
        return self.messages * self.size / self.seconds / 1e6


class System(Protocol):
    """A cluster under test. The constructor is cheap: the servers start when it is entered."""

    @property
    def name(self) -> str:
        """Name of the system in result rows."""

    @property
    def version(self) -> str:
        """Versions of servers and client. Read it only if `available` returns None."""

    @property
    def settings(self) -> str:
        """Facts that a comparison needs: replication, durability, tuning."""

    @property
    def server_pids(self) -> Sequence[int]:
        """Processes whose processor time and memory are measured, while the system is entered."""

    def available(self) -> str | None:
        """None if the system can run here, else one line that says how to install it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Publish bodies of `size` bytes, `window` batches of `batch` messages in flight."""

    def single(self, *, size: int, seconds: float) -> Sample:
        """Publish one message at a time, awaiting each acknowledgement."""

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Read back all that a `produce` with the same arguments stored just before, for `seconds`
        at most. Consumers of a queue acknowledge messages; logs are read by position."""

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """As `consume`, by a group of consumers that share the messages: each message is handed to
        one consumer, and acknowledged."""

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Fill an empty log by keyed messages (`bench.keys`) for `fill_seconds`; then two consumers
        of a group take all of them, the messages of a key in the order of their sending, and
        acknowledge them, timed, for `seconds` at most."""

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Fill an empty log by keyed messages for `fill_seconds`, each key in one of six queues;
        then two consumers of a group, who own three queues each, read them in order and commit
        their offsets, timed, for `seconds` at most. The clock starts when each has its queues;
        messages that it has read ahead by then do not count."""


class Grows(System, Protocol):
    """A system that takes part in the scenarios of many consumers, many queues, many messages."""

    def fill(self, *, size: int, batch: int, window: int, messages: int, seconds: float) -> Sample:
        """As `produce`, until `messages` are acknowledged, for `seconds` at most; with `counts`."""

    def spread(self, *, queues: int, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Make `queues` queues, in the system's own unit, or as many as it can have within
        `CREATE_SECONDS_MAX`, and store something in each; then publish for `seconds`, each batch to
        the next queue. Figures: the queues, and the seconds until each had a message."""

    def waiting(self, *, consumers: int, size: int, probes: int) -> Sample:
        """Open consumers that wait, each for messages of a queue of its own, let them `rest`, then
        send a message to one of them at a time: a latency is the time from its send to its arrival
        at the consumer. Figure: the consumers."""


def warm_up_before(seconds: float) -> float:
    """Length of the part of sends before a measured part of `seconds`."""
    return min(WARM_UP_SECONDS_MAX, seconds / 4)


class Meter:
    """Counts acknowledgements between the end of the warm-up and the deadline.

    Times are `time.perf_counter()` seconds. `on_ack` is cheap enough for 100,000 calls a second.
    With `messages_max` there is no warm-up, the work ends with the last of them, and its sample has
    `counts`.
    """

    def __init__(
        self,
        *,
        size: int,
        seconds: float,
        warm_up_seconds: float | None = None,
        messages_max: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if warm_up_seconds is None:
            warm_up_seconds = warm_up_before(seconds) if messages_max is None else 0.0
        self._clock = clock
        self._size = size
        self._start = clock() + warm_up_seconds
        self.deadline = self._start + seconds
        self._last = self._start
        self._messages = 0
        self._messages_max = math.inf if messages_max is None else messages_max
        self._counts: list[int] | None = None if messages_max is None else []
        self._latencies = array("d")

    def restart(self) -> None:
        """Count from now on, without a warm-up, unless a message was counted: consumers are open
        and ask for messages from here on."""
        if self._messages == 0:
            seconds = self.deadline - self._start
            self._start = self._last = self._clock()
            self.deadline = self._start + seconds

    def is_over(self) -> bool:
        """Has the deadline passed, or are all messages counted? Then the load must send no more."""
        return self._messages >= self._messages_max or self._clock() >= self.deadline

    def on_ack(self, messages: int, sent_at: float) -> None:
        """`messages` that were sent together at `sent_at` are acknowledged now."""
        now = self._clock()
        if self._start <= now < self.deadline:
            self._messages += messages
            self._latencies.append(now - sent_at)
            self._last = now
            if self._counts is not None:
                step = int((now - self._start) / COUNT_SECONDS)
                self._counts += [0] * (step + 1 - len(self._counts))
                self._counts[step] += messages

    def on_delivery(self, messages: int) -> None:
        """`messages` were delivered now; deliveries have no latency."""
        now = self._clock()
        if self._start <= now < self.deadline:
            self._messages += messages
            self._last = now

    def sample(self, *, settings: str = "", until_last: bool = False) -> Sample:
        """The measurement. `until_last` ends it at the last event, for work that may run out.

        Raises:
            NothingCounted: there was none.
        """
        if self._messages == 0:
            raise NothingCounted
        end = self._last if until_last or self._counts is not None else self.deadline
        latencies = np.sort(self._latencies).tolist()
        return Sample(
            messages=self._messages,
            size=self._size,
            seconds=max(end - self._start, 1e-9),
            p50_ms=percentile(latencies, 0.50),
            p99_ms=percentile(latencies, 0.99),
            began=self._start,
            settings=settings,
            counts=self._counts or (),
        )


def rates_at_ends(counts: Sequence[int]) -> tuple[float, float]:
    """Messages a second in the first and in the last tenth of the time that `counts` cover, without
    its last step, which ended early.

    >>> rates_at_ends([7, 5, 5, 5, 5, 5, 5, 5, 5, 6, 1])
    (70.0, 60.0)
    """
    whole = counts[:-1] or counts
    steps = max(1, len(whole) // 10)
    first, last = sum(whole[:steps]), sum(whole[-steps:])
    return round(first / steps / COUNT_SECONDS, 1), round(last / steps / COUNT_SECONDS, 1)


def percentile(ascending: list[float], fraction: float) -> float | None:
    """The nearest-rank percentile of seconds, in milliseconds; None of an empty list.

    >>> percentile([0.001, 0.002, 0.003, 0.004], 0.5)
    2.0
    """
    if not ascending:
        return None
    rank = max(0, -(-len(ascending) * fraction // 1) - 1)
    return ascending[int(rank)] * 1000.0
