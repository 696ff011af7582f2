"""The state machine of the simulation: small, deterministic, with a digest of all it has applied.

The machine keeps what a broker's machine would keep: how far it has applied, and the newest values.
The digest is computed from the records' bytes, not from their checksums, so that the digest differs
if a machine applies a wrong record, or one record twice.
"""

import google_crc32c
import msgspec

from raftmq.log.record import Kind, Record

SENDERS = 8
"""Values are kept by the index of their record modulo this: the size of the state."""


class Machine(msgspec.Struct, array_like=True):
    """All that has been applied, in short. It is state."""

    applied: int = 0
    """Index of the last record."""
    digest: int = 0
    """Checksum of all records up to `applied`."""
    time_ms: int = 0
    """Stamp of the last record: never falls."""
    latest: list[bytes] = msgspec.field(default_factory=lambda: [b""] * SENDERS)
    """By index of the record modulo `SENDERS`: the first 16 bytes of the newest value."""

    def apply(self, record: Record) -> None:
        """Take the record at `applied + 1`."""
        self.applied = record.index
        self.digest = google_crc32c.extend(self.digest, record.encoded)
        self.time_ms = record.timestamp
        if record.kind == Kind.BATCH:
            value = bytes(record.payload)
            self.latest[record.index % SENDERS] = value[:16]

    def snapshot(self) -> bytes:
        """The whole state."""
        return msgspec.msgpack.encode(self)


def restore(state: bytes) -> Machine:
    """The machine of a snapshot."""
    return msgspec.msgpack.decode(state, type=Machine)
