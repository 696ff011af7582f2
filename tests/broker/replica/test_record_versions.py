"""Records carry the version of the cluster's level: software that does not know it stops there."""

from collections.abc import Iterable

from raftmq.broker.replica.group import Group
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, bodies, in_cluster

NUMBER = 1


def _upgrade(groups: Iterable[Group]) -> None:
    """Have nodes write a version that this software does not know."""
    for group in groups:
        group.machine.record_version += 1
        group.record_version = group.machine.record_version


def test_older_machine_stops_at_a_record_of_a_newer_one_and_applies_nothing_of_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        leader = cluster.leader_of(QUEUE)
        old, other = (number for number in sorted(cluster.nodes) if number != leader)
        async with cluster.client(leader) as client:
            await client.produce(QUEUE, [b"read by both"], 0)
            await cluster.wait_until(
                lambda: (
                    len({node.groups[NUMBER].machine.digest for node in cluster.nodes.values()})
                    == 1
                )
            )
            stale = cluster.nodes[old].groups[NUMBER].machine
            before, state = stale.applied, stale.snapshot()
            _upgrade(cluster.nodes[number].groups[NUMBER] for number in (leader, other))
            await client.produce(QUEUE, [b"newer"], 1)
            await cluster.wait_until(lambda: old in cluster.stopped)
        stopped = str(cluster.stopped.pop(old))
        assert "UnsupportedVersion" in stopped
        assert "has version 4, this software knows up to 3: upgrade this node" in stopped
        assert (stale.applied, stale.snapshot()) == (before, state)
        # It stops again as long as it is not upgraded; the others go on.
        await cluster.start(old)
        await cluster.wait_until(lambda: old in cluster.stopped)
        assert "UnsupportedVersion" in str(cluster.stopped.pop(old))
        assert await bodies(cluster, QUEUE) == [b"read by both", b"newer"]

    in_cluster(scenario)


def test_older_catalog_stops_at_a_change_of_a_newer_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        leader = cluster.leader(SYSTEM_GROUP)
        old, other = (number for number in sorted(cluster.nodes) if number != leader)
        catalog = cluster.nodes[old].catalog
        _upgrade(cluster.nodes[number].groups[SYSTEM_GROUP] for number in (leader, other))
        async with cluster.client(leader) as client:
            await client.admin("create_topic", "newer", 1)
        await cluster.wait_until(lambda: old in cluster.stopped)
        assert "UnsupportedVersion" in str(cluster.stopped.pop(old))
        assert "newer" not in catalog.topics

    in_cluster(scenario)
