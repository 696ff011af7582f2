"""Messages of consensus that no member sends are refused before consensus sees them."""

from collections.abc import Sequence

import pytest

from raftmq.consensus import ConfState, Message, MessageKind, Snapshot, SnapshotMeta
from raftmq.errors import ProtocolError
from raftmq.log.record import Kind, Record, encode
from raftmq.wire import raft
from raftmq.wire.frame import FrameParser


def record(index: int, term: int = 3) -> Record:
    return encode(b"", index=index, term=term, kind=Kind.NOOP, timestamp=0, chain=0)


def passed(message: Message) -> Message:
    """The message after its way over the network."""
    parser = FrameParser(1 << 16)
    parser.feed(b"".join(raft.encode(7, message)))
    (frame,) = parser.frames()
    return raft.decode(frame)[1]


def append(indexes: Sequence[int], *, term: int = 3) -> Message:
    entries = [record(index) for index in indexes]
    return Message(MessageKind.APPEND, 2, sender=1, term=term, index=1, entries=entries)


def snapshot(conf: ConfState, *, index: int = 5, term: int = 2) -> Message:
    meta = SnapshotMeta(index, term, conf)
    return Message(MessageKind.SNAPSHOT, 2, sender=1, term=3, snapshot=Snapshot(meta))


JOINT = ConfState((1, 3), (5,), (1, 2), (2,), True)


@pytest.mark.parametrize(
    "message",
    [
        append([2, 3, 4]),
        append([]),
        snapshot(ConfState((1, 2))),
        snapshot(JOINT),
        Message(MessageKind.READ_INDEX, 1, sender=2, context=b"x"),
    ],
)
def test_message_of_a_member_passes(message: Message) -> None:
    assert raft.encode(7, passed(message)) == raft.encode(7, message)


@pytest.mark.parametrize("kind", sorted(raft.TRAVELLING_KINDS - {MessageKind.READ_INDEX}))
def test_message_without_a_term_is_refused(kind: MessageKind) -> None:
    """It would end a candidate, or get a vote in the term of today."""
    with pytest.raises(ProtocolError, match="term 0"):
        passed(Message(kind, 2, sender=1))


@pytest.mark.parametrize("message", [append([2, 9, 4]), append([3]), append([2], term=2)])
def test_records_out_of_place_are_refused(message: Message) -> None:
    with pytest.raises(ProtocolError, match="in the place of record"):
        passed(message)


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
        snapshot(ConfState((1,)), term=0),
    ],
)
def test_snapshot_with_an_impossible_place_or_membership_is_refused(message: Message) -> None:
    with pytest.raises(ProtocolError, match="no snapshot"):
        passed(message)
