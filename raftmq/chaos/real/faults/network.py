"""Faults of the network: each handler adds rules, and removes them at the end."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from raftmq.chaos.faults import Event
from raftmq.chaos.real.network.rules import (
    CLIENTS,
    Flow,
    Kind,
    Rule,
    both,
    bridge,
    chain,
    deaf,
    isolate,
    mute,
    ring,
    star,
)
from raftmq.chaos.real.stage import Skipped, Stage, leaders_of
from raftmq.chaos.real.waiting import wait_true

from .handlers import lasting, once


@asynccontextmanager
async def _holding(
    stage: Stage, kind: Kind, flows: Iterable[Flow] | None = None, level: float = 0.0
) -> AsyncIterator[Rule]:
    rule = stage.rules.add(kind, flows, level)
    try:
        yield rule
    finally:
        stage.rules.remove(rule)


@asynccontextmanager
async def _cut(stage: Stage, flows: set[Flow]) -> AsyncIterator[None]:
    """Block the flows; in 3 of 10 cases break the open connections, as a firewall that rejects."""
    async with _holding(stage, Kind.BLOCK, flows):
        if stage.random.random() < 0.3:
            stage.network.break_connections(flows)
        yield


@lasting("isolate-node")
@asynccontextmanager
async def _isolate_node(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, isolate([stage.node_of(event)], stage.everyone)):
        yield


@lasting("split-majority", "split-minority-third", "split-halves")
@asynccontextmanager
async def _split(stage: Stage, event: Event) -> AsyncIterator[None]:
    """In half of the cases clients are cut off from the listed nodes, too."""
    inside = stage.nodes_of(event)
    flows = isolate(inside, stage.everyone)
    if stage.random.random() < 0.5:
        flows |= {flow for node in inside for flow in both(CLIENTS, node)}
    async with _cut(stage, flows):
        yield


@lasting("isolate-leader")
@asynccontextmanager
async def _isolate_leader(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, isolate([await stage.leader()], stage.everyone)):
        yield


@lasting("bridge")
@asynccontextmanager
async def _bridge(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, bridge(stage.node_of(event), stage.everyone)):
        yield


@lasting("majorities-ring")
@asynccontextmanager
async def _ring(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, ring(stage.nodes_of(event))):
        yield


@lasting("mute")
@asynccontextmanager
async def _mute(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, mute(stage.node_of(event), stage.everyone)):
        yield


@lasting("deaf")
@asynccontextmanager
async def _deaf(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, deaf(stage.node_of(event), stage.everyone)):
        yield


@lasting("quorum-loss")
@asynccontextmanager
async def _quorum_loss(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, star(stage.node_of(event), stage.everyone)):
        yield


@lasting("constrained-election")
@asynccontextmanager
async def _constrained_election(stage: Stage, event: Event) -> AsyncIterator[None]:
    """First cut a node off, so that its log falls behind; then make it the only node that all
    others but the leader reach."""
    behind = stage.node_of(event)
    async with _cut(stage, isolate([behind], stage.everyone)):
        await trio.sleep(min(event.lasts_ms / 3000, 3.0))
    leaders = leaders_of(await stage.nodes.statuses())
    lead = leaders.get(1, 0)
    flows = star(behind, stage.everyone)
    if lead and lead != behind:
        flows |= both(lead, behind)
    async with _cut(stage, flows):
        yield


@lasting("chain")
@asynccontextmanager
async def _chain(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, chain(stage.nodes_of(event))):
        yield


@lasting("cut-clients")
@asynccontextmanager
async def _cut_clients(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _cut(stage, both(CLIENTS, await stage.leader())):
        yield


@lasting("flap")
@asynccontextmanager
async def _flap(stage: Stage, event: Event) -> AsyncIterator[None]:
    one, other = _pair(stage, event)
    async with trio.open_nursery() as nursery:

        async def flap() -> None:
            while True:
                async with _holding(stage, Kind.BLOCK, both(one, other)):
                    await trio.sleep(event.level / 1000)
                await trio.sleep(event.level / 1000)

        nursery.start_soon(flap)
        yield
        nursery.cancel_scope.cancel()


@lasting("swizzle")
@asynccontextmanager
async def _swizzle(stage: Stage, event: Event) -> AsyncIterator[None]:
    nodes = stage.nodes_of(event)
    rules = []
    try:
        for node in nodes:
            rules.append(stage.rules.add(Kind.BLOCK, isolate([node], stage.everyone)))
            await trio.sleep(event.lasts_ms / 1000 / (2 * len(nodes)))
        yield
        stage.random.shuffle(rules)
        for rule in rules:
            stage.rules.remove(rule)
            await trio.sleep(0.1)
    finally:
        # After a cancellation some rules still hold; a removed rule is removed again in vain.
        for rule in rules:
            stage.rules.remove(rule)


@lasting("delay")
@asynccontextmanager
async def _delay(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _holding(stage, Kind.DELAY, None, event.level):
        yield


@lasting("reorder")
@asynccontextmanager
async def _reorder(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _holding(stage, Kind.REORDER, None, event.level):
        yield


@lasting("duplicate")
@asynccontextmanager
async def _duplicate(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _holding(stage, Kind.DUPLICATE, None, event.level):
        yield


@lasting("loss")
@asynccontextmanager
async def _loss(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _holding(stage, Kind.LOSS, None, event.level):
        yield


@lasting("burst-loss")
@asynccontextmanager
async def _burst_loss(stage: Stage, event: Event) -> AsyncIterator[None]:
    """In bursts of `level` milliseconds, every frame breaks its connection."""
    async with trio.open_nursery() as nursery:

        async def bursts() -> None:
            while True:
                async with _holding(stage, Kind.LOSS, None, 1.0):
                    await trio.sleep(event.level / 1000)
                await trio.sleep(stage.random.uniform(1, 6) * event.level / 1000)

        nursery.start_soon(bursts)
        yield
        nursery.cancel_scope.cancel()


@once("stale-replay")
async def _stale_replay(stage: Stage, event: Event) -> None:
    one, other = _pair(stage, event)
    flows = (one, other), (other, one), (CLIENTS, one), (CLIENTS, other)
    if not sum([stage.network.repeat_old(flow, 30) for flow in flows]):
        raise Skipped("nothing to repeat yet")


@lasting("slow-link")
@asynccontextmanager
async def _slow_link(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _holding(stage, Kind.RATE, both(*_pair(stage, event)), event.level):
        yield


@once("cut-in-frame")
async def _cut_in_frame(stage: Stage, event: Event) -> None:
    await _wait_struck(stage, Kind.CUT, _pair(stage, event))


@once("corrupt-frame")
async def _corrupt_frame(stage: Stage, event: Event) -> None:
    await _wait_struck(stage, Kind.CORRUPT, _pair(stage, event))


async def _wait_struck(stage: Stage, kind: Kind, pair: tuple[int, int]) -> None:
    """Keep a rule until it strikes a frame, for 3 s at most. Raises `Skipped` if no frame comes."""
    async with _holding(stage, kind, both(*pair)) as rule:
        is_struck = await wait_true(lambda: rule.struck > 0, timeout=3.0)
    if not is_struck:
        raise Skipped("no frame came by")


@lasting("half-open")
@asynccontextmanager
async def _half_open(stage: Stage, event: Event) -> AsyncIterator[None]:
    flows = both(*_pair(stage, event))
    async with _holding(stage, Kind.SWALLOW, flows):
        yield
    # The swallowed frames are missing from the streams, which are of no use after the fault.
    stage.network.break_connections(flows)


@lasting("drop-kind")
@asynccontextmanager
async def _drop_kind(stage: Stage, event: Event) -> AsyncIterator[None]:
    if not stage.network.is_proxy:
        raise Skipped("packets have no kinds")
    async with _holding(stage, Kind.DROP, None, event.level):
        yield


def _pair(stage: Stage, event: Event) -> tuple[int, int]:
    nodes = stage.nodes_of(event)
    if len(nodes) < 2:
        raise Skipped("it needs two nodes")
    return nodes[0], nodes[1]
