"""The routing table: any node's copy, and the latest one of the system group's leader."""

import trio

from raftmq.wire.messages import ClusterView, FrameKind, Metadata
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.scenario import in_cluster


async def latest(client: RawClient) -> list[str] | str:
    """The topics that the node is sure of, or the code of its refusal."""
    try:
        view = await client.ask(FrameKind.METADATA, Metadata(is_latest=True), ClusterView)
    except Refused as refused:
        return refused.reply.code
    return [topic.name for topic in view.topics]


def test_latest_table_is_told_by_the_leader_of_the_system_group_only() -> None:
    async def scenario(cluster: Cluster) -> dict[int, list[str] | str]:
        await cluster.found("t", 1)
        told = {}
        for number in (1, 2, 3):
            async with cluster.client(number) as client:
                told[number] = await latest(client)
        leader = cluster.leader(0)
        return {number - leader: answer for number, answer in told.items()}

    told = in_cluster(scenario)
    assert told.pop(0) == ["t"]
    assert list(told.values()) == ["not_leader"] * 2


def test_restarted_cluster_never_tells_a_latest_table_without_a_topic_it_has() -> None:
    async def scenario(cluster: Cluster) -> tuple[list[list[str]], set[str]]:
        await cluster.found("t", 1)
        for number in (1, 2, 3):
            cluster.kill(number, power=True)
        await cluster.start()
        any_table: list[list[str]] = []
        latest_table: set[str] = set()
        async with cluster.client(1) as one, cluster.client(2) as two, cluster.client(3) as three:
            with trio.fail_after(60):
                while "['t']" not in latest_table:
                    for client in (one, two, three):
                        any_table.append([topic.name for topic in (await client.view()).topics])
                        latest_table.add(str(await latest(client)))
                    await trio.sleep(0.01)
        return any_table, latest_table

    any_table, latest_table = in_cluster(scenario)
    # The difference: a table that was read without asking the other nodes may lack the topic.
    assert [] in any_table
    assert latest_table <= {"['t']", "not_leader", "unavailable"}


def test_leader_that_was_cut_off_tells_no_latest_table() -> None:
    async def scenario(cluster: Cluster) -> list[str] | str:
        await cluster.found("t", 1)
        leader = cluster.leader(0)
        for number in {1, 2, 3} - {leader}:
            cluster.kill(number)
        async with cluster.client(leader) as client:
            with trio.fail_after(60):
                return await latest(client)

    assert in_cluster(scenario) in ("not_leader", "unavailable")
