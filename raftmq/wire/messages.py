"""Every message of the native protocol: what a client or a peer may ask, and the answers.

A frame (`frame`) carries one message: `kind` names it, `correlation` ties an answer to its request,
the CBOR header holds one of the structs below as a positional array, and the body holds bulk bytes
(batches, records, a snapshot's chunk) untouched. The answer to kind `k` has kind `k | REPLY`; a
refusal has kind `ERROR`. Rules of evolution: fields are only ever added at the end, with a default.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| HELLO | `Hello`, `Welcome` | - | - |
| PRODUCE | no header, `Produced` | one batch | - |
| FETCH | `Fetch`, `Fetched` | - | batches, one after the other |
| METADATA | `Metadata`, `ClusterView` | - | - |
| OFFSETS | `FindOffsets`, `FoundOffsets` | - | - |
| KEY | `FindKey`, `FoundKey` | - | batches, one after the other |
| ADMIN | `Admin`, `AdminDone` | - | - |
| STATUS | `Status`, `NodeStatus` | - | - |
| TRANSFER | `Transfer`, `Done` | - | - |
| CHANGE_NODE | `ChangeNode`, `Done` | - | - |
| FORGET | no header, no answer | - | - |
| SUBSCRIBED | `FindSubscriptions`, `FoundSubscriptions` | - | - |
| POP, SETTLE, LEAVE, BACKLOGS, DEAD, CHANGE_DEAD, CLAIM, RESET | see `popping` | | |
| GROUPS, FORGET_GROUP; WHY, EVENTS, LOG | see `consumer_groups`, `traces` | | |
| COMMIT, HEARTBEAT, MEMBERS | see `assignment` | | |
| CANCEL, SESSIONS; BEGIN, END, TRANSACTIONS | see `producing` | | |
| LOG_IN, USERS, RULES, JUDGE, AUDIT, QUOTAS | see `access` | | |
| SETTINGS, SETTINGS_HISTORY | see `settings` | | |
| DIRECTORY, CLIENTS, DIRECTORY_NODES, LEASE | see `directory` | | |
| RAFT | `raft.RaftHeader`, no answer | records | - |
| SNAPSHOT | `SnapshotChunk`, `SnapshotProgress` | bytes of the snapshot | - |
| PROBE | `Probe`, `ProbeReply` | - | - |
| REPAIR | `RepairRange`, `RepairedRange` | - | records, one after the other |

Lists that may outgrow a header come in pages: the answer says so, and the same request with
`after` set to its last entry gets the next one.

Queues are named by number everywhere: `queue = topic id << 16 | number within the topic`.
"""

from enum import IntEnum
from typing import Any, Self

import msgspec

from .numbers import Bounded, NodeNumber, NodeNumberOrNone

PROTOCOL = 1
"""The protocol's version. A peer of another version is refused at `Hello`."""

REPLY = 0x80
"""The bit that is set in the kind of an answer."""

MESSAGE_CHARACTERS_MAX = 1000
"""The text of an `ErrorReply` is cut to this length."""


class FrameKind(IntEnum):
    """The kinds of frames; see the table above."""

    HELLO = 1
    PRODUCE = 2
    FETCH = 3
    METADATA = 4
    COMMIT = 5
    COMMITTED = 6
    OFFSETS = 7
    KEY = 8
    ADMIN = 9
    STATUS = 10
    TRANSFER = 11
    CHANGE_NODE = 12
    FORGET = 13
    """With the correlation of an open FETCH: the node answers that FETCH at once, usually with no
    batches. Without effect if the FETCH was answered before."""
    SUBSCRIBED = 14
    POP = 15
    SETTLE = 16
    LEAVE = 17
    BACKLOGS = 18
    DEAD = 19
    CHANGE_DEAD = 20
    GROUPS = 21
    HEARTBEAT = 22
    MEMBERS = 23
    CLAIM = 24
    CANCEL = 25
    BEGIN = 26
    END = 27
    TRANSACTIONS = 28
    WHY = 29
    RESET = 30
    SESSIONS = 31
    RAFT = 32
    SNAPSHOT = 33
    PROBE = 34
    REPAIR = 35
    EVENTS = 36
    FORGET_GROUP = 37
    LOG_IN = 38
    USERS = 39
    RULES = 40
    JUDGE = 41
    AUDIT = 42
    QUOTAS = 43
    LOG = 44
    SETTINGS = 45
    SETTINGS_HISTORY = 46
    DIRECTORY = 47
    CLIENTS = 48
    DIRECTORY_NODES = 49
    LEASE = 50
    ERROR = 0x7F


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    """The base of all headers: a positional CBOR array."""


