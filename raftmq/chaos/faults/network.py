"""Faults of the network: partitions of every shape, bad links, messages of long ago.

A partition cuts pairs of nodes for as long as it lasts (`partitions`). Three in ten also reset the
connections that they cut, as a firewall that rejects packets would.

| fault | where the clients are |
|---|---|
| `split-majority` | with the majority |
| `split-minority-third` | with the third |
| `split-halves` | on a drawn side |
| `cut-clients`, `burst-loss` | alone |
| the others | on both sides |

Sources: Jepsen's nemeses; FoundationDB's swizzle-clog; OmniPaxos (EuroSys 2023) for quorum loss,
constrained election and chain.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations

from raftmq.consensus import MessageKind

from .arena import CLIENTS, Arena, Lasting, Make, Pair, Skipped, Steps, at_once, while_lasts
from .partitions import between, bridge, chain, deaf, isolate, mute, ring, star
from .schedule import Event

RESET_SHARE = 0.3
"""Share of partitions that reset the connections that they cut."""

DROPPED: Mapping[int, frozenset[MessageKind]] = {
    1: frozenset({
        MessageKind.VOTE, MessageKind.VOTE_RESPONSE,
        MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_RESPONSE,
    }),
    2: frozenset({MessageKind.APPEND_RESPONSE}),
    3: frozenset({MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_RESPONSE}),
    4: frozenset({MessageKind.SNAPSHOT}),
}  # fmt: skip
"""By level of `drop-kind`: the messages that are lost; chunks of snapshots go with `SNAPSHOT`."""

Shape = Callable[[Sequence[int], Iterable[int]], list[Pair]]


def _cut(arena: Arena, pairs: list[Pair]) -> Lasting:
    return arena.cut(pairs, resets=arena.random.random() < RESET_SHARE)


def _partition(shape: Shape) -> Make:
    def fault(arena: Arena, event: Event) -> Steps:
        pairs = shape(event.nodes, arena.members())
        if not pairs:
            raise Skipped(f"too few nodes for {event.fault}")
        with _cut(arena, pairs):
            yield None

    return fault


def _one_way(shape: Shape) -> Make:
    """A partition that breaks no connection: its other direction carries on."""
    return while_lasts(lambda arena, event: arena.cut(shape(event.nodes, arena.members())))


def _split_from_clients(nodes: Sequence[int], members: Iterable[int]) -> list[Pair]:
    return isolate(nodes, [*members, CLIENTS])


def _split_with_clients(nodes: Sequence[int], members: Iterable[int]) -> list[Pair]:
    return isolate([*nodes, CLIENTS], members)


def split_halves(arena: Arena, event: Event) -> Steps:
    """Which nodes are on which side, and where the clients are, is drawn."""
    members, random = arena.members(), arena.random
    if len(members) < 2:
        raise Skipped(f"too few nodes for {event.fault}")
    side = random.sample(members, random.randint(1, len(members) - 1))
    shape = random.choice((_split_from_clients, _split_with_clients))
    with _cut(arena, shape(side, members)):
        yield None


def constrained_election(arena: Arena, event: Event) -> Steps:
    """A node falls behind; then all others but the leader reach that node, and no other."""
    (behind,) = event.nodes
    with _cut(arena, isolate(event.nodes, arena.members())):
        yield event.lasts_ms / 3000
    leader = arena.leader()
    lonely = between([leader], [behind]) if leader not in (0, behind) else []
    with _cut(arena, star(event.nodes, arena.members()) + lonely):
        yield None


def _jittered(arena: Arena, event: Event) -> float:
    return event.level / 1000 * arena.random.uniform(0.5, 1.5)


def flap(arena: Arena, event: Event) -> Steps:
    """A link is cut and mended, again and again."""
    one, other = event.nodes
    while True:
        with arena.cut(between([one], [other])):
            yield _jittered(arena, event)
        yield _jittered(arena, event)


def burst_loss(arena: Arena, event: Event) -> Steps:
    """All links are cut and mended, again and again."""
    while True:
        with arena.cut(permutations([*arena.members(), CLIENTS], 2)):
            yield _jittered(arena, event)
        yield _jittered(arena, event)


def swizzle(arena: Arena, event: Event) -> Steps:
    """Nodes are cut off one by one, and come back in another order."""
    order = arena.random.sample(event.nodes, len(event.nodes))
    seconds = event.lasts_ms / 1000 / (2 * len(order))
    with ExitStack() as stack:
        cuts = {node: stack.enter_context(ExitStack()) for node in event.nodes}
        for node, cut in cuts.items():
            cut.enter_context(_cut(arena, isolate([node], arena.members())))
            yield seconds
        for node in order:
            cuts[node].close()
            yield seconds


def _pair(event: Event) -> Pair:
    one, other = event.nodes
    return one, other


def _both(event: Event) -> list[Pair]:
    one, other = event.nodes
    return between([one], [other])


NETWORK: Mapping[str, Make] = {
    "isolate-node": _partition(isolate),
    "isolate-leader": _partition(isolate),
    "split-majority": _partition(_split_from_clients),
    "split-minority-third": _partition(_split_with_clients),
    "split-halves": split_halves,
    "bridge": _partition(bridge),
    "majorities-ring": _partition(ring),
    "mute": _one_way(mute),
    "deaf": _one_way(deaf),
    "quorum-loss": _partition(star),
    "constrained-election": constrained_election,
    "chain": _partition(chain),
    "cut-clients": _partition(lambda nodes, _: between(nodes, [CLIENTS])),
    "flap": flap,
    "swizzle": swizzle,
    "burst-loss": burst_loss,
    "delay": while_lasts(lambda arena, event: arena.delay(event.level)),
    "reorder": while_lasts(lambda arena, event: arena.reorder(event.level)),
    "duplicate": while_lasts(lambda arena, event: arena.duplicate(event.level)),
    "loss": while_lasts(lambda arena, event: arena.lose(event.level)),
    "drop-kind": while_lasts(lambda arena, event: arena.drop(DROPPED[int(event.level)])),
    "slow-link": while_lasts(lambda arena, event: arena.limit(_both(event), event.level)),
    "half-open": while_lasts(lambda arena, event: arena.swallow(_both(event))),
    "stale-replay": at_once(lambda arena, event: arena.replay(_pair(event))),
    "cut-in-frame": at_once(lambda arena, event: arena.cut_frame(_pair(event))),
    "corrupt-frame": at_once(lambda arena, event: arena.corrupt_frame(_pair(event))),
    "strangers": while_lasts(lambda arena, event: arena.stranger(event.nodes[0])),
}
"""By name of the fault."""
