"""Tickets: callbacks that wait for a record to be committed and applied.

A ticket is handed in with a proposal and used once: `done` with the results of applying the record,
or `failed` with the reason why the record was refused or its outcome is unknown.
"""

from collections.abc import Callable
from typing import Protocol

from raftmq.results import Result
from raftmq.wire.messages import ErrorReply

RETRY_SECONDS = 0.2
"""Pause before a leader tries its own upkeep again, if the refusal names no time."""


def retry_seconds(error: ErrorReply) -> float:
    """Seconds to wait before a refused proposal is tried again.

    Never zero: the reason for a refusal (a hand-over, a stop, a full disk, no quorum) lasts, and
    the loop has other work to do meanwhile.
    """
    return error.retry_ms / 1000 if error.retry_ms > 0 else RETRY_SECONDS


class Ticket(Protocol):
    """A callback that waits for the outcome of a proposal."""

    def done(self, results: list[Result]) -> None:
        """The record is committed, and applying it gave these results."""

    def failed(self, error: ErrorReply) -> None:
        """The proposal was refused without effect, or (`outcome_unknown`) its fate is unknown."""


class Callback:
    """A ticket that calls one of two functions."""

    __slots__ = ("_on_done", "_on_failed")

    def __init__(
        self,
        on_done: Callable[[list[Result]], None],
        on_failed: Callable[[ErrorReply], None],
    ) -> None:
        self._on_done = on_done
        self._on_failed = on_failed

    def done(self, results: list[Result]) -> None:
        """Call the first function."""
        self._on_done(results)

    def failed(self, error: ErrorReply) -> None:
        """Call the second function."""
        self._on_failed(error)


class Shared:
    """The ticket of a record with commands of many requests."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: list[Ticket | None]) -> None:
        self._tickets = tickets

    def done(self, results: list[Result]) -> None:
        """Give each ticket the result of its command."""
        for ticket, result in zip(self._tickets, results, strict=True):
            if ticket is not None:
                ticket.done([result])

    def failed(self, error: ErrorReply) -> None:
        """Fail each ticket with the error."""
        for ticket in self._tickets:
            if ticket is not None:
                ticket.failed(error)
