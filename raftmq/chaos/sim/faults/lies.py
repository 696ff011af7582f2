"""A stranger's lies: answers that a node can read and that are not true.

A lie fits its question as far as a stranger can know. It names the asking node, its folder and its
member id; the other values are extremes, or those of a healthy cluster. A node that believes a lie
ends, forgets its votes, or looks for members where no node is. Its last words then quote `SAYS`.
"""

from random import Random
from typing import Any

from raftmq.chaos.sim.cluster import PORT
from raftmq.machine.catalog.replicas import GENERATION_MAX, NODE_BITS, REPLICA_BITS
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    Admin,
    AdminDone,
    ClusterView,
    FrameKind,
    GroupView,
    NodeView,
    Probe,
    ProbeReply,
    RepairedRange,
    SnapshotProgress,
)

SAYS = "so a stranger says"
"""The name of a folder, and the reason of a refusal, that only strangers give."""
NODES = range(1, 8)
"""Nodes that a table names: founders, and those that came later."""
GROUPS = range(4)
"""Partition groups of a cluster, the system group first."""
TERMS = (0, 1, 10**9)
INDEXES = (0, 1, 10**6, 10**18)


def lie(random: Random, frame: Frame, *, host: str) -> tuple[bytes, bytes] | None:
    """An answer to a question, header and body; None to a question of another kind.

    Args:
        random: draws all choices.
        frame: the question.
        host: the stranger's own address.
    """
    match frame.kind:
        case FrameKind.PROBE:
            return pack(_probe_reply(random, unpack(Probe, frame.header))), b""
        case FrameKind.METADATA:
            return pack(_table(random, host)), b""
        case FrameKind.ADMIN:
            command = unpack(Admin, frame.header).command
            return pack(AdminDone(_member(random, command))), b""
        case FrameKind.SNAPSHOT:
            return pack(SnapshotProgress(random.choice((0, -1, *INDEXES)))), b""
        case FrameKind.REPAIR:
            count = random.choice((0, 1, 10**6))
            return pack(RepairedRange(count)), random.randbytes(random.choice((0, 64, 4096)))
    return None


def _probe_reply(random: Random, probe: Probe) -> ProbeReply:
    return ProbeReply(
        random.choice(("", "", probe.incarnation, probe.replaces, SAYS)),
        is_latest=random.random() < 0.7,
        may_lead=random.random() < 0.5,
        generation=random.choice((0, 0, 1, 2, GENERATION_MAX, 10**9, -1)),
        refusal=random.choice(("", "", SAYS)),
        now_ms=random.choice((0, *INDEXES)),
        lost_logs=random.sample(GROUPS, random.randint(0, len(GROUPS))),
    )


def _table(random: Random, host: str) -> ClusterView:
    nodes = random.sample(NODES, random.randint(0, len(NODES)))
    views = [NodeView(n, random.choice((host, f"node{n}", "nowhere")), PORT) for n in nodes]
    groups = [_group(random, number) for number in GROUPS]
    return ClusterView("test", random.choice(INDEXES), views, groups, [])


def _group(random: Random, number: int) -> GroupView:
    voters = random.sample(NODES, random.randint(0, len(NODES)))
    leader, term = random.choice((0, *NODES)), random.choice(TERMS)
    return GroupView(
        id=number,
        leader=leader,
        term=term,
        voters=voters,
        learners=[],
        voters_outgoing=[],
        members=voters,
        forgotten=random.choice(INDEXES),
        member=leader,
    )


def _member(random: Random, command: list[Any]) -> object:
    """The member in place of the one that a command retires: the same, the next, an older one, one
    of another node or folder, or none."""
    member = command[2] if len(command) > 2 and isinstance(command[2], int) else 1
    step = 1 << NODE_BITS
    folder = step << REPLICA_BITS
    others = (member + step, member - step, member + 1, member + folder, 0, -1, None, SAYS)
    return member if random.random() < 0.5 else random.choice(others)
