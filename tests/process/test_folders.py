"""A data folder belongs to one process, one node and one cluster; any other gets an error."""

import subprocess
import sys

import pytest

import raftmq
from raftmq.testing import Cluster, cluster

pytestmark = [pytest.mark.process, pytest.mark.anyio]


def serve(nodes: Cluster, node: int, *overrides: str) -> tuple[int, str]:
    """Run `raftmq serve` with a node's settings and some others: exit status and stderr."""
    sets = [word for override in overrides for word in ("--set", override)]
    done = subprocess.run(
        [sys.executable, "-m", "raftmq", "serve", "-c", str(nodes.config(node)), *sets],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


async def test_second_process_on_a_folder_ends_with_1_and_harms_nothing() -> None:
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic("t", queues=3)
        async with mq.producer("t") as producer:
            await producer.send(b"before", queue=0)
            for node in nodes.nodes:
                status, words = serve(nodes, node, "node.port=19999")
                assert status == 1
                assert "Traceback" not in words
                assert f"{nodes.data(node)} is in use by process {nodes.pid(node)}" in words
            assert (await producer.send(b"after", queue=0)).offset == 1
        assert all(map(nodes.is_running, nodes.nodes))


async def test_second_process_on_a_port_ends_with_1_and_says_so() -> None:
    async with cluster(1) as nodes:
        status, words = serve(nodes, 1, f"node.data={nodes.folder / 'elsewhere'}")
        assert status == 1
        assert "Traceback" not in words
        assert f"CannotListen: {nodes.address(1)}: another process has this port: stop it" in words


async def test_folder_of_another_node_or_cluster_is_refused_and_left_alone() -> None:
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic("t", queues=3)
        async with mq.producer("t") as producer:
            await producer.send(b"before", queue=0)
        nodes.kill(1)
        nodes.kill(2)
        before = contents(nodes, 2)
        status, words = serve(nodes, 1, f"node.data={nodes.data(2)}")
        assert status == 1
        assert "Traceback" not in words
        assert "node 2" in words
        status, words = serve(nodes, 2, "node.cluster=another")
        assert status == 1
        assert "Traceback" not in words
        assert "another" in words
        assert contents(nodes, 2) == before
        nodes.start(1)
        nodes.start(2)
        await nodes.wait_ready()
        async with mq.producer("t") as producer:
            assert (await producer.send(b"after", queue=0)).offset == 1


def contents(nodes: Cluster, node: int) -> dict[str, bytes]:
    """Every file of a data folder, except the one that names its last locker."""
    folder = nodes.data(node)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }
