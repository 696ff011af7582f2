"""The campaign of consumers that pop: minutes of faults, judged from both sides; and that the two
ledgers see what goes wrong in whole brokers.
"""

from typing import Any

import msgspec
import pytest

from raftmq.broker.deliver.feeds import Feeds
from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import VISITS, Event, Schedule, World, draw, of_world
from raftmq.chaos.sim.checks.availability import CONFINED, WINDOWS
from raftmq.chaos.sim.checks.pop_evidence import DELIVERIES, GIVEN_UP, LOST, RECORDS
from raftmq.chaos.sim.checks.twins import STATES
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.faults import failpoints
from raftmq.chaos.sim.run import run
from raftmq.chaos.sim.workloads.pop import PopWorkload
from raftmq.checkers import Verdict
from raftmq.checkers.pop.calls import pop_traffic
from tests.chaos.campaigns import play_valid
from tests.chaos.sim.processes import trace_hash_in_another_process
from tests.quality.mutants import MUTANTS, planted

pytestmark = pytest.mark.campaign

SECONDS = 60.0
SEEDS = (700, 701, 703)
SERVED = 703
"""The seed whose faults excuse no lack of service: its pops are judged in windows."""
SHORT_SECONDS = 6.0
SHORT_SEEDS = range(700, 800)
"""Many short runs meet more than few long ones: two bugs were in the first 36 seeds."""
SHORT_PLAN = Plan(World.SIM, workload="pop", seconds=SHORT_SECONDS)
OFTEN = 5
"""Number of times due from which a fault must have had an effect."""
QUIET = {
    "read-error": "so short a run reads from memory",
    "move-group": "no other node has room for it",
    "return-node": "no node has left",
    "return-blank": "no node has left",
}
"""Faults that may have none, and why."""


def nodes_of(seed: int) -> int:
    return 5 if seed % 7 == 3 else 3


