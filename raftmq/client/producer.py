"""The producer: `send`, `send_nowait` and `flush`, `send_many`."""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from raftmq.batch import Compression, Value

from .message import Message
from .parcel import PendingSend
from .receipts import Outgoing, PendingMany, Receipt, SentMany


class Producer:
    """Sends messages to one topic. Made by `Client.producer`; use it as `async with`.

    *Which queue.* A message with a key goes to queue `crc32c(key) % queues`; one without goes to
    the producer's current queue, which changes with every batch, so that batches are full and
    queues are used alike. `queue=` overrides both.

    *Order.* Messages of one producer to one queue are stored in the order of the calls, each once,
    whatever is retried. Two calls that run at the same time have no order.

    *Batches.* By default a message goes out at once if nothing of its queue is under way, else it
    is gathered with others until the answer comes (as Nagle's algorithm does); with `linger` it is
    gathered for so many seconds. A batch that reaches `batch_bytes` or `batch_messages` goes out at
    once.

    *Bounds.* At most `buffer_bytes` and `buffer_messages` wait for their answer.
    """

    async def __aenter__(self) -> Self:
        """Look the topic up. Cancelling leaves nothing behind.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
            Unavailable: no node answered in time.
        """
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close: flush first, and raise what `flush` raises, unless the body already raised."""
        raise NotImplementedError

    async def send(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message and wait until it is on the disks of a majority.

        Waits for room if the buffer is full. Cancelling takes the message back if it was not
        written to a connection yet; else it may or may not be stored.

        Args:
            body: may be empty.
            key: text, or bytes that are its UTF-8.
            tag: one label.
            props: integers of 64 bits, floats, booleans, strings, bytes; None leaves a name out.
            queue: the queue within the topic, from 0.
            timeout: seconds; None: the client's default.

        Raises:
            Unavailable: the time ran out before the message was written: it is not stored, now or
                ever.
            OutcomeUnknown: the time ran out, or the broker forgot this producer, after the message
                was written. It was stored, or may be until the next message of its queue is.
            Rejected: the message is too large, has a value that no column can hold, or the topic
                is gone.
        """
        raise NotImplementedError

    def send_nowait(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> PendingSend:
        """Take one message to be sent; what became of it is told by `wait` of what is returned.

        An error that nobody waited for is raised by the next `flush`, or at the end.

        Raises:
            Unavailable: the buffer is full: `await flush()` first. The message was not taken.
            Rejected: as `send`.
        """
        raise NotImplementedError

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send all that waits, without lingering, and wait until what became of it is known.

        Cancelling stops the waiting, not the sending.

        Raises:
            Unavailable, OutcomeUnknown, Rejected: the first error of a message sent by a `_nowait`
                call since the last flush whose `wait` was not called.
            OutcomeUnknown: the time ran out; the messages stay under way.
        """
        raise NotImplementedError

    async def send_many(
        self,
        messages: Iterable[bytes | Outgoing | Message] = (),
        *,
        bodies: Sequence[bytes] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        props: Sequence[Mapping[str, Value | None] | None] | None = None,
        queue: int | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> SentMany:
        """Send many messages and wait for all of them. The fast way in.

        Give either `messages` or the columns (`bodies` and, each as long, `keys`, `tags`, `props`).
        Messages of one queue keep their order. Those without a key go to the queues in turn, a
        batch to each. Cancelling takes back the batches that were not written yet.

        Returns:
            One receipt or error a message, as ranges.

        Raises:
            SomeUnsent: not all were stored; its `sent` is what would have been returned. With
                `check=False` it is returned instead, errors and all.
            Rejected: a message cannot be encoded; nothing was sent.
        """
        raise NotImplementedError

    def send_many_nowait(
        self,
        messages: Iterable[bytes | Outgoing | Message] = (),
        *,
        bodies: Sequence[bytes] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        props: Sequence[Mapping[str, Value | None] | None] | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> PendingMany:
        """As `send_many`, without waiting: keep several under way and `wait` for each.

        Raises:
            Unavailable: the buffer has no room for all of them; none was taken.
            Rejected: a message cannot be encoded; none was taken.
        """
        raise NotImplementedError

    async def aclose(self, *, timeout: float | None = None) -> None:
        """Flush and end. A second call does nothing. Cancelling ends it without waiting.

        Raises:
            As `flush`.
        """
        raise NotImplementedError


_ = Compression
