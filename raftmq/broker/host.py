"""The node, as its parts see it: what they read of it, and what they ask it to do.

Parts of the broker import this face and never `node`, so that no import leads back to the node. A
part that needs one other part gets it when it is made.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from struct import pack as pack_struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from raftmq.access.rules import Resource
from raftmq.broker.replica.group import Group
from raftmq.broker.settings import Settings
from raftmq.consensus import Message
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.catalog.quotas import Subject
from raftmq.machine.catalog.settings import Setting
from raftmq.version import VERSION
from raftmq.wire.fetches import FetchedQueue
from raftmq.wire.messages import ErrorReply

if TYPE_CHECKING:
    # Parts that the core simulator runs import this face, and that simulator loads no event loop.
    from raftmq.broker.cluster.peer_identities import PeerIdentities
    from raftmq.broker.cluster.peers import PeerLink
    from raftmq.broker.loop_budget import Turns
    from raftmq.broker.serve.connection import Connection
    from raftmq.broker.serve.load import Load
    from raftmq.broker.timers import Timers
    from raftmq.broker.world import World

SOFTWARE = f"raftmq {VERSION}"
"""Name and version of this software."""


class Source(NamedTuple):
    """The replica that one queue is read from."""

    group: Group
    """The partition group's replica."""
    end: int
    """The offset after the queue's last message."""

    def earliest(self, queue: int) -> int:
        """The queue's first kept offset; its end if nothing is kept."""
        earliest = self.group.index.earliest(queue)
        return self.end if earliest is None else earliest

    def describe(
        self,
        queue: int,
        *,
        bases: Sequence[int],
        timestamps: Sequence[int],
        sizes: Sequence[int],
    ) -> FetchedQueue:
        """The part of an answer about one queue: of each batch the base offset, stamp and size."""
        count = len(bases)
        return FetchedQueue(
            queue,
            self.earliest(queue),
            self.end,
            pack_struct(f"<{count}Q", *bases),
            pack_struct(f"<{count}q", *timestamps),
            pack_struct(f"<{count}I", *sizes),
        )


class Taken(NamedTuple):
    """The part of an answer that comes from one queue."""

    queue: int
    size: int
    """Bytes of batches."""
    messages: int


class Room(NamedTuple):
    """How much an answer may bring by the quotas; one batch in any case. `inf`: without a bound."""

    size: float
    """Bytes of batches."""
    messages: float
    pop_messages: float
    """Messages to hand out: by their mean size, `size` has room for them as well."""


class Links(Protocol):
    """The links to the other nodes, by number (`cluster.links`)."""

    def get(self, node: int) -> "PeerLink | None":
        """The link to a node; None if there is none."""

    @property
    def level(self) -> int:
        """The highest feature level that this node allows."""

    def all(self) -> "list[PeerLink]":
        """All links, those to guests among them."""

    def copy_pause(self, group: Group, member: int) -> float:
        """Seconds to wait before records are read back for a member (`cluster.copy_pace`)."""

    def members(self) -> "list[PeerLink]":
        """The links to nodes whose answers count."""

    async def introduce(self) -> None:
        """Take in the nodes of the members' newest table. Cancelling leaves nothing behind."""

    @property
    def advice(self) -> str:
        """Advice to the operator of a node that finds no leader at its start; empty: none."""

    @property
    def is_admitted(self) -> bool:
        """True once this folder has a place of its own."""

    @property
    def objections(self) -> Mapping[int, str]:
        """Guests that know this founder by another folder, and that folder's name."""

    def note_objection(self, guest: int, folder: str) -> None:
        """Note such a guest."""


class Gate(Protocol):
    """Users and permissions of a node's connections (`access.gate`)."""

    def sees(self, connection: "Connection", resource: Resource) -> Callable[[str], bool]:
        """Which resources of a kind the other end may see in lists."""

    is_on: bool
    """False: everybody may do everything."""

    def follow(self) -> None:
        """The catalog may have changed: end connections that are allowed less than before."""

    @property
    def failed(self) -> int:
        """Logins that have failed."""

    @property
    def denied(self) -> int:
        """Requests that the rules have denied."""

    @property
    def differences(self) -> list[str]:
        """How the access of other nodes is set otherwise, for people."""


