"""Nodes and clients of simulated clusters obey dynamic settings."""

from typing import Any

import pytest
import trio

from raftmq.broker.dynamic import following
from raftmq.broker.dynamic.known import values_by_name
from raftmq.broker.tickets import Callback
from raftmq.chaos.sim.clients import Clients
from raftmq.client import Client
from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.log.record import Kind
from raftmq.machine.catalog.settings import PutSettings, Scope, Setting
from raftmq.machine.commands import encode_commands
from raftmq.wire.messages import FrameKind
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster, with_client

RETENTION, TICK, INFLIGHT = "log.retention_ms", "raft.tick_ms", "raft.inflight_messages_max"


async def raised(cluster: Cluster) -> None:
    """Wait for the level from which on there are dynamic settings."""
    await cluster.wait_until(lambda: all(n.catalog.level >= 2 for n in cluster.nodes.values()))


async def known(cluster: Cluster, version: int) -> None:
    """Wait until all nodes have these settings, and have written them down."""
    nodes = cluster.nodes.values()
    await cluster.wait_until(lambda: all(n.catalog.settings.version == version for n in nodes))
    await trio.sleep(0.5)


def runs(cluster: Cluster, node: int, name: str) -> Any:
    return values_by_name(cluster.nodes[node].settings)[name]


def test_a_node_obeys_at_once_or_from_its_next_start_on() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        first = runs(cluster, 1, INFLIGHT)
        await mq.settings.put({RETENTION: 5_000, INFLIGHT: 77})
        version = await mq.settings.put({"log.dead_ms": 9}, scope="node", of="2")
        await known(cluster, version)
        assert [runs(cluster, node, RETENTION) for node in (1, 2, 3)] == [5_000] * 3
        assert [runs(cluster, node, "log.dead_ms") == 9 for node in (1, 2, 3)] == [
            False,
            True,
            False,
        ]
        assert [runs(cluster, node, INFLIGHT) for node in (1, 2, 3)] == [first] * 3
        assert cluster.nodes[1].dynamic.status()["waiting"] == [INFLIGHT]
        cluster.kill(2, power=True)
        await cluster.start(2)
        await cluster.wait_until(lambda: cluster.nodes[2].is_serving)
        assert [runs(cluster, node, INFLIGHT) for node in (1, 2)] == [first, 77]
        assert cluster.nodes[2].groups[0].raft.status() is not None
        assert cluster.nodes[2].dynamic.status()["waiting"] == []
        await mq.settings.rollback(0)
        await known(cluster, 3)
        assert runs(cluster, 2, INFLIGHT) == 77, "what holds from a start on holds until the next"
        assert runs(cluster, 2, RETENTION) != 5_000
        cluster.kill(2)
        await cluster.start(2)
        await cluster.wait_until(lambda: cluster.nodes[2].is_serving)
        assert runs(cluster, 2, INFLIGHT) == first

    with_client(job)


def test_settings_that_contradict_a_nodes_file_change_nothing_there() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        await mq.settings.put({RETENTION: 5_000})
        # The leader checks names; this one is put behind its back, as by newer software.
        group = cluster.nodes[cluster.leader(0)].groups[0]
        command = PutSettings(
            [Setting(Scope.CLUSTER, "", "log.later", 1), Setting(Scope.CLUSTER, "", RETENTION, 6)]
        )
        ticket = Callback(lambda _: None, lambda _: None)
        group.propose(Kind.COMMANDS, encode_commands([command]), ticket)
        await known(cluster, 2)
        for node in cluster.nodes.values():
            assert "does not know the setting log.later" in node.dynamic.status()["problem"]
            assert runs(cluster, node.id, RETENTION) == 5_000
        await mq.settings.put({"log.later": None})
        await known(cluster, 3)
        for node in cluster.nodes.values():
            assert node.dynamic.status()["problem"] == ""
            assert runs(cluster, node.id, RETENTION) == 6

    with_client(job)


def test_settings_that_fit_those_of_the_next_start_hold_from_then_on() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        before = runs(cluster, 2, "balance.absent_ms")
        await mq.settings.put({TICK: 40})
        # Within 900 ms no election ends by ticks of 50 ms.
        await known(cluster, await mq.settings.put({"balance.absent_ms": 900}))
        assert "until its next start" in cluster.nodes[2].dynamic.status()["problem"]
        assert runs(cluster, 2, "balance.absent_ms") == before
        cluster.kill(2)
        await cluster.start(2)
        await cluster.wait_until(lambda: cluster.nodes[2].is_serving)
        assert (runs(cluster, 2, TICK), runs(cluster, 2, "balance.absent_ms")) == (40, 900)
        assert cluster.nodes[2].dynamic.status()["problem"] == ""

    with_client(job)


def test_the_leader_refuses_what_makes_no_sense() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        for values, words in (
            ({"raft.heartbeat_ticks": 900}, "five times"),
            ({"log.retention_s": 9}, "did you mean"),
        ):
            with pytest.raises(Rejected, match=words) as refused:
                await mq.settings.put(values)
            assert refused.value.reason is Reason.BAD_ARGUMENT
        assert (await mq.settings.get()).version == 0

    with_client(job)


def test_a_damaged_copy_is_written_anew() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        await raised(cluster)
        async with trio.open_nursery() as nursery:

            async def put(mq: Client, _: object) -> None:
                await mq.settings.put({INFLIGHT: 77})

            await Clients(cluster, nursery, seed=1).once(put)
            await known(cluster, 1)
            nursery.cancel_scope.cancel()
        folder = cluster.settings(3).node.data
        cluster.kill(3)
        path = f"{folder}/{following.FILE}"
        file = cluster.files[3].open(path, writable=True)
        file.truncate(10)
        file.datasync()
        file.close()
        await cluster.start(3)
        await cluster.wait_until(lambda: cluster.nodes[3].is_serving)
        assert runs(cluster, 3, INFLIGHT) != 77
        await known(cluster, 1)
        cluster.kill(3)
        await cluster.start(3)
        await cluster.wait_until(lambda: cluster.nodes[3].is_serving)
        assert runs(cluster, 3, INFLIGHT) == 77

    in_cluster(scenario)


