"""Bad input and broken disks: each has a clear answer, and nothing that was acked is lost."""

import errno
from random import Random
from typing import Any

import pytest
import trio

from raftmq.batch.columns import U32, vector
from raftmq.broker.node import Node, NodeStopped
from raftmq.broker.replica.group import member_id
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import PROTOCOL, ErrorReply, FrameKind, Hello
from tests.batch.test_corrupt import made, resealed
from tests.broker.scenario import QUEUE, bodies, in_cluster

from .harness import Cluster, Refused


async def killed_follower(cluster: Cluster) -> tuple[int, int]:
    """Found a cluster, store ten batches, and kill a follower: (partition group, node)."""
    await cluster.found("t", 1)
    leader = cluster.leader_of(QUEUE)
    async with cluster.client(leader) as client:
        for n in range(10):
            await client.produce(QUEUE, [b"x" * 500], n)
    group = cluster.nodes[leader].catalog.group_of(QUEUE)
    assert group is not None
    victim = leader % 3 + 1
    cluster.kill(victim)
    return group, victim


def segment_path(group: int) -> str:
    """The first segment of a group's log: it follows the founding snapshot at index 1."""
    return f"/data/groups/{group:05d}/{2:020d}.log"


def test_full_disk_refuses_writes_serves_reads_and_recovers_when_space_returns() -> None:
    async def scenario(cluster: Cluster) -> list[bytes]:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        stored = 0
        async with cluster.client(leader) as client:
            for number in (1, 2, 3):
                files = cluster.files[number]
                files.space = files.used() + 20_000
            reply: ErrorReply | None = None
            with trio.fail_after(30):
                while reply is None:
                    try:
                        await client.produce(QUEUE, [b"%d" % stored + b"." * 1000], stored)
                        stored += 1
                    except Refused as refused:
                        reply = refused.reply
            # It was under way when the disk filled: its client hears that at once, with the reason.
            assert reply.code == "outcome_unknown"
            assert f"the disk of node {leader} is full" in reply.message
            assert 0 < stored < 60
            assert len(await bodies(cluster, QUEUE)) >= stored
            for number in (1, 2, 3):
                cluster.files[number].space = None
            await trio.sleep(10)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            # The batch whose answer never came: the same one again is safe, and it is there once.
            await client.produce(QUEUE, [b"%d" % stored + b"." * 1000], stored)
            stored += 1
        messages = await bodies(cluster, QUEUE)
        assert [int(body.split(b".")[0]) for body in messages] == list(range(stored))
        return messages

    in_cluster(scenario)


def test_failed_fsync_stops_the_node_with_a_message_and_the_others_go_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        victim = leader % 3 + 1
        cluster.files[victim].sync_error = errno.EIO
        async with cluster.client(leader) as client:
            for n in range(5):
                await client.produce(QUEUE, [b"x"], n)
        await trio.sleep(5)
        assert "FsyncFailed" in str(cluster.stopped.pop(victim))
        assert len(await bodies(cluster, QUEUE)) == 5

    in_cluster(scenario)


def test_torn_tail_is_cut_and_the_node_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        group, victim = await killed_follower(cluster)
        path = segment_path(group)
        files = cluster.files[victim]
        files.put(path, files.bytes_of(path) + b"half a frame")
        await cluster.start(victim)
        await trio.sleep(5)
        assert group is not None
        replicas = [node.groups[group].machine for node in cluster.nodes.values()]
        assert len({replica.digest for replica in replicas}) == 1

    in_cluster(scenario)


def test_data_folder_of_another_node_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        cluster.kill(1)
        cluster.kill(2)
        cluster.machines[1].disk = cluster.files[2]
        await cluster.start(1)
        assert "belongs to node 2" in str(cluster.stopped.pop(1))

    in_cluster(scenario)


def test_data_folder_in_use_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        node = Node(cluster.settings(2), cluster.worlds[2])
        with pytest.raises(NodeStopped, match="FolderLocked"):
            await node.run()

    in_cluster(scenario)


def test_wiped_disk_does_not_come_back_as_its_old_self() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            await client.produce(QUEUE, [b"x"], 0)
        cluster.kill(2)
        cluster.wipe(2)
        await cluster.start(2)
        assert cluster.nodes[2].generation == 1
        group = cluster.nodes[2].groups[SYSTEM_GROUP]
        assert group.raft.id == member_id(2, 1)
        await cluster.wait_until(lambda: 2 not in group.conf_state.voters)

    in_cluster(scenario)


def test_blank_node_waits_until_every_founder_has_answered() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.start, 1)
            nursery.start_soon(cluster.start, 2)
            await trio.sleep(30)
            assert all(not node.groups for node in cluster.nodes.values())
            nursery.start_soon(cluster.start, 3)
        await cluster.wait_led(0)

    in_cluster(scenario)


