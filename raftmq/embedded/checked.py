"""The checked mode: `raftmq.open(folder, check=True)` keeps a history, and `check` judges it.

    async with raftmq.open("data/", check=True) as mq:
        ...                                      # the application, unchanged
        checked = await mq.check()               # raises `Inconsistent`, with an explanation

`check` reads all queues back, asks for the books of all consumer groups, and gives both to the
checkers of `raftmq.checkers` together with the application's calls and their answers. The checkers
know nothing of raftmq's code. The application may go on during `check`, and may call it repeatedly;
each call judges everything since the queue was opened.

The history has a limit. The witness of `raftmq.client.checked`, which judges less and keeps no
calls, judges along from the beginning, and alone once the history is full.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import anyio.to_thread

from raftmq.broker.settings import Log
from raftmq.checkers import Report, Verdict, worst
from raftmq.checkers.history import History
from raftmq.checkers.pop.calls import Books
from raftmq.checkers.pop.messages import Ordering
from raftmq.client.admin.dead_letters import Backlog
from raftmq.client.checked.checking import Checking
from raftmq.client.checked.recorders import ConsumerWitness, PopWitness, ProducerWitness
from raftmq.client.checked.verdict import Checked, raise_broken
from raftmq.client.client import Client
from raftmq.client.consume.consumer import Consumer
from raftmq.client.options import ConsumerSettings
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.handles import parse_handle
from raftmq.client.pop.prefetcher import PopSettings
from raftmq.client.produce.claimed import ClaimedProducer
from raftmq.client.produce.producer import Producer
from raftmq.client.routing.router import Router
from raftmq.client.slices import Slice
from raftmq.client.supervisor import Supervisor
from raftmq.client.world import ClientWorld
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.pop.policy import Mode

from .judging import Case, Place, judge
from .pairs import ConsumerPair, PopPair, ProducerPair
from .recorders import (
    ConsumerTape,
    PopTape,
    ProducerTape,
    RecordedAdmin,
    RecordedProducer,
    rows_of,
)
from .tape import Tape

FETCH_MESSAGES = 10_000
"""Messages read back with one fetch."""
FULL = "not judged by their history, which was full"
COMMIT_SECONDS = 30.0
"""Seconds to wait for messages of committed transactions; after that, missing ones are lost."""


class Check:
    """The tape of one client, and the state of the queues before it."""

    def __init__(
        self, router: Router, supervisor: Supervisor, world: ClientWorld, log: Log
    ) -> None:
        self._client = Client(router, supervisor, world)
        self._checking = Checking(router, supervisor, "the queue")
        self._log = log
        self._ends_before: dict[int, int] = {}
        self._books_before: dict[tuple[str, int], Books] = {}
        self.tape = Tape()
        self.admin = RecordedAdmin(self.tape, router)

    def producer(self, topic: str, *args: Any, **parts: Any) -> Producer:
        """A recorded `Producer`."""
        witness = ProducerWitness(self._checking.record, topic)
        recorder = ProducerPair(ProducerTape(self.tape), witness)
        return RecordedProducer(topic, *args, **parts, recorder=recorder)

    def consumer(
        self, topic: str, settings: ConsumerSettings, *, join: JoinGroup | None, **parts: Any
    ) -> Consumer:
        """A recorded `Consumer`."""
        is_member = join is not None
        tape = ConsumerTape(self.tape, topic, settings, is_member=is_member)
        witness = ConsumerWitness(self._checking.record, topic, settings, is_member=is_member)
        recorder = ConsumerPair(tape, witness)
        return Consumer(topic, settings, **parts, join=join, recorder=recorder)

    def pop_consumer(self, topic: str, settings: PopSettings, **parts: Any) -> PopConsumer:
        """A recorded `PopConsumer`."""
        witness = PopWitness(self._checking.record, topic, settings.group)
        recorder = PopPair(PopTape(self.tape, topic, settings), witness)
        return PopConsumer(topic, settings, **parts, recorder=recorder)

    def claimed_producer(self, *_: Any, **__: Any) -> ClaimedProducer:
        """Refused: the tape would miss the sends, and each message read would be a breach."""
        message = "claimed producers are not recorded: open the queue without check=True"
        raise Rejected(Reason.BAD_ARGUMENT, message)

    async def begin(self) -> None:
        """Note the folder's present contents. To be called before any other call."""
        for number, place in (await self._places()).items():
            self._ends_before[number] = place.before
        for group, number, books in await self._books():
            self._books_before[group, number] = books
        for each in await self._client.admin.list_subscriptions():
            self.tape.filtered.add((each.topic, each.group))

    async def settled(self, handles: Sequence[str]) -> None:
        """Exclude the groups of these handles from judging: the tape misses these settlements."""
        numbers = {parse_handle(handle).number for handle in handles}
        for group in await self._client.admin.consumer_groups():
            for attachment in group.attachments:
                if attachment.number in numbers:
                    self.tape.forgotten.add((attachment.topic, group.name))

    async def judge(self) -> Checked:
        """See `Embedded.check`."""
        await self._checking.look()
        if self.tape.is_full:
            return self._without_history()
        tape = self.tape
        tape.sweep_all()
        # A send that ends from here on may stand beyond the ends that are asked for next: its
        # messages must not count as lost.
        asked_at = len(tape.events)
        operation = tape.begin(0, "backlog")
        places = await self._places()
        for number, place in places.items():
            end, place.before = place.before, self._ends_before.get(number, 0)
            await self._read_back(number, place, end)
        expired_at = self._expired_at()
        tape.end(operation, [(group, number, *of) for group, number, of in await self._books()])
        orders = await self._orders()
        if tape.is_full:  # The application went on meanwhile.
            return self._without_history()
        case = Case(tape, tape.events[:], places, self._books_before, orders, asked_at, expired_at)
        # The application's loop goes on; the tape only grows.
        found = await anyio.to_thread.run_sync(judge, case, abandon_on_cancel=True)
        raise_broken([self._checking.found(), *found], "the queue")
        return _checked(found, len(tape.filtered))

    def raise_found(self) -> None:
        """See `Judge.raise_found`."""
        self._checking.raise_found()

    def _without_history(self) -> Checked:
        checked = self._checking.told()
        return replace(checked, counts={**checked.counts, FULL: self.tape.recorded})

    async def _places(self) -> dict[int, Place]:
        """All queues, by number; `before` is their end now."""
        admin, places = self._client.admin, {}
        for topic in (await admin.cluster()).topics:
            ends = await admin.find_offsets(topic.name, "latest")
            for queue, end in ends.items():
                name = f"{topic.name}/{queue}"
                places[topic.id << QUEUE_BITS | queue] = Place(name, topic.name, end)
        return places

    async def _read_back(self, number: int, place: Place, end: int) -> None:
        """Read a queue back from its end at the opening to `end`, and on for `COMMIT_SECONDS` at
        most until all messages of committed transactions have come."""
        queue = number & QUEUE_MASK
        admin = self._client.admin
        earliest = await admin.find_offsets(place.topic, "earliest", queues=[queue])
        place.kept_from = max(place.before, earliest[queue])
        owed = self.tape.owed(number, place.kept_from)
        if place.kept_from >= end and not owed:
            return
        deadline = time.monotonic() + COMMIT_SECONDS
        async with self._client.consumer(
            place.topic, queues=[queue], start=place.kept_from, on_trimmed="earliest"
        ) as consumer:
            while (is_short := consumer.position[queue] < end) or owed:
                if not is_short and time.monotonic() > deadline:
                    break
                for part in (await consumer.fetch(FETCH_MESSAGES)).slices:
                    rows = rows_of(part if owed else _up_to(part, end))
                    place.contents += rows
                    owed -= Counter(int(row[2]) for row in rows)
        if place.contents:
            # Retention may have dropped more between the question and the first fetch.
            place.kept_from = int(place.contents[0][1])

    def _expired_at(self) -> int:
        log, now = self._log, time.time_ns()
        if log.retention_bytes:
            return now
        return now - log.retention_ms * 1_000_000 if log.retention_ms else 0

    async def _books(self) -> list[tuple[str, int, Books]]:
        """(group, queue number, books) of all groups that pop."""
        admin = self._client.admin
        ids = {topic.name: topic.id for topic in (await admin.cluster()).topics}
        return [
            (each.group, ids[each.topic] << QUEUE_BITS | each.queue, _books(each))
            for each in await admin.backlogs()
            if each.topic in ids
        ]

    async def _orders(self) -> dict[str, Ordering]:
        return {
            group.name: cast("Ordering", "runs" if group.run > 1 else group.order)
            for group in await self._client.admin.consumer_groups()
            if group.mode == Mode.ORDERED
        }


