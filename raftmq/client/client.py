"""The client: one object for a cluster, which owns connections and background tasks.

`connecting` has `connect`, which opens the client. All background work of the client, its producers
and consumers lives in one task group (`supervisor`), and ends with the block.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from raftmq.batch import Compression
from raftmq.client.admin.access import Access
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.directory import Directory
from raftmq.client.admin.events import Events, Names, read_events
from raftmq.client.admin.lookup import find_by_key, get_message
from raftmq.client.admin.settings import Settings
from raftmq.client.admin.traces import MessageEvent, Trace, trace
from raftmq.client.consume.consumer import Consumer
from raftmq.client.consume.progress import Progress, take_progress
from raftmq.client.consume.start import OnTrimmed, Start
from raftmq.client.pop.acked import find_acked
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.handles import (
    disposition_of,
    parse_handle,
    settle_handles,
    settlement_number,
)
from raftmq.client.produce.claimed import ClaimedProducer, claim_part
from raftmq.client.produce.delays import cancel_delayed
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.settings import ProducerSettings
from raftmq.client.produce.transactions import (
    Check,
    OpenTransaction,
    check_back,
    end_transaction,
    open_transactions,
)
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.pop.policy import Mode

from .arguments import require_text, typed
from .message import Message
from .options import POPPING, READING, Queues, filter_of, only, popping, reading
from .supervisor import Supervisor
from .world import ClientWorld

if TYPE_CHECKING:
    from .checked.judge import Judge
    from .checked.verdict import Checked


@typed()
class Client:
    """A connection to a cluster. Made by `connect`."""

    admin: Admin
    """Topics, consumer groups, nodes."""
    access: Access
    """Users, tokens, rules of access, quotas and the audit log."""
    settings: Settings
    """Settings that change while the cluster runs."""
    directory: Directory
    """Who is connected where, rates, leases: soft state."""

    # The classes that `producer` and `consumer` make; `_observe` replaces them.
    _producer_class: Callable[..., Producer] = Producer
    _claimed_producer_class: Callable[..., ClaimedProducer] = ClaimedProducer
    _consumer_class: Callable[..., Consumer] = Consumer
    _pop_consumer_class: Callable[..., PopConsumer] = PopConsumer

    def __init__(self, router: Router, supervisor: Supervisor, world: ClientWorld) -> None:
        self._router = router
        self._supervisor = supervisor
        self._world = world
        self._names = Names(router)
        self.admin = Admin(router)
        self.access = Access(router, world)
        self.settings = Settings(router)
        self.directory = Directory(router, supervisor)
        self._judge: Judge | None = None

    def _observe(self, judge: "Judge") -> None:
        """Internal: let a judge see the calls of all producers and consumers."""
        self._judge = judge
        self._producer_class = judge.producer
        self._consumer_class = judge.consumer
        self._pop_consumer_class = judge.pop_consumer

    async def check(self) -> "Checked":
        """Judge all calls since the client was opened with `check=True`.

        The check reads back the acknowledged messages that no consumer of this client has seen. The
        application may go on meanwhile. Cancelling leaves the rest to the next check.
        `docs/checked.md` lists what is found, and what is not.

        Raises:
            Inconsistent: a promise was broken: the text says which, and how that is known.
            Rejected: `BAD_ARGUMENT`, the client was not opened with `check=True`.
            Unavailable: a leader was not found in time.
        """
        if self._judge is None:
            message = "nothing was recorded: open it with check=True"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        return await self._judge.judge()

    @property
    def throttled(self) -> float:
        """Seconds for which quotas held requests of this client, as the nodes told, over all of its
        producers and consumers. A program that sees it grow is held up by a quota. Waits after a
        refusal as busy do not count."""
        return self._router.throttled

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
            topic: the topic's name.
            linger: seconds to gather messages for a batch; None: only while an answer is due.
            batch_bytes: a batch of this size goes out; a larger message goes alone.
            batch_messages: a batch of this number of messages goes out; at most 65,536.
            buffer_bytes: bytes that may wait for their answer; then `send` waits for room.
            buffer_messages: messages that may wait for their answer; then `send` waits for room.
            compression: the compression of the bodies.
        """
        settings = ProducerSettings(
            linger, batch_bytes, batch_messages, buffer_bytes, buffer_messages, compression
        )
        return self._producer_class(
            topic, settings, router=self._router, supervisor=self._supervisor, world=self._world
        )

    def claimed_producer(
        self, topic: str, session: str, *, label: int = 1, **settings: Any
    ) -> ClaimedProducer:
        """A producer whose session outlives its process, to be used as `async with`.

        Args:
            topic: the topic's name.
            session: the session's name, equal in every process that goes on with the work.
            label: the piece of the work; it never decreases. See `claimed`.
            settings: the settings of `producer`, by name.
        """
        make = partial(self._claimed_producer_class, topic, ProducerSettings(**settings))
        parts = {"router": self._router, "supervisor": self._supervisor, "world": self._world}
        return make(session, label, **parts)

    async def claim_part(
        self, topic: str, work: str, *, label: int = 1, part: int, parts: int = 0
    ) -> int:
        """Record that a part of some work begins; see `claimed.claim_part`."""
        return await claim_part(self._router, topic, work, label=label, part=part, parts=parts)

    @overload
    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        mode: Literal["pull", "broadcast"] = "pull",
        queues: Queues = None,
        start: Start | None = None,
        on_trimmed: OnTrimmed = "error",
        auto_commit: float | None = None,
        prefetch_bytes: int = 8 * 1024 * 1024,
        filter: str | None = None,
        tags: str | None = None,
        session: float = 10.0,
        instance: str | None = None,
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        topic: str,
        *,
        group: str,
        mode: Literal["pop", "ordered"],
        start: Literal["earliest", "latest"] = "earliest",
        prefetch: int | None = None,
        invisible: float | None = None,
        renew: float | None = None,
        prefetch_bytes: int = 8 * 1024 * 1024,
        filter: str | None = None,
        tags: str | None = None,
    ) -> PopConsumer: ...

    def consumer(self, topic: str, *, mode: str = "pull", **options: Any) -> Consumer | PopConsumer:
        """A consumer of one topic, to be used as `async with`.

        Args:
            topic: the topic's name.
            mode: `"pull"` reads queues by offset. `"broadcast"` reads by offset, too, and each
                instance of the group gets every message. `"pop"` takes messages of any queue, each
                for a while, and settles them; `"ordered"` pops the messages of a key in order. A
                group keeps the mode of its first consumer.
            options: the options below, by name.

        Options:
            group: the consumer group. To pull: the name under which offsets are committed; None: no
                offsets are committed.
            queues: to pull: the queues to read, from 0; None: all, and those added later;
                `"assigned"`: the group's members share the queues, each queue to one member.
            start: the place where a group begins that is new to the topic, or a queue without a
                committed offset: `"earliest"`, or with broadcast `"latest"`, by default. Queues
                added while the consumer is open are read from their beginning; so are queues added
                while an instance of a broadcast group was closed, or while a group that had members
                before had none.
            on_trimmed: to pull: the reaction when retention has dropped the next messages: raise,
                or go on at an end of the queue (`"error"`, `"earliest"`, `"latest"`).
            auto_commit: to pull: seconds between commits of the messages that the application is
                done with: all that were handed out before its last call. So only one task, or
                thread, may read: a call of another one would commit messages that the first still
                works on. None: only `commit` commits; with broadcast a commit every second.
            prefetch_bytes: bytes that may be fetched ahead of the application, 8 MiB. Pulling adds
                one answer of each node, of up to 4 MiB and at most `prefetch_bytes`, and the rest
                of a batch that begins within.
            filter: the group's filter, as SQL (`amount > 5 AND city = 'Paris'`), perhaps with signs
                (`amount > 5 && city == "Paris"`), or tags. Opening the consumer subscribes the
                whole group to the filter, in place of the one before; see `Admin.subscribe`. None:
                the group's present filter, if any.
            tags: the filter as tags: `paid || shipped`.
            session: of a member: seconds without a heartbeat after which it loses its queues, 10.
            instance: of a member: a name that outlives the process. The next process of this name
                takes the place of the one before at once. With broadcast it goes on where that one
                was; None: a random name, so each start is a new instance.
            prefetch: to pop: most messages asked for ahead of each partition group; None: 500. The
                consumer begins with few. 0: only the messages that a call asks for.
            invisible: to pop: seconds for which a message is this consumer's alone, 1 s to 12
                hours; None: by the group's policy (by default 30 s).
            renew: to pop: while the application refers to a message, or to the sequence that the
                message came in, its lease is extended to this number of seconds repeatedly. None:
                leases are not extended by themselves.

        Raises:
            Rejected: `BAD_ARGUMENT`, another mode or value; the text names the possible ones.
            FilterSyntaxError: the filter cannot be read; it is a `Rejected`.
        """
        for name in ("filter", "tags"):
            if options.get(name) is not None:
                require_text(options[name], name)
        filter_ = filter_of(options.pop("filter", None), options.pop("tags", None))
        if mode in (Mode.PULL, Mode.BROADCAST):
            return self._reader(topic, Mode(mode), filter_, options)
        if mode in (Mode.POP, Mode.ORDERED):
            return self._popper(topic, Mode(mode), filter_, options)
        message = f"mode {mode!r} does not exist: it is 'pull', 'broadcast', 'pop' or 'ordered'"
        raise Rejected(Reason.BAD_ARGUMENT, message)

    def _reader(
        self, topic: str, mode: Mode, filter_: str | None, options: dict[str, Any]
    ) -> Consumer:
        options = only(options, READING)
        settings, join = reading(topic, mode, self._world.random, filter_=filter_, **options)
        return self._consumer_class(
            topic, settings, router=self._router, supervisor=self._supervisor, join=join
        )

    def _popper(
        self, topic: str, mode: Mode, filter_: str | None, options: dict[str, Any]
    ) -> PopConsumer:
        return self._pop_consumer_class(
            topic,
            popping(mode, filter_=filter_, **only(options, POPPING)),
            router=self._router,
            supervisor=self._supervisor,
            world=self._world,
        )

    async def settle(
        self,
        handles: Sequence[str],
        action: Literal["ack", "nack", "reject", "give_back", "extend"] = "ack",
        *,
        delay: float | None = None,
        reason: str = "rejected",
        timeout: float | None = None,
    ) -> list[bool]:
        """Settle messages by their handles (`raftmq pop` prints them), from any process.

        The consumer that popped the messages may still be open, here or elsewhere. If that consumer
        settles one of them, too, it learns that the message was settled before. Messages that were
        popped together and are rejected together are one dead letter.

        Args:
            handles: one for each message.
            action: as the methods of a popped message.
            delay: seconds; to nack: how long the messages wait, None: by the group's schedule; to
                extend: how long the leases run from now on.
            reason: to reject: the reason, for people.
            timeout: seconds for the whole call; None: the client's default.

        Returns:
            For each handle whether this call settled its message; False: the consumer no longer had
            the message, as its time ran out or it was settled before; `acked_before` tells which.

        Raises:
            Rejected: `BAD_ARGUMENT`, a text is no handle, or a delay is out of its range; then
                nothing was done. `UNKNOWN_GROUP`: the consumer group is gone.
            Unavailable, OutcomeUnknown: a leader did not answer in time; others may have done their
                part.
        """
        parsed = [parse_handle(handle) for handle in handles]
        disposition = disposition_of(action, delay=delay, reason=reason)
        number = settlement_number(self._world)
        settled = await settle_handles(
            self._router, parsed, disposition, number=number, timeout=timeout
        )
        return [handle in settled for handle in parsed]

    async def acked_before(
        self, handles: Sequence[str], *, timeout: float | None = None
    ) -> list[bool]:
        """Whether messages were acknowledged under the leases that their handles name: tells a
        repeated `ack` from a late one, where `settle` returns False for both.

        Each message is looked up in the log by itself, so ask about some messages, not in bulk.
        Cancelling leaves nothing behind.

        Returns:
            For each handle True if its message was acknowledged; False: it was not, or retention
            dropped the record of the ack.

        Raises:
            Rejected: `BAD_ARGUMENT`, a text is no handle.
            Unavailable: a leader was not found in time.
        """
        parsed = [parse_handle(handle) for handle in handles]
        acked = await find_acked(self._router, parsed, timeout)
        return [handle in acked for handle in parsed]

    async def progress(self, topic: str, group: str, *, timeout: float | None = None) -> Progress:
        """Take over a job's progress in a topic, kept under a group's name; see `progress`.

        The holder before is fenced: its next commit is refused. Cancelling leaves some queues taken
        and others not.

        Raises:
            Rejected: `UNKNOWN_TOPIC`; `FENCED`, another caller took it at the same time.
            Unavailable, OutcomeUnknown: the time ran out; a repeat is safe.
        """
        return await take_progress(self._router, topic, group, timeout)

    async def get(self, message_id: str, *, timeout: float | None = None) -> Message:
        """The message of this id. Cancelling leaves nothing behind.

        Raises:
            Rejected: the text is no id (`BAD_ARGUMENT`), the topic is gone (`UNKNOWN_TOPIC`), or
                the message does not exist yet, or no longer (`OFFSET_OUT_OF_RANGE`).
            Unavailable: the leader was not found in time.
        """
        return await get_message(self._router, message_id, timeout)

    async def trace(self, message_id: str, *, timeout: float | None = None) -> Trace:
        """The way of a message through the consumer groups that pop: the records of the log by
        which it was handed out, acked, failed, retried or became a dead letter. For one message at
        a time, not for bulk. Cancelling leaves nothing behind.

        Reading by offset (modes pull and broadcast) leaves no trace.

        Raises:
            Rejected: the text is no id (`BAD_ARGUMENT`), the topic is gone (`UNKNOWN_TOPIC`), or
                there never was such a message (`OFFSET_OUT_OF_RANGE`).
            Unavailable: a leader was not found in time.
        """
        return await trace(self._router, message_id, timeout)

    async def why(self, message_id: str, *, timeout: float | None = None) -> list[MessageEvent]:
        """Each record of the log that touched a message, in order; raises as `trace`."""
        return (await self.trace(message_id, timeout=timeout)).events

    async def events(
        self,
        partition_group: int,
        start: int | None = None,
        stop: int | None = None,
        *,
        bytes_max: int = 4 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Events:
        """The events of all messages in a partition group's log, as columns: `trace` in bulk.
        Cancelling leaves nothing behind.

        Args:
            partition_group: its number, from 1.
            start: the first record; None: the first that the log still has.
            stop: the record after the last one; None: the log's present end.
            bytes_max: rough limit of the bytes to read; go on from `Events.next`. 0: read no
                events, only the log's range (`Events.first`, `Events.end`).
            timeout: seconds for the whole call; None: the client's default.

        Raises:
            Rejected: `OFFSET_OUT_OF_RANGE`, the log does not hold the record `start` yet, or no
                longer; `BAD_ARGUMENT`, there is no such partition group.
            Unavailable: a leader was not found in time, or it cannot read the events.
        """
        return await read_events(
            self._router,
            self._names,
            partition_group,
            start=start,
            stop=stop,
            bytes_max=bytes_max,
            timeout=timeout,
        )

    async def cancel(self, message_id: str, *, timeout: float | None = None) -> bool:
        """Take back a delayed message, by the id of its receipt. A repeat is safe.

        Returns:
            True: this call took the message back, and it is never delivered. False: no such message
            waits; it was taken back before, or never existed.

        Raises:
            Rejected: `FELL_DUE`, the message's time has come, and it is delivered; `BAD_ARGUMENT`,
                the text is no id; `UNKNOWN_TOPIC`, the topic is gone.
            Unavailable: the leader was not found in time.
            OutcomeUnknown: the time ran out after the request was sent.
        """
        return await cancel_delayed(self._router, message_id, timeout)

    def check_back(
        self, group: str, check: Check, *, after: float = 10.0, every: float = 5.0
    ) -> AbstractAsyncContextManager[None]:
        """`async with mq.check_back("shop", decide):` ends transactions whose producer died.

        Args:
            group: the producer group, as given to `Producer.transaction`.
            check: called with each transaction of the group that stays open, by each process that
                runs a check-back; True commits it, False rolls it back, None asks again later. It
                may be `async`. An exception of `check` ends the block.
            after: least age in seconds of a transaction that `check` is asked about.
            every: seconds between two searches for open transactions.
        """
        return check_back(self._router, group, check, after=after, every=every)

    async def open_transactions(
        self, group: str = "", *, timeout: float | None = None
    ) -> list[OpenTransaction]:
        """Open transactions, the oldest first; of one producer group, or all."""
        return await open_transactions(self._router, group, timeout=timeout)

    async def end_transaction(
        self, transaction_id: str, *, commit: bool, timeout: float | None = None
    ) -> int:
        """Commit or roll back a transaction; returns the number of its messages, 0 if it had ended
        this way before.

        Raises:
            Rejected: `TRANSACTION_ENDED`, it ended the other way; `FENCED`, the commit became a
                rollback, as an input is no longer in hand; `UNKNOWN_TRANSACTION`, it never existed,
                or ended long ago; `BAD_ARGUMENT`, the text is no id.
            Unavailable, OutcomeUnknown: no answer in time; a repeat is safe.
        """
        return await end_transaction(
            self._router, transaction_id, is_commit=commit, timeout=timeout
        )

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
            topic: the topic's name.
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
