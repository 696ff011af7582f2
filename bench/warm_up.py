"""Warm-ups of systems that run on a JVM: the same work in slices, until the rate rises no more.

A JVM compiles its code while the code runs, so the rate of a young server rises for many seconds.
How long depends on the work and on the machine: a fixed time is too short for one and too long for
another. So the work is repeated in slices on a topic of its own, and the row of the measurement
that follows says how long that took.

Steady: two slices in a row are less than 5 % faster than the reference. The reference is the first
slice, then each slice that was 5 % faster than the reference before, so a slow rise adds up. One
slice would not do, as any disturbance makes one slow.

`java/WarmUp.java` has the same rule for RocketMQ's load.
"""

from collections.abc import Callable
from typing import NamedTuple

from bench.system import NothingCounted, Sample

SLICE_SECONDS = 2.0
GAIN = 1.05
"""Rate of a slice over the reference from which on the rate still rises."""
CALM_SLICES = 2
"""Slices in a row without such a gain after which the rate is steady."""


class Bounds(NamedTuple):
    """Least and most seconds of a warm-up."""

    least: float
    most: float


SENDS, READS, SINGLES = Bounds(8.0, 30.0), Bounds(4.0, 16.0), Bounds(2.0, 10.0)
"""Of sending, of reading, and of one awaited send at a time, which comes after sending."""


def until_steady(work: Callable[[float], Sample], bounds: Bounds) -> float:
    """Repeat a slice of work, which gets its length in seconds, until its rate is steady; returns
    the seconds that were worked. Work that runs out of messages may end a slice early; a slice in
    which nothing was counted has the rate 0."""
    reference, calm, worked = 0.0, 0, 0.0
    for _ in range(round(bounds.most / SLICE_SECONDS)):
        try:
            sample = work(SLICE_SECONDS)
        except NothingCounted:
            seconds, rate = SLICE_SECONDS, 0.0
        else:
            seconds, rate = sample.seconds, sample.messages_per_s
        worked += seconds
        calm += 1
        if rate > 0 and rate >= GAIN * reference:
            reference, calm = rate, 0
        if worked >= bounds.most or (worked >= bounds.least and calm >= CALM_SLICES):
            break
    return worked


def described(sends: float, reads: float = 0.0) -> str:
    """The warm-up before a row, for its settings.

    >>> described(16.0)
    'after 16 s of sends'
    >>> described(16.0, 6.2)
    'after 16 s of sends and 6 s of reads'
    """
    return f"after {sends:.0f} s of sends" + (f" and {reads:.0f} s of reads" if reads else "")
