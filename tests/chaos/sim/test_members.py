"""Members that share out queues, under all faults of the simulated world."""

import pytest

from raftmq.chaos.faults import Event, Schedule, World, draw, of_world, with_visits
from raftmq.chaos.sim.run import run
from raftmq.chaos.sim.workloads import members
from raftmq.chaos.workloads.latecomers import KINDS as LATECOMERS
from raftmq.checkers import Verdict
from raftmq.machine.offsets import Offsets


def test_nothing_is_read_twice_while_members_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "DIES_SHARE", 0.0)
    monkeypatch.setattr(members, "LIFE_SECONDS", 3.0)
    outcome = run(Schedule(3, 10, ()), workload="members")
    assert outcome.is_good, str(outcome)
    assert outcome.counts["delivered"] == outcome.counts["acked"]
    assert outcome.counts["members"] > 5


SEEDS = range(901, 921)
SECONDS = 20.0


def schedule_of(seed: int) -> Schedule:
    kinds = of_world(World.SIM)
    every = of_world(World.SIM, has_added=True)
    return with_visits(draw(seed, kinds, nodes=3, seconds=SECONDS), every, nodes=3)


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_faults_lose_nothing_and_no_offset_goes_back(seed: int) -> None:
    outcome = run(schedule_of(seed), workload="members")
    assert outcome.is_good, str(outcome)
    # Two at least: queues were shared out. In 20 s with faults few come and go.
    assert outcome.counts["members"] >= 2


HANGS = tuple(Event(at, "client-hang", (), 5000) for at in range(2000, 20_000, 2500))
"""Members stand still for longer than their sessions, one after the other."""


def test_members_that_hang_are_fenced_and_all_is_read() -> None:
    outcome = run(Schedule(4, 25, HANGS), workload="members")
    assert outcome.is_good, str(outcome)
    assert outcome.counts["fenced"] > 0
    for kind in LATECOMERS:
        assert outcome.counts[f"latecomers, {kind}"] > 1, kind


@pytest.mark.campaign
def test_log_that_fences_nobody_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: commits of former owners count."""
    commit = Offsets.commit

    def forgetful(self: Offsets, *arguments: object) -> object:
        self.epochs.clear()
        return commit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Offsets, "commit", forgetful)
    monkeypatch.setattr(members, "READS_SHARE", 1.0)
    runs = (run(Schedule(seed, 25, HANGS), workload="members") for seed in range(4, 8))
    assert any(outcome.verdict is Verdict.INVALID for outcome in runs)
