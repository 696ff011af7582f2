"""Whole runs: what a seed gives, that it gives the same again, and that planted bugs are found."""

import pytest

from raftmq.chaos.checkers import Verdict
from raftmq.chaos.faults import Event, Fault, Schedule, World, draw, of_world
from raftmq.chaos.sim.nemesis import HANDLERS
from raftmq.chaos.sim.run import WorkloadName, run
from raftmq.chaos.world.disk import MemoryFile
from raftmq.log.record import Record
from raftmq.pop.machine import PartitionMachine
from raftmq.pop.producers import Producers
from raftmq.pop.results import Result
from tests.chaos.sim.processes import trace_hash_in_another_process

SIM = of_world(World.SIM)


def test_every_fault_of_this_world_has_a_handler_and_no_other_has() -> None:
    assert {fault.name for fault in SIM} == set(HANDLERS)


@pytest.mark.parametrize("workload", ["log", "queue", "register", "pop"])
def test_calm_run_is_valid(workload: WorkloadName) -> None:
    outcome = run(Schedule(1, 8, ()), workload=workload)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["acked"] > 30
    assert outcome.simulated_seconds > 6


def test_run_in_which_nothing_succeeds_is_vacuous() -> None:
    everything = (
        Event(0, "power-loss-all", (1, 2, 3)),
        Event(1, "burst-loss", (1, 2, 3), 900, 300),
    )
    outcome = run(Schedule(1, 1, everything))
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.is_vacuous


def test_same_seed_gives_the_same_run_in_every_process() -> None:
    schedule = draw(11, SIM, nodes=3, seconds=12)
    here = run(schedule)
    assert here.trace_hash == trace_hash_in_another_process(schedule, hash_seed="1")
    assert here.trace_hash == trace_hash_in_another_process(schedule, hash_seed="2")
    assert here.trace_hash != run(schedule._replace(seed=12)).trace_hash


GROUPS = [SIM[start::14] for start in range(14)]


@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0].name)
def test_each_fault_strikes_and_nothing_is_lost(kinds: list[Fault]) -> None:
    """Every kind of fault once, a second apart, each for half a second."""
    drawn = [draw(seed, [kind], nodes=3, seconds=40).events[0] for seed, kind in enumerate(kinds)]
    events = [
        event._replace(at_ms=1000 + 1300 * place, lasts_ms=event.lasts_ms and 500)
        for place, event in enumerate(drawn)
    ]
    outcome = run(Schedule(3, 14, tuple(events)))
    assert outcome.verdict is Verdict.VALID, str(outcome)
    for kind in kinds:
        assert outcome.counts[kind.name] == 1
        assert any(coverage.fault == kind.name for coverage in outcome.coverage)


@pytest.mark.parametrize("seed", range(3))
def test_a_quorum_goes_on_when_the_rest_stays_dead(seed: int) -> None:
    schedule = draw(seed, SIM, nodes=3, seconds=16)
    outcome = run(schedule, is_liveness=True)
    assert outcome.is_good, str(outcome)
    assert any("stays dead" in happening.what for happening in outcome.timeline)


def test_broker_that_answers_before_it_syncs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFile, "datasync", lambda self: None)
    dark = Event(4000, "power-loss-all", (1, 2, 3))
    outcome = run(Schedule(5, 10, (dark,)))
    assert outcome.verdict is Verdict.INVALID
    names = {violation.name for violation in outcome.violations}
    assert names & {"lost-write", "lost-middle", "lost-prefix", "lost-postfix", "V1", "V3"}, names
    assert "raftmq chaos replay --world sim" in str(outcome)


def test_machine_that_differs_between_nodes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = PartitionMachine.apply
    count = 0

    def differing(self: PartitionMachine, record: Record) -> list[Result]:
        nonlocal count
        count += 1
        results = apply(self, record)
        self.digest ^= count
        return results

    monkeypatch.setattr(PartitionMachine, "apply", differing)
    outcome = run(Schedule(5, 6, ()))
    assert "R21" in {violation.name for violation in outcome.violations}


def test_broker_that_forgets_producers_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again is stored again."""
    monkeypatch.setattr(Producers, "admit", lambda *_, **__: None)
    again = tuple(Event(at, "client-resend") for at in range(2000, 6000, 500))
    outcome = run(Schedule(5, 8, again))
    assert "duplicate" in {violation.name for violation in outcome.violations}
