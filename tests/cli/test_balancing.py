"""A run of `raftmq cluster balance` on a cluster of plain values."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from raftmq.broker.placement.balance import GroupLoad, Move, NodeRoom, vacate
from raftmq.cli.cluster import balancing
from raftmq.cli.cluster.balancing import _even, _look, _Run
from raftmq.cli.exits import Failure
from raftmq.cli.output import Meter
from raftmq.errors import Reason, Rejected
from raftmq.wire.messages import ClusterView, GroupView, NodeView

MIB = 1 << 20


class FakeCluster:
    """Four nodes with groups that are all on nodes 1 to 3, and the calls that a run makes."""

    def __init__(self, groups: int = 8) -> None:
        self.admin = self
        self.level = 2
        self.wanted = {group: [1, 2, 3] for group in range(1, groups + 1)}
        self.voters = {group: [1, 2, 3] for group in self.wanted}
        self.leader = dict.fromkeys(self.wanted, 1)
        self.silent: set[int] = set()
        self.most_under_way = 0
        self.looks = 0
        self.stolen: list[int] = []
        """Groups that another operator moves just before this one does."""

    async def move_group(self, group: int, members: list[int], *, before: list[int]) -> None:
        if group in self.stolen:
            self.stolen.remove(group)
            self.wanted[group] = [3, 2, 1]
        if self.wanted[group] != before:
            raise Rejected(Reason.BAD_ARGUMENT, "others by now")
        self.wanted[group] = list(members)
        self.most_under_way = max(self.most_under_way, len(self.under_way))

    @property
    def under_way(self) -> list[int]:
        return [g for g in self.wanted if set(self.wanted[g]) != set(self.voters[g])]

    def pass_time(self) -> None:
        """One group arrives; leaders change."""
        self.looks += 1
        for group in self.under_way[:1]:
            self.voters[group] = list(self.wanted[group])
        for group in self.wanted.keys() - set(self.under_way):
            self.leader[group] = self.wanted[group][0]

    async def ask_nodes(self, _: object) -> tuple[ClusterView, dict[int, dict[str, Any] | str]]:
        self.pass_time()
        nodes = [NodeView(node, f"node{node}", 7400) for node in (1, 2, 3, 4)]
        views = [
            GroupView(group, self.leader[group], 1, self.voters[group], [], wanted=wanted)
            for group, wanted in self.wanted.items()
        ]
        told: dict[int, dict[str, Any] | str] = {node: self.status(node) for node in (1, 2, 3, 4)}
        return ClusterView("c", 1, nodes, views, []), told | dict.fromkeys(self.silent, "no answer")

    def status(self, node: int) -> dict[str, Any]:
        groups: list[dict[str, Any]] = [
            {
                "group": group,
                "role": "leader" if self.leader[group] == node else "follower",
                "leader": self.leader[group],
                "term": 1,
                "voters": voters,
                "voters_outgoing": [],
                "learners": [],
                "progress": {},
                "last_index": 1,
                "log_bytes": 10 * MIB,
                "write_rate": 1000,
            }
            for group, voters in self.voters.items()
            if node in voters
        ]
        return {"cluster_level": self.level, "free_bytes": 1 << 40, "groups": groups}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr(balancing, "ask_nodes", cluster.ask_nodes)
    monkeypatch.setattr(balancing, "LOOK_SECONDS", 0.0)
    return cluster


def carry_out(cluster: FakeCluster, moves: int = 2) -> set[int]:
    async def main() -> set[int]:
        with Meter("balance", is_shown=False) as meter:
            last, changed = await _Run(cluster, _even, moves, meter).run()  # type: ignore[arg-type]
        assert last.loads.under_way == []
        return changed

    return anyio.run(main)


def carried(cluster: FakeCluster) -> list[int]:
    members: Sequence[int] = [node for wanted in cluster.wanted.values() for node in wanted]
    return [members.count(node) for node in (1, 2, 3, 4)]


@pytest.mark.parametrize("moves", [1, 3])
def test_run_evens_out_and_has_few_groups_under_way(cluster: FakeCluster, moves: int) -> None:
    changed = carry_out(cluster, moves)
    assert carried(cluster) == [6, 6, 6, 6]
    leads = list(cluster.leader.values())
    assert [leads.count(node) for node in (1, 2, 3, 4)] == [2, 2, 2, 2]
    assert cluster.most_under_way == moves
    assert len(changed) >= 6


def test_node_is_emptied_as_far_as_others_can_take_its_groups(cluster: FakeCluster) -> None:
    def plan(nodes: Sequence[NodeRoom], groups: Sequence[GroupLoad]) -> list[Move]:
        return vacate([node._replace(is_drained=node.id == 2) for node in nodes], groups, 2)

    async def main() -> None:
        with Meter("drain", is_shown=False) as meter:
            await _Run(cluster, plan, 2, meter).run()  # type: ignore[arg-type]

    anyio.run(main)
    assert carried(cluster) == [8, 0, 8, 8]


def test_second_run_has_nothing_to_do(cluster: FakeCluster) -> None:
    carry_out(cluster)
    assert carry_out(cluster) == set()


def test_run_that_was_cut_short_is_taken_up(cluster: FakeCluster) -> None:
    async def begin() -> None:
        look = await _look(cluster, _even)  # type: ignore[arg-type]
        for move in look.moves[:3]:
            await cluster.move_group(move.group, move.members, before=move.before)

    anyio.run(begin)
    assert len(cluster.under_way) == 3
    carry_out(cluster)
    assert carried(cluster) == [6, 6, 6, 6]


def test_group_that_another_operator_moves_meanwhile_is_planned_anew(cluster: FakeCluster) -> None:
    cluster.stolen = [1, 2, 3]
    carry_out(cluster)
    assert carried(cluster) == [6, 6, 6, 6]


def test_run_waits_for_a_node_that_does_not_answer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.silent = {3}
    pass_time = cluster.pass_time

    def come_back() -> None:
        pass_time()
        if cluster.looks == 20:
            cluster.silent = set()

    monkeypatch.setattr(cluster, "pass_time", come_back)
    carry_out(cluster)
    assert carried(cluster) == [6, 6, 6, 6]


def test_run_gives_up_a_node_that_stays_away(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "WAIT_SECONDS_MAX", 0.05)
    cluster.silent = {3}
    with pytest.raises(Failure, match="node 3 does not answer"):
        carry_out(cluster)


def test_cluster_with_older_software_is_not_planned_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "WAIT_SECONDS_MAX", 0.0)
    cluster.level = 1
    with pytest.raises(Failure, match="needs feature level 2"):
        carry_out(cluster)
