"""Large and small clusters are evened out, drained, and replace nodes under faults."""

import pytest

from raftmq.chaos.faults import Event, Schedule, World, draw, of_world
from raftmq.chaos.sim.checks.availability import ABSENT
from raftmq.chaos.sim.run import run

EVERY_MS = 2500


def schedule_of(seed: int, *, nodes: int, seconds: float) -> Schedule:
    """Drawn faults; all along plans are carried out, and one node after the other is drained."""
    drawn = draw(seed, of_world(World.SIM), nodes=nodes, seconds=seconds)
    times = range(1500, drawn.heal_ms, EVERY_MS)
    plans = [Event(at, "balance") for at in times]
    drains = [
        Event(at + EVERY_MS // 2, "drain", ((turn + seed) % nodes + 1,), EVERY_MS)
        for turn, at in enumerate(times)
    ]
    return drawn._replace(events=tuple(sorted((*drawn.events, *plans, *drains))))


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "nodes", "seconds"),
    [(seed, nodes, seconds)
     for nodes, seconds, seeds in ((3, 20, 1), (5, 20, 2), (9, 15, 1), (25, 8, 1))
     for seed in range(2000, 2000 + seeds)],
)  # fmt: skip
def test_plans_and_drains_under_faults_lose_nothing(seed: int, nodes: int, seconds: float) -> None:
    outcome = run(schedule_of(seed, nodes=nodes, seconds=seconds), nodes=nodes)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["plans carried out"] > 0
    assert outcome.counts["drained nodes"] > 0


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "nodes"), [(3007, 4), (3011, 5), (3015, 6)])
def test_nodes_that_are_silent_are_replaced_and_nothing_is_lost(seed: int, nodes: int) -> None:
    outcome = run(draw(seed, of_world(World.SIM), nodes=nodes, seconds=15), nodes=nodes)
    assert outcome.is_good, str(outcome)
    assert outcome.compared[ABSENT] > 0
