"""Capture: the changes of a table into a topic, in the order of commits, each once.

    database ──events──> hold one back ──batches──> topic, one queue
        ^                                              │ stored by a majority
        └────────────────── confirm ───────────────────┘

A change is held back until the next event: only then is it known whether the transaction ends with
it. A batch is sent when it is full, or old enough, or nothing more comes.

Restarts: the topic's last message records how far the capture was. A start claims the producer's
session from all earlier captures, and reads the last message's (position, seq); the database goes
on from there or from before it, and changes that are not greater were sent already and are passed
over. A database forgets (`confirm`) only changes that a majority has stored.
So a kill at any line loses nothing and doubles nothing; a snapshot that was cut short begins again,
with a `t` that voids the messages of the first attempt.

Invariants:
- (position, seq) grows from message to message, over all restarts.
- All changes that are confirmed are stored.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raftmq.pipeline.errors import PipelineError

from .change import Change, Commit, Idle, Message, Op, Place, message_of, needs_snapshot
from .source import Source
from .tail import Tail, check_tail, open_topic, read_tail

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient, BlockingProducer

BATCH_MESSAGES = 500
"""Messages that are sent at once."""
LINGER_SECONDS = 0.05
"""Age of a batch at which it is sent while changes keep coming."""
MARK_SECONDS = 5.0
"""Time after which a mark is sent, while only other tables are written."""


class Progress(NamedTuple):
    """How far a capture is; after each batch, and while it waits."""

    phase: str
    """`snapshot` or `changes`."""
    sent: int
    """Messages that were stored since the last progress."""
    lsn: str
    """The place in the database that is reached."""


def capture(
    mq: "BlockingClient",
    source: Source,
    topic: str,
    *,
    until: Place | None = None,
    snapshot: bool = False,
) -> Iterator[Progress]:
    """Carry changes until `until` is reached, or until the iterator is closed.

    The topic is made if there is none. An empty one begins with a snapshot of the table.

    Args:
        mq: the cluster.
        source: the table.
        topic: the topic of its changes.
        until: the capture ends with a mark once the topic has all before it; None: no end.
        snapshot: begin with a new snapshot, whatever the topic has.

    Raises:
        PipelineError: a fault to mend; the topic is in order, and the next capture goes on.
        RaftmqError: of the cluster, likewise.
    """
    if source.prepare():
        raise PipelineError(
            f"{source.table.name} is not prepared for capture",
            "`raftmq pipeline cdc prepare …` shows the missing statements, and runs them",
        )
    with source.claim():
        open_topic(mq, topic)
        # The claim comes before the look at the topic's end: from here on the cluster refuses
        # messages that a killed capture still has under way.
        with mq.claimed_producer(topic, f"cdc {topic}") as producer:
            tail = read_tail(mq, topic)
            sender = _Sender(producer, source, tail)
            if _needs_snapshot(tail, source, topic, snapshot=snapshot):
                yield from _snapshot(source, sender)
            yield from _changes(source, sender, until)


def plan(mq: "BlockingClient", source: Source, topic: str, *, snapshot: bool = False) -> str:
    """The first step of `capture`, in one line. Changes nothing.

    Raises:
        PipelineError: `capture` would not begin.
    """
    missing = source.prepare()
    if missing:
        return f"nothing: the table has to be prepared first, by {len(missing)} statements"
    tail = None
    if any(each.name == topic for each in mq.admin.list_topics()):
        tail = read_tail(mq, topic)
    if _needs_snapshot(tail, source, topic, snapshot=snapshot):
        return f"a snapshot of {source.table.name} into {topic}, then changes"
    assert tail is not None
    return f"changes of {source.table.name} after {tail.lsn} into {topic}"


def _needs_snapshot(tail: Tail | None, source: Source, topic: str, *, snapshot: bool) -> bool:
    """Whether to begin with a snapshot.

    Raises:
        PipelineError: the topic carries something else, or only a snapshot helps.
    """
    if tail is None:
        return True
    check_tail(tail, source.table, topic)
    if snapshot or not tail.has_snapshot:
        return True
    if tail.schema != source.table.schema:
        raise needs_snapshot(f"the columns of {source.table.name} have changed")
    source.check(tail.place)
    return False


def _snapshot(source: Source, sender: "_Sender") -> Iterator[Progress]:
    with source.snapshot(is_first=True) as (place, rows):
        sender.check_after(place)
        sender.take(Change(Op.EMPTY, place.position, 1, place.lsn, None))
        for seq, row in enumerate(rows, 2):
            sender.take(Change(Op.READ, place.position, seq, place.lsn, None, None, row))
            if sender.is_full:
                yield Progress("snapshot", sender.flush(), place.lsn)
        sender.end_transaction()
        yield Progress("snapshot", sender.flush(), place.lsn)


def _changes(source: Source, sender: "_Sender", until: Place | None) -> Iterator[Progress]:
    confirmed = marked = time.monotonic()
    reached = stored = sender.place
    for event in source.events(sender.place):
        match event:
            case Change():
                sender.take(event)
                marked = time.monotonic()
                if sender.is_full:
                    yield Progress("changes", sender.flush(), event.lsn)
                continue
            case Commit(reached):
                sender.end_transaction()
            case Idle(reached):
                pass
        is_idle = isinstance(event, Idle)
        is_end = until is not None and reached.position >= until.position
        now = time.monotonic()
        if is_end or now - marked > MARK_SECONDS:
            sender.mark(reached)
            marked = now
        if is_end or is_idle or sender.is_due:
            sent = sender.flush()
            # Confirmations are rare, as SQLite writes its file for each.
            if stored != reached and (is_end or is_idle or now - confirmed > 1.0):
                source.confirm(reached)
                stored, confirmed = reached, now
            yield Progress("changes", sent, reached.lsn)
        if is_end:
            return


class _Sender:
    """Sends new changes, and holds one change back."""

    def __init__(self, producer: "BlockingProducer", source: Source, tail: Tail | None) -> None:
        self._producer = producer
        self._table = source.table
        self._held: Change | None = None
        self._batch: list[Message] = []
        self._since = 0.0
        self._last = (-1, 0) if tail is None else (tail.position, tail.seq)
        self._is_whole = tail is not None and tail.has_snapshot
        self.place = Place(-1, "") if tail is None else tail.place
        """The place from which the database goes on."""

    @property
    def is_full(self) -> bool:
        """A batch is complete."""
        return len(self._batch) >= BATCH_MESSAGES

    @property
    def is_due(self) -> bool:
        """A batch is complete, or has waited enough."""
        return bool(self._batch) and (
            self.is_full or time.monotonic() - self._since > LINGER_SECONDS
        )

    def check_after(self, place: Place) -> None:
        """Refuse a snapshot that would not come after the topic's messages.

        Raises:
            PipelineError: the topic ends at this place, or after it.
        """
        if self._is_whole and place.position <= self._last[0] <= place.position + 1:
            raise PipelineError(
                "nothing was committed since the topic's last message: a snapshot adds nothing",
                "go on without --snapshot",
            )
        if place.position < self._last[0]:
            raise PipelineError(
                f"the topic ends at position {self._last[0]}, and the database is at "
                f"{place.position}: this is another database, or an older copy",
                "capture into another topic",
            )

    def take(self, change: Change) -> None:
        """Take the transaction's next change; one that an earlier capture sent is passed over."""
        if (change.position, change.seq) <= self._last:
            return
        self._send_held(is_last=False)
        self._last = change.position, change.seq
        self._held = change

    def end_transaction(self) -> None:
        """Note that the change that was taken last is the transaction's last."""
        self._send_held(is_last=True)

    def mark(self, reached: Place) -> None:
        """Add a mark that the topic has all before this place, unless its last message shows it."""
        assert self._held is None, "a mark stands between transactions"
        if (reached.position, 0) > self._last:
            change = Change(Op.MARK, reached.position, 0, reached.lsn, None)
            self._last = reached.position, 0
            self._add(change, is_last=True)

    def flush(self) -> int:
        """Send the batch; returns how many messages were stored.

        Raises:
            RaftmqError: the messages may be stored or not; the next capture finds out.
        """
        batch, self._batch = self._batch, []
        if batch:
            bodies, keys, tags = zip(*batch, strict=True)
            self._producer.send_many(bodies=bodies, keys=keys, tags=tags, queue=0)
        return len(batch)

    def _send_held(self, *, is_last: bool) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._add(held, is_last=is_last)

    def _add(self, change: Change, *, is_last: bool) -> None:
        if not self._batch:
            self._since = time.monotonic()
        self.place = Place(change.position, change.lsn)
        self._batch.append(message_of(self._table, change, is_last=is_last))
