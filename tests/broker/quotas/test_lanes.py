"""Looks at all lanes: in steps, and for a part of the time only."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.broker.quotas import lanes as module
from raftmq.broker.quotas.buckets import Bucket
from raftmq.broker.quotas.lanes import LOOK_SHARE, Held, Lane, Lanes
from raftmq.broker.quotas.throttle_times import ThrottleTimes
from raftmq.broker.serve.connection import STEP_SECONDS_MAX
from raftmq.wire.messages import FrameKind

ARM_SECONDS = 0.001
"""What it takes to set the next turn of a lane, by the clock of these tests."""
LANES = 50


class Loop:
    """A clock that stands still but for `Lanes._arm`, and timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.armed: list[Lane] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(module, "trio", SimpleNamespace(current_time=lambda: self.now))
        monkeypatch.setattr(Lanes, "_arm", lambda _, lane: self._arm(lane))

    def _arm(self, lane: Lane) -> None:
        self.now += ARM_SECONDS
        self.armed.append(lane)

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        self._due.append((self.now + seconds, call))

    def step(self) -> bool:
        """Make the next call that is due; False: there is none."""
        if not self._due:
            return False
        at, call = self._due.pop(0)
        self.now = max(self.now, at)
        call()
        return True


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def filled(loop: Any, bucket: Bucket) -> Lanes:
    """Lanes with a batch each, all of one quota."""
    made = Lanes(loop, ThrottleTimes(), hold_seconds_max=4.0, busy=lambda _: None)  # type: ignore[arg-type, return-value]
    frame: Any = SimpleNamespace(header=b"", body=b"")
    for connection in range(LANES):
        asked: Any = SimpleNamespace(connection=connection, kind=FrameKind.PRODUCE)
        position = bucket.pour(10, loop.now)
        made.put("orders", Held(asked, frame, [(bucket, position, 10)], None))
    loop.armed.clear()
    return made


def test_a_look_at_many_lanes_leaves_most_of_the_time_to_others(loop: Loop) -> None:
    lanes = filled(loop, Bucket(1))
    begun = loop.now
    lanes.look_again()
    assert len(loop.armed) * ARM_SECONDS <= STEP_SECONDS_MAX + ARM_SECONDS
    while loop.step():
        pass
    assert len(loop.armed) == LANES
    assert (loop.now - begun) * (LOOK_SHARE + 0.05) >= LANES * ARM_SECONDS


def test_changes_in_the_middle_of_a_look_bring_one_more_when_it_is_done(loop: Loop) -> None:
    lanes = filled(loop, Bucket(1))
    for _ in range(5):
        lanes.look_again()
        loop.step()
    while loop.step():
        pass
    assert [loop.armed.count(lane) for lane in dict.fromkeys(loop.armed)] == [2] * LANES


def test_lanes_that_end_before_their_turn_are_taken_back_together(loop: Loop) -> None:
    bucket = Bucket(1)
    lanes = filled(loop, bucket)
    for connection in range(LANES // 2):
        closed: Any = connection
        lanes.closed(closed)
    while loop.step():
        pass
    assert bucket.level(loop.now) <= LANES * 10 / 2
    # None of those that are gone has a turn again.
    left: set[Any] = {lane.connection for lane in loop.armed}
    assert left == set(range(LANES // 2, LANES))
