"""Runs in which quotas slow the clients: their requests wait, and no promise breaks."""

from math import inf
from typing import Literal

import pytest

from raftmq.broker.deliver.in_flight import FlightRoom, InFlight
from raftmq.broker.quotas.lanes import Lane, Lanes
from raftmq.broker.serve.answers import OpenRequest
from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import World
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.checks.in_flight import COMPARED, OF_LEADERS
from raftmq.chaos.sim.clients import QUOTA_EVERY
from raftmq.chaos.sim.run import run

SEED = 4
"""A seed with quotas."""
assert SEED % QUOTA_EVERY == 1
Name = Literal["log", "pop", "flows", "members"]


def play(workload: Name) -> Outcome:
    plan = Plan(World.SIM, workload=workload, seconds=6.0, is_secure=True)
    return run(plan.schedule(SEED), workload=workload, is_secure=True)


@pytest.mark.parametrize("workload", ["log", "pop", "flows", "members"])
def test_no_promise_breaks_while_quotas_hold_requests(
    workload: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = 0
    take_turn = Lanes.take_turn

    def counted(own: Lanes, lane: Lane, asked: OpenRequest) -> bool:
        nonlocal held
        is_turn = take_turn(own, lane, asked)
        held += is_turn
        return is_turn

    monkeypatch.setattr(Lanes, "take_turn", counted)
    outcome = play(workload)
    assert outcome.is_good, outcome.violations
    assert held > 10


def test_run_whose_leaders_forget_the_bound_on_messages_in_flight_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = play("pop").compared
    assert compared[COMPARED]
    assert compared[OF_LEADERS]
    monkeypatch.setattr(InFlight, "room", lambda *_: FlightRoom(inf))
    assert "in-flight" in {violation.name for violation in play("pop").violations}


def test_run_with_quotas_is_the_same_each_time() -> None:
    assert play("log").trace_hash == play("log").trace_hash
