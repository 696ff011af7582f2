"""Receipts of a producer, for one message or for many, and the messages that `send_many` takes.

`send_many` makes batches. Each batch is one range of neighbouring offsets, or one error. A
`SentMany` holds the ranges and answers for single messages from them, so 100,000 messages cost 200
objects and not 100,000.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, overload

from raftmq.batch import Value
from raftmq.client.message import format_id
from raftmq.errors import RaftmqError, Rejected, Unavailable
from raftmq.machine.queue_numbers import QUEUE_MASK
from raftmq.words import counted

from .delays import format_delayed_id


class Outgoing(NamedTuple):
    """One message for `send_many`."""

    body: bytes
    """The content; may be empty."""
    key: str | bytes | None = None
    """Messages of one key go to one queue, in order; None: any queue."""
    tag: str | None = None
    """One label for filters."""
    props: Mapping[str, Value | None] | None = None
    """Typed properties for filters and queries."""


class Receipt(NamedTuple):
    """The message is stored: on the disks of a majority. A delayed one waits there."""

    queue_number: int
    """The cluster-wide number of its queue."""
    offset: int | None
    """The message's offset. None: the message is delayed and gets an offset when it falls due; or a
    repeat proved that an earlier attempt stored it, and the broker forgot the offset."""
    timestamp: int
    """The leader's stamp, milliseconds since 1970; 0: not known."""
    is_duplicate: bool = False
    """True if an earlier attempt had stored the message and this answer is to a repeat."""
    deliver_at_ms: int = 0
    """Earliest delivery of a delayed message, milliseconds since 1970; 0: not delayed."""
    number: int = 0
    """The number that names a delayed message; 0: not delayed."""

    @property
    def queue(self) -> int:
        """The queue within the topic, from 0."""
        return self.queue_number & QUEUE_MASK

    @property
    def id(self) -> str | None:
        """The text for `Client.get`, or for `Client.cancel` if it is delayed; None: not known."""
        if self.number:
            return format_delayed_id(self.queue_number, self.deliver_at_ms, self.number)
        return None if self.offset is None else format_id(self.queue_number, self.offset)


class SentRange(NamedTuple):
    """One batch of a `send_many`: all of it was stored, or none of it."""

    positions: Sequence[int]
    """Positions in the call of the batch's messages, from 0, in the order of their offsets."""
    queue_number: int
    """The cluster-wide number of the queue."""
    base_offset: int | None
    """Offset of the first message, the others follow; None: see `Receipt.offset`, or `error`."""
    timestamp: int
    """The leader's stamp, milliseconds since 1970."""
    is_duplicate: bool
    """See `Receipt.is_duplicate`."""
    error: RaftmqError | None
    """Why the batch was not stored, or why its outcome is unknown; None: the batch is stored."""
    dues: Sequence[int] | None = None
    """If delayed: the earliest delivery of each message, milliseconds since 1970; 0: at once."""
    number: int = 0
    """If delayed: the number that names the first message, the others follow; else 0."""

    @property
    def queue(self) -> int:
        """The queue within the topic, from 0."""
        return self.queue_number & QUEUE_MASK

    def receipt(self, nth: int) -> Receipt:
        """The receipt of the nth message of this range; only if `error` is None."""
        assert self.error is None, self.error
        offset = None if self.base_offset is None else self.base_offset + nth
        due, number = 0, 0
        if self.number and self.dues is not None:
            due, number = self.dues[nth], self.number + nth
        return Receipt(self.queue_number, offset, self.timestamp, self.is_duplicate, due, number)


class SentMany(Sequence[Receipt | RaftmqError]):
    """The outcome of each message of a `send_many`, by its position in the call.

    `sent[i]` is the message's receipt, or its error as a value.
    """

    __slots__ = ("_by_position", "_count", "ranges")

    ranges: list[SentRange]
    """One range for each batch."""

    def __init__(self, ranges: list[SentRange]) -> None:
        self.ranges = ranges
        self._count = sum(len(part.positions) for part in ranges)
        self._by_position: list[Receipt | RaftmqError] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Receipt | RaftmqError: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt | RaftmqError]: ...

    def __getitem__(
        self, index: int | slice
    ) -> Receipt | RaftmqError | list[Receipt | RaftmqError]:
        return self._outcomes()[index]

    def __iter__(self) -> Iterator[Receipt | RaftmqError]:
        return iter(self._outcomes())

    @property
    def is_complete(self) -> bool:
        """True if every message is stored."""
        return all(part.error is None for part in self.ranges)

    @property
    def failed(self) -> list[tuple[int, RaftmqError]]:
        """Position and error of each message that is not known to be stored, by position."""
        pairs = [(at, p.error) for p in self.ranges if p.error is not None for at in p.positions]
        return sorted(pairs, key=lambda pair: pair[0])

    def receipts(self) -> list[Receipt]:
        """The receipts of all messages, by position.

        Raises:
            SomeUnsent: not every message is stored.
        """
        self.check()
        return [outcome for outcome in self._outcomes() if isinstance(outcome, Receipt)]

    def check(self) -> None:
        """Do nothing if every message is stored.

        Raises:
            SomeUnsent: not every message is stored.
        """
        if not self.is_complete:
            raise SomeUnsent(self)

    def _outcomes(self) -> list[Receipt | RaftmqError]:
        if self._by_position is None:
            found: dict[int, Receipt | RaftmqError] = {}
            for part in self.ranges:
                for nth, at in enumerate(part.positions):
                    found[at] = part.error if part.error is not None else part.receipt(nth)
            self._by_position = [found[at] for at in range(self._count)]
        return self._by_position

    def __repr__(self) -> str:
        return f"<SentMany: {counted(self._count, 'message')}, {len(self.failed)} failed>"


class SomeUnsent(RaftmqError):
    """Not all messages of a call were stored; `sent` says which and why.

    Neither `Unavailable` nor `OutcomeUnknown`: a repeat of the whole call would store some messages
    twice. `__cause__` is the first error.
    """

    def __init__(self, sent: SentMany) -> None:
        failed = sent.failed
        is_sure = all(isinstance(error, (Unavailable, Rejected)) for _, error in failed)
        what = "not stored" if is_sure else "not known to be stored"
        super().__init__(
            f"{len(failed):,} of {counted(len(sent), 'message')} {what}; "
            f"the first is number {failed[0][0]}: {failed[0][1]}"
        )
        self.sent = sent
        self.__cause__ = failed[0][1]


def raise_first(errors: Sequence[RaftmqError]) -> None:
    """Raise the first error of several calls, if there is any; it tells how many there are."""
    if errors:
        if len(errors) > 1:
            more = counted(len(errors) - 1, "more call")
            errors[0].add_note(f"and {more} of `send_nowait` or `send_many_nowait` failed")
        raise errors[0]
