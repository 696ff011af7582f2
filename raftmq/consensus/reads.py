"""Linearizable reads: the leader's queue of requests that wait for a round of heartbeats.

Thesis §6.4: the leader remembers its commit index as the *read index*, makes sure by a round of
heartbeats that no newer leader had committed past it, and the read may be served once the machine
has applied that index. The context of the newest request rides on the heartbeats; when a quorum
has echoed it, that request and all before it are granted.

Invariants:
- A context names one request: equal contexts that wait at once are one request.
- Requests are granted in the order they came.

Left out: coalescing several contexts under one of our own; the shell batches its reads.

Sources: thesis §6.4; etcd-io/raft's readOnly.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class ReadRequest:
    """One waiting read. It is state."""

    requester: int
    """The node that asked: a follower, or this node's own id."""
    index: int
    """Commit index when the request came: it must be applied before the read is served."""
    context: bytes
    votes: dict[int, bool] = field(default_factory=dict)
    """The nodes that echoed the context."""


class ReadQueue:
    """The reads that wait for their quorum, oldest first, and the last roll call. It is state."""

    __slots__ = ("_requests", "answers", "roll_call")

    def __init__(self) -> None:
        self._requests: dict[bytes, ReadRequest] = {}
        self.roll_call = b""
        """The context of the last roll call."""
        self.answers: set[int] = set()
        """The members that have answered the roll call."""

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, requester: int, *, index: int, context: bytes) -> None:
        """Let a request wait; one that waits already is not changed."""
        if context not in self._requests:
            newest = self._requests.get(self.newest_context)
            assert newest is None or newest.index <= index, "a read before one that came earlier"
            self._requests[context] = ReadRequest(requester, index, context)

    def echo(self, node: int, context: bytes) -> dict[int, bool]:
        """`node` answered the heartbeat that carried `context`; returns all that did so far."""
        request = self._requests.get(context)
        if request is None:
            return {}
        request.votes[node] = True
        return request.votes

    def grant_to(self, context: bytes) -> list[ReadRequest]:
        """Take out the request of `context` and all that came before it."""
        granted: list[ReadRequest] = []
        if context in self._requests:
            for request in list(self._requests.values()):
                granted.append(self._requests.pop(request.context))
                if request.context == context:
                    break
        return granted

    @property
    def newest_context(self) -> bytes:
        """The context that the next heartbeats carry; empty if no read waits."""
        return next(reversed(self._requests)) if self._requests else b""
