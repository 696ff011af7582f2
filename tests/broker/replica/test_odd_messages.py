"""Odd consensus messages of a member."""

from collections.abc import Iterable
from functools import partial
from random import Random

import pytest
import trio

from raftmq.broker.replica.group import Group
from raftmq.broker.replica.opener import log_identity, log_meta, restore_machine
from raftmq.consensus import (
    Change,
    ChangeKind,
    MembershipChange,
    Message,
    MessageKind,
    Snapshot,
    SnapshotMeta,
    encode_change,
)
from raftmq.consensus.messages import TRANSFER
from raftmq.log.record import Kind, Record, encode
from raftmq.log.snapshot import encode_snapshot
from raftmq.machine.catalog.levels import LEVEL
from raftmq.wire import raft
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello, SnapshotChunk, Welcome
from raftmq.wire.numbers import NUMBER_MAX
from tests.broker.cluster.test_reconfiguration import produce_everywhere
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

ADDED = encode_change(MembershipChange((Change(ChangeKind.ADD_LEARNER, 9),)))


async def say(
    cluster: Cluster,
    messages: Iterable[Message],
    *,
    group: int = 2,
    node: int = 2,
    to: int = 1,
    name: str = "",
    before: bytes = b"",
    after: bytes = b"",
) -> None:
    """Send messages of a group to a node, from a process that says it is another node; and other
    frames before and after them."""
    known = cluster.nodes.get(node)
    name = name or (known.incarnation if known is not None else "stranger")
    cluster_name = cluster.settings(to).node.cluster
    async with cluster.connection(to) as client:
        hello = Hello(PROTOCOL, cluster_name, node, name, "x", f"node{node}", 7400, level=LEVEL)
        await client.ask(FrameKind.HELLO, hello, Welcome)
        if before:
            await client._stream.send_all(before)
            await trio.sleep(1)
        # In one piece, so that the node handles all in one step.
        frames = [b"".join(raft.encode(group, message)) for message in messages]
        await client._stream.send_all(b"".join(frames) + after)
        await trio.sleep(3)


@pytest.mark.parametrize("term", [1 << 62, NUMBER_MAX])
def test_vote_of_the_highest_term_leaves_terms_for_the_next_elections(term: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 3)
        # The most up-to-date log, and a transfer, so that nothing holds the candidate up.
        far = 1 << 40
        vote = Message(
            MessageKind.VOTE, 1, sender=2, term=term, context=TRANSFER, index=far, log_term=far
        )
        await say(cluster, [vote])
        cluster.kill(cluster.leader(2))
        await trio.sleep(20)
        assert cluster.leader(2)
        await cluster.start(*(node for node in (1, 2, 3) if node not in cluster.processes))
        await produce_everywhere(cluster, 3, 5)

    in_cluster(scenario)


def test_node_that_knows_only_nodes_that_are_gone_believes_their_heirs() -> None:
    """The node has no member to ask for the current leader, and would wait for ever."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 3)
        cluster.kill(3)
        await cluster.start(4)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.wait_until(lambda: cluster.has_joined(4))
        for old, new in ((1, 5), (2, 6)):
            await cluster.start(new)
            await cluster.change("replace", old, new=new, host=f"node{new}", port=7400)
            await cluster.wait_until(partial(cluster.has_joined, new))
            await cluster.wait_until(partial(lambda old: old not in cluster.members(0), old))
            cluster.kill(old)
        await cluster.start(3)
        await cluster.wait_until(lambda: 6 in cluster.nodes[3].catalog.nodes)

    in_cluster(scenario)


def chunk(index: int, data: bytes, *, correlation: int, size: int = 0) -> bytes:
    """The frame that offers a whole snapshot of group 2, or its start."""
    header = pack(SnapshotChunk(2, index, 0, size or len(data)))
    return b"".join(encode_frame(FrameKind.SNAPSHOT, correlation, header, [data]))


@pytest.mark.parametrize("case", ["no-file", "other-file-before", "other-file-after"])
def test_snapshot_is_installed_only_from_a_whole_file(case: str) -> None:
    """A file of another size is another member's: after an upgrade, say."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        group = cluster.nodes[1].groups[2]
        index, conf = group.raft.last_index + 50, group.conf_state
        machine = restore_machine(2, group.machine.snapshot())
        machine.applied = index
        meta = SnapshotMeta(index, group.raft.term, conf)
        identity = log_identity(cluster.nodes[1], 2)
        file = b"".join(encode_snapshot(identity, log_meta(meta), machine.snapshot()))
        whole = chunk(index, file, correlation=11)
        other = chunk(index, b"abc", correlation=12, size=1 << 20)
        sent = {
            "no-file": (b"", b""),
            "other-file-before": (whole + other, b""),
            "other-file-after": (whole, other),
        }
        before, after = sent[case]
        message = Message(
            MessageKind.SNAPSHOT, 1, sender=2, term=group.raft.term, snapshot=Snapshot(meta)
        )
        incarnation = cluster.nodes[2].incarnation
        for node in (2, 3):
            cluster.kill(node)
        await say(cluster, [message], before=before, after=after, name=incarnation)
        assert 1 in cluster.processes
        assert (group.raft.commit == index) is (case == "other-file-after")

    in_cluster(scenario)


