"""The client for plain code: the same names, without await.

A thread of its own runs the event loop (anyio's blocking portal); every call waits for it. Objects
may be used from several threads. Receipts, messages and errors are those of the async client.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from raftmq.batch import Value
from raftmq.wire.messages import ClusterView

from .admin import Admin, ConsumerGroup, OffsetChange, TopicDescription, TopicInfo
from .client import Client
from .client import connect as connect_async
from .consumer import Consumer, Start
from .message import Message, Messages
from .parcel import PendingSend
from .producer import Producer
from .receipts import Outgoing, PendingMany, Receipt, SentMany
from .subscriptions import Subscription

T = TypeVar("T")


class _Loop:
    """The event loop in the other thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal

    def wait(self, job: Callable[[], Awaitable[T]]) -> T:
        """Run an async call there and wait for it."""
        result: T = self.portal.call(job)
        return result

    def call(self, job: Callable[[], T]) -> T:
        """Run a call that does not wait there."""
        result: T = self.portal.call(job)
        return result


class BlockingPending:
    """A message that `send_nowait` took."""

    def __init__(self, loop: _Loop, pending: PendingSend) -> None:
        self._loop = loop
        self._pending = pending

    @property
    def is_done(self) -> bool:
        """True once it is known what became of the message."""
        return self._pending.is_done

    def wait(self, timeout: float | None = None) -> Receipt:
        """See `PendingSend.wait`."""
        return self._loop.wait(partial(self._pending.wait, timeout))


class BlockingPendingMany:
    """Messages that `send_many_nowait` took."""

    def __init__(self, loop: _Loop, pending: PendingMany) -> None:
        self._loop = loop
        self._pending = pending

    @property
    def is_done(self) -> bool:
        """True once it is known what became of each message."""
        return self._pending.is_done

    def wait(self, *, check: bool = True) -> SentMany:
        """See `PendingMany.wait`."""
        return self._loop.wait(partial(self._pending.wait, check=check))