def test_producers_and_consumers_obey_what_is_pushed() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        async with (
            mq.producer("orders") as producer,
            mq.consumer("orders", group="g", mode="pop") as popper,
            mq.consumer("orders") as reader,
        ):
            await mq.settings.put({"producer.is_paused": True}, scope="topic", of="orders")
            await trio.sleep(0.5)
            with pytest.raises(Unavailable, match="operators have paused"):
                await producer.send(b"never", timeout=2)
            with pytest.raises(Unavailable, match="operators have paused"):
                async with producer.transaction(group="shop") as transaction:
                    await transaction.send(b"never")
            waiting = producer.send_nowait(b"later")
            await trio.sleep(1)
            assert not waiting.is_done
            await mq.settings.put(
                {"producer.is_paused": None, "consumer.is_paused": True}, scope="topic", of="orders"
            )
            await waiting.wait()
            await trio.sleep(0.5)
            assert not await reader.fetch(wait=2)
            assert not await popper.pop(wait=2)
            assert not await popper.pop(wait=0)
            await mq.settings.put({"consumer.is_paused": None}, scope="topic", of="orders")
            assert [m.body for m in await reader.fetch(wait=5)] == [b"later"]
            popped = await popper.pop(10, wait=5)
            assert [m.body for m in popped] == [b"later"]
            await popped.ack()

    with_client(job)


def test_a_change_reaches_a_client_whose_node_dies_before() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        async with mq.producer("orders", linger=None) as producer:
            await producer.send(b"first")
            for node in (1, 2, 3):
                cluster.kill(node)
                await mq.settings.put({"producer.linger_ms": node}, scope="client", of="*")
                await cluster.start(node)
                await trio.sleep(3)
                assert producer._settings.linger == node / 1000
        assert [each.after[0].value for each in await mq.settings.history()] == [1, 2, 3]

    with_client(job)


def test_an_idle_client_asks_twice_a_minute_and_pings_nobody() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        async with mq.producer("orders") as producer:
            await producer.send(b"first")
            await trio.sleep(5)
            frames: list[int] = []
            cluster.request_listeners.append(
                lambda node, connection, frame: (
                    None if connection.from_node else frames.append(frame.kind)
                )
            )
            await trio.sleep(600)
        assert 16 <= frames.count(FrameKind.SETTINGS) <= 24
        # The routing table is refreshed twice a minute.
        assert set(frames) <= {FrameKind.SETTINGS, FrameKind.METADATA}
        assert frames.count(FrameKind.METADATA) <= 22

    with_client(job)


def test_what_every_client_obeys_holds_at_once_for_producers_opened_later() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        async with mq.producer("orders"):
            await mq.settings.put({"producer.is_paused": True}, scope="client", of="*")
            await trio.sleep(1)
            async with mq.producer("orders") as late:
                with pytest.raises(Unavailable, match="operators have paused"):
                    await late.send(b"never", timeout=1)

    with_client(job)


def test_a_shorter_linger_sends_what_waits() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        await mq.settings.put({"producer.linger_ms": 60_000}, scope="topic", of="orders")
        async with mq.producer("orders") as producer:
            await trio.sleep(1)
            waiting = producer.send_nowait(b"x", timeout=100)
            await trio.sleep(1)
            assert not waiting.is_done
            await mq.settings.put({"producer.linger_ms": 0}, scope="topic", of="orders")
            with trio.fail_after(2):
                await waiting.wait()

    with_client(job)


def test_a_reserve_that_no_disk_has_can_be_taken_back() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        version = await mq.settings.put({"log.reserve_bytes": 1 << 60})
        await known(cluster, version)
        async with mq.producer("orders") as producer:
            await producer.send(b"goes on")
        assert await mq.settings.rollback(0) == version + 1

    with_client(job)


def test_two_waits_of_one_client_do_not_end_each_other() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        frames: list[int] = []
        cluster.request_listeners.append(lambda node, connection, frame: frames.append(frame.kind))
        async with mq.producer("orders"), trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(mq.settings.wait_for_change, 0)
            await trio.sleep(20)
            # Those for all settings end each other, and have a pause then.
            assert frames.count(FrameKind.SETTINGS) < 200
            await mq.settings.put({RETENTION: 5})

    with_client(job)


def test_rollback_is_one_change_and_refused_if_others_came_between() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        await mq.settings.put({RETENTION: 5, TICK: 50})
        await mq.settings.put({RETENTION: 6})
        await mq.settings.put({"producer.linger_ms": 1}, scope="topic", of="orders")
        assert await mq.settings.rollback(1) == 4
        found = await mq.settings.get()
        assert [(each.name, each.value) for each in found.settings] == [(RETENTION, 5), (TICK, 50)]
        assert await mq.settings.rollback(1) == 4, "there was nothing to do"
        with pytest.raises(Rejected, match="no version 9"):
            await mq.settings.rollback(9)
        for change in (
            mq.settings.put({RETENTION: 7}, seen=3),
            mq.settings.rollback(0, seen=3),
        ):
            with pytest.raises(Rejected, match="by now") as refused:
                await change
            assert refused.value.reason is Reason.CHANGED_MEANWHILE
        assert await mq.settings.rollback(0) == 5
        assert not (await mq.settings.get()).settings

    with_client(job)
