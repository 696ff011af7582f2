"""A few messages of a batch as a batch of their own, without decoding it.

    batch   | head | header | columns of 8,000 messages     | bodies              |
                             └─┬─┘ └─┬─┘                        └─┬─┘
    cut     | head | header | the same range of each column | of the bodies |

A consumer that was handed 100 messages of 8,000 need not be sent the others. A column of numbers is
sliced; for joined texts the lengths before the range give the place of the slice; a bitmap gives
the number of values of a nullable column before the range; of a dictionary only the entries in use
are kept. The work is a few array operations a column, most of them as long as the range, and no
object a message.

The cut lacks columns that an encoding of its messages alone would lack: those without a value in
the range, and their flags. Bodies that were compressed are raw in the cut.

Invariants:
- The cut decodes to exactly those messages, with their queue, producer and sequence numbers.
- Whatever the bytes, there is a cut or `CorruptRecord`. A batch that `admit` lets in can be cut,
  and `admit` lets in the cut; but for bodies that would not fit into a batch with their columns if
  they were raw, which no encoder makes.

Left out: the checksum of the batch is not verified, which would read all of it, and the cut gets
its own: cut only batches that have passed a checksum, as records of the log have. The content of
columns is checked only as far as cutting needs it. Compressed bodies are decompressed whole, for
each cut.
"""

from typing import TYPE_CHECKING, Final, assert_never

from raftmq.errors import CorruptRecord

from .columns import DTYPES, I64, PLAIN, U8, U16, U32, WIDTHS, Column, Cursor, column
from .compression import decompress
from .encode import Sealed, header_of
from .layout import (
    BATCH_BYTES_MAX,
    COMPRESSED,
    EMPTY_HEADER,
    FIXED,
    HEAD_BYTES,
    NO_KEY,
    STAMP_END,
    BatchHead,
    Flag,
    Limits,
    PropertyKind,
    key_hashes_at,
    peek,
)
from .property_columns import PropertyColumn, read_columns, take_dictionary

if TYPE_CHECKING:
    import numpy as np

_KEYS, _TAGS = Flag.KEYS.value, Flag.TAGS.value
_DELIVERY, _CREATED = Flag.DELIVERY.value, Flag.CREATED.value
_PROPERTIES = Flag.PROPERTIES.value
_LIMITS: Final = Limits()


def cut(payload: bytes | memoryview, start: int, stop: int) -> bytes:
    """The messages from position `start` to before `stop` of a batch, at least one, as a batch.

    Its base offset is that of `payload` plus `start`. Of the whole range it is `payload` itself.

    >>> from .decode import Batch
    >>> from .encode import encode
    >>> whole = encode([b"a", b"b", b"c"], keys=["x", None, "y"]).to_bytes(queue=7)
    >>> part = Batch.decode(cut(whole, 1, 3), base_offset=41)
    >>> [(message.offset, message.body, message.key) for message in part]
    [(41, b'b', None), (42, b'c', 'y')]

    Raises:
        CorruptRecord: the batch's structure cannot be read, it has fewer messages than `stop`, or
            the cut would be longer than a batch may be.
    """
    assert 0 <= start < stop, (start, stop)
    head = peek(payload)
    if stop > head.count:
        message = f"batch of {head.count} messages where there should be {stop}"
        raise CorruptRecord(message, position=0)
    if stop - start == head.count:
        return bytes(payload)
    if (head.first_sequence + start) >> 63:
        raise CorruptRecord("the batch's sequence numbers exceed 63 bits", position=0)
    return _Knife(memoryview(payload), head, start, stop).cut()


