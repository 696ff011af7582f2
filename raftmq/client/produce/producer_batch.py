"""Messages under way: entries (one result for a caller) and batches (the content of a frame).

An *entry* is one message of `send` or `send_nowait` (`PendingSend`), or the messages of one
`send_many` for one batch (`PendingPart`). A *batch* is on its way to one queue, of one or more
entries:

    draft ── seal ──> waiting ── first write ──> numbered: in flight, refused, in doubt ──> settled

A draft gathers entries, and entries can be taken back. A batch gets its sequence number when it is
first written, so a batch that was never written leaves no gap.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import inf

import anyio

from raftmq.batch import Batch, BatchBuilder, Compression, Draft, Limits, Sealed, Value
from raftmq.client.routing.connection import Request
from raftmq.errors import OutcomeUnknown, RaftmqError, Rejected
from raftmq.wire.messages import ErrorReply

from .receipts import Receipt, SentMany, SentRange

Arguments = tuple[bytes, str | bytes | None, str | None, Mapping[str, Value | None] | None, int]
"""Body, key, tag, properties, and when to deliver it (milliseconds since 1970; 0: at once).

A plain tuple, as one is made for each message: a `NamedTuple` makes `send_nowait` 5 to 10 % slower.
"""


Content = tuple[bytes, str | bytes | None, str | None, Mapping[str, Value | None] | None]
"""Body, key, tag and properties."""


class Entry(ABC):
    """A result that callers wait for: it is settled or failed once."""

    __slots__ = (
        "_event",
        "base_offset",
        "count",
        "deadline",
        "error",
        "is_done",
        "is_duplicate",
        "is_heard",
        "number",
        "queue_number",
        "size",
        "timestamp",
    )

    def __init__(self, *, queue_number: int, count: int, size: int, deadline: float) -> None:
        self._event: anyio.Event | None = None
        self.queue_number = queue_number
        self.count = count
        self.size = size
        """Bytes that the entry takes of the buffer."""
        self.deadline = deadline
        """By the event loop's clock: at this time the entry fails, if it is not done."""
        self.is_done = False
        self.error: RaftmqError | None = None
        self.base_offset: int | None = None
        self.timestamp = 0
        self.is_duplicate = False
        self.number = 0
        """The number of the first message if the entry is delayed; 0: it is not."""
        self.is_heard = False
        """True once a caller has the outcome, or waits for it; else `flush` raises the error."""

    @property
    @abstractmethod
    def is_delayed(self) -> bool:
        """True if the entry is delayed: it shares no batch with entries that are not."""

    @abstractmethod
    def append_to(self, builder: BatchBuilder) -> None:
        """Add the entry's messages to a batch.

        Raises:
            Rejected: the entry cannot be encoded, or does not fit; the builder is as before.
        """

    @abstractmethod
    def drop_content(self) -> None:
        """Drop the messages: the encoded batch holds them now."""

    @property
    @abstractmethod
    def contents(self) -> Iterable[Content]:
        """Internal: the messages, for a recorder; not after `drop_content`."""

    @property
    @abstractmethod
    def dues(self) -> Sequence[int]:
        """Internal: when to deliver each message, milliseconds since 1970; 0: at once; empty: all
        at once, or not known here."""

    def settle(
        self, base_offset: int | None, timestamp: int, is_duplicate: bool, number: int = 0
    ) -> None:
        """Note that the entry is stored, and wake its callers."""
        self.base_offset = base_offset
        self.number = number
        self.timestamp = timestamp
        self.is_duplicate = is_duplicate
        self.is_done = True
        if self._event is not None:
            self._event.set()

    def fail(self, error: RaftmqError) -> None:
        """Note that the entry is not stored, or that its outcome is unknown; wake its callers."""
        self.error = error
        self.is_done = True
        if self._event is not None:
            self._event.set()

    async def wait_done(self) -> None:
        """Wait until the entry is settled or failed; `flush` no longer raises its error."""
        self.is_heard = True
        await self.wait_unheard()

    async def wait_unheard(self) -> None:
        """As `wait_done`, but the error stays for another caller or `flush`."""
        if not self.is_done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()


