"""A node in a thread: how it is reached, how it ends, and how those who wait find out."""

import os
import signal
import threading
import time
from pathlib import Path

import anyio
import pytest

from raftmq.broker.settings import NodeSettings, Peer, Settings
from raftmq.client.connecting import connect
from raftmq.errors import Unavailable
from raftmq.inprocess import ClientWorld, NodeThread, NodeWorld, Switchboard
from raftmq.log.faults import FolderLocked

ELECTION_SECONDS_MIN = 1.0
END_SECONDS_MAX = 20.0
"""A node ends in a tenth of a second; the child lives for a minute."""
URL = "raftmq://here:1"

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def node_of(folder: Path, switchboard: Switchboard) -> NodeThread:
    own = NodeSettings(
        1,
        "test",
        str(folder),
        host="here",
        port=1,
        peers=[Peer(1, "here", 1)],
        groups=1,
        replicas=1,
    )
    return NodeThread(Settings(own).validate(), NodeWorld(switchboard))


async def test_what_was_sent_is_there_after_a_kill(tmp_path: Path) -> None:
    switchboard = Switchboard()
    node = node_of(tmp_path, switchboard)
    node.start()
    await node.wait_serving()
    async with connect(URL, world=ClientWorld(switchboard)) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"kept")
    node.kill()
    await node.wait_ended()

    node = node_of(tmp_path, switchboard)
    node.start()
    await node.wait_serving()
    async with (
        connect(URL, world=ClientWorld(switchboard)) as mq,
        mq.consumer("orders") as consumer,
    ):
        assert (await anext(consumer)).body == b"kept"
    node.stop()
    await node.wait_ended()


async def test_node_that_is_alone_leads_again_before_an_election_timeout(tmp_path: Path) -> None:
    switchboard = Switchboard()
    for _ in range(2):
        node = node_of(tmp_path, switchboard)
        node.start()
        await node.wait_serving()
        began = anyio.current_time()
        async with connect(URL, world=ClientWorld(switchboard)) as mq:
            await mq.admin.create_topic("orders", queues=1)
        assert anyio.current_time() - began < ELECTION_SECONDS_MIN
        node.stop()
        await node.wait_ended()


async def test_folder_in_use_is_refused_with_its_holder(tmp_path: Path) -> None:
    first, second = node_of(tmp_path, Switchboard()), node_of(tmp_path, Switchboard())
    first.start()
    await first.wait_serving()
    second.start()
    with pytest.raises(FolderLocked, match=str(os.getpid())):
        await second.wait_serving()
    assert not second.is_running
    first.stop()
    await first.wait_ended()


async def test_no_thread_and_no_descriptor_is_left(tmp_path: Path) -> None:
    async def live() -> None:
        node = node_of(tmp_path, switchboard)
        node.start()
        await node.wait_serving()
        async with connect(URL, world=ClientWorld(switchboard)):
            pass
        node.stop()
        await node.wait_ended()

    switchboard = Switchboard()
    await live()
    before = len(os.listdir("/proc/self/fd"))
    await live()
    assert len(os.listdir("/proc/self/fd")) == before
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("raftmq")]


async def test_forked_child_that_lives_on_keeps_no_node_from_ending(tmp_path: Path) -> None:
    node = node_of(tmp_path, Switchboard())
    node.start()
    await node.wait_serving()
    child = os.fork()
    if child == 0:
        # It knows nothing of the node, and holds all its descriptors.
        time.sleep(60.0)  # noqa: ASYNC251  # its event loop is not to run
        os._exit(0)
    try:
        node.stop()
        with anyio.fail_after(END_SECONDS_MAX):
            await node.wait_ended()
        again = node_of(tmp_path, Switchboard())
        again.start()
        await again.wait_serving()
        again.stop()
        await again.wait_ended()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222  # it is dead


async def test_node_that_is_stopped_before_it_serves_says_so(tmp_path: Path) -> None:
    node = node_of(tmp_path, Switchboard())
    node.stop()
    node.start()
    with pytest.raises(Exception, match="stopped before it served"):
        await node.wait_serving()


async def test_nobody_listens_at_an_address_once_its_node_is_gone(tmp_path: Path) -> None:
    switchboard = Switchboard()
    node = node_of(tmp_path, switchboard)
    node.start()
    await node.wait_serving()
    node.stop()
    await node.wait_ended()
    with pytest.raises(ConnectionRefusedError):
        switchboard.dial(("here", 1))
    with pytest.raises(Unavailable):
        async with connect(URL, world=ClientWorld(switchboard), timeout=0.1):
            pass
