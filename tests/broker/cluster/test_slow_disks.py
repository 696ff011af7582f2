"""Whole brokers whose disks are slow: the groups of a node that died find other leaders."""

import pytest
import trio

from raftmq.chaos.world import simulated
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster


@pytest.mark.parametrize("disk_seconds", [0.3, 0.5])
def test_groups_of_a_killed_leader_are_led_again_on_slow_disks(disk_seconds: float) -> None:
    """Its port refuses each attempt to connect, and at each of them the others want to campaign."""

    async def job(cluster: Cluster) -> None:
        await cluster.found("orders", 4)
        await trio.sleep(5)
        dead = cluster.leader(0)
        for node in (1, 2, 3):
            cluster._machine(node).slowness = disk_seconds / simulated.DISK_SECONDS
        await trio.sleep(10)
        cluster.kill(dead)
        nodes = list(cluster.nodes.values())
        assert len(nodes) == 2

        def are_led() -> bool:
            return all(
                len({node.groups[group].leader for node in nodes}) == 1
                and any(node.groups[group].is_leader for node in nodes)
                for group in nodes[0].groups
            )

        with trio.fail_after(60):
            while not are_led():
                await trio.sleep(0.1)

    in_cluster(job)
