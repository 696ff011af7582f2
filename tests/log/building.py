"""Small logs for tests: chained records, and a store on a memory disk."""

from collections.abc import Iterable

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.record import Kind, Record, encode
from raftmq.log.segment import HardState, Identity
from raftmq.log.snapshot import SnapshotMeta, SnapshotReceiver, encode_snapshot
from raftmq.log.store import LogSettings, LogStore, Recovered

FOLDER = "group"
IDENTITY = Identity(cluster="test", node=1, group=7)
SMALL = LogSettings(segment_bytes=1024)


class Chain:
    """Makes records that follow each other."""

    def __init__(self, index: int = 0, crc: int = 0) -> None:
        self.records: dict[int, Record] = {}
        self._crcs = {index: crc}
        self.last = index

    def make(
        self,
        payloads: Iterable[bytes],
        *,
        term: int = 1,
        first: int = 0,
        kind: Kind = Kind.BATCH,
    ) -> list[Record]:
        """The next records; with `first`, ones that supersede from that index on."""
        index = first or self.last + 1
        made = []
        for payload in payloads:
            record = encode(
                payload,
                index=index,
                term=term,
                kind=kind,
                timestamp=1000 + 10 * index,
                chain=self._crcs[index - 1],
            )
            self._crcs[index], self.records[index] = record.crc, record
            made.append(record)
            index += 1
        for gone in range(index, self.last + 1):
            self.records.pop(gone, None)
        self.last = index - 1
        return made

    def upto(self, last: int) -> list[Record]:
        """The live records from the first made to `last`."""
        return [self.records[i] for i in sorted(self.records) if i <= last]


def open_store(
    files: MemoryFiles, settings: LogSettings = SMALL, identity: Identity = IDENTITY
) -> tuple[LogStore, Recovered]:
    """A store in the test's folder."""
    return LogStore.open(files, FOLDER, settings, identity)


def write(store: LogStore, chain: Chain, count: int, size: int = 100, term: int = 1) -> None:
    """Append and sync records one at a time, each committing the one before."""
    for _ in range(count):
        store.append(chain.make([bytes(size)], term=term), HardState(term, 1, chain.last - 1))
        store.sync()


def read_all(store: LogStore) -> list[Record]:
    """All kept records."""
    return store.read(store.first_index, store.last_index + 1, 2**40)


def segment_names(files: MemoryFiles) -> list[str]:
    """The segment files' names."""
    return [name for name in files.list(FOLDER) if name.endswith(".log")]


def meta_at(store: LogStore, index: int) -> SnapshotMeta:
    """Metadata of a snapshot at `index` of this log."""
    link = store.link(index)
    return SnapshotMeta(link.index, link.term, link.crc, link.timestamp, b"members")


def snapshot_bytes(meta: SnapshotMeta, state: bytes) -> bytes:
    """A leader's snapshot, as it is sent."""
    return b"".join(encode_snapshot(IDENTITY._replace(node=9), meta, state))


def receive(files: MemoryFiles, meta: SnapshotMeta, state: bytes) -> None:
    """Take a leader's snapshot into a partial file, in chunks."""
    data = snapshot_bytes(meta, state)
    receiver = SnapshotReceiver(files, FOLDER, IDENTITY, index=meta.index, bytes_total=len(data))
    while not receiver.is_complete:
        receiver.write(receiver.received, data[receiver.received : receiver.received + 50])
    assert receiver.finish()._replace(state_crc=0) == meta
