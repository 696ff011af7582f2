"""A machine's state just before a segment, as a file that is the same on every node.

`00000000000000004710.snapshot` holds the state after record 4710, the last one before the segment
that starts with 4711. A follower that is further behind than the log gets the oldest snapshot kept;
ordinary replication goes on from there. The file carries no node number: a follower receives the
leader's file byte for byte, in chunks, into a `.partial` file that survives a restart.

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 8 | magic | `RAFTMQSS` |
| 8 | 4 | crc | CRC-32C of bytes 12 to 80 and of the membership |
| 12 | 4 | version | 1 |
| 16 | 8 | index | the last record the state covers |
| 24 | 8 | term | its term |
| 32 | 8 | timestamp | its timestamp |
| 40 | 8 | cluster | hash of the cluster's id |
| 48 | 8 | group | the partition group's number |
| 56 | 8 | state_bytes | s |
| 64 | 4 | record_crc | crc of the record at `index`, to which the next one chains |
| 68 | 4 | state_crc | CRC-32C of the state |
| 72 | 4 | conf_bytes | m |
| 76 | 4 | state_version | version of the state's format; 0: unknown, from older software |
| 80 | m | membership | opaque |
| 80 + m | s | state | opaque |

Invariants:
- A name ending in `.snapshot` is given only after the file is durable.
- Nothing of a snapshot is handed out before its CRC was checked.

Sources: Raft §7 (figure 13: chunks); etcd's snap files.
"""

import struct
from typing import NamedTuple

import google_crc32c

from raftmq.errors import CorruptRecord
from raftmq.log.faults import UnsupportedFormat, WrongLog
from raftmq.log.files import File, FileSystem, read_filled
from raftmq.log.segment import (
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    Identity,
    Link,
    file_name,
    parse_name,
)

FORMAT_VERSION = 1
CHUNK_BYTES = 1024 * 1024
"""Bytes that are read at a time when a whole file is checked."""

_MAGIC = b"RAFTMQSS"
_START = struct.Struct("<8sI")
_BODY = struct.Struct("<IQQqQQQIIII")
HEADER_BYTES = _START.size + _BODY.size
assert HEADER_BYTES == 80
_CONF_BYTES_MAX = 1024 * 1024


class SnapshotMeta(NamedTuple):
    """The place of a snapshot in the log, and its checksum."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which has no use here
    term: int
    crc: int
    """Crc of the record at `index`."""
    timestamp: int
    conf_state: bytes
    """The group's members after that record, as the caller encodes them."""
    state_crc: int = 0
    """CRC-32C of the state; 0: not known before the snapshot is written."""
    state_version: int = 0
    """Version of the state's format, by the caller's count; 0: unknown."""

    @property
    def link(self) -> Link:
        """The record at `index`, as the next record depends on it."""
        return Link(self.index, self.term, self.crc, self.timestamp)


def encode_snapshot(identity: Identity, meta: SnapshotMeta, state: bytes) -> list[bytes]:
    """The parts of a snapshot file."""
    assert len(meta.conf_state) <= _CONF_BYTES_MAX
    assert meta.index >= 1, "a snapshot of an empty log"
    body = _BODY.pack(
        FORMAT_VERSION,
        meta.index,
        meta.term,
        meta.timestamp,
        identity.cluster_hash(),
        identity.group,
        len(state),
        meta.crc,
        meta.state_crc or google_crc32c.value(state),
        len(meta.conf_state),
        meta.state_version,
    )
    crc = google_crc32c.extend(google_crc32c.value(body), meta.conf_state)
    return [_START.pack(_MAGIC, crc), body, meta.conf_state, state]


