"""Messages as a consumer gets them: one message, or many of them as columns.

Both read from the decoded batch on access. `Messages` is for bulk work: its columns are lists over
all its messages, and a message becomes an object on access.

A column that cannot be read raises `UnreadableBatch`, which has the offsets of the batch and the
offset to go on from. Brokers admit no such batch; an old broker that stored one did not check it.

A message id is text, `<queue number>-<offset>`, both in hexadecimal: `10003-2a` is offset 42 of
queue 3 of topic 1 (queue number = topic id << 16 | queue). `Client.get` needs only the id.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

from raftmq.batch import Batch, Value, peek
from raftmq.client.arguments import ByOffset
from raftmq.errors import CorruptRecord, Reason, Rejected, UnreadableBatch
from raftmq.machine.producers import RESERVED
from raftmq.machine.queue_numbers import QUEUE_BITS as QUEUE_BITS  # both for the pipeline, too
from raftmq.machine.queue_numbers import QUEUE_MASK as QUEUE_MASK
from raftmq.words import counted

from .slices import Slice, Slices, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
M = TypeVar("M", bound="Message")

_ID = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})")


def format_id(queue_number: int, offset: int) -> str:
    """The id of the message at `offset` of the queue with this cluster-wide number.

    >>> format_id(1 << 16 | 3, 42)
    '10003-2a'
    """
    return f"{queue_number:x}-{offset:x}"


def parse_id(text: str) -> tuple[int, int]:
    """The queue's number and the offset that an id names.

    >>> parse_id("10003-2a") == (1 << 16 | 3, 42)
    True

    Raises:
        Rejected: `BAD_ARGUMENT`, the text is no message id.
    """
    match = _ID.fullmatch(text)
    if match is None:
        raise Rejected(
            Reason.BAD_ARGUMENT,
            f"{text[:80]!r} is no message id: it is <queue number>-<offset>, both in hexadecimal",
        )
    return int(match[1], 16), int(match[2], 16)


class Message(ByOffset):
    """One message. It keeps the whole answer with which it came in memory, up to 4 MiB and a batch;
    keep only `body` if you need no more."""

    __slots__ = ("_batch", "_position", "_queue_number", "topic")

    topic: str
    """The topic's name."""

    def __init__(self, batch: Batch, position: int, queue_number: int, topic: str) -> None:
        self._batch = batch
        self._position = position
        self._queue_number = queue_number
        self.topic = topic

    @property
    def body(self) -> bytes:
        """The content."""
        try:
            return self._batch.body(self._position)
        except CorruptRecord as error:
            raise self._unreadable(error) from None

    @property
    def key(self) -> str | None:
        """The key; None: the message has none."""
        try:
            return self._batch.key(self._position)
        except CorruptRecord as error:
            raise self._unreadable(error) from None

    @property
    def tag(self) -> str | None:
        """The tag; None: the message has none."""
        try:
            return self._batch.tag(self._position)
        except CorruptRecord as error:
            raise self._unreadable(error) from None

    @property
    def props(self) -> dict[str, Value]:
        """The properties, a new dict on each access."""
        try:
            return self._batch.props(self._position)
        except CorruptRecord as error:
            raise self._unreadable(error) from None

    @property
    def queue(self) -> int:
        """The queue within the topic, from 0."""
        return self._queue_number & QUEUE_MASK

    @property
    def offset(self) -> int:
        """The offset in the queue."""
        return self._batch.base_offset + self._position

    @property
    def timestamp(self) -> int:
        """When the leader stored the message, milliseconds since 1970."""
        return self._batch.timestamp

    @property
    def producer(self) -> int | None:
        """The id of the producer that sent the message, 1 to 2^63 - 1: random for each object, that
        of its session for a claimed producer. None: the broker put the message into its queue, as
        it was delayed or of a transaction."""
        producer = self._batch.head.producer
        return producer if 0 < producer < RESERVED else None

    @property
    def epoch(self) -> int:
        """The producer's epoch; 0 without a `producer`. With each epoch `sequence` begins at 0."""
        return 0 if self.producer is None else self._batch.head.epoch

    @property
    def sequence(self) -> int | None:
        """The producer's number of the message on this queue, from 0. Delayed messages take numbers
        as well, and do not show them. A `Sequencer` numbers over several queues. None: as for
        `producer`."""
        if self.producer is None:
            return None
        return self._batch.head.first_sequence + self._position

    @property
    def id(self) -> str:
        """The text that `Client.get` takes."""
        return format_id(self._queue_number, self.offset)

    @property
    def queue_number(self) -> int:
        """Internal: the cluster-wide number of the queue."""
        return self._queue_number

    @property
    def answer(self) -> bytes:
        """Internal: the answer that the message keeps in memory."""
        return self._batch.memory

    def _unreadable(self, error: CorruptRecord) -> UnreadableBatch:
        base, count = self._batch.base_offset, len(self._batch)
        return unreadable(error, self.topic, self._queue_number, base, count)

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic!r}, key {self.key!r}>"