class BlockingProducer:
    """See `raftmq.Producer`; use it as `with`."""

    def __init__(self, loop: _Loop, producer: Producer) -> None:
        self._loop = loop
        self._producer = producer
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._loop.portal.wrap_async_context_manager(self._producer))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def send(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """See `Producer.send`."""
        send = partial(self._producer.send, key=key, tag=tag, props=props)
        return self._loop.wait(partial(send, body, queue=queue, timeout=timeout))

    def send_nowait(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> BlockingPending:
        """See `Producer.send_nowait`."""
        send = partial(self._producer.send_nowait, key=key, tag=tag, props=props)
        pending = self._loop.call(partial(send, body, queue=queue, timeout=timeout))
        return BlockingPending(self._loop, pending)

    def flush(self, *, timeout: float | None = None) -> None:
        """See `Producer.flush`."""
        self._loop.wait(partial(self._producer.flush, timeout=timeout))

    def send_many(
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
        """See `Producer.send_many`."""
        send = partial(self._producer.send_many, bodies=bodies, keys=keys, tags=tags, props=props)
        return self._loop.wait(partial(send, messages, queue=queue, check=check, timeout=timeout))

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
    ) -> BlockingPendingMany:
        """See `Producer.send_many_nowait`."""
        send = partial(
            self._producer.send_many_nowait, bodies=bodies, keys=keys, tags=tags, props=props
        )
        pending = self._loop.call(partial(send, messages, queue=queue, timeout=timeout))
        return BlockingPendingMany(self._loop, pending)


class BlockingConsumer:
    """See `raftmq.Consumer`; use it as `with`, and iterate with `for`."""

    def __init__(self, loop: _Loop, consumer: Consumer) -> None:
        self._loop = loop
        self._consumer = consumer
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._loop.portal.wrap_async_context_manager(self._consumer))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, without an end: `break` when you have enough."""
        while True:
            yield self._loop.wait(self._consumer.__anext__)

    def fetch(self, count: int = 500, *, wait: float = 1.0) -> Messages:
        """See `Consumer.fetch`."""
        return self._loop.wait(partial(self._consumer.fetch, count, wait=wait))

    def commit(
        self, offsets: Mapping[int, int] | None = None, *, timeout: float | None = None
    ) -> None:
        """See `Consumer.commit`."""
        self._loop.wait(partial(self._consumer.commit, offsets, timeout=timeout))

    def seek(
        self,
        *,
        queue: int | None = None,
        offset: int | None = None,
        time: datetime | None = None,
        to: Literal["earliest", "latest"] | None = None,
        timeout: float | None = None,
    ) -> None:
        """See `Consumer.seek`."""
        seek = partial(self._consumer.seek, queue=queue, offset=offset, time=time)
        self._loop.wait(partial(seek, to=to, timeout=timeout))

    @property
    def position(self) -> dict[int, int]:
        """See `Consumer.position`."""
        return self._loop.call(lambda: self._consumer.position)

    def committed(self, *, timeout: float | None = None) -> dict[int, int]:
        """See `Consumer.committed`."""
        return self._loop.wait(partial(self._consumer.committed, timeout=timeout))


class BlockingAdmin:
    """See `raftmq.Admin`."""

    def __init__(self, loop: _Loop, admin: Admin) -> None:
        self._loop = loop
        self._admin = admin

    def create_topic(
        self, name: str, queues: int = 8, *, timeout: float | None = None
    ) -> TopicInfo:
        """See `Admin.create_topic`."""
        return self._loop.wait(partial(self._admin.create_topic, name, queues, timeout=timeout))

    def list_topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        """See `Admin.list_topics`."""
        return self._loop.wait(partial(self._admin.list_topics, timeout=timeout))

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """See `Admin.describe_topic`."""
        return self._loop.wait(partial(self._admin.describe_topic, name, timeout=timeout))

    def alter_topic(self, name: str, queues: int, *, timeout: float | None = None) -> TopicInfo:
        """See `Admin.alter_topic`."""
        return self._loop.wait(partial(self._admin.alter_topic, name, queues, timeout=timeout))

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """See `Admin.delete_topic`."""
        self._loop.wait(partial(self._admin.delete_topic, name, timeout=timeout))

    def list_groups(
        self, *, topic: str | None = None, timeout: float | None = None
    ) -> list[ConsumerGroup]:
        """See `Admin.list_groups`."""
        return self._loop.wait(partial(self._admin.list_groups, topic=topic, timeout=timeout))

    def describe_group(self, name: str, *, timeout: float | None = None) -> ConsumerGroup:
        """See `Admin.describe_group`."""
        return self._loop.wait(partial(self._admin.describe_group, name, timeout=timeout))

    def subscribe(
        self,
        topic: str,
        group: str,
        filter: str,  # noqa: A002  # as `Admin.subscribe`
        *,
        timeout: float | None = None,
    ) -> None:
        """See `Admin.subscribe`."""
        self._loop.wait(partial(self._admin.subscribe, topic, group, filter, timeout=timeout))

    def unsubscribe(self, topic: str, group: str, *, timeout: float | None = None) -> None:
        """See `Admin.unsubscribe`."""
        self._loop.wait(partial(self._admin.unsubscribe, topic, group, timeout=timeout))

    def list_subscriptions(
        self, *, topic: str | None = None, group: str | None = None, timeout: float | None = None
    ) -> list[Subscription]:
        """See `Admin.list_subscriptions`."""
        find = partial(self._admin.list_subscriptions, topic=topic, group=group)
        return self._loop.wait(partial(find, timeout=timeout))

    def reset_group(
        self,
        name: str,
        topic: str,
        *,
        to: Start,
        queues: Sequence[int] | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[OffsetChange]:
        """See `Admin.reset_group`."""
        reset = partial(self._admin.reset_group, name, topic, to=to, queues=queues)
        return self._loop.wait(partial(reset, dry_run=dry_run, timeout=timeout))

    def find_offsets(
        self,
        topic: str,
        at: Start,
        *,
        queues: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """See `Admin.find_offsets`."""
        find = partial(self._admin.find_offsets, topic, at, queues=queues)
        return self._loop.wait(partial(find, timeout=timeout))

    def cluster(self, *, timeout: float | None = None) -> ClusterView:
        """See `Admin.cluster`."""
        return self._loop.wait(partial(self._admin.cluster, timeout=timeout))

    def status(self, node: int, *, timeout: float | None = None) -> dict[str, Any]:
        """See `Admin.status`."""
        return self._loop.wait(partial(self._admin.status, node, timeout=timeout))

    def transfer(self, partition_group: int, *, to: int = 0, timeout: float | None = None) -> None:
        """See `Admin.transfer`."""
        self._loop.wait(partial(self._admin.transfer, partition_group, to=to, timeout=timeout))

    def add_node(self, node: int, host: str, port: int, *, timeout: float | None = None) -> None:
        """See `Admin.add_node`."""
        self._loop.wait(partial(self._admin.add_node, node, host, port, timeout=timeout))

    def remove_node(self, node: int, *, timeout: float | None = None) -> None:
        """See `Admin.remove_node`."""
        self._loop.wait(partial(self._admin.remove_node, node, timeout=timeout))

    def replace_node(
        self, node: int, new: int, host: str, port: int, *, timeout: float | None = None
    ) -> None:
        """See `Admin.replace_node`."""
        self._loop.wait(partial(self._admin.replace_node, node, new, host, port, timeout=timeout))


class BlockingClient:
    """See `raftmq.Client`. Made by `connect`."""

    def __init__(self, loop: _Loop, client: Client) -> None:
        self._loop = loop
        self._client = client
        self.admin = BlockingAdmin(loop, client.admin)
        """Topics, consumer groups, nodes."""

    def producer(self, topic: str, **settings: Any) -> BlockingProducer:
        """A producer for one topic, to be used as `with`; settings as of `Client.producer`."""
        make = partial(self._client.producer, topic, **settings)
        return BlockingProducer(self._loop, self._loop.call(make))

    def consumer(self, topic: str, **settings: Any) -> BlockingConsumer:
        """A consumer of one topic, to be used as `with`; settings as of `Client.consumer`."""
        make = partial(self._client.consumer, topic, **settings)
        return BlockingConsumer(self._loop, self._loop.call(make))

    def get(self, message_id: str, *, timeout: float | None = None) -> Message:
        """See `Client.get`."""
        return self._loop.wait(partial(self._client.get, message_id, timeout=timeout))

    def find(
        self,
        topic: str,
        *,
        key: str,
        since: datetime | None = None,
        limit: int = 100,
        timeout: float | None = None,
    ) -> list[Message]:
        """See `Client.find`."""
        find = partial(self._client.find, topic, key=key, since=since, limit=limit)
        return self._loop.wait(partial(find, timeout=timeout))


@contextmanager
def _connected(url: str, timeout: float, cluster: str, backend: str) -> Iterator[BlockingClient]:
    with (
        start_blocking_portal(backend) as portal,
        portal.wrap_async_context_manager(
            connect_async(url, timeout=timeout, cluster=cluster)
        ) as client,
    ):
        yield BlockingClient(_Loop(portal), client)


def connect(
    url: str, *, timeout: float = 30.0, cluster: str = "", backend: str = "trio"
) -> AbstractContextManager[BlockingClient]:
    """`with raftmq.blocking.connect(url) as mq:` opens a cluster; see `raftmq.connect`.

    Args:
        url: `raftmq://host:port[,host:port...]`.
        timeout: seconds; the default of every call.
        cluster: refuse a cluster of another id; empty: take any.
        backend: the event loop of the background thread, `"trio"` or `"asyncio"`.
    """
    return _connected(url, timeout, cluster, backend)