FAR = (0, 1, -1, (1 << 62) - 1, 1 << 62, NUMBER_MAX, NUMBER_MAX + 1)
"""Edges of the numbers of a header."""
KINDS = sorted(raft.TRAVELLING_KINDS)
LIKELY = [MessageKind.APPEND] * 12 + [MessageKind.SNAPSHOT, MessageKind.HEARTBEAT] * 2
PAYLOADS = (b"", b"\xff", ADDED)
MESSAGES = 100


def near(random: Random, number: int) -> int:
    """Mostly a number, or one beside it; else one at an edge."""
    if random.random() < 0.9:
        return number + random.choice([0] * 9 + [-1, 1, 2])
    return random.choice(FAR)


def odd_record(random: Random, index: int, term: int, chain: int) -> Record:
    return encode(
        random.choice(PAYLOADS),
        index=index % (1 << 64),
        term=near(random, term) % (1 << 64),
        kind=random.choice([*Kind, 200]),
        timestamp=random.choice([0, 1 << 41, 1 << 62]),
        chain=chain ^ (random.random() < 0.1),
    )


def odd_message(random: Random, group: Group) -> Message:
    """A message as a member might send it, but for some of its fields."""
    log, term = group.raft._core.log, near(random, group.raft.term)
    index, entries, chain = near(random, log.last_index), [], log.last_crc
    for at in range(index + 1, index + 1 + random.choice([0, 1, 1, 2, 3])):
        entries.append(odd_record(random, at, log.last_term, chain))
        chain = entries[-1].crc
    snapshot = None
    if random.random() < 0.1:
        place = near(random, log.last_index + 9), near(random, term)
        snapshot = Snapshot(SnapshotMeta(*place, group.conf_state))
    return Message(
        random.choice([*KINDS, *LIKELY]),
        group.raft.id,
        sender=random.choice([2] * 20 + [2 | 1 << 32, 2 | 1 << 63]),
        term=term,
        log_term=near(random, log.last_term),
        index=index,
        commit=near(random, random.choice([log.committed, log.last_index])),
        entries=entries,
        reject=random.random() < 0.3,
        hint=near(random, log.committed),
        context=random.choice([b"", TRANSFER, b"123456789"]),
        snapshot=snapshot,
        commit_term=near(random, log.last_term),
    )


def ends_it(group: Group, message: Message) -> bool:
    """Whether a member that lies may end a node by a message: see `raftmq.wire.raft`."""
    last = group.raft.last_index
    if message.kind is MessageKind.HEARTBEAT:
        return message.commit > last
    if not message.entries:
        return False
    # Records that contradict ours mean that one of two logs is damaged.
    chains = message.entries[0].chain == group.raft._core.log.last_crc
    contradicts = message.index < last or (message.index == last and not chains)
    is_change = any(record.kind == Kind.MEMBERSHIP for record in message.entries)
    return contradicts or (is_change and message.commit < last)


@pytest.mark.parametrize("seed", range(8))
def test_odd_messages_end_no_node(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        random, group = Random(seed), cluster.nodes[1].groups[2]
        own, incarnation = cluster.settings(2).node, cluster.nodes[2].incarnation
        hello = Hello(PROTOCOL, own.cluster, 2, incarnation, "x", own.host, own.port, level=LEVEL)
        # The lies alone decide: no true leader mends what they did.
        for node in (2, 3):
            cluster.kill(node)
        for _ in range(MESSAGES):
            message = odd_message(random, group)
            if ends_it(group, message):
                continue
            async with cluster.connection(1) as client:
                await client.ask(FrameKind.HELLO, hello, Welcome)
                await client._stream.send_all(b"".join(raft.encode(2, message)))
                await trio.sleep(0.2)
            assert 1 in cluster.processes, (cluster.stopped, cluster.broken, message)

    in_cluster(scenario, seed=seed)
