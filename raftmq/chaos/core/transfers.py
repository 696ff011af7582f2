"""Snapshots on their way: in chunks over the network, into a receiver on the other disk.

The sender offers the next chunk, the receiver answers how many bytes it has, and so on; when the
file is whole and checked, the SNAPSHOT message of consensus follows. A chunk that is not answered
in time ends the transfer, and consensus asks again; the receiver then goes on where it stopped.

Sources: `raftmq.broker.replica.snapshots`, whose steps these are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.network import CHUNK
from raftmq.chaos.core.node import Node
from raftmq.chaos.core.replica.replica import Replica
from raftmq.consensus import Message
from raftmq.errors import CorruptRecord
from raftmq.log.faults import DiskFull
from raftmq.log.segment import Identity
from raftmq.log.snapshot import SnapshotFile, SnapshotReceiver

CHUNK_BYTES = 100
"""Bytes of a chunk: few, so that the small states of the simulation come in several chunks."""

ANSWER_US_MAX = 1_500_000
"""A transfer is given up when an answer takes longer than this."""


@dataclass(slots=True, eq=False)
class Transfer:
    """One snapshot from one process to one node. It is state."""

    sender: Replica
    message: Message
    file: SnapshotFile
    offers: int = 0
    """Offers made so far: the timeout of an offer has no effect once another one was made."""
    is_over: bool = False


class Transfers:
    """All transfers of the cluster. It is state."""

    def __init__(self, environment: Environment, nodes: Mapping[int, Node]) -> None:
        """`nodes`: by id, every node that ever existed."""
        self._environment = environment
        self._nodes = nodes
        self._sending: set[tuple[Replica, int]] = set()
        self._receivers: dict[int, tuple[Replica, SnapshotReceiver]] = {}

    def send(self, sender: Replica, message: Message) -> None:
        """Bring a snapshot to a member, then the message; one at a time to each."""
        assert message.snapshot is not None
        # By process, not by node: a process that starts again knows nothing of the transfers of its
        # last life.
        way = (sender, message.to)
        if way in self._sending:
            return
        try:
            file = sender.store.open_snapshot(message.snapshot.meta.index)
        except (FileNotFoundError, CorruptRecord, OSError):
            self._environment.loop.after(1000, sender.turn, self._report, sender, message.to, False)
            return
        self._sending.add(way)
        self._environment.counts["snapshots sent"] += 1
        self._offer(Transfer(sender, message, file), 0, b"")

    def _link(self, transfer: Transfer, *, back: bool = False) -> tuple[int, int]:
        places = transfer.sender.node.place, self._nodes[transfer.message.to].place
        return (places[1], places[0]) if back else places

    def _offer(self, transfer: Transfer, offset: int, data: bytes) -> None:
        transfer.offers += 1
        network, loop = self._environment.network, self._environment.loop
        link = self._link(transfer)
        network.carry(link, CHUNK, self._arrived, transfer, link, offset, data)
        loop.after(ANSWER_US_MAX, self._timed_out, transfer, transfer.offers)

    def _timed_out(self, transfer: Transfer, offers: int) -> None:
        if transfer.offers == offers:
            self._over(transfer, ok=False)

    def _over(self, transfer: Transfer, *, ok: bool) -> None:
        if transfer.is_over:
            return
        transfer.is_over = True
        sender, to = transfer.sender, transfer.message.to
        self._sending.discard((sender, to))
        sender.turn(self._report, sender, to, ok)

    def _report(self, sender: Replica, to: int, ok: bool) -> None:
        sender.raft.report_snapshot(to, ok=ok)

    def _arrived(self, transfer: Transfer, link: tuple[int, int], offset: int, data: bytes) -> None:
        node = self._nodes[transfer.message.to]
        replica = node.replica
        if replica is None or self._environment.network.holds(*link) or replica.is_full:
            return
        replica.turn(self._receive, transfer, node, replica, offset, data)

    def _receive(
        self, transfer: Transfer, node: Node, replica: Replica, offset: int, data: bytes
    ) -> None:
        def write() -> object:
            try:
                return self._write(transfer, node, replica, offset, data)
            # The answer carries the fault: it ends the transfer, and not the process.
            except (CorruptRecord, DiskFull) as fault:
                return fault

        def done(received: object) -> None:
            link = self._link(transfer, back=True)
            self._environment.network.carry(link, CHUNK, self._answered, transfer, link, received)

        replica.writing.submit(write, done)

    def _write(
        self, transfer: Transfer, node: Node, replica: Replica, offset: int, data: bytes
    ) -> int:
        assert transfer.message.snapshot is not None
        index = transfer.message.snapshot.meta.index
        life, receiver = self._receivers.get(node.id, (None, None))
        if life is not replica or receiver is None or receiver.index != index:
            receiver = SnapshotReceiver(
                node.disk,
                "log",
                Identity("core", node.id, 0),
                index=index,
                bytes_total=transfer.file.bytes,
            )
            self._receivers[node.id] = replica, receiver
        received = receiver.write(offset, data)
        if receiver.is_complete:
            del self._receivers[node.id]
            receiver.finish()
        return received

    def _answered(self, transfer: Transfer, link: tuple[int, int], received: object) -> None:
        sender = transfer.sender
        if transfer.is_over or sender.is_gone or self._environment.network.holds(*link):
            return
        if not isinstance(received, int):
            self._over(transfer, ok=False)
            return
        if received >= transfer.file.bytes:
            transfer.offers += 1
            self._environment.network.send(transfer.message)
            self._over(transfer, ok=True)
            return
        sender.turn(self._offer_next, transfer, received)

    def _offer_next(self, transfer: Transfer, received: int) -> None:
        try:
            data = transfer.file.chunk(received, CHUNK_BYTES)
        except OSError:
            self._over(transfer, ok=False)
            return
        self._offer(transfer, received, data)
