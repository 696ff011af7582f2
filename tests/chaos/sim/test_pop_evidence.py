"""Evidence of clients and nodes is compared with the committed log; without evidence a run fails.

Each of these bugs was planted once while the comparison was made of nothing, and was not seen.
"""

from typing import Any

import pytest

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.checks.pop_evidence import DELIVERIES, RECORDS, KeptQueues, PopEvidence
from raftmq.chaos.sim.checks.twins import STATES
from raftmq.chaos.sim.run import run
from raftmq.chaos.workloads import popping
from raftmq.log.record import Kind, encode
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import Attached
from raftmq.machine.producers import Producers
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import Mode, Policy
from raftmq.results import Appended

RESTARTS = tuple(Event(at, "kill", (at // 1000 % 3 + 1,)) for at in range(1500, 4000, 1000))


def names(outcome: Outcome) -> set[str]:
    return {violation.name for violation in outcome.violations}


@pytest.mark.campaign
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
    # A producer's next batch hides the error: with other seeds all producers send one.
    assert "R21" in names(run(Schedule(4, 5, RESTARTS), workload="pop"))


@pytest.mark.campaign
def test_token_that_is_in_no_record_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    got = popping._Consuming._got

    def other(self: Any, message: Any) -> Any:
        told = got(self, message)
        return told._replace(token=told.token + (7 << 40)) if message.offset % 5 == 0 else told

    monkeypatch.setattr(popping._Consuming, "_got", other)
    assert "Q8" in names(run(Schedule(1, 4, ()), workload="pop"))


@pytest.mark.campaign
def test_run_that_compared_nothing_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a former bug: the nodes had ended before the look.
    monkeypatch.setattr(PopEvidence, "look", lambda self, state: None)
    outcome = run(Schedule(1, 4, ()), workload="pop")
    assert not outcome.is_good
    assert STATES in outcome.vacuous
    assert DELIVERIES in outcome.vacuous
    assert RECORDS not in outcome.vacuous


def test_groups_are_told_of_what_the_log_drops_before_it_does_and_of_no_more() -> None:
    kept, machine = KeptQueues(), PartitionMachine()
    group = PopGroup(Policy(), Mode.POP)
    group.follow(7, 0)
    machine.pop_groups.attached[1] = Attached(0, "g", 1, group)
    machine.ends.place(7, 13)

    def follow(index: int, *results: Appended, term: int = 1) -> list[tuple[int, bool]]:
        record = encode(b"", index=index, term=term, kind=Kind.NOOP, timestamp=0, chain=0)
        return [(count, bool(fact)) for count, fact in kept.follow(record, results, machine)]

    def told(index: int, earliest: int, log_start: int, *, term: int = 1) -> list[tuple[int, bool]]:
        machine.pop_groups.earliest[7], machine.log_start = earliest, log_start
        return follow(index, term=term)

    batches = [(0, 3), (3, 2), (5, 4), (9, 1), (10, 1), (11, 1), (12, 1)]
    for index, (base, count) in enumerate(batches, 10):
        assert follow(index, Appended(7, base, count, 0, False, 0)) == []
    # A group may still be opened before the trim, so a queue without a group counts as well.
    del group.backlogs[7]
    assert told(19, 0, 11) == [(0, True)]
    group.follow(7, 0)
    assert told(21, 3, 11) == [(3, False)]
    assert told(22, 5, 11) == [(2, False)]
    assert told(23, 5, 12) == []
    # The drop of the next batch is not announced.
    assert told(24, 5, 13) == [(0, True)]
    # More is announced than dropped: by a leader before this one, and by this one.
    assert told(25, 11, 13) == [(6, False)]
    assert told(26, 11, 14, term=2) == []
    assert told(27, 13, 14) == [(2, False)]
    assert told(28, 13, 15) == [(0, True)]
    # Within a batch.
    machine.pop_groups.earliest[8] = 1
    assert follow(29) == [(0, True)]
    # The messages of a deleted queue belong to no group.
    machine.ends.drop(7)
    assert told(30, 13, 17) == []
