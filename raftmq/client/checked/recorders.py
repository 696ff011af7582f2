"""The recorders of a checked client: they tell a witness what the client sent and saw.

See `raftmq.client.recorders` for the calls. A call that raises tells no outcome: an unknown outcome
never makes a verdict wrong.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio

from raftmq.checkers.witness.queues import Content, Reader, Run, Sending
from raftmq.checkers.witness.witness import Witness
from raftmq.client.message import format_id
from raftmq.client.options import ConsumerSettings
from raftmq.client.pop.leases import Part
from raftmq.client.pop.prefetch_buffer import Taken
from raftmq.client.pop.tally import Settlement
from raftmq.client.produce.producer_batch import Entry
from raftmq.client.produce.receipts import Outgoing
from raftmq.client.recorders import PopRecorder
from raftmq.client.slices import Slice
from raftmq.errors import CorruptRecord, Rejected, Unavailable
from raftmq.machine.delays import RELEASER
from raftmq.machine.producers import RESERVED
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.pop.actions import Action
from raftmq.pop.spans import offsets_of

from .digests import digest, digests_of, shown

UNKNOWN = "sends with an unknown outcome"
PLACELESS = "acknowledged without an offset"
UNREADABLE = "messages that cannot be decoded"
OF_TRANSACTIONS = "messages of transactions"
UNNUMBERED = "delayed messages without a number"


class Record:
    """The witness of a client, and the sends that are under way."""

    def __init__(self) -> None:
        self.witness = Witness()
        self.topics: dict[int, str] = {}
        """By topic id: the name."""
        # By queue number: sends that were not over at the last sweep, in order.
        self._open: dict[int, deque[tuple[Sending, Entry]]] = {}

    @property
    def open_count(self) -> int:
        """Sends that are kept until their outcome is known."""
        return sum(map(len, self._open.values()))

    def meet(self, topic: str, queue_number: int) -> None:
        """Note the name of a queue."""
        if queue_number not in self.witness.names:
            self.witness.names[queue_number] = f"{topic}/{queue_number & QUEUE_MASK}"
            self.topics[queue_number >> QUEUE_BITS] = topic

    def run_of(self, topic: str, part: Slice) -> Run | None:
        """A slice as the witness takes it; None: a column cannot be read."""
        self.meet(topic, part.queue_number)
        try:
            return run_of(part)
        except CorruptRecord:
            # The application's own call must not fail for a column that it may never read.
            self.witness.pass_over(UNREADABLE, part.stop - part.start)
            return None

    def put(self, sending: Sending, entry: Entry) -> None:
        """A send takes its place in line."""
        self._open.setdefault(sending.queue, deque()).append((sending, entry))

    def sweep(self) -> None:
        """Tell the witness of the sends that are over. Each queue's sends end in order, but for
        those taken back; a late end makes a verdict weaker, never wrong."""
        for number, line in list(self._open.items()):
            while line and line[0][1].is_done:
                self._end(*line.popleft())
            if not line:
                del self._open[number]

    def _end(self, sending: Sending, entry: Entry) -> None:
        witness, count = self.witness, len(sending.contents)
        if entry.error is not None:
            if not isinstance(entry.error, Rejected | Unavailable):
                witness.pass_over(UNKNOWN, count)
        elif entry.base_offset is not None:
            witness.queues.stored(sending, entry.base_offset)
        elif entry.number and entry.dues:
            witness.queues.delayed(sending, entry.dues, entry.number)
        else:
            witness.pass_over(UNNUMBERED if entry.is_delayed else PLACELESS, count)


class ProducerWitness:
    """See `ProducerRecorder`."""

    def __init__(self, record: Record, topic: str) -> None:
        self._record = record
        self._topic = topic
        self._process = record.witness.process()

    def sent(self, entry: Entry) -> None:
        """See `ProducerRecorder.sent`."""
        self._record.sweep()
        self._record.meet(self._topic, entry.queue_number)
        contents = [Content(digest(*each), shown(each[0])) for each in entry.contents]
        sending = self._record.witness.queues.begin(self._process, entry.queue_number, contents)
        self._record.put(sending, entry)

    def transaction(self) -> "TransactionWitness":
        """See `ProducerRecorder.transaction`."""
        return TransactionWitness(self._record.witness)


class TransactionWitness:
    """See `TransactionRecorder`. Answers do not name the places of the messages."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def storing(self, queue_number: int, rows: Sequence[Outgoing]) -> None:
        """See `TransactionRecorder.storing`."""
        del queue_number
        self._witness.pass_over(OF_TRANSACTIONS, len(rows))

    @contextmanager
    def ending(
        self, inputs: Sequence[tuple[PopRecorder, Sequence[Part]]], *, is_commit: bool
    ) -> Iterator[None]:
        """See `TransactionRecorder.ending`."""
        acked = inputs if is_commit else []
        acks = [recorder.settling(parts, Action.ACK) for recorder, parts in acked]
        yield
        for told in acks:
            told(Settlement(0, []))