class PendingSend(Entry):
    """A message that `send_nowait` took."""

    __slots__ = ("_arguments", "deliver_at_ms")

    def __init__(
        self, *, queue_number: int, size: int, deadline: float, arguments: Arguments
    ) -> None:
        super().__init__(queue_number=queue_number, count=1, size=size, deadline=deadline)
        self._arguments: Arguments | None = arguments
        _body, _key, _tag, _props, self.deliver_at_ms = arguments
        """Delivery time, milliseconds since 1970; 0: at once."""

    @property
    def is_delayed(self) -> bool:
        """True if the message is delayed."""
        return self.deliver_at_ms > 0

    async def wait(self, timeout: float | None = None) -> Receipt:
        """Wait until the outcome of the message is known. It may be called again.

        Cancelling stops the waiting, not the sending.

        Raises:
            Unavailable, OutcomeUnknown, Rejected: as `Producer.send`.
            OutcomeUnknown: `timeout` seconds were over; the message stays under way.
        """
        try:
            with anyio.move_on_after(inf if timeout is None else timeout):
                await self.wait_done()
        finally:
            # A caller that went without an answer has heard nothing: `flush` tells of an error.
            self.is_heard = self.is_done
        return self.receipt()

    def receipt(self) -> Receipt:
        """The receipt, without waiting; raises as `wait`."""
        if self.error is not None:
            raise self.error
        if not self.is_done:
            raise OutcomeUnknown("the message is still under way: wait again")
        due = self.deliver_at_ms if self.number else 0
        return Receipt(
            self.queue_number,
            self.base_offset,
            self.timestamp,
            self.is_duplicate,
            due,
            self.number,
        )

    def append_to(self, builder: BatchBuilder) -> None:
        """Add the message to a batch; see `Entry.append_to`."""
        assert self._arguments is not None
        body, key, tag, props, due = self._arguments
        builder.append(body, key=key, tag=tag, props=props, deliver_at_ms=due)

    def drop_content(self) -> None:
        """Drop the message: the encoded batch holds it now."""
        self._arguments = None

    @property
    def contents(self) -> Iterable[Content]:
        """Internal: see `Entry.contents`."""
        assert self._arguments is not None
        body, key, tag, props, _due = self._arguments
        return [(body, key, tag, props)]

    @property
    def dues(self) -> Sequence[int]:
        """Internal: see `Entry.dues`."""
        return [self.deliver_at_ms]


class PendingPart(Entry):
    """The messages of a `send_many` for one batch, which entries of other calls may join."""

    __slots__ = ("_draft", "_dues", "sealed")

    def __init__(
        self,
        *,
        queue_number: int,
        size: int,
        deadline: float,
        content: Draft | Sealed,
        dues: Sequence[int] | None = None,
    ) -> None:
        count = content.count if isinstance(content, Sealed) else len(content)
        super().__init__(queue_number=queue_number, count=count, size=size, deadline=deadline)
        self._draft = content if isinstance(content, Draft) else None
        self.sealed = content if isinstance(content, Sealed) else None
        """The encoded batch, if the call encoded it: no other entry can join."""
        self._dues = dues

    @property
    def is_delayed(self) -> bool:
        """True if messages are delayed."""
        return self._dues is not None and any(self._dues)

    def append_to(self, builder: BatchBuilder) -> None:
        """Add the messages to a batch; see `Entry.append_to`."""
        assert self._draft is not None
        builder.extend(self._draft)

    def drop_content(self) -> None:
        """Drop the messages: the encoded batch holds them now."""
        self._draft = None

    @property
    def contents(self) -> Iterable[Content]:
        """Internal: see `Entry.contents`."""
        if self.sealed is not None:
            batch = Batch.decode(self.sealed.to_bytes(queue=self.queue_number))
            tags = [batch.tag(position) for position in range(self.count)]
            props = [batch.props(position) for position in range(self.count)]
            return zip(batch.bodies, batch.keys, tags, props, strict=True)
        assert self._draft is not None
        nothing, draft = [None] * self.count, self._draft
        keys, tags_ = draft.keys or nothing, draft.tags or nothing
        return zip(draft.bodies, keys, tags_, nothing, strict=True)

    @property
    def dues(self) -> Sequence[int]:
        """Internal: see `Entry.dues`."""
        return self._dues or ()

    def as_range(self, positions: range | list[int]) -> SentRange:
        """The outcome of the messages at these positions of the call."""
        return SentRange(
            positions,
            self.queue_number,
            self.base_offset,
            self.timestamp,
            self.is_duplicate,
            self.error,
            self._dues,
            self.number,
        )


class PendingMany:
    """Messages that `send_many_nowait` took."""

    def __init__(self, parts: list[tuple[PendingPart, range | list[int]]]) -> None:
        self._parts = parts

    @property
    def is_done(self) -> bool:
        """True once the outcome of each message is known."""
        return all(part.is_done for part, _ in self._parts)

    async def wait(self, *, check: bool = True) -> SentMany:
        """Wait until the outcome of each message is known. It may be called again.

        Cancelling stops the waiting, not the sending. The messages' deadlines end the waiting.

        Raises:
            SomeUnsent: not all were stored; not with `check=False`.
        """
        for part, _ in self._parts:
            await part.wait_done()
        sent = SentMany([part.as_range(positions) for part, positions in self._parts])
        if check:
            sent.check()
        return sent


