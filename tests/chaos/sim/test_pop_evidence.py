"""What clients and nodes showed is compared with the committed log; with nothing, it is not good.

Each of these bugs was planted once while the comparison was made of nothing, and was not seen.
"""

from typing import Any

import pytest

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.pop_evidence import (
    DELIVERIES,
    RECORDS,
    STATES,
    KeptQueues,
    PopEvidence,
)
from raftmq.chaos.sim.run import run
from raftmq.chaos.workloads import popping
from raftmq.pop.machine import PartitionMachine
from raftmq.pop.producers import Producers
from raftmq.pop.results import Appended

RESTARTS = tuple(Event(at, "kill", (at // 1000 % 3 + 1,)) for at in range(1500, 4000, 1000))


def names(outcome: Outcome) -> set[str]:
    return {violation.name for violation in outcome.violations}


def test_state_that_a_restored_replica_has_wrong_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A field that no digest covers, of a replica that came from a snapshot."""
    load = Producers.load

    def wrong(self: Producers, rows: list[list[Any]]) -> None:
        load(self, rows)
        for session in self._sessions.values():
            session.timestamp += 1

    monkeypatch.setattr(Producers, "load", wrong)
    # The next batch of a producer hides what was wrong: with other seeds all of them send one.
    assert "R21" in names(run(Schedule(4, 5, RESTARTS), workload="pop"))


def test_token_that_is_in_no_record_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    got = popping._Consuming._got

    def other(self: Any, message: Any) -> Any:
        told = got(self, message)
        return told._replace(token=told.token + (7 << 40)) if message.offset % 5 == 0 else told

    monkeypatch.setattr(popping._Consuming, "_got", other)
    assert "Q8" in names(run(Schedule(1, 4, ()), workload="pop"))


def test_run_that_compared_nothing_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    # As it was: the nodes had ended when they were looked at.
    monkeypatch.setattr(PopEvidence, "look", lambda self, stage: None)
    outcome = run(Schedule(1, 4, ()), workload="pop")
    assert not outcome.is_good
    assert STATES in outcome.vacuous
    assert DELIVERIES in outcome.vacuous
    assert RECORDS not in outcome.vacuous


def test_groups_are_told_to_give_up_what_the_log_has_dropped_and_no_more() -> None:
    kept, machine = KeptQueues(), PartitionMachine()

    def told(index: int, earliest: int, log_start: int) -> list[tuple[int, bool]]:
        machine.serving.earliest[7], machine.log_start = earliest, log_start
        return [(count, bool(fact)) for count, fact in kept.follow([], index, machine)]

    for index, (base, count) in enumerate([(0, 3), (3, 2), (5, 4)], 10):
        placed = Appended(7, base, count, 0, False, 0)
        assert not list(kept.follow([placed], index, machine))
    assert told(20, 3, 11) == [(3, False)]
    assert told(21, 3, 11) == []
    # Within a batch; a batch that the log keeps.
    assert told(22, 4, 12) == [(1, True)]
    assert told(23, 9, 12) == [(5, True)]
