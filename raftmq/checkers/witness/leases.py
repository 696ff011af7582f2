"""Leases of one client: messages that it popped, and how it settled them.

Tokens of a queue's leases rise. So a message that comes again under a higher token than the one
that acknowledged it came after the ack; and a message that comes again under a higher token while
the one before surely ran was handed out twice.

Others may be the cause: an operator resets the group, or another process settles the message by its
handle. So both are *suspicions*, which the caller asks the system's own records about.

Invariants:
- Every table has a bound. A forgotten entry makes a verdict weaker, never wrong, and is counted.

Left out: messages of one lease that come to another client; order; attempts and dead letters; the
books of a group. The checkers of histories judge these.
"""

from typing import NamedTuple

from .recent import Recent

LEASES_MAX = 100_000
"""Messages in hand, and messages acknowledged, 320 and 240 bytes each."""
SUSPICIONS_MAX = 100
"""Suspicions that wait for their confirmation."""
STALL_SECONDS = 1.0
"""A lease may have ended this much before the client's clock says so: its answer took time."""

Key = tuple[str, int, int]
"""Group, queue number, offset."""


class Suspicion(NamedTuple):
    """A message that may have been handed out wrongly."""

    anomaly: str
    """A name of the dictionary."""
    fact: str
    """One sentence on what happened."""
    group: str
    queue: int
    offset: int
    first: int
    """The token that acknowledged the message, or had it in hand."""
    second: int
    """The higher token under which the message came again."""


class Leases:
    """The messages that one client popped."""

    def __init__(self) -> None:
        self.suspicions: list[Suspicion] = []
        """Those that are neither confirmed nor refuted yet; the caller removes them."""
        self.held: Recent[Key, tuple[int, float]] = Recent(LEASES_MAX)
        """Messages in hand: the token, and the end of the lease by the client's clock."""
        self.done: Recent[Key, int] = Recent(LEASES_MAX)
        """Acknowledged messages: the token."""
        self.handed = 0
        """Messages popped."""
        self.acked = 0
        """Messages acknowledged."""
        self.unclear = 0
        """Suspicions that no record confirms or refutes."""

    def popped(self, key: Key, place: str, *, token: int, now: float, until: float) -> None:
        """A message was handed out; `now` and `until`, the lease's end, by one clock of seconds."""
        group, queue, offset = key
        self.handed += 1
        acked_by, (held_by, ends) = self.done.get(key), self.held.get(key) or (0, 0.0)
        told = f"consumer group {group} was given {place} under token {token}"
        if acked_by is not None and token > acked_by:
            fact = f"{told}, after token {acked_by} had acknowledged it"
            self._suspect(
                Suspicion("redelivered-after-ack", fact, group, queue, offset, acked_by, token)
            )
        elif 0 < held_by < token and now < ends - STALL_SECONDS:
            fact = f"{told}, while token {held_by} had it in hand for {ends - now:.1f} s more"
            self._suspect(Suspicion("two-leases", fact, group, queue, offset, held_by, token))
        if token >= held_by:
            self.held.put(key, (token, until))

    def left(self, key: Key, token: int) -> None:
        """A settlement begins that may end the lease."""
        held = self.held.get(key)
        if held is not None and held[0] == token:
            self.held.pop(key)

    def acknowledged(self, key: Key, token: int) -> None:
        """The answer to an ack says that this token settled the message."""
        self.acked += 1
        self.done.put(key, max(token, self.done.get(key) or 0))

    def _suspect(self, suspicion: Suspicion) -> None:
        if len(self.suspicions) < SUSPICIONS_MAX:
            self.suspicions.append(suspicion)
        else:
            self.unclear += 1