class ProducerBatch:
    """One batch on its way to one queue."""

    __slots__ = (
        "_builder",
        "_limits",
        "count",
        "deadline",
        "entries",
        "first_sequence",
        "is_closed",
        "is_doubtful",
        "is_settled",
        "refusal",
        "request",
        "sealed",
    )

    def __init__(self, limits: Limits) -> None:
        self._builder: BatchBuilder | None = None
        self._limits = limits
        self.entries: list[Entry] = []
        self.count = 0
        """Number of messages, without those taken back."""
        self.deadline = float("inf")
        """The earliest deadline of the entries that are not done."""
        self.first_sequence = -1
        """The sequence number of the first message; -1: not written in this epoch."""
        self.is_closed = False
        """True: the batch is ready to be sent and takes no more entries."""
        self.is_doubtful = False
        """True if a written attempt has no certain answer: the batch may be stored."""
        self.is_settled = False
        """True once the batch is known to be stored."""
        self.refusal: ErrorReply | None = None
        """The refusal of the last attempt; None: no refusal came."""
        self.request: Request | None = None
        """The attempt under way."""
        self.sealed: Sealed | None = None
        """The encoded batch; None: a draft."""

    @classmethod
    def of_sealed(cls, part: PendingPart, limits: Limits) -> "ProducerBatch":
        """The batch of a part that is encoded already."""
        batch = cls(limits)
        batch.entries = [part]
        batch.count = part.count
        batch.deadline = part.deadline
        batch.is_closed = True
        batch.sealed = part.sealed
        return batch

    @property
    def size(self) -> int:
        """Bytes of the batch; for a draft an upper bound."""
        if self.sealed is not None:
            return self.sealed.size
        return self._builder.size if self._builder is not None else 0

    @property
    def is_done(self) -> bool:
        """True if all entries are done: no caller waits for the batch."""
        return all(entry.is_done for entry in self.entries)

    def append(self, entry: Entry) -> None:
        """Add an entry to a draft.

        Raises:
            Rejected: the entry cannot be encoded, or does not fit; the draft is as before.
        """
        assert not self.is_closed
        entry.append_to(self._built())
        self.entries.append(entry)
        self.count += entry.count
        self.deadline = min(self.deadline, entry.deadline)

    def try_append(self, entry: Entry) -> bool:
        """As `append`; False if the entry does not fit in with the others."""
        if entry.is_delayed != self.entries[0].is_delayed:
            return False
        if self.size + entry.size > self._limits.batch_bytes_max:
            return False
        try:
            self.append(entry)
        except Rejected:
            return False
        return True

    def take_back(self, entry: Entry) -> None:
        """Take an entry out of a batch that has no number."""
        assert self.first_sequence < 0
        self.entries.remove(entry)
        self.count -= entry.count
        # The builder still holds the entry's messages: `_built` makes a new one without them.
        self._builder = None

    def seal(self, *, base_ms: int, compression: Compression) -> None:
        """Encode the draft, once."""
        if self.sealed is not None:
            return
        self.sealed = self._built().seal(base_ms=base_ms, compression=compression)
        self._builder = None
        self.is_closed = True
        for entry in self.entries:
            entry.drop_content()

    def _built(self) -> BatchBuilder:
        if self._builder is None:
            self._builder = BatchBuilder(self._limits)
            for entry in self.entries:
                entry.append_to(self._builder)
        return self._builder

    def settle(
        self, base_offset: int | None, timestamp: int, is_duplicate: bool, number: int = 0
    ) -> None:
        """Settle all entries. No offset: the batch is delayed, or the broker forgot its place."""
        at = base_offset
        for entry in self.entries:
            if not entry.is_done:
                entry.settle(at, timestamp, is_duplicate, number)
            if at is not None:
                at += entry.count
            if number:
                number += entry.count
        self.deadline = float("inf")

    def tell(self, error: RaftmqError, *, until: float = float("inf")) -> list[Entry]:
        """Fail the entries whose deadline is not after `until`, and return them."""
        told: list[Entry] = []
        left = float("inf")
        for entry in self.entries:
            if entry.is_done:
                continue
            if entry.deadline <= until:
                entry.fail(error)
                told.append(entry)
            else:
                left = min(left, entry.deadline)
        self.deadline = left
        return told
