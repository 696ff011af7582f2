"""How long `connect` waits where every address refuses the connection."""

from typing import Any

import anyio
import pytest
import trio.testing

from raftmq.client import connect
from raftmq.errors import Unavailable

from .fake_cluster import URL, FakeCluster
from .pipe import Pipe

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0.002)}


@pytest.mark.parametrize(("wait_refused", "least", "most"), [(0.0, 0, 0.1), (3.0, 3, 4)])
async def test_refusal_by_every_address_that_stays_is_an_answer(
    cluster: FakeCluster, wait_refused: float, least: float, most: float
) -> None:
    cluster.unreachable = {1, 2, 3}
    began = anyio.current_time()
    with pytest.raises(Unavailable, match="no process listens at node1:1, node2:2, node3:3"):
        async with connect(URL, world=cluster, timeout=30, wait_refused=wait_refused):
            pass
    assert least <= anyio.current_time() - began <= most


async def test_node_that_starts_again_is_waited_for_by_default(cluster: FakeCluster) -> None:
    cluster.unreachable = {1, 2, 3}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_start, cluster, 2.0)
        async with connect(URL, world=cluster):
            pass


async def test_cluster_about_to_start_is_waited_for_as_long_as_the_timeout(
    cluster: FakeCluster,
) -> None:
    cluster.unreachable = {1, 2, 3}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_start, cluster, 20.0)
        async with connect(URL, world=cluster, wait_refused=None):
            assert anyio.current_time() > 20


async def test_address_that_does_not_refuse_is_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.unreachable = {1, 2}

    async def connected(host: str, port: int) -> Pipe:
        if port == 3:
            raise OSError("no route to host")
        return await FakeCluster.connect(cluster, host, port)

    monkeypatch.setattr(cluster, "connect", connected)
    with pytest.raises(Unavailable, match="no route to host"):
        async with connect(URL, world=cluster, timeout=10):
            pass
    assert anyio.current_time() >= 10


async def _start(cluster: FakeCluster, seconds: float) -> None:
    await anyio.sleep(seconds)
    cluster.unreachable = set()
