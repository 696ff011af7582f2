"""The certificates that a node under TLS accepts, of nodes and of clients, and those it refuses.

A node serves on a real port here; strangers come with certificates of their own.
"""

import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import raftmq
from raftmq.broker.node import Node
from raftmq.broker.settings import NodeSettings, Peer, Settings, Tls
from raftmq.broker.system_world import RealWorld
from raftmq.broker.world import secure
from raftmq.client.world import RealWorld as ClientWorld
from raftmq.errors import RaftmqError, Reason, Rejected
from raftmq.machine.catalog.levels import LEVEL
from raftmq.testing import free_ports
from raftmq.tls.authority import Authority
from raftmq.tls.contexts import NodeContexts
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    ErrorReply,
    FrameKind,
    Hello,
    Metadata,
    Probe,
)
from tests.tls.certificates import HOST, contexts, make_node
from tests.tls.stranger import stranger


@asynccontextmanager
async def serving(
    folder: Path, *, needs_certificates: bool = False, peers: int = 1
) -> AsyncGenerator[tuple[Node, NodeContexts]]:
    """Node 1 of cluster `c`, alone or with silent peers, with certificates in `folder / "a"`."""
    ports = free_ports(peers)
    own = NodeSettings(
        1,
        "c",
        str(folder / "data"),
        port=ports[0],
        peers=[Peer(number, HOST, port) for number, port in enumerate(ports, 1)],
        groups=1,
    )
    files = make_node(folder / "a", 1)
    own_contexts = NodeContexts(files, clients_need_certificates=needs_certificates)
    node = Node(Settings(own, tls=Tls(*files, needs_certificates)), RealWorld(own_contexts))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        yield node, own_contexts
        nursery.cancel_scope.cancel()


def with_node(
    scenario: Callable[[Node, NodeContexts], Awaitable[Any]], folder: Path, **options: Any
) -> None:
    """Run a scenario with a node that serves."""

    async def main() -> None:
        with trio.fail_after(60):
            async with serving(folder, **options) as (node, own):
                await scenario(node, own)

    trio.run(main)


def url(node: Node, *, host: str = HOST, **files: Path) -> str:
    query = "&".join(f"{name}={path}" for name, path in files.items())
    return f"raftmqs://{host}:{node.settings.node.port}?{query}"


async def words(address: str, **options: Any) -> str:
    """The refusal of a client."""
    with pytest.raises(Rejected) as refused:
        async with raftmq.connect(address, timeout=10, **options):
            pass
    assert refused.value.reason is Reason.TLS
    return str(refused.value)


def hello(number: int) -> Hello:
    return (
        Hello(PROTOCOL, "c", number, "folder", "stranger", HOST, 7000, level=LEVEL)
        if number
        else CLIENT
    )


CLIENT = Hello(PROTOCOL, "", 0, "", "stranger")


def test_client_that_trusts_the_authority_sends_and_reads(tmp_path: Path) -> None:
    async def scenario(node: Node, _: NodeContexts) -> None:
        async with raftmq.connect(url(node, ca=tmp_path / "a" / "ca.pem")) as mq:
            await mq.admin.create_topic("t", queues=1)
            async with mq.producer("t") as producer:
                large = bytes(range(256)) * 12_000
                assert (await producer.send(large)).offset == 0
            async with mq.consumer("t") as consumer:
                assert [bytes(m.body) for m in await consumer.fetch(1)] == [large]

    with_node(scenario, tmp_path)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_client_works_under_tls_on_both_loops(tmp_path: Path, backend: str) -> None:
    def use(address: str) -> int | None:
        with raftmq.blocking.connect(
            address, ca=str(tmp_path / "a" / "ca.pem"), backend=backend
        ) as mq:
            mq.admin.create_topic("t", queues=1)
            with mq.producer("t") as producer:
                return producer.send(bytes(1_000_000)).offset

    async def scenario(node: Node, _: NodeContexts) -> None:
        address = f"raftmqs://{HOST}:{node.settings.node.port}"
        assert await trio.to_thread.run_sync(use, address) == 0

    with_node(scenario, tmp_path)


def test_client_is_told_what_is_wrong_with_either_end(tmp_path: Path) -> None:
    async def scenario(node: Node, _: NodeContexts) -> None:
        ca, port = tmp_path / "a" / "ca.pem", node.settings.node.port
        other = make_node(tmp_path / "b", 1)
        other_ca = "`ca` is missing, or is the authority of another cluster"
        assert f"self-signed certificate in certificate chain: {other_ca}" in await words(url(node))
        assert other_ca in await words(url(node, ca=Path(other.ca)))
        mismatch = await words(url(node, host="localhost", ca=ca))
        assert "is not valid for 'localhost': reach the node by a host of its cert" in mismatch
        lacking = await words(url(node, ca=ca, crl=Path(other.crl)))
        assert "CRL: the file of `crl` lacks the list of an authority" in lacking
        assert "raftmqs://" in await words(f"raftmq://{HOST}:{port}")
        (foreign,) = Authority(tmp_path / "b").issue(CertificateName("c", USER, "eve"), (), days=1)
        assert "does not accept this client" in await words(url(node, ca=ca, cert=foreign))

    with_node(scenario, tmp_path)


