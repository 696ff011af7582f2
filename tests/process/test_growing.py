"""Real processes grow, shrink and are evened out under load; nothing acked is lost."""

import sys

import anyio
import pytest

import raftmq
from raftmq.testing import Cluster, cluster
from tests.cli.command_line import process

from .load import running, wait_agreed

pytestmark = [pytest.mark.process, pytest.mark.anyio]

SECONDS_MAX = 60.0


async def wait_gone(mq: raftmq.Client, node: int) -> None:
    """Wait until a node is no member, and no group counts on it."""
    with anyio.fail_after(SECONDS_MAX):
        while True:
            view = await mq.admin.cluster()
            counted = {n for group in view.groups for n in (*group.voters, *group.learners)}
            if node not in counted and all(known.id != node for known in view.nodes):
                return
            await anyio.sleep(0.2)


async def wait_idle(nodes: Cluster, node: int) -> None:
    """Wait until a node leads nothing."""
    with anyio.fail_after(SECONDS_MAX):
        while (status := await nodes.status(node)) is None or status["leads"]:
            await anyio.sleep(0.1)


async def add(nodes: Cluster, mq: raftmq.Client, node: int) -> None:
    nodes.add(node)
    nodes.start(node)
    await mq.admin.add_node(node, "127.0.0.1", nodes.public_port(node))
    await nodes.wait_serving(node)


async def balance(nodes: Cluster) -> str:
    """`raftmq cluster balance --execute`; what it said."""
    words = ["cluster", "balance", "--execute", "--url", nodes.url]
    ended = await anyio.to_thread.run_sync(process, words)
    assert ended.code == 0, ended.stderr
    return ended.stderr


async def test_five_nodes_become_seven_of_which_one_was_lost() -> None:
    async with cluster(5) as nodes, running(nodes) as load, raftmq.connect(nodes.url) as mq:
        await mq.admin.drain_node(5)
        await wait_idle(nodes, 5)
        await load.wait_acked(500)
        await mq.admin.drain_node(5, is_on=False)
        nodes.kill(2)
        await load.wait_acked(500)
        nodes.add(6)
        nodes.start(6)
        await mq.admin.replace_node(2, 6, "127.0.0.1", nodes.public_port(6))
        await wait_gone(mq, 2)
        for node in (7, 8):
            await add(nodes, mq, node)
        await balance(nodes)
        await load.wait_acked(500)
        words = ["cluster", "drain", "3", "--move", "--url", nodes.url]
        ended = await anyio.to_thread.run_sync(process, words)
        assert ended.code == 0, ended.stderr
        status = await nodes.status(3)
        assert status is not None
        assert [group["group"] for group in status["groups"] if group["role"] == "leader"] == []
        view = await mq.admin.cluster()
        system = next(group for group in view.groups if group.id == 0)
        assert (sorted(system.voters), sorted(system.learners)) == ([1, 3, 4, 5, 6], [7, 8])
        carried = {node for group in view.groups if group.id for node in group.wanted}
        assert {7, 8} <= carried
        assert 3 not in carried
        assert load.errors == []
        load.stop()


async def test_a_topic_grows_onto_groups_that_are_added() -> None:
    async with cluster(3) as nodes, running(nodes) as load, raftmq.connect(nodes.url) as mq:
        for node in (4, 5):
            await add(nodes, mq, node)
        words = ["cluster", "add-groups", "2", "--url", nodes.url]
        shown = await anyio.to_thread.run_sync(process, words)
        assert shown.code == 0, shown.stderr
        assert len((await mq.admin.cluster()).groups) == 4
        ended = await anyio.to_thread.run_sync(process, [*words, "--execute"])
        assert ended.code == 0, ended.stderr
        assert "groups 4, 5 founded" in ended.stderr
        view = await mq.admin.cluster()
        assert [group.id for group in view.groups] == [0, 1, 2, 3, 4, 5]
        assert [len(group.wanted) for group in view.groups if group.id] == [3] * 5
        await mq.admin.create_topic("grown", 3)
        before = (await mq.admin.describe_topic("grown")).queues
        await mq.admin.alter_topic("grown", 5)
        after = (await mq.admin.describe_topic("grown")).queues
        assert [queue.partition_group for queue in after[:3]] == [
            queue.partition_group for queue in before
        ]
        assert {queue.partition_group for queue in after} == {1, 2, 3, 4, 5}
        async with mq.producer("grown") as producer:
            sent = await producer.send_many([b"%d" % number for number in range(100)])
        assert len(sent) == 100
        assert load.errors == []
        load.stop()


async def test_a_node_that_dies_is_replaced_by_the_others() -> None:
    settings = {"balance": {"absent_ms": 3000, "leaders_ms": 2000}}
    async with cluster(5, settings=settings) as nodes, running(nodes) as load:
        await load.wait_acked(500)
        nodes.kill(2)
        async with raftmq.connect(nodes.url) as mq:
            with anyio.fail_after(SECONDS_MAX):
                while True:
                    view = await mq.admin.cluster()
                    data = [group for group in view.groups if group.id]
                    if all(len(g.voters) == 3 and 2 not in g.voters for g in data):
                        break
                    await anyio.sleep(0.2)
            assert [node.id for node in view.nodes if node.is_absent] == [2]
            # The operator may even out the others meanwhile.
            await balance(nodes)
            nodes.start(2)
            await nodes.wait_serving(2)
            with anyio.fail_after(SECONDS_MAX):
                while any(node.is_absent for node in (await mq.admin.cluster()).nodes):
                    await anyio.sleep(0.2)
            await balance(nodes)
            view = await mq.admin.cluster()
            assert 2 in {node for group in view.groups if group.id for node in group.wanted}
        assert load.errors == []
        load.stop()


async def test_balance_that_is_killed_is_taken_up_by_the_next() -> None:
    async with cluster(4) as nodes, running(nodes) as load, raftmq.connect(nodes.url) as mq:
        view = await mq.admin.cluster()
        for group in view.groups:
            if group.id:
                await mq.admin.move_group(group.id, [1, 2, 3], before=group.wanted)
        await load.wait_acked(1000)
        words = ["cluster", "balance", "--execute", "--moves", "1", "--url", nodes.url]
        with anyio.move_on_after(2.0):
            await anyio.run_process([sys.executable, "-m", "raftmq", *words], check=False)
        await load.wait_acked(500)
        await balance(nodes)
        said = await balance(nodes)
        view = await mq.admin.cluster()
        leads = sorted(group.wanted[0] for group in view.groups if group.id)
        assert len(set(leads)) == len(leads), said
        assert {4} <= {node for group in view.groups if group.id for node in group.wanted}
        assert load.errors == []
        load.stop()
        await wait_agreed(nodes)
