"""The client for plain code: the same names, without await.

A thread of its own runs the event loop (anyio's blocking portal); every call waits for it. Objects
may be used from several threads. Receipts, messages and errors are those of the async client.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal, overload

from raftmq.client.admin.admin import Admin
from raftmq.client.admin.consumer_groups import GroupSettings
from raftmq.client.admin.dead_letters import Backlog, DeadLetter
from raftmq.client.admin.descriptions import (
    ConsumerGroup,
    OffsetChange,
    TopicDescription,
    TopicInfo,
)
from raftmq.client.admin.events import Events
from raftmq.client.admin.subscriptions import Subscription
from raftmq.client.admin.traces import Touch, Trace
from raftmq.client.client import Client
from raftmq.client.client import connect as connect_async
from raftmq.client.consume.consumer import Consumer
from raftmq.client.consume.progress import Progress
from raftmq.client.consume.start import Start
from raftmq.client.message import Message, Messages
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.produce.transactions import OpenTransaction
from raftmq.client.routing.first_contact import REFUSED_SECONDS
from raftmq.errors import Rejected
from raftmq.wire.assignment import MemberView
from raftmq.wire.messages import ClusterView

from .background import Background
from .loop import Entered, Loop
from .popping import BlockingPopConsumer
from .producer import BlockingClaimedProducer, BlockingProducer
from .transactions import check_back


class BlockingConsumer(Entered):
    """See `raftmq.Consumer`; use it as `with`, and iterate with `for`."""

    def __init__(self, loop: Loop, consumer: Consumer) -> None:
        super().__init__(loop, consumer)
        self._consumer = consumer

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, without an end: `break` when you have enough."""
        while True:
            yield self._loop.wait(self._consumer.__anext__, self._put_back)

    def fetch(self, count: int = 500, *, wait: float = 1.0) -> Messages:
        """See `Consumer.fetch`."""
        fetch = partial(self._consumer.fetch, count, wait=wait)
        return self._loop.wait(fetch, self._put_back)

    async def _put_back(self, taken: Message | Messages) -> None:
        """Read again what the application was not handed."""
        messages = [taken] if isinstance(taken, Message) else list(taken)
        for message in reversed(messages):
            with suppress(Rejected):  # Its queue is no longer read here.
                await self._consumer.seek(queue=message.queue, offset=message.offset)

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

    @property
    def assignment(self) -> tuple[int, ...]:
        """See `Consumer.assignment`."""
        return self._loop.call(lambda: self._consumer.assignment)

    def committed(self, *, timeout: float | None = None) -> dict[int, int]:
        """See `Consumer.committed`."""
        return self._loop.wait(partial(self._consumer.committed, timeout=timeout))