def test_client_under_tls_is_told_of_a_node_without(tmp_path: Path) -> None:
    async def scenario() -> None:
        listener = (await trio.open_tcp_listeners(0, host=HOST))[0]

        async def refuse(stream: trio.SocketStream) -> None:
            await stream.receive_some()
            parts = encode_frame(FrameKind.ERROR, 0, pack(ErrorReply("protocol", "no frame")))
            await stream.send_all(b"".join(parts))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, refuse, [listener])
            port = listener.socket.getsockname()[1]
            refusal = await words(f"raftmqs://{HOST}:{port}")
            assert "speaks no TLS: write raftmq:// for a cluster without it" in refusal
            nursery.cancel_scope.cancel()

    trio.run(scenario)


def test_client_without_a_certificate_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    async def scenario(node: Node, _: NodeContexts) -> None:
        ca = tmp_path / "a" / "ca.pem"
        assert "give `cert`" in await words(url(node, ca=ca))
        (alice,) = Authority(tmp_path / "a").issue(CertificateName("c", USER, "alice"), (), days=1)
        async with raftmq.connect(url(node, ca=ca, cert=alice)) as mq:
            assert await mq.admin.list_topics() == []

    with_node(scenario, tmp_path, needs_certificates=True)


def test_only_the_certificate_of_a_node_makes_a_node(tmp_path: Path) -> None:
    async def scenario(node: Node, own: NodeContexts) -> None:
        two = contexts(tmp_path / "a", 2).pair.connecting
        async with stranger(node.settings.node.port, two) as peer:
            assert (await peer.ask(FrameKind.HELLO, hello(2))).kind == FrameKind.HELLO | REPLY
            for number, code in ((3, "tls"), (2, "")):
                frame = await peer.ask(FrameKind.PROBE, Probe(number, "folder", joins=False))
                assert frame.kind == (FrameKind.ERROR if code else FrameKind.PROBE | REPLY)
        no_certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        no_certificate.check_hostname = False
        no_certificate.verify_mode = ssl.CERT_NONE
        (path,) = Authority(tmp_path / "a").issue(CertificateName("c", USER, "2"), (), days=1)
        user = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        user.check_hostname = False
        user.verify_mode = ssl.CERT_NONE
        user.load_cert_chain(path)
        for context in (no_certificate, user, two):
            number = 3 if context is two else 2
            async with stranger(node.settings.node.port, context) as peer:
                frame = await peer.ask(FrameKind.HELLO, hello(number))
                assert frame.kind == FrameKind.ERROR
                reply = unpack(ErrorReply, frame.header)
                assert reply.code == "tls"
                assert f"urn:raftmq:c:node:{number}" in reply.message
        async with stranger(node.settings.node.port, no_certificate) as client:
            assert (await client.ask(FrameKind.HELLO, CLIENT)).kind == FrameKind.HELLO | REPLY
            frame = await client.ask(FrameKind.PROBE, Probe(1, "x", joins=True))
            assert unpack(ErrorReply, frame.header).code == "denied"
            assert (await client.ask(FrameKind.METADATA, Metadata([]))).kind != FrameKind.ERROR

    with_node(scenario, tmp_path)


def test_certificate_of_another_cluster_is_refused_before_a_frame_is_read(tmp_path: Path) -> None:
    async def scenario(node: Node, _: NodeContexts) -> None:
        other = contexts(tmp_path / "a", 2, cluster="d").pair.connecting
        async with stranger(node.settings.node.port, other) as peer:
            # Nothing was sent, and still the refusal comes.
            await peer._stream.do_handshake()
            reply = await peer.refusal()
            assert reply.code == "wrong_cluster"
            assert "'c'" in reply.message
            assert "'d'" in reply.message

    with_node(scenario, tmp_path)


def test_expired_and_revoked_certificates_are_refused(tmp_path: Path) -> None:
    async def scenario(node: Node, own: NodeContexts) -> None:
        ca, authority = tmp_path / "a" / "ca.pem", Authority(tmp_path / "a")
        (expired,) = authority.issue(CertificateName("c", USER, "old"), (), days=-0.01)
        assert "expired" in await words(url(node, ca=ca, cert=expired))
        (alice,) = authority.issue(CertificateName("c", USER, "alice"), (), days=1)
        async with raftmq.connect(url(node, ca=ca, cert=alice), timeout=5) as mq:
            await mq.admin.create_topic("t", queues=1)
            authority.revoke(alice)
            assert own.reload() == {"crl"}
            node.trust_changed()
            with pytest.raises(RaftmqError):
                await mq.admin.create_topic("u", queues=1)
        assert "revoked" in await words(url(node, ca=ca, cert=alice))
        assert node.load.handshakes_failed > 1
        assert "revoked" in node.load.handshake_error

    with_node(scenario, tmp_path)


