"""Links to other nodes: wrong addresses, strangers and bad answers do a node no harm."""

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from raftmq.broker.cluster.links import GUESTS_MAX, Links
from raftmq.broker.cluster.peers import PeerLink
from raftmq.broker.cluster.preference import prefer
from raftmq.broker.cluster.views import ask_all
from raftmq.broker.serve.outbox import Step
from raftmq.broker.settings import Peer
from raftmq.broker.system_world import RealWorld
from raftmq.broker.tickets import Callback
from raftmq.broker.world import give_up_after
from raftmq.chaos.world import Machine, MemoryFiles, Process
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import Node, PutNode
from raftmq.machine.catalog.levels import LEVEL
from raftmq.machine.commands import encode_commands
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, ErrorReply, FrameKind, Hello, Welcome
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import in_cluster

NAMES = [("a..b", 80), ("x" * 64, 80), ("é" * 70, 80), ("\ud7ff", 80), ("ok", 2**64 - 1), ("", -1)]


def test_hello_with_an_address_that_is_none_is_refused_and_ends_no_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        for host, port in NAMES:
            hello = Hello(PROTOCOL, "test", 77, "", "stranger", host, port, level=LEVEL)
            async with cluster.connection(1) as stranger:
                words = await stranger.last_words(
                    b"".join(encode_frame(FrameKind.HELLO, 0, pack(hello)))
                )
            assert "is no host" in words.message or "is no port" in words.message
        assert sorted(cluster.nodes) == [1, 2, 3]

    in_cluster(scenario)


def test_no_request_brings_an_address_that_is_none_into_the_catalog() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        with pytest.raises(Refused, match=r"'node\.\.4' is no host"):
            await cluster.change("add", 4, host="node..4", port=7400)
        async with cluster.client(cluster.leader(0)) as client:
            with pytest.raises(Refused, match="65536 is no port"):
                await client.admin("put_node", [4, "node4", 65_536])

    in_cluster(scenario)


def test_cluster_whose_log_holds_an_address_that_is_none_serves_and_starts_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        system = cluster.nodes[cluster.leader(0)].groups[0]
        commands = [PutNode(Node(4 + n, *where)) for n, where in enumerate(NAMES)]
        ignored = Callback(lambda _: None, lambda _: None)
        system.propose(Kind.COMMANDS, encode_commands(commands), ignored)
        await cluster.wait_until(lambda: all(4 in n.catalog.nodes for n in cluster.nodes.values()))
        await trio.sleep(5)
        for number in (1, 2, 3):
            cluster.kill(number)
        await cluster.start()
        await cluster.wait_led(0, 1, 2, 3)
        link = cluster.nodes[1].links.get(4)
        assert link is not None
        await cluster.wait_until(lambda: link.last_error.startswith("UnicodeError"))

    in_cluster(scenario)


def test_answers_of_peers_that_cannot_be_read_end_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        node = cluster.nodes[1]
        for link in node.links.all():
            monkeypatch.setattr(link, "request", garbled)
        assert list(await ask_all(node)) == [1]
        other = next(n for n in (2, 3) if n != cluster.leader(0))
        wanted = next(g for g in node.catalog.groups.values() if other in g.members[1:])
        if cluster.leader(0) != 1:
            error = await prefer(node, node.groups[wanted.id], other)
            assert error is not None
            assert "no answer to read" in error.message

    in_cluster(scenario)


async def garbled(kind: int, *_: Any) -> Any:
    """An answer of another software."""
    return Frame(kind | REPLY, 1, b"\x9f\x01", b"")


def test_strangers_are_linked_back_a_few_at_a_time_and_only_while_they_stay() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        links = cluster.nodes[1].links
        async with AsyncExitStack() as strangers:
            for n in range(50):
                client = await strangers.enter_async_context(cluster.connection(1))
                hello = Hello(PROTOCOL, "test", 1000 + n, "", "x", "any-host", 80, level=LEVEL)
                await client.ask(FrameKind.HELLO, hello, Welcome)
                assert len(links.all()) <= 2 + GUESTS_MAX
            nameless = await strangers.enter_async_context(cluster.connection(1))
            hello = Hello(PROTOCOL, "", 2000, "", "x", "any-host", 80, level=LEVEL)
            await nameless.ask(FrameKind.HELLO, hello, Welcome)
            assert links.get(2000) is None
            assert len(links.all()) == 2 + GUESTS_MAX
        await cluster.wait_until(lambda: [link.peer.id for link in links.all()] == [2, 3])

    in_cluster(scenario)


