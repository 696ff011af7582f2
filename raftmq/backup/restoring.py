"""Restoring a backup: the data folder of the first node of a new cluster.

The new cluster is the old one after all of its nodes lost their folders, under another name. One
node comes back, as a node that lost its folder does: under its number's next generation, so with
member ids that no record of the old cluster names. All others have left.

| file of the new folder | content |
|---|---|
| `groups/00000/` | a snapshot of the catalog at the backup's end, with another list of nodes; |
| | one member |
| `groups/00003/` | the snapshot and the records of the backup, byte for byte; then two MEMBERSHIP |
| | records of a next term, all of them committed: from the old members to the new one (three |
| | if the backup ends in a joint membership) |
| `node.json` | the node's name, its generation and its groups |

Messages, offsets, sessions of producers, leases and delayed messages are in the records, and go on
as after a restart of the whole cluster. A group whose only member is a new one elects it at once.
Nodes that are added (`raftmq cluster add`) get the log from it, as always. Copies are made again up
to the number that each group was founded with.

The old cluster's nodes cannot take part: files and connections carry the cluster's name, and the
new name must be another one.

Invariants:
- Nothing is written but a folder that did not exist, or was empty; it gets its name when it is
  whole and durable.
- A record is written only if the replay has checked it, and the digest at the backup's end.
- No member id of the old cluster is a member of a restored group.

Sources: decisions 0006 and 0024 for generations.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from raftmq.broker.cluster.identity import FORMAT, Identity, new_identity, save
from raftmq.broker.replica.opener import encode_conf_state
from raftmq.consensus import Change, ChangeKind, ConfState, MembershipChange, encode_change
from raftmq.log.files import FileSystem
from raftmq.log.record import Kind, Record, encode
from raftmq.log.segment import HardState
from raftmq.log.segment import Identity as LogIdentity
from raftmq.log.snapshot import SnapshotMeta, SnapshotReceiver, encode_snapshot
from raftmq.log.store import LogSettings, LogStore
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog, Node
from raftmq.machine.catalog.replicas import GENERATION_MAX, member_id

from .manifest import BackupFault, Folder, Manifest, Point, Standing
from .replay import Replay

UNFINISHED = ".unfinished"
"""Ends the name of a folder that is being restored."""
WRITE_BYTES = 1024 * 1024
"""Bytes of records in one write."""


class NewNode(NamedTuple):
    """The first node of the new cluster."""

    cluster: str
    """The new cluster's id."""
    id: int
    """The node's number."""
    host: str
    """The address of the node, for clients and other nodes."""
    port: int
    """The native port."""


class Restored(NamedTuple):
    """A restored data folder."""

    point: Point
    """The backup that it was made of."""
    old_cluster: str
    """The cluster that the backup was taken of."""
    generation: int
    """The node's generation."""