def test_link_refuses_a_process_that_is_another_node(tmp_path: Path) -> None:
    """Node 3 answers at the address of node 2: node 1 tells it nothing."""

    async def main() -> None:
        ports = free_ports(2)
        peers = [Peer(1, HOST, ports[0]), Peer(2, HOST, ports[1])]
        heard: list[bytes] = []
        three = contexts(tmp_path / "a", 3)
        listener = await RealWorld(three).listen(HOST, ports[1])

        async def impostor(stream: trio.abc.Stream) -> None:
            await secure(stream)
            heard.append(bytes(await stream.receive_some()))

        own = NodeSettings(1, "c", str(tmp_path / "data"), port=ports[0], peers=peers, groups=1)
        files = make_node(tmp_path / "a", 1)
        node = Node(Settings(own, tls=Tls(*files)), RealWorld(NodeContexts(files)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, impostor, [listener])
            nursery.start_soon(node.run)
            link = None
            with trio.fail_after(30):
                while link is None or not link.last_error:
                    await trio.sleep(0.01)
                    link = node.links.get(2) if hasattr(node, "links") else None
            assert "urn:raftmq:c:node:2" in link.last_error
            assert not link.is_connected
            nursery.cancel_scope.cancel()
        assert set(heard) <= {b""}

    trio.run(main)


def test_handshake_that_began_before_a_revocation_does_not_end_after_it(tmp_path: Path) -> None:
    async def scenario(node: Node, own: NodeContexts) -> None:
        files = make_node(tmp_path / "a", 2)
        theirs = NodeContexts(files).pair.connecting
        tcp = await trio.open_tcp_stream(HOST, node.settings.node.port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = theirs.wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
        await tcp.send_all(outgoing.read())
        while True:
            incoming.write(await tcp.receive_some())
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            break
        # The node has shown its certificate, and waits for the other end's.
        Authority(tmp_path / "a").revoke(Path(files.cert))
        assert own.reload() == {"crl"}
        node.trust_changed()
        end.write(b"".join(encode_frame(FrameKind.HELLO, 7, pack(hello(2)))))
        await tcp.send_all(outgoing.read())
        with suppress(trio.BrokenResourceError):
            while data := await tcp.receive_some():
                incoming.write(data)
        with pytest.raises(ssl.SSLError):
            end.read(100)
        await tcp.aclose()
        assert "changed during" in node.load.handshake_error

    with_node(scenario, tmp_path)


def test_session_is_not_resumed(tmp_path: Path) -> None:
    """A resumed session of TLS 1.2 would show no certificate."""

    def connect_twice(port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        # The first one stays open: OpenSSL forgets the session of a connection that was cut off.
        with context.wrap_socket(socket.create_connection((HOST, port))) as first:
            plain = socket.create_connection((HOST, port))
            with context.wrap_socket(plain, session=first.session) as second:
                assert second.session_reused
                assert second.recv(1) == b"", "the node ends such a connection"

    async def scenario(node: Node, _: NodeContexts) -> None:
        await trio.to_thread.run_sync(connect_twice, node.settings.node.port)
        assert "resumed" in node.load.handshake_error

    with_node(scenario, tmp_path)


def test_connections_without_a_handshake_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.broker.serve.connection.HELLO_SECONDS_MAX", 0.5)

    async def scenario(node: Node, _: NodeContexts) -> None:
        silent = [socket.create_connection((HOST, node.settings.node.port)) for _ in range(50)]
        half = [socket.create_connection((HOST, node.settings.node.port)) for _ in range(50)]
        for sock in half:
            sock.send(b"\x16\x03\x01")
        async with raftmq.connect(url(node, ca=tmp_path / "a" / "ca.pem")) as mq:
            await mq.admin.create_topic("t", queues=1)
            while node.load.connections > 2:
                await trio.sleep(0.05)
        for sock in (*silent, *half):
            sock.close()

    with_node(scenario, tmp_path)


def test_world_of_ones_own_is_not_taken_for_one_with_tls() -> None:
    with pytest.raises(Rejected, match="has no TLS"):
        raftmq.connect("raftmqs://db", world=ClientWorld())


def test_node_does_not_start_in_a_world_that_differs_on_tls(tmp_path: Path) -> None:
    own = NodeSettings(1, "c", str(tmp_path), peers=[Peer(1, HOST, 7400)])
    with pytest.raises(AssertionError):
        Node(Settings(own, tls=Tls("c", "k", "a")), RealWorld())