def _books(each: Backlog) -> Books:
    # A purged message counts as lost, as it is neither settled nor left to do.
    return Books.of(each)._replace(lost=each.lost + each.purged)


def _up_to(part: Slice, end: int) -> Slice:
    return part._replace(stop=max(part.start, min(part.stop, end - part.batch.base_offset)))


def _checked(found: Sequence[tuple[Report, History]], filtered: int) -> Checked:
    """The verdict of all reports, none of which is invalid."""
    # A history without calls proves nothing, and gives no reason to doubt the other reports.
    telling = [report for report, _ in found if not report.reason.startswith("vacuous")]
    reports = telling or [report for report, _ in found]
    counts: dict[str, int] = {}
    for report in reports:
        if report.checker != "pop":
            counts |= report.counts
    # Each group's report repeats counts of the log's: adding them up would count sends twice.
    of_log = frozenset(counts)
    for report in reports:
        if report.checker == "pop":
            for name, count in report.counts.items():
                if name not in of_log:
                    counts[name] = counts.get(name, 0) + count
    # No tape says which messages a filter lets through, so completeness of these groups is open.
    counts["completeness undecided for filtered groups"] = filtered
    verdict = worst(report.verdict for report in reports)
    reasons = tuple(sorted({report.reason for report in reports if report.reason}))
    return Checked("valid" if verdict is Verdict.VALID else "unknown", reasons, counts)
