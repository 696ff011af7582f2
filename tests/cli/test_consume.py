"""`raftmq consume` against a cluster in memory, in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

import raftmq as package
from raftmq.client import Client, connect
from tests.cli.command_line import CommandLine
from tests.client.fake_cluster import URL, FakeCluster


@asynccontextmanager
async def in_memory(_url: str, *, timeout: float, wait_refused: float) -> AsyncIterator[Client]:
    """A client of a cluster whose topic `orders` has two messages in queue 0, none in queue 1."""
    async with anyio.create_task_group() as tasks:
        cluster = FakeCluster(tasks)
        cluster.create_topic(queues=2)
        async with connect(URL, world=cluster, timeout=timeout, wait_refused=wait_refused) as mq:
            async with mq.producer("orders") as producer:
                for body in (b"zero", b"one"):
                    await producer.send(body, queue=0)
            yield mq
        tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(package), "connect", in_memory)


@pytest.mark.parametrize("more", [[], ["-e"], ["-n", "1"], ["-g", "billing"]])
def test_offset_beyond_the_end_is_refused_with_the_end(
    raftmq: CommandLine, more: list[str]
) -> None:
    ended = raftmq("consume", "orders", "--from", "99", "-q", "0", *more)
    assert ended.code == 1
    assert ended.stdout == ""
    assert "queue 0 of topic 'orders' ends at offset 2, and --from 99 is beyond it" in ended.stderr
    assert "fix:" in ended.stderr


def test_offset_beyond_the_end_of_any_queue_is_refused(raftmq: CommandLine) -> None:
    ended = raftmq("consume", "orders", "--from", "1", "-e")
    assert ended.code == 1
    assert "queue 1 of topic 'orders' ends at offset 0" in ended.stderr


def test_offset_at_the_end_is_no_mistake(raftmq: CommandLine) -> None:
    assert raftmq.ok("consume", "orders", "--from", "2", "-q", "0", "-e").stdout == ""
    assert raftmq.ok("consume", "orders", "--from", "1", "-q", "0", "-e").stdout == "one\n"
