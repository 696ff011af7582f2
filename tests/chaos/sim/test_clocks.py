"""Wrong clocks and everything that has a deadline: leases, delays, transactions, sessions, claims.

Clocks of nodes jump by seconds to days, forwards and backwards, for a while or until the heal, and
leaders end meanwhile. Promises about clients' times are judged as sharply as the clocks were right;
promises about the log's time are judged in full, and everything must come to its end.
"""

import pytest

from raftmq.chaos.campaign import Plan, Totals
from raftmq.chaos.faults import VISITS, Event, Schedule, World
from raftmq.chaos.sim.run import run
from tests.chaos.campaigns import play_valid

FAULTS = ("clock", "kill-leader")
SEEDS = range(1, 11)
SECONDS = 6.0
WORKLOADS = ("pop", "flows")
MEMBER_SEEDS = range(20, 40)
MEMBER_SECONDS = 10.0


def plan_of(workload: str) -> Plan:
    """Faults of clocks, and visits."""
    seconds = MEMBER_SECONDS if workload == "members" else SECONDS
    return Plan(World.SIM, FAULTS, workload=workload, seconds=seconds, is_visited=True)


def play(workload: str, seeds: range) -> Totals:
    """A campaign."""
    totals = play_valid(plan_of(workload), seeds)
    assert set(VISITS) <= set(totals.faults)
    # No fault of these refuses a sync.
    assert set(totals.vacuous_checks) <= {"L5 a failed sync is final"}
    return totals


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_clock_loses_a_message_or_keeps_one_for_ever(workload: str) -> None:
    play(workload, SEEDS)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_no_clock_keeps_a_queue_without_a_reader() -> None:
    play("members", MEMBER_SEEDS)


@pytest.mark.campaign
def test_leases_are_judged_by_clocks_that_differ_a_little() -> None:
    wrong = Schedule(2, 6, (Event(1000, "skew", (1,), 3000, 500),))
    outcome = run(wrong, workload="pop")
    assert outcome.is_good, str(outcome)
    assert outcome.counts["judged by clocks that were wrong"]
    assert outcome.compared["leases by the clock"] > 50


@pytest.mark.campaign
def test_transaction_that_is_open_is_asked_about_after_a_day_that_was_not() -> None:
    jumps = tuple(Event(800, "step-clock", (node,), 0, 86_400_000) for node in (1, 2, 3))
    outcome = run(Schedule(3, 8, jumps), workload="pop")
    assert outcome.is_good, str(outcome)
    assert outcome.counts["asked about"] > 0
