"""Sends and reads of one client, by queue and offset.

A message is a digest of its content. A *place* is (queue, offset). Others may send to the same
queues, so a place that no receipt names may hold anything; but it holds one thing, for ever.

| anomaly | found where |
|---|---|
| realtime-send | a receipt names an offset below the end that receipts before the send showed |
| nonmonotonic-send | a receipt names an offset below that of an earlier send of its producer |
| inconsistent-offset | one place, two contents: two receipts, a receipt and a read, or two reads |
| lost-write, unseen | `lost`: a reader passed the place, or the queue ends before it |
| duplicate | a batch with one number of one own producer stands at two offsets |
| poll-skip | a reader of whole queues goes on behind the next offset |
| nonmonotonic-poll | a reader goes back without having been moved |
| delivered-early, unexpected | a delayed message came before it was due, or is another one |

Invariants:
- An acknowledged message is *unread* until a read shows its place, or its place is forgotten.
- Every table has a bound. A forgotten entry makes a verdict weaker, never wrong, and is counted.

Left out: sends without a receipt, which may be in the queue or not: others may have sent an equal
message. Delayed messages behind the first one of a release, whose numbers no answer shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .findings import Findings
from .recent import Recent

PLACES_MAX = 100_000
"""Unread acknowledged messages, 350 bytes each; as many places read, 230 bytes each; as many
delayed messages and batches, 450 and 320 bytes each."""
PRODUCERS_MAX = 10_000
"""Producers, by queue, whose last offset is known."""

Place = tuple[int, int]
"""Queue number and offset."""


class Content(NamedTuple):
    """A sent message."""

    digest: int
    shown: bytes
    """The body's first bytes, for people."""


@dataclass(slots=True)
class Sending:
    """A send under way."""

    process: int
    queue: int
    contents: Sequence[Content]
    floor: int
    """The queue's end by the receipts before the call."""


class Run(NamedTuple):
    """Neighbouring messages of one batch, as an answer shows them."""

    queue: int
    offset: int
    """Of the first message."""
    digests: Sequence[int]
    base_offset: int
    """Of the batch's first message."""
    batch: tuple[int, int, int] | None
    """Producer, epoch and first sequence number of the batch; None: a system made it."""
    released: int | None
    """The number of the delayed message that the batch begins with; None: it has none."""
    stamp_ms: int
    """When the batch was put into the queue, milliseconds since 1970 by the leader's clock."""


@dataclass(slots=True, eq=False)
class Reader:
    """A reader by offset."""

    process: int
    is_gapless: bool
    """True: nothing but `seek` lets it pass over messages of a queue."""
    is_steady: bool
    """True: nothing but `seek` lets it go back."""
    positions: dict[int, int] = field(default_factory=dict)
    """By queue: the next offset; a queue without one may begin anywhere."""


