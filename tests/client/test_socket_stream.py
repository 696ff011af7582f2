"""Bytes received into given memory are those received as bytes, and errors are the same."""

import random
import socket

import anyio
import pytest

from raftmq.client.address import Address
from raftmq.client.routing.connection import Answer, Connection
from raftmq.client.socket_stream import SocketStream
from raftmq.wire.frame import Frame, encode_frame
from raftmq.wire.messages import REPLY, FrameKind, Welcome

pytestmark = pytest.mark.anyio

_WELCOME = Welcome(1, "c", 1, "i", "s", 1 << 20, 1 << 20)
_BODY_BYTES = 6 * 1024 * 1024


def pair() -> tuple[SocketStream, SocketStream]:
    near, far = socket.socketpair()
    return SocketStream(near), SocketStream(far)


async def test_bytes_are_received_as_bytes_and_into_memory_in_turn() -> None:
    near, far = pair()
    sent = random.Random(1).randbytes(3_000_000)
    got, into_memory = b"", 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(far.send, sent)
        room = memoryview(bytearray(100_000))
        while len(got) < len(sent):
            got += await near.receive(50_000)
            if len(got) < len(sent):
                count = await near.receive_into(room)
                assert 0 < count <= len(room)
                got += room[:count]
                into_memory += count
    assert got == sent
    assert into_memory > 0
    await near.aclose()
    await far.aclose()


async def test_receiving_into_memory_ends_as_receiving_does() -> None:
    near, far = pair()
    room = memoryview(bytearray(10))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await near.receive_into(room)
    assert scope.cancelled_caught
    await far.send(b"four")
    assert await near.receive_into(room) == 4
    assert bytes(room[:4]) == b"four", "cancelling lost nothing"
    await far.aclose()
    with pytest.raises(anyio.EndOfStream):
        await near.receive_into(room)
    await near.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await near.receive_into(room)


async def test_large_answers_come_out_whole_among_small_ones() -> None:
    near, far = pair()
    connection = Connection(near, Address("h", 1), _WELCOME)
    random_ = random.Random(2)
    bodies = [b"", random_.randbytes(_BODY_BYTES), b"small", random_.randbytes(200_000), b""]
    answers: list[Answer] = []
    is_over = anyio.Event()

    def on_answer(answer: Answer) -> None:
        answers.append(answer)
        if len(answers) == len(bodies):
            is_over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        for _ in bodies:
            connection.post(FrameKind.METADATA, b"\x80", (), on_answer)
        for number, body in enumerate(bodies, 1):
            await far.send(b"".join(encode_frame(FrameKind.METADATA | REPLY, number, b"", [body])))
        await is_over.wait()
        connection.close()
    assert [each.body for each in answers if isinstance(each, Frame)] == bodies
    await far.aclose()