def test_strangers_who_say_that_a_member_moved_cost_a_round_of_questions_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[float] = []
    introduce = Links.introduce

    async def counted(self: Links) -> None:
        rounds.append(trio.current_time())
        await introduce(self)

    monkeypatch.setattr(Links, "introduce", counted)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        rounds.clear()
        hello = Hello(PROTOCOL, "test", 2, "", "x", "elsewhere", 80, level=LEVEL)
        for _ in range(50):
            async with cluster.connection(1) as client:
                await client.ask(FrameKind.HELLO, hello, Welcome)
            await trio.sleep(0.1)
        last = trio.current_time()
        await trio.sleep(10)
        assert 5 <= len(rounds) <= 8
        assert rounds[-1] >= last - 0.2, "the last one was heard, too"

    in_cluster(scenario)


@asynccontextmanager
async def evil_node(cluster: Cluster) -> AsyncGenerator[trio.abc.Stream]:
    """A stranger introduces itself to node 1 as node 77: node 1's connection to the stranger."""
    process = Process(Machine("evil", cluster.agenda, MemoryFiles()), cluster.agenda, seed=1)
    listener = await cluster.network.listen(process, 80)
    async with cluster.connection(1) as client:
        hello = Hello(PROTOCOL, "test", 77, "", "x", "evil", 80, level=LEVEL)
        await client.ask(FrameKind.HELLO, hello, Welcome)
        yield await listener.accept()


def test_stranger_who_says_superseded_ends_no_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        async with evil_node(cluster) as stream:
            welcome = Welcome(PROTOCOL, "test", 77, "x", "x", 1 << 20, 1 << 20)
            parts = encode_frame(FrameKind.HELLO | REPLY, 0, pack(welcome))
            parts += encode_frame(FrameKind.ERROR, 0, pack(ErrorReply("superseded", "go away")))
            await stream.send_all(b"".join(parts))
            await trio.sleep(10)
        assert sorted(cluster.nodes) == [1, 2, 3]

    in_cluster(scenario)


def test_guest_whose_answers_cannot_be_read_ends_no_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 3)
        process = Process(Machine("evil", cluster.agenda, MemoryFiles()), cluster.agenda, seed=1)
        listener = await cluster.network.listen(process, 80)
        asked: set[int] = set()
        async with trio.open_nursery() as nursery, AsyncExitStack() as strangers:
            for number in (1, 2, 3):
                client = await strangers.enter_async_context(cluster.connection(number))
                hello = Hello(PROTOCOL, "test", 77, "", "x", "evil", 80, level=LEVEL)
                await client.ask(FrameKind.HELLO, hello, Welcome)
                nursery.start_soon(answer_garbage, await listener.accept(), asked)
            # Nodes ask for clocks less than three times a minute.
            await trio.sleep(25)
            nursery.cancel_scope.cancel()
        assert sorted(cluster.nodes) == [1, 2, 3]

    in_cluster(scenario)


def test_guest_who_claims_a_newer_term_decides_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 3)
        process = Process(Machine("evil", cluster.agenda, MemoryFiles()), cluster.agenda, seed=1)
        listener = await cluster.network.listen(process, 80)
        asked: set[int] = set()
        leader = cluster.nodes[cluster.leader(0)]
        async with cluster.connection(leader.id) as client, trio.open_nursery() as nursery:
            hello = Hello(PROTOCOL, "test", 77, "", "x", "evil", 80, level=LEVEL)
            await client.ask(FrameKind.HELLO, hello, Welcome)
            nursery.start_soon(answer_garbage, await listener.accept(), asked)
            link = leader.links.get(77)
            assert link is not None
            await cluster.wait_until(lambda: link.is_connected)
            assert set(await ask_all(leader)) == {1, 2, 3}
            await trio.sleep(25)
            nursery.cancel_scope.cancel()
        assert asked == {FrameKind.HELLO}, "a guest was asked for its table, or its clock"

    in_cluster(scenario)


