"""A node whose work is observed, and whose process can end at failpoints.

The node is the broker's own `Node`. Each effect of a group and each frame is reported to observers
and passed on, so the failpoints lie between the parts of the product, not inside them:

| failpoint | before it | after it |
|---|---|---|
| `send append` and so on | nothing has left | the link has the message |
| `apply batch` and so on | the machine has it, no request is answered | the answers wait to leave |
| `receive produce` and so on | the frame is whole and unread | the node has acted upon it |

Invariants:
- Observing changes nothing.

Sources: etcd's gofail; `raftmq.chaos.real.failpoints` names those of real processes.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from raftmq.broker.node import Node
from raftmq.broker.replica.effects import Applied, Effect, Send, TakeSnapshot
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.load import Load, Placed
from raftmq.broker.settings import Settings
from raftmq.chaos.world.simulated import SimulatedWorld
from raftmq.consensus import Message, MessageKind
from raftmq.log.record import Kind, Record
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind

_SENT = (
    MessageKind.APPEND, MessageKind.APPEND_RESPONSE, MessageKind.VOTE, MessageKind.VOTE_RESPONSE,
    MessageKind.PRE_VOTE_RESPONSE, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT,
    MessageKind.TIMEOUT_NOW,
)  # fmt: skip
_RECEIVED = (
    FrameKind.PRODUCE, FrameKind.FETCH, FrameKind.COMMIT, FrameKind.ADMIN, FrameKind.CHANGE_NODE,
    FrameKind.RAFT, FrameKind.SNAPSHOT, FrameKind.PROBE, FrameKind.REPAIR,
)  # fmt: skip


def _name(operation: str, kind: MessageKind | Kind | FrameKind) -> str:
    return f"{operation} {kind.name.lower().replace('_', '-')}"


FAILPOINTS = (
    *(_name("send", kind) for kind in _SENT),
    *(_name("apply", kind) for kind in Kind),
    *(_name("receive", kind) for kind in _RECEIVED),
)
"""Failpoints that are worth setting in every workload, before or after the step."""
POP_FAILPOINTS = tuple(
    _name("receive", kind)
    for kind in (
        FrameKind.POP, FrameKind.SETTLE, FrameKind.LEAVE, FrameKind.CHANGE_DEAD, FrameKind.CANCEL,
        FrameKind.BEGIN, FrameKind.END,
    )
)  # fmt: skip
"""Failpoints of requests from consumers that pop, and from producers of withheld messages."""
MEMBER_FAILPOINTS = (_name("receive", FrameKind.HEARTBEAT),)
"""Failpoints of requests from members that share out queues."""

FLOW_FAILPOINTS = tuple(
    _name("receive", kind)
    for kind in (
        FrameKind.POP, FrameKind.SETTLE, FrameKind.LEAVE, FrameKind.BEGIN, FrameKind.END,
        FrameKind.HEARTBEAT, FrameKind.CLAIM, FrameKind.RESET,
    )
)  # fmt: skip
"""Failpoints of requests from hand-offs, broadcast instances, consumers that claim, and clients
that move a group."""

_SENDING = {kind: _name("send", kind) for kind in MessageKind}
_APPLYING = {int(kind): _name("apply", kind) for kind in Kind}
_RECEIVING = {int(kind): _name("receive", kind) for kind in FrameKind}


class Observer(Protocol):
    """An observer of nodes."""

    def sent(self, node: int, group: Group, message: Message) -> None:
        """A message is about to leave for another member."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """Records were applied; a leader is about to answer the requests that wait for them."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """The machine stands just after this record, the last one of a segment."""


RequestListener = Callable[["ObservedNode", Connection, Frame], None]
"""Called with each frame that a node is about to act on; a frame that had to wait comes again."""


class ObservedLoad(Load):
    """The load of a node, with the connections whose bytes it counts."""

    def __init__(self, *, bytes_max: int, places: int, address_places: int) -> None:
        super().__init__(bytes_max=bytes_max, places=places, address_places=address_places)
        self.counted: dict[Connection, None] = {}
        """Connections that got a place and have not ended."""

    def take_place(self, connection: Placed) -> bool:
        """As `Load.take_place`."""
        has_place = super().take_place(connection)
        if has_place:
            assert isinstance(connection, Connection)
            self.counted[connection] = None
        return has_place

    def leave(self, connection: Placed) -> None:
        """As `Load.leave`."""
        super().leave(connection)
        # A connection that is pushed out leaves before it ends, and holds bytes until its end.
        if isinstance(connection, Connection) and connection.is_closed:
            self.counted.pop(connection, None)


class ObservedNode(Node):
    """One broker process in the simulated world."""

    load: ObservedLoad
    load_class = ObservedLoad

    def __init__(
        self,
        settings: Settings,
        world: SimulatedWorld,
        observers: list[Observer],
        request_listeners: list[RequestListener],
    ) -> None:
        super().__init__(settings, world)
        self.process = world.process
        """The process that the node is."""
        self._observers = observers
        self._request_listeners = request_listeners

    def perform(self, group: Group, effect: Effect) -> None:
        """As `Node.perform`, with failpoints for messages and applied records."""
        match effect:
            case Send(message):
                points = [_SENDING[message.kind]]
            case Applied(records):
                # A machine passes over a record of a kind that it does not know.
                points = [_APPLYING[record.kind] for record in records if record.kind in _APPLYING]
            case _:
                points = []
        for point in points:
            self.process.passes(point, after=False)
        self._tell(group, effect)
        super().perform(group, effect)
        for point in points:
            self.process.passes(point, after=True)

    def _tell(self, group: Group, effect: Effect) -> None:
        for observer in self._observers:
            match effect:
                case Send(message):
                    observer.sent(self.id, group, message)
                case Applied(records):
                    observer.applied(self.id, group, records)
                case TakeSnapshot(record):
                    observer.at_border(self.id, group, record)
                case _:
                    pass

    def handle(self, connection: Connection, frame: Frame) -> None:
        """As `Node.handle`, with a failpoint."""
        # A stranger may send a frame of an unknown kind.
        point = _RECEIVING.get(frame.kind, "receive nothing known")
        self.process.passes(point, after=False)
        for listener in self._request_listeners:
            listener(self, connection, frame)
        super().handle(connection, frame)
        self.process.passes(point, after=True)
