"""The client's end of a fetch session: a fetch names only the queues that changed.

The other half is `raftmq.broker.serve.fetch_sessions`. One request is open at a time, and each is
answered, so both ends agree about the offsets: the node moves them past the batches that it sends,
the client past the batches that it takes. If the client's queues change while a request waits, the
client *recalls* the request: the node answers at once, and the next request names the change.

Invariants:
- A queue whose cursor moved since its last request is named again, with its offset.
- A queue that was answered with an error has left the session at both ends.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from raftmq.client.routing.connection import Connection, Request
from raftmq.wire.codec import pack
from raftmq.wire.fetches import NO_SESSION, Fetch, FetchFrom
from raftmq.wire.messages import FrameKind

from .positions import Cursor


class Difference(NamedTuple):
    """Changes that the node does not know yet."""

    queues: list[FetchFrom]
    forgotten: list[int]


class ReadSession:
    """A consumer's session at one node."""

    __slots__ = (
        "connection",
        "epoch",
        "is_recalled",
        "known",
        "number",
        "place",
        "request",
        "touched",
        "wanted",
    )

    def __init__(self, connection: Connection, place: int) -> None:
        self.connection = connection
        """The connection to the node, with which the session ends."""
        self.place = place
        """The session's place among the consumer's sessions on the connection, from 0."""
        self.number = 0
        """The node's number of the session; 0: the node keeps none."""
        self.epoch = 0
        """The epoch of the next request; 0: the request names all queues."""
        self.known: dict[int, tuple[Cursor, int]] = {}
        """Queue → the cursor, and the version of the cursor that the node reads from."""
        self.wanted: dict[int, Cursor] = {}
        """The queues to read here, as `want` set them last."""
        self.touched: dict[int, None] = {}
        """The queues to compare for the next request."""
        self.request: Request | None = None
        """The open request."""
        self.is_recalled = False
        """True if the open request is to be answered at once."""

    def want(self, wanted: dict[int, Cursor]) -> None:
        """Read these queues here, and no others."""
        self.wanted = wanted
        is_same = len(wanted) == len(self.known) and all(
            self.known.get(queue) == (cursor, cursor.version) for queue, cursor in wanted.items()
        )
        if is_same:
            return
        self.touched.update(dict.fromkeys(self.known))
        self.touched.update(dict.fromkeys(wanted))
        if self.request is not None and not self.is_recalled:
            self.is_recalled = True
            self.connection.recall(self.request)

    def difference(self, lost: Mapping[int, float]) -> Difference:
        """The changes for the next request, which count as sent; `lost`: groups to leave out."""
        if self.epoch == 0:
            self.known.clear()
            self.touched = dict.fromkeys(self.wanted)
        queues: list[FetchFrom] = []
        forgotten: list[int] = []
        for queue in self.touched:
            cursor = self.wanted.get(queue)
            if cursor is None or cursor.error is not None or cursor.group in lost:
                if self.known.pop(queue, None) is not None:
                    forgotten.append(queue)
            elif self.known.get(queue) != (cursor, cursor.version):
                self.known[queue] = cursor, cursor.version
                queues.append(FetchFrom(queue, cursor.fetched))
        self.touched = {}
        return Difference(queues, forgotten)

    def answered(self, number: int, queues: Iterable[int]) -> None:
        """The node answered with these queues, and named the session."""
        self.number = number
        self.epoch = self.epoch + 1 if number else 0
        self.touched.update(dict.fromkeys(queues))

    def begin_again(self, *, is_known: bool = True) -> None:
        """The next request names all queues. A session that the node knows ends there: a node that
        refuses many requests would keep as many of them."""
        if self.number and is_known and self.connection.is_open:
            last = Fetch([], 0, 0, session=self.number, epoch=NO_SESSION)
            self.connection.post(FrameKind.FETCH, pack(last), (), lambda _: None)
        self.number = self.epoch = 0

    def end(self) -> None:
        """Make the node forget the session."""
        if self.request is not None:
            self.connection.recall(self.request)
        else:
            self.begin_again()
