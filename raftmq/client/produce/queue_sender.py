"""A sender: the batches of one producer on their way to one queue, in order through every fault.

The broker stores a batch only if its sequence number is the next one of (producer, queue, epoch),
answers a repeat with the offset of the first attempt, and refuses any batch after a gap
(`raftmq.machine.producers`). So the sender may send many batches ahead, and after any fault the
sender resends all unsettled batches, in order, with the same bytes and numbers:

| the answer | the batch is | the sender |
|---|---|---|
| stored, or `duplicate` | settled | goes on |
| `not_leader`, `busy`, `unavailable` | not stored by this attempt | resends all, from the first |
| `out_of_order` | not stored: one before it is missing | likewise |
| `outcome_unknown`, connection lost | in doubt | likewise |
| another refusal, of the first batch | refused; if in doubt, unknown | closes the gap |

*Closing a gap.* If a numbered batch is never sent again, the broker refuses all later batches for
ever. The first batch whose every attempt was refused for certain is not stored, and no later batch
is stored, as the broker stores nothing after a gap. Those batches get new numbers from 0 in the
next epoch. The batches before them are in doubt and fail as `OutcomeUnknown`. The first batch of a
new epoch makes the broker refuse all batches still on their way from the old epoch.

*Claimed sessions.* Claims give the epochs (`claimed`), so a sender cannot close a gap: the first
batch that is refused for good or abandoned ends the sender, and all later batches fail, too.

*Deadlines.* At its deadline an entry fails as `Unavailable` and is taken out if its batch was never
written, else as `OutcomeUnknown`. A written batch keeps its place and is resent, since later
batches count on its number, until it is settled or no caller waits for any batch in flight. Then
the sender abandons all of them and the next batch begins a new epoch: an abandoned batch is in the
log before that batch, or never. So expiry neither breaks the sequence nor changes the order.

Invariants:
- Batches leave in the order in which they were put, and are stored in that order, each once.
- A batch that failed as `Unavailable` or `Rejected` is not stored, and never will be.
- An entry put in after the producer's end fails at once.
- At most `FLIGHTS_MAX` batches are in flight: the broker remembers the offsets of that many.

Left out: a batch whose only answer was lost and which is resent after the broker dropped its
session (idle for a week, or pushed out by 65,536 newer ones) is reported as `OutcomeUnknown`,
except the first batch of a session: the broker takes the repeat for a new batch and stores it.

Sources: Kafka's idempotent producer (KIP-98, KIP-360 for the epoch); Raft thesis §6.3.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

import anyio

from raftmq.batch import Limits
from raftmq.client.routing.calls import wait_leader
from raftmq.client.routing.connection import Answer, Connection, Lost
from raftmq.client.routing.refusals import (
    IN_DOUBT,
    NOT_LEADER,
    NOTHING_HAPPENED,
    exception_of,
    refusal_of,
)
from raftmq.client.routing.router import Router
from raftmq.client.routing.weights import forget_batch, post_batch
from raftmq.client.supervisor import TaskScope
from raftmq.errors import OutcomeUnknown, ProtocolError, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.codec import unpack
from raftmq.wire.messages import REPLY, ErrorReply, FrameKind, Produced

from .producer_batch import Entry, PendingPart, ProducerBatch
from .settings import CLOSED, PAUSED, ProducerSettings, random_id

FLIGHTS_MAX = 64
"""Batches in flight to one queue: `raftmq.machine.producers.RUNS_MAX`."""
STRIKES_MAX = 3
"""Times that the first batch may be refused as out of order before its session counts as lost."""

MESSAGE_BYTES = 200
"""Bytes of the buffer that a message takes beside its body: roughly its Python objects."""

_PRODUCED = FrameKind.PRODUCE | REPLY
_OUT_OF_ORDER = Reason.OUT_OF_ORDER.value
_UNKNOWN_PRODUCER = Reason.UNKNOWN_PRODUCER.value
_UNKNOWN_TOPIC = Reason.UNKNOWN_TOPIC.value
_DUPLICATE = Reason.DUPLICATE.value
_FENCED = Reason.FENCED.value


@dataclass(frozen=True, slots=True)
class SenderHost:
    """The environment that the senders of a producer share."""

    producer: int
    """The producer's id: the same on each queue, until it is fenced there."""
    topic: str
    """The topic's name."""
    router: Router
    """Finds leaders."""
    tasks: TaskScope
    """Runs the recovery of senders."""
    random: Random
    """Producer ids and jitter."""
    now_ms: Callable[[], int]
    """The wall clock, for the batches' base time."""
    limits: Limits
    """Bounds of a batch."""
    settings: Callable[[], ProducerSettings]
    """The producer's settings when a sender is made; `QueueSender.obey` brings later ones."""
    give_back: Callable[[Entry], None]
    """Called once for each entry, when its memory is free again."""
    failed: Callable[[Entry], None]
    """Called for each entry that failed."""
    sealed: Callable[["QueueSender", int, int], None]
    """Called with the sender and the batch's bytes and calls when a batch gets its number."""
    pump_later: Callable[..., None]
    """Has a sender pump once other tasks have run; `is_after_answer=True`: tasks woken just now."""


