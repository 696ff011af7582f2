"""Consensus messages as frames: a short header, and the records as they stand in the log.

The header is a positional CBOR array (`RaftHeader`); the body holds the records of an append, one
after the other, byte for byte as the leader wrote them. The receiver checks each record's CRC.

Invariants:
- Kinds that only a node's own threads may send are refused here, before consensus sees them.
- A message that `decode` returns has numbers in their range, and records that one log can hold:
  their indexes, terms and chain follow from each other, and their changes of members can be read.
- An honest member sends nothing else; a message that breaks this closes the connection.

Statements of a message about the receiver's own log are checked beside that log. The broker drops
messages of impossible terms, and of snapshots whose files did not come.

Left out: members that lie, as Raft is safe "under all non-Byzantine conditions" (§2). A lie of
these, or of a process that poses as a node, still ends a node: a heartbeat with a commit index
beyond the log, which means that records were lost here; records that contradict the log, as one of
two logs is damaged then; a change of members while an earlier one is not committed;
acknowledgements by several members of records that the leader does not have; a SNAPSHOT message
that differs from its file; and a record of a newer version.
"""

import msgspec

from raftmq.consensus.changes import decode_change
from raftmq.consensus.membership import is_consistent
from raftmq.consensus.messages import LOCAL_KINDS, Message, MessageKind
from raftmq.consensus.types import ConfState, Snapshot, SnapshotMeta
from raftmq.errors import CorruptRecord, ProtocolError
from raftmq.log.record import Kind, Record, decode_many

from .codec import pack, unpack
from .frame import Frame, encode_frame
from .messages import FrameKind
from .numbers import NUMBER_MAX, Member, Natural, SequenceNumber

TRAVELLING_KINDS = frozenset(MessageKind) - LOCAL_KINDS - {MessageKind.PROPOSE}
"""PROPOSE does not travel: a follower refuses a client's request and names the leader."""

# Bound once: looking a member up in its enum class costs 0.1 µs, and this runs for each record.
_MEMBERSHIP = int(Kind.MEMBERSHIP)
_CHANGE_VERSION = 1
"""The newest version of a MEMBERSHIP record that is known here."""


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True):
    """Where a snapshot stands; its bytes travel in `SnapshotChunk` frames before this message."""

    index: Natural
    """Index of the last record it covers."""
    term: Natural
    """Term of that record."""
    crc: Natural
    """CRC of that record."""
    timestamp: SequenceNumber
    """Timestamp of that record, milliseconds since 1970."""
    voters: list[Member]
    """Membership after that record; see `raftmq.consensus.types.ConfState`."""
    learners: list[Member]
    """Members that receive the log without a vote."""
    voters_outgoing: list[Member]
    """Voters of the outgoing half of a joint membership; empty: the membership is not joint."""
    learners_next: list[Member]
    """Outgoing voters that become learners when the joint membership is left."""
    auto_leave: bool
    """Whether the leader leaves a joint membership by itself."""


class RaftHeader(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a `raftmq.consensus.messages.Message`, but for the records in the body."""

    group: Natural
    """The partition group."""
    kind: int
    """A `MessageKind` below 32."""
    to: Member
    """The receiving member."""
    sender: Member
    """The sending member."""
    term: Natural
    """The sender's term."""
    log_term: Natural = 0
    """Term of the record at `index`, or of that at `hint` in a rejected append."""
    index: Natural = 0
    """See the table of `Message`."""
    commit: Natural = 0
    """The sender's commit index; in HEARTBEAT no higher than the records that the receiver has."""
    reject: bool = False
    """True in an answer that refuses."""
    hint: Natural = 0
    """In a rejected append: the highest index at which the two logs may agree."""
    context: bytes = b""
    """Ties the messages of a read to each other; or marks a vote request of a transfer. Else
    empty."""
    snapshot: SnapshotHeader | None = None
    """Only in SNAPSHOT."""
    commit_term: Natural = 0
    """In vote requests and their answers: term of the record at `commit`."""


def encode(group: int, message: Message) -> list[bytes]:
    """The parts of the frame that carries `message` between two members of `group`."""
    header = RaftHeader(
        group=group,
        kind=message.kind,
        to=message.to,
        sender=message.sender,
        term=message.term,
        log_term=message.log_term,
        index=message.index,
        commit=message.commit,
        reject=message.reject,
        hint=message.hint,
        context=message.context,
        snapshot=None if message.snapshot is None else _snapshot_header(message.snapshot),
        commit_term=message.commit_term,
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
    if entries:
        _check_records(header, entries)
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
        snapshot=None if snapshot is None else _snapshot(snapshot, header.term),
        commit_term=header.commit_term,
    )
    return header.group, message


def _check_records(header: RaftHeader, entries: list[Record]) -> None:
    """Raises `ProtocolError` unless one log can hold the records, in the sender's term."""
    index, low, before, changed = header.index, header.log_term, entries[0].chain, 0
    for at, term, kind, _, _, crc, chain, _ in entries:
        index += 1
        if at != index or chain != before or not low <= term <= header.term:
            raise ProtocolError(
                f"record {at} of term {term}, which follows a record with the CRC {chain:08x}, in "
                f"the place of record {index}, after term {low} and the CRC {before:08x}, in a "
                f"message of term {header.term}"
            )
        if kind == _MEMBERSHIP:
            # A change is proposed once the one before is committed: recovery relies on it.
            if changed > header.commit:
                raise ProtocolError(f"record {changed} and record {at} both change the members")
            _check_change(entries[at - header.index - 1])
            changed = at
        low, before = term, crc


def _check_change(record: Record) -> None:
    # A node with older software stops at a record of a newer version, and says so.
    if record.version > _CHANGE_VERSION:
        return
    try:
        change = decode_change(record.payload)
    except CorruptRecord as error:
        raise ProtocolError(f"record {record.index}: {error}") from error
    if any(not 0 < single.node <= NUMBER_MAX for single in change.changes):
        raise ProtocolError(f"record {record.index} changes a member that cannot be: {change}")


def _snapshot_header(snapshot: Snapshot) -> SnapshotHeader:
    meta, conf = snapshot.meta, snapshot.meta.conf_state
    return SnapshotHeader(
        index=meta.index,
        term=meta.term,
        crc=meta.crc,
        timestamp=meta.timestamp,
        voters=list(conf.voters),
        learners=list(conf.learners),
        voters_outgoing=list(conf.voters_outgoing),
        learners_next=list(conf.learners_next),
        auto_leave=conf.auto_leave,
    )


def _snapshot(header: SnapshotHeader, term: int) -> Snapshot:
    conf = ConfState(
        tuple(header.voters),
        tuple(header.learners),
        tuple(header.voters_outgoing),
        tuple(header.learners_next),
        header.auto_leave,
    )
    if header.index < 1 or not 1 <= header.term <= term or not is_consistent(conf):
        raise ProtocolError(f"no snapshot has such a place: {header}")
    return Snapshot(SnapshotMeta(header.index, header.term, conf, header.crc, header.timestamp))
