"""Answers to requests that one command of a log decides."""

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


def answering(
    connection: Connection, frame: Frame, answer: Callable[[Any], msgspec.Struct]
) -> Callback:
    """The ticket of a command: its request is answered with what comes of it."""

    def done(results: list[Result]) -> None:
        result = results[0]
        if isinstance(result, Changed):
            connection.reply(frame.kind, frame.correlation, pack(answer(result.value)))
        else:
            assert isinstance(result, Refused)
            connection.refuse(frame.correlation, refusal(result))

    return Callback(done, partial(connection.refuse, frame.correlation))
