"""Snapshots of a group's machine: taken, sent to a member far behind, received, restored.

A snapshot is taken between two segments of the log, when the machine gets there. The snapshot lets
the segments before it go, when retention says so, and bounds the records that a restart must apply
again. A member far behind gets the *oldest* snapshot kept: the whole kept log comes after it, by
ordinary appends, so the new member ends with the same messages as the others.

A snapshot is sent in chunks that are acknowledged one by one; a receiver that was interrupted says
how much it has, and the sender goes on from there. The SNAPSHOT message of consensus follows the
last chunk, over the same link.

Invariants:
- A machine is replaced only by a snapshot whose checksums were verified on this node's own disk.
- At most one snapshot at a time is on its way to a member of a group.
- Consensus acts on a SNAPSHOT message only if the whole file was received, and from then on until
  the file is installed no chunk changes it.
- No part of a snapshot is sent before the whole file has passed its checks.
"""

from functools import partial

import trio

from raftmq.broker.cluster.peers import PeerLink
from raftmq.broker.host import Host
from raftmq.broker.replica.repair import Repairs
from raftmq.broker.replica.space import Space
from raftmq.broker.serve.answers import Answer, OpenRequest, elsewhere, of_nodes
from raftmq.broker.serve.dispatcher import frame_route, route
from raftmq.broker.service import Service
from raftmq.broker.world import Worker, run_on
from raftmq.consensus import Message, Snapshot
from raftmq.errors import CorruptRecord, Unavailable
from raftmq.log.faults import DiskFull, Dropped
from raftmq.log.record import Record
from raftmq.log.snapshot import SnapshotReceiver
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.replicas import member_of
from raftmq.results import Result
from raftmq.wire import raft as raft_wire
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FrameKind, RepairRange, SnapshotChunk, SnapshotProgress
from raftmq.wire.traces import FindLog, FoundLog

from .comparison import Comparing
from .group import Group, node_of
from .opener import group_folder, log_identity, log_meta, restore_machine

CHUNK_BYTES = 1024 * 1024
"""Bytes of a snapshot in one frame."""

SEND_SECONDS_MAX = 600.0
"""A snapshot that does not get through in this time is given up; consensus asks again."""


