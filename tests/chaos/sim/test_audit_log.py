"""The audit log of runs with users: each act that was acknowledged is in it, once."""

from collections.abc import Callable

import msgspec
import pytest

from raftmq.broker.access import acts
from raftmq.broker.host import Host
from raftmq.broker.serve import requests
from raftmq.broker.serve.connection import Connection
from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import World
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.checks.audit_log import JUDGED
from raftmq.chaos.sim.run import run
from raftmq.machine.catalog.audit import AdminAct
from raftmq.machine.catalog.catalog import Command, Once
from raftmq.machine.catalog.consumer_groups import PutConsumerGroup
from raftmq.machine.repeats import Repeats

PLAN = Plan(World.SIM, workload="admin", seconds=12.0, is_secure=True)
SEED = 3


def play() -> Outcome:
    return run(PLAN.schedule(SEED), workload="admin", is_secure=True)


def no_envelopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "authored", lambda _node, _connection, command: command)


def some_envelopes(monkeypatch: pytest.MonkeyPatch) -> None:
    def authored(node: Host, connection: Connection, command: Command) -> Command:
        is_left_out = isinstance(command, Once) and isinstance(command.change, PutConsumerGroup)
        return command if is_left_out else acts.authored(node, connection, command)

    monkeypatch.setattr(requests, "authored", authored)


def second_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Repeats, "__contains__", lambda *_: False)


def authors_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    act_of = acts.act_of

    def unknown(connection: Connection, *words: acts.Words) -> AdminAct:
        return msgspec.structs.replace(act_of(connection, *words), user="")

    monkeypatch.setattr(acts, "act_of", unknown)


@pytest.mark.parametrize("breach", [no_envelopes, some_envelopes, second_entries, authors_unknown])
def test_an_audit_log_that_lacks_an_act_or_has_one_twice_is_found(
    breach: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breach(monkeypatch)
    assert "audit-log" in {violation.name for violation in play().violations}


def test_acknowledged_acts_are_looked_for_and_found() -> None:
    outcome = play()
    assert outcome.is_good, outcome.violations
    assert outcome.compared[JUDGED] > 5
