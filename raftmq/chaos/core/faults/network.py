"""Faults of the network that only the core simulator makes: needless snapshots, late messages."""

from collections import Counter
from collections.abc import Mapping

from raftmq.broker.replica.opener import consensus_meta
from raftmq.chaos.core.arena import CoreArena, Make
from raftmq.chaos.core.network import CHUNK
from raftmq.chaos.core.replica.replica import Replica
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Steps
from raftmq.consensus import Message, MessageKind, Snapshot
from raftmq.log.snapshot import SnapshotMeta as StoredMeta

LATE: Mapping[int, tuple[int, ...]] = {
    1: (MessageKind.VOTE, MessageKind.VOTE_RESPONSE, MessageKind.PRE_VOTE),
    2: (MessageKind.APPEND_RESPONSE,),
    3: (MessageKind.HEARTBEAT,),
    4: (CHUNK, MessageKind.SNAPSHOT),
    5: (MessageKind.APPEND,),
    6: (MessageKind.HEARTBEAT_RESPONSE,),
}
"""By level of `late-kind`: the messages that come late."""

SNAPSHOT_WAIT_US = 8_000_000
"""Time for which a fault waits for new snapshots."""
LOOK_SECONDS = 0.002
"""Between two looks for new snapshots."""


def needless_snapshot(arena: CoreArena, event: Event) -> Steps:
    """N26: a member is sent an old snapshot, then all members are sent each new one as soon as it
    is taken: they hold the records that it covers, and may not know yet that these are committed.
    """
    cluster = arena.cluster
    leader = cluster.leader()
    if leader is not None and leader.store.snapshots:
        to = cluster.at_place[event.nodes[0]].id
        _send_snapshot(leader, to, arena.random.choice(leader.store.snapshots))
    newest = max(
        (m.index for n in cluster.nodes.values() if n.replica for m in n.replica.store.snapshots),
        default=0,
    )
    end_us = min(arena.end_us, cluster.loop.now_us + SNAPSHOT_WAIT_US)
    while True:
        leader = cluster.leader()
        if leader is not None:
            for meta in [m for m in leader.store.snapshots if m.index > newest]:
                newest = meta.index
                for number in sorted(leader.core.members):
                    _send_snapshot(leader, number, meta)
        if cluster.loop.now_us >= end_us:
            return
        yield LOOK_SECONDS


def _send_snapshot(leader: Replica, to: int, meta: StoredMeta) -> None:
    if to != leader.node.id and to in leader.core.members:
        message = Message(
            MessageKind.SNAPSHOT,
            to,
            sender=leader.node.id,
            term=leader.core.term,
            snapshot=Snapshot(consensus_meta(meta)),
        )
        leader.turn(leader.send, message)


def late_kind(arena: CoreArena, event: Event) -> Steps:
    """N29."""
    network, kinds = arena.cluster.network, LATE[int(event.level)]
    network.late_kinds.update(kinds)
    network.settle()
    try:
        yield None
    finally:
        for kind in kinds:
            network.late_kinds[kind] -= 1
        # Drops the kinds whose count is 0: `settle` takes a table that is not empty for a fault.
        network.late_kinds += Counter()
        network.settle()


OWN: Mapping[str, Make] = {
    "needless-snapshot": needless_snapshot,
    "late-kind": late_kind,
}
"""By name of the fault."""
