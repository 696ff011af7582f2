"""A cluster of whole brokers in a simulated world: start, kill, stop, replace.

Each node has a machine of its own, named `node1`, `node2`, ...; the processes on it come and go.

Invariants:
- A process that dies is cut off from the network and from its disk at once; its tasks unwind a
  little later and can do no harm.
- A node that gave up (`NodeStopped`) is in `stopped`, one that broke on a bug in `broken`.
"""

import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

import msgspec
import trio

from raftmq.broker.node import NodeStopped
from raftmq.broker.replica.group import node_of
from raftmq.broker.settings import (
    Access,
    Balance,
    Directory,
    Limits,
    Log,
    NodeSettings,
    Peer,
    Raft,
    Settings,
    Tls,
)
from raftmq.chaos.sim.observed import ObservedNode, Observer, RequestListener
from raftmq.chaos.world.agenda import Agenda
from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.chaos.world.network import Network
from raftmq.chaos.world.process import Machine, Process, allow_freezing
from raftmq.chaos.world.simulated import SimulatedWorld
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.state import Place
from raftmq.tls.local_cluster import ADMIN
from raftmq.tls.names import node_name

PORT = 7400
"""Port of every node."""
CLUSTER = "test"
"""Cluster id of every node."""
DATA = "/data"
"""Data folder of every node."""


