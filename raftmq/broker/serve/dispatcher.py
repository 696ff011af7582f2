"""The dispatcher: a frame's kind decides the type of its header, its group, and its handler.

Each service of the node has a table of routes:

    FrameKind.STATUS: route(Status, self._status)
    FrameKind.CANCEL: group_route(CancelDelayed, data_group(node), self._cancel)

A handler is called in one step of the event loop, with the message and the request that is open. It
returns its answer, or `LATER` (`answers`). Before a handler with a group is called, the group is
found; a request for a group that cannot take it here is refused. Before that, a guard decides
whether the request may pass at all (`raftmq.broker.access`), at first without its header, which is
then decoded; quotas decide when it passes (`raftmq.broker.quotas`). Acts of administration are
noted in the audit log.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply

from .answers import Answer, OpenRequest, elsewhere

M = TypeVar("M", bound=msgspec.Struct)


class Route(NamedTuple):
    """The way of one kind of frame."""

    message: type[msgspec.Struct] | None
    """The type of the header; None: the handler takes the whole frame."""
    find: Callable[[Any], Group | ErrorReply] | None
    """The group that the message is for, or the refusal; None: the handler takes no group."""
    act: Callable[..., Answer]
    """The handler."""


Routes = Mapping[int, Route]
"""Routes by frame kind."""


def route(message: type[M], act: Callable[[M, OpenRequest], Answer]) -> Route:
    """A route whose handler takes a message."""
    return Route(message, None, act)


def group_route(
    message: type[M],
    find: Callable[[M], Group | ErrorReply],
    act: Callable[[M, Group, OpenRequest], Answer],
) -> Route:
    """A route whose handler takes a message and the group that it is for."""
    return Route(message, find, act)


def frame_route(act: Callable[[Frame, OpenRequest], Answer]) -> Route:
    """A route whose handler takes the frame: it has no header, or the handler reads the body."""
    return Route(None, None, act)


class _ForGroup(Protocol):
    """A message for a partition group."""

    @property
    def partition_group(self) -> int:
        """Its number."""


def data_group(node: Host) -> Callable[[_ForGroup], Group | ErrorReply]:
    """Finds the data group that a message names."""

    def find(message: _ForGroup) -> Group | ErrorReply:
        group = node.group(message.partition_group)
        if group is None or not isinstance(group.machine, PartitionMachine):
            return elsewhere(message.partition_group)
        return group

    return find


def system_group(node: Host) -> Callable[[object], Group | ErrorReply]:
    """Finds the system group, whatever the message."""

    def find(_: object) -> Group | ErrorReply:
        group = node.group(SYSTEM_GROUP)
        return elsewhere(SYSTEM_GROUP) if group is None else group

    return find


Check = Callable[[OpenRequest, Frame, Any], Answer | None]
"""The answer to a request, with its frame and message, that may not pass, or `LATER`; None: it may.
"""


class Guard(Protocol):
    """Decides which requests may pass (`access.gate`)."""

    def admit(self, asked: OpenRequest) -> Answer | None:
        """The answer to a request that may not pass, by its kind and who asks; None: it may."""

    def check(self, asked: OpenRequest, frame: Frame, message: Any) -> Answer | None:
        """A `Check` of a request that was admitted."""


class Notes(Protocol):
    """The notes about acts of administration (`access.notes`)."""

    @property
    def kinds(self) -> Collection[int]:
        """The kinds of requests that may be such acts."""

    def carry_out(self, asked: OpenRequest, message: Any, act: Callable[[], Answer]) -> Answer:
        """Carry a request of these kinds out by `act`, at once or after a note about it."""


class Dispatcher:
    """Hands each frame to its handler, if it may pass."""

    def __init__(self, tables: Iterable[Routes], guard: Guard, hold: Check, notes: Notes) -> None:
        """The guard comes first; `hold` holds a request until its turn."""
        self._guard = guard
        self._hold = hold
        self._notes = notes
        self._routes: dict[int, Route] = {}
        for table in tables:
            assert not self._routes.keys() & table.keys(), "one handler for each kind"
            self._routes |= table

    def answer(self, frame: Frame, asked: OpenRequest) -> Answer:
        """Have a request carried out.

        Raises:
            ProtocolError: the frame makes no sense.
        """
        found = self._routes.get(frame.kind)
        if found is None:
            text = f"this node does not know requests of kind {frame.kind}"
            return ErrorReply(Reason.BAD_ARGUMENT.value, text)
        stopped = self._guard.admit(asked)
        if stopped is not None:
            return stopped
        message = frame if found.message is None else unpack(found.message, frame.header)
        for check in (self._guard.check, self._hold):
            stopped = check(asked, frame, message)
            if stopped is not None:
                return stopped
        if frame.kind in self._notes.kinds:
            act = partial(_carry_out, found, message, asked)
            return self._notes.carry_out(asked, message, act)
        return _carry_out(found, message, asked)


def _carry_out(found: Route, message: Any, asked: OpenRequest) -> Answer:
    if found.find is None:
        return found.act(message, asked)
    group = found.find(message)
    return group if isinstance(group, ErrorReply) else found.act(message, group, asked)
