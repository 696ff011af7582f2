"""The embedded queue as an application uses it: real threads, a real disk."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

import anyio
import pytest

import raftmq
from raftmq.broker.leader_tasks import LeaderTasks
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.testing import cluster

from .queues import failing_sync

pytestmark = [pytest.mark.anyio, pytest.mark.process]

START_SECONDS_MAX = 1.0
FAULT_SECONDS_MAX = 5.0
"""Longest time until the client knows that the node has stopped; a call would wait for 30 s."""


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_what_one_block_sent_the_next_one_reads(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path / "data") as mq:
        await mq.admin.create_topic("orders", queues=2)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"%d" % n for n in range(100)])
    async with raftmq.open(tmp_path / "data") as mq, mq.consumer("orders") as consumer:
        got: list[bytes] = []
        while len(got) < 100:
            got += (await consumer.fetch(100)).bodies
        assert sorted(got, key=int) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("mode", ["pop", "ordered"])
async def test_groups_pop_and_ack(tmp_path: Path, mode: Literal["pop", "ordered"]) -> None:
    async with raftmq.open(tmp_path) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"a", b"b"], keys=["k", "l"])
        async with mq.consumer("orders", group="g", mode=mode) as consumer:
            got = [await anext(consumer) for _ in range(2)]
            for message in got:
                await message.ack()
            assert sorted(message.body for message in got) == [b"a", b"b"]
            assert not await consumer.pop(1, wait=0.1)


async def test_folder_without_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for begin in (raftmq.open, raftmq.blocking.open):
        with pytest.raises(Rejected, match="data= is empty") as refused:
            begin("")
        assert refused.value.reason is Reason.BAD_ARGUMENT
    assert not os.listdir(tmp_path)


async def test_folder_that_cannot_be_made_names_the_argument() -> None:
    with pytest.raises(Unavailable, match="give open\\(\\) another") as failed:
        async with raftmq.open("/proc/x"):
            pass
    assert "No such file or directory: '/proc/x'" in str(failed.value)
    assert "node.data" not in str(failed.value)


async def test_folder_in_use_names_who_has_it_and_what_to_do(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path):
        with pytest.raises(Unavailable, match=rf"process {os.getpid()}.*another folder"):
            async with raftmq.open(tmp_path):
                pass
    async with raftmq.open(tmp_path):
        pass


async def test_folder_of_a_server_is_refused(tmp_path: Path) -> None:
    async with cluster(1, folder=tmp_path) as nodes:
        folder = nodes.data(1)
    with pytest.raises(Rejected, match="belongs to node 1 of cluster") as caught:
        async with raftmq.open(folder):
            pass
    assert caught.value.reason is Reason.WRONG_CLUSTER


async def test_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        async with raftmq.open(tmp_path / "file" / "data"):
            pass


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"node": {"port": 1}}, "no table 'node'"),
        ({"raft": {"tick": 1}}, "tick"),
        ({"raft": {"election_ticks": 2}}, "election_ticks"),
    ],
)
async def test_wrong_setting_is_rejected(
    tmp_path: Path, settings: dict[str, dict[str, int | str]], says: str
) -> None:
    with pytest.raises(Rejected, match=says):
        raftmq.open(tmp_path, settings=settings)
    assert not os.listdir(tmp_path)


async def test_two_queues_in_one_process_know_nothing_of_each_other(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path / "a") as a, raftmq.open(tmp_path / "b") as b:
        await a.admin.create_topic("only-a")
        assert [topic.name for topic in await a.admin.list_topics()] == ["only-a"]
        assert await b.admin.list_topics() == []


async def test_body_that_raises_is_seen_and_the_folder_is_free(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with raftmq.open(tmp_path):
            raise KeyError("mine")
    async with raftmq.open(tmp_path):
        pass


async def test_cancelled_block_leaves_no_thread(tmp_path: Path) -> None:
    with anyio.move_on_after(0.5) as scope:
        async with raftmq.open(tmp_path):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not [t for t in threading.enumerate() if t.name.startswith("raftmq")]


async def test_queue_is_ready_in_well_under_a_second(tmp_path: Path) -> None:
    for _ in range(2):
        began = anyio.current_time()
        async with raftmq.open(tmp_path) as mq:
            await mq.admin.create_topic("orders")
            assert anyio.current_time() - began < START_SECONDS_MAX


async def test_topics_can_be_made_however_long_founding_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = LeaderTasks._found
    skipped: list[object] = []

    def slowly(tasks: LeaderTasks) -> None:
        if skipped:
            found(tasks)
        skipped.append(tasks)

    monkeypatch.setattr(LeaderTasks, "_found", slowly)
    async with raftmq.open(tmp_path) as mq:
        await mq.admin.create_topic("orders")
    assert len(skipped) > 1


async def test_failed_fsync_ends_the_queue_with_its_reason(tmp_path: Path) -> None:
    async def use() -> None:
        async with raftmq.open(tmp_path) as mq:
            await mq.admin.create_topic("orders", queues=1)
            async with mq.producer("orders") as producer:
                await producer.send(b"kept")
                began = anyio.current_time()
                with failing_sync(), pytest.raises(OutcomeUnknown, match="bad day"):
                    await producer.send(b"nobody knows")
                with pytest.raises(Unavailable, match="bad day"):
                    await producer.send(b"never")
                with pytest.raises(Unavailable, match="bad day"):
                    await mq.admin.list_topics()
                assert anyio.current_time() - began < FAULT_SECONDS_MAX

    with pytest.raises(Unavailable, match="bad day"):
        await use()
    async with raftmq.open(tmp_path) as mq, mq.consumer("orders") as consumer:
        assert (await anext(consumer)).body == b"kept"


async def test_fault_is_noted_on_what_the_body_raised(tmp_path: Path) -> None:
    async def use() -> None:
        async with raftmq.open(tmp_path) as mq:
            with failing_sync(), pytest.raises((OutcomeUnknown, Unavailable)):
                await mq.admin.create_topic("orders")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        await use()
    assert "bad day" in "".join(caught.value.__notes__)


KILLED = """
import anyio, os, sys, raftmq
async def main():
    async with raftmq.open(sys.argv[1]) as mq:
        await mq.admin.create_topic("orders", queues=2)
        async with mq.producer("orders") as producer:
            for n in range(1_000_000):
                await producer.send(b"%d" % n)
                print(n, flush=True)
anyio.run(main, backend=sys.argv[2])
"""


def acked_until_killed(folder: Path, backend: str) -> list[bytes]:
    """Lines that a process had acknowledged when it was killed in the middle of sending."""
    program = [sys.executable, "-c", KILLED, str(folder), backend]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acked = [next(process.stdout) for _ in range(100)]
        process.send_signal(signal.SIGKILL)
        acked += process.stdout
    return [line.strip().encode() for line in acked if line.endswith("\n")]


async def test_killed_process_loses_nothing_that_was_acked(
    tmp_path: Path, anyio_backend: str
) -> None:
    acked = await anyio.to_thread.run_sync(acked_until_killed, tmp_path, anyio_backend)
    async with raftmq.open(tmp_path) as mq, mq.consumer("orders") as consumer:
        got: list[bytes] = []
        while len(got) < sum((await mq.admin.find_offsets("orders", "latest")).values()):
            got += (await consumer.fetch(10_000)).bodies
    assert set(acked) <= set(got)
    assert len(got) == len(set(got))