class _Knife:
    """One cut: walks the columns of the batch in their order and keeps the range of each."""

    def __init__(self, view: memoryview, head: BatchHead, start: int, stop: int) -> None:
        self._view = view
        self._head = head
        self._start = start
        self._stop = stop
        columns_at = HEAD_BYTES + head.header_bytes
        self._bodies_at = columns_at + head.columns_bytes
        self._cursor = Cursor(view, columns_at, self._bodies_at)
        # The parts of the cut, from the columns that were walked so far.
        self._flags = 0
        self._header = EMPTY_HEADER
        self._columns: list[bytes] = []

    def cut(self) -> bytes:
        """The batch of the range."""
        head, flags = self._head, self._head.flags
        hashes = self._cursor.take(U32, head.count) if flags & _KEYS else None
        lengths = self._cursor.take(U32, head.count)
        self._columns.append(_written(self._slice(lengths)))
        if hashes is not None:
            self._cut_keys(hashes)
        if flags & _TAGS:
            self._cut_tags()
        if flags & _DELIVERY:
            self._cut_times(_DELIVERY, self._cursor.take(I64, head.count))
        if flags & _CREATED:
            self._cut_times(_CREATED, self._cursor.take_offsets(head.count))
        self._cut_properties()
        self._cursor.finish()
        return self._seal(self._bodies(lengths))

    def _slice(self, vector: Column) -> Column:
        return _slice(vector, self._start, self._stop)

    def _cut_keys(self, hashes: Column) -> None:
        sizes, keys = self._cursor.take(U32, self._head.count), self._cursor.take_any(PLAIN)
        piece = _piece(sizes, keys.content, self._start, self._stop, absent=NO_KEY)
        kept = self._slice(sizes)
        if kept.content != b"\xff" * len(kept.content):
            self._flags |= _KEYS
            self._columns.insert(0, _written(self._slice(hashes)))
            self._columns += (_written(kept), column(PLAIN, piece))

    def _cut_tags(self) -> None:
        lengths, content = take_dictionary(self._cursor, self._head.count)
        codes = self._slice(self._cursor.take_codes(self._head.count))
        if not _is_zero(codes):
            self._flags |= _TAGS
            self._columns += _coded(lengths, content, codes, has_none=True)

    def _cut_times(self, flag: int, times: Column) -> None:
        kept = self._slice(times)
        if not _is_zero(kept):
            self._flags |= flag
            self._columns.append(_written(kept))

    def _cut_properties(self) -> None:
        head = self._head
        header = bytes(self._view[HEAD_BYTES : HEAD_BYTES + head.header_bytes])
        if (header == EMPTY_HEADER) == bool(head.flags & _PROPERTIES):
            raise CorruptRecord("batch header and flags do not agree", position=HEAD_BYTES)
        described: list[tuple[str, int, bool]] = []
        found = read_columns(header, self._cursor, head.count, _LIMITS)
        for each in found:
            columns = _cut_property(each, self._start, self._stop)
            if columns:
                described.append((each.name, each.kind.value, each.bits is not None))
                self._columns += columns
        if described:
            self._flags |= _PROPERTIES
            self._header = header if len(described) == len(found) else header_of(described)

    def _bodies(self, lengths: Column) -> bytes:
        head = self._head
        bodies = self._view[self._bodies_at :]
        if head.flags & COMPRESSED:
            bodies = memoryview(decompress(bodies, head.flags, head.body_bytes, self._bodies_at))
        return _piece(lengths, bodies, self._start, self._stop)

    def _seal(self, bodies: bytes) -> bytes:
        head, count = self._head, self._stop - self._start
        content, header = b"".join(self._columns), self._header
        fixed = FIXED.pack(
            self._flags,
            count,
            len(header),
            head.base_ms,
            len(content),
            len(bodies),
            len(bodies),
            key_hashes_at(self._flags, count, len(header)),
        )
        middle = b"".join((fixed, header, content))
        if STAMP_END + len(middle) + len(bodies) > BATCH_BYTES_MAX:
            message = f"raw bodies make the cut longer than {BATCH_BYTES_MAX} bytes"
            raise CorruptRecord(message, position=self._bodies_at)
        return Sealed(middle, bodies, count=count, body_bytes=len(bodies)).to_bytes(
            queue=head.queue,
            producer=head.producer,
            epoch=head.epoch,
            first_sequence=head.first_sequence + self._start,
        )


def _slice(vector: Column, start: int, stop: int) -> Column:
    """A range of a column's elements."""
    width = WIDTHS[vector.tag]
    return Column(vector.tag, vector.content[start * width : stop * width], vector.position)


def _written(vector: Column) -> bytes:
    return column(vector.tag, bytes(vector.content))


def _is_zero(vector: Column) -> bool:
    return vector.content == bytes(len(vector.content))


