"""Strangers at the ports of real nodes cost no promise, and no more than the limits."""

from pathlib import Path

import pytest

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.real import run
from raftmq.chaos.real.faults.hostile import AT_ONCE
from raftmq.chaos.real.gauges import LIMITS
from raftmq.chaos.real.nodes import SETTINGS

PLACES = int(SETTINGS["limits"]["connections_max"])


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.timeout(300)
def test_half_frames_silence_and_small_frames_that_become_large_break_nothing(
    tmp_path: Path,
) -> None:
    events = tuple(Event(1000, "strangers", (node,), 5000) for node in (1, 2, 3))
    outcome = run(Schedule(3, 10.0, events), folder=tmp_path)
    assert outcome.is_good, str(outcome)
    counts = outcome.counts
    assert outcome.struck["strangers"] == 3
    opened = counts[AT_ONCE]
    assert counts["connections of strangers"] >= opened > 0
    # A busy machine opens fewer. Whatever it opened, the measure sees: a quarter of it at least, as
    # a busy node accepts late, and no more than a node has places for strangers.
    assert counts["most open descriptors of a node"] >= min(opened, PLACES) // 4
    assert counts["most open descriptors of a node"] <= LIMITS.descriptors_max
    print(
        {name: count for name, count in counts.items() if name.startswith(("most", "longest"))},
        opened,
    )
