"""One idempotent request to the leader of a partition group, through any number of attempts; and
the wait before another attempt.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import anyio
import msgspec

from raftmq.errors import Reason, Unavailable
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import REPLY, ErrorReply, FrameKind

from .connection import Answer, Connection, Lost
from .refusals import NOT_LEADER, OUTCOME_UNKNOWN, RETRIED, exception_of, refusal_of

R = TypeVar("R", bound=msgspec.Struct)

ATTEMPT_SECONDS_MAX = 5.0
"""A request without an answer is sent again after this time, perhaps to another leader."""


class Leaders(Protocol):
    """The router, as a call needs it."""

    async def leader(self, group: int) -> Connection:
        """An open connection to the group's leader, without a limit."""

    def not_leader(self, group: int, node: int, hint: int) -> None:
        """`node` has refused as not being the leader of `group`; `hint`: the leader, or 0."""

    async def has_queue(self, queue_number: int) -> bool:
        """True if a topic has such a queue, as the leader of the system group knows."""

    def delay(self, attempt: int) -> float:
        """Seconds to wait before the nth attempt, from 0."""


def reply_in(answer: Answer, reply: type[R]) -> R:
    """The reply in an answer.

    Raises:
        Unavailable: the connection broke.
        RaftmqError: the node refused.
    """
    if isinstance(answer, Lost):
        raise Unavailable(answer.why)
    refusal = refusal_of(answer)
    if refusal is not None:
        raise exception_of(refusal)
    return unpack(reply, answer.header)


async def wait_leader(
    leaders: Leaders, group: int, failures: int, retry_seconds: float
) -> Connection:
    """Wait, then give an open connection to a group's leader, for a request that has failed;
    without a limit.

    Args:
        leaders: the router.
        group: the partition group.
        failures: of the request, this one among them: the more, the longer is the wait before.
        retry_seconds: the shortest wait, as the node asked for it (`retry_ms`).
    """
    # The first retry has no delay: the hint of a new leader is usually right.
    if failures > 1 or retry_seconds > 0:
        await anyio.sleep(max(retry_seconds, leaders.delay(failures)))
    return await leaders.leader(group)


class LeaderCall:
    """One request, through any number of attempts."""

    def __init__(
        self,
        leaders: Leaders,
        group: int,
        kind: FrameKind,
        header: bytes,
        refusal_in: Callable[[Frame], ErrorReply | None],
        queue_number: int | None,
        body: Sequence[bytes] = (),
    ) -> None:
        self._refusal_in = refusal_in
        self._queue_number = queue_number
        self._leaders = leaders
        self._group = group
        self._kind = kind
        self._header = header
        self._body = body
        self._attempt = 0
        self.is_doubtful = False
        """True if an attempt may have taken effect."""
        self.why = ""
        """Why the last attempt failed; empty: none failed."""

    async def run(self) -> Frame:
        """Try until an answer comes; raise a final refusal."""
        while True:
            connection = await self._leaders.leader(self._group)
            doubtful = self.is_doubtful
            # Stays True if the caller's time runs out inside `call`, after the request left.
            self.is_doubtful = True
            answer: Answer = Lost(was_written=True, why=f"node {connection.node} did not answer")
            with anyio.move_on_after(ATTEMPT_SECONDS_MAX):
                answer = await connection.call(self._kind, self._header, self._body)
            self.is_doubtful = doubtful
            if isinstance(answer, Lost):
                self.is_doubtful = doubtful or answer.was_written
                self.why = answer.why
                if self._attempt:
                    await anyio.sleep(self._leaders.delay(self._attempt))
            else:
                refusal = self._refusal(answer)
                if refusal is None:
                    return answer
                await self._refused(connection, refusal)
            self._attempt += 1

    def _refusal(self, answer: Frame) -> ErrorReply | None:
        if answer.kind == self._kind | REPLY:
            return self._refusal_in(answer)
        return refusal_of(answer) or ErrorReply("protocol", f"answer of kind {answer.kind}")

    async def _refused(self, connection: Connection, refusal: ErrorReply) -> None:
        is_final = refusal.code not in RETRIED
        if refusal.code == Reason.UNKNOWN_TOPIC.value and self._queue_number is not None:
            # A node may not know a new topic yet: only the system group's leader is believed.
            is_final = not await self._leaders.has_queue(self._queue_number)
        if is_final:
            raise exception_of(refusal)
        self.why = refusal.message
        # The request is in the log of a leader that lost its office: it may be committed yet.
        if refusal.code == OUTCOME_UNKNOWN:
            self.is_doubtful = True
        if refusal.code == NOT_LEADER:
            self._leaders.not_leader(self._group, connection.node, refusal.leader)
            # The first retry has no delay: the hint of a new leader is usually right.
            if self._attempt == 0:
                return
        # `wait_leader` would ask again at once after a first refusal, and a node that is busy, or
        # does not know yet who leads, would refuse again.
        await anyio.sleep(max(refusal.retry_ms / 1000, self._leaders.delay(self._attempt)))
