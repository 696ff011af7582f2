"""A leaving node counts as unused only when no data group counts on it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from raftmq.broker.replica.group import Group
from raftmq.chaos.sim.checks.leaving import COMPARED, Leaving
from raftmq.chaos.sim.cluster import Cluster
from raftmq.consensus import ConfState
from raftmq.log.record import Kind, Record
from raftmq.machine.catalog.replicas import member_id

LEAVER, NUMBER, TERM = 3, 7, 4
JOINT = ConfState(voters=(1, 2, 4), voters_outgoing=(1, 2, LEAVER), auto_leave=True)
LEFT = ConfState(voters=(1, 2, 4))


class _Seen:
    """A leader of a data group beside a leader of the system group, and the check."""

    def __init__(self, *, moved: set[int], is_leaving: bool = True) -> None:
        listed = {LEAVER: SimpleNamespace(is_leaving=is_leaving)}
        leader_tasks = SimpleNamespace(has_moved=lambda node: node in moved)
        system = SimpleNamespace(leader_tasks=leader_tasks, catalog=SimpleNamespace(nodes=listed))
        cluster: Any = SimpleNamespace(observers=[], leader=lambda _: 5, nodes={5: system})
        self.check = Leaving(cast("Cluster", cluster))
        self._index = 0

    def note_catalog(self, version: int, members: list[int], *, replica: int = 0) -> None:
        """A newer catalog wants the group on these nodes; `replica`: of node 3."""
        group = SimpleNamespace(members=members, replicas={LEAVER: replica})
        nodes = {node: SimpleNamespace(generation=0) for node in (1, 2, 3, 4)}
        catalog: Any = SimpleNamespace(version=version, groups={NUMBER: group}, nodes=nodes)
        self.check._note_catalog(catalog)

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


def astray(after: ConfState, *, seconds: float, replica: int = 0) -> list[str]:
    """Alarms if a leader makes voters 1, 2, 3 to `after`, some time after the catalog has come to
    want node 4 in place of node 3, or with `replica` node 3 under another id."""

    async def run() -> list[str]:
        seen = _Seen(moved=set())
        seen.apply(ConfState(voters=(1, 2, 3)))
        for version, members in ((1, [1, 2, 3]), (2, [1, 2, 3 if replica else 4])):
            seen.note_catalog(version, members, replica=replica * (version - 1))
        await trio.sleep(seconds)
        seen.apply(after)
        return seen.check.astray

    return trio.run(run, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_member_that_the_catalog_wants_may_come(seconds: float) -> None:
    assert not astray(ConfState(voters=(1, 2, 3), learners=(4,)), seconds=seconds)
    assert not astray(ConfState(voters=(1, 2, 4), voters_outgoing=(1, 2, 3)), seconds=seconds)


def test_member_that_no_catalog_wants_is_found() -> None:
    (text,) = astray(ConfState(voters=(1, 2, 3), learners=(5,)), seconds=0.0)
    assert text.startswith(f"node 1, which leads group {NUMBER}, took in [5]")


def test_voter_of_a_wanted_node_goes_only_for_its_next_self() -> None:
    gone = ConfState(voters=(1, 2), voters_outgoing=(1, 2, 3))
    assert "dropped the voters [3]" in astray(gone, seconds=0.0, replica=1)[0]
    swapped = ConfState(voters=(1, 2, member_id(3, 0, 1)), voters_outgoing=(1, 2, 3))
    assert not astray(swapped, seconds=0.0, replica=1)
    assert not astray(gone, seconds=30.0), "node 3 is wanted no more"


@pytest.mark.parametrize(("seconds", "alarms"), [(5.0, 0), (30.0, 1)])
def test_change_by_a_catalog_of_long_ago_is_found(seconds: float, alarms: int) -> None:
    """A leader that still wants node 3 takes it in under the id of before."""

    async def run() -> list[str]:
        seen = _Seen(moved=set())
        seen.apply(ConfState(voters=(1, 2, 4)))
        for version, members in ((1, [1, 2, 3]), (2, [1, 2, 4])):
            seen.note_catalog(version, members)
        await trio.sleep(seconds)
        seen.apply(ConfState(voters=(1, 2, 4), learners=(3,)))
        return seen.check.astray

    assert len(trio.run(run, clock=MockClock(autojump_threshold=0))) == alarms