class ErrorReply(_Wire, frozen=True):
    """A request was not done. `code` decides what the client does next."""

    code: str
    """`not_leader`, `unavailable`, `busy`: nothing happened, try again (elsewhere, later);
    `outcome_unknown`: it may have happened; `protocol`: the connection is closed;
    `unknown_session`: fetch with all queues again;
    else the value of a `raftmq.errors.Reason`: do not retry unchanged."""
    message: str
    """The fault and the remedy, in one or two sentences."""
    group: int = -1
    """For `not_leader`, and often `busy` and `unavailable`: the partition group that the request
    was for; -1: none is named."""
    leader: int = 0
    """For `not_leader`: the node that leads the group as far as is known here; 0: unknown."""
    retry_ms: int = 0
    """For `busy` and `unavailable`: least milliseconds to wait before a retry; 0: no bound."""
    earliest: int = -1
    """For `offset_out_of_range`: the first kept offset of the queue."""
    end: int = -1
    """For `offset_out_of_range`: the offset after the last message of the queue."""
    last: int = 0
    """For `out_of_order` of a `Settle`: the higher `sequence` that overtook the request."""

    def __post_init__(self) -> None:
        # A text may quote a client's input of any length, and an answer must stay short.
        if len(self.message) > MESSAGE_CHARACTERS_MAX:
            cut = self.message[: MESSAGE_CHARACTERS_MAX - 3] + "..."
            msgspec.structs.force_setattr(self, "message", cut)


class Hello(_Wire, frozen=True):
    """The first frame on every connection, from the side that connected."""

    protocol: int
    """The sender's `PROTOCOL`."""
    cluster: str
    """The cluster the sender belongs to; empty from a client that takes any."""
    node: int
    """The sender's node id; 0 from a client."""
    incarnation: str
    """Random name of the sender's data folder; empty from a client. A wiped disk gets a new one."""
    software: str
    """Name and version, for people."""
    host: str = ""
    """From a node: the host at which it is reached; from a client: empty."""
    port: int = 0
    """From a node: the port at that host; 0 from a client."""
    access: str = ""
    """From a node: a digest of its `[access]`, which nodes compare, or `off`; from a client, or
    older software: empty."""
    level: int = 0
    """From a node: the highest feature level that it knows; from a client, or older software: 0."""


class Welcome(_Wire, frozen=True):
    """The answer to `Hello`: the connection is open for requests."""

    protocol: int
    """The answering node's `PROTOCOL`."""
    cluster: str
    """The answering node's cluster."""
    node: int
    """The answering node's id."""
    incarnation: str
    """Random name of the answering node's data folder."""
    software: str
    """Name and version, for people."""
    frame_bytes_max: int
    """Bytes of the longest frame that the answering node accepts."""
    batch_bytes_max: int
    """Bytes of the longest batch that the answering node accepts."""
    wants_login: bool = False
    """True: the client has to log in (`access.LogIn`) before anything else."""
    level: int = 0
    """The highest feature level that the answering node allows; 0: its software tells none."""
    zone: str = ""
    """The answering node's zone; empty: not said."""
    machine: str = ""
    """The answering node's machine, if it runs several nodes."""


class Produced(_Wire, frozen=True):
    """The batch is committed: on the disks of a majority."""

    base_offset: int
    """Offset of the batch's first message in its queue; the others follow without a gap. -1: the
    messages get offsets when they fall due."""
    timestamp: int
    """The leader's stamp, milliseconds since 1970."""
    duplicate: bool = False
    """True if an earlier attempt had stored the batch: this answer says where."""
    number: int = 0
    """If the batch waits for its time: the number that names its first message in `CancelDelayed`;
    the others follow by one. After a repeat they may have been delivered already."""
    throttle_ms: int = 0
    """Milliseconds for which a quota held the request."""


