"""The producers, consumers and admin of a checked queue: they record their calls on the tape.

Each method calls its base, and records the call before and the answer after. A call that raises
leaves its end open: an unknown outcome never makes a verdict wrong.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from raftmq.batch import Sealed
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.dead_letters import DeadLetter
from raftmq.client.admin.descriptions import OffsetChange
from raftmq.client.consume.consumer import Consumer
from raftmq.client.message import Message, Messages, Slice, format_id, parse_id
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.leases import Grip, offsets_of
from raftmq.client.pop.popped import Part, Settlement
from raftmq.client.pop.prefetch_buffer import Taken
from raftmq.client.pop.prefetcher import PopSettings
from raftmq.client.pop.settlement import Settlements
from raftmq.client.produce.columns import Columns
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.receipts import Outgoing, SentMany
from raftmq.client.produce.transactions import Transaction
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.pop.actions import Action

from .tape import Reader, Row, Tape, digest, shown

if TYPE_CHECKING:
    from raftmq.client.produce.producer_batch import Arguments, PendingSend
    from raftmq.client.produce.queues import Routed


class RecordedProducer(Producer):
    """See `Producer`."""

    def __init__(self, tape: Tape, *args: Any, **parts: Any) -> None:
        self._tape = tape
        self._process = tape.process()
        transaction = partial(RecordedTransaction, tape, self._process)
        super().__init__(*args, **parts, transaction=transaction)

    async def send(self, *args: Any, **options: Any) -> Any:
        """See `Producer.send`."""
        try:
            return await super().send(*args, **options)
        finally:
            self._tape.sweep()

    async def send_many(self, *args: Any, **options: Any) -> SentMany:
        """See `Producer.send_many`."""
        try:
            return await super().send_many(*args, **options)
        finally:
            self._tape.sweep()

    async def put_arrow(self, *_: Any, **__: Any) -> int:
        """Refused: the tape would miss the sends, and each message read would be a breach."""
        message = "put_arrow is not recorded: open the queue without check=True"
        raise Rejected(Reason.BAD_ARGUMENT, message)

    async def flush(self, *, timeout: float | None = None) -> None:
        """See `Producer.flush`."""
        try:
            await super().flush(timeout=timeout)
        finally:
            self._tape.sweep_all()

    def _append(self, message: "Arguments", *args: Any, **options: Any) -> Any:
        sender, entry = super()._append(message, *args, **options)
        body, key, tag, _, due = message
        told: PendingSend = entry
        self._tape.sent(
            self._process, told, [digest(body, key, tag)], [shown(body, key)], is_later=due > 0
        )
        return sender, entry

    def _batches(self, columns: Columns, queue: int | None, deadline: float) -> "Iterator[Routed]":
        # The caller may change its lists while `send_many` waits for room.
        return super()._batches(_copied(columns), queue, deadline)

    def _put(self, batch: "Routed") -> None:
        super()._put(batch)
        columns = batch.columns
        assert columns is not None, "put_arrow is refused"
        rows = [_row(columns, position) for position in batch.positions]
        told = [shown(body, key) for body, key, _ in rows]
        is_later = columns.dues is not None and any(columns.dues[n] for n in batch.positions)
        self._tape.sent(
            self._process, batch.part, [digest(*row) for row in rows], told, is_later=is_later
        )


def _fixed(body: Any) -> Any:
    return bytes(body) if isinstance(body, bytearray | memoryview) else body


def _copied(columns: Columns) -> Columns:
    keys, tags = columns.keys, columns.tags
    return columns._replace(
        bodies=[_fixed(body) for body in columns.bodies],
        keys=None if keys is None else list(keys),
        tags=None if tags is None else list(tags),
    )


def _row(columns: Columns, position: int) -> tuple[bytes, str | bytes | None, str | None]:
    keys, tags = columns.keys, columns.tags
    key = None if keys is None else keys[position]
    return columns.bodies[position], key, None if tags is None else tags[position]


class RecordedTransaction(Transaction):
    """See `Transaction`."""

    def __init__(self, tape: Tape, process: int, *args: Any) -> None:
        super().__init__(*args)
        self._tape = tape
        self._process = process
        self._sends: list[int] = []

    async def _store(
        self, queue_number: int, rows: list[Outgoing], sealed: Sealed, timeout: float
    ) -> None:
        digests = [digest(row.body, row.key, row.tag) for row in rows]
        told = [shown(row.body, row.key) for row in rows]
        # Recorded before the request, which may store the messages and get no answer.
        self._sends.append(self._tape.hidden(self._process, queue_number, digests, told))
        await super()._store(queue_number, rows, sealed, timeout)

    async def _end(self, timeout: float, *, is_commit: bool) -> None:
        acks: list[tuple[int, int]] = []
        if is_commit and self._inputs is not None:
            for settlements, parts in self._inputs.by_consumer.items():
                assert isinstance(settlements, RecordedSettlements)
                acks.append(settlements.begin_acks(parts))
        try:
            await super()._end(timeout, is_commit=is_commit)
        except Rejected as error:
            # A fenced commit is a rollback; after any other error the outcome stays open.
            if error.reason is Reason.FENCED:
                self._never()
            raise
        if is_commit:
            for operation in filter(None, self._sends):
                self._tape.end(operation)
        else:
            self._never()
        for operation, count in acks:
            self._tape.end(operation, [(1,)] * count)

    def _never(self) -> None:
        """Record that the transaction's sends are rolled back."""
        for operation in filter(None, self._sends):
            self._tape.end(operation, is_ok=False)


