"""Encrypted sockets: every byte arrives once and in order, whatever the socket takes at once."""

import random
import socket
import struct
import threading
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.socket_stream import SocketStream
from raftmq.tls.contexts import NodeContexts
from raftmq.tls.sockets import RECORD_BYTES, Awaits, TlsSocket, begin_tls, handshake_step
from tests.tls.certificates import contexts


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> NodeContexts:
    return contexts(tmp_path_factory.mktemp("certs"), 1)


def tls_pair(own: NodeContexts, *, buffer_bytes: int = 0) -> tuple[TlsSocket, TlsSocket]:
    """Both ends of a connection after the handshake."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
        if buffer_bytes:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return secured(own, *ends)


def secured(
    own: NodeContexts, client: socket.socket, server: socket.socket
) -> tuple[TlsSocket, TlsSocket]:
    """Two connected sockets after the handshake."""
    near = begin_tls(client, own.pair.connecting, host=None, is_server=False)
    far = begin_tls(server, own.pair.accepting, host=None, is_server=True)
    waits = {near: Awaits.READABLE, far: Awaits.READABLE}
    while set(waits.values()) != {Awaits.NOTHING}:
        for sock, awaits in waits.items():
            if awaits is not Awaits.NOTHING:
                waits[sock] = handshake_step(sock)
    return TlsSocket(near), TlsSocket(far)


sizes = (
    st.integers(0, 5) | st.integers(RECORD_BYTES - 2, RECORD_BYTES + 2) | st.integers(1, 200_000)
)


wanted_sizes = st.integers(1, 5) | st.integers(RECORD_BYTES - 2, RECORD_BYTES + 2)


@given(st.lists(st.tuples(sizes, wanted_sizes, st.booleans()), min_size=1, max_size=12))
def test_bytes_arrive_once_and_in_order_through_a_small_socket(
    own: NodeContexts, steps: list[tuple[int, int, bool]]
) -> None:
    near, far = tls_pair(own, buffer_bytes=4096)
    sent, got, waiting = b"", b"", b""
    for at, (size, wanted, into_memory) in enumerate(steps):
        piece = random.Random(at).randbytes(size)
        sent += piece
        waiting += piece
        waiting = waiting[sent_now(near, waiting) :]
        got += received_now(far, wanted, into_memory=into_memory)
    while waiting:
        got += received_now(far, RECORD_BYTES, into_memory=False)
        waiting = waiting[sent_now(near, waiting) :]
    while len(got) < len(sent):
        got += received_now(far, RECORD_BYTES, into_memory=True)
    assert got == sent
    assert received_now(far, 10, into_memory=False) == b""
    near.close()
    far.close()


def sent_now(sock: TlsSocket, data: bytes) -> int:
    """The bytes of `data` that count as sent."""
    try:
        count = sock.send(data)
    except BlockingIOError:
        return 0
    assert 0 < count <= len(data) or not data
    return count


def received_now(sock: TlsSocket, size: int, *, into_memory: bool) -> bytes:
    """Up to `size` bytes that are there."""
    room = memoryview(bytearray(size))
    try:
        data = bytes(room[: sock.recv_into(room)]) if into_memory else sock.recv(size)
    except BlockingIOError:
        return b""
    assert len(data) <= size
    return data


@pytest.mark.anyio
async def test_streams_under_tls_move_megabytes_both_ways(own: NodeContexts) -> None:
    near, far = map(SocketStream, tls_pair(own))
    there, back = random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(2_000_000)
    got: dict[str, bytes] = {}

    async def read(name: str, stream: SocketStream, size: int) -> None:
        data = bytearray()
        room = memoryview(bytearray(100_000))
        while len(data) < size:
            data += await stream.receive(50_000)
            if len(data) < size:
                data += room[: await stream.receive_into(room)]
        got[name] = bytes(data)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, "there", far, len(there))
        tasks.start_soon(read, "back", near, len(back))
        tasks.start_soon(near.send, there)
        tasks.start_soon(far.send, back)
    assert got == {"there": there, "back": back}
    await near.aclose()
    with pytest.raises(anyio.EndOfStream):
        await far.receive()
    await far.aclose()


def test_a_short_read_has_emptied_the_socket(own: NodeContexts) -> None:
    """A stream waits for the descriptor after a short read: OpenSSL must hold nothing then."""
    near, far = tls_pair(own)
    near.send(bytes(100))
    near.send(bytes(RECORD_BYTES + 7))
    assert len(far.recv(60)) == 60
    assert len(far.recv(60)) == 40
    room = memoryview(bytearray(RECORD_BYTES))
    assert far.recv_into(room) == RECORD_BYTES
    assert far.recv(RECORD_BYTES) == bytes(7)
    with pytest.raises(BlockingIOError):
        far.recv(10)
    near.close()
    far.close()


def test_a_changed_byte_is_found_out(own: NodeContexts) -> None:
    """A relay between the two ends flips a bit of each piece that it passes on."""
    outer_near, inner = socket.socketpair()
    relay, outer_far = socket.socketpair()
    for end in (outer_near, outer_far):
        end.setblocking(False)
    for end in (inner, relay):
        end.settimeout(10)
    flip = threading.Event()

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # The test is over.
            while data := bytearray(source.recv(65_536)):
                if flip.is_set():
                    data[-1] ^= 1
                target.sendall(data)

    threads = [
        threading.Thread(target=pass_on, args=ends, daemon=True)
        for ends in ((inner, relay), (relay, inner))
    ]
    for thread in threads:
        thread.start()
    near, far = secured(own, outer_near, outer_far)
    flip.set()
    near.send(b"a hundred euros")
    far_end = SocketStream(far)
    with pytest.raises(anyio.BrokenResourceError) as broken:
        anyio.run(far_end.receive)
    assert "bad record mac" in str(broken.value.__cause__).lower()
    near.close()
    far.close()
    inner.close()
    relay.close()


def test_a_socket_whose_other_end_has_gone_is_closed(own: NodeContexts) -> None:
    """A socket left open would warn when the interpreter drops it, which fails a test."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    # A close without lingering resets the connection.
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    near.setblocking(False)
    with pytest.raises(ConnectionResetError):
        begin_tls(near, own.pair.connecting, host=None, is_server=False)
    assert near.fileno() < 0