def test_client_under_a_nodes_number_retires_no_log_of_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 3)
        leader = cluster.leader(0)
        victim = next(node for node in (1, 2, 3) if node != leader)
        hello = Hello(PROTOCOL, "test", victim, "", "x", f"node{victim}", 7400, level=LEVEL)
        async with cluster.connection(leader) as client:
            await client.ask(FrameKind.HELLO, hello, Welcome)
            for group in (0, 1):
                with pytest.raises(Refused, match="does not say itself"):
                    await client.admin("retire_replica", group, victim, True)
        await trio.sleep(5)
        assert sorted(cluster.nodes) == [1, 2, 3]

    in_cluster(scenario)


async def answer_garbage(stream: trio.abc.Stream, asked: set[int]) -> None:
    """Say Welcome, then answer every request with unreadable bytes."""
    welcome = Welcome(PROTOCOL, "test", 77, "x", "x", 1 << 20, 1 << 20)
    await stream.send_all(b"".join(encode_frame(FrameKind.HELLO | REPLY, 0, pack(welcome))))
    parser = FrameParser(1 << 20)
    while data := await stream.receive_some():
        parser.feed(bytes(data))
        for frame in parser.frames():
            asked.add(frame.kind)
            parts = encode_frame(frame.kind | REPLY, frame.correlation, b"\xff")
            await stream.send_all(b"".join(parts))


def test_link_to_a_node_that_moved_is_cut_at_once() -> None:
    async def scenario(cluster: Cluster) -> float:
        await cluster.found()
        link = cluster.nodes[1].links.get(2)
        assert link is not None
        assert link.is_connected
        began = trio.current_time()
        link.move(Peer(2, "node3", 7400))
        await cluster.wait_until(lambda: not link.is_connected)
        return trio.current_time() - began

    assert in_cluster(scenario) < 0.1


def test_link_that_moves_while_it_is_made_leads_to_the_new_address() -> None:
    async def scenario(cluster: Cluster) -> float:
        await cluster.found()
        async with evil_node(cluster) as stream:
            await stream.receive_some()
            link = cluster.nodes[1].links.get(77)
            assert link is not None
            # Before the Welcome.
            link.move(Peer(77, "node3", 7400))
            began = trio.current_time()
            await cluster.wait_until(lambda: link.is_connected)
            assert link.incarnation == cluster.nodes[3].incarnation
            return trio.current_time() - began

    assert in_cluster(scenario) < 1


def test_welcome_of_an_address_that_was_left_meanwhile_opens_no_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    greet, opened = PeerLink._greet, list[str]()

    async def moved_meanwhile(link: PeerLink, *arguments: Any) -> Any:
        found = await greet(link, *arguments)
        if link.peer.host == "node2":
            # The Welcome has arrived, and its task has not run yet.
            link.move(Peer(2, "node3", 7400))
        return found

    async def scenario(cluster: Cluster) -> None:
        monkeypatch.setattr(PeerLink, "_greet", moved_meanwhile)
        await cluster.start(1, 2, 3)
        link = cluster.nodes[1].links.get(2)
        assert link is not None
        link._on_open = lambda _: opened.append(link.incarnation)
        link.move(Peer(2, "node2", 7400))
        await cluster.wait_until(lambda: bool(opened))
        assert opened[0] == cluster.nodes[3].incarnation
        monkeypatch.undo()

    in_cluster(scenario)


def test_frame_that_comes_along_with_the_welcome_is_acted_on_at_once() -> None:
    refusals: list[str] = []
    trio.run(hear_a_refusal, lambda reply: refusals.append(reply.code))
    assert refusals == ["superseded"]


def test_assertion_that_fails_while_a_link_reads_ends_the_node() -> None:
    def fail(reply: ErrorReply) -> None:
        raise AssertionError(reply.code)

    with pytest.raises(ExceptionGroup) as raised:
        trio.run(hear_a_refusal, fail)
    assert raised.value.subgroup(AssertionError) is not None