class Snapshots(Service):
    """The snapshots of one node's groups."""

    def __init__(
        self, node: Host, *, repairs: Repairs, space: Space, reader: Worker, disk: Worker
    ) -> None:
        self._node = node
        self._repairs = repairs
        self._space = space
        self._reader = reader
        self._disk = disk
        self._receivers: dict[int, SnapshotReceiver] = {}
        # By group: the last chunk that came; and the index of the snapshot whose file is whole.
        self._latest: dict[int, SnapshotChunk] = {}
        self._whole: dict[int, int] = {}
        self.comparing = Comparing(node, self.take_chunk, reader=reader, disk=disk)
        """Compares replicas at the borders."""
        self._sending: set[tuple[int, int]] = set()
        self.routes = {
            FrameKind.SNAPSHOT: frame_route(self._receive),
            FrameKind.REPAIR: route(RepairRange, self._lend),
            FrameKind.LOG: route(FindLog, self._describe),
        }

    def take(self, group: Group, record: Record) -> None:
        """Snapshot the machine as it is just after `record`, the last one applied."""
        # A snapshot would keep the wrong state, for members far behind and for the next restart.
        if group.differs:
            return
        meta = log_meta(group.snapshot_meta(record), group.machine.state_version)
        state = group.machine.snapshot()
        saved = partial(self._saved, group, record.index)
        self._disk.submit(partial(group.store.save_snapshot, meta, state), saved)

    def _saved(
        self, group: Group, index: int, crc: int | None, error: BaseException | None
    ) -> None:
        if crc is not None and not group.is_retired:
            self.comparing.saved(group, index, crc)
        # A full disk only means that this border has no snapshot: there will be others. A border
        # that has left the log meanwhile needs none.
        if error is not None and not isinstance(error, DiskFull | Dropped):
            self._node.fail(error)

    async def send(self, group: Group, message: Message) -> None:
        """Send a snapshot to a member, then the message; report the outcome to consensus."""
        member = message.to
        # The sending under way reports its outcome for this message, too.
        if (group.number, member) in self._sending:
            return
        self._sending.add((group.number, member))
        is_sent = False
        try:
            with trio.move_on_after(SEND_SECONDS_MAX):
                is_sent = await self._send(group, message)
        finally:
            self._sending.discard((group.number, member))
            group.raft.report_snapshot(member, ok=is_sent)
            self._node.mark(group)

    async def _send(self, group: Group, message: Message) -> bool:
        assert message.snapshot is not None
        if group.differs:
            # The snapshots of a replica that differs may differ, too.
            return False
        number = node_of(message.to)
        link = self._node.links.get(number)
        # A node that lost its disk is reached where its old self was, but is another member. A
        # voter whose id was used up by mistake stands for its node until the next one comes.
        due = member_of(self._node.catalog, group.number, number)
        is_standing = message.to in group.conf_state.voters and due not in group.members
        if link is None or not (message.to == due or is_standing):
            return False
        index, start = message.snapshot.meta.index, group.store.first_index - 1
        if index > start and self._repairs.gives_way(group, start):
            # The oldest snapshot is rotten here: another member may have a sound one to send.
            return False
        try:
            file = group.store.open_snapshot(index)
            await run_on(self._reader, file.verify)
            chunk = SnapshotChunk(group.number, index, 0, file.bytes)
            received = await _offer(link, chunk, b"")
            while received < file.bytes:
                data = file.chunk(received, CHUNK_BYTES)
                chunk = SnapshotChunk(group.number, index, received, file.bytes)
                received = await _offer(link, chunk, data)
        except CorruptRecord as error:
            self._repairs.found_snapshot(group, index, error)
            return False
        except (Unavailable, OSError):
            # The link broke, or retention took the file: consensus asks again.
            return False
        return link.send(raft_wire.encode(group.number, message))

    def _receive(self, frame: Frame, asked: OpenRequest) -> Answer:
        """Take in a chunk, and say how much is here."""
        if not asked.connection.from_node:
            return of_nodes()
        chunk = unpack(SnapshotChunk, frame.header)
        group = self._node.group(chunk.group)
        if group is None:
            return ErrorReply("unavailable", f"no replica of group {chunk.group} here yet")
        if self._whole.get(chunk.group) == chunk.index <= group.raft.commit:
            # It is being installed. Another member's file may have another size, after an upgrade.
            return SnapshotProgress(chunk.size)
        if self._space.is_low:
            return ErrorReply("unavailable", self._space.refusal)

        def failed(error: BaseException) -> ErrorReply:
            return ErrorReply("unavailable", f"the snapshot cannot be written: {error}")

        def taken(received: int) -> SnapshotProgress:
            # A later chunk may be of a file of another size: it throws this one away.
            if received == chunk.size and self._latest.get(chunk.group) is chunk:
                self._whole[chunk.group] = chunk.index
            return SnapshotProgress(received)

        self._latest[chunk.group] = chunk
        if self._whole.get(chunk.group) == chunk.index:
            del self._whole[chunk.group]
        job = partial(self.take_chunk, group, chunk, frame.body)
        return asked.run_on(self._disk, job, taken, failed)

    def has(self, group: Group, snapshot: Snapshot) -> bool:
        """Whether consensus may act on a SNAPSHOT message: the file is here, or not needed."""
        index = snapshot.meta.index
        return index <= group.raft.commit or self._whole.get(group.number) == index

    def _lend(self, request: RepairRange, asked: OpenRequest) -> Answer:
        """Give records or a piece of a snapshot to a peer that lacks them, or to a backup."""
        part = self.comparing if request.snapshot else self._repairs
        return part.answer(request, asked)

    def _describe(self, request: FindLog, asked: OpenRequest) -> Answer:
        """The bounds of a log, for a backup: its parts are then lent."""
        group = self._node.group(request.partition_group)
        if group is None:
            return elsewhere(request.partition_group)

        def found() -> Answer:
            # The digest of a replica that differs is not that of the group.
            if group.differs:
                return ErrorReply("unavailable", group.differs)
            oldest, machine = group.store.snapshots[0], group.machine
            return FoundLog(oldest.index, oldest.state_crc, machine.applied, machine.digest)

        return asked.read(group, found)

    def take_chunk(self, group: Group, chunk: SnapshotChunk, data: bytes) -> int:
        """On the disk thread: take a chunk, and the whole file when it is complete."""
        receiver = self._receivers.get(group.number)
        # Another leader's oldest snapshot may be of another border.
        if receiver is None or receiver.index != chunk.index:
            receiver = self._receivers[group.number] = SnapshotReceiver(
                self._node.world.files,
                group_folder(self._node, group.number),
                log_identity(self._node, group.number),
                index=chunk.index,
                bytes_total=chunk.size,
            )
        received = receiver.write(chunk.offset, data)
        if receiver.is_complete:
            del self._receivers[group.number]
            receiver.finish()
        return received

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Compare the checksums among the records."""
        self.comparing.applied(group, records)

    def forget(self, group: Group) -> None:
        """Drop what was received of a snapshot, and the checksums."""
        self.comparing.forget(group)
        self._latest.pop(group.number, None)
        self._whole.pop(group.number, None)
        self._disk.submit(lambda: self._receivers.pop(group.number, None), lambda *_: None)

    def restore(self, group: Group, snapshot: Snapshot) -> None:
        """A received snapshot took the place of the log: restore the machine from it."""
        self.comparing.forget(group)
        self._whole.pop(group.number, None)
        file = group.store.open_snapshot(snapshot.meta.index)
        group.replace_machine(restore_machine(group.number, file.state()), snapshot.meta)
        if group.number == SYSTEM_GROUP:
            self._node.catalog_changed()


async def _offer(link: PeerLink, chunk: SnapshotChunk, data: bytes) -> int:
    """Send a chunk; how many bytes the other side has then."""
    progress = await link.ask(FrameKind.SNAPSHOT, chunk, SnapshotProgress, [data])
    if not 0 <= progress.received <= chunk.size:
        raise Unavailable(f"{progress.received} bytes of {chunk.size} cannot have been received")
    return progress.received