class RecordedConsumer(Consumer):
    """See `Consumer`."""

    def __init__(self, tape: Tape, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self._tape = tape
        self._process = tape.process()
        settings, is_member = self._settings, parts.get("join") is not None
        is_steady = settings.on_trimmed == "error" and not is_member
        tape.readers[self._process] = Reader(self.topic, self.group, is_steady)
        if settings.filter is not None and self.group is not None:
            tape.filtered.add((self.topic, self.group))

    async def __anext__(self) -> Message:
        """See `Consumer.__anext__`."""
        operation = self._tape.begin(self._process, "poll")
        message = await super().__anext__()
        number = parse_id(message.id)[0]
        said = digest(message.body, message.key, message.tag)
        self._tape.end(operation, [(number, message.offset, said)])
        return message

    async def fetch(self, count: int = 500, *, wait: float = 1.0) -> Messages:
        """See `Consumer.fetch`."""
        operation = self._tape.begin(self._process, "poll")
        messages = await super().fetch(count, wait=wait)
        rows = [row for part in messages.slices for row in rows_of(part)]
        if rows:
            self._tape.end(operation, rows)
        else:
            self._tape.drop(operation)
        return messages

    async def seek(
        self,
        *,
        queue: int | None = None,
        offset: int | None = None,
        time: datetime | None = None,
        to: Literal["earliest", "latest"] | None = None,
        timeout: float | None = None,
    ) -> None:
        """See `Consumer.seek`."""
        try:
            await super().seek(queue=queue, offset=offset, time=time, to=to, timeout=timeout)
        finally:
            # Even a seek that raised may have moved the consumer: its next poll follows no other.
            self._tape.end(self._tape.begin(self._process, "assign"))


def rows_of(part: Slice) -> list[Row]:
    """(queue number, offset, digest) of neighbouring messages."""
    batch, start, stop, number = part
    tags = [batch.tag(position) for position in range(start, stop)]
    said = zip(batch.bodies[start:stop], batch.keys[start:stop], tags, strict=True)
    first = batch.base_offset + start
    return [(number, first + n, digest(*each)) for n, each in enumerate(said)]


class RecordedPopConsumer(PopConsumer):
    """See `PopConsumer`."""

    def __init__(self, tape: Tape, topic: str, settings: PopSettings, **parts: Any) -> None:
        self._tape = tape
        self._process = tape.process()
        settlements = partial(RecordedSettlements, tape, self._process, settings.group)
        super().__init__(topic, settings, **parts, settlements=settlements)
        if settings.is_latest:
            tape.latest.add((topic, settings.group))
        if settings.filter is not None:
            tape.filtered.add((topic, settings.group))

    async def _next_one(self) -> tuple[Taken, Grip]:
        """See `PopConsumer`."""
        operation = self._tape.begin(self._process, "pop", group=self.group)
        taken, grip = await super()._next_one()
        self._tape.end(operation, self._rows([taken]))
        return taken, grip

    async def _next_many(self, count: int, wait: float, invisible: float | None) -> list[Taken]:
        """See `PopConsumer`."""
        operation = self._tape.begin(self._process, "pop", group=self.group)
        taken = await super()._next_many(count, wait, invisible)
        if taken:
            self._tape.end(operation, self._rows(taken))
        else:
            self._tape.drop(operation)
        return taken

    def _rows(self, taken: Iterable[Taken]) -> list[Row]:
        rows: list[Row] = []
        for part, lease, _ in taken:
            # Node and application share one clock. A lease that ran out during a stall of this
            # process is no breach of the node's, so at least 1 ms is recorded.
            remaining = max(1, lease.deadline_ms - self._tape.now_ms())
            under = lease.token, lease.attempt, remaining
            rows += [(*row, *under) for row in rows_of(part)]
        return rows


class RecordedSettlements(Settlements):
    """See `Settlements`."""

    def __init__(self, tape: Tape, process: int, group: str, *args: Any) -> None:
        super().__init__(*args)
        self._tape = tape
        self._process = process
        self._group = group
        # Settlements of `settle_nowait` since the last flush.
        self._unheard: list[tuple[int, list[tuple[int, int, int]]]] = []

    async def settle(
        self,
        parts: Sequence[Part],
        action: Action,
        *,
        delay_ms: int = -1,
        reason: str = "",
        timeout: float | None = None,
    ) -> Settlement:
        """See `Settlements.settle`."""
        argument = reason if action is Action.REJECT else delay_ms
        named = _named(parts)
        operation = self._begin(action, named, argument)
        settlement = await super().settle(
            parts, action, delay_ms=delay_ms, reason=reason, timeout=timeout
        )
        self._tape.end(operation, _results(named, settlement, 1))
        return settlement

    def settle_nowait(self, parts: Sequence[Part], action: Action) -> None:
        """See `Settlements.settle_nowait`. The next `flush` records the results."""
        named = _named(parts)
        self._unheard.append((self._begin(action, named, -1), named))
        super().settle_nowait(parts, action)

    async def flush(self, *, timeout: float | None) -> Settlement:
        """See `Settlements.flush`."""
        unheard, self._unheard = self._unheard, []
        settlement = await super().flush(timeout=timeout)
        for operation, named in unheard:
            self._tape.end(operation, _results(named, settlement, 1))
        return settlement

    async def extend(
        self, parts: Sequence[Part], seconds: float, *, timeout: float | None = None
    ) -> Settlement:
        """See `Settlements.extend`."""
        named, milliseconds = _named(parts), round(seconds * 1000)
        operation = self._begin(Action.EXTEND, named, milliseconds)
        settlement = await super().extend(parts, seconds, timeout=timeout)
        self._tape.end(operation, _results(named, settlement, milliseconds))
        return settlement

    def begin_acks(self, parts: Sequence[Part]) -> tuple[int, int]:
        """Record acks that a transaction is about to commit: the operation, and their number."""
        named = _named(parts)
        return self._begin(Action.ACK, named, -1), len(named)

    def _begin(self, action: Action, named: Sequence[Row], argument: int | str) -> int:
        function = action.name.lower()
        return self._tape.begin(
            self._process, function, group=self._group, rows=named, argument=argument
        )


def _named(parts: Sequence[Part]) -> list[tuple[int, int, int]]:
    """(queue number, offset, token) of the messages of leases."""
    return [
        (lease.queue_number, offset, lease.token)
        for lease, bits in parts
        for offset in offsets_of(lease.base, bits)
    ]


def _results(named: Iterable[tuple[int, int, int]], settlement: Settlement, done: int) -> list[Row]:
    lost = set(settlement.fenced)
    return [
        (-1 if (format_id(number, at), token) in lost else done,) for number, at, token in named
    ]


class RecordedAdmin(Admin):
    """See `Admin`: changes of consumer groups matter to the verdict."""

    def __init__(self, tape: Tape, router: Router) -> None:
        super().__init__(router)
        self._tape = tape

    async def subscribe(self, topic: str, group: str, *args: Any, **options: Any) -> None:
        """See `Admin.subscribe`."""
        # Noted before the call, which may take effect and raise all the same.
        self._tape.filtered.add((topic, group))
        await super().subscribe(topic, group, *args, **options)

    async def attach(self, topic: str, group: str, **options: Any) -> int:
        """See `Admin.attach`."""
        if options.get("start") == "latest":
            self._tape.latest.add((topic, group))
        return await super().attach(topic, group, **options)

    async def detach(self, topic: str, group: str, **options: Any) -> bool:
        """See `Admin.detach`."""
        self._tape.forgotten.add((topic, group))
        return await super().detach(topic, group, **options)

    async def delete_consumer_group(self, name: str, **options: Any) -> None:
        """See `Admin.delete_consumer_group`."""
        for known in await self.consumer_groups(name=name):
            for attachment in known.attachments:
                self._tape.forgotten.add((attachment.topic, name))
        await super().delete_consumer_group(name, **options)

    async def reset_group(self, name: str, topic: str, **options: Any) -> list[OffsetChange]:
        """See `Admin.reset_group`."""
        self._tape.forgotten.add((topic, name))
        return await super().reset_group(name, topic, **options)

    async def clone_group(
        self, source: str, name: str, topic: str, **options: Any
    ) -> list[OffsetChange]:
        """See `Admin.clone_group`."""
        self._tape.forgotten.add((topic, name))
        return await super().clone_group(source, name, topic, **options)

    async def redrive(self, letters: Sequence[DeadLetter], **options: Any) -> int:
        """See `Admin.redrive`."""
        async with self._revived("redrive", letters):
            return await super().redrive(letters, **options)

    async def purge(self, letters: Sequence[DeadLetter], **options: Any) -> int:
        """See `Admin.purge`."""
        async with self._revived("purge", letters):
            return await super().purge(letters, **options)

    @asynccontextmanager
    async def _revived(self, function: str, letters: Sequence[DeadLetter]) -> AsyncIterator[None]:
        operations = [
            self._tape.begin(
                0,
                function,
                group=letter.group,
                rows=[(*parse_id(each), letter.letter) for each in letter.ids],
            )
            for letter in letters
            if letter.ids
        ]
        yield
        for operation in operations:
            self._tape.end(operation)
