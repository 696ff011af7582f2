"""Opening a replica: from a folder to a `Group`, or from nothing to a founding one.

    <data>/groups/00003/      the log, snapshots and indexes of partition group 3

A founding replica begins with a snapshot at index 1 that holds the founding membership and an empty
machine, the same bytes on each founder. So the log never begins at 1, and a member that is added
later cannot be fed from there: it always gets a snapshot first, and the membership with it.

After a restart the machine is restored from the newest snapshot before the unsealed segments, and
consensus hands out again the records that were committed after it, read from disk: they take the
same way through the same code as when they were new.

Invariants:
- Rot does not keep a replica from being opened: damage that can be mended is mended later, and a
  log that had to be cut makes its member abstain (`repair`).
- A lone node cuts nothing: it holds the only copy, and says so.
- A replica whose folder holds nothing and which is not a founder has no members, so it never
  campaigns; it waits for a leader that adds it.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import cbor2

from raftmq.broker.host import Host
from raftmq.consensus import Config, ConfState, HardState, Raft, Snapshot
from raftmq.consensus import SnapshotMeta as ConsensusMeta
from raftmq.errors import CorruptRecord, RaftmqError
from raftmq.log.cache import LogCache
from raftmq.log.cutting import cut
from raftmq.log.faults import LogFault, RotFound
from raftmq.log.files import LOCK_NAME, prepare, publish
from raftmq.log.index import LogIndex, replay_from
from raftmq.log.segment import SEGMENT_SUFFIX, SNAPSHOT_SUFFIX, Identity, file_name
from raftmq.log.snapshot import SnapshotMeta, SnapshotReceiver, encode_snapshot
from raftmq.log.store import LogSettings, LogStore, Recovered
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.machine import PartitionMachine

from .group import Group, Machine, Parts
from .storage import GroupStorage

GONE = "GONE"
"""A file in a group's folder: the replica has left, and the other files there mean nothing."""

FOUNDING_INDEX = FOUNDING_TERM = 1
"""Index and term of the founding snapshot: see the module heading."""


