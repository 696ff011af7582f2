"""Rolling upgrades: nodes with older and newer software in one cluster."""

import pytest
import trio

from raftmq.chaos.sim.cluster import CLUSTER
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.levels import FIRST_LEVEL, LEVEL, VERSIONS
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, bodies, in_cluster

OLD = VERSIONS[FIRST_LEVEL]
SECONDS = 10.0
"""Long enough for a level to rise, if it may."""


def age(cluster: Cluster, number: int) -> None:
    """Have a node that runs stop at what software of the first level cannot read."""
    for group in cluster.nodes[number].groups.values():
        is_data = isinstance(group.machine, PartitionMachine)
        group.machine.record_version = OLD.data if is_data else OLD.catalog


async def start_old(cluster: Cluster, number: int) -> None:
    """Start a node with software that knows the first level alone."""
    cluster.level_max[number] = FIRST_LEVEL
    await cluster.start(number)
    if number in cluster.nodes:
        age(cluster, number)


async def found_old(cluster: Cluster) -> None:
    """Found a cluster of such nodes."""
    for peer in cluster.peers:
        cluster.level_max[peer.id] = FIRST_LEVEL
    await cluster.found("orders", 3)
    for number in cluster.nodes:
        age(cluster, number)


async def restart(cluster: Cluster, number: int) -> None:
    """Start a node again, with the newest software."""
    cluster.level_max.pop(number, None)
    await cluster.stop(number)
    await cluster.start(number)


def levels(cluster: Cluster) -> list[int]:
    return [cluster.nodes[number].catalog.level for number in sorted(cluster.nodes)]


def written(cluster: Cluster) -> set[int]:
    """The versions that leaders write into records of the catalog."""
    return {node.groups[SYSTEM_GROUP].record_version for node in cluster.nodes.values()}


