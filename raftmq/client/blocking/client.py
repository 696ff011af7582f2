"""The client for plain code: the same names, without await.

A thread of its own runs the event loop (anyio's blocking portal); every call waits for it. Objects
may be used from several threads. Receipts, messages and errors are those of the async client.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from os import PathLike
from typing import Any, Literal, overload

from raftmq.client.admin.access import Access
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.directory import Directory, Lease
from raftmq.client.admin.settings import Settings
from raftmq.client.arguments import ByOffset
from raftmq.client.client import Client
from raftmq.client.connecting import connect as connect_async
from raftmq.client.consume.consumer import Consumer
from raftmq.client.consume.progress import Progress
from raftmq.client.login import Login
from raftmq.client.message import Message, Messages
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.produce.transactions import OpenTransaction
from raftmq.client.routing.first_contact import REFUSED_SECONDS
from raftmq.errors import Rejected

from .background import Background
from .face import Entered, Face, gives, waits
from .loop import Loop
from .popping import BlockingPopConsumer
from .producer import BlockingClaimedProducer, BlockingProducer
from .transactions import check_back


class BlockingConsumer(ByOffset, Entered[Consumer]):
    """See `raftmq.Consumer`; use it as `with`, and iterate with `for`."""

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, without an end: `break` when you have enough."""
        while True:
            yield self._loop.wait(self._inner.__anext__, self._put_back)

    def fetch(self, count: int = 500, *, wait: float = 1.0) -> Messages:
        """See `Consumer.fetch`."""
        return self._loop.wait(partial(self._inner.fetch, count, wait=wait), self._put_back)

    async def _put_back(self, taken: Message | Messages) -> None:
        """Move the queues back to messages that the application did not get."""
        messages = [taken] if isinstance(taken, Message) else list(taken)
        for message in reversed(messages):
            with suppress(Rejected):  # The message's queue is no longer read here.
                await self._inner.seek(queue=message.queue, offset=message.offset)

    commit = waits(Consumer.commit)
    committed = waits(Consumer.committed)
    seek = waits(Consumer.seek)

    @property
    def position(self) -> dict[int, int]:
        """See `Consumer.position`."""
        return self._loop.call(lambda: self._inner.position)

    @property
    def assignment(self) -> tuple[int, ...]:
        """See `Consumer.assignment`."""
        return self._loop.call(lambda: self._inner.assignment)


class BlockingAdmin(Face[Admin]):
    """See `raftmq.Admin`."""

    create_topic = waits(Admin.create_topic)
    list_topics = waits(Admin.list_topics)
    describe_topic = waits(Admin.describe_topic)
    alter_topic = waits(Admin.alter_topic)
    delete_topic = waits(Admin.delete_topic)
    list_groups = waits(Admin.list_groups)
    describe_group = waits(Admin.describe_group)
    create_consumer_group = waits(Admin.create_consumer_group)
    consumer_groups = waits(Admin.consumer_groups)
    delete_consumer_group = waits(Admin.delete_consumer_group)
    attach = waits(Admin.attach)
    detach = waits(Admin.detach)
    backlogs = waits(Admin.backlogs)
    dead_letters = waits(Admin.dead_letters)
    redrive = waits(Admin.redrive)
    purge = waits(Admin.purge)
    subscribe = waits(Admin.subscribe)
    unsubscribe = waits(Admin.unsubscribe)
    list_subscriptions = waits(Admin.list_subscriptions)
    reset_group = waits(Admin.reset_group)
    clone_group = waits(Admin.clone_group)
    members = waits(Admin.members)
    find_offsets = waits(Admin.find_offsets)
    cluster = waits(Admin.cluster)
    status = waits(Admin.status)
    transfer = waits(Admin.transfer)
    add_node = waits(Admin.add_node)
    remove_node = waits(Admin.remove_node)
    replace_node = waits(Admin.replace_node)
    drain_node = waits(Admin.drain_node)
    add_group = waits(Admin.add_group)
    move_group = waits(Admin.move_group)
    log = waits(Admin.log)
    log_snapshot = waits(Admin.log_snapshot)
    log_records = waits(Admin.log_records)


class BlockingAccess(Face[Access]):
    """See `raftmq.Client.access`."""

    put_user = waits(Access.put_user)
    drop_user = waits(Access.drop_user)
    users = waits(Access.users)
    make_token = waits(Access.make_token)
    revoke_token = waits(Access.revoke_token)
    allow = waits(Access.allow)
    deny = waits(Access.deny)
    drop_rule = waits(Access.drop_rule)
    rules = waits(Access.rules)
    judge = waits(Access.judge)
    audit = waits(Access.audit)
    put_quota = waits(Access.put_quota)
    drop_quota = waits(Access.drop_quota)
    quotas = waits(Access.quotas)


class BlockingProgress(Face[Progress]):
    """See `raftmq.client.Progress`. Made by `BlockingClient.progress`."""

    def __init__(self, loop: Loop, progress: Progress) -> None:
        super().__init__(loop, progress)
        self.topic = progress.topic
        """The topic's name."""
        self.topic_id = progress.topic_id
        """The topic's number."""

    @property
    def committed(self) -> dict[int, int]:
        """See `Progress.committed`."""
        return dict(self._inner.committed)

    commit = waits(Progress.commit)


