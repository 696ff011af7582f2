"""The recorders of a checked queue: they write calls and answers on the tape.

See `raftmq.client.recorders` for the calls. A call that raises leaves its end open: an unknown
outcome never makes a verdict wrong. The admin, and calls that cannot be recorded, override public
methods.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from raftmq.client.admin.admin import Admin
from raftmq.client.admin.dead_letters import DeadLetter
from raftmq.client.admin.descriptions import OffsetChange
from raftmq.client.checked.digests import digest, digests_of
from raftmq.client.message import format_id, parse_id
from raftmq.client.options import ConsumerSettings
from raftmq.client.pop.leases import Part
from raftmq.client.pop.prefetch_buffer import Taken
from raftmq.client.pop.prefetcher import PopSettings
from raftmq.client.pop.tally import Settlement
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.producer_batch import Entry
from raftmq.client.produce.receipts import Outgoing
from raftmq.client.recorders import PopRecorder
from raftmq.client.routing.router import Router
from raftmq.client.slices import Slice
from raftmq.errors import Reason, Rejected
from raftmq.pop.actions import Action
from raftmq.pop.spans import offsets_of

from .tape import Reader, Row, Tape, shown


class RecordedProducer(Producer):
    """A producer that refuses what its recorder cannot record."""

    async def put_arrow(self, *_: Any, **__: Any) -> int:
        """Refused: the rows do not tell their recorder which of them wait for a later time."""
        message = "put_arrow is not recorded: open the queue without check=True"
        raise Rejected(Reason.BAD_ARGUMENT, message)


class ProducerTape:
    """See `ProducerRecorder`."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._process = tape.process()

    def sent(self, entry: Entry) -> None:
        """See `ProducerRecorder.sent`."""
        contents = list(entry.contents)
        digests = [digest(*content) for content in contents]
        told = [shown(body, key) for body, key, *_ in contents]
        self._tape.sent(self._process, entry, digests, told)

    def transaction(self) -> "TransactionTape":
        """See `ProducerRecorder.transaction`."""
        return TransactionTape(self._tape, self._process)


class TransactionTape:
    """See `TransactionRecorder`."""

    def __init__(self, tape: Tape, process: int) -> None:
        self._tape = tape
        self._process = process
        self._sends: list[int] = []

    def storing(self, queue_number: int, rows: Sequence[Outgoing]) -> None:
        """See `TransactionRecorder.storing`."""
        digests = [digest(*row) for row in rows]
        told = [shown(row.body, row.key) for row in rows]
        self._sends.append(self._tape.hidden(self._process, queue_number, digests, told))

    @contextmanager
    def ending(
        self, inputs: Sequence[tuple[PopRecorder, Sequence[Part]]], *, is_commit: bool
    ) -> Iterator[None]:
        """See `TransactionRecorder.ending`."""
        acked = inputs if is_commit else []
        acks = [recorder.settling(parts, Action.ACK) for recorder, parts in acked]
        try:
            yield
        except Rejected as error:
            # A fenced commit is a rollback; after any other error the outcome stays open.
            if error.reason is Reason.FENCED:
                self._end(is_ok=False)
            raise
        self._end(is_ok=is_commit)
        for told in acks:
            told(Settlement(0, []))

    def _end(self, *, is_ok: bool) -> None:
        for operation in filter(None, self._sends):
            self._tape.end(operation, is_ok=is_ok)


class ConsumerTape:
    """See `ConsumerRecorder`."""

    def __init__(
        self, tape: Tape, topic: str, settings: ConsumerSettings, *, is_member: bool
    ) -> None:
        self._tape = tape
        self._process = tape.process()
        is_steady = settings.on_trimmed == "error" and not is_member
        tape.readers[self._process] = Reader(topic, settings.group, is_steady)
        if settings.filter is not None and settings.group is not None:
            tape.filtered.add((topic, settings.group))

    def read(self, slices: Sequence[Slice]) -> None:
        """See `ConsumerRecorder.read`."""
        rows = [row for part in slices for row in rows_of(part)]
        self._tape.end(self._tape.begin(self._process, "poll"), rows)

    def moved(self) -> None:
        """See `ConsumerRecorder.moved`. The next poll follows no other."""
        self._tape.end(self._tape.begin(self._process, "assign"))


def rows_of(part: Slice) -> list[Row]:
    """(queue number, offset, digest) of neighbouring messages."""
    first = part.batch.base_offset + part.start
    return [(part.queue_number, at, each) for at, each in enumerate(digests_of(part), first)]


class PopTape:
    """See `PopRecorder`."""

    def __init__(self, tape: Tape, topic: str, settings: PopSettings) -> None:
        self._tape = tape
        self._process = tape.process()
        self._group = settings.group
        if settings.is_latest:
            tape.latest.add((topic, settings.group))
        if settings.filter is not None:
            tape.filtered.add((topic, settings.group))

    def popping(self) -> Callable[[Sequence[Taken]], None]:
        """See `PopRecorder.popping`."""
        operation = self._tape.begin(self._process, "pop", group=self._group)

        def told(taken: Sequence[Taken]) -> None:
            if taken:
                self._tape.end(operation, self._rows(taken))
            else:
                self._tape.drop(operation)

        return told

    def settling(
        self, parts: Sequence[Part], action: Action, argument: int | str = -1
    ) -> Callable[[Settlement], None]:
        """See `PopRecorder.settling`."""
        named = _named(parts)
        operation = self._tape.begin(
            self._process, action.name.lower(), group=self._group, rows=named, argument=argument
        )
        done = argument if action is Action.EXTEND else 1

        def told(settlement: Settlement) -> None:
            self._tape.end(operation, _results(named, settlement, done))

        return told

    def _rows(self, taken: Iterable[Taken]) -> list[Row]:
        rows: list[Row] = []
        for part, lease, _ in taken:
            # Node and application share one clock. A lease that ran out during a stall of this
            # process is no breach of the node's, so at least 1 ms is recorded.
            remaining = max(1, lease.deadline_ms - self._tape.now_ms())
            under = lease.token, lease.attempt, remaining
            rows += [(*row, *under) for row in rows_of(part)]
        return rows


def _named(parts: Sequence[Part]) -> list[tuple[int, int, int]]:
    """(queue number, offset, token) of the messages of leases."""
    return [
        (lease.queue_number, offset, lease.token)
        for lease, bits in parts
        for offset in offsets_of(lease.base, bits)
    ]


def _results(
    named: Iterable[tuple[int, int, int]], settlement: Settlement, done: int | str
) -> list[Row]:
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
