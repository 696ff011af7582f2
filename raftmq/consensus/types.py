"""The small values that consensus hands in and out: states, snapshots, refusals.

Start with `HardState`: it is what Raft §5 calls the persistent state of a server, apart from the
log itself. Everything here is immutable and knows nothing of messages or roles.

Invariants:
- Node ids are 1 or more; `NONE` (0) stands for "no node".
- The id tuples of a `ConfState` are sorted and hold no id twice.

Sources: Raft (extended version) figure 2; thesis §4.3 for joint membership; etcd-io/raft, whose
split into hard and soft state this follows.
"""

from enum import Enum, IntEnum
from typing import NamedTuple

import msgspec

from raftmq.log.segment import HardState as HardState

NONE = 0
"""The id of no node: no leader, no vote, no transfer target."""

UNLIMITED = 2**63 - 1
"""A byte or message limit that no log reaches."""


class Role(IntEnum):
    """A node's role at one moment (Raft §5.1, figure 4; the thesis §9.6 for the fourth)."""

    FOLLOWER = 0
    """Answers leaders and candidates; campaigns when it has heard from none for too long."""
    CANDIDATE = 1
    """Asks for votes in a new term."""
    LEADER = 2
    """The only one that appends new records in its term."""
    PRE_CANDIDATE = 3
    """Asks whether it could win before it starts a new term."""


class SoftState(NamedTuple):
    """State that need not be on disk: the leader, as far as this node knows, and its own role."""

    leader: int = NONE
    role: Role = Role.FOLLOWER


class ConfState(NamedTuple):
    """A group's membership as plain ids, as snapshots and storage keep it."""

    voters: tuple[int, ...] = ()
    """The voters; in a joint membership, the incoming half."""
    learners: tuple[int, ...] = ()
    """Members that receive the log without a vote."""
    voters_outgoing: tuple[int, ...] = ()
    """The outgoing half of a joint membership; empty when not joint."""
    learners_next: tuple[int, ...] = ()
    """Outgoing voters that become learners when the joint membership is left."""
    auto_leave: bool = False
    """Whether the leader leaves the joint membership by itself once it is applied."""


class SnapshotMeta(msgspec.Struct, frozen=True, array_like=True):
    """Where a snapshot stands in the log. Index 0 means: no snapshot, an empty log."""

    index: int = 0
    """Index of the last record the snapshot covers."""
    term: int = 0
    """Term of that record."""
    conf_state: ConfState = ConfState()
    """Membership after that record."""
    crc: int = 0
    """CRC of that record: the chain value of the record at index + 1."""
    timestamp: int = 0
    """Timestamp of that record in ms: no later record has a lower one."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A machine state at `meta.index`. `data` is opaque: the state, or a name to fetch it by."""

    meta: SnapshotMeta = SnapshotMeta()
    data: bytes = b""


class ReadState(msgspec.Struct, frozen=True, array_like=True):
    """A granted read: once `index` is applied, a read of the machine is linearizable."""

    index: int
    context: bytes
    """The bytes that were given to `Raft.read_index`."""


class Fetch(NamedTuple):
    """Records that were not in memory; read them, then call `Raft.entries_fetched(peer)`."""

    peer: int
    """The follower that waits for them, or this node's own id when they are to be applied."""
    low: int
    """First index wanted."""
    high: int
    """One past the last index wanted; fewer may be read, at least one must."""


class DropReason(Enum):
    """Why a proposal was not taken; no record of it was appended."""

    NO_LEADER = "no leader is known in this term"
    NOT_LEADER = "this node does not lead and may not forward"
    NOT_MEMBER = "this leader was removed from the group"
    TRANSFERRING = "leadership is being handed over"
    TOO_MUCH_UNCOMMITTED = "the uncommitted tail of the log is at its byte limit"
    CHANGE_PENDING = "an earlier membership change is not applied yet"
    MUST_LEAVE_JOINT = "the membership is joint; leave it first"
    NOT_JOINT = "the membership is not joint; there is nothing to leave"
    INVALID_CHANGE = "the membership change is impossible"


class ProposalDropped(Exception):
    """A proposal was refused before anything happened; a retry is safe."""

    def __init__(self, reason: DropReason, *, leader: int = NONE, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.leader = leader
        """The leader as far as this node knows, or `NONE`: a hint for where to retry."""


class StepRefusal(Enum):
    """Why `Raft.step` ignored a message; nothing changed."""

    LOCAL_MESSAGE = "a kind that only a node's own threads may send"
    UNKNOWN_PEER = "a response from a node outside the membership"
    PROPOSAL_DROPPED = "a forwarded proposal could not be taken"
