"""Decoding a batch: checked once, then read column by column or message by message.

`Batch.decode` checks the head, the checksum and the frames (tags, sizes) of all columns but those
of the properties, which most readers never ask for. That costs some microseconds a batch and makes
no object a message. The frames of the property columns are checked when the first property is read,
and the content of a column (lengths that add up, codes within their dictionary, UTF-8) when the
column is first read. `admit` checks all of it at once: a broker keeps batches that consumers could
not read out of its log.

Invariants:
- Whatever the bytes, reading them raises `CorruptRecord` and nothing else.
- Memory stays within a small multiple of the batch's limits: bodies are decompressed to a size that
  was checked first, a dictionary has no more entries than the batch has messages, and an absent
  property takes no memory.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord

from .checks import check_below, check_keys, check_lengths, check_within, out_of_range
from .columns import I64, PLAIN, U32, Column, Cursor, split_at, split_text
from .compression import decompress
from .keys import key_hash
from .layout import (
    BATCH_BYTES_MAX,
    COMPRESSED,
    EMPTY_HEADER,
    HEAD_BYTES,
    NO_KEY,
    TIME_MS_MAX,
    BatchHead,
    Flag,
    Limits,
    peek,
    verify,
)
from .pieces import Pieces, byte_pieces, text_pieces
from .properties import Value
from .property_columns import PropertyColumn, read_columns, take_dictionary

if TYPE_CHECKING:
    import numpy as np

_KEYS, _TAGS = Flag.KEYS.value, Flag.TAGS.value
_DELIVERY, _CREATED = Flag.DELIVERY.value, Flag.CREATED.value
_PROPERTIES = Flag.PROPERTIES.value
_DEFAULT_LIMITS = Limits()


class BatchMessage(NamedTuple):
    """One message, as the batch holds it."""

    body: bytes
    """The body as sent."""
    key: str | None
    """The message's key; None: no key."""
    tag: str | None
    """The message's tag; None: no tag."""
    props: dict[str, Value]
    """The message's properties, a dict that no other message shares."""
    offset: int
    """The message's offset in the queue."""
    timestamp: int
    """The leader's stamp of the batch, milliseconds since 1970."""
    created_ms: int
    """When the message was created by the producer's clock, milliseconds since 1970."""
    deliver_at_ms: int
    """When the message is to be delivered, milliseconds since 1970; 0: at once."""


_new_message = partial(tuple.__new__, BatchMessage)


class TagColumn(NamedTuple):
    """The tags of a batch."""

    dictionary: list[str]
    """The distinct tags; empty if no message has one."""
    codes: "np.ndarray"
    """One unsigned code a message: 0 for none, else 1 + position in `dictionary`."""


