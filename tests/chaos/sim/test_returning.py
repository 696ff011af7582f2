"""Members that return: groups move away and back, nodes leave and come again, logs are lost.

With the bugs planted that such runs are for, the seeds named here find them.
"""

import pytest

from raftmq.chaos.faults import FAULTS, Event, Schedule, World, draw, of_world, with_visits
from raftmq.chaos.sim.run import run
from tests.quality.mutants import MUTANTS, hunt

NODES = 5
"""A group of three can move."""
KINDS = (
    "move-group", "return-node", "return-blank", "lose-group", "crash-write", "kill-leader",
    "isolate-leader", "slow-disk", "add-voter", "remove-voter", "replace-node",
)  # fmt: skip
"""Faults from which this campaign's seeds draw."""
SEEDS = range(3)
SECONDS = 60.0
FOUND = {
    "founds-again": 0,
    "lost-log": 0,
    "outgoing-unseen": 4,
    "left-for-ever": 0,
    "moved-log-stays": 0,
    "change-unwritten": 0,
    "growth-unwritten": 0,
    "next-id-after-log": 0,
    "any-catalog": 0,
    "the-dead-count": 1,
    "the-unheard-count": 0,
    "old-answers-count": 4,
    "learners-alone": 0,
}
"""Mutant → the first seed that kills it; the others of `MUTANTS` were not hunted long enough."""


def schedule_of(seed: int) -> Schedule:
    drawn = draw(seed, [FAULTS[name] for name in KINDS], nodes=NODES, seconds=SECONDS)
    return with_visits(drawn, of_world(World.SIM, has_added=True), nodes=NODES)


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_return_break_no_promise(seed: int) -> None:
    outcome = run(schedule_of(seed), nodes=NODES)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["acknowledged, looked for in later leaders"]


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_new_nodes_alone_hold_what_wiped_founders_held() -> None:
    """Each founder is wiped, and replaced before the next one; then all processes end."""
    events = [Event(44_000, "kill-all", (1, 2, 3))]
    for founder, other in ((1, 2), (2, 3), (3, 1)):
        at_ms = 4000 + 13_000 * (founder - 1)
        events.append(Event(at_ms, "wipe", (founder,)))
        events.append(Event(at_ms + 300, "replace-node", (founder, other)))
    outcome = run(Schedule(1, 64.0, tuple(sorted(events))))
    assert outcome.is_good, str(outcome)
    assert (outcome.struck["wipe"], outcome.struck["replace-node"]) == (3, 3)
    assert outcome.counts["replaced"] == 3
    last = {happening.node for happening in outcome.timeline if happening.what == "serves"}
    assert {4, 5, 6} <= last


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("name", "seed"), FOUND.items())
def test_mutant_of_returning_members_is_killed(name: str, seed: int) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    killed = hunt(mutant, first=seed, seeds_max=1)
    if not killed.is_as_expected:
        # The simulation has changed since.
        killed = hunt(mutant)
    assert killed.is_as_expected, f"{killed.killer or 'no check'}: {killed.text}"