class GroupOpener:
    """Opens the replicas of one node."""

    def __init__(
        self,
        node: Host,
        *,
        mark: Callable[[Group], None],
        on_snapshot: Callable[[Group, int, RaftmqError], None],
    ) -> None:
        """`mark` has a group's pump run soon; `on_snapshot` hears of a snapshot that is rotten."""
        self._node = node
        self._mark = mark
        self._on_snapshot = on_snapshot
        node.world.files.make_folder(_groups_folder(node))

    def numbers_on_disk(self) -> list[int]:
        """The partition groups that have a folder, with a log in it or without."""
        names = self._node.world.files.list(_groups_folder(self._node))
        return sorted(map(int, filter(str.isdigit, names)))

    def has_log(self, number: int) -> bool:
        """Does a group's folder hold a log? Finishes a deletion that a crash cut short."""
        files, folder = self._node.world.files, group_folder(self._node, number)
        files.make_folder(folder)
        if GONE in files.list(folder):
            self._delete(folder)
        return any(name.endswith(SEGMENT_SUFFIX) for name in files.list(folder))

    def discard(self, number: int, store: LogStore) -> None:
        """Delete a replica's log, on the disk thread. Raises `OSError`; the next start goes on."""
        files, folder = self._node.world.files, group_folder(self._node, number)
        # The log goes in any case, so a store that failed is no reason to keep it.
        with suppress(LogFault):
            store.close()
        # The mark is durable first: after a crash, the rest of a half-deleted log looks like rot.
        file = files.create(f"{folder}/{GONE}")
        file.datasync()
        file.close()
        files.sync_folder(folder)
        self._delete(folder)

    def _delete(self, folder: str) -> None:
        files = self._node.world.files
        for name in files.list(folder):
            if name not in (GONE, LOCK_NAME):
                files.unlink(f"{folder}/{name}")
        files.sync_folder(folder)
        # The mark goes last: as long as it is there, the next start goes on deleting.
        if GONE in files.list(folder):
            files.unlink(f"{folder}/{GONE}")
            files.sync_folder(folder)

    def clear(self, number: int) -> None:
        """Remove the remains of a log without segments, which would look like rot."""
        self._delete(group_folder(self._node, number))

    def open(self, number: int, member: int, founders: list[int]) -> Group:
        """Open a replica as a member; `founders` are its first members if it founds the group.

        Nothing is founded where there is a log already.

        Blocks on the disk, for about as long as reading one segment takes. Raises the faults of
        `LogStore.open`.
        """
        node = self._node
        is_new = False
        try:
            store, recovered = self._open_store(number)
            is_new = bool(founders) and recovered.last_index == 0
            if is_new:
                _found(node, store, log_identity(node, number), founders)
                store.close()
                # `recovered` tells of the log before the founding snapshot.
                store, recovered = self._open_store(number)
            machine, conf_state = self._restored(number, store)
        except RotFound as fault:
            store, recovered = self._open_again(number, member, fault)
            machine, conf_state = self._restored(number, store)
        for rotten in recovered.rotten:
            node.read_failed(rotten)
        group = self._assemble(number, member, store, recovered, machine, conf_state)
        if recovered.snapshot_fault is not None:
            self._on_snapshot(group, recovered.start.index, recovered.snapshot_fault)
        if group.is_alone or (is_new and founders[0] == member):
            # No other node can lead, or all are equally good: no need to wait for a timeout.
            group.raft.campaign()
        return group

    def _open_store(self, number: int) -> tuple[LogStore, Recovered]:
        node = self._node
        return LogStore.open(
            node.world.files,
            group_folder(node, number),
            LogSettings(segment_bytes=node.settings.log.segment_bytes),
            log_identity(node, number),
            mends=True,
            cuts=not _is_only_copy(node),
        )

    def _open_again(self, number: int, member: int, fault: RotFound) -> tuple[LogStore, Recovered]:
        """Open a log that rot kept from being opened, or its machine from being restored."""
        node, folder = self._node, group_folder(self._node, number)
        founding = file_name(FOUNDING_INDEX, SNAPSHOT_SUFFIX)
        if not _is_only_copy(node):
            if not fault.file.endswith(SNAPSHOT_SUFFIX):
                # `LogStore.open` has cut what it may: what is left, as a log without the term of
                # its last vote or with a damaged note, is for an operator.
                raise fault
            # No snapshot restores the machine, so the leader fills the log.
            cut(node.world.files, folder, fault)
        elif fault.file == f"{folder}/{founding}" and member == node.id:
            # The founding state is known: an empty machine, and this member.
            parts = _founding_snapshot(log_identity(node, number), [node.id])
            prepare(node.world.files, folder, founding, parts).close()
            publish(node.world.files, folder, founding)
        else:
            raise RotFound(
                f"{fault.message}. This node holds the only copy, so nothing was changed. Put the "
                "folder back from a backup; `raftmq inspect` shows what can be read of it",
                file=fault.file,
                position=fault.position,
            ) from fault
        return self._open_store(number)

    def _restored(self, number: int, store: LogStore) -> tuple[Machine, ConfState]:
        blank = partial(_blank_machine, number)
        return restored(store, blank=blank, restore=partial(restore_machine, number))

    def _assemble(
        self,
        number: int,
        member: int,
        store: LogStore,
        recovered: Recovered,
        machine: Machine,
        conf_state: ConfState,
    ) -> Group:
        node, pace = self._node, self._node.settings.raft
        config = Config(
            id=member,
            election_ticks=pace.election_ticks,
            heartbeat_ticks=pace.heartbeat_ticks,
            applied=machine.applied,
            inflight_messages_max=pace.inflight_messages_max,
            inflight_bytes_max=pace.inflight_bytes_max,
            message_bytes_max=pace.message_bytes_max,
            uncommitted_bytes_max=pace.uncommitted_bytes_max,
            committed_bytes_max=pace.committed_bytes_max,
            async_storage_writes=True,
            abstains=bool(recovered.abstains),
            # Every node routes by the catalog, so its commits are announced at once.
            announce_commit=number == SYSTEM_GROUP,
            draw=node.world.random.randrange,
        )
        opened = Opened(store, recovered, machine, conf_state)
        parts = assemble(opened, config, node.settings.log.cache_bytes)
        return Group(number, parts, mark=self._mark, now_ms=node.world.now_ms)


class Opened(NamedTuple):
    """A log that was opened, and the machine that was restored from it."""

    store: LogStore
    recovered: Recovered
    machine: Machine
    conf_state: ConfState


def assemble(
    opened: Opened,
    config: Config,
    cache_bytes: int,
    consensus: Callable[[Config, GroupStorage], Raft] = Raft,
) -> Parts:
    """The parts of a replica whose log was opened; `consensus` makes the consensus core."""
    store, recovered, machine, conf_state = opened
    cache = LogCache(
        start=recovered.start, last=recovered.end, terms=recovered.terms, bytes_max=cache_bytes
    )
    term, vote, commit = recovered.hard_state
    # Applied records were committed, though the commit index may not have been synced.
    hard_state = HardState(term, vote, max(commit, machine.applied))
    storage = GroupStorage(cache, hard_state, conf_state, lambda: oldest_snapshot(store))
    return Parts(
        raft=consensus(config, storage),
        storage=storage,
        cache=cache,
        store=store,
        index=LogIndex(store.sealed, store.layout, applied=machine.applied),
        machine=machine,
        conf_state=conf_state,
        abstains=recovered.abstains,
    )


def oldest_snapshot(store: LogStore) -> Snapshot:
    """The snapshot for a member far behind: all kept records come after it."""
    return Snapshot(consensus_meta(store.snapshots[0]))


