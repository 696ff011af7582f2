"""Messages of consensus that no member sends are refused before consensus sees them."""

from collections.abc import Sequence
from itertools import product

import msgspec
import pytest

from raftmq.consensus import (
    Change,
    ChangeKind,
    ConfState,
    MembershipChange,
    Message,
    MessageKind,
    Snapshot,
    SnapshotMeta,
    encode_change,
)
from raftmq.errors import ProtocolError
from raftmq.log.record import Kind, Record, encode
from raftmq.wire import raft
from raftmq.wire.frame import FrameParser
from raftmq.wire.numbers import NUMBER_MAX


def record(index: int, term: int = 3, chain: int = 0) -> Record:
    return encode(b"", index=index, term=term, kind=Kind.NOOP, timestamp=0, chain=chain)


def change(payload: bytes, index: int = 2, *, version: int = 1, chain: int = 0) -> Record:
    """A MEMBERSHIP record."""
    return encode(
        payload,
        index=index,
        term=3,
        kind=Kind.MEMBERSHIP,
        timestamp=0,
        chain=chain,
        version=version,
    )


def passed(message: Message) -> Message:
    """The message after its way over the network."""
    parser = FrameParser(1 << 16)
    parser.feed(b"".join(raft.encode(7, message)))
    (frame,) = parser.frames()
    return raft.decode(frame)[1]


def append(indexes: Sequence[int], *, term: int = 3) -> Message:
    entries: list[Record] = []
    for index in indexes:
        entries.append(record(index, chain=entries[-1].crc if entries else 5))
    return append_of(*entries, term=term)


def append_of(*entries: Record, term: int = 3, log_term: int = 1, commit: int = 0) -> Message:
    return Message(
        MessageKind.APPEND,
        2,
        sender=1,
        term=term,
        log_term=log_term,
        index=1,
        commit=commit,
        entries=entries,
    )


def snapshot(conf: ConfState, *, index: int = 5, term: int = 2) -> Message:
    meta = SnapshotMeta(index, term, conf)
    return Message(MessageKind.SNAPSHOT, 2, sender=1, term=3, snapshot=Snapshot(meta))


ADDED = encode_change(MembershipChange((Change(ChangeKind.ADD_LEARNER, 9),)))
CHANGES = (change(ADDED, 2), change(ADDED, 3, chain=change(ADDED, 2).crc))
JOINT = ConfState((1, 3), (5,), (1, 2), (2,), True)


@pytest.mark.parametrize(
    "message",
    [
        append([2, 3, 4]),
        append([]),
        append_of(*CHANGES, commit=2),
        append_of(
            change(b"", 2), change(b"\xff", 3, version=2, chain=change(b"", 2).crc), commit=2
        ),
        snapshot(ConfState((1, 2))),
        snapshot(JOINT),
        Message(MessageKind.VOTE, NUMBER_MAX, sender=NUMBER_MAX, term=NUMBER_MAX),
        Message(MessageKind.READ_INDEX, 1, sender=2, context=b"x"),
    ],
)
def test_message_of_a_member_passes(message: Message) -> None:
    assert raft.encode(7, passed(message)) == raft.encode(7, message)


@pytest.mark.parametrize("kind", sorted(raft.TRAVELLING_KINDS - {MessageKind.READ_INDEX}))
def test_message_without_a_term_is_refused(kind: MessageKind) -> None:
    """The message would end a candidate, or get a vote in the current term."""
    with pytest.raises(ProtocolError, match="term 0"):
        passed(Message(kind, 2, sender=1))


@pytest.mark.parametrize("message", [append([2, 9, 4]), append([3]), append([2], term=2)])
def test_records_out_of_place_are_refused(message: Message) -> None:
    with pytest.raises(ProtocolError, match="in the place of record"):
        passed(message)


@pytest.mark.parametrize(
    "message",
    [
        append_of(record(2), record(3, chain=record(2).crc ^ 1)),
        append_of(record(2, term=3), record(3, term=2, chain=record(2).crc)),
        append_of(record(2, term=1), log_term=2),
        append_of(record(2, term=0)),
    ],
    ids=["chain", "terms-fall", "term-below-the-one-before", "term-0"],
)
def test_records_that_no_log_can_hold_are_refused(message: Message) -> None:
    with pytest.raises(ProtocolError, match="in the place of record"):
        passed(message)


def test_two_changes_of_members_that_are_not_committed_are_refused() -> None:
    """Recovery takes a change for a proof that the one before it is committed."""
    with pytest.raises(ProtocolError, match="both change the members"):
        passed(append_of(*CHANGES, commit=1))


@pytest.mark.parametrize("node", [None, 0, -1, 2**63])
def test_change_of_members_that_cannot_be_is_refused(node: int | None) -> None:
    singles = MembershipChange((Change(ChangeKind.ADD_LEARNER, node or 0),))
    payload = b"\xff\xff" if node is None else encode_change(singles)
    with pytest.raises(ProtocolError, match="record 2"):
        passed(append_of(change(payload)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *product(("to", "sender"), (0, -1, 2**63, 2**64)),
        *product(("term", "log_term", "index", "commit", "hint"), (-1, 2**63, 2**64)),
    ],
)
def test_number_out_of_range_is_refused(field: str, value: int) -> None:
    """A member's id has 63 bits; other numbers must leave room to count on."""
    plain = Message(MessageKind.VOTE, 2, sender=1, term=3)
    with pytest.raises(ProtocolError, match="RaftHeader"):
        passed(msgspec.structs.replace(plain, **{field: value}))


@pytest.mark.parametrize(
    "message",
    [
        snapshot(ConfState()),
        snapshot(ConfState((2, 1))),
        snapshot(ConfState((1, 1))),
        snapshot(ConfState((1, 2), (2,))),
        snapshot(ConfState((0,))),
        snapshot(JOINT._replace(learners_next=(3,))),
        snapshot(ConfState((1,)), index=0),
        snapshot(ConfState((1,)), term=4),
        snapshot(ConfState((1,)), term=0),
    ],
)
def test_snapshot_with_an_impossible_place_or_membership_is_refused(message: Message) -> None:
    with pytest.raises(ProtocolError, match=r"no snapshot|RaftHeader\.snapshot"):
        passed(message)
