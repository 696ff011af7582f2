"""Faults of the network: partitions of every shape, bad links, broken connections.

A partition blocks links between machines: sent data waits and arrives after the heal, as TCP sends
it again. Three partitions in ten also reset the connections that they cut, as a firewall that
rejects packets would.

Each function here makes one fault of the catalogue begin, and returns its undo if it lasts.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

from raftmq.chaos.faults.schedule import Event
from raftmq.chaos.sim.stage import Stage
from raftmq.chaos.world.link import Link
from raftmq.chaos.world.pipe import Pipe

Undo = Callable[[], None]
Edge = tuple[str, str]

RESET_SHARE = 0.3
"""Share of partitions that reset the connections that they cut."""


def edges_between(one: Iterable[str], other: Iterable[str]) -> list[Edge]:
    """Both directions between two sides."""
    sides = [(a, b) for a in one for b in list(other) if a != b]
    return [*sides, *((b, a) for a, b in sides)]


def block(stage: Stage, edges: Iterable[Edge], *, may_reset: bool = True) -> Undo:
    """Let nothing travel along these edges."""
    edges = list(edges)
    network = stage.cluster.network
    is_reset = may_reset and stage.random.random() < RESET_SHARE
    for source, target in edges:
        network.block(source, target)
        for pipe in network.pipes(source, target) if is_reset else ():
            pipe.connection.reset()

    def undo() -> None:
        for source, target in edges:
            network.unblock(source, target)

    return undo


def _others(stage: Stage, *nodes: int) -> list[str]:
    return [stage.host(node) for node in stage.members() if node not in nodes]


def isolate_node(stage: Stage, event: Event) -> Undo:
    """Cut a node off from all others."""
    (node,) = stage.nodes_of(event)
    return block(stage, edges_between([stage.host(node)], _others(stage, node)))


def isolate_leader(stage: Stage, event: Event) -> Undo | None:
    """Cut the leader off from all others."""
    leader = stage.leader()
    if not leader:
        return None
    return block(stage, edges_between([stage.host(leader)], _others(stage, leader)))


def split(stage: Stage, event: Event) -> Undo:
    """Cut some nodes off from the rest."""
    nodes = stage.nodes_of(event)
    return block(stage, edges_between(map(stage.host, nodes), _others(stage, *nodes)))


def bridge(stage: Stage, event: Event) -> Undo:
    """Split the nodes into two halves that only one node reaches."""
    (middle,) = stage.nodes_of(event)
    others = _others(stage, middle)
    half = len(others) // 2
    return block(stage, edges_between(others[:half], others[half:]))


def ring(stage: Stage, event: Event) -> Undo:
    """Each node sees its neighbours in a ring; of three nodes, each hears one of the others."""
    hosts = [stage.host(node) for node in stage.nodes_of(event)]
    if len(hosts) < 4:
        edges = [(a, b) for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True) if a != b]
        return block(stage, edges, may_reset=False)
    near = {*pairwise(hosts), (hosts[-1], hosts[0])}
    near |= {(b, a) for a, b in near}
    every = [(a, b) for a in hosts for b in hosts if a != b]
    return block(stage, [edge for edge in every if edge not in near])


def mute(stage: Stage, event: Event) -> Undo:
    """A node hears everything and says nothing."""
    (node,) = stage.nodes_of(event)
    edges = [(stage.host(node), other) for other in _others(stage, node)]
    return block(stage, edges, may_reset=False)


def deaf(stage: Stage, event: Event) -> Undo:
    """A node says everything and hears nothing."""
    (node,) = stage.nodes_of(event)
    edges = [(other, stage.host(node)) for other in _others(stage, node)]
    return block(stage, edges, may_reset=False)


def quorum_loss(stage: Stage, event: Event) -> Undo:
    """All nodes reach one node, and no other."""
    (hub,) = stage.nodes_of(event)
    others = _others(stage, hub)
    return block(stage, edges_between(others, others))


def constrained_election(stage: Stage, event: Event) -> Undo:
    """First a node falls behind, then it is the only one that reaches a majority."""
    (node,) = stage.nodes_of(event)
    others = _others(stage, node)
    undos = [block(stage, edges_between([stage.host(node)], others))]
    is_over = False

    def turn() -> None:
        if not is_over:
            undos.pop()()
            undos.append(block(stage, edges_between(others, others)))

    def undo() -> None:
        nonlocal is_over
        is_over = True
        undos.pop()()

    stage.agenda.call_after(event.lasts_ms / 3000, turn)
    return undo


def chain(stage: Stage, event: Event) -> Undo:
    """Neighbours in a row reach each other; the ends never meet."""
    hosts = [stage.host(node) for node in stage.nodes_of(event)]
    near = set(pairwise(hosts)) | {(b, a) for a, b in pairwise(hosts)}
    every = [(a, b) for a in hosts for b in hosts if a != b]
    return block(stage, [edge for edge in every if edge not in near])


def cut_clients(stage: Stage, event: Event) -> Undo | None:
    """Clients do not reach the leader."""
    leader = stage.leader()
    if not leader:
        return None
    return block(stage, edges_between([stage.host(leader)], stage.clients.hosts()))


def _pair(stage: Stage, event: Event) -> list[str]:
    return [stage.host(node) for node in stage.nodes_of(event)]


def _repeat(stage: Stage, seconds: float, step: Callable[[], None]) -> Undo:
    """Call `step` again and again, at drawn intervals, until the undo."""
    is_over = False

    def again() -> None:
        if not is_over:
            step()
            stage.agenda.call_after(seconds * stage.random.uniform(0.5, 1.5), again)

    def undo() -> None:
        nonlocal is_over
        is_over = True

    again()
    return undo


def _toggle(stage: Stage, seconds: float, make: Callable[[], Undo]) -> Undo:
    """Make a fault and end it, again and again, until the undo."""
    undos: list[Undo] = []

    def step() -> None:
        if undos:
            undos.pop()()
        else:
            undos.append(make())

    stop = _repeat(stage, seconds, step)

    def undo() -> None:
        stop()
        for one in undos:
            one()

    return undo


def flap(stage: Stage, event: Event) -> Undo:
    """A link goes up and down."""
    one, other = _pair(stage, event)
    edges = edges_between([one], [other])
    return _toggle(stage, event.level / 1000, lambda: block(stage, edges, may_reset=False))


def burst_loss(stage: Stage, event: Event) -> Undo:
    """Nothing travels anywhere, for a short while again and again."""
    hosts = stage.hosts()
    edges = edges_between(hosts, hosts)
    seconds = event.level / 1000
    return _toggle(stage, seconds, lambda: block(stage, dict.fromkeys(edges), may_reset=False))


def swizzle(stage: Stage, event: Event) -> Undo:
    """Nodes are cut off one by one, and come back in another order."""
    nodes = stage.nodes_of(event)
    order = stage.random.sample(nodes, len(nodes))
    undos: dict[int, Undo] = {}
    step = event.lasts_ms / 1000 / (2 * len(nodes))

    def cut(node: int) -> None:
        if not stage.is_healing:
            undos[node] = block(stage, edges_between([stage.host(node)], _others(stage, node)))

    def join(node: int) -> None:
        if node in undos:
            undos.pop(node)()

    for place, node in enumerate(nodes):
        stage.agenda.call_after(step * place, partial(cut, node))
    for place, node in enumerate(order):
        stage.agenda.call_after(step * (len(nodes) + place), partial(join, node))

    def undo() -> None:
        for node in list(undos):
            join(node)

    return undo


def _everywhere(stage: Stage, change: Callable[[Link], None], back: Callable[[Link], None]) -> Undo:
    hosts = stage.hosts()
    links = [stage.cluster.network.link(a, b) for a in hosts for b in hosts if a != b]
    for link in links:
        change(link)

    def undo() -> None:
        for link in links:
            back(link)

    return undo


def delay(stage: Stage, event: Event) -> Undo:
    """Everything takes longer."""

    def change(link: Link) -> None:
        link.delay_seconds, link.is_heavy = event.level / 1000, True

    return _everywhere(stage, change, lambda link: setattr(link, "delay_seconds", 0.0))


def reorder(stage: Stage, event: Event) -> Undo:
    """A share of the pieces is held up on its connection, so that pieces of others overtake."""
    return _everywhere(
        stage,
        lambda link: setattr(link, "lag_share", event.level),
        lambda link: setattr(link, "lag_share", 0.0),
    )


def loss(stage: Stage, event: Event) -> Undo:
    """A share of the pieces is sent again later, or breaks its connection."""
    return _everywhere(
        stage,
        lambda link: setattr(link, "loss_share", event.level),
        lambda link: setattr(link, "loss_share", 0.0),
    )


def slow_link(stage: Stage, event: Event) -> Undo:
    """A link carries `level` bytes a second each way."""
    one, other = _pair(stage, event)
    links = [stage.cluster.network.link(a, b) for a, b in edges_between([one], [other])]
    for link in links:
        link.rate = event.level

    def undo() -> None:
        for link in links:
            link.rate = 0.0

    return undo


def half_open(stage: Stage, event: Event) -> Undo:
    """Connections between two nodes take all data and deliver none."""
    network = stage.cluster.network
    edges = edges_between(*([host] for host in _pair(stage, event)))
    for source, target in edges:
        network.swallow(source, target)

    def undo() -> None:
        for source, target in edges:
            network.spit(source, target)

    return undo


def outage(stage: Stage, event: Event) -> Undo:
    """Nothing travels, and TCP has been waiting for `level` seconds."""
    hosts = stage.hosts()
    edges = list(dict.fromkeys(edges_between(hosts, hosts)))
    undo = block(stage, edges, may_reset=False)
    for source, target in edges:
        stage.cluster.network.age(source, target, event.level)
    return undo


def lost_names(stage: Stage, event: Event) -> Undo:
    """No name can be looked up."""
    names = stage.cluster.network.lost_names
    names[""] += 1

    def undo() -> None:
        names[""] -= 1

    return undo


def _strike(stage: Stage, event: Event, how: Callable[[Pipe, bytes], bytes | None]) -> None:
    """Apply `how` to the next piece from one node to another, and from a client to the latter."""
    source, target = _pair(stage, event)
    network = stage.cluster.network
    network.link(source, target).strikes.append(how)
    for client in stage.clients.hosts()[:1]:
        network.link(client, target).strikes.append(how)


def cut_in_frame(stage: Stage, event: Event) -> None:
    """The next piece arrives in part, and the connection breaks."""

    def how(pipe: Pipe, data: bytes) -> bytes:
        stage.agenda.call_after(0.001, pipe.connection.reset)
        return data[: stage.random.randrange(len(data))]

    _strike(stage, event, how)


def corrupt_frame(stage: Stage, event: Event) -> None:
    """One bit of the next piece is flipped when the piece arrives."""

    def how(_pipe: Pipe, data: bytes) -> bytes:
        changed = bytearray(data)
        changed[stage.random.randrange(len(data))] ^= 1 << stage.random.randrange(8)
        return bytes(changed)

    _strike(stage, event, how)
