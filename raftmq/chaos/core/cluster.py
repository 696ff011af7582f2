"""The simulated cluster: its nodes, and all that works with several of them.

Founders begin as in the broker: each with the same snapshot at index 1 that names them all. Spare
nodes wait with empty disks until they are made members.

Sources: TigerBeetle's VOPR and FoundationDB's simulation for the shape;
`raftmq.broker.replica.opener` for the founding.
"""

from random import Random

from raftmq.broker.replica.opener import log_meta
from raftmq.chaos.core.checks.safety import Safety
from raftmq.chaos.core.clients import Clients
from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.loop import Loop
from raftmq.chaos.core.network import Network
from raftmq.chaos.core.node import Node
from raftmq.chaos.core.operator import Operator
from raftmq.chaos.core.replica.machine import Machine
from raftmq.chaos.core.replica.process import Process
from raftmq.chaos.core.replica.replica import FOLDER, open_store
from raftmq.chaos.core.roster import Roster
from raftmq.chaos.core.settings import Settings
from raftmq.chaos.core.transfers import Transfers
from raftmq.consensus import ConfState, HardState, Message, Role, SnapshotMeta
from raftmq.log.record import Kind, Record
from raftmq.log.segment import Identity
from raftmq.log.snapshot import SnapshotReceiver, encode_snapshot

FOUNDING_INDEX = 1
SPARES = 2
"""Number of nodes that are no founders and can be added."""


class Cluster(Roster):
    """The whole simulated cluster: makes all parts, and passes on what they tell. It is state."""

    def __init__(self, seed: int, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.loop = Loop()
        self.network = Network(self.loop, Random(f"network {seed}"), self._deliver)
        self.network.roughen(
            delay_ms=settings.delay_ms,
            duplication=settings.duplication,
            reordering=settings.reordering,
        )
        self.safety = Safety(settings, self.nodes, self._role_changed)
        self.environment = Environment(
            seed, settings, self.loop, self.network, self.safety, Random(f"cluster {seed}")
        )
        self.counts = self.environment.counts
        """As `settings`, `loop`, `network` and `safety`: the environment's."""
        self.transfers = Transfers(self.environment, self.nodes)
        self.clients = Clients(self.environment, self.nodes)
        self.operator = Operator(self.environment, self, self.add_node)
        founders = tuple(range(1, settings.nodes + 1))
        for number in range(1, settings.nodes + SPARES + 1):
            self.add_node(number)
        for number in founders:
            self._found(self.nodes[number], ConfState(voters=founders))

    def begin(self) -> None:
        """Start all processes and clients."""
        for number in range(1, self.settings.nodes + 1):
            self.nodes[number].start()
        self.clients.begin()

    def add_node(self, number: int) -> Node:
        """Add a machine with an empty disk, in place of the node that held its place before."""
        node = Node(
            number,
            self.environment,
            send_snapshot=self.transfers.send,
            before_pause=self.clients.read_at,
        )
        self.enter(node)
        return node

    def _found(self, node: Node, conf: ConfState) -> None:
        machine = self.found_again(node, conf)
        node.durable.restart(FOUNDING_INDEX, 1, ())
        node.knows_members(FOUNDING_INDEX, conf)
        node.applied = FOUNDING_INDEX
        record = Record(FOUNDING_INDEX, 1, Kind.NOOP, 1, 0, 0, 0, b"")
        self.safety.founded(record, machine.digest, conf)

    def found_again(self, node: Node, conf: ConfState) -> Machine:
        """Write the founding snapshot on a node's empty disk; the node must not run."""
        store, _ = open_store(node, self.settings)
        machine = Machine(applied=FOUNDING_INDEX)
        meta = SnapshotMeta(FOUNDING_INDEX, 1, conf)
        identity = Identity("core", node.id, 0)
        data = b"".join(encode_snapshot(identity, log_meta(meta), machine.snapshot()))
        receiver = SnapshotReceiver(
            node.disk, FOLDER, identity, index=FOUNDING_INDEX, bytes_total=len(data)
        )
        receiver.write(0, data)
        receiver.finish()
        store.install_snapshot(FOUNDING_INDEX, HardState())
        store.close()
        return machine

    # Reports of the parts

    def _deliver(self, message: Message) -> None:
        self.environment.trace.note(
            self.loop.now_us, message.kind << 48 | message.to & 0xFFFF, message.sender,
            message.term << 32 | message.index,
        )  # fmt: skip
        self.nodes[message.to].deliver(message)

    def _role_changed(self, process: Process, before: Role) -> None:
        """A process took another role."""
        role = process.core.role
        if role is Role.LEADER:
            self.counts["elections"] += 1
            process.led_since = process.ticks
            replica = self.nodes[process.node.id].replica
            assert replica is process
            self.clients.elected(replica)
        if Role.LEADER in (role, before):
            name = role.name.lower()
            self.environment.tell(process.node.id, f"{name}, term {process.core.term}")
