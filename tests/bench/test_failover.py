"""The gap of a failover: the longest silence from the kill on, however acknowledgements come."""

import pytest

from bench.failover import SILENCE_SECONDS_MAX, Silence


class Clock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def silence_of(acks: list[float], *, killed_at: float) -> tuple[Silence, Clock]:
    clock = Clock()
    silence = Silence(clock)
    for at in sorted([*acks, killed_at]):
        clock.now = at
        if at == killed_at:
            silence.on_kill()
        else:
            silence.on_ack()
    return silence, clock


def test_gap_begins_at_the_last_acknowledgement_before_the_kill() -> None:
    silence, _ = silence_of([1.0, 2.0, 7.0, 7.1], killed_at=2.5)
    assert silence.longest == 5.0


def test_gaps_before_the_kill_do_not_count() -> None:
    silence, _ = silence_of([1.0, 9.0, 9.5], killed_at=9.25)
    assert silence.longest == 0.5


def test_answer_that_was_under_way_at_the_kill_does_not_end_the_round() -> None:
    silence, clock = silence_of([1.0, 1.2], killed_at=1.1)
    clock.now = 8.0
    assert not silence.is_over()
    silence.on_ack()
    assert silence.longest == pytest.approx(6.8)
    for at in range(9, 18):
        clock.now = float(at)
        silence.on_ack()
    assert silence.is_over()


def test_round_without_a_kill_is_not_over() -> None:
    clock = Clock()
    silence = Silence(clock)
    clock.now = 20.0
    silence.on_ack()
    assert not silence.is_over()


def test_endless_silence_is_an_error() -> None:
    silence, clock = silence_of([1.0], killed_at=1.5)
    clock.now = 1.5 + SILENCE_SECONDS_MAX
    with pytest.raises(RuntimeError, match="no acknowledgement for"):
        silence.is_over()
