"""Processor time and memory from /proc."""

import os
import time

from bench.counting.usage import Usage, cpu_seconds, memory


def test_time_between_two_moments_is_what_the_process_used() -> None:
    with Usage([os.getpid()]) as usage:
        used = time.process_time()
        began = time.perf_counter()
        while time.process_time() - used < 0.5:
            pass
        ended = time.perf_counter()
        # The kernel's ticks are hundredths, at each end.
        assert 0.4 < usage.seconds(began, ended) < time.process_time() - used + 0.1
        assert usage.seconds(began, began) == 0.0


def test_moment_between_two_notes_is_interpolated() -> None:
    usage = Usage([])
    usage._times, usage._seconds = [10.0, 11.0, 13.0], [1.0, 1.5, 3.5]
    assert usage._at(11.5) == 2.0
    assert usage._at(9.0) == 1.0
    assert usage._at(20.0) == 3.5


def test_own_process_has_time_and_memory() -> None:
    assert cpu_seconds(os.getpid()) > 0.0
    found = memory(os.getpid())
    assert found.resident > found.anonymous > 1.0
