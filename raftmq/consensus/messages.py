"""The messages between nodes, and between a node and its own storage threads.

One flat `Message` for all kinds, as in etcd-io/raft: a struct whose unused fields stay at their
defaults costs about 0.1 µs to make, and the network can write all kinds with one codec.

| kind | fields used, beside `to`, `sender`, `term` |
|---|---|
| APPEND | index and log_term of the record before, entries, commit |
| APPEND_RESPONSE | index matched; or reject, index refused, hint and log_term at the hint |
| HEARTBEAT, its response | commit (the heartbeat), context (both) |
| VOTE, PRE_VOTE | index and log_term of the candidate's last record, context if a transfer |
| these, and their responses | commit and commit_term; the responses: reject |
| SNAPSHOT | snapshot |
| PROPOSE | proposals (term is 0) |
| READ_INDEX, its response | context, index (the response); term of the request is 0 |
| TIMEOUT_NOW, TRANSFER_DECLINED, TRANSFER_LEADER, FORGET_LEADER | nothing more |
| STORAGE_APPEND | entries, snapshot, and term, vote, commit if the hard state changed; responses |
| STORAGE_APPLY | entries, responses |

Invariants:
- A `Message` is never changed after it was made; its lists belong to the receiver's reading only.
- Local kinds come from this node's own storage threads and never from the network.

Sources: Raft figure 2 (AppendEntries, RequestVote), figure 13 (InstallSnapshot); thesis §3.10
(TimeoutNow), §6.4 (read index), §9.6 (PreVote); etcd-io/raft's flat message.
"""

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from raftmq.consensus.types import NONE, Snapshot
from raftmq.log.record import Record

APPEND_THREAD = 2**64 - 1
"""Address of the node's own log writer, in asynchronous storage mode."""
APPLY_THREAD = 2**64 - 2
"""Address of the node's own state machine, in asynchronous storage mode."""

TRANSFER = b"transfer"
"""Context of a vote request that the old leader asked for: leases do not hold it up."""


class MessageKind(IntEnum):
    """The kinds; the numbers below 32 travel on the wire."""

    PROPOSE = 1
    """Follower to leader: please append these."""
    APPEND = 2
    """Leader to follower: records, or none to move the commit index (AppendEntries)."""
    APPEND_RESPONSE = 3
    """Follower to leader: what is now durable and matching, or where to try next."""
    VOTE = 4
    """Candidate to all: RequestVote."""
    VOTE_RESPONSE = 5
    PRE_VOTE = 6
    """Pre-candidate to all: would you vote for me in this term? Changes no state."""
    PRE_VOTE_RESPONSE = 7
    SNAPSHOT = 8
    """Leader to follower: InstallSnapshot."""
    HEARTBEAT = 9
    """Leader to follower: I still lead; carries a commit index the follower surely has."""
    HEARTBEAT_RESPONSE = 10
    TRANSFER_LEADER = 11
    """To the leader: hand over to `sender`."""
    TIMEOUT_NOW = 12
    """Leader to its successor: campaign at once."""
    READ_INDEX = 13
    """Follower to leader: at which index may I answer a linearizable read?"""
    READ_INDEX_RESPONSE = 14
    FORGET_LEADER = 15
    """To a follower: act as if you had not heard from the leader."""
    TRANSFER_DECLINED = 16
    """Successor to leader: I must not lead now, so go on leading."""

    CAMPAIGN = 32
    """Local: the election timeout ran out."""
    UNREACHABLE = 35
    """Local: a message to `sender` could not be delivered."""
    SNAPSHOT_STATUS = 36
    """Local: the snapshot for `sender` arrived, or with reject: failed."""
    STORAGE_APPEND = 37
    """Local, to `APPEND_THREAD`: write, sync, then deliver the responses."""
    STORAGE_APPEND_RESPONSE = 38
    STORAGE_APPLY = 39
    """Local, to `APPLY_THREAD`: apply, then deliver the responses."""
    STORAGE_APPLY_RESPONSE = 40


KINDS_END = 41
"""One past the highest kind: the length of tables indexed by kind."""

Proposal = tuple[int, bytes, int]
"""A record to be: its kind (`raftmq.log.record.Kind`), its payload, and the version of the
payload's format."""


class Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One message. See the table in the module heading for which kind uses which field."""

    kind: MessageKind
    to: int
    """Node id, `APPEND_THREAD` or `APPLY_THREAD`."""
    sender: int = NONE
    term: int = 0
    """The sender's term; 0 for local messages and for those that are forwarded."""
    log_term: int = 0
    """Term of the record at `index`, or of that at `hint` in a rejected append."""
    index: int = 0
    commit: int = 0
    entries: Sequence[Record] = ()
    reject: bool = False
    hint: int = 0
    """In a rejected append: the highest index at which the two logs may agree."""
    vote: int = NONE
    context: bytes = b""
    snapshot: Snapshot | None = None
    proposals: Sequence[Proposal] = ()
    commit_term: int = 0
    """Term of the record at `commit`."""
    responses: "Sequence[Message]" = ()
    """To be stepped or sent, in this order, once the storage message is done."""


LOCAL_KINDS = frozenset(kind for kind in MessageKind if kind >= MessageKind.CAMPAIGN)
"""Kinds that no network peer may send."""

RESPONSE_KINDS = frozenset(
    {
        MessageKind.APPEND_RESPONSE,
        MessageKind.VOTE_RESPONSE,
        MessageKind.PRE_VOTE_RESPONSE,
        MessageKind.HEARTBEAT_RESPONSE,
        MessageKind.READ_INDEX_RESPONSE,
        MessageKind.TRANSFER_DECLINED,
        MessageKind.UNREACHABLE,
        MessageKind.STORAGE_APPEND_RESPONSE,
        MessageKind.STORAGE_APPLY_RESPONSE,
    }
)
"""Kinds that make sense only from a known peer or from this node's own threads."""