def test_clock_that_steps_back_never_takes_a_timestamp_back() -> None:
    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        stamps = []
        async with cluster.client(leader) as client:
            for n in range(6):
                if n == 3:
                    cluster.machines[leader].clock.skew_ms = -3_600_000
                stamps.append((await client.produce(QUEUE, [b"x"], n)).timestamp)
                await trio.sleep(1)
        return stamps

    stamps = in_cluster(scenario)
    assert stamps == sorted(stamps)
    assert stamps[3] == stamps[2]


FRAMES: dict[str, tuple[bytes, str]] = {
    "oversized": (b"\xff\xff\xff\x7f" + bytes(40), "protocol"),
    "random": (Random(1).randbytes(200), "protocol"),
    "damaged header": (
        b"".join(encode_frame(FrameKind.FETCH, 1, b"\x80"))[:-1] + b"\x81",
        "protocol",
    ),
    "header that is no CBOR": (b"".join(encode_frame(FrameKind.FETCH, 1, b"\xff")), "protocol"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_bad_frame_closes_its_connection_with_a_reason_and_no_other(name: str) -> None:
    frame, code = FRAMES[name]

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as good, cluster.client(leader) as bad:
            reply = await bad.last_words(frame)
            assert reply.code == code
            assert reply.message
            await good.produce(QUEUE, [b"x"], 0)

    in_cluster(scenario)


def test_request_with_a_field_of_the_wrong_type_is_answered_and_its_connection_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            with pytest.raises(Refused) as caught:
                await client.request(FrameKind.FETCH, b"\x83\x01\x02\x03")
            assert caught.value.reply.code == "bad_argument"
            assert "Fetch.queues" in caught.value.reply.message
            await client.produce(QUEUE, [b"x"], 0)

    in_cluster(scenario)


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (Hello(PROTOCOL, "another", 0, "", "test"), "wrong_cluster"),
        (Hello(PROTOCOL + 1, "", 0, "", "test"), "protocol"),
    ],
)
def test_hello_that_does_not_fit_is_refused_with_the_reason(hello: Hello, code: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.connection(1) as client:
            reply = await client.last_words(b"".join(encode_frame(FrameKind.HELLO, 0, pack(hello))))
            assert reply.code == code

    in_cluster(scenario)


def test_connection_must_begin_with_hello() -> None:
    async def scenario(cluster: Cluster) -> Any:
        await cluster.found()
        async with cluster.connection(1) as client:
            return await client.last_words(b"".join(encode_frame(FrameKind.STATUS, 1, b"\x80")))

    assert "HELLO" in in_cluster(scenario).message


def test_silent_connection_is_closed() -> None:
    async def scenario(cluster: Cluster) -> Any:
        await cluster.found()
        async with cluster.connection(1) as client:
            return await client.last_words(b"")

    assert "Hello" in in_cluster(scenario).message


def test_client_that_does_not_read_is_not_read_from_and_costs_bounded_memory() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        node = cluster.nodes[leader]
        async with cluster.client(leader) as client:
            await client.produce(QUEUE, [b"x" * 1_000_000], 0)
        async with cluster.connection(leader, is_lockstep=True) as deaf:
            await deaf.flood(Hello(PROTOCOL, "", 0, "", "deaf"), QUEUE, requests=100)
            await trio.sleep(5)
            # The limit, and the answer that went beyond it.
            limit = node.settings.limits.connection_bytes_max
            assert limit <= node.load.request_bytes < limit + 1_100_000
            async with cluster.client(leader) as client:
                await client.produce(QUEUE, [b"still served"], 1)
        await trio.sleep(1)
        assert node.load.request_bytes == 0

    in_cluster(scenario)


def test_client_that_reads_late_gets_every_answer() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as client:
            await client.produce(QUEUE, [b"x" * 1_000_000], 0)
        async with cluster.connection(leader, is_lockstep=True) as late:
            await late.flood(Hello(PROTOCOL, "", 0, "", "late"), QUEUE, requests=100)
            await trio.sleep(20)  # longer than a silent connection is kept
            async with trio.open_nursery() as nursery:
                nursery.start_soon(late.receive)
                await trio.sleep(5)
                nursery.cancel_scope.cancel()
            assert late.answer_count == 101

    in_cluster(scenario)


def test_batch_that_no_consumer_could_read_is_refused_with_the_reason() -> None:
    # Body lengths that add up to 1, a body of 3 bytes, and a checksum that fits.
    broken = made([vector(U32, [1, 0])], body=b"two")
    broken = resealed(broken[:8] + QUEUE.to_bytes(8, "little") + broken[16:])

    async def scenario(cluster: Cluster) -> ErrorReply:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            with pytest.raises(Refused) as refused:
                await client.request(FrameKind.PRODUCE, b"", [broken])
            await client.produce(QUEUE, [b"good"], 0)
        assert await bodies(cluster, QUEUE) == [b"good"]
        return refused.value.reply

    reply = in_cluster(scenario)
    assert reply.code == "corrupt_batch"
    assert "add up to 1" in reply.message
