"""The pull consumer: read a topic by offset, and remember how far."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from .message import Message, Messages

Start = Literal["earliest", "latest"] | datetime | int
"""Where to begin: an end of the queue, the first message stored at or after a time (with a time
zone), or an offset."""

OnTrimmed = Literal["error", "earliest", "latest"]
"""What to do where retention has dropped the messages that would come next."""


class Consumer:
    """Reads queues of one topic. Made by `Client.consumer`; use it as `async with`.

    Messages of one queue come in order, each once, whatever leader they come from. Messages are
    fetched ahead of the application, up to `prefetch_bytes`.

    Three positions a queue: what was *fetched* ahead (internal), what was *handed* to the
    application (`position`, what `commit` commits), and what the application is *done* with: all
    that was handed before the present message or batch (what `auto_commit` commits).
    """

    async def __aenter__(self) -> Self:
        """Find the committed offsets, or where to start, and begin to fetch.

        Cancelling leaves nothing behind.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, or a queue that the topic does not have.
            Unavailable: a leader was not found in time.
        """
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End. With `auto_commit` commits what was handed, or only what is done if the body raised.

        Without it nothing is committed that `commit` did not commit.
        """
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Message]:
        """Messages one by one, without an end: `break` when you have enough."""
        raise NotImplementedError

    async def fetch(self, count: int = 500, *, wait: float = 1.0) -> Messages:
        """Up to `count` messages: what is there, at once; else what comes first within `wait`.

        Cancelling loses nothing: what was not returned is returned by the next call.

        Args:
            count: the most to return, at least 1.
            wait: seconds; 0 returns what was fetched already.

        Returns:
            An empty `Messages` if the wait ran out.

        Raises:
            Rejected: `OFFSET_OUT_OF_RANGE`, the next messages of a queue were trimmed and
                `on_trimmed` is `"error"`: raised until `seek` moves the queue.
            CorruptRecord: a batch fails its checksum: raised until `seek` moves the queue.
            Unavailable: nothing is there and a queue could not be reached for the client's
                default timeout. Calling again goes on.
        """
        raise NotImplementedError

    async def commit(
        self, offsets: Mapping[int, int] | None = None, *, timeout: float | None = None
    ) -> None:
        """Remember how far the consumer group has read: on the disks of a majority on return.

        Safe to repeat. Cancelling leaves some queues' offsets committed and others not.

        Args:
            offsets: queue → next offset to read; None: of every queue what was handed to the
                application, the present message included.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: the consumer has no group; an offset is outside of its queue.
            Unavailable, OutcomeUnknown: the time ran out; a later commit overwrites it.
        """
        raise NotImplementedError

    async def seek(
        self,
        *,
        queue: int | None = None,
        offset: int | None = None,
        time: datetime | None = None,
        to: Literal["earliest", "latest"] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Go on from elsewhere: exactly one of `offset`, `time` and `to`.

        What was fetched ahead is dropped. Nothing is committed. Cancelling leaves all as it was.

        Args:
            queue: the queue to move; None: all that this consumer reads.
            offset: the next message to read.
            time: the first message stored then or later; it needs a time zone.
            to: `"earliest"` or `"latest"`.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: the arguments contradict each other, or the queue is not read here.
            Unavailable: the leader was not found in time.
        """
        raise NotImplementedError

    @property
    def position(self) -> dict[int, int]:
        """Queue → the offset after the last message that was handed to the application."""
        raise NotImplementedError

    async def committed(self, *, timeout: float | None = None) -> dict[int, int]:
        """Queue → committed offset of this group; queues without one are left out. Linearizable.

        Raises:
            Unavailable: a leader was not found in time.
        """
        raise NotImplementedError

    async def aclose(self, *, timeout: float | None = None) -> None:
        """End as if the body had not raised. A second call does nothing."""
        raise NotImplementedError