def founding_members(node: Host, number: int) -> list[int]:
    """The members that found a group, the one that campaigns at once first; empty: none is
    known."""
    if number == SYSTEM_GROUP:
        # The nodes may list each other in different orders. Each member has its node's number.
        return sorted(peer.id for peer in node.settings.node.peers)
    group = node.catalog.groups.get(number)
    return group.founders if group is not None else []


def _blank_machine(number: int) -> Machine:
    """The machine of a group that has applied nothing."""
    return Catalog() if number == SYSTEM_GROUP else PartitionMachine()


def restore_machine(number: int, state: bytes) -> Machine:
    """The machine of a group, from a snapshot of its state."""
    if number == SYSTEM_GROUP:
        return Catalog.restore(state)
    return PartitionMachine.restore(state)


def encode_conf_state(conf: ConfState) -> bytes:
    """A membership as snapshots keep it: the fields of `ConfState`, as CBOR."""
    return cbor2.dumps([list(part) if isinstance(part, tuple) else part for part in conf])


def decode_conf_state(data: bytes) -> ConfState:
    """The reverse of `encode_conf_state`."""
    if not data:
        return ConfState()
    voters, learners, outgoing, learners_next, auto_leave = cbor2.loads(data)
    return ConfState(
        tuple(voters), tuple(learners), tuple(outgoing), tuple(learners_next), auto_leave
    )


def log_meta(meta: ConsensusMeta, state_version: int = 0) -> SnapshotMeta:
    """Consensus's metadata of a snapshot in the form of the log."""
    conf_state = encode_conf_state(meta.conf_state)
    return SnapshotMeta(
        meta.index, meta.term, meta.crc, meta.timestamp, conf_state, state_version=state_version
    )


def consensus_meta(meta: SnapshotMeta) -> ConsensusMeta:
    """The log's metadata of a snapshot in the form of consensus."""
    conf_state = decode_conf_state(meta.conf_state)
    return ConsensusMeta(meta.index, meta.term, conf_state, meta.crc, meta.timestamp)


def group_folder(node: Host, number: int) -> str:
    """The folder of a group's log."""
    return f"{_groups_folder(node)}/{number:05d}"


def _groups_folder(node: Host) -> str:
    return f"{node.settings.node.data}/groups"


def log_identity(node: Host, number: int) -> Identity:
    """The owner of the log in a group's folder."""
    return Identity(node.settings.node.cluster, node.id, number)


def _is_only_copy(node: Host) -> bool:
    """Whether this node's cluster never had another node."""
    own = node.settings.node
    is_single = all(peer.id == own.id for peer in own.peers) and not own.join
    return is_single and not node.peer_identities.is_anyone_known


def _founding_snapshot(identity: Identity, founders: list[int]) -> list[bytes]:
    conf_state = ConfState(voters=tuple(sorted(founders)))
    machine = _blank_machine(identity.group)
    machine.applied = FOUNDING_INDEX
    meta = log_meta(
        ConsensusMeta(FOUNDING_INDEX, FOUNDING_TERM, conf_state, 0, 0), machine.state_version
    )
    return encode_snapshot(identity, meta, machine.snapshot())


def _found(node: Host, store: LogStore, identity: Identity, founders: list[int]) -> None:
    """Begin a log with the founding snapshot."""
    data = b"".join(_founding_snapshot(identity, founders))
    receiver = SnapshotReceiver(
        node.world.files,
        group_folder(node, identity.group),
        identity,
        index=FOUNDING_INDEX,
        bytes_total=len(data),
    )
    # A founding that a crash cut short has left the beginning of the same bytes.
    receiver.write(receiver.received, data[receiver.received :])
    receiver.finish()
    store.install_snapshot(FOUNDING_INDEX, store.hard_state)


def restored(
    store: LogStore, *, blank: Callable[[], Machine], restore: Callable[[bytes], Machine]
) -> tuple[Machine, ConfState]:
    """The machine and the members by a snapshot. Raises `RotFound`, with the store closed."""
    if not store.snapshots:
        return blank(), ConfState()
    # Records in segments without an index file must be applied again, to be placed again.
    low = replay_from(store.layout)
    damaged: dict[int, RotFound] = {}
    for meta in reversed(store.snapshots):
        if meta.index >= low:
            continue
        try:
            state = store.open_snapshot(meta.index).state()
        except CorruptRecord as error:
            # An older snapshot serves as well: more records are applied again.
            path = store.path_of_snapshot(meta.index)
            damaged[meta.index] = RotFound(str(error), file=path, position=error.position)
            continue
        # Only once a sound one is found: otherwise the only copy of a log is left as it is.
        for index in damaged:
            store.lose_snapshot(index)
        return restore(state), decode_conf_state(meta.conf_state)
    assert damaged, f"no snapshot before record {low}"
    store.close()
    raise damaged[min(damaged)]
