"""A node without a catalog believes its settings, and the tables of the nodes named there."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio

from raftmq.broker.cluster import admission, links
from raftmq.broker.replica import replicas
from raftmq.broker.settings import Peer, Settings
from raftmq.chaos.world import Machine, MemoryFiles, Process
from raftmq.machine.catalog.levels import LEVEL
from raftmq.machine.catalog.replicas import GENERATION_MAX, member_id
from raftmq.wire.codec import pack
from raftmq.wire.frame import FrameParser, encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    AdminDone,
    ClusterView,
    FrameKind,
    Hello,
    NodeView,
    ProbeReply,
    Welcome,
)
from tests.broker.harness import Cluster
from tests.broker.replica.test_reentry import wait_voters, wipe
from tests.broker.replica.test_replicas import lose
from tests.broker.scenario import in_cluster

from .test_reconfiguration import check_everywhere, produce_everywhere

GUEST = 77
Lies = Mapping[int, msgspec.Struct]
WELCOME = Welcome(PROTOCOL, "test", GUEST, "x", "x", 1 << 20, 1 << 20)


@asynccontextmanager
async def guest(
    cluster: Cluster, node: int, answers: Lies, *, host: str = "evil"
) -> AsyncIterator[set[int]]:
    """A stranger says Hello to a node and answers its requests; yields the kinds of requests."""
    process = Process(Machine(host, cluster.agenda, MemoryFiles()), cluster.agenda, seed=1)
    listener = await cluster.network.listen(process, 80)
    asked: set[int] = set()

    async def answer(stream: trio.abc.Stream) -> None:
        parser = FrameParser(1 << 20)
        while data := await stream.receive_some():
            parser.feed(bytes(data))
            for frame in parser.frames():
                asked.add(frame.kind)
                found = answers.get(frame.kind)
                if found is not None:
                    parts = encode_frame(frame.kind | REPLY, frame.correlation, pack(found))
                    await stream.send_all(b"".join(parts))

    async def accept(nursery: trio.Nursery) -> None:
        while True:
            nursery.start_soon(answer, await listener.accept())

    async with cluster.connection(node) as client, trio.open_nursery() as nursery:
        hello = Hello(PROTOCOL, "test", GUEST, "", "x", host, 80, level=LEVEL)
        await client.ask(FrameKind.HELLO, hello, Welcome)
        nursery.start_soon(accept, nursery)
        yield asked
        nursery.cancel_scope.cancel()


async def wait_listens(cluster: Cluster, node: int) -> None:
    """Wait until a node that was started listens."""
    await cluster.wait_until(
        lambda: node in cluster.nodes and bool(cluster.nodes[node].incarnation)
    )


def test_guest_does_not_let_a_node_open_a_blank_log_under_its_old_id() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        for node in (1, 2, 3):
            cluster.kill(node)
        lose(cluster.files[2], 0, how="empty")
        cluster.start_soon(2)
        await wait_listens(cluster, 2)
        lies: Lies = {FrameKind.HELLO: WELCOME, FrameKind.ADMIN: AdminDone(member_id(2, 0))}
        async with guest(cluster, 2, lies) as asked:
            await trio.sleep(10)
            assert not cluster.nodes[2].is_serving
            assert asked == {FrameKind.HELLO, FrameKind.PROBE}
            await cluster.start(1, 3)
            await cluster.wait_until(lambda: 0 in cluster.nodes[2].groups)
        assert cluster.nodes[2].groups[0].raft.id == member_id(2, 0, 1)
        await cluster.wait_known("t")
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


LIES = {
    "lets-it-in": ProbeReply("", is_latest=True, generation=1),
    "ends-it": ProbeReply("", is_latest=True, refusal="go away"),
    "knows-another-folder": ProbeReply("00", generation=3),
    "knows-another-first-folder": ProbeReply("00"),
}


@pytest.mark.parametrize("lie", LIES)
def test_guest_decides_nothing_for_a_blank_folder(lie: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        for node in (1, 3):
            cluster.kill(node)
        wipe(cluster, 2)
        cluster.start_soon(2)
        await wait_listens(cluster, 2)
        lies: Lies = {FrameKind.HELLO: WELCOME, FrameKind.PROBE: LIES[lie]}
        async with guest(cluster, 2, lies) as asked:
            await trio.sleep(10)
            assert not cluster.nodes[2].is_serving
            assert "an answer of nodes [1, 3]" in cluster.nodes[2].waits_for
            # It is asked only whether the founder may found.
            assert asked == {FrameKind.HELLO, FrameKind.PROBE}
            await cluster.start(1, 3)
            await wait_voters(cluster, 1, member_id(2, 1), 3)
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


def test_guest_ends_no_founder_that_has_a_topic() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        lies: Lies = {
            FrameKind.HELLO: WELCOME,
            FrameKind.PROBE: LIES["knows-another-first-folder"],
        }
        async with guest(cluster, 2, lies) as asked:
            await trio.sleep(5)
            assert asked == {FrameKind.HELLO}
            cluster.kill(2)
            await trio.sleep(1)
            cluster.start_soon(2)
            await wait_listens(cluster, 2)
        async with guest(cluster, 2, lies, host="evil2"):
            # While its log is applied its catalog has no topic yet.
            await trio.sleep(10)
            assert cluster.nodes[2].is_serving
        await produce_everywhere(cluster, 0, 5)
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


async def replace_two_founders(cluster: Cluster) -> None:
    """Nodes 4, 5 and 6 come, 1 and 2 go; 3, which all settings name, leads nothing."""
    await cluster.found("t", 3)
    await produce_everywhere(cluster, 0, 5)
    await cluster.start(4)
    await cluster.change("add", 4, host="node4", port=7400)
    await cluster.wait_until(lambda: cluster.has_joined(4))
    for old, new in ((1, 5), (2, 6)):
        await cluster.start(new)
        await cluster.change("replace", old, new=new, host=f"node{new}", port=7400)
        await cluster.wait_until(partial(lambda n: n not in cluster.nodes[3].catalog.nodes, old))
        cluster.kill(old)


async def make_lead_by_a_stranger(cluster: Cluster) -> None:
    """The system group is led by a node that the settings of 4 do not name."""
    while cluster.leader(0) not in (5, 6):
        leader = cluster.leader(0)
        if leader:
            system = cluster.nodes[leader].groups[0]
            system.transfer(next(m for m in system.conf_state.voters if m in (5, 6)))
        await trio.sleep(0.5)


def end_without(cluster: Cluster, lost: str) -> None:
    """Node 4 ends, and its disk loses the log of the system group, or the whole folder."""
    cluster.kill(4)
    if lost == "log":
        lose(cluster.files[4], 0, how="empty")
    else:
        cluster.wipe(4)


@pytest.mark.parametrize("lost", ["log", "folder"])
def test_leader_that_the_settings_never_named_is_found_by_the_tables(lost: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await replace_two_founders(cluster)
        end_without(cluster, lost)
        await make_lead_by_a_stranger(cluster)
        await cluster.start(4)
        taker = member_id(4, 0, 1) if lost == "log" else member_id(4, 1)
        await cluster.wait_until(lambda: cluster.nodes[4].groups[0].raft.id == taker)
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


@pytest.mark.parametrize("lost", ["log", "folder"])
def test_node_whose_settings_name_nobody_of_today_says_what_to_do(lost: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await replace_two_founders(cluster)
        end_without(cluster, lost)
        cluster.kill(3)
        settings = cluster.settings
        cluster.start_soon(4)
        await trio.sleep(10)
        assert "none of nodes [1, 2, 3] is reached" in cluster.nodes[4].waits_for
        assert "name some of them in `join`" in cluster.nodes[4].waits_for
        cluster.kill(4)

        def of_today(number: int) -> Settings:
            found = settings(number)
            join = [Peer(5, "node5", 7400)]
            return msgspec.structs.replace(
                found, node=msgspec.structs.replace(found.node, join=join)
            )

        cluster.settings = of_today  # type: ignore[method-assign]
        await cluster.start(4, 3)
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


def test_node_whose_settings_name_blank_nodes_alone_says_what_to_do() -> None:
    async def scenario(cluster: Cluster) -> None:
        await replace_two_founders(cluster)
        cluster.kill(4)
        cluster.wipe(4)
        cluster.kill(3)
        cluster.wipe(3)
        for node in (3, 4):
            cluster.start_soon(node)
        await trio.sleep(10)
        assert "nodes [5, 6] say Hello" in cluster.nodes[4].waits_for
        assert "name some of them in `join`" in cluster.nodes[4].waits_for

    in_cluster(scenario)


def test_newest_table_says_who_is_a_member_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        own = cluster.nodes[1].links
        nodes = [NodeView(n, f"node{n}", 7400) for n in (1, 2, 3)]

        async def told(*tables: ClusterView) -> None:
            async def ask_all(_: object) -> dict[int, ClusterView]:
                return dict(enumerate(tables))

            monkeypatch.setattr(links, "ask_all", ask_all)
            await own.introduce()

        def table(version: int, *added: NodeView) -> ClusterView:
            return ClusterView("test", version, [*nodes, *added], [], [])

        def where() -> dict[int, str]:
            return {link.peer.id: link.peer.host for link in own.members()}

        async with guest(cluster, 1, {FrameKind.HELLO: WELCOME}):
            link = own.get(GUEST)
            assert link is not None
            await cluster.wait_until(lambda: link.is_connected)
            assert where() == {2: "node2", 3: "node3"}
            moved = NodeView(4, "new", 7400)
            await told(table(10**6, NodeView(4, "old", 7400)), table(10**6 + 1, moved))
            assert where() == {2: "node2", 3: "node3", 4: "new"}
            await told(table(10**6, NodeView(4, "old", 7400)))
            assert where()[4] == "new"
            await told(table(10**6 + 2, moved, NodeView(GUEST, "node3", 7400)))
            assert where()[GUEST] == "node3"
            assert not link.is_connected, "answers of the guest could be taken for the member's"
        await trio.sleep(3)
        assert where() == {2: "node2", 3: "node3", 4: "new", GUEST: "node3"}

    in_cluster(scenario)


@pytest.mark.parametrize(
    ("taker", "is_taken"),
    [
        (member_id(2, 1, 3), True),
        (member_id(2, 1, 4), True),
        (member_id(2, 1, 2), False),
        (member_id(2, 0, 4), False),
        (member_id(2, 2, 4), False),
        (member_id(3, 1, 4), False),
        (0, False),
    ],
)
def test_lost_replica_takes_an_id_of_its_own_folder_that_is_no_lower(
    taker: int, is_taken: bool
) -> None:
    assert replicas._may_take(taker, member_id(2, 1, 3)) is is_taken


@pytest.mark.parametrize("generation", [-1, GENERATION_MAX + 1])
def test_generation_that_no_folder_can_have_counts_as_no_answer(generation: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        node = cluster.nodes[1]
        (link, *_) = node.links.members()
        known = await admission._ask(node, link, replaces="")
        assert known is not None
        reply = msgspec.structs.replace(known, generation=generation)

        async def ask(*_: object) -> ProbeReply:
            return reply

        link.ask = ask  # type: ignore[method-assign,assignment]
        assert await admission._ask(node, link, replaces="") is None

    in_cluster(scenario)