def test_a_new_cluster_rises_to_the_level_of_its_software() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        await cluster.wait_until(lambda: levels(cluster) == [LEVEL] * 3)
        assert written(cluster) == {VERSIONS[LEVEL].catalog}

    in_cluster(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_a_cluster_is_upgraded_node_by_node_while_it_serves(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await found_old(cluster)
        sent = 0

        async def use() -> None:
            nonlocal sent
            async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
                await client.admin("create_topic", f"made-{sent}", 1)
            await cluster.wait_until(lambda: cluster.leader_of(QUEUE) != 0)
            async with cluster.client(cluster.leader_of(QUEUE)) as client:
                await client.produce(QUEUE, [b"%d" % sent], sent)
            sent += 1

        await use()
        order = [1, 2, 3]
        cluster.random.shuffle(order)
        for number in order[:2]:
            await restart(cluster, number)
            await cluster.wait_until(lambda: cluster.leader(SYSTEM_GROUP) != 0)
            await use()
            await trio.sleep(SECONDS)
            # The node that is left reads all that the others write.
            assert levels(cluster) == [FIRST_LEVEL] * 3
            assert written(cluster) == {OLD.catalog}
            assert not cluster.stopped
        await restart(cluster, order[2])
        await cluster.wait_until(lambda: levels(cluster) == [LEVEL] * 3)
        await use()
        assert await bodies(cluster, QUEUE) == [b"%d" % number for number in range(sent)]
        await cluster.wait_until(
            lambda: len({node.catalog.digest for node in cluster.nodes.values()}) == 1
        )

    in_cluster(scenario, seed=seed)


def test_a_leader_whose_command_got_lost_goes_back_to_what_all_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found_old(cluster)
        leader = cluster.leader(SYSTEM_GROUP)
        # As if its command for a higher level had been lost with its office.
        cluster.nodes[leader].groups[SYSTEM_GROUP].record_version = VERSIONS[LEVEL].catalog
        await trio.sleep(SECONDS)
        assert written(cluster) == {OLD.catalog}
        assert not cluster.stopped

    in_cluster(scenario)


def test_the_level_waits_for_a_node_that_is_down() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found_old(cluster)
        for number in (1, 2):
            await restart(cluster, number)
        # It may come back with the software that it had.
        await cluster.stop(3)
        await trio.sleep(SECONDS)
        assert levels(cluster) == [FIRST_LEVEL] * 2
        await start_old(cluster, 3)
        await trio.sleep(SECONDS)
        assert levels(cluster) == [FIRST_LEVEL] * 3

    in_cluster(scenario)


def test_a_node_that_is_taken_back_after_the_upgrade_stops_and_the_others_go_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 3)
        await cluster.wait_until(lambda: levels(cluster) == [LEVEL] * 3)
        await cluster.stop(3)
        await start_old(cluster, 3)
        async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
            await client.admin("create_topic", "later", 1)
        await cluster.wait_until(lambda: 3 in cluster.stopped)
        stopped = str(cluster.stopped.pop(3))
        assert "this software knows up to 5: upgrade this node" in stopped
        async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
            await client.admin("create_topic", "still-served", 1)

    in_cluster(scenario)


def test_a_bound_on_the_level_holds_the_cluster_and_does_nothing_once_it_has_risen() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.level_max[2] = FIRST_LEVEL
        await cluster.found("orders", 3)
        await trio.sleep(SECONDS)
        assert levels(cluster) == [FIRST_LEVEL] * 3
        await restart(cluster, 2)
        await cluster.wait_until(lambda: levels(cluster) == [LEVEL] * 3)
        cluster.level_max[2] = FIRST_LEVEL
        await cluster.stop(2)
        await cluster.start(2)
        await trio.sleep(SECONDS)
        assert levels(cluster) == [LEVEL] * 3
        assert all(link.is_connected for link in cluster.nodes[2].links.all())
        # Nor does it keep out a node whose catalog is blank.
        await cluster.stop(2)
        cluster.wipe(2)
        await cluster.start(2)
        await cluster.wait_until(lambda: levels(cluster) == [LEVEL] * 3)

    in_cluster(scenario)


def test_a_node_with_older_software_is_refused_with_the_reason() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        await cluster.wait_until(lambda: levels(cluster) == [LEVEL] * 3)
        for level in (0, FIRST_LEVEL):
            hello = Hello(PROTOCOL, CLUSTER, 9, "folder", "raftmq 0.0", "node9", 7400, level=level)
            async with cluster.connection(1) as client:
                said = b"".join(encode_frame(FrameKind.HELLO, 0, pack(hello)))
                reply = await client.last_words(said)
            assert reply.code == "old_software"
            assert reply.message == (
                f"the cluster is at feature level {LEVEL}, and raftmq 0.0 at node 9 knows levels "
                "up to 1: upgrade that node"
            )

    in_cluster(scenario)


def test_a_drain_is_refused_until_all_nodes_know_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found_old(cluster)
        for number in (1, 2):
            await restart(cluster, number)
        if cluster.leader(SYSTEM_GROUP) == 3:
            cluster.nodes[3].groups[SYSTEM_GROUP].transfer(1)
        await trio.sleep(SECONDS)
        assert cluster.leader(SYSTEM_GROUP) in (1, 2)
        async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
            with pytest.raises(Refused) as caught:
                await client.admin("drain_node", 1, True)
        assert caught.value.reply.code == "old_software"
        assert caught.value.reply.message == (
            "draining needs feature level 2, and the cluster is at 1: node 3 has older software or "
            "`node.level_max`, or is not connected"
        )
        assert not cluster.stopped

    in_cluster(scenario)


def test_a_client_cannot_raise_the_level() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found_old(cluster)
        async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
            with pytest.raises(Refused, match="only nodes may ask this"):
                await client.admin("raise_level", LEVEL)
        assert levels(cluster) == [FIRST_LEVEL] * 3

    in_cluster(scenario)
