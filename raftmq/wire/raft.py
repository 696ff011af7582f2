"""Consensus messages as frames: a short header, and the records as they stand in the log.

The header is a positional CBOR array (`RaftHeader`); the body holds the records of an append, one
after the other, byte for byte as the leader wrote them. The receiver checks each record's CRC.

Invariants:
- Kinds that only a node's own threads may send are refused here, before consensus sees them.
- A message that `decode` returns came from a frame that checks out, field types included, and no
  honest member could not have sent it: consensus asserts what it relies on, and a node ends then.
"""

import msgspec

from raftmq.consensus.membership import is_consistent
from raftmq.consensus.messages import LOCAL_KINDS, Message, MessageKind
from raftmq.consensus.types import ConfState, Snapshot, SnapshotMeta
from raftmq.errors import CorruptRecord, ProtocolError
from raftmq.log.record import decode_many

from .codec import pack, unpack
from .frame import Frame, encode_frame
from .messages import FrameKind

TRAVELLING_KINDS = frozenset(MessageKind) - LOCAL_KINDS - {MessageKind.PROPOSE}
"""PROPOSE does not travel: a follower refuses a client's request and names the leader."""


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True):
    """Where a snapshot stands; its bytes travel in `SnapshotChunk` frames before this message."""

    index: int
    """Index of the last record it covers."""
    term: int
    """Term of that record."""
    crc: int
    """CRC of that record."""
    timestamp: int
    """Timestamp of that record, milliseconds since 1970."""
    voters: list[int]
    """Membership after that record; see `raftmq.consensus.types.ConfState`."""
    learners: list[int]
    """Members that receive the log without a vote."""
    voters_outgoing: list[int]
    """Voters of the outgoing half of a joint membership; empty: the membership is not joint."""
    learners_next: list[int]
    """Outgoing voters that become learners when the joint membership is left."""
    auto_leave: bool
    """Whether the leader leaves a joint membership by itself."""


class RaftHeader(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a `raftmq.consensus.messages.Message`, but for the records in the body."""

    group: int
    """The partition group."""
    kind: int
    """A `MessageKind` below 32."""
    to: int
    """The receiving member."""
    sender: int
    """The sending member."""
    term: int
    """The sender's term."""
    log_term: int = 0
    """Term of the record at `index`, or of that at `hint` in a rejected append."""
    index: int = 0
    """See the table of `Message`."""
    commit: int = 0
    """The sender's commit index; in HEARTBEAT no higher than the records that the receiver has."""
    reject: bool = False
    """True in an answer that refuses."""
    hint: int = 0
    """In a rejected append: the highest index at which the two logs may agree."""
    context: bytes = b""
    """Ties the messages of a read to each other; or marks a vote request of a transfer. Else
    empty."""
    snapshot: SnapshotHeader | None = None
    """Only in SNAPSHOT."""
    commit_term: int = 0
    """In vote requests and their answers: term of the record at `commit`."""


def encode(group: int, message: Message) -> list[bytes]:
    """The parts of the frame that carries `message` between two members of `group`."""
    header = RaftHeader(
        group,
        message.kind,
        message.to,
        message.sender,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.reject,
        message.hint,
        message.context,
        None if message.snapshot is None else _snapshot_header(message.snapshot),
        message.commit_term,
    )
    body = [record.encoded for record in message.entries]
    return encode_frame(FrameKind.RAFT, 0, pack(header), body)


def decode(frame: Frame) -> tuple[int, Message]:
    """The group and the message of a RAFT frame.

    Raises:
        ProtocolError: the header is malformed, a kind may not travel, a record is damaged, or no
            member sends such a message.
    """
    header = unpack(RaftHeader, frame.header)
    if header.kind not in TRAVELLING_KINDS:
        raise ProtocolError(f"consensus message kind {header.kind} does not travel")
    try:
        entries = decode_many(frame.body)
    except CorruptRecord as error:
        raise ProtocolError(f"a record was damaged on the way: {error}") from error
    if header.term < 1 and header.kind != MessageKind.READ_INDEX:
        raise ProtocolError(f"consensus message kind {header.kind} in term {header.term}")
    for index, record in enumerate(entries, header.index + 1):
        if record.index != index or record.term > header.term:
            raise ProtocolError(
                f"record {record.index} of term {record.term} in the place of record {index}, "
                f"in a message of term {header.term}"
            )
    snapshot = header.snapshot
    message = Message(
        kind=MessageKind(header.kind),
        to=header.to,
        sender=header.sender,
        term=header.term,
        log_term=header.log_term,
        index=header.index,
        commit=header.commit,
        entries=entries,
        reject=header.reject,
        hint=header.hint,
        context=header.context,
        snapshot=None if snapshot is None else _snapshot(snapshot),
        commit_term=header.commit_term,
    )
    return header.group, message


def _snapshot_header(snapshot: Snapshot) -> SnapshotHeader:
    meta, conf = snapshot.meta, snapshot.meta.conf_state
    return SnapshotHeader(
        meta.index,
        meta.term,
        meta.crc,
        meta.timestamp,
        list(conf.voters),
        list(conf.learners),
        list(conf.voters_outgoing),
        list(conf.learners_next),
        conf.auto_leave,
    )


def _snapshot(header: SnapshotHeader) -> Snapshot:
    conf = ConfState(
        tuple(header.voters),
        tuple(header.learners),
        tuple(header.voters_outgoing),
        tuple(header.learners_next),
        header.auto_leave,
    )
    if header.index < 1 or header.term < 1 or not is_consistent(conf):
        raise ProtocolError(f"no snapshot has such a place: {header}")
    return Snapshot(SnapshotMeta(header.index, header.term, conf, header.crc, header.timestamp))