class Metadata(_Wire, frozen=True):
    """Ask any node for the routing table: nodes, leaders of partition groups, and topics."""

    topics: Bounded[str] | None = None
    """The topics wanted; None: all. A name that does not exist is left out of the answer."""
    is_latest: bool = False
    """True: only the leader of the system group answers, with all that was decided before it was
    asked (a linearizable read); others refuse with `not_leader`. A node that was just started knows
    no topic until a leader tells it how far the log is committed."""
    after: int = 0
    """For the next page: `ClusterView.next` of the one before. 0: the first."""


class NodeView(_Wire, frozen=True):
    """One node of the cluster."""

    id: int
    """The node's number, from 1."""
    host: str
    """The host at which clients and peers reach the node."""
    port: int
    """The native protocol's port at that host."""
    is_leaving: bool = False
    """True while the node's partition groups move to others; then the node leaves the cluster."""
    is_drained: bool = False
    """True: the node shall lead nothing."""
    zone: str = ""
    """The node's zone; empty: not said."""
    machine: str = ""
    """The node's machine, if it runs several nodes."""
    is_absent: bool = False
    """True: the node has been silent for longer than `balance.absent_ms` allows."""


class GroupView(_Wire, frozen=True):
    """One partition group as the answering node sees it. Group 0 is the system group."""

    id: int
    """The group's number."""
    leader: int
    """The leading node; 0: none known."""
    term: int
    """The Raft term of that knowledge; of two views the one with the higher term is newer. 0 if the
    answering node carries no replica."""
    voters: list[int]
    """The nodes that vote; the catalog's list if the answering node carries no replica."""
    learners: list[int]
    """The nodes that receive the log without a vote."""
    voters_outgoing: list[int] = []
    """The nodes of the outgoing half of a joint membership: their votes count as well."""
    members: list[int] = []
    """The member ids behind all of these, and those just removed whose votes may be needed again;
    empty if the answering node carries no replica."""
    forgotten: int = 0
    """Deletions of consumer groups up to this index of the system group's log are carried out by
    the answering node's replica."""
    copies: int = 0
    """The wanted number of voters; 0: no number is wanted, as of the system group."""
    member: int = 0
    """The id of the member that the answering node carries; 0: it carries none, one that abstains
    as it lost a part of its log, or one whose disk is too full for records."""
    wanted: list[int] = []
    """The nodes that shall carry it, by the catalog; the first shall lead. Empty: the answering
    node's software tells none."""


class TopicView(_Wire, frozen=True):
    """One topic."""

    name: str
    """The topic's name."""
    id: int
    """The topic's number, never used again; its queue n is `id << 16 | n`."""
    groups: list[int]
    """The partition group of each queue, in order."""


class ClusterView(_Wire, frozen=True):
    """The routing table."""

    cluster: str
    """The cluster's id."""
    version: int
    """Raft index of the last change of the catalog that the answering node has applied."""
    nodes: list[NodeView]
    """All nodes; empty in pages after the first."""
    groups: list[GroupView]
    """All partition groups; empty in pages after the first."""
    topics: list[TopicView]
    """The topics asked for, by number."""
    next: int = 0
    """Not 0: more topics follow; ask again with `after` set to this number."""
    denied: list[str] = []
    """Topics asked for that the user may not see, whether they exist or not."""


EARLIEST = -2
"""In `FindOffset.at`: the first kept message."""
LATEST = -1
"""In `FindOffset.at`: after the last committed message."""


class FindOffset(_Wire, frozen=True):
    """One question of `FindOffsets`."""

    queue: int
    """The queue's number."""
    at: int
    """`EARLIEST`, `LATEST`, or a time in milliseconds since 1970: the first message stamped then or
    later, which is the end if there is none."""


