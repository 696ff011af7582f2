"""The log of a voter is lost, and its node wanted as another member, while others are to leave."""

import pytest
import trio

from raftmq.broker.settings import Log
from tests.broker.cluster.test_reconfiguration import check_everywhere, produce_everywhere
from tests.broker.harness import Cluster
from tests.broker.replica.test_old_catalogs import lead
from tests.broker.replica.test_removed_learners import place
from tests.broker.replica.test_replicas import lose
from tests.broker.replica.test_space import RESERVE, shrink
from tests.broker.scenario import in_cluster


async def used_up(cluster: Cluster, group: int) -> None:
    """The catalog's leader knows that node 3's log of the group is lost."""

    def is_known() -> bool:
        leader = cluster.nodes.get(cluster.leader(0))
        return leader is not None and leader.catalog.groups[group].replicas.get(3) == 1

    await cluster.wait_until(is_known)


@pytest.mark.parametrize("pause", ["none", "leaderless"])
def test_voter_whose_log_is_lost_does_not_stand_for_its_node(pause: str) -> None:
    """Else the other voter would be removed, and the lost one be needed for a majority."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        await trio.sleep(6)
        if pause == "leaderless":
            cluster.kill(2)
        cluster.kill(3)
        lose(cluster.files[3], 1, how="empty")
        await cluster.start(3)
        await used_up(cluster, 1)
        await cluster.change("remove", 2)
        if pause == "leaderless":
            await trio.sleep(30)
            await cluster.start(2)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 3}, 300)
        await cluster.wait_until(lambda: 2 not in cluster.nodes[1].catalog.nodes, 300)
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


def test_lost_log_of_the_catalog_is_replaced_before_another_node_leaves() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await lead(cluster, 0, 1)
        for group in (1, 2, 3):
            await place(cluster, 1, group=group)
        await cluster.wait_until(lambda: all(cluster.members(g) == {1} for g in (1, 2, 3)))
        await trio.sleep(20)
        cluster.kill(3)
        lose(cluster.files[3], 0, how="empty")
        cluster.start_soon(3)
        await used_up(cluster, 0)
        await cluster.change("remove", 2)
        await cluster.wait_until(lambda: 2 not in cluster.nodes[1].catalog.nodes, 300)
        await trio.sleep(30)
        assert cluster.members(0) == {1, 3}
        await cluster.wait_led(0)

    in_cluster(scenario)


def test_voter_is_not_removed_while_it_is_needed_for_a_majority() -> None:
    """Node 3 is down; node 2 leaves when node 3 is back."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        cluster.kill(3)
        await trio.sleep(30)
        await cluster.change("remove", 2)
        await trio.sleep(30)
        await cluster.wait_led(1)
        assert cluster.members(1) == {1, 2, 3}
        await check_everywhere(cluster, 5)
        await cluster.start(3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 3}, 300)
        await cluster.wait_until(lambda: 2 not in cluster.nodes[1].catalog.nodes, 300)

    in_cluster(scenario)


def test_leaving_node_that_lost_the_catalog_gets_it_again() -> None:
    """Without it the node would lead group 1 for ever: who takes the group over it hears there."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await lead(cluster, 0, 5)
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await trio.sleep(20)
        cluster.kill(4)
        await place(cluster, 1, 2, 4)
        await cluster.change("remove", 3)
        await trio.sleep(5)
        cluster.kill(3)
        lose(cluster.files[3], 0, how="empty")
        await cluster.start(3)
        await cluster.wait_until(lambda: bool(cluster.nodes[3].catalog.nodes))
        await cluster.start(4)
        await cluster.wait_until(lambda: 3 not in cluster.nodes[5].catalog.nodes, 600)

    in_cluster(scenario, size=5)


def test_leader_with_a_full_disk_hands_over_though_a_change_waits_for_the_catalog() -> None:
    """Node 1 is cut off from node 5, which leads the system group, and from no other node."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await lead(cluster, 0, 5)
        for group in (2, 3):
            await place(cluster, 4, 5, 2, group=group)
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await cluster.wait_until(lambda: cluster.leader(1) == 1)
        await trio.sleep(8)
        cluster.network.block("node1", "node5")
        await place(cluster, 1, 2)
        await trio.sleep(0.02)
        assert cluster.nodes[1].catalog.groups[1].members == [1, 2]
        cluster.network.block("node5", "node1")
        await trio.sleep(5)
        shrink(cluster, 1, left=RESERVE - 1)
        await cluster.wait_until(lambda: cluster.leader(1) in (2, 3), 30)

    in_cluster(
        scenario, size=5, log=Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=RESERVE)
    )
