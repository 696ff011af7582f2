"""Answers to requests: what commands of a log come to, and who must be asked instead."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from raftmq.pop.results import Changed, Refused, Result
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply

from .connection import Connection
from .tickets import Callback


def refusal(result: Refused) -> ErrorReply:
    """What a machine refused, as clients are told."""
    return ErrorReply(result.reason.value, result.message)


def elsewhere(number: int) -> ErrorReply:
    """A partition group that is not on this node, or not with its data."""
    message = f"this node carries no replica of partition group {number}"
    return ErrorReply("not_leader", message, group=number)


def answering(
    connection: Connection, frame: Frame, answer: Callable[[Any], msgspec.Struct]
) -> Callback:
    """The ticket of commands: their request is answered with what comes of the first one, or with
    the first refusal."""

    def done(results: list[Result]) -> None:
        for result in results:
            if isinstance(result, Refused):
                connection.refuse(frame.correlation, refusal(result))
                return
        first = results[0]
        assert isinstance(first, Changed)
        connection.reply(frame.kind, frame.correlation, pack(answer(first.value)))

    return Callback(done, partial(connection.refuse, frame.correlation))