class Quotas(Protocol):
    """The quotas of users and topics (`quotas.quotas`)."""

    is_on: bool
    """False: there are no quotas, and nothing is held."""

    def why_no_connection(self, user: str) -> str:
        """Why a user may not have another connection; empty: it may."""

    def join(self, connection: "Connection", user: str) -> None:
        """The client at a connection is a user."""

    def connections_of(self, user: str) -> "Iterable[Connection]":
        """The open connections of a user."""

    def room(self, connection: "Connection", queues: Iterable[int]) -> Room:
        """How much an answer to a connection may bring of these queues."""

    def must_wait(self, connection: "Connection", topics: Iterable[int]) -> bool:
        """Whether a request to read these topics would be held now."""

    def expect(
        self, connection: "Connection", correlation: int, size: int, queues: Iterable[int]
    ) -> None:
        """Up to `size` bytes of these queues are being read from disk for an answer."""

    def charge(self, connection: "Connection", taken: Iterable[Taken]) -> None:
        """An answer to a connection brings these amounts."""

    def in_flight_bounds(self, connection: "Connection", topic: int) -> list[tuple[Subject, int]]:
        """The bounds on messages in flight that hold for a connection and a topic."""

    def note_throttled(self, subject: Subject, seconds: float) -> None:
        """A request waited, as the quota of a subject is used up."""

    def status(self) -> dict[str, Any]:
        """The requests that are held now, and whose were held longest since the node started."""


class DynamicSettings(Protocol):
    """The catalog's settings for a node (`dynamic.following`)."""

    def why_refused(self, settings: list[Setting]) -> str:
        """Why the catalog's leader refuses to put these; empty: it does not."""

    def status(self) -> dict[str, Any]:
        """The settings that the node runs with, and those that it does not obey yet."""


class Host(Protocol):
    """The node."""

    # Identity

    id: int
    """The node's number."""
    settings: Settings
    """All settings of the node as it runs; some change while it does (`dynamic`)."""
    incarnation: str
    """The data folder's random name."""
    generation: int
    """Number of data folders of this node that were lost before this one."""

    started_ms: int
    """Wall-clock time of the start, in milliseconds since 1970."""

    # State

    is_serving: bool
    """True while clients are served."""
    waits_for: str
    """Why the node does not serve yet, for people; empty: it serves, or will at once."""
    lost_logs: set[int]
    """Partition groups whose logs are lost here, while another member id is asked for."""

    @property
    def may_lead(self) -> bool:
        """False if this node must not be made a leader."""

    # Holdings

    world: "World"
    """Network, disk, clock and randomness."""
    timers: "Timers"
    """Calls at a later time."""
    turns: "Turns"
    """Calls for many requests at once."""

    @property
    def gate(self) -> Gate:
        """Users and permissions of the connections."""

    @property
    def quotas(self) -> Quotas:
        """Quotas of users and topics."""

    @property
    def dynamic(self) -> DynamicSettings:
        """The catalog's settings for this node."""

    @property
    def load(self) -> "Load":
        """Places and bytes that all connections hold."""

    groups: dict[int, Group]
    """The replicas that the node carries, by partition group."""
    peer_identities: "PeerIdentities"
    """The other nodes' data folders, as far as known."""

    @property
    def links(self) -> Links:
        """Links to the other nodes."""

    @property
    def catalog(self) -> Catalog:
        """The system group's machine."""

    # Questions

    def group(self, number: int) -> Group | None:
        """This node's replica of a partition group."""

    def source(self, queue: int) -> Source | ErrorReply:
        """The source to read a queue from on this node, or the refusal."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds."""

    def status(self, *, after: int = -1) -> dict[str, Any]:
        """A picture of this node for people and programs; see `Status`."""

    # Orders

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a task of the node's own beside the others."""

    def mark(self, group: Group) -> None:
        """Run the group's pump soon."""

    def persisted(self, group: Group, messages: list[Message]) -> None:
        """Storage messages of a group are durable; none: its store began a segment."""

    def think(self) -> None:
        """Have the leader tasks run soon, as the state that they act on has changed."""

    def catalog_changed(self) -> None:
        """Follow the catalog: it may have changed."""

    def forget_group(self, group: Group) -> None:
        """Drop a group that this node no longer carries."""

    def read_failed(self, error: BaseException) -> ErrorReply:
        """The refusal for a request whose records cannot be read here. Rot is mended."""

    def index_failed(self, group: Group, error: BaseException) -> ErrorReply:
        """The refusal for a request whose index, or records, cannot be read here."""

    def fail(self, fault: BaseException) -> None:
        """End this node by a fault that it must not live on with."""
