"""A node that is seen at its work, and that can end at named points of it.

It is the broker's own `Node`; what a group or a connection asks of its host is passed on to it, and
told to whoever looks. So the points lie between the parts of the product, not inside of them:

| point | before it | after it |
|---|---|---|
| `send append` and so on | nothing has left | the link has the message |
| `apply batch` and so on | the machine has it, nobody was told | the answers wait to leave |
| `receive produce` and so on | the frame is whole, nobody has looked | it was acted upon |

Invariants:
- Looking changes nothing.

Sources: etcd's gofail points; `raftmq.chaos.real.points` names those of real processes.
"""

from collections.abc import Sequence
from typing import Protocol

from raftmq.broker.node import Node
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.connection import Connection
from raftmq.broker.settings import Settings
from raftmq.chaos.world.simulated import SimulatedWorld
from raftmq.consensus import Message, MessageKind
from raftmq.log.record import Kind, Record
from raftmq.results import Result
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind

_SENT = (
    MessageKind.APPEND, MessageKind.APPEND_RESPONSE, MessageKind.VOTE, MessageKind.VOTE_RESPONSE,
    MessageKind.PRE_VOTE_RESPONSE, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT,
    MessageKind.TIMEOUT_NOW,
)  # fmt: skip
_RECEIVED = (
    FrameKind.PRODUCE, FrameKind.FETCH, FrameKind.COMMIT, FrameKind.ADMIN, FrameKind.MEMBER,
    FrameKind.RAFT, FrameKind.SNAPSHOT, FrameKind.PROBE, FrameKind.REPAIR,
)  # fmt: skip


def _name(operation: str, kind: MessageKind | Kind | FrameKind) -> str:
    return f"{operation} {kind.name.lower().replace('_', '-')}"


POINTS = (
    *(_name("send", kind) for kind in _SENT),
    *(_name("apply", kind) for kind in Kind),
    *(_name("receive", kind) for kind in _RECEIVED),
)
"""Every point that is worth arming, before it or after it, whatever clients do."""
POP_POINTS = tuple(
    _name("receive", kind)
    for kind in (
        FrameKind.POP, FrameKind.SETTLE, FrameKind.LEAVE, FrameKind.BURY, FrameKind.CANCEL,
        FrameKind.BEGIN, FrameKind.END,
    )
)  # fmt: skip
"""Of what is asked for by consumers that pop, and by producers of withheld messages."""
MEMBER_POINTS = (_name("receive", FrameKind.HEARTBEAT),)
"""Of what is asked for by members that share out queues."""

FLOW_POINTS = tuple(
    _name("receive", kind)
    for kind in (
        FrameKind.POP, FrameKind.SETTLE, FrameKind.LEAVE, FrameKind.BEGIN, FrameKind.END,
        FrameKind.HEARTBEAT, FrameKind.CLAIM, FrameKind.RESET,
    )
)  # fmt: skip
"""Of what is asked for by hand-offs, broadcast instances, consumers that claim, and by whoever
moves a group."""

_SENDING = {kind: _name("send", kind) for kind in MessageKind}
_APPLYING = {kind: _name("apply", kind) for kind in Kind}
_RECEIVING = {int(kind): _name("receive", kind) for kind in FrameKind}


class Observer(Protocol):
    """Whoever looks."""

    def sent(self, node: int, group: Group, message: Message) -> None:
        """A message is about to leave for another member."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """Records were applied; on a leader, who waits for them is answered."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """The machine stands just after this record, the last one of a segment."""


class ObservedNode(Node):
    """One broker process in the simulated world."""

    def __init__(
        self, settings: Settings, world: SimulatedWorld, observers: list[Observer]
    ) -> None:
        super().__init__(settings, world)
        self._process = world.process
        self._observers = observers

    def send(self, group: Group, message: Message) -> None:
        """As the node."""
        point = _SENDING[message.kind]
        self._process.passes(point, after=False)
        for observer in self._observers:
            observer.sent(self.id, group, message)
        super().send(group, message)
        self._process.passes(point, after=True)

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """As the node."""
        points = [_APPLYING[Kind(record.kind)] for record in records]
        for point in points:
            self._process.passes(point, after=False)
        for observer in self._observers:
            observer.applied(self.id, group, records)
        super().applied(group, records, results)
        for point in points:
            self._process.passes(point, after=True)

    def at_border(self, group: Group, record: Record) -> None:
        """As the node."""
        for observer in self._observers:
            observer.at_border(self.id, group, record)
        super().at_border(group, record)

    def handle(self, connection: Connection, frame: Frame) -> None:
        """As the node."""
        # A stranger may send a kind that there is not.
        point = _RECEIVING.get(frame.kind, "receive nothing known")
        self._process.passes(point, after=False)
        super().handle(connection, frame)
        self._process.passes(point, after=True)
