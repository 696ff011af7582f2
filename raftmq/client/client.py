"""The client: one object for a cluster, which owns connections and background tasks.

`connect` opens one task group in the application's task. All background work of the client, its
producers and consumers lives there (`supervisor`), and ends with the block. The block raises what
its body raised, unwrapped: the task group never sees the body's exception.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from raftmq.batch import Compression
from raftmq.errors import RaftmqError, Reason, Rejected
from raftmq.filters import is_tags

from .address import parse_url
from .admin import Admin
from .consumer import Consumer, ConsumerSettings, OnTrimmed, Start
from .lookup import find_by_key, get_message
from .message import Message
from .producer import Producer, ProducerSettings
from .router import Router
from .supervisor import Supervisor
from .world import ClientWorld, RealWorld


class Client:
    """A cluster, seen from outside. Made by `connect`."""

    admin: Admin
    """Topics, consumer groups, nodes."""

    def __init__(self, router: Router, supervisor: Supervisor, world: ClientWorld) -> None:
        self._router = router
        self._supervisor = supervisor
        self._world = world
        self.admin = Admin(router)

    def producer(
        self,
        topic: str,
        *,
        linger: float | None = None,
        batch_bytes: int = 1024 * 1024,
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
        settings = ProducerSettings(
            linger, batch_bytes, batch_messages, buffer_bytes, buffer_messages, compression
        )
        return Producer(
            topic, settings, router=self._router, supervisor=self._supervisor, world=self._world
        )

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
        filter: str | None = None,  # noqa: A002  # what users call it
        tags: str | None = None,
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
            filter: what the group wants, as SQL (`amount > 5 AND city = 'Paris'`) or tags. Opening
                the consumer subscribes the whole group to it, in place of what it subscribed to
                before; see `Admin.subscribe`. None: what it has subscribed to already, if anything.
            tags: the same for a filter that is tags: `paid || shipped`.

        Raises:
            Rejected: `BAD_ARGUMENT`, another mode or value; the message names what exists.
            FilterSyntaxError: the filter cannot be read; it is a `Rejected`.
        """
        if mode != "pull":
            message = f"mode {mode!r} does not exist: the only mode is 'pull'"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        settings = ConsumerSettings(
            group,
            None if queues is None else tuple(queues),
            start,
            on_trimmed,
            auto_commit,
            prefetch_bytes,
            _wish(filter, tags),
        )
        return Consumer(topic, settings, router=self._router, supervisor=self._supervisor)

    async def get(self, message_id: str, *, timeout: float | None = None) -> Message:
        """The message of this id. Cancelling leaves nothing behind.

        Raises:
            Rejected: the id is none (`BAD_ARGUMENT`), its topic is gone (`UNKNOWN_TOPIC`), or
                there is no such message (any more) (`OFFSET_OUT_OF_RANGE`).
            Unavailable: the leader was not found in time.
        """
        return await get_message(self._router, message_id, timeout)

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
        return await find_by_key(
            self._router, topic, key=key, since=since, limit=limit, timeout=timeout
        )


def _wish(sql: str | None, tags: str | None) -> str | None:
    """The filter that `filter=` or `tags=` gives."""
    if tags is None:
        return sql
    if sql is not None:
        raise Rejected(Reason.BAD_ARGUMENT, "give filter= or tags=, not both")
    if not is_tags(tags):
        message = f"{tags[:80]!r} is no list of tags, as 'paid || shipped': give filter= for SQL"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return tags


class _Connecting(AbstractAsyncContextManager[Client]):
    """What `connect` gives."""

    def __init__(self, router: Router, world: ClientWorld) -> None:
        self._router = router
        self._world = world
        self._tasks: TaskGroup | None = None
        self._supervisor: Supervisor | None = None

    async def __aenter__(self) -> Client:
        if self._tasks is not None:
            raise RaftmqError("a connection is used once: call connect() again")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            supervisor = self._supervisor = Supervisor(self._tasks)
            self._router.start(supervisor.nest(lambda _: self._router.close()))
            contact = self._router.first_contact()
            await self._router.within(None, contact, "a first contact with the cluster")
        except BaseException:
            await self._end(self._tasks)
            raise
        return Client(self._router, supervisor, self._world)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        await self._end(self._tasks)

    async def _end(self, tasks: TaskGroup) -> None:
        """End all background tasks. The body's exception stays outside, or it would be wrapped."""
        if self._supervisor is not None:
            self._supervisor.close()
        self._router.close()
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)


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
    world = world or RealWorld()
    router = Router(world, parse_url(url), cluster=cluster, seconds_max=timeout)
    return _Connecting(router, world)