class Batch:
    """A checked batch; columns are made into Python objects when they are first asked for.

    Every accessor may raise `CorruptRecord`: `validate` reads all of them at once.
    """

    head: BatchHead
    """The fixed head."""
    base_offset: int
    """Offset of the first message in its queue."""
    timestamp: int
    """The leader's stamp, milliseconds since 1970."""

    def __init__(
        self,
        view: memoryview,
        head: BatchHead,
        *,
        base_offset: int,
        timestamp: int,
        limits: Limits,
    ) -> None:
        """For `decode`, which checks `head` before."""
        self.head = head
        self.base_offset = base_offset
        self.timestamp = timestamp
        self._view = view
        self._limits = limits
        count, flags = head.count, head.flags
        start = HEAD_BYTES + head.header_bytes
        cursor = Cursor(view, start, start + head.columns_bytes)
        self._hashes = cursor.take(U32, count) if flags & _KEYS else None
        self._lengths = cursor.take(U32, count)
        self._keys = (cursor.take(U32, count), cursor.take_any(PLAIN)) if flags & _KEYS else None
        self._tags: tuple[Column, Column, Column] | None = None
        if flags & _TAGS:
            self._tags = (*take_dictionary(cursor, count), cursor.take_codes(count))
        self._delivery = cursor.take(I64, count) if flags & _DELIVERY else None
        self._created = cursor.take_offsets(count) if flags & _CREATED else None
        header = bytes(view[HEAD_BYTES:start])
        if (header == EMPTY_HEADER) == bool(flags & _PROPERTIES):
            raise CorruptRecord("batch header and flags do not agree", position=HEAD_BYTES)
        self._header = header
        self._properties_at = cursor.position
        if not flags & _PROPERTIES:
            cursor.finish()

    @classmethod
    def decode(
        cls,
        payload: bytes | memoryview,
        *,
        base_offset: int = 0,
        timestamp: int = 0,
        limits: Limits | None = None,
        check: bool = True,
    ) -> "Batch":
        """Check `payload` and make it readable. It is kept, not copied.

        Args:
            payload: one whole batch.
            base_offset: the offset of its first message.
            timestamp: the leader's stamp.
            limits: the bounds beyond which a batch is refused.
            check: False skips the checksum, for a caller that has verified it already.

        Raises:
            CorruptRecord: the bytes are wrong; no other exception is raised for them.
        """
        limits = limits or _DEFAULT_LIMITS
        head = (verify if check else peek)(payload, bytes_max=limits.batch_bytes_max)
        if head.count > limits.messages_max:
            message = f"batch of {head.count} messages; the limit is {limits.messages_max}"
            raise CorruptRecord(message, position=0)
        return cls(
            memoryview(payload), head, base_offset=base_offset, timestamp=timestamp, limits=limits
        )

    @property
    def memory(self) -> bytes:
        """The received bytes that the batch keeps in memory, perhaps along with other batches."""
        memory: bytes = self._view.obj  # type: ignore[assignment]  # a payload is bytes, or of bytes
        return memory

    @cached_property
    def columns(self) -> list[PropertyColumn]:
        """All property columns, in the order of the header."""
        head = self.head
        end = HEAD_BYTES + head.header_bytes + head.columns_bytes
        cursor = Cursor(self._view, self._properties_at, end)
        columns = read_columns(self._header, cursor, head.count, self._limits)
        cursor.finish()
        return columns

    def check_columns(self) -> None:
        """Check the content of the columns, without making an object a message.

        Afterwards no accessor raises. Key hashes are not compared with the keys: that takes a step
        a message, and wrong hashes only mislead searches for keys of that producer.

        Raises:
            CorruptRecord: some accessor would raise it.
        """
        if self.head.flags & COMPRESSED:
            check_lengths(self._lengths, len(self._body))
        else:
            check_lengths(self._lengths, self.head.body_bytes)
        if self._keys is not None:
            check_keys(*self._keys, bytes_max=self._limits.key_bytes_max)
        if self._tags is not None:
            check_below(self._tags[2], len(self._dictionary) + 1)
        if self._delivery is not None:
            check_within(self._delivery, 0, TIME_MS_MAX)
        if self._created is not None:
            check_within(self._created, *self._created_bounds)
        for column in self.columns:
            column.check()

    def validate(self) -> None:
        """Read every column, and compare the key hashes with the keys: the slow, full check.

        Raises:
            CorruptRecord: some accessor would raise it, or a key hash is wrong.
        """
        self.messages()
        if self._hashes is not None:
            expected = tuple(0 if key is None else key_hash(key) for key in self.keys)
            if self._hashes.numbers() != expected:
                raise self._hashes.corrupt("key hashes are not those of the keys")

    def __len__(self) -> int:
        """Messages in the batch."""
        return self.head.count

    def __iter__(self) -> Iterator[BatchMessage]:
        """All messages in order."""
        return self._iterate(0)

    def messages(self, start: int = 0) -> list[BatchMessage]:
        """The messages from position `start` on; `offset - base_offset` is a position."""
        return list(self._iterate(start))

    def _iterate(self, start: int) -> Iterator[BatchMessage]:
        head = self.head
        offsets = range(self.base_offset + start, self.base_offset + head.count)
        created: Iterable[int] = repeat(head.base_ms)
        if self._created is not None:
            created = self._creation_times[start:]
        delivery: Iterable[int] = repeat(0)
        if self._delivery is not None:
            delivery = self._delivery_times[start:]
        rows = zip(
            self.bodies[start:],
            self.keys[start:] if self._keys else repeat(None),
            self._tag_list[start:] if self._tags else repeat(None),
            self._rows()[start:] if self.columns else map(dict, repeat(())),
            offsets,
            repeat(self.timestamp),
            created,
            delivery,
            strict=False,
        )
        return map(_new_message, rows)

    @cached_property
    def bodies(self) -> list[bytes]:
        """The bodies in order."""
        return split_at(self._lengths, self._lengths.numbers(), self._body)

    @cached_property
    def body_pieces(self) -> Pieces:
        """The bodies as they are stored, decompressed; no copy of those that are raw."""
        if self.head.flags & COMPRESSED:
            return byte_pieces(self._lengths, self._body)
        start = HEAD_BYTES + self.head.header_bytes + self.head.columns_bytes
        return byte_pieces(self._lengths, self._view[start:])

    def body(self, position: int) -> bytes:
        """The body of one message, without making the others."""
        assert 0 <= position < self.head.count, position
        if "bodies" in self.__dict__:
            return self.bodies[position]
        start, end = self._edges[position], self._edges[position + 1]
        return self._body[start:end]

    @cached_property
    def _edges(self) -> list[int]:
        edges = list(accumulate(self._lengths.numbers(), initial=0))
        if edges[-1] != self.head.body_bytes:
            raise self._lengths.corrupt(f"body lengths add up to {edges[-1]}")
        return edges

    @cached_property
    def _body(self) -> bytes:
        head = self.head
        start = HEAD_BYTES + head.header_bytes + head.columns_bytes
        if head.flags & COMPRESSED:
            return decompress(self._view[start:], head.flags, head.body_bytes, start)
        return bytes(self._view[start:])

    @cached_property
    def keys(self) -> list[str | None]:
        """The keys in order."""
        if self._keys is None:
            return [None] * self.head.count
        lengths, content = self._keys
        numbers = lengths.numbers()
        sizes = numbers
        if NO_KEY in numbers:
            sizes = tuple(0 if size == NO_KEY else size for size in numbers)
        if max(sizes) > self._limits.key_bytes_max:
            limit = self._limits.key_bytes_max
            raise lengths.corrupt(f"key of {max(sizes)} bytes; the limit is {limit}")
        parts = split_at(lengths, sizes, bytes(content.content))
        try:
            keys: list[str | None] = list(map(bytes.decode, parts))
        except UnicodeDecodeError:
            raise content.corrupt("key is not UTF-8") from None
        if sizes is numbers:
            return keys
        return [None if size == NO_KEY else key for size, key in zip(numbers, keys, strict=True)]

    @cached_property
    def key_pieces(self) -> Pieces | None:
        """The keys as they are stored, size `NO_KEY` without one; None if no message has a key."""
        if self._keys is None:
            return None
        return text_pieces(*self._keys, bytes_max=self._limits.key_bytes_max, absent=NO_KEY)

    def key(self, position: int) -> str | None:
        """The key of one message."""
        return self.keys[position]

    @property
    def key_hashes(self) -> "np.ndarray | None":
        """One u32 a message, 0 without a key; None if no message has one."""
        return None if self._hashes is None else self._hashes.array()

    @cached_property
    def tags(self) -> TagColumn:
        """The tags as a dictionary and codes, for filters."""
        if self._tags is None:
            import numpy as np

            return TagColumn([], np.zeros(self.head.count, np.uint8))
        codes = self._tags[2].array()
        self._check_code(int(codes.max()))
        return TagColumn(self._dictionary, codes)

    def tag(self, position: int) -> str | None:
        """The tag of one message."""
        return self._tag_list[position]

    @cached_property
    def _dictionary(self) -> list[str]:
        if self._tags is None:
            return []
        lengths, content, _ = self._tags
        dictionary = split_text(lengths, content)
        if len(set(dictionary)) < len(dictionary):
            raise content.corrupt("a tag stands twice in the dictionary")
        limit = self._limits.tag_bytes_max
        if max(lengths.numbers(), default=0) > limit:
            raise lengths.corrupt(f"tag of {max(lengths.numbers())} bytes; the limit is {limit}")
        return dictionary

    @cached_property
    def _tag_list(self) -> list[str | None]:
        if self._tags is None:
            return [None] * self.head.count
        numbers = self._tags[2].numbers()
        self._check_code(max(numbers))
        return list(map([None, *self._dictionary].__getitem__, numbers))

    def _check_code(self, highest: int) -> None:
        if self._tags is not None and highest > len(self._dictionary):
            message = f"tag code {highest}, and {len(self._dictionary)} tags in the dictionary"
            raise self._tags[2].corrupt(message)

    def column(self, name: str) -> list[PropertyColumn]:
        """The property columns of this name: none, one, or one for each kind of value."""
        return [column for column in self.columns if column.name == name]

    def props(self, position: int) -> dict[str, Value]:
        """The properties of one message, a dict of its own."""
        return dict(self._rows_kept[position])

    @cached_property
    def _rows_kept(self) -> list[dict[str, Value]]:
        return self._rows()

    def _rows(self) -> list[dict[str, Value]]:
        rows: list[dict[str, Value]] = [{} for _ in range(self.head.count)]
        for column in self.columns:
            column.fill(rows)
        return rows

    @property
    def delivery_times(self) -> tuple[int, ...]:
        """`deliver_at_ms` as plain numbers; empty: all at once."""
        return self._delivery_times

    @cached_property
    def deliver_at_ms(self) -> "np.ndarray | None":
        """One int64 a message, milliseconds since 1970, 0: at once; None: all at once."""
        if self._delivery is None:
            return None
        check_within(self._delivery, 0, TIME_MS_MAX)
        return self._delivery.array().astype("i8")

    @cached_property
    def created_ms(self) -> "np.ndarray | None":
        """One int64 a message, milliseconds since 1970; None: all at `head.base_ms`."""
        if self._created is None:
            return None
        check_within(self._created, *self._created_bounds)
        created: np.ndarray = self._created.array().astype("i8") + self.head.base_ms
        return created

    @cached_property
    def _delivery_times(self) -> tuple[int, ...]:
        if self._delivery is None:
            return ()
        times = self._delivery.numbers()
        self._check_times(self._delivery, times, 0, TIME_MS_MAX)
        return times

    @cached_property
    def _creation_times(self) -> list[int]:
        if self._created is None:
            return []
        after = self._created.numbers()
        self._check_times(self._created, after, *self._created_bounds)
        return [self.head.base_ms + milliseconds for milliseconds in after]

    @property
    def _created_bounds(self) -> tuple[int, int]:
        """How many milliseconds after `base_ms` a message may have been created."""
        return -self.head.base_ms, TIME_MS_MAX - self.head.base_ms

    def _check_times(
        self, column: Column, times: tuple[int, ...], earliest: int, latest: int
    ) -> None:
        if min(times) < earliest or max(times) > latest:
            outside = min(times) if min(times) < earliest else max(times)
            raise column.corrupt(out_of_range(outside, earliest, latest))


def admit(payload: bytes, *, bytes_max: int) -> BatchHead:
    """Check that consumers will be able to read a batch: head, checksum, and every column.

    Bodies that are compressed are decompressed once: there is no other way to know.

    Raises:
        CorruptRecord: `Batch.decode` or some accessor of the batch would raise it, or no encoder
            makes the batch: with raw bodies it would be longer than a batch may be.
    """
    head = verify(payload, bytes_max=bytes_max)
    raw = len(payload) - head.stored_bytes + head.body_bytes
    if raw > BATCH_BYTES_MAX:
        # A cut of the batch, or its release when it falls due, could not be encoded.
        message = f"batch of {raw} bytes with raw bodies; the limit is {BATCH_BYTES_MAX}"
        raise CorruptRecord(message, position=0)
    batch = Batch(memoryview(payload), head, base_offset=0, timestamp=0, limits=_DEFAULT_LIMITS)
    batch.check_columns()
    return head
