"""Messages with which consumers read queues: see `raftmq.broker.serve.fetch_sessions`."""

import msgspec

from .messages import ErrorReply, _Wire
from .numbers import Bounded

NO_SESSION = -1
"""The epoch of a `Fetch` without a session."""
UNKNOWN_SESSION = "unknown_session"
"""The code of an `ErrorReply` to a `Fetch` whose session is not kept."""


class FetchFrom(_Wire, frozen=True):
    """One queue of a `Fetch`."""

    queue: int
    """The queue's number."""
    offset: int
    """The first offset wanted; the answer starts with the batch that contains it."""


class Fetch(_Wire, frozen=True):
    """Read batches of queues led by this node, waiting until there is something to read."""

    queues: Bounded[FetchFrom]
    """The queues to read. The node that is asked must lead their partition groups. In a session
    that goes on: only queues that are new, or are to be read from another offset."""
    wait_ms: int
    """Milliseconds to wait when nothing is there, cut to the node's limit; 0 answers at once."""
    bytes_max: int
    """Bytes of the body from which on no batch is added, cut to the node's limit; one batch is
    always given."""
    consumer_group: str = ""
    """The consumer group that reads: if the group has subscribed to a queue's topic, it gets only
    batches with a message that matches. Empty: all batches."""
    subscribed: int = 0
    """The version of the group's subscription, as `Subscribe` gave it: wait until the queues' log
    knows it. 0: any version. In a session, group and version of its first request hold."""
    session: int = 0
    """The session that goes on, as `Fetched` named it; 0: none yet. A session of more queues than
    one request may name is not kept."""
    epoch: int = NO_SESSION
    """-1: without a session, or the end of `session`. 0: begin one. From 1 on: the number of the
    request within the session, of which one is open at a time; any other number is refused with
    `unknown_session`, and the client begins again."""
    forgotten: Bounded[int] = msgspec.field(default_factory=list)
    """Queues that leave the session. A queue that was answered with an error has left it."""


class FetchedQueue(_Wire, frozen=True):
    """The batches read of one queue; they stand in the body, in `Fetched.queues` order."""

    queue: int
    """The queue's number."""
    earliest: int
    """The first offset still kept."""
    end: int
    """The offset after the last committed message."""
    bases: bytes
    """Offset of each batch's first message: little-endian u64 vector."""
    timestamps: bytes
    """The leader's stamp of each batch, milliseconds since 1970: little-endian i64 vector."""
    sizes: bytes
    """Bytes of each batch in the body: little-endian u32 vector."""
    error: ErrorReply | None = None
    """Why this queue could not be read; the vectors are empty then."""
    next: int = -1
    """If the group has subscribed: the offset to go on from; messages before it that were not sent
    do not match. -1: no filter was applied."""
    masks: bytes = b""
    """If the group has subscribed: for each batch (messages + 7) / 8 bytes, one bit a message,
    lowest bit first: 1 says that it matches. Messages before the offset asked for have 0."""


class Fetched(_Wire, frozen=True):
    """The answer to `Fetch`; empty when the wait ran out."""

    queues: list[FetchedQueue]
    """One entry for each queue with batches or an error."""
    session: int = 0
    """The session; its offsets are now the end of each queue's last batch, or `next`. 0: the
    session was not kept."""
    throttle_ms: int = 0
    """Milliseconds for which a quota held the request."""
