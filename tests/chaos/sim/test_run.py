"""Whole runs: a seed gives the same run again, and planted bugs are found."""

import pytest

from raftmq.chaos.faults import Event, Fault, Schedule, World, draw, of_world
from raftmq.chaos.faults.arena import at_once
from raftmq.chaos.sim.faults.effects import EFFECTS
from raftmq.chaos.sim.faults.nemesis import HANDLERS
from raftmq.chaos.sim.run import WorkloadName, run
from raftmq.chaos.world.disk import MemoryFile
from raftmq.checkers import Verdict
from raftmq.log.record import Record
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.producers import Producers
from raftmq.results import Result
from tests.chaos.sim.processes import trace_hash_in_another_process

SIM = of_world(World.SIM)


def test_every_fault_of_this_world_has_a_handler_and_no_other_has() -> None:
    assert {fault.name for fault in of_world(World.SIM, has_users=True, has_added=True)} == set(
        HANDLERS
    )


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


@pytest.mark.campaign
def test_same_seed_gives_the_same_run_in_every_process() -> None:
    schedule = draw(11, SIM, nodes=3, seconds=12)
    here = run(schedule)
    assert here.trace_hash == trace_hash_in_another_process(schedule, hash_seed="1")
    assert here.trace_hash == trace_hash_in_another_process(schedule, hash_seed="2")
    assert here.trace_hash != run(schedule._replace(seed=12)).trace_hash


SEED = 3
GROUPS = [SIM[start::14] for start in range(14)]


SHY = {
    "read-error": "the log is in the cache, and who is level reads nothing from the disk",
    "strobe-clock": "only a node that leads asks its clock",
    "lost-names": "a name is looked up for a new connection, and those of old ones stand",
    "move-group": "no other node has room for it",
    "return-node": "no node has left",
    "return-blank": "no node has left, so that it is never drawn alone",
    "crash-write": "the node may be down by an earlier fault",
    "sync-reordered": "damage that the product does not promise to survive is withheld",
    "skew": "the node may be down by an earlier fault, or lead nothing",
    "drift": "in half a second a clock may not gain a millisecond",
    "stall-monotonic": "the node may be down by an earlier fault",
    "time-travel": "damage that the product does not promise to survive is withheld",
    "cut-tail": "the same",
    "lost-write": "the same",
    "crash-point": "the point that was chosen may be passed by nodes that join, and by no other",
    "power-loss": "the node may be down by an earlier fault",
    "full-quota": "the node may be down by an earlier fault",
}
"""Faults that may find nothing to strike in half a second, and why."""


def nodes_for(kinds: list[Fault]) -> int:
    """Number of nodes that these kinds need."""
    return max(3, *[kind.nodes_min for kind in kinds])


def _drawn(seed: int, kind: Fault) -> tuple[Event, ...]:
    return draw(seed, [kind], nodes=nodes_for([kind]), seconds=40).events


def short_schedule(kinds: list[Fault]) -> Schedule:
    """Every kind of fault once, a second apart, each for half a second."""
    # A kind that needs others before it is drawn with them only: `test_returning` has those.
    found = [_drawn(place, kind)[:1] for place, kind in enumerate(kinds)]
    drawn = [event for events in found for event in events]
    events = [
        event._replace(at_ms=1000 + 1300 * place, lasts_ms=event.lasts_ms and 500)
        for place, event in enumerate(drawn)
    ]
    return Schedule(SEED, 14, tuple(events))


@pytest.mark.campaign
@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0].name)
def test_each_fault_strikes_and_nothing_is_lost(kinds: list[Fault]) -> None:
    outcome = run(short_schedule(kinds), nodes=nodes_for(kinds))
    assert outcome.verdict is Verdict.VALID, str(outcome)
    for kind in kinds:
        is_struck = outcome.struck.get(kind.name, 0) > 0
        assert is_struck or kind.name in SHY, dict(outcome.counts)
        assert is_struck == any(one.fault == kind.name for one in outcome.coverage)


def test_fault_has_a_known_effect() -> None:
    assert set(EFFECTS) == set(HANDLERS)


@pytest.mark.parametrize("kinds", GROUPS[:4], ids=lambda kinds: kinds[0].name)
def test_handler_that_does_nothing_is_not_counted_as_a_fault(
    kinds: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(HANDLERS, at_once(lambda arena, event: None))
    monkeypatch.setattr("raftmq.chaos.sim.faults.nemesis.HANDLERS", nothing)
    outcome = run(short_schedule(kinds)._replace(seconds=8.0), nodes=nodes_for(kinds))
    assert not outcome.struck
    assert not outcome.coverage
    assert any(name.startswith("without effect") for name in outcome.counts)


LINKS = (
    Event(1000, "drop-kind", (), 3000, 3.0),
    Event(1500, "duplicate", (), 2000, 8.0),
    *(Event(at, "stale-replay", (1, 2)) for at in range(3000, 5000, 500)),
)


def test_links_that_stand_are_tapped() -> None:
    """They were opened before the faults were due, and nothing breaks them."""
    outcome = run(Schedule(3, 8, LINKS))
    assert outcome.is_good, str(outcome)
    assert outcome.struck["drop-kind"] == outcome.struck["duplicate"] == 1
    assert outcome.struck["stale-replay"] >= 3


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
