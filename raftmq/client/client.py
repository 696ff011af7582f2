"""The client: one object for a cluster, which owns connections and background tasks."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import Self

from raftmq.batch import Compression

from .admin import Admin
from .consumer import Consumer, OnTrimmed, Start
from .message import Message
from .producer import Producer
from .world import ClientWorld


class Client:
    """A cluster, seen from outside. Made by `connect`."""

    admin: Admin
    """Topics, consumer groups, nodes."""

    def producer(
        self,
        topic: str,
        *,
        linger: float | None = None,
        batch_bytes: int = 256 * 1024,
        batch_messages: int = 10_000,
        buffer_bytes: int = 32 * 1024 * 1024,
        buffer_messages: int = 262_144,
        compression: Compression = Compression.NONE,
    ) -> Producer:
        """A producer for one topic, to be used as `async with`.

        Args:
            topic: its name.
            linger: seconds to gather messages for a batch; None: only while an answer is awaited.
            batch_bytes: a batch of this size goes out; a larger message goes alone.
            batch_messages: likewise for the number of messages, at most 65,536.
            buffer_bytes: bytes that may wait for their answer; then `send` waits for room.
            buffer_messages: likewise for the number of messages.
            compression: of the bodies.
        """
        raise NotImplementedError

    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        mode: str = "pull",
        queues: Sequence[int] | None = None,
        start: Start = "earliest",
        on_trimmed: OnTrimmed = "error",
        auto_commit: float | None = None,
        prefetch_bytes: int = 8 * 1024 * 1024,
    ) -> Consumer:
        """A consumer of one topic, to be used as `async with`.

        Args:
            topic: its name.
            group: under which name offsets are committed; None: nothing is remembered.
            mode: only `"pull"` exists.
            queues: the queues to read, from 0; None: all, and those added later.
            start: where a queue begins for which the group has committed nothing.
            on_trimmed: what to do where retention has dropped the next messages: raise, or go on
                at an end of the queue.
            auto_commit: commit so often, in seconds, what the application is done with; None: only
                `commit` commits.
            prefetch_bytes: how much may be fetched ahead of the application.

        Raises:
            Rejected: `BAD_ARGUMENT`, another mode or value; the message names what exists.
        """
        raise NotImplementedError

    async def get(self, message_id: str, *, timeout: float | None = None) -> Message:
        """The message of this id. Cancelling leaves nothing behind.

        Raises:
            Rejected: the id is none (`BAD_ARGUMENT`), its topic is gone (`UNKNOWN_TOPIC`), or
                there is no such message (any more) (`OFFSET_OUT_OF_RANGE`).
            Unavailable: the leader was not found in time.
        """
        raise NotImplementedError

    async def find(
        self,
        topic: str,
        *,
        key: str,
        since: datetime | None = None,
        limit: int = 100,
        timeout: float | None = None,
    ) -> list[Message]:
        """The newest messages with this key, newest first. Cancelling leaves nothing behind.

        Args:
            topic: its name.
            key: the key.
            since: only messages stored then or later; it needs a time zone.
            limit: the most to return.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
            Unavailable: a leader was not found in time.
        """
        raise NotImplementedError


class _Connecting(AbstractAsyncContextManager[Client]):
    async def __aenter__(self) -> Client:
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError


def connect(
    url: str, *, timeout: float = 30.0, cluster: str = "", world: ClientWorld | None = None
) -> AbstractAsyncContextManager[Client]:
    """`async with connect(url) as mq:` opens a cluster, on trio or asyncio.

    Entering waits until one node has answered. Leaving closes every connection; producers and
    consumers should have been left before. What goes wrong in the background is raised by the
    calls that it concerns, and never by this block itself.

    Args:
        url: `raftmq://host:port[,host:port...]`, any nodes of the cluster; the port may be left
            out (7400).
        timeout: seconds; the default of every call.
        cluster: refuse a cluster of another id; empty: take any.
        world: the network, clock and randomness to use; None: the real ones.

    Raises:
        Rejected: the URL is wrong (`BAD_ARGUMENT`), or it is another cluster (`WRONG_CLUSTER`).
        Unavailable: no node answered in time.
    """
    raise NotImplementedError


_Self = Self
