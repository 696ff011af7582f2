"""Founders that all lost their folders found nothing beside nodes that joined later."""

from functools import partial

import pytest
import trio

from raftmq.broker.cluster.links import FOLDER_CHARACTERS_MAX, GUESTS_MAX
from raftmq.broker.cluster.peer_identities import PeerIdentities
from raftmq.broker.serve.connection import Refusal
from raftmq.chaos.world import Machine, MemoryFiles, Process
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.catalog.catalog import Node as CatalogNode
from raftmq.machine.catalog.levels import LEVEL
from raftmq.machine.catalog.replicas import member_id
from raftmq.wire.codec import pack
from raftmq.wire.frame import FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, FrameKind, Hello, ProbeReply, Welcome
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, in_cluster

FOUNDERS = (1, 2, 3)


async def grow(cluster: Cluster) -> None:
    await cluster.found("t", 3)
    for node in (4, 5):
        await cluster.start(node)
        await cluster.change("add", node, host=f"node{node}", port=7400)
        await cluster.wait_until(partial(cluster.has_joined, node))
    async with cluster.client(cluster.leader_of(QUEUE)) as client:
        await client.produce(QUEUE, [b"kept"], 0)


def lose_all_founders(cluster: Cluster) -> None:
    for node in FOUNDERS:
        if node in cluster.processes:
            cluster.kill(node)
        cluster.wipe(node)


@pytest.mark.campaign
def test_founders_without_folders_found_nothing_beside_nodes_that_joined_later() -> None:
    async def scenario(cluster: Cluster) -> None:
        await grow(cluster)
        lose_all_founders(cluster)
        for node in FOUNDERS:
            # The first two meet the later nodes while they wait for the third.
            cluster.start_soon(node)
            await trio.sleep(2)
        await trio.sleep(10)
        # The third one hears from both that the cluster is new, and may then meet the later nodes.
        ended = cluster.stopped.pop(3, None)
        assert ended is None or "FoundedBefore" in str(ended)
        ends.append(ended is not None)
        for node in FOUNDERS[: 2 if ended else 3]:
            assert not cluster.nodes[node].is_serving
            assert "`join` in place of `peers`" in cluster.nodes[node].waits_for
            assert not cluster.nodes[node].groups

    ends: list[bool] = []
    for seed in range(13, 25):
        in_cluster(scenario, seed=seed)
    assert set(ends) == {True, False}


def test_founders_that_founded_before_they_met_a_later_node_end() -> None:
    async def scenario(cluster: Cluster) -> None:
        await grow(cluster)
        for node in (4, 5):
            cluster.kill(node)
        lose_all_founders(cluster)
        await cluster.start(*FOUNDERS)
        await cluster.wait_led(0)
        cluster.start_soon(4)
        await cluster.wait_until(lambda: set(cluster.stopped) == set(FOUNDERS))
        assert all("FoundedBefore" in str(fault) for fault in cluster.stopped.values())
        # A restart with their folders ends, too: node 4 is still there.
        await cluster.start(*FOUNDERS)
        await cluster.wait_until(lambda: set(cluster.stopped) == set(FOUNDERS))
        # The later node kept its state and obeyed no founder.
        catalog = cluster.nodes[4].catalog
        assert sorted(catalog.nodes) == [1, 2, 3, 4, 5]
        assert "t" in catalog.topics
        cluster.stopped.clear()

    in_cluster(scenario)


def test_founder_of_a_cluster_that_began_with_one_node_ends_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.peers = cluster.peers[:1]
        await cluster.found("t", 1)
        await cluster.start(4)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.wait_until(lambda: cluster.has_joined(4))
        cluster.kill(1)
        cluster.wipe(1)
        await cluster.start(1)
        await cluster.wait_until(lambda: 1 in cluster.stopped)
        assert "FoundedBefore" in str(cluster.stopped[1])
        cluster.stopped.clear()

    in_cluster(scenario)


@pytest.mark.parametrize(("name", "is_taken"), [("", True), ("aa", True), ("bb", False)])
def test_folder_that_the_catalog_does_not_name_is_not_obeyed(name: str, *, is_taken: bool) -> None:
    catalog = Catalog()
    catalog.nodes[2] = CatalogNode(2, "node2", 7400, incarnation=name)
    files = MemoryFiles()
    files.make_folder("data")
    known = PeerIdentities(files, "data", lambda: catalog)
    hello = Hello(PROTOCOL, "test", 2, "aa", "x", "node2", 7400, level=LEVEL)
    if is_taken:
        known.admit(hello, member_id(2, 0))
    else:
        with pytest.raises(Refusal, match="was swapped"):
            known.admit(hello, member_id(2, 0))


def test_strangers_that_object_to_a_founder_fill_no_memory() -> None:
    async def scenario(cluster: Cluster) -> None:
        process = Process(Machine("evil", cluster.agenda, MemoryFiles()), cluster.agenda, seed=1)
        listener = await cluster.network.listen(process, 80)
        # The founder waits for the answers of the two others.
        cluster.start_soon(1)
        await trio.sleep(1)
        for number in range(100, 120):
            async with cluster.connection(1) as client, trio.open_nursery() as nursery:
                hello = Hello(PROTOCOL, "test", number, "", "x", "evil", 80, level=LEVEL)
                await client.ask(FrameKind.HELLO, hello, Welcome)
                nursery.start_soon(object_to_it, await listener.accept(), number)
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
        objections = cluster.nodes[1].links.objections
        assert 1 <= len(objections) <= GUESTS_MAX
        assert all(len(name) <= FOLDER_CHARACTERS_MAX for name in objections.values())

    in_cluster(scenario)


async def object_to_it(stream: trio.abc.Stream, number: int) -> None:
    """Say Welcome as a node that knew the asking node by another folder."""
    welcome = Welcome(PROTOCOL, "test", number, "x", "x", 1 << 20, 1 << 20)
    await stream.send_all(b"".join(encode_frame(FrameKind.HELLO | REPLY, 0, pack(welcome))))
    parser = FrameParser(1 << 20)
    while data := await stream.receive_some():
        parser.feed(bytes(data))
        for frame in parser.frames():
            if frame.kind == FrameKind.PROBE:
                header = pack(ProbeReply("f" * 100_000))
                parts = encode_frame(frame.kind | REPLY, frame.correlation, header)
                await stream.send_all(b"".join(parts))