class Cluster:
    """Nodes 1 to n of one cluster, each on a machine of its own on a shared network."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        size: int = 3,
        seed: int = 0,
        agenda: Agenda | None = None,
    ) -> None:
        allow_freezing()
        self._nursery = nursery
        self._seed = seed
        self.agenda = agenda or Agenda.current()
        """The clock of the simulated world, and its due calls."""
        self.random = Random(f"cluster {seed}")
        """For the world's own choices: delays, what a power loss leaves."""
        self.network = Network(self.agenda, Random(f"network {seed}"))
        """The network between all machines."""
        self.peers = [Peer(n, f"node{n}", PORT) for n in range(1, size + 1)]
        """The founders."""
        self.join: dict[int, list[Peer]] = {}
        """By node: peers that an operator has put into its settings, in place of the founders."""
        self.level_max: dict[int, int] = {}
        """By node: its `node.level_max`; a node without an entry has no bound."""
        self.places: dict[int, Place] = {}
        """By node: its `node.zone` and `node.machine`."""
        self.machines: dict[int, Machine] = {}
        """Machines of all nodes that ever existed."""
        self.processes: dict[int, Process] = {}
        """Processes that live, paused ones included."""
        self.worlds: dict[int, SimulatedWorld] = {}
        """Worlds of the processes that live."""
        self.nodes: dict[int, ObservedNode] = {}
        """Nodes that run; `processes` tells which of them stand still."""
        self.stopped: dict[int, NodeStopped] = {}
        """Nodes that gave up since they were last started, and why."""
        self.broken: dict[int, str] = {}
        """Nodes that broke on a bug, with the trace."""
        self.incarnations: dict[int, int] = {}
        """How often each node was started."""
        self.log = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0)
        """Settings of the nodes' logs; may be replaced before the start."""
        self.raft = Raft(tick_ms=50)
        """The nodes' pace; likewise."""
        self.limits = Limits()
        """The nodes' limits; likewise."""
        self.balance = Balance()
        """The nodes' settings of the balancer; likewise."""
        self.has_directory = False
        """True: the nodes keep the directory of soft state."""
        self.descriptors_max = 65_536
        """Most files and sockets of a node; likewise."""
        self.listeners: list[Callable[[int, str], None]] = []
        """Called, in order, when a node starts, serves, ends, is killed, gives up, breaks."""
        self.disk_listeners: list[Callable[[int, str], None]] = []
        """Called for each changing call that a node makes to its disk."""
        self.sync_listeners: list[Callable[[int, str], None]] = []
        """Called for each file of a node whose sync was refused."""
        self.observers: list[Observer] = []
        """Observers of what the nodes send and apply."""
        self.request_listeners: list[RequestListener] = []
        """Observers of the frames that the nodes act on."""
        self._scopes: dict[int, trio.CancelScope] = {}
        self._starts = count()
        for peer in self.peers:
            self._machine(peer.id)

    @property
    def files(self) -> dict[int, MemoryFiles]:
        """The disk of each node."""
        return {number: machine.disk for number, machine in self.machines.items()}

    def settings(self, number: int) -> Settings:
        """A node's settings."""
        own = Peer(number, f"node{number}", PORT)
        is_founder = own in self.peers and number not in self.join
        node = NodeSettings(
            number,
            CLUSTER,
            DATA,
            own.host,
            own.port,
            peers=self.peers if is_founder else [],
            join=[] if is_founder else self.join.get(number, self.peers),
            level_max=self.level_max.get(number, 0),
            zone=self.places.get(number, Place()).zone,
            machine=self.places.get(number, Place()).machine,
        )
        return self.made(node)

    def made(self, node: NodeSettings) -> Settings:
        """The settings of a node that is made as this cluster's are."""
        directory = Directory(is_on=self.has_directory)
        settings = Settings(
            node, self.raft, self.log, self.limits, balance=self.balance, directory=directory
        )
        if self.network.is_under_tls:
            # No file is read: the network itself knows who is who.
            tls = Tls(cert="node.pem", key="node.key", ca="ca.pem")
            access = Access(is_on=True, admins=[ADMIN])
            settings = msgspec.structs.replace(settings, tls=tls, access=access)
        return settings.validate()

    def _tell(self, number: int, what: str) -> None:
        for listener in self.listeners:
            listener(number, what)

    def _machine(self, number: int) -> Machine:
        machine = self.machines.get(number)
        if machine is None:
            disk = MemoryFiles(Random(f"disk {self._seed} {number}"))
            disk.on_call = partial(self._noted_call, number)
            disk.on_sync_failed = partial(self._noted_failure, number)
            disk.on_effect = self._felt
            disk.trace = None
            machine = self.machines[number] = Machine(f"node{number}", self.agenda, disk)
        return machine

    def _noted_call(self, number: int, call: str) -> None:
        self.agenda.trace(call.encode())
        for listener in self.disk_listeners:
            listener(number, call)

    def _felt(self, effect: str) -> None:
        self.agenda.effects[effect] += 1

    def _noted_failure(self, number: int, path: str) -> None:
        for listener in self.sync_listeners:
            listener(number, path)

    def prepare(self, number: int) -> None:
        """Set up a machine for a node that is about to join."""
        self._machine(number)

    async def start(self, *numbers: int) -> None:
        """Start nodes, all if none is named, and wait until they serve or have given up."""
        chosen = numbers or tuple(peer.id for peer in self.peers)
        async with trio.open_nursery() as starting:
            for number in chosen:
                starting.start_soon(self._start, number)

    async def _start(self, number: int) -> None:
        await self._nursery.start(self._live, number)

    def start_soon(self, number: int) -> None:
        """Start a node without waiting for it."""
        self._nursery.start_soon(self._live, number)

    async def _live(
        self, number: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        assert number not in self.processes, f"node {number} runs already"
        seed = self._seed * 1000 + next(self._starts)
        process = Process(self._machine(number), self.agenda, seed=seed)
        process.names = frozenset((node_name(CLUSTER, number),))
        process.machine.descriptors_max = self.descriptors_max
        process.on_crash = lambda: self.kill(number)
        process.on_bug = partial(self._broke, number, process)
        process.machine.disk.on_stop = lambda: None if process.is_dead else process.on_crash()
        world = SimulatedWorld(self.network, process)
        self.processes[number], self.worlds[number] = process, world
        self.stopped.pop(number, None)
        self.incarnations[number] = self.incarnations.get(number, 0) + 1
        self.network.machine_came_back(process.machine.name)
        status = _Once(task_status, lambda: self._tell(number, "serves"))
        self._tell(number, "starts")
        with trio.CancelScope() as scope:
            self._scopes[number] = scope
            await process.run(self._serve, number, world, status)
        # A killed process is buried already, and its number may belong to a successor by now.
        if not process.is_dead:
            self._bury(number, process)
            if number not in self.stopped and number not in self.broken:
                self._tell(number, "ends")
        status.ended()

    async def _serve(self, number: int, world: SimulatedWorld, status: "_Once") -> None:
        """Run a node until it ends in any way.

        Errors of a process that is dead already come from its unwinding, and are not noted.
        """
        process = world.process
        try:
            node = ObservedNode(
                self.settings(number), world, self.observers, self.request_listeners
            )
            self.nodes[number] = node
            await node.run(task_status=status)
        except NodeStopped as stopped:
            if not process.is_dead:
                self.stopped[number] = stopped
                self._bury(number, process)
                self._tell(number, f"gives up: {stopped}")
        except PowerLoss:
            self._crash(number, process)
        except BaseExceptionGroup as group:
            if group.split((KeyboardInterrupt, SystemExit))[0] is not None:
                raise
            if group.split(PowerLoss)[0] is not None:
                self._crash(number, process)
            bugs = group.split(trio.Cancelled)[1]
            if bugs is not None and not process.is_dead:
                self._note_bug(number, process, bugs)
        except Exception as error:
            if not process.is_dead:
                self._note_bug(number, process, error)

    def _crash(self, number: int, process: Process) -> None:
        if not process.is_dead:
            self.kill(number)

    def _broke(self, number: int, process: Process, error: Exception) -> None:
        """A call from the world into the node raised: the answer of its disk, for example."""
        if not process.is_dead:
            scope = self._scopes[number]
            self._note_bug(number, process, error)
            scope.cancel()

    def _note_bug(self, number: int, process: Process, error: BaseException) -> None:
        self.broken[number] = "".join(traceback.format_exception(error))
        self._bury(number, process)
        self._tell(number, f"breaks: {error!r}")

    def _bury(self, number: int, process: Process, *, power: bool = False) -> None:
        """Remove a process that has ended from the tables, the network and the disk."""
        process.die()
        self.agenda.effects["processes ended"] += 1
        for of_living in (self._scopes, self.nodes, self.worlds, self.processes):
            of_living.pop(number, None)
        if power:
            self.agenda.effects["machines that went dark"] += 1
            self.network.machine_went_dark(process)
            process.machine.disk.power_loss()
        else:
            self.network.process_ended(process)
            process.machine.disk.kill()

    def kill(self, number: int, *, power: bool = False) -> None:
        """Stop a node at once: the process crashes, or its machine loses power."""
        scope = self._scopes[number]
        # Before the end: the watch takes a last look at the node.
        self._tell(number, "loses power" if power else "is killed")
        self._bury(number, self.processes[number], power=power)
        scope.cancel()

    def wipe(self, number: int) -> None:
        """Give a node that is down an empty disk."""
        assert number not in self.processes
        del self.machines[number]
        self._machine(number)

    async def stop(self, number: int) -> None:
        """Stop a node gracefully."""
        process = self.processes[number]
        self.nodes[number].stop()
        await self.wait_until(lambda: process.is_dead)

    def leader(self, group: int) -> int:
        """The node that leads a partition group in the highest term; 0: none."""
        leading = [
            (node.groups[group].raft.term, number)
            for number, node in self.nodes.items()
            if group in node.groups and node.groups[group].is_leader
        ]
        return max(leading)[1] if leading else 0

    def filters_heard(self) -> tuple[int, int]:
        """Versions of subscriptions: the newest in a catalog, and the oldest in the catalog of a
        node that leads a data group."""
        versions = {n: node.catalog.subscribers.version for n, node in self.nodes.items()}
        newest = max(versions.values(), default=0)
        numbers = [g for node in self.nodes.values() for g in node.catalog.groups if g]
        leaders = {leader for number in numbers if (leader := self.leader(number))}
        return newest, min((versions[leader] for leader in leaders), default=newest)

    async def found(self) -> None:
        """Start all nodes and wait until the cluster is founded and each node leads a group."""
        await self.start()
        await self.wait_led(0)
        await self.wait_until(lambda: self.nodes[self.leader(0)].catalog.is_bootstrapped)
        # Each data group has a preferred leader of its own: wait for the hand-overs.
        spread = {group: (group - 1) % len(self.peers) + 1 for group in (1, 2, 3)}
        await self.wait_until(
            lambda: all(self.leader(group) == node for group, node in spread.items())
        )

    async def wait_known(self, topic: str) -> None:
        """Wait until every node that runs knows a topic."""
        await self.wait_until(
            lambda: all(topic in node.catalog.topics for node in self.nodes.values())
        )

    def leader_of(self, queue: int) -> int:
        """The node that leads a queue's partition group."""
        node = next(iter(self.nodes.values()))
        group = node.catalog.group_of(queue)
        assert group is not None
        return self.leader(group)

    async def wait_until(self, holds: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until `holds()` is true."""
        with trio.fail_after(seconds):
            # Polling costs nothing under a simulated clock.
            while not holds():  # noqa: ASYNC110
                await trio.sleep(0.01)

    def members(self, group: int) -> set[int]:
        """The nodes that vote in a partition group, by its leader; empty while it has no leader."""
        leader = self.leader(group)
        voters = self.nodes[leader].groups[group].conf_state.voters if leader else ()
        return set(map(node_of, voters))

    def has_joined(self, node: int) -> bool:
        """True if a node votes or learns in the system group, by its leader and by itself."""
        leader, running = self.leader(SYSTEM_GROUP), self.nodes.get(node)
        own = running.groups.get(SYSTEM_GROUP) if running is not None else None
        if not leader or own is None:
            return False
        return own.raft.id in own.members & self.nodes[leader].groups[SYSTEM_GROUP].members

    async def wait_led(self, *groups: int) -> None:
        """Wait until all these groups have a leader."""
        await self.wait_until(lambda: all(self.leader(group) for group in groups))


class _Once:
    """A task status that is set once: when the node serves, or when it ends before that."""

    def __init__(self, status: trio.TaskStatus[None], on_serving: Callable[[], None]) -> None:
        self._status = status
        self._on_serving = on_serving
        self._is_started = False

    def started(self, value: None = None) -> None:
        """The node serves."""
        self.ended()
        self._on_serving()

    def ended(self) -> None:
        """The node serves, or never will."""
        if not self._is_started:
            self._is_started = True
            self._status.started()
