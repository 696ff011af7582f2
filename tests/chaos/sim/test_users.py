"""Runs with users: clients do their work under rules, and intruders get nothing, come what may."""

from collections.abc import Callable

import pytest

from raftmq.broker.access import gate
from raftmq.broker.access.gate import Gate
from raftmq.broker.access.needs import NEEDS, NOTHING
from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import World
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.run import run
from raftmq.wire.messages import FrameKind

PLAN = Plan(World.SIM, workload="pop", seconds=6.0, is_secure=True)


def play(seed: int, workload: str = "pop") -> Outcome:
    return run(PLAN.schedule(seed), workload=workload, is_secure=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("workload", ["log", "register", "pop", "flows", "members", "admin"])
def test_no_promise_breaks_with_users_and_no_intruder_gets_in(workload: str) -> None:
    outcome = play(0, workload)
    assert outcome.is_good, outcome.violations
    assert outcome.compared["intruders refused"] > 50


def test_run_with_users_is_the_same_each_time() -> None:
    assert play(1).trace_hash == play(1).trace_hash


def open_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "check", lambda *_: None)


def open_without_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Gate.check

    def checked(own: Gate, asked: object, frame: object, message: object) -> object:
        guest = own._guests.get(asked.connection)  # type: ignore[attr-defined]
        is_nobody = guest is not None and guest.login is None
        return None if is_nobody else check(own, asked, frame, message)  # type: ignore[arg-type]

    monkeypatch.setattr(Gate, "check", checked)


def pops_without_a_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "NEEDS", {**NEEDS, FrameKind.POP: NOTHING})


def lists_show_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "sees", lambda *_: lambda _: True)


@pytest.mark.parametrize(
    "breach", [open_to_all, open_without_a_login, pops_without_a_need, lists_show_all]
)
def test_a_gate_that_lets_somebody_in_is_found(
    breach: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breach(monkeypatch)
    assert "intrusion" in {violation.name for violation in play(1).violations}
