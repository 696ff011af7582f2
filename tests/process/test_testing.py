"""`raftmq.testing` itself: its processes end with it, and its errors say what the nodes said."""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

import raftmq
from raftmq.errors import Unavailable
from raftmq.testing import PORT_MAX, PORT_MIN, Cluster, cluster, free_ports

pytestmark = pytest.mark.process

PROGRAM = """
import sys, anyio, raftmq.testing
async def main():
    async with raftmq.testing.cluster(1) as nodes:
        print(nodes.pid(1), nodes.folder, flush=True)
        await anyio.sleep(100)
anyio.run(main)
"""


def is_gone(pid: int) -> bool:
    """True if the process has ended, reaped or not."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_cluster_runs_on_trio_and_asyncio_and_leaves_nothing_behind(backend: str) -> None:
    async def main() -> tuple[int, Path]:
        async with cluster(1) as nodes, raftmq.connect(nodes.url) as mq:
            await mq.admin.create_topic("t", queues=1)
            async with mq.producer("t") as producer:
                assert (await producer.send(b"x")).offset == 0
            assert await nodes.leader(1) == 1
            assert (await nodes.statuses())[1]["leads"] == [0, 1]
            port = int(nodes.address(1).split(":")[1])
            assert PORT_MIN <= port < PORT_MAX
            return nodes.pid(1), nodes.folder

    pid, folder = anyio.run(main, backend=backend)
    assert is_gone(pid)
    assert not folder.exists()


def test_node_outlives_the_thread_that_started_it() -> None:
    async def main() -> None:
        async with cluster(1) as nodes:
            nodes.kill(1)
            thread = threading.Thread(target=restart, args=(nodes,))
            thread.start()
            await anyio.to_thread.run_sync(thread.join)
            await anyio.sleep(0.3)
            assert nodes.exit_status(1) is None

    def restart(nodes: Cluster) -> None:
        anyio.run(nodes.restart, 1)

    anyio.run(main)


def test_folder_that_was_named_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(1, folder=tmp_path) as nodes:
            assert nodes.data(1) == tmp_path / "node-1"

    anyio.run(main)
    assert (tmp_path / "node-1" / "groups").is_dir()
    with pytest.raises(ValueError, match="holds a cluster already"):
        anyio.run(main)


def test_node_that_cannot_start_is_reported_with_its_last_words() -> None:
    async def main() -> None:
        async with cluster(1, settings={"raft": {"tick_ms": 1}}):
            pass

    with pytest.raises(Unavailable, match="tick_ms"):
        anyio.run(main)


def test_nodes_die_with_a_process_that_is_killed() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    try:
        pid_text, folder_text = program.stdout.readline().split()
        pid, folder = int(pid_text), Path(folder_text)
        assert not is_gone(pid)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    until = time.monotonic() + 10.0
    while not is_gone(pid):
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.05)
    shutil.rmtree(folder)


@pytest.mark.anyio
async def test_nodes_that_join_are_made_members_though_those_that_founded_left() -> None:
    async with cluster(1) as nodes, raftmq.connect(nodes.url) as mq:
        await join(nodes, mq, 2)
        await mq.admin.remove_node(1)
        with anyio.fail_after(30.0):
            while any(1 in group.voters for group in (await mq.admin.cluster()).groups):
                await anyio.sleep(0.1)
        nodes.kill(1)
        await join(nodes, mq, 3)


async def join(nodes: Cluster, mq: raftmq.Client, node: int) -> None:
    nodes.add(node)
    nodes.start(node)
    await mq.admin.add_node(node, "127.0.0.1", nodes.public_port(node))
    await nodes.wait_serving(node)
    with anyio.fail_after(30.0):
        while not any(node in group.voters for group in (await mq.admin.cluster()).groups):
            await anyio.sleep(0.1)


def test_processes_that_look_for_ports_at_once_do_not_meet() -> None:
    program = "from raftmq.testing import free_ports; print(*free_ports(50), *free_ports(50))"
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = [set(map(int, each.communicate()[0].split())) for each in both]
    # A process is given no port twice while there are others.
    assert [len(ports) for ports in found] == [100, 100]
    assert not found[0] & found[1]
    assert all(PORT_MIN <= port < PORT_MAX for port in found[0] | found[1])


def test_more_ports_than_there_are_is_an_error() -> None:
    with pytest.raises(Unavailable, match="fewer than 301 ports are free"):
        free_ports(301)
