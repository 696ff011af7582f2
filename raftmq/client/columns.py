"""The messages of a `send_many` as parallel columns, cut into batches, each for one queue.

A batch of the call is a list of positions. Messages with a key go where the key says; the others go
to queues in turn, a batch to each. A range of neighbouring messages stays a range all the way, so
bulk work without keys never touches a single message.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Self, TypeVar

from raftmq.batch import Compression, Limits, Sealed, Value, encode, queue_of
from raftmq.errors import Reason, Rejected

from .message import Message
from .receipts import Outgoing

T = TypeVar("T")
Positions = range | list[int]


class Cut(NamedTuple):
    """One batch to be: which messages, and the queue within the topic."""

    queue: int
    positions: Positions


class Columns(NamedTuple):
    """Messages as parallel sequences; None: no message has one."""

    bodies: Sequence[bytes]
    keys: Sequence[str | bytes | None] | None
    tags: Sequence[str | None] | None
    props: Sequence[Mapping[str, Value | None] | None] | None

    @classmethod
    def of(cls, messages: Iterable[bytes | Outgoing | Message]) -> Self:
        """The columns of messages given one by one."""
        rows = list(messages)
        if all(isinstance(row, bytes) for row in rows):
            return cls(rows, None, None, None)  # type: ignore[arg-type]
        full = [row if not isinstance(row, bytes) else Outgoing(row) for row in rows]
        if not all(isinstance(row, Outgoing | Message) for row in full):
            raise Rejected(
                Reason.BAD_ARGUMENT, "send_many takes bytes, Outgoing, or messages of a consumer"
            )
        return cls(
            [row.body for row in full],
            _unless_empty([row.key for row in full]),
            _unless_empty([row.tag for row in full]),
            _unless_empty([row.props or None for row in full]),
        )

    def check(self) -> None:
        """Raise `Rejected` unless all columns are as long as `bodies`."""
        for name, column in zip(self._fields, self, strict=True):
            if column is not None and len(column) != len(self.bodies):
                message = f"{len(self.bodies)} bodies and {len(column)} {name}: give one for each"
                raise Rejected(Reason.BAD_ARGUMENT, message)

    def encode(
        self, positions: Positions, *, base_ms: int, compression: Compression, limits: Limits
    ) -> Sealed:
        """The batch of these messages."""
        return encode(
            _pick(self.bodies, positions),
            keys=None if self.keys is None else _pick(self.keys, positions),
            tags=None if self.tags is None else _pick(self.tags, positions),
            props=None if self.props is None else _pick(self.props, positions),
            base_ms=base_ms,
            compression=compression,
            limits=limits,
        )

    def cut(
        self,
        *,
        queues: int,
        queue: int | None,
        next_queue: Callable[[], int],
        bytes_max: int,
        messages_max: int,
    ) -> Iterator[Cut]:
        """Cut into batches that keep the order of each queue.

        Args:
            queues: how many the topic has.
            queue: the queue for all; None: by key, and where there is none by `next_queue`.
            next_queue: gives the queue for one batch without keys.
            bytes_max: bodies of one batch, unless one body alone is larger.
            messages_max: messages of one batch.
        """
        everything = range(len(self.bodies))
        if queue is not None or self.keys is None:
            for piece in self._pieces(everything, bytes_max, messages_max):
                yield Cut(next_queue() if queue is None else queue, piece)
            return
        by_queue: dict[int, list[int]] = {}
        unkeyed: int | None = None
        for position, key in enumerate(self.keys):
            if key is None:
                unkeyed = next_queue() if unkeyed is None else unkeyed
                at = unkeyed
            else:
                at = queue_of(key, queues)
            by_queue.setdefault(at, []).append(position)
        for at, positions in by_queue.items():
            for piece in self._pieces(positions, bytes_max, messages_max):
                yield Cut(at, piece)

    def _pieces(
        self, positions: Positions, bytes_max: int, messages_max: int
    ) -> Iterator[Positions]:
        bodies = _pick(self.bodies, positions)
        ends = list(accumulate(map(len, bodies)))
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = bisect_right(
                ends, before + bytes_max, start, min(start + messages_max, len(ends))
            )
            stop = max(stop, start + 1)
            yield positions[start:stop]
            start = stop


def _pick(column: Sequence[T], positions: Positions) -> Sequence[T]:
    if isinstance(positions, range):
        if len(positions) == len(column):
            return column
        return column[positions.start : positions.stop]
    return [column[position] for position in positions]


def _unless_empty(column: list[T | None]) -> list[T | None] | None:
    return None if all(value is None for value in column) else column