class ConsumerWitness:
    """See `ConsumerRecorder`."""

    def __init__(
        self, record: Record, topic: str, settings: ConsumerSettings, *, is_member: bool
    ) -> None:
        self._record = record
        self._topic = topic
        # Any client may give a group a filter, and the leader passes over messages then.
        is_gapless = settings.on_trimmed == "error" and settings.group is None
        process = record.witness.process()
        self._reader = Reader(process, is_gapless=is_gapless, is_steady=not is_member)

    def read(self, slices: Sequence[Slice]) -> None:
        """See `ConsumerRecorder.read`."""
        self._record.sweep()
        for part in slices:
            run = self._record.run_of(self._topic, part)
            if run is None:
                self._reader.positions.pop(part.queue_number, None)
            else:
                self._record.witness.queues.read(self._reader, run)

    def moved(self) -> None:
        """See `ConsumerRecorder.moved`."""
        self._reader.positions.clear()


def run_of(part: Slice) -> Run:
    """A slice as the witness takes it."""
    batch, start, _, number = part
    head = batch.head
    return Run(
        number,
        batch.base_offset + start,
        digests_of(part),
        batch.base_offset,
        (head.producer, head.epoch, head.first_sequence) if 0 < head.producer < RESERVED else None,
        head.first_sequence if head.producer == RELEASER else None,
        batch.timestamp,
    )


class PopWitness:
    """See `PopRecorder`."""

    def __init__(self, record: Record, topic: str, group: str) -> None:
        self._record = record
        self._topic = topic
        self._group = group

    def popping(self) -> Callable[[Sequence[Taken]], None]:
        """See `PopRecorder.popping`."""
        return self._popped

    def _popped(self, taken: Sequence[Taken]) -> None:
        self._record.sweep()
        witness, now = self._record.witness, anyio.current_time()
        leases = witness.leases
        for part, lease, _ in taken:
            run = self._record.run_of(self._topic, part)
            if run is None:
                continue
            witness.queues.show(run)
            for offset in range(run.offset, run.offset + len(run.digests)):
                key = self._group, run.queue, offset
                place = witness.queues.name(run.queue, offset)
                leases.popped(key, place, token=lease.token, now=now, until=lease.deadline)

    def settling(
        self, parts: Sequence[Part], action: Action, argument: int | str = -1
    ) -> Callable[[Settlement], None]:
        """See `PopRecorder.settling`."""
        del argument
        leases = self._record.witness.leases
        named = [
            ((self._group, lease.queue_number, offset), lease.token)
            for lease, bits in parts
            for offset in offsets_of(lease.base, bits)
        ]
        if action is not Action.EXTEND:
            for key, token in named:
                leases.left(key, token)

        def told(settlement: Settlement) -> None:
            if action is Action.ACK:
                lost = {(each.id, each.token) for each in settlement.fenced}
                for key, token in named:
                    if (format_id(*key[1:]), token) not in lost:
                        leases.acknowledged(key, token)

        return told