class Queues:
    """The places that one client knows."""

    def __init__(self, found: Findings, names: dict[int, str]) -> None:
        self._found = found
        self._names = names
        self._ends: dict[int, int] = {}
        self._last: Recent[tuple[int, int], int] = Recent(PRODUCERS_MAX)
        self._own: Recent[int, bool] = Recent(PRODUCERS_MAX)
        self._batches: Recent[tuple[int, int, int, int], int] = Recent(PLACES_MAX)
        self._delayed: Recent[Place, tuple[int, Content]] = Recent(PLACES_MAX)
        self.unread: Recent[Place, Content] = Recent(PLACES_MAX)
        """Acknowledged messages whose places no read has shown."""
        self.seen: Recent[Place, int] = Recent(PLACES_MAX)
        """The digests of places that reads showed."""
        self.acknowledged = 0
        """Messages with a receipt that names a place."""
        self.delivered = 0
        """Messages in answers."""
        self.confirmed = 0
        """Acknowledged messages that a read found as they were sent."""

    def name(self, queue: int, offset: int) -> str:
        """A place for people."""
        return f"{self._names.get(queue, f'{queue:x}')}/{offset}"

    # -- sends -----------------------------------------------------------------------------------

    def begin(self, process: int, queue: int, contents: Sequence[Content]) -> Sending:
        """Messages take their place in line for a queue."""
        return Sending(process, queue, contents, self._ends.get(queue, 0))

    def stored(self, sending: Sending, offset: int) -> None:
        """The answer names the place of the first message; sends of a producer to a queue are
        answered for in the order of their beginnings."""
        queue, end = sending.queue, offset + len(sending.contents)
        self.acknowledged += len(sending.contents)
        first = sending.contents[0].shown
        said = f"{first!r} was acknowledged at {self.name(queue, offset)}"
        if offset < sending.floor:
            fact = f"{said}; {self.name(queue, sending.floor - 1)} was acknowledged before the call"
            self._found.add("realtime-send", fact)
        elif offset < (before := self._last.get((sending.process, queue)) or 0):
            fact = f"{said}; its producer sent {self.name(queue, before - 1)} earlier"
            self._found.add("nonmonotonic-send", fact)
        self._ends[queue] = max(self._ends.get(queue, 0), end)
        self._last.put((sending.process, queue), end)
        for at, content in enumerate(sending.contents, offset):
            self._note_acknowledged((queue, at), content)

    def _note_acknowledged(self, place: Place, content: Content) -> None:
        read = self.seen.get(place)
        if self.unread.get(place) is not None:
            fact = f"{self.name(*place)} was acknowledged for two messages, {content.shown!r} one"
            self._found.add("inconsistent-offset", fact)
        elif read is None:
            self.unread.put(place, content)
        else:
            # A reader was faster than the receipt.
            self._compare(place, content, read)

    def delayed(self, sending: Sending, dues: Sequence[int], number: int) -> None:
        """The answer says that the messages wait, under numbers from `number` on; `dues` in
        milliseconds since 1970."""
        named = zip(sending.contents, dues, strict=True)
        for nth, (content, due) in enumerate(named, number):
            self._delayed.put((sending.queue, nth), (due, content))

    # -- reads -----------------------------------------------------------------------------------

    def read(self, reader: Reader, run: Run) -> None:
        """A reader by offset was given messages."""
        expected = reader.positions.get(run.queue)
        reader.positions[run.queue] = run.offset + len(run.digests)
        if expected is not None and expected != run.offset:
            fact = f"reader {reader.process} was given {self.name(run.queue, run.offset)} after "
            fact += self.name(run.queue, expected - 1)
            if run.offset < expected and reader.is_steady:
                self._found.add("nonmonotonic-poll", fact)
            elif run.offset > expected and reader.is_gapless:
                self._found.add("poll-skip", fact)
        self.show(run)

    def show(self, run: Run) -> None:
        """An answer shows messages at their places."""
        self.delivered += len(run.digests)
        if run.released is not None and run.offset == run.base_offset:
            self._show_released(run, run.released)
        for offset, digest in enumerate(run.digests, run.offset):
            place = run.queue, offset
            sent = self.unread.pop(place)
            if sent is not None:
                self._compare(place, sent, digest)
                if run.batch is not None and sent.digest == digest:
                    self._own.put(run.batch[0], True)
            elif (before := self.seen.get(place)) is not None and before != digest:
                fact = f"two reads of {self.name(*place)} showed two contents"
                self._found.add("inconsistent-offset", fact)
            self.seen.put(place, digest)
        if run.batch is not None:
            self._show_batch(run, run.batch)

    def _compare(self, place: Place, sent: Content, digest: int) -> None:
        if sent.digest == digest:
            self.confirmed += 1
            return
        fact = f"{sent.shown!r} was acknowledged at {self.name(*place)}, and a read showed a "
        fact += "message there with another body, key, tag or property"
        self._found.add("inconsistent-offset", fact)

    def _show_batch(self, run: Run, batch: tuple[int, int, int]) -> None:
        name = run.queue, *batch
        before = self._batches.get(name)
        if before is None:
            self._batches.put(name, run.base_offset)
        elif before != run.base_offset and self._own.get(batch[0]):
            # Producers of others may have used a number of theirs before.
            producer, epoch, first = batch
            fact = f"the batch from number {first} on of producer {producer}, epoch {epoch}, stands"
            fact += (
                f" at {self.name(run.queue, before)} and {self.name(run.queue, run.base_offset)}"
            )
            self._found.add("duplicate", fact)

    def _show_released(self, run: Run, number: int) -> None:
        due, sent = self._delayed.pop((run.queue, number)) or (0, None)
        if sent is None:
            return
        place = self.name(run.queue, run.offset)
        if sent.digest != run.digests[0]:
            fact = f"{place} holds the delayed message {sent.shown!r} with another content"
            self._found.add("unexpected", fact)
        elif run.stamp_ms < due:
            fact = f"{sent.shown!r} was put at {place} {due - run.stamp_ms} ms before it was due"
            self._found.add("delivered-early", fact)
        else:
            self.confirmed += 1

    # -- reading back ----------------------------------------------------------------------------

    def lost(self, place: Place, *, end: int) -> None:
        """The unread message is not at its place, though the queue begins before it. `end`: the
        queue's end, or how far a reader came."""
        sent = self.unread.pop(place)
        if sent is None:
            return
        _, offset = place
        said = f"{sent.shown!r} was acknowledged at {self.name(*place)}"
        if end <= offset:
            self._found.add("unseen", f"{said}, and the queue ends at offset {end}")
        else:
            self._found.add("lost-write", f"{said}, and a reader came to offset {end} without it")