@pytest.mark.parametrize("is_refused", [True, False])
def test_node_of_another_cluster_that_is_gone_is_forgotten(is_refused: bool) -> None:
    async def main() -> tuple[bool, bool]:
        here, there = trio.testing.memory_stream_pair()
        world = OneStream(here)
        link = link_over(world)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await there.receive_some()
            why = ErrorReply(Reason.WRONG_CLUSTER.value, "this is cluster 'other', not 'test'")
            await there.send_all(b"".join(encode_frame(FrameKind.ERROR, 0, pack(why))))
            await trio.testing.wait_all_tasks_blocked()
            was_other = link.is_of_other_cluster
            # The next attempt is refused, or finds the connection closed.
            world.is_refusing = is_refused
            link.hurry()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return was_other, link.is_of_other_cluster

    assert trio.run(main) == (True, False)


async def hear_a_refusal(on_refused: Callable[[ErrorReply], None]) -> None:
    """A link is welcomed, and told `superseded` with the same read."""
    here, there = trio.testing.memory_stream_pair()
    welcome = Welcome(PROTOCOL, "test", 2, "folder", "raftmq", 1 << 20, 1 << 20)
    why = ErrorReply("superseded", "another folder took your place")
    parts = encode_frame(FrameKind.HELLO | REPLY, 0, pack(welcome))
    parts += encode_frame(FrameKind.ERROR, 0, pack(why))
    link = link_over(OneStream(here), on_refused)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await there.receive_some()
        await there.send_all(b"".join(parts))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


def link_over(
    world: "OneStream", on_refused: Callable[[ErrorReply], None] = lambda _: None
) -> PeerLink:
    """A link to node 2, which has one connection."""
    return PeerLink(
        Peer(2, "node2", 7400),
        lambda: Hello(PROTOCOL, "test", 1, "own", "raftmq", level=LEVEL),
        world=world,
        step=Step(),
        unsent_bytes_max=1 << 20,
        frame_bytes_max=1 << 20,
        on_open=lambda _: None,
        on_lost=lambda *_: None,
        on_refused=on_refused,
    )


class OneStream:
    """A world with one connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.files: Any = None
        self.random = Random(1)
        self.descriptors_max = 1024
        self.is_under_tls = False
        self.certificate_ends_ms = 0
        self.process_id = 1
        self._stream = stream
        self.is_refusing = False

    def now_ms(self) -> int:
        """Never asked."""
        return 0

    def worker(self, name: str, nursery: trio.Nursery) -> Any:
        """Never asked."""

    async def listen(self, host: str, port: int) -> Any:
        """Never asked."""

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """The connection."""
        if self.is_refusing:
            raise ConnectionRefusedError
        return self._stream


def test_cluster_serves_soon_after_an_outage_of_a_minute() -> None:
    async def scenario(cluster: Cluster) -> float:
        await cluster.found("orders", 3)
        links = [(f"node{a}", f"node{b}") for a in (1, 2, 3) for b in (1, 2, 3) if a != b]
        for link in links:
            cluster.network.block(*link)
        await trio.sleep(55)
        for link in links:
            cluster.network.unblock(*link)
        healed = trio.current_time()
        await cluster.wait_led(0, 1, 2, 3)
        return trio.current_time() - healed

    # Without a timeout of their own the links are silent for 47 s more.
    assert in_cluster(scenario) < 10


def test_sockets_of_links_and_clients_have_a_patience_of_their_own() -> None:
    async def main() -> list[tuple[int, int]]:
        world = RealWorld()
        listener = await world.listen("127.0.0.1", 0)
        found = []
        port = listener._listener.socket.getsockname()[1]  # type: ignore[attr-defined]
        near = await world.connect("127.0.0.1", port)
        far = await listener.accept()
        for stream, seconds in ((near, 5.0), (far, 30.0)):
            give_up_after(stream, seconds)
            raw = stream._socket  # type: ignore[attr-defined]
            found.append(
                (
                    raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                    raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                )
            )
            await stream.aclose()
        await listener.aclose()
        return found

    assert trio.run(main) == [(5000, 1), (30_000, 1)]