class Claimed(NamedTuple):
    """A session on one queue that a claim has given to this sender."""

    producer: int
    """The producer's id."""
    epoch: int
    """The epoch of the claim."""
    next_sequence: int
    """The sequence number of the first batch."""


class _Recovery:
    """One run of a sender's recovery; a run that is not the sender's current one has no effect."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        self.scope: anyio.CancelScope | None = None


class QueueSender:
    """Sends a producer's batches to one queue."""

    def __init__(
        self, host: SenderHost, *, queue_number: int, group: int, claimed: Claimed | None = None
    ) -> None:
        self._host = host
        self._group = group
        self._is_claimed = claimed is not None
        session = claimed or Claimed(host.producer, 0, 0)
        self._producer, self._epoch, self._next_sequence = session
        # Why a claimed sender has ended; None: the sender works.
        self._end: RaftmqError | None = None
        self._flights: deque[ProducerBatch] = deque()
        self._waiting: deque[ProducerBatch] = deque()
        self._open = 0
        self._none_open = anyio.Event()
        self._connection: Connection | None = None
        self._recovery: _Recovery | None = None
        self._failures = 0
        self._strikes = 0
        # Before this time the leader wants no batch again; its other answers may come meanwhile.
        self._retry_at = 0.0
        # The text of the last refusal; empty after a batch was settled.
        self._trouble = ""
        self._settings = host.settings()
        self.queue_number = queue_number
        """The cluster-wide number of the queue."""

    @property
    def batches(self) -> list[ProducerBatch]:
        """The batches under way, in order."""
        return [*self._flights, *self._waiting]

    @property
    def is_idle(self) -> bool:
        """True if no batch is under way."""
        return not self._flights and not self._waiting

    @property
    def _has_draft(self) -> bool:
        is_open = bool(self._waiting) and not self._waiting[0].is_closed
        return is_open and self._settings.linger is None

    @property
    def is_recovering(self) -> bool:
        """True while no batch leaves: the leader is unknown, or an attempt was lost or refused."""
        return self._recovery is not None

    # -- putting in and taking out ---------------------------------------------------------------

    def append(self, entry: Entry) -> bool:
        """Add an entry to the draft, the last batch; True if the draft is full. `pump` sends it.

        After the end of the producer the entry fails.

        Raises:
            Rejected: the entry cannot be encoded; nothing changed.
        """
        if self._host.tasks.is_closed:
            return self._turn_away(entry)
        draft = self._waiting[-1] if self._waiting else None
        if draft is None or draft.is_closed or not self._joins(draft, entry):
            # An entry that does not fit beside others may fit into a batch of its own.
            fresh = ProducerBatch(self._host.limits)
            fresh.append(entry)
            if draft is not None:
                draft.is_closed = True
            self._waiting.append(fresh)
            draft = fresh
        is_large = draft.size >= self._settings.batch_bytes
        draft.is_closed |= is_large or draft.count >= self._settings.batch_messages
        return draft.is_closed

    def _joins(self, draft: ProducerBatch, entry: Entry) -> bool:
        count = draft.count + entry.count
        return count <= self._settings.batch_messages and draft.try_append(entry)

    def put(self, part: PendingPart) -> bool:
        """Add an encoded batch as the last one; True, as the batch is full. `pump` sends it.

        After the end of the producer the batch fails.
        """
        if self._host.tasks.is_closed:
            return self._turn_away(part)
        if self._waiting:
            self._waiting[-1].is_closed = True
        self._waiting.append(ProducerBatch.of_sealed(part, self._host.limits))
        return True

    def _turn_away(self, entry: Entry) -> bool:
        """Fail an entry that comes after the end: no task would send or expire the entry."""
        entry.fail(Unavailable(CLOSED))
        self._host.failed(entry)
        self._host.give_back(entry)
        return False

    def take_back(self, entry: Entry) -> None:
        """Take out an entry that is not written; no effect if it was written, is done, or shares a
        sealed batch."""
        for batch in self._waiting:
            if entry in batch.entries and (batch.sealed is None or len(batch.entries) == 1):
                batch.take_back(entry)
                if not batch.entries:
                    self._waiting.remove(batch)
                self._host.give_back(entry)
                self._stop_if_idle()
                return

    # -- sending ---------------------------------------------------------------------------------

    def pump(self, *, is_flush: bool = False) -> None:
        """Send the batches that are ready; with `is_flush` also the draft at the end."""
        if is_flush and self._waiting:
            self._waiting[-1].is_closed = True
        if self._end is not None:
            self._fail_waiting(self._end)
        if self._recovery is not None or not self._waiting or self._settings.is_paused:
            return
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._host.router.open_leader(self._group)
            if connection is None or self._flights:  # batches in flight are resent first
                self._recover()
                return
            self._connection = connection
        while self._waiting and len(self._flights) < FLIGHTS_MAX:
            batch = self._waiting[0]
            # A draft gathers entries while an answer is due (Nagle), or until it has lingered.
            if not batch.is_closed and (self._flights or self._settings.linger is not None):
                return
            if not connection.has_room:
                connection.when_room(self.pump)
                return
            self._waiting.popleft()
            self._launch(batch, connection)

    def pump_all(self) -> None:
        """Send the batches that are ready, and the draft."""
        self.pump(is_flush=True)

    def obey(self, settings: ProducerSettings) -> None:
        """Go on with these settings; send what waited if they end a pause."""
        self._settings = settings
        self.pump()

    def _launch(self, batch: ProducerBatch, connection: Connection) -> None:
        if batch.sealed is None:
            batch.is_closed = True
            try:
                batch.seal(base_ms=self._host.now_ms(), compression=self._settings.compression)
            except Rejected as error:
                self._fail(batch, error)  # the batch has no number, so no gap is left
                return
        self._host.sealed(self, batch.size, len(batch.entries))
        batch.first_sequence = self._next_sequence
        self._next_sequence += batch.count
        self._flights.append(batch)
        self._write(batch, connection)

    def _write(self, batch: ProducerBatch, connection: Connection) -> None:
        assert batch.sealed is not None
        body = batch.sealed.stamp(
            queue=self.queue_number,
            producer=self._producer,
            epoch=self._epoch,
            first_sequence=batch.first_sequence,
        )
        batch.refusal = None
        self._open += 1
        answered = partial(self._answered, batch, connection)
        batch.request = post_batch(self._host.router.weights, connection, body, answered)

    # -- answers ---------------------------------------------------------------------------------

    def _answered(self, batch: ProducerBatch, connection: Connection, answer: Answer) -> None:
        self._open -= 1
        batch.request = None
        if isinstance(answer, Lost):
            # Bytes that have left may be stored although their answer is lost.
            batch.is_doubtful |= answer.was_written
        elif not self._read_answer(batch, connection, answer):
            # A node that breaks the protocol once is not trusted with the other answers.
            connection.close(f"node {connection.node} sent an answer that cannot be read")
        if not self._open:
            self._none_open.set()
        self._stop_if_idle()
        # A running recovery resends all batches itself, in order: nothing may overtake it.
        if self._recovery is None:
            if not batch.is_settled:
                self._recover()
            elif len(batch.entries) > 1 and self._has_draft:
                # The callers whose calls this answer ends may call again: they join the draft.
                self._host.pump_later(self, is_after_answer=True)
            else:
                self.pump()

    def _read_answer(self, batch: ProducerBatch, connection: Connection, answer: Answer) -> bool:
        assert not isinstance(answer, Lost)
        try:
            if answer.kind == _PRODUCED:
                done = unpack(Produced, answer.header)
                self._host.router.note_throttled(done.throttle_ms)
                # Delayed messages have numbers, and get offsets when they fall due.
                offset = None if done.number else done.base_offset
                self._settle(batch, offset, done.timestamp, done.duplicate, done.number)
                return True
            refusal = refusal_of(answer)
        except ProtocolError:
            refusal = None  # the batch may be stored: no word about it can be read
        # A move of the leader is no trouble: an error text is to name what stood in the way.
        if refusal is not None and refusal.code != NOT_LEADER:
            self._trouble = refusal.message
        if refusal is None or refusal.code in IN_DOUBT:
            batch.is_doubtful = True
            return refusal is not None
        if refusal.code == _DUPLICATE:
            self._settle(batch, None, 0, True)  # stored before; its offset is forgotten
            return True
        # This attempt stored nothing. Whether the batch has failed is decided by `_judge_first`,
        # once no earlier batch is open.
        batch.refusal = refusal
        self._retry_at = max(self._retry_at, anyio.current_time() + refusal.retry_ms / 1000)
        if refusal.code == NOT_LEADER:
            self._host.router.not_leader(self._group, connection.node, refusal.leader)
        return True

    def _settle(
        self,
        batch: ProducerBatch,
        base_offset: int | None,
        timestamp: int,
        is_duplicate: bool,
        number: int = 0,
    ) -> None:
        self._flights.remove(batch)
        batch.is_settled = True
        batch.settle(base_offset, timestamp, is_duplicate, number)
        self._failures = self._strikes = 0
        self._trouble = ""
        self._retry_at = 0.0
        self._release(batch)

    def _release(self, batch: ProducerBatch) -> None:
        for entry in batch.entries:
            self._host.give_back(entry)

    # -- recovery --------------------------------------------------------------------------------

    def _recover(self) -> None:
        assert self._recovery is None
        if not self._host.tasks.is_closed:
            recovery = self._recovery = _Recovery()
            recovery.scope = self._host.tasks.start(lambda: self._run_recovery(recovery))

    async def _run_recovery(self, recovery: _Recovery) -> None:
        """Wait until all attempts are over, find the leader, and resend all batches in order."""
        # Only when every attempt is over is it certain which batches are not stored.
        while self._open:
            self._none_open = anyio.Event()
            await self._none_open.wait()
        await self._judge_first(recovery)
        self._failures += 1
        told = self._retry_at - anyio.current_time()
        connection = await wait_leader(self._host.router, self._group, self._failures, told)
        if self._recovery is not recovery:
            return
        # No await from here on: resends and new batches leave in one order.
        self._connection = connection
        self._recovery = None
        if not connection.is_open:
            self._recover()  # the connection broke while it was handed over
            return
        for batch in self._flights:
            self._write(batch, connection)
        self.pump()

    async def _judge_first(self, recovery: _Recovery) -> None:
        """Decide on the first batch if its refusal is final; later batches depend on the first."""
        while self._flights and (refusal := self._flights[0].refusal) is not None:
            code = refusal.code
            if code in NOTHING_HAPPENED:
                return  # the broker has not judged the batch: resend it
            if code == _OUT_OF_ORDER:
                # A broker that refuses the first batch again and again has lost the session.
                self._strikes += 1
                if self._strikes < STRIKES_MAX:
                    return
            if code == _UNKNOWN_TOPIC:
                is_known = await self._has_topic()
                if is_known or self._recovery is not recovery:
                    return  # the node does not know the topic yet
            if self._is_claimed:
                # Only a claim gives epochs, so the sender cannot close the gap.
                self._end_claim(exception_of(refusal))
                return
            if code == _FENCED:
                self._producer = random_id(self._host.random)  # the newer epoch is not known
            why = _FORGOTTEN
            if code not in {_FENCED, _OUT_OF_ORDER, _UNKNOWN_PRODUCER}:
                # These three refuse the session, any other code the batch itself.
                self._drop_refused(self._flights[0], refusal)
                why = f"{refusal.message}; an earlier attempt may have been stored"
            self._close_gap(why)
            self._stop_if_idle()

    async def _has_topic(self) -> bool:
        try:
            topic = await self._host.router.topic(self._host.topic, is_fresh=True)
        except Rejected:
            return False
        return topic.id == self.queue_number >> QUEUE_BITS

    def _drop_refused(self, batch: ProducerBatch, refusal: ErrorReply) -> None:
        """Fail the first batch, refused for good. `_close_gap` fails a batch in doubt."""
        if batch.is_doubtful:
            return
        self._flights.popleft()
        self._fail(batch, exception_of(refusal))
        for later in self._flights:
            later.is_doubtful = False  # no batch is stored after one that is not stored

    def _close_gap(self, why: str) -> None:
        """Fail the first batches if in doubt, with this text; number the later ones from 0 in the
        next epoch."""
        assert not self._open
        flights = list(self._flights)
        self._begin_epoch()
        while flights and flights[0].is_doubtful:
            self._fail(flights.pop(0), OutcomeUnknown(why))
        for batch in reversed(flights):
            # No caller waits for the batch, and the new numbers leave no gap without it.
            if batch.is_done:
                self._release(batch)
                continue
            batch.first_sequence = -1
            batch.is_doubtful = False
            batch.refusal = None
            self._waiting.appendleft(batch)

    def _end_claim(self, error: RaftmqError) -> None:
        """Fail all batches: the first is refused for good, so no later one is ever stored."""
        assert not self._open
        for batch in self._flights:
            doubtful = OutcomeUnknown(f"{error}; an earlier attempt was not answered")
            self._fail(batch, doubtful if batch.is_doubtful else error)
        self._flights.clear()
        self._end = error
        self._fail_waiting(error)
        self._stop_if_idle()

    def _fail_waiting(self, error: RaftmqError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._fail(batch, error)

    def _begin_epoch(self) -> None:
        self._flights.clear()
        if self._is_claimed:
            # Only a claim gives another epoch and tells which batches in doubt are stored.
            self._end = self._end or Unavailable(_CLAIM_ENDED)
            return
        self._epoch += 1
        self._next_sequence = 0
        self._strikes = 0

    def _fail(self, batch: ProducerBatch, error: RaftmqError) -> None:
        for entry in batch.tell(error):
            self._host.failed(entry)
        self._release(batch)

    # -- deadlines and the end -------------------------------------------------------------------

    def expire(self, now: float) -> float:
        """Fail the entries whose deadline is not after `now`; return the next deadline."""
        for batch in list(self._waiting):
            if batch.deadline <= now:
                self._expire_waiting(batch, now)
        if self._flights and all(
            entry.is_done or entry.deadline <= now for p in self._flights for entry in p.entries
        ):
            self._abandon(_TOO_LATE)
        for batch in self._flights:
            if batch.deadline <= now:
                for entry in batch.tell(OutcomeUnknown(self._unknown()), until=now):
                    self._host.failed(entry)
        self._stop_if_idle()
        self.pump()
        return min((batch.deadline for batch in self.batches), default=float("inf"))

    def _expire_waiting(self, batch: ProducerBatch, now: float) -> None:
        if batch.sealed is not None and any(e.deadline > now for e in batch.entries):
            # The batch was encoded for an earlier epoch, and others in it wait: it is sent.
            for entry in batch.tell(OutcomeUnknown(self._unknown()), until=now):
                self._host.failed(entry)
            return
        for entry in batch.tell(Unavailable(self._unsent()), until=now):
            self._host.failed(entry)
            self.take_back(entry)
        if batch in self._waiting and batch.is_done:
            self._waiting.remove(batch)
            self._release(batch)

    def _abandon(self, why: str) -> None:
        """Fail all batches in flight and begin a new epoch: no caller may wait longer."""
        is_stored_perhaps = True
        for batch in self._flights:
            withdrawn = True  # between two attempts no request is under way
            if batch.request is not None and self._connection is not None:
                weights = self._host.router.weights
                withdrawn = forget_batch(weights, self._connection, batch.request)
                batch.request = None
            # No batch is stored after one that is not stored.
            is_stored_perhaps &= batch.is_doubtful or not withdrawn
            if is_stored_perhaps:
                self._fail(batch, OutcomeUnknown(f"{why}; {self._unknown()}"))
            else:
                self._fail(batch, Unavailable(f"{why}: {self._unsent()}"))
        self._begin_epoch()
        self._open = 0
        self._none_open.set()

    def close(self, error: RaftmqError | None = None) -> None:
        """Fail all batches, with `error` instead of each batch's own error.

        `Unavailable` goes to waiting batches only: a batch in flight may be stored.
        """
        self._fail_waiting(error or Unavailable(CLOSED))
        if error is not None and not isinstance(error, Unavailable):
            for batch in self._flights:
                batch.tell(error)
        self._abandon("the producer was closed" if error is None else str(error))
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        if self._recovery is not None and self.is_idle:
            if self._recovery.scope is not None:
                self._recovery.scope.cancel()
            self._recovery = None

    def _unknown(self) -> str:
        whom = f"node {self._connection.node}" if self._connection is not None else "a node"
        trouble = f"; the last error: {self._trouble}" if self._trouble else ""
        return (
            f"it was written to {whom} and not answered: it may be stored, or may still be stored "
            f"before the next message of its queue{trouble}"
        )

    def _unsent(self) -> str:
        if self._settings.is_paused:
            return f"nothing was stored: {PAUSED}"
        trouble = self._trouble or self._host.router.last_error
        return f"nothing was stored; the last error: {trouble}"


_TOO_LATE = "the time ran out"
_CLAIM_ENDED = (
    "not stored: the outcome of a batch before it is unknown, so the claimed session is over: "
    "claim it again"
)
_FORGOTTEN = "the broker no longer remembers this producer; an earlier attempt may have been stored"
