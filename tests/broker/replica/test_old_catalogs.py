"""The leader of a group has an older catalog than others: it changes no members until it has asked.

In all cases node 5 leads the system group, and node 1 does not hear it for a while.
"""

import trio

from tests.broker.cluster.test_reconfiguration import log_files
from tests.broker.harness import Cluster
from tests.broker.replica.test_removed_learners import place
from tests.broker.scenario import QUEUE, in_cluster


async def lead(cluster: Cluster, group: int, node: int) -> None:
    """Have a node lead a group."""
    with trio.fail_after(60):
        while cluster.leader(group) != node:
            if leader := cluster.leader(group):
                led = cluster.nodes[leader].groups[group]
                led.transfer(led.voter_of(node))
            await trio.sleep(0.5)


async def begin(cluster: Cluster) -> int:
    """Group 1 has nodes 1, 2 and 3, and five messages; node 1 is cut off from node 5. Returns a
    queue of the group."""
    await cluster.found("t", 3)
    await lead(cluster, 0, 5)
    await place(cluster, 2, 1, 3)
    # No other group waits until node 1 gives node 3 up.
    for group in (2, 3):
        await place(cluster, 2, 4, 5, group=group)
    await cluster.wait_until(lambda: cluster.members(2) == cluster.members(3) == {2, 4, 5})
    await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3} and cluster.leader(1) == 2)
    await trio.sleep(2)
    catalog = cluster.nodes[2].catalog
    queue = next(q for q in range(QUEUE, QUEUE + 3) if catalog.group_of(q) == 1)
    async with cluster.client(2) as client:
        for number in range(5):
            await client.produce(queue, [b"%d" % number], number)
    for pair in (("node1", "node5"), ("node5", "node1")):
        cluster.network.block(*pair)
    return queue


def mend(cluster: Cluster) -> None:
    for pair in (("node1", "node5"), ("node5", "node1")):
        cluster.network.unblock(*pair)


async def holds_all(cluster: Cluster, queue: int) -> bool:
    await cluster.wait_led(1)
    async with cluster.client(cluster.leader(1)) as client:
        read = await client.read(queue, 0)
    return [body for _, batch in read for body in batch.bodies] == [b"%d" % n for n in range(5)]


def test_member_that_moved_away_is_not_taken_in_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = await begin(cluster)
        await place(cluster, 2, 1, 4)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 4})
        await lead(cluster, 1, 1)
        await trio.sleep(5)
        assert cluster.nodes[1].catalog.groups[1].members == [2, 1, 3]
        assert cluster.members(1) == {1, 2, 4}
        mend(cluster)
        await cluster.wait_until(lambda: log_files(cluster, 3, 1) == [])
        assert cluster.members(1) == {1, 2, 4}
        assert await holds_all(cluster, queue)

    in_cluster(scenario, size=5)


def test_new_self_of_a_node_is_not_taken_for_the_former_one() -> None:
    """The group moves away from node 3 and back; the leader knows of neither."""

    async def scenario(cluster: Cluster) -> None:
        queue = await begin(cluster)
        await place(cluster, 2, 1, 4)
        await cluster.wait_until(lambda: log_files(cluster, 3, 1) == [] and 4 in cluster.members(1))
        await place(cluster, 2, 1, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await trio.sleep(5)
        await lead(cluster, 1, 1)
        # One failure of three voters: the others must serve on.
        cluster.kill(2, power=True)
        await trio.sleep(15)
        mend(cluster)
        await trio.sleep(5)
        assert await holds_all(cluster, queue)

    in_cluster(scenario, size=5)


def test_node_that_left_the_cluster_is_not_made_a_voter_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = await begin(cluster)
        await cluster.change("remove", 3)
        await cluster.wait_until(lambda: 3 not in cluster.nodes[5].catalog.nodes, 300)
        await lead(cluster, 1, 1)
        await trio.sleep(3)
        assert 3 not in cluster.members(1)
        await cluster.stop(3)
        cluster.kill(2, power=True)
        await trio.sleep(1)
        mend(cluster)
        assert await holds_all(cluster, queue)

    in_cluster(scenario, size=5)