class MessageColumns(Sequence[M]):
    """Messages of one call of a consumer: a sequence, and the messages as columns.

    Messages of one queue stand in the order of their offsets; those of several queues are mixed
    batch by batch. The sequence is empty, and false, if the wait ran out.
    """

    __slots__ = ("_count", "_slices", "topic")

    def __init__(self, slices: list[Slice], topic: str) -> None:
        self._slices = slices
        self._count = sum(part.stop - part.start for part in slices)
        self.topic = topic

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> M: ...

    @overload
    def __getitem__(self, index: slice) -> list[M]: ...

    def __getitem__(self, index: int | slice) -> M | list[M]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index + self._count if index < 0 else index
        if at < 0:
            raise IndexError(index)
        for n, part in enumerate(self._slices):
            if at < part.stop - part.start:
                return self._message(n, part.start + at)
            at -= part.stop - part.start
        raise IndexError(index)

    def __iter__(self) -> Iterator[M]:
        message = self._message
        for n, part in enumerate(self._slices):
            for position in range(part.start, part.stop):
                yield message(n, position)

    def _message(self, n: int, position: int) -> M:
        """The message at a position of the batch of the nth slice."""
        raise NotImplementedError  # abstract

    @property
    def slices(self) -> list[Slice]:
        """The batches behind the messages, to read property columns or tags as arrays."""
        return self._slices

    def each(self, read: Callable[[Slice], T]) -> list[T]:
        """The results of `read` for each of `slices`, in order.

        Raises:
            UnreadableBatch: `read` raised `CorruptRecord`.
        """
        return Slices(self.topic, self._slices).each(read)

    def to_arrow(self, columns: Iterable[str] | None = None) -> "pa.RecordBatch":
        """All messages as an Arrow record batch, made without a Python object for each message.

        It needs `pip install 'raftmq[spark]'`, or pyarrow alone.

        Args:
            columns: some of `topic`, `queue`, `offset`, `key`, `tag`, `body`, `props`, `created`
                and `timestamp`, which the record batch has in this order; None: all. See
                `raftmq.client.arrow` for their content.

        Raises:
            Rejected: `BAD_ARGUMENT`, there is no such column, or `TOO_LARGE`: a column would hold
                more than 2 GiB. Take fewer messages at once.
            UnreadableBatch: a column of a batch cannot be read.
        """
        from .arrow import record_batch

        return record_batch(Slices(self.topic, self._slices), columns)

    @property
    def bodies(self) -> list[bytes]:
        """All bodies, in order."""
        return self._read(lambda part: part.batch.bodies[part.start : part.stop])

    @property
    def keys(self) -> list[str | None]:
        """All keys, None for a message without one."""
        return self._read(lambda part: part.batch.keys[part.start : part.stop])

    @property
    def tags(self) -> list[str | None]:
        """All tags, None for a message without one."""
        return self._read(lambda part: [part.batch.tag(at) for at in range(part.start, part.stop)])

    @property
    def queues(self) -> list[int]:
        """The queue of each message, within the topic."""
        slices = self._slices
        return _joined([[p.queue_number & QUEUE_MASK] * (p.stop - p.start) for p in slices])

    @property
    def offsets(self) -> list[int]:
        """The offset of each message."""
        return _joined(
            [
                list(range(part.batch.base_offset + part.start, part.batch.base_offset + part.stop))
                for part in self._slices
            ]
        )

    @property
    def timestamps(self) -> list[int]:
        """When the leader stored each message, milliseconds since 1970."""
        return _joined([[p.batch.timestamp] * (p.stop - p.start) for p in self._slices])

    def _read(self, column: Callable[[Slice], list[T]]) -> list[T]:
        return _joined(self.each(column))

    def __repr__(self) -> str:
        return f"<{counted(self._count, 'message')} of {self.topic!r}>"


class Messages(MessageColumns[Message]):
    """Messages that were read by offset: a sequence, and the messages as columns.

    Messages of one queue stand in the order of their offsets; those of several queues are mixed
    batch by batch. The sequence is empty, and false, if the wait ran out.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[Message]:
        topic = self.topic
        for batch, start, stop, queue_number in self._slices:
            for position in range(start, stop):
                yield Message(batch, position, queue_number, topic)

    def _message(self, n: int, position: int) -> Message:
        part = self._slices[n]
        return Message(part.batch, position, part.queue_number, self.topic)


def decode(
    payload: bytes | memoryview, base: int, timestamp: int, queue_number: int, topic: str
) -> Batch:
    """A batch as a leader sent it.

    Raises:
        UnreadableBatch: its head, checksum or columns are wrong.
    """
    try:
        return Batch.decode(payload, base_offset=base, timestamp=timestamp)
    except CorruptRecord as error:
        raise unreadable(error, topic, queue_number, base, _count(payload)) from None


def _count(payload: bytes | memoryview) -> int:
    """Number of messages of an unreadable batch, by its head; 1 if the head is unreadable, too."""
    try:
        return peek(payload).count
    except CorruptRecord:
        return 1


def _joined(lists: list[list[T]]) -> list[T]:
    if len(lists) == 1:
        return lists[0]
    return [item for items in lists for item in items]