class FindOffsets(_Wire, frozen=True):
    """Ask for offsets by time. All queues' partition groups must be led by the node asked."""

    queues: Bounded[FindOffset]
    """The questions."""


class FoundOffset(_Wire, frozen=True):
    """One answer of `FoundOffsets`."""

    queue: int
    """The queue's number."""
    offset: int
    """The offset found."""
    earliest: int
    """The first kept offset."""
    end: int
    """The offset after the last committed message."""


class FoundOffsets(_Wire, frozen=True):
    """The answers, in the order of the questions."""

    queues: list[FoundOffset]
    """One for each question."""


class FindKey(_Wire, frozen=True):
    """Find messages by key in the queues of one partition group, newest first."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    topic: int
    """The topic's number."""
    key: bytes
    """The key, as its UTF-8 bytes."""
    since: int
    """Only messages stamped at or after this time, in milliseconds since 1970."""
    limit: int
    """The largest number of batches wanted; the node cuts it to 1 to 1,000."""


class FoundBatch(_Wire, frozen=True):
    """A batch that holds at least one message with the key."""

    queue: int
    """The queue's number."""
    base_offset: int
    """Offset of the batch's first message."""
    timestamp: int
    """The leader's stamp, milliseconds since 1970."""
    size: int
    """Bytes of the batch in the body."""


class FoundKey(_Wire, frozen=True):
    """The batches found, newest first; the client picks the messages out of them."""

    batches: list[FoundBatch]
    """One entry for each batch in the body."""
    throttle_ms: int = 0
    """Milliseconds for which a quota held the request."""


class FindSubscriptions(_Wire, frozen=True):
    """Ask the leader of the system group for the groups' subscriptions, linearizably."""

    topic: str | None = None
    """The topic; None: all."""
    consumer_group: str | None = None
    """The consumer group; None: all."""
    after_topic: int = 0
    """For the next page: the topic's number in the last entry of the one before."""
    after_group: str = ""
    """For the next page: the consumer group of that entry."""


class SubscriptionView(_Wire, frozen=True):
    """The filter of one consumer group for one topic."""

    topic: str
    """The topic's name."""
    topic_id: int
    """The topic's number."""
    consumer_group: str
    """Name of the consumer group."""
    expression: str
    """The filter, as SQL or tags."""
    version: int
    """Raft index of the catalog's record that made the subscription."""


class FoundSubscriptions(_Wire, frozen=True):
    """The answer to `FindSubscriptions`."""

    subscriptions: list[SubscriptionView]
    """By topic and consumer group."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""


class Admin(_Wire, frozen=True):
    """A change of the catalog; goes to the leader of the system group."""

    command: list[Any]
    """One command of `raftmq.machine.catalog.catalog`, as its positional array."""
    request: int = 0
    """A random number, equal in each repeat: a repeat changes no topic, consumer group, attachment
    or filter again and gets the first answer, as long as the number is among the last 4,096. 0: a
    repeat may change them twice."""

    @classmethod
    def of(cls, command: msgspec.Struct, request: int = 0) -> Self:
        """The message that carries a command."""
        # A map's keys are text in a frame.
        plain = msgspec.to_builtins(command, builtin_types=(bytes,), str_keys=True)
        return cls(plain, request)

    def __repr__(self) -> str:
        # The command may hold keys of a password, or the digest of a token.
        return f"Admin({self.command[:1]!r}, request={self.request})"


class AdminDone(_Wire, frozen=True):
    """The change is committed and applied."""

    result: Any = None
    """The result of the command, as plain CBOR values; None: it has none."""


class Status(_Wire, frozen=True):
    """Ask a node about itself."""

    after: int = -1
    """For the next page: the number in the entry `next` of the one before. -1: the first."""


class NodeStatus(_Wire, frozen=True):
    """A node's picture of itself: a map that may gain entries at any time."""

    status: dict[str, Any]
    """See `raftmq.broker.status`. If it has an entry `next`, more partition groups follow."""