def _piece(
    lengths: Column, content: memoryview, start: int, stop: int, *, absent: int | None = None
) -> bytes:
    """The bytes of a range of joined pieces in `content`, which `lengths` must fill exactly.

    A length of `absent` stands for no piece at all.
    """
    sizes = lengths.array()
    assert start <= stop <= len(sizes), f"[{start}, {stop}) of {len(sizes)}"
    before = _total(sizes[:start], absent)
    end = before + _total(sizes[start:stop], absent)
    found = end + _total(sizes[stop:], absent)
    if found != len(content):
        message = f"lengths add up to {found}, the content has {len(content)} bytes"
        raise lengths.corrupt(message)
    return bytes(content[before:end])


def _total(sizes: "np.ndarray", absent: int | None) -> int:
    import numpy as np

    total = int(np.add.reduce(sizes, dtype=np.uint64))
    if absent is not None and total >= absent:
        total -= absent * int(np.count_nonzero(sizes == absent))
    return total


def _coded(lengths: Column, content: Column, codes: Column, *, has_none: bool) -> list[bytes]:
    """Dictionary and codes of a range: the entries that `codes` use, in their order.

    With `has_none`, code 0 stands for none and code 1 for the first entry.
    """
    import numpy as np

    numbers, first = codes.array(), int(has_none)
    distinct = len(lengths.content) // WIDTHS[U32] + first
    is_used = np.zeros(distinct, np.bool_)
    try:
        is_used[numbers] = True
    except IndexError:
        message = f"code {numbers.max()} where {distinct - 1} is the highest"
        raise codes.corrupt(message) from None
    is_used[:first] = True
    used = int(np.count_nonzero(is_used))
    assert first < used <= distinct, "a column of codes that names no entry"
    if used == distinct:
        return [_written(lengths), _written(content), _written(codes)]
    sizes = lengths.array()
    total = _total(sizes, None)
    if total != len(content.content):
        message = f"lengths add up to {total}, the content has {len(content.content)} bytes"
        raise lengths.corrupt(message)
    is_kept = is_used[first:]
    text = np.frombuffer(content.content, np.uint8)[np.repeat(is_kept, sizes)]
    numbers = (np.cumsum(is_used) - 1)[numbers]
    tag = _narrowest(used)
    return [
        column(U32, sizes[is_kept].tobytes()),
        column(PLAIN, text.tobytes()),
        column(tag, numbers.astype(f"<{DTYPES[tag]}").tobytes()),
    ]


def _narrowest(distinct: int) -> int:
    """The tag of codes below `distinct`."""
    return U8 if distinct <= 0x100 else U16 if distinct <= 0x10000 else U32


def _present(property_: PropertyColumn, start: int, stop: int) -> tuple[int, int]:
    """The values of a column that the messages of a range have: from, to before."""
    if property_.bits is None:
        return start, stop
    first = (property_.bits & (1 << start) - 1).bit_count()
    return first, first + _bits(property_.bits, start, stop).bit_count()


def _bits(bits: int, start: int, stop: int) -> int:
    return bits >> start & (1 << stop - start) - 1


def _cut_property(each: PropertyColumn, start: int, stop: int) -> list[bytes]:
    """The columns of one property in a range; none if no message there has a value."""
    first, end = _present(each, start, stop)
    if first == end:
        return []
    columns = []
    if each.bits is not None:
        bitmap = _bits(each.bits, start, stop).to_bytes((stop - start + 7) // 8, "little")
        columns.append(column(PLAIN, bitmap))
    parts = each.parts
    match each.kind:
        case PropertyKind.INTEGER | PropertyKind.FLOAT | PropertyKind.BOOLEAN:
            columns.append(_written(_slice(parts[0], first, end)))
        case PropertyKind.TEXT | PropertyKind.BINARY:
            piece = _piece(parts[0], parts[1].content, first, end)
            columns += (_written(_slice(parts[0], first, end)), column(PLAIN, piece))
        case PropertyKind.TEXT_CODED:
            codes = _slice(parts[2], first, end)
            columns += _coded(parts[0], parts[1], codes, has_none=False)
        case _:
            assert_never(each.kind)
    return columns
