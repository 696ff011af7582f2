"""A damaged disk is its node's own business: after the heal it is whole, and nobody replaced it."""

import pytest

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.sim.run import run

KINDS = (
    "bit-flip",
    "time-travel",
    *(
        pytest.param(kind, marks=pytest.mark.campaign)
        for kind in (
            "bad-sector", "unreadable-sector", "misdirected-write", "lost-write", "cut-tail",
            "missing-segment",
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_nodes_mend_themselves_one_after_the_other(kind: str) -> None:
    strokes = tuple(Event(at, kind, (at // 4000 % 3 + 1,)) for at in range(4000, 30_000, 4000))
    outcome = run(Schedule(11, 44, strokes))
    assert outcome.is_good, str(outcome)
    assert outcome.counts.get("damage done", 0) >= 2, outcome.counts
    assert not outcome.counts.get("replaced")


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [2, 5])
def test_seed_that_had_rot_in_records_before_they_were_applied_is_whole_after_the_heal(
    seed: int,
) -> None:
    at = range(4000, 30_000, 4000)
    strokes = tuple(Event(ms, "unreadable-sector", (ms // 4000 % 3 + 1,)) for ms in at)
    outcome = run(Schedule(seed, 44, strokes))
    assert outcome.is_good, str(outcome)
    assert outcome.counts.get("damage done", 0) >= 2, outcome.counts
