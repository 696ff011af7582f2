"""Faults of the network: links that are cut, messages that are lost, late, repeated or needless.

Sources: Jepsen's nemeses; FoundationDB's swizzle-clog; OmniPaxos (EuroSys 2023) for quorum loss,
constrained election and chain.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING

from raftmq.broker.replica.opener import consensus_meta
from raftmq.chaos.core.network import CHUNK
from raftmq.chaos.core.stage import Handler, Skipped, Stage, Undo
from raftmq.consensus import Message, MessageKind, Snapshot
from raftmq.log.snapshot import SnapshotMeta as StoredMeta

from .effects import AGAIN

if TYPE_CHECKING:
    from raftmq.chaos.core.replica import Replica

Pairs = list[tuple[int, int]]

KINDS: Mapping[int, tuple[int, ...]] = {
    1: (MessageKind.VOTE, MessageKind.VOTE_RESPONSE, MessageKind.PRE_VOTE),
    2: (MessageKind.APPEND_RESPONSE,),
    3: (MessageKind.HEARTBEAT,),
    4: (CHUNK, MessageKind.SNAPSHOT),
    5: (MessageKind.APPEND,),
    6: (MessageKind.HEARTBEAT_RESPONSE,),
}
"""Kinds of messages by level of `drop-kind` and `late-kind`."""

SNAPSHOT_WAIT_US = 8_000_000
"""Time for which a fault waits for new snapshots."""

REPLAYS = 40
"""Most old messages that one replay sends again."""


def _both(pairs: Pairs) -> Pairs:
    return pairs + [(b, a) for a, b in pairs]


def _cut(stage: Stage, pairs: Pairs) -> Undo:
    network = stage.cluster.network
    network.cut(pairs)
    return partial(network.mend, pairs)


def _between(side: Sequence[int], others: Sequence[int]) -> Pairs:
    return _both([(a, b) for a in side for b in others if a != b])


def _isolate(stage: Stage, place: int) -> Undo:
    return _cut(stage, _between([place], [p for p in stage.places() if p != place]))


def isolate_node(stage: Stage) -> Undo:
    """N1."""
    return _isolate(stage, stage.event.nodes[0])


def isolate_leader(stage: Stage) -> Undo:
    """N5."""
    return _isolate(stage, stage.leader().place)


def split(stage: Stage) -> Undo:
    """N2 and N3: the event's nodes against all others."""
    side = stage.event.nodes
    return _cut(stage, _between(side, [p for p in stage.places() if p not in side]))


def split_halves(stage: Stage) -> Undo:
    """N4."""
    places = stage.places()
    side = stage.random.sample(places, stage.random.randint(1, len(places) - 1))
    return _cut(stage, _between(side, [p for p in places if p not in side]))


def bridge(stage: Stage) -> Undo:
    """N6."""
    rest = [p for p in stage.places() if p != stage.event.nodes[0]]
    stage.random.shuffle(rest)
    half = len(rest) // 2
    return _cut(stage, _between(rest[:half], rest[half:]))


