"""Peers that write byte by byte, that take no answers, that are silent, and that are dead."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from raftmq.batch import encode
from raftmq.broker.serve.connection import (
    FRAME_SECONDS_MAX,
    HELLO_BYTES_MAX,
    HELLO_SECONDS_MAX,
    UNACKNOWLEDGED_SECONDS_MAX,
)
from raftmq.chaos.world import Machine, MemoryFiles, Process
from raftmq.wire import raft as raft_wire
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame, encode_frame
from raftmq.wire.messages import ErrorReply, FrameKind, Metadata
from tests.broker.harness import Cluster, RawClient
from tests.broker.scenario import in_cluster

from .test_connections import HELLO, MIB

QUESTION = pack(Metadata([]))


async def write_slowly(client: RawClient, data: bytes, seconds: float) -> ErrorReply:
    """Send a byte each second for nearly `seconds`; the words with which the node ends it then."""
    client._answers.clear()
    for byte in data[: round(seconds)]:
        await client._stream.send_all(bytes([byte]))
        await trio.sleep(0.95)
    with trio.fail_after(2):
        while 0 not in client._answers:
            await trio.sleep(0.01)
    return unpack(ErrorReply, client._answers[0].header)


@asynccontextmanager
async def stranger(cluster: Cluster) -> AsyncIterator[RawClient]:
    """A client that a cluster with users has welcomed, and that has not logged in."""
    async with cluster.connection(1) as client:
        await client._stream.send_all(HELLO)
        while 0 not in client._answers:
            await trio.sleep(0.01)
        del client._answers[0]
        yield client


async def found_secure(cluster: Cluster) -> None:
    cluster.network.is_under_tls = True
    await cluster.found()


def test_a_hello_byte_by_byte_is_given_up_in_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        before = cluster.nodes[1].load.connections
        async with cluster.connection(1) as client:
            words = await write_slowly(client, HELLO, HELLO_SECONDS_MAX)
            assert "no Hello within 10 s" in words.message
        await trio.sleep(2)
        assert cluster.nodes[1].load.connections == before

    in_cluster(scenario, size=1)


def test_a_login_byte_by_byte_is_given_up_in_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found_secure(cluster)
        async with stranger(cluster) as client:
            frame = b"".join(encode_frame(FrameKind.LOG_IN, 1, bytes(100)))
            words = await write_slowly(client, frame, HELLO_SECONDS_MAX)
            assert "no login within 10 s" in words.message

    in_cluster(scenario, size=1)


def test_a_request_byte_by_byte_is_given_up_in_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        async with cluster.client(1) as client:
            frame = b"".join(encode_frame(FrameKind.METADATA, 9, bytes(1000)))
            words = await write_slowly(client, frame, FRAME_SECONDS_MAX)
            assert "bytes came in 30 s" in words.message

    in_cluster(scenario, size=1)


def test_a_stranger_that_takes_no_answers_holds_few_bytes_and_not_for_long() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found_secure(cluster)
        load = cluster.nodes[1].load
        connections, held = load.connections, load.request_bytes
        async with cluster.connection(1, is_lockstep=True) as client:
            question = b"".join(
                part
                for number in range(20_000)
                for part in encode_frame(FrameKind.METADATA, number + 1, QUESTION)
            )
            with trio.move_on_after(5):
                await client._stream.send_all(HELLO + question)
            assert load.connections == connections + 1
            # What is sent and not taken, and a read that was acted upon before the node looked.
            assert load.request_bytes - held < 8 * HELLO_BYTES_MAX
            await trio.sleep(HELLO_SECONDS_MAX)
            assert load.connections == connections

    in_cluster(scenario, size=1)


def test_a_dead_peer_loses_its_place_and_a_silent_one_keeps_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        load = cluster.nodes[1].load
        before = load.connections
        own = cluster.settings(1).node
        process = Process(Machine("dead", cluster.agenda, MemoryFiles()), cluster.agenda, seed=0)
        async with cluster.client(1) as living:
            stream = await cluster.network.connect(process, own.host, own.port)
            await stream.send_all(HELLO)
            await trio.sleep(1)
            assert load.connections == before + 2
            process.die()
            cluster.network.machine_went_dark(process)
            await trio.sleep(2 * UNACKNOWLEDGED_SECONDS_MAX)
            assert load.connections == before + 1
            await trio.sleep(300)
            await living.view()

    in_cluster(scenario, size=1)


def test_records_of_a_client_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, decoded = raft_wire.decode, []

    def noted(frame: Frame) -> object:
        decoded.append(len(frame.body))
        return decode(frame)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        async with cluster.client(1) as client:
            monkeypatch.setattr(raft_wire, "decode", noted)
            body = bytes(encode([bytes(MIB)]).to_bytes(queue=1))
            parts = encode_frame(FrameKind.RAFT, 0, b"\x80", [body])
            await client._stream.send_all(b"".join(parts))
            await client.view()
            assert decoded == []

    in_cluster(scenario, size=1)
