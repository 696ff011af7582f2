"""The producer: `send`, `send_nowait` and `flush`, `send_many`.

The producer picks the queue and bounds the buffer; a `queue_sender` for each queue sends.
Source: Nagle (RFC 896), for messages that gather while a batch is under way.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.lowlevel

from raftmq.batch import Limits, Value
from raftmq.client.arguments import require, require_dict, require_seconds, typed
from raftmq.client.deferred_calls import DeferredCalls
from raftmq.client.message import Message
from raftmq.client.pop.popped import LeasedMessage
from raftmq.client.recorders import ProducerRecorder
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import Supervisor, TaskScope
from raftmq.client.world import ClientWorld
from raftmq.errors import OutcomeUnknown, RaftmqError, Unavailable, WrongType
from raftmq.pushed import Pushed
from raftmq.words import counted

from .columns import Columns, columns_of
from .deadlines import Deadlines
from .delays import Delay, cancel_delayed, due_ms
from .producer_batch import Arguments, Entry, PendingMany, PendingPart, PendingSend
from .queue_sender import MESSAGE_BYTES, QueueSender, SenderHost
from .queues import Queues, Routed
from .receipts import Outgoing, Receipt, SentMany, raise_first
from .send_buffer import SendBuffer
from .settings import CLOSED, PAUSED, ProducerSettings, ProducerStatistics, random_id
from .transaction_inputs import Inputs
from .transactions import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

_CHECKPOINT_BATCHES = 16
"""`send_many` lets other tasks run after it has checked this many batches."""
_FAILED_MAX = 1_000
"""Errors kept for `flush`; more than one are counted, not raised."""


@typed(skip=("send", "send_nowait"))
class Producer:
    """Sends messages to one topic. Made by `Client.producer`; use it as `async with`.

    *Which queue.* A message with a key goes to queue `crc32c(key) % queues`; one without goes to
    the producer's current queue, which changes after 64 KiB, a full batch, or when its batch is
    answered, so that batches are full and queues are used alike. Queues whose leader is slow or
    failed get fewer or none of these messages (`statistics`). `queue=` overrides both.

    *Order.* Messages of one producer to one queue are stored in the order of the calls, each once,
    whatever is retried. Two calls that run at the same time have no order.

    *Batches.* By default a message goes out at once if its queue has no batch under way, else it is
    gathered with others until the answer comes (as Nagle's algorithm does) and the callers that it
    wakes have had their turn; with `linger` it is gathered for that many seconds. A batch that
    reaches `batch_bytes` or `batch_messages` goes out at once. Calls of `send_many` share batches
    likewise, except those with properties: the rows of such a call for a queue are a batch of their
    own.

    *Delays.* A message that is sent with `delay=` is stored at once and waits there; consumers see
    it when it falls due, by the clock of its queue's leader, never earlier. The message takes its
    place in the queue then, after all earlier messages; delayed messages are ordered by their
    times, and for equal times by the order of sending. `Receipt.id` names it for `cancel`.

    *Bounds.* At most `buffer_bytes` and `buffer_messages` wait for their answer.
    """

    def __init__(
        self,
        topic: str,
        settings: ProducerSettings,
        *,
        router: Router,
        supervisor: Supervisor,
        world: ClientWorld,
        recorder: ProducerRecorder | None = None,
    ) -> None:
        self._settings = self._own_settings = settings.validate()
        self._router = router
        self._supervisor = supervisor
        self._world = world
        self._recorder = recorder
        self._tasks: TaskScope | None = None
        self._host: SenderHost | None = None
        self._queues: Queues | None = None
        self._room = SendBuffer(settings)
        self._failed: list[Entry] = []
        self._deferred = DeferredCalls(settings.linger or 0.0)
        self._deadlines = Deadlines(self._expire)
        self.topic = topic
        """The topic's name."""

    async def __aenter__(self) -> Self:
        """Look the topic up. Cancelling leaves nothing behind.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
            Unavailable: no node answered in time.
        """
        await self._open(self._router.seconds_max)
        return self

    async def _open(self, timeout: float) -> None:
        topic, router = self.topic, self._router
        view = await router.within(timeout, router.look_up(topic), f"looking {topic!r} up")
        first = self._world.random.randrange(len(view.groups))
        ask = partial(router.topic, self.topic, is_fresh=True)
        self._queues = Queues(view, first, self._make_sender, ask, router)
        self._tasks = self._supervisor.task_scope(self._end)
        welcomes = [connection.welcome for connection in router.connections.values()]
        self._host = SenderHost(
            producer=random_id(self._world.random),
            topic=self.topic,
            router=router,
            tasks=self._tasks,
            random=self._world.random,
            now_ms=self._world.now_ms,
            limits=Limits(batch_bytes_max=min(w.batch_bytes_max for w in welcomes)),
            settings=lambda: self._settings,
            give_back=lambda entry: self._room.give(entry.size, entry.count),
            failed=self._take_failed,
            sealed=self._queues.note_sealed,
            pump_later=self._pump_later,
        )
        router.watch(self._follow_topic)
        router.pushed.follow(self._settings.use(topic), self._obey)
        self._tasks.start(self._deadlines.watch)
        self._tasks.start(self._deferred.run)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close: flush first, and raise the errors of `flush`, unless the body already raised."""
        if error is None:
            await self.aclose()
        elif isinstance(error, Exception):
            try:
                await self.aclose()
            except RaftmqError as failed:
                error.add_note(f"while the producer was closed: {failed}")
        else:
            self._end()

    async def send(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        delay: Delay | None = None,
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
            delay: seconds or a timedelta, 0 or more, or a time with a time zone: deliver it then,
                ten years from now at the latest. A time that has passed means at once.
            timeout: seconds; None: the client's default.

        Raises:
            Unavailable: the time ran out before the message was written: it is not stored, now or
                ever.
            OutcomeUnknown: the time ran out, or the broker forgot this producer, after the message
                was written. It was stored, or may be until the next message of its queue is.
            Rejected: the message is too large, has a value that no column can hold, or the topic
                is gone; `TOO_MANY_DELAYED`: the limit of delayed messages is reached.
        """
        size = self._size_of(body, props)
        message = (body, key, tag, props, due_ms(delay, self._world.now_ms()))
        deadline = await self._ready(queue, timeout)
        if not self._room.take_nowait(size, 1):
            await self._wait_room(size, 1, deadline)
        sender, entry = self._append(message, queue, size, deadline, is_later=False)
        try:
            await entry.wait_done()
        except BaseException:
            sender.take_back(entry)
            raise
        return entry.receipt()

    def send_nowait(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        delay: Delay | None = None,
        timeout: float | None = None,
    ) -> PendingSend:
        """Take one message to be sent; `wait` of the result returns its receipt.

        The next `flush`, or the end, raises an error that no `wait` of its message has told.

        Raises:
            Unavailable: the buffer is full: `await flush()` first. The message was not taken.
            Rejected: as `send`.
        """
        size = self._size_of(body, props)
        message = (body, key, tag, props, due_ms(delay, self._world.now_ms()))
        if not self._room.take_nowait(size, 1):
            raise Unavailable(self._room.why_full)
        _, entry = self._append(message, queue, size, self._deadline(timeout), is_later=True)
        return entry

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send all waiting messages, without lingering, and wait until all outcomes are known.

        Cancelling stops the waiting, not the sending.

        Raises:
            Unavailable, OutcomeUnknown, Rejected: the first error of a message sent by a `_nowait`
                call since the last flush whose `wait` was not called.
            OutcomeUnknown: the time ran out; the messages stay under way.
        """
        self._check()
        waited: list[Entry] = []
        for sender in self._senders:
            sender.pump(is_flush=True)
            waited += [entry for batch in sender.batches for entry in batch.entries]
        with anyio.CancelScope(deadline=self._deadline(timeout)) as scope:
            # From the end: once the last entry of a batch is done, the others are done, too.
            for entry in reversed(waited):
                await entry.wait_unheard()
        await anyio.lowlevel.checkpoint()
        if scope.cancelled_caught:
            count = sum(entry.count for entry in waited if not entry.is_done)
            raise OutcomeUnknown(f"{counted(count, 'message')} still under way: flush again")
        self._raise_failed()

    async def send_many(
        self,
        messages: Iterable[bytes | Outgoing | Message] = (),
        *,
        bodies: Sequence[bytes] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        props: Sequence[Mapping[str, Value | None] | None] | None = None,
        queue: int | None = None,
        delay: Delay | Sequence[Delay | None] | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> SentMany:
        """Send many messages and wait for all of them. The fast way in.

        Give either `messages` or the columns (`bodies` and, each as long, `keys`, `tags`, `props`).
        Messages of one queue keep their order. Those without a key go to the queues in turn, a
        batch to each; calls under way at once share a batch. Cancelling takes back the batches that
        were not written yet. `delay` is one for all messages, or one each: see `send`.

        Returns:
            One receipt or error a message, as ranges.

        Raises:
            SomeUnsent: not all were stored; its `sent` holds the result. With `check=False` the
                result is returned instead, errors included.
            Rejected: a message cannot be encoded; nothing was sent.
        """
        deadline = await self._ready(queue, timeout)
        batches = []
        columns = columns_of(messages, bodies, keys, tags, props)
        columns = columns.delayed(delay, self._world.now_ms())
        for batch in self._batches(columns, queue, deadline):
            batches.append(batch)
            if len(batches) % _CHECKPOINT_BATCHES == 0:
                await anyio.lowlevel.checkpoint()
        pending = PendingMany([(batch.part, batch.positions) for batch in batches])
        try:
            await self._put_all(batches, deadline)
            return await pending.wait(check=check)
        except anyio.get_cancelled_exc_class():
            for batch in batches:
                batch.sender.take_back(batch.part)
            raise

    def send_many_nowait(
        self,
        messages: Iterable[bytes | Outgoing | Message] = (),
        *,
        bodies: Sequence[bytes] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        props: Sequence[Mapping[str, Value | None] | None] | None = None,
        queue: int | None = None,
        delay: Delay | Sequence[Delay | None] | None = None,
        timeout: float | None = None,
    ) -> PendingMany:
        """As `send_many`, without waiting: keep several under way and `wait` for each.

        Raises:
            Unavailable: the buffer has no room for all of them; none was taken.
            Rejected: a message cannot be encoded; none was taken.
        """
        columns = columns_of(messages, bodies, keys, tags, props)
        columns = columns.delayed(delay, self._world.now_ms())
        batches = list(self._batches(columns, queue, self._deadline(timeout)))
        size = sum(batch.part.size for batch in batches)
        if not self._room.take_nowait(size, len(columns.bodies)):
            raise Unavailable(self._room.why_full)
        for batch in batches:
            self._put(batch)
        return PendingMany([(batch.part, batch.positions) for batch in batches])

    async def put_arrow(
        self,
        rows: "pa.RecordBatch",
        *,
        unkeyed: int | None = None,
        skip: Mapping[int, int] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Take rows of Arrow to be sent, and return how many when all have found room.

        `raftmq.client.produce.arrow_rows` names the columns. No object is made for a row; rows of
        one queue keep their order. The next `flush`, or the end, raises the first error of the rows
        that failed. Cancelling leaves a part of the rows under way.

        Args:
            rows: up to 2^31 - 1 bytes in each column.
            unkeyed: the queue of rows without queue and key; None: the one whose turn it is.
            skip: queue → how many of its first rows are not sent, as they are stored already.
            timeout: seconds until unanswered rows fail; None: the client's default.

        Raises:
            BadRow: one cannot be sent; none was taken.
            Rejected: there are other columns or types; none was taken.
            Unavailable: there was no room in time; a part of the rows is under way.
            Unavailable, OutcomeUnknown, Rejected: rows or messages of an earlier call failed.
        """
        from .arrow_rows import encode_rows

        self._check()
        self._raise_failed()
        queues, host = self._queues, self._host
        assert queues is not None
        assert host is not None
        unkeyed = queues.current() if unkeyed is None else queues.pick(None, unkeyed)
        options = self._settings, len(queues), unkeyed, host.limits, self._world.now_ms()
        encoded, deadline = encode_rows(rows, *options, skip or {}), self._deadline(timeout)
        batches = [Routed.of(queues.sender(queue), batch, deadline) for queue, batch in encoded]
        await self._put_all(batches, deadline)
        for error in (batch.part.error for batch in batches if batch.part.error):
            raise error
        return sum(batch.part.count for batch in batches)

    def transaction(
        self,
        *,
        acks: Iterable[LeasedMessage] | None = None,
        group: str = "",
        note: str = "",
        timeout: float | None = None,
    ) -> Transaction:
        """`async with p.transaction(acks=[m]) as t:` sends all or nothing: see `Transaction`.

        Args:
            acks: popped messages, of one partition group, that the commit acknowledges.
            group: without `acks`: the producer group, whose processes can say how it ended.
            note: the transaction's purpose; up to 1,000 characters.
            timeout: seconds, for each of its calls; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`, neither `acks` nor `group` is given, or both are.
        """
        self._check()
        require((acks is None) is bool(group), "give either acks= or group=")
        inputs = None if acks is None else Inputs(acks)
        recorder = None if self._recorder is None else self._recorder.transaction()
        parts = self._router, self._world, self._queues
        return Transaction(*parts, group, note, timeout, inputs, recorder)

    async def cancel(self, message_id: str, *, timeout: float | None = None) -> bool:
        """See `Client.cancel`."""
        self._check()
        return await cancel_delayed(self._router, message_id, timeout)

    async def aclose(self, *, timeout: float | None = None) -> None:
        """Flush and end. A second call does nothing. Cancelling ends the producer at once.

        Raises:
            As `flush`.
        """
        if self._tasks is None or self._tasks.is_closed:
            return
        try:
            await self.flush(timeout=timeout)
        finally:
            self._end()

    def statistics(self) -> ProducerStatistics:
        """The use of the buffer and of the queues now, and the weights of the nodes."""
        room, weights = self._room, {} if self._queues is None else self._queues.weights()
        return ProducerStatistics(room.bytes_used, room.messages_used, len(self._senders), weights)

    # -- taking messages -------------------------------------------------------------------------

    def _append(
        self,
        message: Arguments,
        queue: int | None,
        size: int,
        deadline: float,
        *,
        is_later: bool,
    ) -> tuple[QueueSender, PendingSend]:
        """Hand a message to its sender; its room is taken already, and given back on an error.

        With `is_later`, or if the last batch had messages of several calls, the message goes out
        when other tasks have had their turn, so that messages sent at one time share a batch.
        """
        try:
            queues = self._queues
            assert queues is not None
            _body, key, _tag, _props, _due = message
            sender = queues.sender(queues.pick(key, queue))
            entry = PendingSend(
                queue_number=sender.queue_number, size=size, deadline=deadline, arguments=message
            )
            is_full = sender.append(entry)
        except BaseException:
            self._room.give(size, 1)
            raise
        if self._recorder is not None:
            self._recorder.sent(entry)
        self._deadlines.note(deadline)
        if is_full:
            queues.note_full(sender)
        is_later = is_later or queues.is_shared
        if is_full or not is_later:
            sender.pump()
        if is_later or self._settings.linger is not None:
            self._pump_later(sender)
        return sender, entry

    def _batches(self, columns: Columns, queue: int | None, deadline: float) -> Iterator[Routed]:
        """Check the messages, batch after batch."""
        self._check()
        queues, host = self._queues, self._host
        assert queues is not None
        assert host is not None
        queues.pick(None, queue or 0)
        columns.check()
        now_ms = self._world.now_ms()
        for cut in columns.cut(
            queues=len(queues),
            queue=queue,
            next_queue=queues.current,
            bytes_max=min(self._settings.batch_bytes, host.limits.batch_bytes_max // 2),
            messages_max=self._settings.batch_messages,
        ):
            content = columns.take(
                cut.positions,
                base_ms=now_ms,
                compression=self._settings.compression,
                limits=host.limits,
            )
            sender = queues.sender(cut.queue)
            part = PendingPart(
                queue_number=sender.queue_number,
                size=content.size + MESSAGE_BYTES,
                deadline=deadline,
                content=content,
                dues=columns.dues_of(cut.positions),
            )
            yield Routed(sender, part, cut.positions)

    async def _put_all(self, batches: list[Routed], deadline: float) -> None:
        """Hand batches to their senders as room comes; batches without room in time fail."""
        for number, batch in enumerate(batches):
            try:
                if not self._room.take_nowait(batch.part.size, batch.part.count):
                    await self._wait_room(batch.part.size, batch.part.count, deadline)
            except RaftmqError as error:  # no room in time, or the producer was closed or failed
                for late in batches[number:]:
                    late.part.fail(error)
                return
            self._put(batch)

    def _put(self, batch: Routed) -> None:
        sender, part = batch.sender, batch.part
        is_full = sender.put(part) if part.sealed is not None else sender.append(part)
        if self._recorder is not None:
            self._recorder.sent(part)
        self._deadlines.note(part.deadline)
        if is_full:
            assert self._queues is not None
            self._queues.note_full(sender)
            sender.pump()
        self._pump_later(sender)

    @property
    def _senders(self) -> list[QueueSender]:
        return list(self._queues.senders.values()) if self._queues is not None else []

    def _make_sender(self, queue_number: int, group: int) -> QueueSender:
        assert self._host is not None
        return QueueSender(self._host, queue_number=queue_number, group=group)

    def _pump_later(self, sender: QueueSender, *, is_after_answer: bool = False) -> None:
        pump = sender.pump if self._settings.linger is None else sender.pump_all
        self._deferred.add(pump, is_after_answer=is_after_answer)

    async def _wait_room(self, size: int, count: int, deadline: float) -> None:
        for sender in self._senders:
            sender.pump(is_flush=True)
        with anyio.move_on_after(deadline - anyio.current_time()):
            await self._room.take(size, count)
            if self._tasks is None or self._tasks.is_closed:
                self._room.give(size, count)
                self._supervisor.check()
                raise Unavailable(CLOSED)
            return
        why = PAUSED if self._settings.is_paused else self._room.why_full
        raise Unavailable(f"{why}; there was no room in time")

    def _size_of(self, body: bytes, props: Mapping[str, Value | None] | None) -> int:
        self._check()
        if not isinstance(body, bytes | bytearray | memoryview):
            raise WrongType(f"a body is bytes, not {type(body).__name__}")
        require_dict(props, "props")
        return len(body) + MESSAGE_BYTES * (1 + len(props or ()))

    # -- background ------------------------------------------------------------------------------

    def _expire(self, now: float) -> float:
        return min([sender.expire(now) for sender in self._senders], default=inf)

    def _follow_topic(self) -> None:
        """The topic may have got more queues."""
        view = self._router.topics.get(self.topic)
        if view is not None and self._queues is not None and view.id == self._queues.view.id:
            self._queues.view = view

    def _obey(self, pushed: Pushed) -> None:
        """Operators push these settings."""
        assert self._queues is not None
        self._settings = self._own_settings.obeying(pushed.producer)
        self._deferred.set_seconds(self._settings.linger or 0.0)
        self._queues.obey(pushed.producer)
        for sender in self._senders:
            sender.obey(self._settings)
            self._pump_later(sender)

    def _take_failed(self, entry: Entry) -> None:
        if len(self._failed) < _FAILED_MAX:
            self._failed.append(entry)

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, []
        raise_first([entry.error for entry in failed if not entry.is_heard and entry.error])

    def _end(self, error: RaftmqError | None = None) -> None:
        if self._tasks is None or self._tasks.is_closed:
            return
        self._tasks.cancel()
        self._router.unwatch(self._follow_topic)
        self._router.pushed.unfollow(self._settings.use(self.topic), self._obey)
        for sender in self._senders:
            sender.close(error)

    def _check(self) -> None:
        if self._tasks is None:
            raise RaftmqError("the producer is not open: enter it by `async with`, or `with`")
        self._tasks.check()

    async def _ready(self, queue: int | None, timeout: float | None) -> float:
        deadline = self._deadline(timeout)
        if queue is not None and self._queues is not None:
            await self._queues.learn(queue, deadline)
            # A closed producer learns of no new queue: its own error comes before a refusal.
            self._check()
        return deadline

    def _deadline(self, timeout: float | None) -> float:
        if timeout is not None:
            require_seconds(timeout, "timeout")
        return anyio.current_time() + (self._router.seconds_max if timeout is None else timeout)
