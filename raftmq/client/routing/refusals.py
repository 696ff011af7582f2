"""The meaning of an `ErrorReply` to a client: a retry, or an exception to raise; and requests that
are refused before they are sent.
"""

import msgspec

from raftmq.errors import ProtocolError, RaftmqError, Reason, Rejected, Unavailable
from raftmq.pop.actions import REASON_CHARACTERS_MAX, Action
from raftmq.wire.codec import Misfit, pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.popping import SettleItem

NOT_LEADER = "not_leader"
OUTCOME_UNKNOWN = "outcome_unknown"
NOTHING_HAPPENED = frozenset({NOT_LEADER, "unavailable", "busy"})
"""Codes of requests that were not done, and are worth another try."""
IN_DOUBT = frozenset({OUTCOME_UNKNOWN, "protocol"})
"""Codes of requests that may have been done."""
RETRIED = NOTHING_HAPPENED | {OUTCOME_UNKNOWN}
"""Codes after which an idempotent request is sent again."""
ASKED_AGAIN = RETRIED | {"protocol"}
"""Those after which a standing request goes out again, to a leader that is looked for."""
SURE = frozenset(
    {
        Reason.BAD_NAME,
        Reason.BAD_FILTER,
        Reason.CORRUPT_BATCH,
        Reason.FELL_DUE,
    }
)
"""Reasons that no earlier attempt of the request can have caused by taking effect: a fault of the
request itself, or an outcome that excludes the requested one."""


class Overtaken(Rejected):
    """Another process has numbered a request higher."""

    def __init__(self, reason: Reason, message: str, last: int) -> None:
        super().__init__(reason, message)
        self.last = last
        """The number to go above."""


def refusal_of(frame: Frame) -> ErrorReply | None:
    """The refusal in an answer; None if the answer is no refusal."""
    return unpack(ErrorReply, frame.header) if frame.kind == FrameKind.ERROR else None


def exception_of(error: ErrorReply) -> RaftmqError:
    """The exception to raise for a refusal that is not tried again."""
    if error.code in RETRIED:
        return Unavailable(error.message)
    if error.code == "protocol":
        return ProtocolError(error.message)
    try:
        reason = Reason(error.code)
    except ValueError:
        return ProtocolError(f"refused for a reason unknown here, {error.code!r}: {error.message}")
    if error.last:
        return Overtaken(reason, error.message, error.last)
    return Rejected(reason, error.message)


def header_of(message: msgspec.Struct) -> bytes:
    """The header of a request that holds values of the application.

    Raises:
        Rejected: `BAD_ARGUMENT`, a field has another type; the text names it. Nothing was sent.
    """
    try:
        header = pack(message)
        unpack(type(message), header)
    except Misfit as error:
        raise Rejected(Reason.BAD_ARGUMENT, str(error)) from error
    except (ProtocolError, TypeError, ValueError, OverflowError) as error:
        # A number beyond 64 bits is packed, and is not plain CBOR.
        text = f"{type(message).__name__} has a value that cannot be sent: {error}"
        raise Rejected(Reason.BAD_ARGUMENT, text) from error
    return header


def reason_of(reason: str) -> str:
    """The reason of a rejection, cut to the length that the machine keeps.

    Raises:
        Rejected: `BAD_ARGUMENT`, the reason is no Unicode text.
    """
    if reason != "":
        header_of(SettleItem(Action.REJECT, 0, reason=reason))
    return reason[:REASON_CHARACTERS_MAX]


def is_refused(error: BaseException | None) -> bool:
    """True if a connection failed because no process listens, at any address of the name."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_refused, error.exceptions))
    if isinstance(error, ConnectionRefusedError):
        return True
    return error is not None and is_refused(error.__cause__)


def over_limit(action: Action, asked_ms: int) -> Rejected:
    """The error of a settlement whose time the machine refuses, with the asked time and bounds."""
    bounds = "a lease ends within 12 h from now" if action is Action.EXTEND else "0 s to 7 days"
    asked = f"{action.name.lower()} by {asked_ms / 1000:g} s"
    return Rejected(Reason.BAD_ARGUMENT, f"{asked} is out of range: {bounds}")
