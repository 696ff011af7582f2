"""The real connection: it reads around trio's socket, and must say what trio's would."""

import socket
import struct

import pytest
import trio
import trio.testing

from raftmq.broker.system_world import RealWorld
from raftmq.broker.tcp_stream import TcpStream


async def _pair() -> tuple[TcpStream, TcpStream]:
    world = RealWorld()
    listener = await world.listen("127.0.0.1", 0)
    port = listener._listener.socket.getsockname()[1]  # type: ignore[attr-defined]
    near = await world.connect("127.0.0.1", port)
    far = await listener.accept()
    await listener.aclose()
    assert isinstance(near, TcpStream)
    assert isinstance(far, TcpStream)
    return near, far


async def _check_reads() -> None:
    near, far = await _pair()
    sent = bytes(range(256)) * 64
    await near.send_all(sent)
    received = b""
    while len(received) < len(sent):
        received += await far.receive_some(1000)
    assert received == sent
    with trio.move_on_after(0.01) as nothing_came:
        await far.receive_some(1000)
    assert nothing_came.cancelled_caught
    assert near.send_nowait(b"at once") == 7
    assert await far.receive_some() == b"at once"
    await near.aclose()
    assert await far.receive_some(10) == b""
    assert far.send_nowait(b"into the void") in (0, 13)
    await far.aclose()


def test_stream_gives_what_was_sent_and_then_its_end() -> None:
    trio.run(_check_reads)


async def _check_reset() -> None:
    near, far = await _pair()
    linger_zero = struct.pack("ii", 1, 0)
    plain = near._socket
    assert isinstance(plain, socket.socket)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
    await near.aclose()
    with pytest.raises(trio.BrokenResourceError, match="the connection broke"):
        await far.receive_some(10)
    await far.aclose()


def test_stream_that_was_reset_is_broken() -> None:
    trio.run(_check_reset)


async def _check_close() -> None:
    async with trio.open_nursery() as nursery:
        near, far = await _pair()

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await far.receive_some(10)

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await far.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await far.receive_some(10)
        await near.aclose()


def test_stream_closed_while_it_is_read_is_closed() -> None:
    trio.run(_check_close)
