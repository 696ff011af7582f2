"""Every answer is looked at: it has the type of its kind, and tells nothing that it must not.

A refusal may repeat a name that the request named; a *name* of others in any other answer, and a
*content* of others in whatever answer, is a leak. Keys of passwords are told to nobody.
"""

from raftmq.errors import ProtocolError, Reason
from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import MESSAGE_CHARACTERS_MAX, REPLY, ErrorReply, FrameKind

from .corpus import ANSWERS
from .mutations import Sent
from .stage import HIDDEN, KEYS, SECRET

CODES = {reason.value for reason in Reason} | {
    "not_leader", "unavailable", "busy", "outcome_unknown", "protocol", "unknown_session",
}  # fmt: skip
"""What a refusal may say; see `messages.ErrorReply`."""


def why_not(frame: Frame, asked: Sent | None, user: str) -> str:
    """What is wrong with an answer; empty: nothing is.

    Args:
        frame: the answer.
        asked: the request of that correlation; None: there was none.
        user: the attacker.
    """
    if problem := _why_not_typed(frame, asked):
        return problem
    data = frame.header + frame.body
    if KEYS in data:
        return "a key of a password, or the digest of a token"
    if user == ADMIN:
        return ""
    if SECRET.encode() in data:
        return "a content of others"
    if HIDDEN.encode() in data and (asked is None or HIDDEN.encode() not in asked.data):
        return "a name of others, which the request did not name"
    return ""


def _why_not_typed(frame: Frame, asked: Sent | None) -> str:
    try:
        if frame.kind == FrameKind.ERROR:
            refusal = unpack(ErrorReply, frame.header)
            if refusal.code not in CODES:
                return f"a refusal with the unknown code {refusal.code!r}"
            if not refusal.message or len(refusal.message) > MESSAGE_CHARACTERS_MAX:
                return f"a refusal with {len(refusal.message)} characters"
            if asked is None and frame.correlation:
                return f"a refusal of no request ({frame.correlation})"
            return ""
        if asked is None:
            return f"an answer to no request ({frame.correlation})"
        if frame.kind != asked.kind | REPLY or asked.kind not in ANSWERS:
            return f"an answer of kind {frame.kind} to a request of kind {asked.kind}"
        unpack(ANSWERS[FrameKind(asked.kind)], frame.header)
    except ProtocolError as error:
        return f"an answer that cannot be read: {error}"
    return ""
