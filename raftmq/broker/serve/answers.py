"""Answers to requests: the results of commands, refusals, and hints to ask another node."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from raftmq.broker.replica.tickets import Callback
from raftmq.machine.machine import PartitionMachine
from raftmq.results import Changed, Refused, Result
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply

from .connection import Connection

if TYPE_CHECKING:
    from raftmq.broker.replica.group import Group


def refusal(result: Refused) -> ErrorReply:
    """The answer to a client whose command a machine refused."""
    return ErrorReply(result.reason.value, result.message, last=result.last)


def elsewhere(number: int) -> ErrorReply:
    """The refusal for a partition group that has no replica with messages on this node."""
    message = f"this node carries no replica of partition group {number}"
    return ErrorReply("not_leader", message, group=number)


def read_first(
    connection: Connection,
    frame: Frame,
    group: "Group | None",
    number: int,
    then: Callable[["Group"], None],
) -> None:
    """Call `then` once the machine of a data group is as new as this moment, or refuse.

    Args:
        connection: the connection of the request.
        frame: the request.
        group: the replica here of partition group `number`, if there is one.
        number: its number.
        then: answers; what it reads in the machine is linearizable.
    """
    if group is None or not isinstance(group.machine, PartitionMachine):
        connection.refuse(frame.correlation, elsewhere(number))
        return

    def ready(error: ErrorReply | None) -> None:
        if error is not None:
            connection.refuse(frame.correlation, error)
        else:
            then(group)

    group.read(ready)


def answering(
    connection: Connection, frame: Frame, answer: Callable[[Any], msgspec.Struct]
) -> Callback:
    """The ticket of a request's commands: the request is answered with the result of the first
    command, or with the first refusal."""

    def done(results: list[Result]) -> None:
        for result in results:
            if isinstance(result, Refused):
                connection.refuse(frame.correlation, refusal(result))
                return
        first = results[0]
        assert isinstance(first, Changed)
        connection.reply(frame.kind, frame.correlation, pack(answer(first.value)))

    return Callback(done, partial(connection.refuse, frame.correlation))
