"""Replicas compare their machines: the checksum in the log decides, and a replica that differs is
rebuilt.

Replicas of one log must have one state, byte for byte. A bug of the machine, rot in memory or
different software can make them differ, and no answer shows that before a change of leader. So the
leader takes a snapshot at each border (`snapshots`) and proposes its CRC-32C as a record. A replica
compares its own snapshot of that border, once it has both the record and the snapshot:

    leader    border 4710: snapshot, CRC 8a136aa9 ──> CHECKSUM(4710, 8a136aa9)
    follower  border 4710: snapshot, CRC 8a136aa9 ──> equal
    follower  border 4710: snapshot, CRC 5e02c711 ──> differs: mended

A replica that differs keeps its log, its vote and its membership: they are right. It hands over if
it leads, serves nothing and takes no snapshot. It asks all nodes for the snapshot with the CRC of
the log, restores a machine from that file, applies its own log after it, and puts that machine in
the place of the old one, between two records.

| case | what happens |
|---|---|
| it has no snapshot of that border | nothing is compared; the next border is |
| it is restarted meanwhile | its own snapshot at that border is on its disk with its CRC; the |
| | record is applied again, or the snapshot is not older than it and is compared at the next |
| two of three differ | each gets the leader's snapshot; the log is replicated all the time |
| it leads: another one led at the border | it hands over; no client is served by the old state |
| it leads, no node has that snapshot, and none takes over | after `OVERRULE_SECONDS` its own |
| | checksum goes into the log, and from then on decides |
| offsets of messages differ | its indexes are wrong as well: the node stops and says so |

Invariants:
- Of the checksums of one border the last one in the log holds.
- A machine is replaced only by a snapshot whose CRC the log names, and all records after it.
- While a replica differs it answers no client, and no snapshot of it is taken.
- Nothing is compared between versions that write other snapshots.

Left out: traces of messages before the border stay as this replica saw them. Snapshots from before
the border are kept: a replica that is restored from one of them meets the log's checksums again.

Sources: Raft §2; TigerBeetle's checkpoints with checksums; decision 0026.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio

from raftmq.broker.cluster.peers import PeerLink
from raftmq.broker.host import Host
from raftmq.broker.serve.answers import Answer, OpenRequest, WithBody
from raftmq.broker.tickets import Callback
from raftmq.broker.world import Worker, run_on
from raftmq.errors import CorruptRecord, Unavailable
from raftmq.log.faults import DiskFull, Dropped, LogFault, RotFound
from raftmq.log.record import Kind, Record
from raftmq.log.store import LogStore
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.messages import (
    ErrorReply,
    FrameKind,
    RepairedRange,
    RepairRange,
    SnapshotChunk,
)

from .group import Group, Machine
from .opener import restore_machine
from .space import heirs

KEPT = 4
"""Borders of a group whose checksums are remembered."""
PIECE_BYTES = 1024 * 1024
"""Bytes of a snapshot in one answer, and of records that are applied in one go."""
ASK_SECONDS_MAX = 10.0
"""A peer that does not answer within this time is passed over."""
PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 10.0
"""Pause between two attempts to mend: from the minimum, doubled up to the maximum."""
OVERRULE_SECONDS = 60.0
"""A leader that differs, and that no node can mend or relieve, trusts itself after this time: a
group must not stand still for ever because the one replica that had the other state is lost."""

WRITING_SECONDS = 0.02
"""Pause when records that were applied are not on the own disk yet."""

_PAYLOAD = struct.Struct("<QIH")


class Checksum(NamedTuple):
    """The payload of a CHECKSUM record, little-endian: u64, u32, u16."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used here
    """The border: the last record that the snapshot covers."""
    crc: int
    """CRC-32C of the machine's state there."""
    version: int
    """Version of the state's format: only replicas that write one version compare."""

    def encode(self) -> bytes:
        """The payload."""
        return _PAYLOAD.pack(*self)

    @classmethod
    def decode(cls, payload: bytes) -> "Checksum | None":
        """The reverse of `encode`; None: the payload is no checksum."""
        return cls(*_PAYLOAD.unpack(payload)) if len(payload) == _PAYLOAD.size else None


class StateDiffers(LogFault):
    """A replica's machine differs from its group's in a way that cannot be mended in place."""


