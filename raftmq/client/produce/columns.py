"""The messages of a `send_many` as parallel columns, cut into batches, each for one queue.

A batch of the call is a list of positions. Messages with a key go to the key's queue; the others go
to queues in turn, a batch to each. A range of neighbouring messages stays a range all the way, so
bulk work without keys never touches a single message.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import google_crc32c

from raftmq.batch import Compression, Draft, Limits, Sealed, Value, encode, queue_of
from raftmq.client.arguments import require
from raftmq.client.message import Message
from raftmq.errors import Reason, Rejected

from .delays import Delay, dues_of
from .receipts import Outgoing

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
Positions = range | list[int]
_FEW = 64
"""Up to this number of keys, a loop is as fast as numpy."""


class Cut(NamedTuple):
    """One future batch: the queue within the topic, and the positions of its messages."""

    queue: int
    positions: Positions


class Columns(NamedTuple):
    """Messages as parallel sequences; None: no message has one."""

    bodies: Sequence[bytes]
    keys: Sequence[str | bytes | None] | None
    tags: Sequence[str | None] | None
    props: Sequence[Mapping[str, Value | None] | None] | None
    dues: Sequence[int] | None = None

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

    def delayed(self, delay: Delay | Sequence[Delay | None] | None, now_ms: int) -> Self:
        """The same with one delay for all messages, or one each: see `Producer.send`."""
        dues = dues_of(delay, len(self.bodies), now_ms)
        return self if dues is None else self._replace(dues=dues)

    def check(self) -> None:
        """Raise `Rejected` unless all columns are as long as `bodies`."""
        for name, column in zip(self._fields, self, strict=True):
            if column is not None and len(column) != len(self.bodies):
                message = f"{len(self.bodies)} bodies and {len(column)} {name}: give one for each"
                raise Rejected(Reason.BAD_ARGUMENT, message)

    def take(
        self, positions: Positions, *, base_ms: int, compression: Compression, limits: Limits
    ) -> Draft | Sealed:
        """The messages at these positions, checked, for one batch: a draft, or sealed at once with
        properties or delays, so that no other messages can join.

        Raises:
            Rejected: the messages cannot be encoded.
        """
        bodies = _pick(self.bodies, positions)
        keys = None if self.keys is None else _pick(self.keys, positions)
        tags = None if self.tags is None else _pick(self.tags, positions)
        if self.props is None and self.dues is None:
            return Draft(bodies, keys=keys, tags=tags, limits=limits)
        return encode(
            bodies,
            keys=keys,
            tags=tags,
            props=None if self.props is None else _pick(self.props, positions),
            deliver_at_ms=self.dues_of(positions),
            base_ms=base_ms,
            compression=compression,
            limits=limits,
        )

    def dues_of(self, positions: Positions) -> Sequence[int] | None:
        """Delivery times of the messages, milliseconds since 1970; None: all at once."""
        return None if self.dues is None else _pick(self.dues, positions)

    def cut(
        self,
        *,
        queues: int,
        queue: int | None,
        next_queue: Callable[[int], int],
        bytes_max: int,
        messages_max: int,
    ) -> Iterator[Cut]:
        """Cut into batches that keep the order of each queue.

        Args:
            queues: the number of the topic's queues.
            queue: the queue for all; None: by key, and without a key by `next_queue`.
            next_queue: gives the queue for the call's n-th batch without keys.
            bytes_max: bodies of one batch, unless one body alone is larger.
            messages_max: messages of one batch.
        """
        everything = range(len(self.bodies))
        if queue is not None or self.keys is None:
            for n, piece in enumerate(self._pieces(everything, bytes_max, messages_max)):
                yield Cut(next_queue(n) if queue is None else queue, piece)
            return
        for at, positions in self._by_queue(self.keys, queues, next_queue):
            for piece in self._pieces(positions, bytes_max, messages_max):
                yield Cut(at, piece)

    def _by_queue(
        self,
        keys: Sequence[str | bytes | None],
        queues: int,
        next_queue: Callable[[int], int],
    ) -> Iterator[tuple[int, list[int]]]:
        """Each queue, rising, with the positions of its messages."""
        if len(keys) <= _FEW:
            # A command that sends a few messages must not pay for the import of numpy.
            found: dict[int, list[int]] = {}
            for position, at in enumerate(_chosen(keys, queues, next_queue)):
                found.setdefault(at, []).append(position)
            yield from sorted(found.items())
            return
        import numpy as np

        chosen = _chosen_of_many(keys, queues, next_queue)
        for at in np.unique(chosen).tolist():
            yield at, np.flatnonzero(chosen == at).tolist()

    def _pieces(
        self, positions: Positions, bytes_max: int, messages_max: int
    ) -> Iterator[Positions]:
        sizes = self._sizes(positions)
        # Usually all messages fit into one batch, and a sum is cheaper than finding the cuts.
        if len(sizes) <= messages_max and sum(sizes) <= bytes_max:
            if sizes:
                yield positions
            return
        ends = list(accumulate(sizes))
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = bisect_right(
                ends, before + bytes_max, start, min(start + messages_max, len(ends))
            )
            stop = max(stop, start + 1)
            yield positions[start:stop]
            start = stop

    def _sizes(self, positions: Positions) -> list[int]:
        try:
            return list(map(len, _pick(self.bodies, positions)))
        except TypeError as error:
            raise Rejected(Reason.BAD_ARGUMENT, f"a body is bytes: {error}") from None


def columns_of(
    messages: Iterable[bytes | Outgoing | Message],
    bodies: Sequence[bytes] | None,
    keys: Sequence[str | bytes | None] | None,
    tags: Sequence[str | None] | None,
    props: Sequence[Mapping[str, Value | None] | None] | None,
) -> Columns:
    """The columns of a call's arguments, which are messages or columns.

    Raises:
        Rejected: `BAD_ARGUMENT`, both were given, or one text for a column.
    """
    if bodies is not None:
        require(messages == (), "give either messages or bodies=, not both")
        for name, column in (("keys", keys), ("tags", tags)):
            # A text is a sequence too: each message would get one letter of it.
            is_one = isinstance(column, str | bytes)
            fix = f"[{column!r}] * {len(bodies)} is one for all"
            require(not is_one, f"{name}= has an entry for each body: {fix}")
        return Columns(bodies, keys, tags, props)
    is_alone = keys is None and tags is None and props is None
    require(is_alone, "keys=, tags= and props= go with bodies=")
    return Columns.of(messages)


def _pick(column: Sequence[T], positions: Positions) -> Sequence[T]:
    if isinstance(positions, range):
        if len(positions) == len(column):
            return column
        return column[positions.start : positions.stop]
    if len(positions) == 1:
        return [column[positions[0]]]
    picked: tuple[T, ...] = itemgetter(*positions)(column)
    return picked


def _unless_empty(column: list[T | None]) -> list[T | None] | None:
    return None if all(value is None for value in column) else column


def _chosen_of_many(
    keys: Sequence[str | bytes | None], queues: int, next_queue: Callable[[int], int]
) -> "np.ndarray":
    """As `_chosen`, as an array."""
    import numpy as np

    try:
        # Usually all keys are text: `queue_of` for all of them at once.
        encoded = map(str.encode, keys)  # type: ignore[arg-type]
        hashes = np.fromiter(map(google_crc32c.value, encoded), np.int64, len(keys))
        return hashes % queues
    except (TypeError, UnicodeEncodeError):
        pass
    return np.fromiter(_chosen(keys, queues, next_queue), dtype=np.int64, count=len(keys))


def _chosen(
    keys: Sequence[str | bytes | None], queues: int, next_queue: Callable[[int], int]
) -> list[int]:
    """The queue of each message; messages without a key share one queue.

    Raises:
        Rejected: `BAD_ARGUMENT`, a key is neither text nor bytes.
    """
    unkeyed = next_queue(0) if None in keys else 0
    try:
        return [unkeyed if key is None else queue_of(key, queues) for key in keys]
    except (TypeError, UnicodeEncodeError) as error:
        raise Rejected(Reason.BAD_ARGUMENT, f"a key is text or bytes: {error}") from None