def schedule_of(seed: int) -> Schedule:
    kinds = tuple(sorted(CONFINED)) if seed == SERVED else ()
    return Plan(World.SIM, kinds, seconds=SECONDS, nodes=nodes_of(seed)).schedule(seed)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_minute_of_faults_loses_no_message_and_breaks_no_lease(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, nodes = schedule_of(seed), nodes_of(seed)
    if seed == SERVED:
        # Other campaigns judge sends.
        monkeypatch.setattr(PopWorkload, "served", ("pop",))
    outcome = run(schedule, workload="pop", is_liveness=seed % 7 == 1, nodes=nodes)
    assert outcome.is_good, str(outcome)
    assert seed != SERVED or outcome.compared[WINDOWS] > 0
    assert outcome.counts["again"] > 50
    assert outcome.counts["delayed"] > 50
    for done in (
        "cancelled",
        "committed",
        "rolled back",
        "calls cancelled",
        "dead",
        "redrive done",
    ):
        assert outcome.counts[done] > 0, done


@pytest.mark.timeout(3000)
def test_short_runs_lose_no_message_and_break_no_lease() -> None:
    totals = play_valid(SHORT_PLAN, SHORT_SEEDS)
    assert set(VISITS) <= set(totals.faults)
    # Short runs refuse few syncs, perhaps none.
    assert set(totals.vacuous_checks) <= {"L5 a failed sync is final"}
    assert totals.compared["leases by the clock"] > 0
    assert totals.compared[GIVEN_UP] > 0
    assert totals.compared[LOST] > 0
    often = {name for name, count in totals.scheduled.items() if count >= OFTEN}
    assert len(often) > 5
    assert not often & set(totals.never_struck) - set(QUIET)


def test_same_seed_gives_the_same_run_in_every_process() -> None:
    schedule = draw(11, of_world(World.SIM), nodes=3, seconds=12)
    here = run(schedule, workload="pop")
    assert here.trace_hash == trace_hash_in_another_process(schedule, workload="pop", hash_seed="1")


HANG = Event(2000, "client-hang", (), 6000)
"""A consumer stands still with messages in hand, for longer than its leases run."""


def test_consumer_that_hangs_costs_its_own_leases_and_nothing_else() -> None:
    calm = run(Schedule(4, 12, ()), workload="pop")
    hung = run(Schedule(4, 12, (HANG,)), workload="pop")
    assert calm.is_good, str(calm)
    assert hung.is_good, str(hung)
    assert calm.compared[STATES] == 9  # three partition groups, three replicas each
    for name in (RECORDS, DELIVERIES, "pop a", "withheld"):
        assert calm.compared[name] > 50, name
    assert hung.counts["ack done"] > 0.6 * calm.counts["ack done"]
    assert calm.counts["calls cancelled"] > 20
    assert calm.counts["pops for a time"] > 20
    assert calm.counts["held over a pop"] > 5


def test_leader_whose_clock_was_a_day_ahead_leaves_timers_that_run() -> None:
    """Records never go back in time, and leases run out by records: by whose clock, if the one that
    was ahead is gone?"""
    faults = (Event(2000, "step-clock", (1,), 0, 86_400_000), Event(5000, "kill", (1,)))
    outcome = run(Schedule(2, 10, faults), workload="pop")
    assert outcome.is_good, str(outcome)


class ShortMemory(Cluster):
    """Nodes that keep little."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.log = msgspec.structs.replace(self.log, retention_bytes=150_000, dead_bytes=100_000)


def test_what_retention_takes_from_slow_consumers_is_counted_and_nothing_else_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftmq.chaos.sim.run.Cluster", ShortMemory)
    faults = (
        Event(2000, "client-slow", (), 9000),
        Event(5000, "kill-leader", (1,)),
        Event(9000, "kill", (2,)),
        Event(12_000, "client-hang", (), 4000),
    )
    outcome = run(Schedule(3, 20, faults), workload="pop")
    assert outcome.is_good, str(outcome)
    assert outcome.history is not None
    books = [one.books for one in pop_traffic(outcome.history).values()]
    assert sum(one.lost for one in books if one is not None) > 10
    assert outcome.compared[GIVEN_UP] > 10
    assert outcome.compared[LOST] > 0


def test_nothing_is_lost_where_processes_end_as_they_apply_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failpoints, "NODE_FAILPOINTS_SHARE", 1.0)
    monkeypatch.setattr(failpoints, "OWN_FAILPOINTS_SHARE", 0.0)
    monkeypatch.setattr(failpoints, "NODE_FAILPOINTS", ("apply commands",))
    ends = tuple(Event(at, "crash-point", (at // 800 % 3 + 1,)) for at in range(800, 9000, 800))
    outcome = run(Schedule(4, 12, ends), workload="pop")
    assert outcome.is_good, str(outcome)
    assert outcome.counts["crashes"] >= 3


@pytest.mark.parametrize(
    "name", ["settled-by-offset", "old-lease-lives", "buried-and-kept", "failed-key-freed"]
)
def test_mutant_is_killed_in_whole_brokers(name: str) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    with planted(mutant):
        outcome = run(Schedule(6, 10, (HANG,)), workload="pop")
    assert outcome.verdict is Verdict.INVALID
    # A ledger that goes on after the first break reports it in other words, too.
    expected = {*mutant.killers, "Q8", "bug", "assert"}
    assert {violation.name for violation in outcome.violations} & expected


@pytest.mark.parametrize(
    ("name", "anomaly", "number"),
    [
        ("cancelled-and-kept", "delivered-after-cancel", "Q21"),
        ("half-visible", "half-visible", "Q22"),
    ],
)
def test_withheld_message_that_is_seen_is_noticed_by_clients_and_in_the_log(
    name: str, anomaly: str, number: str
) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    with planted(mutant):
        outcome = run(Schedule(6, 7, ()), workload="pop")
    names = {violation.name for violation in outcome.violations}
    assert {anomaly, number} <= names, names


def test_run_in_which_time_stands_still_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spinning run is reported with its seed, and the campaign goes on."""

    def spin(self: Feeds, group: Any, key: Any, look: Any, records: Any) -> None:
        self._done(key)

    monkeypatch.setattr(Feeds, "_propose", spin)
    outcome = run(Schedule(4, 6, ()), workload="pop")
    assert [violation.name for violation in outcome.violations] == ["time-stands-still"]
    assert "feeds.py" in outcome.violations[0].text
    assert not outcome.is_good
