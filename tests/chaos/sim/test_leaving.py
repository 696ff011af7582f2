"""A node that leaves is said to be unused only when no data group counts on it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.broker.group import Group
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.leaving import COMPARED, Leaving
from raftmq.consensus import ConfState
from raftmq.log.record import Kind, Record
from raftmq.pop.replicas import member_id

LEAVER, NUMBER, TERM = 3, 7, 4
JOINT = ConfState(voters=(1, 2, 4), voters_outgoing=(1, 2, LEAVER), auto_leave=True)
LEFT = ConfState(voters=(1, 2, 4))


class _Seen:
    """A leader of a data group beside a leader of the system group, and the check."""

    def __init__(self, *, moved: set[int], is_leaving: bool = True) -> None:
        listed = {LEAVER: SimpleNamespace(is_leaving=is_leaving)}
        duties = SimpleNamespace(has_moved=lambda node: node in moved)
        system = SimpleNamespace(duties=duties, catalog=SimpleNamespace(nodes=listed))
        cluster: Any = SimpleNamespace(observers=[], leader=lambda _: 5, nodes={5: system})
        self.check = Leaving(cast("Cluster", cluster))
        self._index = 0

    def apply(
        self,
        conf: ConfState,
        *,
        term: int = TERM,
        is_leader: bool = True,
        skipped: int = 0,
        node: int = 1,
    ) -> None:
        self._index += 1 + skipped
        raft = SimpleNamespace(term=TERM)
        group: Any = SimpleNamespace(number=NUMBER, conf_state=conf, raft=raft, is_leader=is_leader)
        record: Any = SimpleNamespace(index=self._index, term=term, kind=Kind.MEMBERSHIP)
        self.check.applied(node, cast("Group", group), [cast("Record", record)])


def test_node_that_was_noted_while_the_outgoing_half_had_it_is_found() -> None:
    seen = _Seen(moved={LEAVER})
    seen.apply(JOINT)
    assert not seen.check.early
    seen.apply(LEFT)
    (text,) = seen.check.early
    assert text.startswith(f"group {NUMBER} counted on node {LEAVER} until now")
    assert seen.check.compared == {COMPARED: 1}


def test_node_that_was_not_noted_yet_is_no_alarm() -> None:
    seen = _Seen(moved=set())
    seen.apply(JOINT)
    seen.apply(LEFT)
    assert not seen.check.early
    assert seen.check.compared == {COMPARED: 1}


@pytest.mark.parametrize(
    "how", [{"term": TERM - 1}, {"is_leader": False}, {"skipped": 1}, {"node": 2}]
)
def test_change_that_another_leader_may_have_ended_is_no_alarm(how: dict[str, Any]) -> None:
    seen = _Seen(moved={LEAVER})
    seen.apply(JOINT)
    seen.apply(LEFT, **how)
    assert not seen.check.early
    assert not seen.check.compared


def test_node_that_stays_and_a_replica_that_gets_another_id_are_no_alarm() -> None:
    seen = _Seen(moved={LEAVER}, is_leaving=False)
    seen.apply(JOINT)
    seen.apply(LEFT)
    seen = _Seen(moved={LEAVER})
    seen.apply(JOINT)
    seen.apply(ConfState(voters=(1, 2, member_id(LEAVER, 0, 1))))
    assert not seen.check.early