class BlockingAdmin:
    """See `raftmq.Admin`."""

    def __init__(self, loop: Loop, admin: Admin) -> None:
        self._loop = loop
        self._admin = admin

    def create_topic(
        self, name: str, queues: int = 8, *, beside: str = "", timeout: float | None = None
    ) -> TopicInfo:
        """See `Admin.create_topic`."""
        create = partial(self._admin.create_topic, name, queues, beside=beside, timeout=timeout)
        return self._loop.wait(create)

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

    def create_consumer_group(
        self,
        name: str,
        mode: str = "pop",
        *,
        schedule: Sequence[float] | None = None,
        attempts_max: int | None = None,
        invisible: float | None = None,
        order: str = "key",
        is_blocking: bool = False,
        timeout: float | None = None,
    ) -> GroupSettings:
        """See `Admin.create_consumer_group`."""
        call = partial(
            self._admin.create_consumer_group,
            name,
            mode,
            schedule=schedule,
            attempts_max=attempts_max,
            invisible=invisible,
            order=order,
            is_blocking=is_blocking,
            timeout=timeout,
        )
        return self._loop.wait(call)

    def consumer_groups(
        self, *, name: str | None = None, topic: str | None = None, timeout: float | None = None
    ) -> list[GroupSettings]:
        """See `Admin.consumer_groups`."""
        call = partial(self._admin.consumer_groups, name=name, topic=topic, timeout=timeout)
        return self._loop.wait(call)

    def delete_consumer_group(
        self, name: str, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """See `Admin.delete_consumer_group`."""
        call = partial(self._admin.delete_consumer_group, name, force=force, timeout=timeout)
        self._loop.wait(call)

    def attach(
        self,
        topic: str,
        group: str,
        *,
        mode: str = "pop",
        start: str = "earliest",
        timeout: float | None = None,
    ) -> int:
        """See `Admin.attach`."""
        call = partial(self._admin.attach, topic, group, mode=mode, start=start, timeout=timeout)
        return self._loop.wait(call)

    def detach(self, topic: str, group: str, *, timeout: float | None = None) -> bool:
        """See `Admin.detach`."""
        return self._loop.wait(lambda: self._admin.detach(topic, group, timeout=timeout))

    def backlogs(
        self, *, topic: str | None = None, group: str | None = None, timeout: float | None = None
    ) -> list[Backlog]:
        """See `Admin.backlogs`."""
        call = partial(self._admin.backlogs, topic=topic, group=group, timeout=timeout)
        return self._loop.wait(call)

    def dead_letters(
        self, topic: str, group: str, *, limit: int | None = None, timeout: float | None = None
    ) -> list[DeadLetter]:
        """See `Admin.dead_letters`."""
        call = partial(self._admin.dead_letters, topic, group, limit=limit, timeout=timeout)
        return self._loop.wait(call)

    def redrive(self, letters: Sequence[DeadLetter], *, timeout: float | None = None) -> int:
        """See `Admin.redrive`."""
        return self._loop.wait(partial(self._admin.redrive, letters, timeout=timeout))

    def purge(self, letters: Sequence[DeadLetter], *, timeout: float | None = None) -> int:
        """See `Admin.purge`."""
        return self._loop.wait(partial(self._admin.purge, letters, timeout=timeout))

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

    def clone_group(
        self,
        source: str,
        name: str,
        topic: str,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[OffsetChange]:
        """See `Admin.clone_group`."""
        clone = partial(self._admin.clone_group, source, name, topic)
        return self._loop.wait(partial(clone, dry_run=dry_run, timeout=timeout))

    def members(
        self, group: str | None = None, *, timeout: float | None = None
    ) -> list[MemberView]:
        """See `Admin.members`."""
        return self._loop.wait(lambda: self._admin.members(group, timeout=timeout))

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


class BlockingProgress:
    """See `raftmq.client.Progress`. Made by `BlockingClient.progress`."""

    def __init__(self, loop: Loop, progress: Progress) -> None:
        self._loop = loop
        self._progress = progress
        self.topic = progress.topic
        """The topic's name."""
        self.topic_id = progress.topic_id
        """Its number."""

    @property
    def committed(self) -> dict[int, int]:
        """See `Progress.committed`."""
        return dict(self._progress.committed)

    def commit(self, offsets: Mapping[int, int], *, timeout: float | None = None) -> None:
        """See `Progress.commit`."""
        self._loop.wait(partial(self._progress.commit, offsets, timeout=timeout))


class BlockingClient:
    """See `raftmq.Client`. Made by `connect`."""

    def __init__(self, loop: Loop, client: Client) -> None:
        self._loop = loop
        self._client = client
        self.admin = BlockingAdmin(loop, client.admin)
        """Topics, consumer groups, nodes."""

    def producer(self, topic: str, **settings: Any) -> BlockingProducer:
        """A producer for one topic, to be used as `with`; settings as of `Client.producer`."""
        make = partial(self._client.producer, topic, **settings)
        return BlockingProducer(self._loop, self._loop.call(make))

    def claimed_producer(
        self, topic: str, session: str, *, label: int = 1, **settings: Any
    ) -> BlockingClaimedProducer:
        """See `Client.claimed_producer`; to be used as `with`."""
        make = partial(self._client.claimed_producer, topic, session, label=label, **settings)
        return BlockingClaimedProducer(self._loop, self._loop.call(make))

    def claim_part(
        self, topic: str, work: str, *, label: int = 1, part: int, parts: int = 0
    ) -> int:
        """See `Client.claim_part`."""
        claim = partial(self._client.claim_part, topic, work, label=label, part=part, parts=parts)
        return self._loop.wait(claim)

    @overload
    def consumer(
        self, topic: str, *, mode: Literal["pull", "broadcast"] = "pull", **settings: Any
    ) -> BlockingConsumer: ...

    @overload
    def consumer(
        self, topic: str, *, mode: Literal["pop", "ordered"], **settings: Any
    ) -> BlockingPopConsumer: ...

    def consumer(
        self, topic: str, *, mode: str = "pull", **settings: Any
    ) -> BlockingConsumer | BlockingPopConsumer:
        """A consumer of one topic, to be used as `with`; settings as of `Client.consumer`."""
        make: Callable[..., Any] = self._client.consumer
        consumer: Consumer | PopConsumer
        consumer = self._loop.call(partial(make, topic, mode=mode, **settings))
        if isinstance(consumer, PopConsumer):
            return BlockingPopConsumer(self._loop, consumer)
        return BlockingConsumer(self._loop, consumer)

    def cancel(self, message_id: str, *, timeout: float | None = None) -> bool:
        """See `Client.cancel`."""
        return self._loop.wait(partial(self._client.cancel, message_id, timeout=timeout))

    def check_back(
        self,
        group: str,
        check: Callable[[OpenTransaction], bool | None],
        *,
        after: float = 10.0,
        every: float = 5.0,
    ) -> AbstractContextManager[object]:
        """See `Client.check_back`; `check` is called in threads of its own, one at a time."""
        return check_back(self._loop, self._client, group, check, after=after, every=every)

    def open_transactions(
        self, group: str = "", *, timeout: float | None = None
    ) -> list[OpenTransaction]:
        """See `Client.open_transactions`."""
        return self._loop.wait(partial(self._client.open_transactions, group, timeout=timeout))

    def end_transaction(
        self, transaction_id: str, *, commit: bool, timeout: float | None = None
    ) -> int:
        """See `Client.end_transaction`."""
        end = partial(self._client.end_transaction, transaction_id, commit=commit)
        return self._loop.wait(partial(end, timeout=timeout))

    def settle(
        self,
        handles: Sequence[str],
        action: Literal["ack", "nack", "reject", "give_back", "extend"] = "ack",
        *,
        delay: float | None = None,
        reason: str = "rejected",
        timeout: float | None = None,
    ) -> list[bool]:
        """See `Client.settle`."""
        settle = partial(self._client.settle, handles, action, delay=delay, reason=reason)
        return self._loop.wait(partial(settle, timeout=timeout))

    def acked_before(self, handles: Sequence[str], *, timeout: float | None = None) -> list[bool]:
        """See `Client.acked_before`."""
        return self._loop.wait(partial(self._client.acked_before, handles, timeout=timeout))

    def progress(self, topic: str, group: str, *, timeout: float | None = None) -> BlockingProgress:
        """See `Client.progress`."""
        take = partial(self._client.progress, topic, group, timeout=timeout)
        return BlockingProgress(self._loop, self._loop.wait(take))

    def get(self, message_id: str, *, timeout: float | None = None) -> Message:
        """See `Client.get`."""
        return self._loop.wait(partial(self._client.get, message_id, timeout=timeout))

    def trace(self, message_id: str, *, timeout: float | None = None) -> Trace:
        """See `Client.trace`."""
        return self._loop.wait(partial(self._client.trace, message_id, timeout=timeout))

    def why(self, message_id: str, *, timeout: float | None = None) -> list[Touch]:
        """See `Client.why`."""
        return self._loop.wait(partial(self._client.why, message_id, timeout=timeout))

    def events(
        self,
        partition_group: int,
        start: int | None = None,
        stop: int | None = None,
        **options: Any,
    ) -> Events:
        """See `Client.events`."""
        find = partial(self._client.events, partition_group, start, stop, **options)
        return self._loop.wait(find)

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


def connect(
    url: str,
    *,
    timeout: float = 30.0,
    cluster: str = "",
    wait_refused: float | None = REFUSED_SECONDS,
    backend: str = "trio",
) -> AbstractContextManager[BlockingClient]:
    """`with raftmq.blocking.connect(url) as mq:` opens a cluster; see `raftmq.connect`.

    The block must be left. If the program ends before, the client is dropped within two seconds, as
    by a kill: messages that no call has waited for may be lost, and an open transaction stays open
    until a check-back ends it, or the leases of what it acknowledges run out.

    Args:
        url: `raftmq://host:port[,host:port...]`.
        timeout: seconds; the default of every call.
        cluster: refuse a cluster of another id; empty: take any.
        wait_refused: seconds for which every address may refuse the connection; None: `timeout`.
        backend: the event loop of the background thread, `"trio"` or `"asyncio"`.
    """
    opening = connect_async(url, timeout=timeout, cluster=cluster, wait_refused=wait_refused)
    return Background(opening, backend, BlockingClient)