class SnapshotFile:
    """A snapshot file, open for reading: to restore a machine, or to send it on."""

    def __init__(self, file: File, identity: Identity | None, path: str) -> None:
        """Read and check the header; without an identity, any owner's snapshot passes.

        Raises:
            CorruptRecord: the header does not check out, or the file has another size than it says.
            WrongLog: the state of another cluster or group.
            UnsupportedFormat: the file is of a newer version.
        """
        self._file = file
        self._path = path
        self.bytes = file.size()
        """Bytes of the whole file, as a receiver is to expect."""
        head = read_filled(file, HEADER_BYTES, 0)
        if len(head) < HEADER_BYTES or not head.startswith(_MAGIC):
            raise CorruptRecord(f"{path} is no snapshot", position=0)
        (
            version,
            index,
            term,
            timestamp,
            cluster,
            group,
            size,
            crc,
            state_crc,
            conf_bytes,
            state,
        ) = _BODY.unpack_from(head, _START.size)
        conf = read_filled(file, min(conf_bytes, _CONF_BYTES_MAX), HEADER_BYTES)
        found = google_crc32c.extend(google_crc32c.value(head[_START.size :]), conf)
        if found != _START.unpack_from(head)[1]:
            raise CorruptRecord(f"{path}: the header fails its CRC-32C", position=0)
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(f"{path}: snapshot format {version}, {FORMAT_VERSION} is known")
        if identity and (cluster, group) != (identity.cluster_hash(), identity.group):
            raise WrongLog(f"{path} belongs to another cluster or group ({group})")
        self._state_start = HEADER_BYTES + conf_bytes
        self._state_crc: int = state_crc
        if self._state_start + size != self.bytes:
            wanted = self._state_start + size
            message = f"{path} has {self.bytes} bytes, its header says {wanted}"
            raise CorruptRecord(message, position=min(wanted, self.bytes))
        self.meta = SnapshotMeta(index, term, crc, timestamp, conf, state_crc, state)

    def chunk(self, offset: int, size: int) -> bytes:
        """`size` bytes of the file from `offset` on, to be sent; fewer only at its end."""
        return self._file.pread(size, offset)

    def verify(self) -> None:
        """Read the whole state. Raises `CorruptRecord` if it fails its CRC-32C."""
        crc, position = 0, self._state_start
        while data := read_filled(self._file, CHUNK_BYTES, position):
            crc = google_crc32c.extend(crc, data)
            position += len(data)
        if crc != self._state_crc:
            raise CorruptRecord(
                f"{self._path}: the state fails its CRC-32C", position=self._state_start
            )

    def state(self) -> bytes:
        """The machine's state. Raises `CorruptRecord` if it fails its CRC-32C."""
        state = read_filled(self._file, self.bytes - self._state_start, self._state_start)
        if google_crc32c.value(state) != self._state_crc:
            raise CorruptRecord(
                f"{self._path}: the state fails its CRC-32C", position=self._state_start
            )
        return state


def open_snapshot(
    files: FileSystem, folder: str, index: int, identity: Identity, suffix: str = SNAPSHOT_SUFFIX
) -> SnapshotFile:
    """Open the snapshot at `index`. Raises as `SnapshotFile`, and `FileNotFoundError`."""
    path = f"{folder}/{file_name(index, suffix)}"
    return SnapshotFile(files.open(path), identity, path)


def is_void(name: str, index: int) -> bool:
    """Whether a file has no use once the snapshot at `index` has replaced the log."""
    received = parse_name(name, PARTIAL_SUFFIX)
    if received is not None:
        # A later snapshot may be arriving already, and is installed next.
        return received <= index
    return any(
        parse_name(name, s) is not None for s in (SEGMENT_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX)
    )


class SnapshotReceiver:
    """Takes a snapshot file in chunks and goes on where an earlier receiver stopped.

    The caller checks that chunks belong to one sender's file: another sender may, after an upgrade,
    write the same state in other bytes. If the whole does not check out, all is thrown away.
    """

    def __init__(
        self, files: FileSystem, folder: str, identity: Identity, *, index: int, bytes_total: int
    ) -> None:
        self._files = files
        self._identity = identity
        self._bytes_total = bytes_total
        self.index = index
        """The last record the snapshot covers."""
        self._folder = folder
        self._path = f"{folder}/{file_name(index, PARTIAL_SUFFIX)}"
        try:
            self._file = files.open(self._path, writable=True)
        except FileNotFoundError:
            self._file = files.create(self._path)
        self.received = self._file.size()
        """Bytes at hand: the offset of the chunk to ask for next."""
        if self.received > bytes_total:
            self._restart()

    def _restart(self) -> None:
        self._file.truncate(0)
        self.received = 0

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are at hand."""
        return self.received == self._bytes_total

    def write(self, offset: int, data: bytes) -> int:
        """Take a chunk and return `received`; a chunk from elsewhere in the file is ignored.

        Raises:
            OSError: the disk refused; `errno` says whether it is full. The bytes at hand stay.
        """
        # Two leaders in a row may both be sending: only the chunk that follows what is here fits.
        if offset == self.received and offset + len(data) <= self._bytes_total:
            try:
                self._file.append([data])
            except OSError:
                # A part of the chunk may have been written: the next one must not follow it.
                self._file.truncate(self.received)
                raise
            self.received += len(data)
        assert self.received <= self._bytes_total, "more bytes than the snapshot has"
        return self.received

    def finish(self) -> SnapshotMeta:
        """Check the whole file and make it durable; `LogStore.install_snapshot` takes it then.

        Raises:
            CorruptRecord: the file does not check out and was thrown away: start again at 0. Or the
                file is gone: a later snapshot was installed meanwhile.
            WrongLog, UnsupportedFormat: likewise.
        """
        assert self.is_complete
        try:
            snapshot = SnapshotFile(self._file, self._identity, self._path)
            snapshot.verify()
            # A removed file can still be read through its descriptor: check its name, too.
            self._files.open(self._path).close()
            if snapshot.meta.index != self.index:
                raise CorruptRecord(f"{self._path} covers {snapshot.meta.index}", position=16)
        except (CorruptRecord, WrongLog, UnsupportedFormat):
            self._restart()
            raise
        except FileNotFoundError as error:
            raise CorruptRecord(f"{self._path} was removed meanwhile", position=0) from error
        self._file.datasync()
        self._file.close()
        self._files.sync_folder(self._folder)
        return snapshot.meta