class Comparing:
    """The comparison of one node's replicas with those of other nodes."""

    def __init__(
        self,
        node: Host,
        take_chunk: Callable[[Group, SnapshotChunk, bytes], int],
        *,
        reader: Worker,
        disk: Worker,
    ) -> None:
        self._node = node
        self._take_chunk = take_chunk
        self._reader = reader
        self._disk = disk
        # By group: border → CRC of this replica's snapshot, and CRC by the log; the latest `KEPT`.
        self._own: dict[int, dict[int, int]] = {}
        self._told: dict[int, dict[int, int]] = {}
        self._mending: set[Group] = set()
        # Borders whose own snapshot cannot be read, whatever its checksum says.
        self._rotten: set[tuple[Group, int]] = set()
        self.compared = 0
        """Borders that were compared since the start."""
        self.mended = 0
        """Machines that were replaced."""

    # Compared

    def saved(self, group: Group, index: int, crc: int) -> None:
        """A snapshot of this replica at a border is on disk: propose its CRC, and compare."""
        _remember(self._own.setdefault(group.number, {}), index, crc)
        if group.is_leader and not group.differs:
            self._propose(group, index, crc)
        self._compare(group, index)

    def applied(self, group: Group, records: list[Record]) -> None:
        """Compare the checksums among records that were applied."""
        for record in records:
            if record.kind != Kind.CHECKSUM:
                continue
            told = Checksum.decode(bytes(record.payload))
            if told is not None and told.version == group.machine.state_version:
                _remember(self._told.setdefault(group.number, {}), told.index, told.crc)
                self._compare(group, told.index)

    def forget(self, group: Group) -> None:
        """Drop the CRCs of a group whose machine was replaced, or that is no longer carried."""
        self._own.pop(group.number, None)
        self._told.pop(group.number, None)
        group.differs = ""

    def _propose(self, group: Group, index: int, crc: int) -> None:
        payload = Checksum(index, crc, group.machine.state_version).encode()
        # A checksum that gets lost is not proposed again: the next border will be compared.
        ticket = Callback(lambda _: None, lambda _: None)
        group.propose(Kind.CHECKSUM, payload, ticket, is_upkeep=True)

    def _compare(self, group: Group, index: int) -> None:
        told = self._told.get(group.number, {}).get(index)
        own = self._own.get(group.number, {}).get(index)
        if own is None:
            # The snapshot was taken before a restart, perhaps by other software, or received.
            known = (index, group.machine.state_version)
            own = next(
                (m.state_crc for m in group.store.snapshots if (m.index, m.state_version) == known),
                None,
            )
        if told is None or own is None:
            return
        self.compared += 1
        if own == told:
            return
        group.differs = (
            f"the state of partition group {group.number} after record {index} has the CRC-32C "
            f"{own:08x} on node {self._node.id}, and {told:08x} by the log: the replica is rebuilt "
            "from the snapshot of a node that has the latter"
        )
        if group not in self._mending:
            self._mending.add(group)
            self._node.start_soon(self._mend, group)

    # Mended

    async def _mend(self, group: Group) -> None:
        """Try until the machine is replaced, or the log says that it is right."""
        pause, led_since = PAUSE_SECONDS_MIN, trio.current_time()
        try:
            while group.differs and self._node.group(group.number) is group:
                # The newest border: older snapshots may be gone everywhere.
                index, crc = max(self._told[group.number].items())
                if await self._try(group, index, crc):
                    return
                if not group.is_leader:
                    # While another member leads, the group does not stand still: no reason to
                    # overrule the log.
                    led_since = trio.current_time()
                elif trio.current_time() >= led_since + OVERRULE_SECONDS:
                    self._overrule(group)
                    return
                elif heir := next(iter(heirs(group, self._node.catalog.drained)), 0):
                    group.transfer(heir)
                await trio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            self._mending.discard(group)
            self._rotten = {each for each in self._rotten if each[0] is not group}

    def _overrule(self, group: Group) -> None:
        """No node has the state that the log names: this leader's state holds from now on."""
        group.differs = ""
        index, crc = max(self._own.get(group.number, {}).items(), default=(0, 0))
        # After a restart the own checksums are known from the snapshots only.
        if not index:
            newest = group.store.snapshots[-1]
            index, crc = newest.index, newest.state_crc
        self._propose(group, index, crc)

    async def _try(self, group: Group, index: int, crc: int) -> bool:
        """Try to replace the machine; True: no further attempt is needed."""
        try:
            is_here = (group, index) not in self._rotten and _has(group.store, index, crc)
            if not is_here and not await self._fetch(group, index, crc):
                return False
            self._rotten.discard((group, index))
            state = await run_on(self._reader, lambda: group.store.open_snapshot(index).state())
            machine = restore_machine(group.number, state)
            await self._catch_up(group, machine)
        except CorruptRecord:
            # The file here under the right checksum is rotten: the next attempt fetches it again.
            self._rotten.add((group, index))
            return False
        except RotFound as fault:
            self._node.read_failed(fault)
            return False
        except (Dropped, DiskFull, OSError):
            return False
        except LogFault as error:
            if not group.is_retired:
                self._node.fail(error)
            return True
        if _ends(machine) != _ends(group.machine):
            self._node.fail(StateDiffers(_unmendable(group)))
            return True
        group.machine, group.differs = machine, ""
        # These checksums are of the machine that was just replaced.
        self._own.pop(group.number, None)
        self.mended += 1
        # Newer snapshots may hold the state that differed.
        for meta in group.store.snapshots:
            if meta.index > index:
                self._disk.submit(partial(group.store.drop_snapshot, meta.index), self._done)
        self._node.mark(group)
        if isinstance(machine, PartitionMachine):
            self._node.think()
        else:
            self._node.catalog_changed()
        return True

    def _done(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._node.fail(error)

    async def _catch_up(self, group: Group, machine: Machine) -> None:
        """Apply this replica's own log to a machine until it is where the group's is.

        Nothing is awaited after the last check, so on return both machines are at one record.
        Raises as `LogStore.read`.
        """
        while machine.applied < group.machine.applied:
            low, high = machine.applied + 1, group.machine.applied + 1
            records = await run_on(self._reader, partial(group.store.read, low, high, PIECE_BYTES))
            if not records:
                # A leader applies records that a majority has; its own disk may still write them.
                await trio.sleep(WRITING_SECONDS)
            for record in records:
                machine.apply(record)
            if isinstance(machine, PartitionMachine):
                # Leases and traces were sent and indexed when the records were applied first.
                machine.pop_groups.take_handed()
                machine.pop_groups.take_traced()

    async def _fetch(self, group: Group, index: int, crc: int) -> bool:
        """Get the snapshot with this CRC from a member that has it, in place of the one here."""
        for link in self._node.links.members():
            try:
                with trio.move_on_after(60 * ASK_SECONDS_MAX):
                    if await self._fetch_from(link, group, index, crc):
                        await run_on(self._disk, partial(group.store.adopt_snapshot, index))
                        return _has(group.store, index, crc)
            except (_Lacking, CorruptRecord, FileNotFoundError):
                # A snapshot of the leader that is installed meanwhile removes the received file.
                continue
        return False

    async def _fetch_from(self, link: PeerLink, group: Group, index: int, crc: int) -> bool:
        received, size = 0, 1
        while received < size:
            size, data = await _ask(link, RepairRange(group.number, received, size, index, crc))
            chunk = SnapshotChunk(group.number, index, received, size)
            take = partial(self._take_chunk, group, chunk, data)
            received = await run_on(self._disk, take)
        return True

    # Asked by a peer

    def answer(self, request: RepairRange, asked: OpenRequest) -> Answer:
        """Give a peer a piece of the snapshot that it asks for, if it is here."""
        group = self._node.group(request.group)
        if group is None or not _has(group.store, request.snapshot, request.crc):
            message = f"no snapshot at record {request.snapshot} with that checksum is here"
            return ErrorReply("unavailable", message)
        store, at = group.store, request.low

        def read() -> tuple[int, bytes]:
            file = store.open_snapshot(request.snapshot)
            return file.bytes, file.chunk(at, PIECE_BYTES)

        def failed(error: BaseException) -> ErrorReply:
            return ErrorReply("unavailable", f"the snapshot cannot be read here: {error}")

        asked.connection.expect(asked.correlation, PIECE_BYTES)
        return asked.run_on(self._reader, read, _piece, failed)


class _Lacking(Exception):
    """A peer could not give a piece of a snapshot."""


async def _ask(link: PeerLink, request: RepairRange) -> tuple[int, bytes]:
    """The size of the peer's snapshot file, and a piece of it. Cancelling drops the answer."""
    try:
        with trio.fail_after(ASK_SECONDS_MAX):
            found, data = await link.ask_with_body(FrameKind.REPAIR, request, RepairedRange)
    except (Unavailable, trio.TooSlowError) as error:
        raise _Lacking from error
    return found.count, data


def _piece(found: tuple[int, bytes]) -> WithBody:
    return WithBody(RepairedRange(found[0]), [found[1]])


def _ends(machine: Machine) -> dict[int, int]:
    return machine.ends if isinstance(machine, PartitionMachine) else {}


def _has(store: LogStore, index: int, crc: int) -> bool:
    return any((meta.index, meta.state_crc) == (index, crc) for meta in store.snapshots)


def _remember(borders: dict[int, int], index: int, crc: int) -> None:
    borders.pop(index, None)
    borders[index] = crc
    if len(borders) > KEPT:
        del borders[min(borders)]


def _unmendable(group: Group) -> str:
    return (
        f"the messages of partition group {group.number} have other offsets on this node than on "
        "the others, so its indexes are wrong as well: stop the node, delete its data folder and "
        "start it again; the other nodes send it the data"
    )
