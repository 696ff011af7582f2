"""Messages about the directory: soft state of the cluster.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| DIRECTORY | `DirectoryMessage`, no answer | - | - |
| CLIENTS | `FindClients`, `FoundClients` | - | - |
| DIRECTORY_NODES | `FindDirectoryNodes`, `FoundDirectoryNodes` | - | - |
| LEASE | `AskLease`, `LeaseAnswer` | - | - |

DIRECTORY is sent by nodes alone. What the answers tell is as the answering node knows it.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from raftmq.machine.names import NAME_CHARACTERS_MAX

from .messages import _Wire
from .numbers import Natural, NodeNumber, SequenceNumber

LEASE_CHARACTERS_MAX = 100
"""The longest name of a lease."""
BOOT_MAX = 1 << 61
"""Boots begin with a clock in milliseconds, and are far below this: a higher one is passed over."""
LEASES_TOLD = 100
"""Leases that one node tells the others of."""
USES_MAX = 100
"""Uses, and nodes it avoids, that a client tells."""
LEASE_SECONDS = 15.0
"""A lease that its node does not prolong for this long is free for the others, by their wall
clocks."""
HOLD_SECONDS = LEASE_SECONDS / 3
"""A holder, node or client, counts on a lease for this long after its newest request that was
confirmed. Of the two the client gives up last; the last third of `LEASE_SECONDS` is for clocks that
differ."""

Index = Natural
Term = Natural


class Call(_Wire, frozen=True):
    """A call that all members make: of the method with this number, in pysyncobj's order."""

    method: Natural
    arguments: list[Any]
    """Plain values."""


class Entry(_Wire, frozen=True):
    """An entry of the directory's log."""

    index: Index
    term: Term
    call: Call | None
    """None: an entry that a leader begins with."""


class _Replica(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of what members say to each other; pysyncobj's fields."""


class Append(_Replica, frozen=True):
    """A leader has these entries, after the one at `before`."""

    term: Term
    commit: Index
    before: Index
    before_term: Term
    entries: list[Entry]


class Behind(_Replica, frozen=True):
    """A leader no longer has the entries that the receiver lacks."""


class WantVote(_Replica, frozen=True):
    """A candidate asks for a vote."""

    term: Term
    last: Index
    last_term: Term


class Vote(_Replica, frozen=True):
    """The sender votes for the receiver."""

    term: Term


class NextIndex(_Replica, frozen=True):
    """A follower tells which entry it wants next."""

    index: Index
    is_reset: bool
    is_success: bool


class Apply(_Replica, frozen=True):
    """A follower asks the leader to have a call made."""

    call: Call
    number: Natural | None
    """Of the request; None: no answer is wanted."""


class Answered(_Replica, frozen=True):
    """The answer to `Apply`: the entry that has the call."""

    number: Natural
    index: Index
    term: Term
    error: int | None
    """pysyncobj's reason; None: there is none."""


ReplicaMessage = Append | Behind | WantVote | Vote | NextIndex | Apply | Answered


class Boot(_Wire, frozen=True):
    """The process of a member that takes part in an epoch (`raftmq.directory.epoch`)."""

    member: NodeNumber
    boot: Natural
    """Below `BOOT_MAX`; 0: the member was never heard."""


class DirectoryMessage(_Wire, frozen=True):
    """A message between members of the directory."""

    boots: list[Boot]
    """The sender's epoch, by member."""
    message: ReplicaMessage | None
    """None: the sender only tells its epoch."""


class Use(_Wire, frozen=True):
    """What a client does with a topic."""

    kind: Annotated[str, Meta(max_length=32)]
    """`produce`, `pull`, `broadcast`, `pop` or `ordered`."""
    topic: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    group: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """The consumer group; empty: there is none."""


class AvoidedNode(_Wire, frozen=True):
    """A node that failed or hung for the producers of a client, or did so a moment ago."""

    node: NodeNumber
    health: float
    """0: they send nothing there; between 0 and 1: less than to others."""


class Doing(_Wire, frozen=True):
    """What a client tells about itself."""

    client: Annotated[str, Meta(min_length=1, max_length=32)]
    """A random name that the client has given itself."""
    name: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    """As the program has named it; empty: it has not."""
    version: Natural
    """Grows with each change: of what a client told several nodes, the highest version counts."""
    uses: Annotated[list[Use], Meta(max_length=USES_MAX)]
    avoided: Annotated[list[AvoidedNode], Meta(max_length=USES_MAX)]


class FindClients(_Wire, frozen=True):
    """Ask a node for the clients of all nodes."""

    after: str = ""
    """Only clients after this one."""


class ConnectionView(_Wire, frozen=True):
    """A client's connection to a node."""

    node: NodeNumber
    address: str
    """The client's address."""
    since_ms: SequenceNumber
    """By the node's clock, in milliseconds since 1970."""


class ClientView(_Wire, frozen=True):
    """A client of the cluster."""

    id: str
    """The random name that the client has given itself."""
    name: str
    """As the program has named it; empty: it has not."""
    software: str
    """Name and version, for people."""
    user: str
    """Empty: not known."""
    connections: list[ConnectionView]
    """By node."""
    uses: list[Use]
    """Those that the caller may see."""
    avoided: list[AvoidedNode]


class FoundClients(_Wire, frozen=True):
    """Clients by id."""

    clients: list[ClientView]
    is_cut: bool = False
    """More follow: ask again after the last one."""
    whole_ms: int = 0
    """For how long the directory has been whole at the answering node, in milliseconds; 0: it is
    being built again, and rows are missing."""


class FindDirectoryNodes(_Wire, frozen=True):
    """Ask a node for the members of the directory, and what is sent to their topics."""


class DirectoryNode(_Wire, frozen=True):
    """A member of the directory."""

    node: NodeNumber
    is_present: bool
    """False: it has not been heard lately, and the rest is unknown."""
    software: str = ""
    started_ms: int = 0
    connections: int = 0
    """Open connections of clients and nodes."""
    rates: dict[str, float] = msgspec.field(default_factory=dict)
    """Messages a second over the last minute, by topic, for the queues that the node leads; the
    largest ones, of topics that the caller may see."""


class LeaseView(_Wire, frozen=True):
    """A lease that a client holds."""

    name: str
    node: NodeNumber
    """The node through which it is held."""
    holder: str
    """The client's user, or its address; empty: neither is known."""


class FoundDirectoryNodes(_Wire, frozen=True):
    """The directory as the answering node knows it."""

    nodes: list[DirectoryNode]
    """By number."""
    leader: int
    """The node that leads the directory; 0: none is known."""
    whole_ms: int
    """See `FoundClients`."""
    starts: int
    """Times that a node has entered since the directory was last built again, about: a count may be
    lost, or made twice."""
    leases: list[LeaseView] = msgspec.field(default_factory=list)
    """By name; up to `LEASES_TOLD` of each node."""


class AskLease(_Wire, frozen=True):
    """Take, keep or release a lease."""

    name: Annotated[str, Meta(min_length=1, max_length=LEASE_CHARACTERS_MAX)]
    act: Literal["take", "keep", "release"]
    """`take`: the answer waits until the connection has it; `keep`: until it is lost."""
    wait_ms: Natural = 0
    """How long the answer may wait."""


class LeaseAnswer(_Wire, frozen=True):
    """Whether the connection has the lease."""

    is_held: bool