class Transfer(_Wire, frozen=True):
    """Hand the leadership of a partition group to another node; goes to the group's leader."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    to: NodeNumberOrNone
    """The node that shall lead; 0: any other voter that is caught up."""


class ChangeNode(_Wire, frozen=True):
    """Add, remove or replace a node; goes to the leader of the system group."""

    action: str
    """`add`, `remove` or `replace`."""
    node: NodeNumber
    """The number of the node that comes, goes or is replaced."""
    host: str = ""
    """For `add` and `replace`: the host at which the new node is reached."""
    port: int = 0
    """For `add` and `replace`: the port at that host."""
    new: NodeNumberOrNone = 0
    """For `replace`: the new node's number."""
    zone: str = ""
    """For `add` and `replace`: the new node's zone; empty: not said."""
    machine: str = ""
    """For `add` and `replace`: the new node's machine, if it runs several nodes; else empty."""


class Done(_Wire, frozen=True):
    """The request was carried out."""


class SnapshotChunk(_Wire, frozen=True):
    """A piece of a snapshot for a replica that is too far behind for the log."""

    group: int
    """The partition group."""
    index: int
    """Index of the last record that the snapshot covers."""
    offset: int
    """Byte of the snapshot's file where the body belongs; 0 with an empty body asks for the
    progress."""
    size: int
    """Bytes of the whole file."""


class SnapshotProgress(_Wire, frozen=True):
    """How much of the snapshot the receiver has: send on from there."""

    received: int
    """Bytes received without a gap; equal to `size` when complete."""


class Probe(_Wire, frozen=True):
    """A starting node asks a peer for the peer's knowledge of it, before it takes part in anything;
    a stopping node asks whether the peer may take over its partition groups."""

    node: int
    """The asking node."""
    incarnation: str
    """The name of the asking node's data folder."""
    joins: bool = False
    """True from a blank folder: the system group's leader first makes sure that it still leads."""
    replaces: str = ""
    """The lost data folder whose place the asking node wants, by the name that a peer knew; empty:
    it wants none."""


class FoundingView(_Wire, frozen=True):
    """A cluster as founders make it."""

    nodes: list[NodeView]
    """The founders by number, with their present addresses if the cluster was founded."""
    groups: int
    """Number of data groups."""
    replicas: int
    """Number of copies of each data group."""


class ProbeReply(_Wire, frozen=True):
    """The answer to `Probe`: the peer's knowledge of the asking node, and of the cluster."""

    known_incarnation: str
    """The incarnation under which the asking node was known; empty: never seen."""
    is_latest: bool = False
    """True if no node can know more at this moment: the peer leads the system group."""
    may_lead: bool = False
    """True if the peer would become a leader now: it is not stopping and not drained, and its disk
    has room."""
    generation: int = 0
    """The generation of that incarnation: how often the node's data folder was lost before."""
    refusal: str = ""
    """Why the asking node cannot take the place it wants; empty: it wants none, or has it."""
    now_ms: int = 0
    """The peer's wall clock, milliseconds since 1970."""
    lost_logs: list[int] = []
    """Partition groups whose logs the peer has lost, while it asks for other member ids."""
    founders: list[int] = []
    """To a blank folder that the peer never saw: the nodes that founded the peer's cluster. Empty:
    the peer is in no cluster yet, or does not say."""
    founding: FoundingView | None = None
    """To such a folder: the peer's cluster as it was founded; before that, as the peer's settings
    would found it. None: the peer knows neither, or does not say."""


class RepairRange(_Wire, frozen=True):
    """Ask for applied records of a group: a node whose own are damaged, or a backup (`traces`)."""

    group: int
    """The partition group."""
    low: int
    """Index of the first record wanted."""
    high: int
    """One past the last record wanted."""
    snapshot: int = 0
    """Index of a snapshot of which bytes from `low` on are wanted; 0: records are wanted."""
    crc: int = 0
    """CRC-32C of that snapshot's state: a peer whose snapshot has another CRC refuses."""


class RepairedRange(_Wire, frozen=True):
    """Some of the records of `RepairRange`, from the first one on. The body holds them as they
    stand in the log; the sender has checked each."""

    count: int
    """Number of records; a higher `low` gets more. Of a snapshot: bytes of its file."""