class BlockingSettings(Face[Settings]):
    """See `raftmq.Client.settings`."""

    get = waits(Settings.get)
    put = waits(Settings.put)
    history = waits(Settings.history)
    difference = waits(Settings.difference)
    rollback = waits(Settings.rollback)
    wait_for_change = waits(Settings.wait_for_change)


class BlockingLease(Entered[Lease]):
    """See `raftmq.client.Lease`; use it as `with`."""

    @property
    def is_held(self) -> bool:
        """See `Lease.is_held`."""
        return self._loop.call(lambda: self._inner.is_held)

    @property
    def name(self) -> str:
        """The lease's name."""
        return self._inner.name

    wait_lost = waits(Lease.wait_lost)


class BlockingDirectory(Face[Directory]):
    """See `raftmq.Client.directory`."""

    clients = waits(Directory.clients)
    nodes = waits(Directory.nodes)
    lease = gives(Directory.lease, BlockingLease)


class BlockingClient(Face[Client]):
    """See `raftmq.Client`. Made by `connect`."""

    def __init__(self, loop: Loop, client: Client) -> None:
        super().__init__(loop, client)
        self.admin = BlockingAdmin(loop, client.admin)
        """Topics, consumer groups, nodes."""
        self.access = BlockingAccess(loop, client.access)
        """Users, tokens, rules of access, quotas and the audit log."""
        self.settings = BlockingSettings(loop, client.settings)
        """Settings that change while the cluster runs."""
        self.directory = BlockingDirectory(loop, client.directory)
        """Who is connected where, rates, leases: soft state."""

    @property
    def throttled(self) -> float:
        """See `Client.throttled`."""
        return self._loop.call(lambda: self._inner.throttled)

    producer = gives(Client.producer, BlockingProducer)
    claim_part = waits(Client.claim_part)

    def claimed_producer(
        self, topic: str, session: str, *, label: int = 1, **settings: Any
    ) -> BlockingClaimedProducer:
        """See `Client.claimed_producer`; to be used as `with`."""
        make = partial(self._inner.claimed_producer, topic, session, label=label, **settings)
        return BlockingClaimedProducer(self._loop, self._loop.call(make))

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
        make: Callable[..., Any] = self._inner.consumer
        consumer: Consumer | PopConsumer
        consumer = self._loop.call(partial(make, topic, mode=mode, **settings))
        if isinstance(consumer, PopConsumer):
            return BlockingPopConsumer(self._loop, consumer)
        return BlockingConsumer(self._loop, consumer)

    def check_back(
        self,
        group: str,
        check: Callable[[OpenTransaction], bool | None],
        *,
        after: float = 10.0,
        every: float = 5.0,
    ) -> AbstractContextManager[object]:
        """See `Client.check_back`; `check` is called in threads of its own, one at a time."""
        return check_back(self._loop, self._inner, group, check, after=after, every=every)

    def progress(self, topic: str, group: str, *, timeout: float | None = None) -> BlockingProgress:
        """See `Client.progress`."""
        take = partial(self._inner.progress, topic, group, timeout=timeout)
        return BlockingProgress(self._loop, self._loop.wait(take))

    check = waits(Client.check)
    cancel = waits(Client.cancel)
    open_transactions = waits(Client.open_transactions)
    end_transaction = waits(Client.end_transaction)
    settle = waits(Client.settle)
    acked_before = waits(Client.acked_before)
    get = waits(Client.get)
    trace = waits(Client.trace)
    why = waits(Client.why)
    events = waits(Client.events)
    find = waits(Client.find)


def connect(
    url: str,
    *,
    timeout: float = 30.0,
    cluster: str = "",
    wait_refused: float | None = REFUSED_SECONDS,
    ca: str = "",
    cert: str = "",
    login: Login | str | PathLike[str] = "",
    zone: str = "",
    name: str = "",
    check: bool = False,
    backend: str = "trio",
) -> AbstractContextManager[BlockingClient]:
    """`with raftmq.blocking.connect(url) as mq:` opens a cluster; see `raftmq.connect`.

    The program must leave the block. If the program ends before, the client is dropped within two
    seconds, as by a kill: messages that no call has waited for may be lost, and an open transaction
    stays open until a check-back ends it, or the leases of the messages that it acknowledges run
    out.

    Args:
        url: `raftmq://host:port[,host:port...]`; `raftmqs://` under TLS.
        timeout: seconds; the default of every call.
        cluster: refuse a cluster of another id; empty: take any cluster.
        wait_refused: seconds for which every address may refuse the connection; None: `timeout`.
        ca: under TLS, see `raftmq.connect`.
        cert: under TLS, see `raftmq.connect`.
        login: under TLS, see `raftmq.connect`.
        zone: see `raftmq.connect`.
        name: the program's name, see `raftmq.connect`.
        check: judge this client's calls for `Client.check`.
        backend: the event loop of the background thread, `"trio"` or `"asyncio"`.
    """
    opening = connect_async(
        url,
        timeout=timeout,
        cluster=cluster,
        wait_refused=wait_refused,
        ca=ca,
        cert=cert,
        login=login,
        zone=zone,
        name=name,
        check=check,
    )
    return Background(opening, backend, BlockingClient)
