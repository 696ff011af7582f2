"""All machines of all workloads are compared with twins that apply the log from its start."""

from typing import Any

import msgspec
import pytest

from raftmq.broker.replica.opener import FOUNDING_INDEX
from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.checks.twins import CATALOGS, STATES, Twins
from raftmq.chaos.sim.run import WorkloadName, run
from raftmq.chaos.world import Process
from raftmq.log.record import Record
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.machine import PartitionMachine

RESTARTS = tuple(Event(at, "kill", (at // 1000 % 3 + 1,)) for at in range(1500, 4000, 1000))


def facts(outcome: Outcome) -> list[str]:
    return [str(violation) for violation in outcome.violations if violation.name == "R21"]


@pytest.mark.parametrize("workload", ["log", "queue", "register", "members", "admin"])
def test_machines_of_workloads_that_do_not_pop_are_compared_too(workload: WorkloadName) -> None:
    outcome = run(Schedule(1, 4, ()), workload=workload)
    assert outcome.is_good, outcome.violations or outcome.vacuous
    assert outcome.compared[CATALOGS] > 0
    assert outcome.compared[STATES] > 0


@pytest.mark.campaign
def test_catalog_that_one_node_has_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Catalog.apply

    def wrong(self: Catalog, record: Record) -> list[Any]:
        results = apply(self, record)
        process = Process.current()
        if process is not None and process.machine.name == "node2":
            self.topics |= {
                name: msgspec.structs.replace(topic, created=topic.created + 1)
                for name, topic in self.topics.items()
            }
        return results

    monkeypatch.setattr(Catalog, "apply", wrong)
    for workload in ("pop", "log"):
        found = facts(run(Schedule(1, 4, ()), workload=workload))
        assert any("group 0: the state of node" in fact for fact in found), workload


def test_state_that_a_restored_replica_has_wrong_is_found_out_without_pop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restore = PartitionMachine.restore

    def wrong(state: bytes) -> PartitionMachine:
        machine = restore(state)
        machine.subscriptions.changed += machine.applied > FOUNDING_INDEX
        return machine

    monkeypatch.setattr(PartitionMachine, "restore", wrong)
    outcome = run(Schedule(4, 8, RESTARTS), workload="log")
    assert any("is not what its log gives" in fact for fact in facts(outcome))


def test_run_that_compared_no_machine_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Twins, "take_states", lambda self: None)
    outcome = run(Schedule(1, 4, ()), workload="log")
    assert not outcome.is_good
    assert STATES in outcome.vacuous
    assert CATALOGS in outcome.vacuous
