"""Membership changes as values, and as the payload of a MEMBERSHIP record.

| payload | meaning |
|---|---|
| empty | leave the joint membership, with no context |
| CBOR `[transition, [[kind, node], ...], context]` | everything else |

A change without any single change in it, and with the AUTO transition, leaves the joint
membership. The context is opaque: the proposer finds it again when the change is applied.

Invariants:
- A payload has one reading and a change one payload: a decoded change must encode back to the same
  bytes, so trailing or padded CBOR is refused.

Sources: thesis §4.1 to §4.3; etcd-io/raft's ConfChangeV2; RFC 8949 §4.2 (one encoding a value).
"""

from enum import IntEnum
from typing import NamedTuple

import cbor2

from raftmq.errors import CorruptRecord

CHANGES_MAX = 64
"""Single changes in one record: more than the members of any group."""
CONTEXT_BYTES_MAX = 64 * 1024
"""A context is an address or a name, not a document."""


class ChangeKind(IntEnum):
    """The kinds of change of one node; the values are part of the payload."""

    ADD_VOTER = 0
    """Add it, or promote it from learner."""
    ADD_LEARNER = 1
    """Add it without a vote, or demote it."""
    REMOVE = 2
    """Take it out."""
    UPDATE = 3
    """No change for consensus: the context tells the shell a new fact about the node."""


class Transition(IntEnum):
    """Which way to go; the values are part of the payload."""

    AUTO = 0
    """One single change: at once. More: joint, and the leader leaves it by itself."""
    JOINT_IMPLICIT = 1
    """Joint even for one change; the leader leaves it by itself."""
    JOINT_EXPLICIT = 2
    """Joint until a proposal leaves it."""


class Change(NamedTuple):
    """The change of one node."""

    kind: ChangeKind
    node: int


class MembershipChange(NamedTuple):
    """A proposal to change the membership; the default leaves a joint one."""

    changes: tuple[Change, ...] = ()
    transition: Transition = Transition.AUTO
    context: bytes = b""

    @property
    def leaves_joint(self) -> bool:
        """Whether this only ends a joint membership."""
        return not self.changes and self.transition is Transition.AUTO

    @property
    def enters_joint(self) -> bool:
        """Whether this goes through a joint membership."""
        return self.transition is not Transition.AUTO or len(self.changes) > 1

    @property
    def auto_leave(self) -> bool:
        """Whether the leader leaves that joint membership by itself."""
        return self.transition is not Transition.JOINT_EXPLICIT


def encode_change(change: MembershipChange) -> bytes:
    """The payload of a MEMBERSHIP record.

    >>> add = MembershipChange((Change(ChangeKind.ADD_LEARNER, 4),), context=b"host:7400")
    >>> decode_change(encode_change(add)) == add
    True
    """
    assert len(change.changes) <= CHANGES_MAX, "too many changes in one record"
    assert len(change.context) <= CONTEXT_BYTES_MAX, "membership context too long"
    if change.leaves_joint and not change.context:
        return b""
    singles = [[int(single.kind), single.node] for single in change.changes]
    return cbor2.dumps([int(change.transition), singles, change.context])


def decode_change(payload: bytes | memoryview) -> MembershipChange:
    """Read a MEMBERSHIP record's payload.

    Raises:
        CorruptRecord: the bytes are not a membership change, or not in its one encoding.
    """
    if not len(payload):
        return MembershipChange()
    raw = bytes(payload)
    try:
        transition, singles, context = cbor2.loads(raw)
        change = MembershipChange(
            tuple(Change(ChangeKind(kind), int(node)) for kind, node in singles),
            Transition(transition),
            context,
        )
        if isinstance(context, bytes) and encode_change(change) == raw:
            return change
    except (cbor2.CBORDecodeError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise CorruptRecord(f"not a membership change: {error}", position=0) from error
    raise CorruptRecord("membership change is not in its one encoding", position=0)
