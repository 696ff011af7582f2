"""A node of another cluster at an address that nodes and clients know as a member's."""

import trio

from raftmq.broker.node import Node, NodeStopped
from raftmq.broker.settings import NodeSettings, Peer
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Steps
from raftmq.chaos.sim.arena import SimArena
from raftmq.chaos.sim.cluster import DATA, PORT
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.process import Machine, Process
from raftmq.chaos.world.simulated import SimulatedWorld
from raftmq.tls.names import node_name

STAY_SECONDS = 3.0
"""How long the stranger answers there."""


def old_address(arena: SimArena, event: Event) -> Steps:
    """A node goes down, and one of another cluster is started at its address for a while."""
    state, node = arena.state, event.nodes[0]
    state.hold_down(node)
    state.kill(node)
    state.spawn(_stay, state, node)
    yield from ()


async def _stay(state: RunState, node: int) -> None:
    host = state.host(node)
    own = Peer(node, host, PORT)
    # Another stranger may come to it, so it has the limits of the cluster's nodes.
    settings = state.cluster.made(
        NodeSettings(node, "stranger", DATA, host, PORT, peers=[own], groups=1, replicas=1)
    )
    machine = Machine(host, state.agenda, MemoryFiles())
    process = Process(machine, state.agenda, seed=state.random.getrandbits(32))
    process.names = frozenset((node_name("stranger", node),))
    state.cluster.network.machine_came_back(host)
    state.agenda.effects["strangers that listened"] += 1

    async def run() -> None:
        try:
            await Node(settings, SimulatedWorld(state.cluster.network, process)).run()
        except NodeStopped as stopped:
            state.watch.note(node, f"the stranger gives up: {stopped}")

    with trio.move_on_after(STAY_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run, run)
    process.die()
    state.cluster.network.process_ended(process)
    state.let_up(node)
