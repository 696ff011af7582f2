"""The check of a cluster's client: `connect(url, check=True)`.

    async with raftmq.connect(url, check=True) as mq:
        ...                                      # the application, unchanged
        checked = await mq.check()               # raises `Inconsistent`, with an explanation

The recorders tell a witness (`raftmq.checkers.witness`) of the client's calls as they happen.
`check` reads back the acknowledged messages that no consumer of this client has seen, looks up the
traces of messages that seem to have been handed out wrongly, and reports.

Invariants:
- A verdict rests on this client's calls, on what it reads back, and on the log's records; other
  clients may send, read, pop, reset and delete meanwhile.
- Memory does not grow with the number of calls: see `PLACES_MAX` and `LEASES_MAX`.

Left out: claimed producers and `put_arrow` batches that hold delayed messages; `get` and `find`.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import anyio

from raftmq.checkers import Recorder, Report, Verdict
from raftmq.checkers.history import History
from raftmq.client.admin.traces import trace
from raftmq.client.consume.consumer import Consumer
from raftmq.client.consume.offsets import find_offsets
from raftmq.client.message import format_id
from raftmq.client.options import ConsumerSettings
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.prefetcher import PopSettings
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.settings import ProducerSettings
from raftmq.client.routing.requests import find_topic
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import Supervisor
from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.wire.messages import LATEST, TopicView

from .confirmation import is_true
from .recorders import ConsumerWitness, PopWitness, ProducerWitness, Record
from .verdict import Checked, raise_broken

FETCH_MESSAGES = 10_000
"""Messages read back with one fetch; a longer stretch without a message to judge is passed over."""
READ_SECONDS = 30.0
"""Seconds without a message after which reading back gives up."""
TRIMMED = "trimmed before they were read"
GONE = "their topic was deleted"
FORBIDDEN = "this user may not read them back"


class Checking:
    """The check of one client."""

    def __init__(self, router: Router, supervisor: Supervisor, what: str = "the cluster") -> None:
        """`what` is checked, for people."""
        self._what = what
        self._router = router
        self._supervisor = supervisor
        self._one_at_a_time = anyio.Lock()
        # Anomalies that a check has raised.
        self._raised = 0
        self.record = Record()
        """The messages that the client sent and saw."""

    def producer(self, topic: str, settings: ProducerSettings, **parts: Any) -> Producer:
        """A recorded `Producer`."""
        return Producer(topic, settings, **parts, recorder=ProducerWitness(self.record, topic))

    def consumer(
        self, topic: str, settings: ConsumerSettings, *, join: JoinGroup | None, **parts: Any
    ) -> Consumer:
        """A recorded `Consumer`."""
        recorder = ConsumerWitness(self.record, topic, settings, is_member=join is not None)
        return Consumer(topic, settings, **parts, join=join, recorder=recorder)

    def pop_consumer(self, topic: str, settings: PopSettings, **parts: Any) -> PopConsumer:
        """A recorded `PopConsumer`."""
        recorder = PopWitness(self.record, topic, settings.group)
        return PopConsumer(topic, settings, **parts, recorder=recorder)

    async def judge(self) -> Checked:
        """See `Client.check`."""
        await self.look()
        return self.told()

    def told(self) -> Checked:
        """The verdict on what was seen by now, without asking the cluster; see `Client.check`."""
        report, history = self.found()
        raise_broken([(report, history)], self._what)
        reasons = (report.reason,) if report.reason else ()
        return Checked(
            "valid" if report.verdict is Verdict.VALID else "unknown", reasons, report.counts
        )

    async def look(self) -> None:
        """Read back and look up what the witness has not seen by itself."""
        async with self._one_at_a_time:
            self.record.sweep()
            await self._read_back()
            await self._confirm()

    def raise_found(self) -> None:
        """Raise `Inconsistent` if a breach was found by now that no check has raised."""
        if self.record.witness.found.counts.total() > self._raised:
            raise_broken([self.found()], self._what)

    def found(self) -> tuple[Report, History]:
        """The witness's report, for a check that raises its breaches. The history is empty."""
        self._raised = self.record.witness.found.counts.total()
        return self.record.witness.report(), Recorder().history()

    # -- reading back ----------------------------------------------------------------------------

    async def _read_back(self) -> None:
        """Read the acknowledged messages that no read has shown."""
        wanted: dict[int, list[int]] = defaultdict(list)
        for number, offset in self.record.witness.queues.unread:
            wanted[number].append(offset)
        for number, offsets in sorted(wanted.items()):
            offsets.sort()
            try:
                await self._read_queue(number, offsets)
            except Rejected as error:
                if error.reason is Reason.UNKNOWN_TOPIC:
                    self._pass_over(number, offsets, GONE)
                elif error.reason is Reason.DENIED:
                    self._pass_over(number, offsets, FORBIDDEN)
                else:
                    raise

    async def _read_queue(self, number: int, offsets: Sequence[int]) -> None:
        name = self.record.topics[number >> QUEUE_BITS]
        view = await find_topic(self._router, name)
        if view.id != number >> QUEUE_BITS:
            # Deleted, and made again under its name.
            self._pass_over(number, offsets, GONE)
            return
        earliest, end = await self._bounds(view, number)
        self._pass_over(number, [at for at in offsets if at < earliest], TRIMMED)
        for at in (at for at in offsets if at >= max(earliest, end)):
            self.record.witness.queues.lost((number, at), end=end)
        offsets = [at for at in offsets if earliest <= at < end]
        if not offsets:
            return
        position = await self._read(view, number, offsets)
        # Retention may have taken more meanwhile.
        earliest, _ = await self._bounds(view, number)
        self._pass_over(number, [at for at in offsets if at < earliest], TRIMMED)
        for at in offsets:
            self.record.witness.queues.lost((number, at), end=position)

    async def _bounds(self, view: TopicView, number: int) -> tuple[int, int]:
        groups = {number: view.groups[number & QUEUE_MASK]}
        found = (await find_offsets(self._router, groups, LATEST))[number]
        return found.earliest, found.end

    async def _read(self, view: TopicView, number: int, offsets: Sequence[int]) -> int:
        """Read a queue, but for long stretches without any of `offsets`; returns the position."""
        queue = number & QUEUE_MASK
        settings = ConsumerSettings(
            None, (queue,), offsets[0], "earliest", None, prefetch_bytes=8 * 1024 * 1024
        )
        parts: dict[str, Any] = {"router": self._router, "supervisor": self._supervisor}
        unread = self.record.witness.queues.unread
        async with self.consumer(view.name, settings, join=None, **parts) as consumer:
            for at in offsets:
                if unread.get((number, at)) is None:
                    continue
                if at > consumer.position[queue] + FETCH_MESSAGES:
                    await consumer.seek(queue=queue, offset=at)
                while consumer.position[queue] <= at:
                    if await consumer.fetch(FETCH_MESSAGES, wait=READ_SECONDS):
                        continue
                    earliest, _ = await self._bounds(view, number)
                    if earliest <= at:
                        message = f"{view.name}/{queue} was not read back: nothing came at offset "
                        raise Unavailable(f"{message}{at} for {READ_SECONDS:g} s")
                    # Retention took all that was left to read.
                    await consumer.seek(queue=queue, offset=earliest)
            return consumer.position[queue]

    def _pass_over(self, number: int, offsets: Sequence[int], why: str) -> None:
        witness = self.record.witness
        for at in offsets:
            if witness.queues.unread.pop((number, at)) is not None:
                witness.pass_over(why)

    # -- suspicions ------------------------------------------------------------------------------

    async def _confirm(self) -> None:
        """Look up what the log says about hand-outs that seem wrong."""
        witness = self.record.witness
        waiting = witness.leases.suspicions
        while waiting:
            suspicion = waiting[0]
            message_id = format_id(suspicion.queue, suspicion.offset)
            try:
                told = is_true(suspicion, await trace(self._router, message_id))
            except Rejected:
                # The topic is gone, the message was trimmed, or this user may not see traces.
                told = None
            # Not before: a check that fails, or is cancelled, must leave it to the next one.
            del waiting[0]
            if told is None:
                witness.leases.unclear += 1
            elif told:
                witness.found.add(suspicion.anomaly, suspicion.fact)
