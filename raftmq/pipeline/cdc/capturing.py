"""Capture: the changes of a table into a topic, in the order of commits, each once.

    database ──events──> hold one back ──batches──> topic, one queue
        ^                                              │ stored by a majority
        └────────────────── confirm ───────────────────┘

A change is held back until the next event: only then is it known whether the transaction ends with
it. A batch is sent when it is full, or old enough, or nothing more comes.

The restart story: what was sent is what the topic ends with. On a start the producer's session is
claimed from all earlier captures, and the last message's (position, seq) is read; the database goes
on from there or from before it, and what is not greater was sent already and is passed over. A
database forgets (`confirm`) only what a majority has stored.
So a kill at any line loses nothing and doubles nothing; a snapshot that was cut short begins anew,
with a `t` that makes what was sent of it void.

Invariants:
- (position, seq) grows from message to message, over all restarts.
- What is confirmed is stored.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raftmq.pipeline.errors import PipelineError

from .change import Change, Commit, Idle, Message, Op, Place, message_of
from .source import Source, needs_snapshot
from .tail import Tail, check_tail, open_topic, read_tail

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient, BlockingProducer

BATCH_MESSAGES = 500
"""That are sent at once."""
LINGER_SECONDS = 0.05
"""How old a batch gets while changes keep coming."""
MARK_SECONDS = 5.0
"""After which a mark is sent, while only other tables are written."""


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
        topic: where its changes go.
        until: when all before it is in the topic, a mark says so, and it ends; None: without end.
        snapshot: begin with a new snapshot, whatever the topic has.

    Raises:
        PipelineError: what is to be mended; the topic is in order, and the next capture goes on.
        RaftmqError: of the cluster, likewise.
    """
    if source.prepare():
        raise PipelineError(
            f"{source.table.name} is not prepared for capture",
            "`raftmq pipeline cdc prepare …` shows what is missing, and does it",
        )
    with source.claim():
        open_topic(mq, topic)
        # The claim comes before the look at the topic's end: what an earlier capture still has
        # under way, though it was killed, is refused from here on.
        with mq.claimed_producer(topic, f"cdc {topic}") as producer:
            tail = read_tail(mq, topic)
            sender = _Sender(producer, source, tail)
            if _needs_snapshot(tail, source, topic, snapshot=snapshot):
                yield from _snapshot(source, sender)
            yield from _changes(source, sender, until)


def plan(mq: "BlockingClient", source: Source, topic: str, *, snapshot: bool = False) -> str:
    """What `capture` would begin with, in one line. Changes nothing.

    Raises:
        PipelineError: it would not begin.
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
    """Whether to begin with one.

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
            # The database is told as rarely as it may be: SQLite writes its file for it.
            if stored != reached and (is_end or is_idle or now - confirmed > 1.0):
                source.confirm(reached)
                stored, confirmed = reached, now
            yield Progress("changes", sent, reached.lsn)
        if is_end:
            return


class _Sender:
    """Sends what is new, and holds one change back."""

    def __init__(self, producer: "BlockingProducer", source: Source, tail: Tail | None) -> None:
        self._producer = producer
        self._table = source.table
        self._held: Change | None = None
        self._batch: list[Message] = []
        self._since = 0.0
        self._last = (-1, 0) if tail is None else (tail.position, tail.seq)
        self._is_whole = tail is not None and tail.has_snapshot
        self.place = Place(-1, "") if tail is None else tail.place
        """Where the database is to go on."""

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
        """
        Raises:
            PipelineError: a snapshot of this place would not come after what the topic has.
        """
        if self._is_whole and place.position <= self._last[0] <= place.position + 1:
            raise PipelineError(
                "nothing was committed since the topic's last message: a snapshot adds nothing",
                "go on without --snapshot",
            )
        if place.position < self._last[0]:
            raise PipelineError(
                f"the topic ends at position {self._last[0]}, and the database is at "
                f"{place.position}: it is another, or an older copy",
                "capture into another topic",
            )

    def take(self, change: Change) -> None:
        """The next change of the transaction; passed over if it was sent by an earlier capture."""
        if (change.position, change.seq) <= self._last:
            return
        self._send_held(is_last=False)
        self._last = change.position, change.seq
        self._held = change

    def end_transaction(self) -> None:
        """The change that was taken last is the transaction's last."""
        self._send_held(is_last=True)

    def mark(self, reached: Place) -> None:
        """Say that all before this place is there, unless it is said already."""
        assert self._held is None, "a mark stands between transactions"
        if (reached.position, 0) > self._last:
            change = Change(Op.MARK, reached.position, 0, reached.lsn, None)
            self._last = reached.position, 0
            self._add(change, is_last=True)

    def flush(self) -> int:
        """Send the batch; how many messages are stored on return.

        Raises:
            RaftmqError: they may be stored or not; the next capture finds out.
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