def majorities_ring(stage: Stage) -> Undo:
    """N7: each node reaches its nearest neighbours on a ring, which make a majority with it."""
    ring = [*stage.event.nodes]
    count = len(ring)
    reach = (count // 2 + 1) // 2
    pairs = [
        (a, b)
        for (i, a), (j, b) in permutations(enumerate(ring), 2)
        if min((i - j) % count, (j - i) % count) > reach
    ]
    if not pairs:
        raise Skipped("too few nodes for a ring of majorities")
    return _cut(stage, pairs)


def mute(stage: Stage) -> Undo:
    """N8."""
    place = stage.event.nodes[0]
    return _cut(stage, [(place, other) for other in stage.places() if other != place])


def deaf(stage: Stage) -> Undo:
    """N9."""
    place = stage.event.nodes[0]
    return _cut(stage, [(other, place) for other in stage.places() if other != place])


def quorum_loss(stage: Stage) -> Undo:
    """N10: all nodes reach the hub, and no other node."""
    hub = stage.event.nodes[0]
    return _cut(stage, _all_but(stage, hub))


def _all_but(stage: Stage, hub: int) -> Pairs:
    return [(a, b) for a, b in permutations(stage.places(), 2) if hub not in (a, b)]


def constrained_election(stage: Stage) -> Undo:
    """N11: a node is cut off until its log is old, then the others reach only that node."""
    old = stage.event.nodes[0]
    undos = [_isolate(stage, old)]

    def turn() -> None:
        undos.pop()()
        undos.append(_cut(stage, _all_but(stage, old)))

    half = (stage.end_us - stage.cluster.loop.now_us) // 2
    stage.later(half, turn)
    return lambda: undos.pop()()


def chain(stage: Stage) -> Undo:
    """N12."""
    row = [*stage.event.nodes]
    pairs = [(a, b) for (i, a), (j, b) in permutations(enumerate(row), 2) if abs(i - j) > 1]
    if not pairs:
        raise Skipped("too few nodes for a chain")
    return _cut(stage, pairs)


def flap(stage: Stage) -> Undo:
    """N14: a link is cut for `level` ms, then up for as long, and so on."""
    if len(stage.event.nodes) < 2:
        raise Skipped("there is no pair")
    pairs = _both([(stage.event.nodes[0], stage.event.nodes[1])])
    network = stage.cluster.network
    is_cut = False

    def toggle() -> None:
        nonlocal is_cut
        is_cut = not is_cut
        (network.cut if is_cut else network.mend)(pairs)
        stage.later(int(stage.event.level * 1000), toggle)

    def undo() -> None:
        if is_cut:
            network.mend(pairs)

    toggle()
    return undo


def swizzle(stage: Stage) -> Undo:
    """N15: nodes are cut off one by one in one order, and come back in another."""
    places = [*stage.event.nodes]
    undos: dict[int, Undo] = {}
    span = (stage.end_us - stage.cluster.loop.now_us) // (2 * len(places) + 1)

    def cut(place: int) -> None:
        undos[place] = _isolate(stage, place)

    def mend(place: int) -> None:
        undos.pop(place)()

    for number, place in enumerate(places):
        stage.later(number * span, cut, place)
    for number, place in enumerate(stage.random.sample(places, len(places))):
        stage.later((len(places) + number) * span, mend, place)

    def undo() -> None:
        for place in sorted(undos):
            undos.pop(place)()

    return undo


def _share(name: str) -> Handler:
    """A fault that adds its level to a field of the network."""

    def handler(stage: Stage) -> Undo:
        network, level = stage.cluster.network, stage.event.level

        # Rounded, so that the field is exactly 0 after the last undo, as `settle` looks for that.
        def add(amount: float) -> None:
            setattr(network, name, max(round(getattr(network, name) + amount, 6), 0.0))
            network.settle()

        add(level)
        return partial(add, -level)

    return handler


def burst_loss(stage: Stage) -> Undo:
    """N20: nothing arrives for `level` ms, then everything for five times as long, and so on."""
    network, span = stage.cluster.network, int(stage.event.level * 1000)
    is_lossy = False

    def toggle() -> None:
        nonlocal is_lossy
        is_lossy = not is_lossy
        network.loss = max(network.loss + (1.0 if is_lossy else -1.0), 0.0)
        network.settle()
        stage.later(span if is_lossy else 5 * span, toggle)

    def undo() -> None:
        if is_lossy:
            toggle()

    toggle()
    return undo


def stale_replay(stage: Stage) -> None:
    """N21."""
    network = stage.cluster.network
    old = [m for m in network.old if m.to in stage.cluster.nodes]
    if not old:
        raise Skipped("there are no messages of long ago")
    for message in stage.random.sample(old, min(len(old), REPLAYS)):
        network.send(message)
        stage.cluster.loop.effects[AGAIN] += 1


def needless_snapshot(stage: Stage) -> None:
    """N26: a member is sent an old snapshot, then all members are sent each new one as soon as it
    is taken: they hold the records that it covers, and may not know yet that these are committed.
    """
    cluster = stage.cluster
    leader = cluster.leader()
    if leader is not None and leader.store.snapshots:
        _send_snapshot(leader, stage.node().id, stage.random.choice(leader.store.snapshots))
    newest = max(
        (m.index for n in cluster.nodes.values() if n.replica for m in n.replica.store.snapshots),
        default=0,
    )
    end_us = min(stage.end_us, cluster.loop.now_us + SNAPSHOT_WAIT_US)

    def watch() -> None:
        nonlocal newest
        leader = cluster.leader()
        if leader is not None:
            for meta in leader.store.snapshots:
                if meta.index > newest:
                    newest = meta.index
                    for number in sorted(leader.core.members):
                        _send_snapshot(leader, number, meta)
        if cluster.loop.now_us < end_us:
            stage.later(2_000, watch)

    watch()


def _send_snapshot(leader: "Replica", to: int, meta: StoredMeta) -> None:
    if to != leader.node.id and to in leader.core.members:
        message = Message(
            MessageKind.SNAPSHOT,
            to,
            sender=leader.node.id,
            term=leader.core.term,
            snapshot=Snapshot(consensus_meta(meta)),
        )
        leader.turn(leader.send, leader.group, message)


def drop_kind(stage: Stage) -> Undo:
    """N24."""
    network = stage.cluster.network
    kinds = set(KINDS[int(stage.event.level)]) - network.lost_kinds
    network.lost_kinds |= kinds
    network.settle()

    def undo() -> None:
        network.lost_kinds -= kinds
        network.settle()

    return undo


def late_kind(stage: Stage) -> Undo:
    """N29."""
    network = stage.cluster.network
    kinds = KINDS[int(stage.event.level)]
    network.late_kinds.update(kinds)
    network.settle()

    def undo() -> None:
        for kind in kinds:
            network.late_kinds[kind] -= 1
        # Drops the kinds whose count is 0: `settle` takes a table that is not empty for a fault.
        network.late_kinds += Counter()
        network.settle()

    return undo


HANDLERS: Mapping[str, Callable[[Stage], Undo | None]] = {
    "isolate-node": isolate_node,
    "split-majority": split,
    "split-minority-third": split,
    "split-halves": split_halves,
    "isolate-leader": isolate_leader,
    "bridge": bridge,
    "majorities-ring": majorities_ring,
    "mute": mute,
    "deaf": deaf,
    "quorum-loss": quorum_loss,
    "constrained-election": constrained_election,
    "chain": chain,
    "flap": flap,
    "swizzle": swizzle,
    "delay": _share("delay_ms"),
    "reorder": _share("reordering"),
    "duplicate": _share("duplication"),
    "loss": _share("loss"),
    "burst-loss": burst_loss,
    "stale-replay": stale_replay,
    "needless-snapshot": needless_snapshot,
    "drop-kind": drop_kind,
    "late-kind": late_kind,
}
"""By name of the fault."""