class Restoring:
    """One run that restores a backup. `restore` is called once."""

    def __init__(
        self,
        files: FileSystem,
        path: str,
        data: str,
        node: NewNode,
        *,
        number: int | None = None,
        segment_bytes: int = LogSettings().segment_bytes,
        random: Random | None = None,
        on_bytes: Callable[[int, int], None] = lambda group, count: None,
    ) -> None:
        """`number` names the backup in the folder `path`, from 1; None: the last one. `on_bytes`
        hears of each record: its partition group and its bytes."""
        self._files = files
        self._folder = Folder(files, path)
        self._data = data
        self._building = data.rstrip("/") + UNFINISHED
        self._node = node
        self._number = number
        self._settings = LogSettings(segment_bytes)
        self._random = random or Random(os.urandom(16))
        self._on_bytes = on_bytes

    def restore(self) -> Restored:
        """Write the data folder; durable on return.

        Raises:
            BackupFault: a file of the backup is damaged, or the folder or the node cannot be used.
            LogFault: the disk refused a write.
        """
        manifest = self._folder.read()
        point = self._folder.point(manifest, self._number)
        if manifest.cluster == self._node.cluster:
            raise BackupFault(
                f"the backup is of cluster {manifest.cluster!r}: give the new cluster another "
                "name, so that nodes of the old one can never take part in it"
            )
        _require_blank(Path(self._data))
        if Path(self._building).exists():
            raise BackupFault(f"{self._building} is left of a stopped run: remove it")
        self._files.make_folder(self._building)
        try:
            owner = self._build(manifest, point)
        except BaseException:
            shutil.rmtree(self._building)
            raise
        # Onto an empty folder as well.
        self._files.rename(self._building, self._data)
        self._files.sync_folder(str(Path(self._data).absolute().parent))
        return Restored(point, manifest.cluster, owner.generation)

    def _build(self, manifest: Manifest, point: Point) -> Identity:
        system, *data_groups = point.groups
        assert system.group == SYSTEM_GROUP, "the system group comes first in a point"
        owner = self._restore_catalog(manifest, system)
        for standing in data_groups:
            self._restore_log(manifest, standing, member_id(owner.node, owner.generation))
        replicas = {standing.group: 0 for standing in point.groups}
        owner = msgspec.structs.replace(owner, replicas=replicas)
        save(self._files, self._building, owner)
        return owner

    def _restore_catalog(self, manifest: Manifest, standing: Standing) -> Identity:
        """Write the log of the system group; returns the owner of the new folder."""
        replay = Replay(self._folder, manifest, SYSTEM_GROUP)
        for record in replay.records(standing.index):
            self._on_bytes(SYSTEM_GROUP, len(record.encoded))
        catalog = replay.machine
        assert isinstance(catalog, Catalog)
        blank = new_identity(self._node.cluster, self._node.id, self._random)
        owner = refound(catalog, self._node, blank.incarnation)
        end, conf_state = replay.end, ConfState((member_id(owner.node, owner.generation),))
        meta = SnapshotMeta(
            end.index,
            end.term,
            end.crc,
            end.timestamp,
            encode_conf_state(conf_state),
            state_version=catalog.state_version,
        )
        store = self._begin(SYSTEM_GROUP, meta, catalog.snapshot())
        try:
            store.append((), HardState(end.term + 1, 0, end.index))
            store.sync()
        finally:
            store.close()
        return owner

    def _restore_log(self, manifest: Manifest, standing: Standing, member: int) -> None:
        """Write the log of a data group: as it was, and then the change to the new member."""
        replay = Replay(self._folder, manifest, standing.group)
        store = self._begin(standing.group, replay.meta, replay.state)
        try:
            waiting: list[Record] = []
            size = 0
            for record in replay.records(standing.index):
                self._on_bytes(standing.group, len(record.encoded))
                waiting.append(record)
                size += len(record.encoded)
                if size >= WRITE_BYTES:
                    store.append(waiting, HardState(record.term, 0, record.index))
                    waiting, size = [], 0
            end = replay.end
            store.append(waiting, HardState(end.term, 0, end.index))
            for record in handover(replay, member):
                store.append([record], HardState(record.term, 0, record.index))
            store.sync()
        finally:
            store.close()

    def _begin(self, group: int, meta: SnapshotMeta, state: bytes) -> LogStore:
        """Begin a log with a snapshot."""
        folder = f"{self._building}/groups/{group:05d}"
        owner = LogIdentity(self._node.cluster, self._node.id, group)
        store, _ = LogStore.open(self._files, folder, self._settings, owner)
        data = b"".join(encode_snapshot(owner, meta, state))
        receiver = SnapshotReceiver(
            self._files, folder, owner, index=meta.index, bytes_total=len(data)
        )
        receiver.write(0, data)
        receiver.finish()
        store.install_snapshot(meta.index, HardState())
        return store


def refound(catalog: Catalog, new: NewNode, incarnation: str) -> Identity:
    """Make a catalog that of a cluster with one node; returns the owner of the node's folder.

    Raises:
        BackupFault: the node's number has had as many folders as it may.
    """
    known = catalog.nodes.get(new.id) or catalog.left.get(new.id)
    generation = known.generation + 1 if known is not None else 0
    if generation > GENERATION_MAX:
        raise BackupFault(f"node {new.id} has no generation left: restore under another number")
    for node in catalog.nodes.values():
        catalog.left[node.id] = msgspec.structs.replace(node, is_leaving=False, has_left=True)
    catalog.left.pop(new.id, None)
    # Sorted: equal states have equal bytes.
    catalog.left = {number: catalog.left[number] for number in sorted(catalog.left)}
    catalog.nodes = {
        new.id: Node(new.id, new.host, new.port, incarnation=incarnation, generation=generation)
    }
    catalog.drained.clear()
    catalog.absent.clear()
    catalog.places = {}
    for group in list(catalog.groups.values()):
        catalog.groups[group.id] = msgspec.structs.replace(
            group,
            members=[new.id],
            # The number of founders is the wanted number of copies.
            founders=group.founders or group.members,
            replicas={n: count for n, count in group.replicas.items() if n != new.id},
        )
    return Identity(FORMAT, new.cluster, new.id, incarnation, generation=generation)


def handover(replay: Replay, member: int) -> list[Record]:
    """The records that make `member` the only one, after the last record of a replay."""
    conf, records = replay.conf_state, list[Record]()
    previous = replay.end
    changes = [Change(ChangeKind.ADD_VOTER, member)]
    changes += [Change(ChangeKind.REMOVE, each) for each in (*conf.voters, *conf.learners)]
    changes += [Change(ChangeKind.REMOVE, each) for each in conf.learners_next]
    leave = MembershipChange()
    steps = [leave] if conf.voters_outgoing else []
    steps += [MembershipChange(tuple(changes)), leave]
    crc = previous.crc
    for number, step in enumerate(steps, start=1):
        record = encode(
            encode_change(step),
            index=previous.index + number,
            # The next term: the old cluster may have another record at this index.
            term=previous.term + 1,
            kind=Kind.MEMBERSHIP,
            timestamp=previous.timestamp,
            chain=crc,
        )
        records.append(record)
        crc = record.crc
    return records


def _require_blank(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or os.listdir(folder)):
        raise BackupFault(f"{folder} is not empty: name a folder that does not exist yet")
