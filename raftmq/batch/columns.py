"""Columns as CBOR byte strings: a handful of heads to write, a cursor to read them.

The columns of a batch form a CBOR sequence (RFC 8742) of byte strings, some with the tag of a typed
array (RFC 8746). That corner of CBOR is written and read here by hand, because the bytes then need
no copy and a hostile batch no object: the cursor returns views into the batch. The tests compare
the result with cbor2's.

| tag | element |
|---|---|
| none | any bytes |
| 64 | u8 |
| 69 | u16, little-endian |
| 70 | u32, little-endian |
| 78 | i32, little-endian |
| 79 | i64, little-endian |
| 86 | f64, little-endian |

Invariants:
- A cursor reads only the one shortest form of each head, so equal columns are equal bytes.
- A cursor never leaves its range: a length is compared with the bytes left before it is used.

Sources: RFC 8949 §3, RFC 8742, RFC 8746 §2.
"""

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Final

from raftmq.errors import CorruptRecord

if TYPE_CHECKING:
    import numpy as np

PLAIN: Final = 0
"""The key for "no tag" in the tables below."""
U8: Final = 64
U16: Final = 69
U32: Final = 70
I32: Final = 78
I64: Final = 79
F64: Final = 86

WIDTHS: Final = {PLAIN: 1, U8: 1, U16: 2, U32: 4, I32: 4, I64: 8, F64: 8}
"""Tag → bytes of an element."""
FORMATS: Final = {U8: "B", U16: "H", U32: "I", I32: "i", I64: "q", F64: "d"}
"""Tag → letter of the element in the `struct` module."""
DTYPES: Final = {U8: "u1", U16: "u2", U32: "u4", I32: "i4", I64: "i8", F64: "f8"}
"""Tag → dtype of the element in numpy, without its byte order."""
HEAD_BYTES_MAX: Final = 7
"""The longest head: tag 2, length 5."""

_TAGS = {tag: b"" if tag == PLAIN else bytes((0xD8, tag)) for tag in WIDTHS}
_BYTE_STRING = 0x40
_SHORT = 24


def column_head(tag: int, size: int) -> bytes:
    """The head of a byte string of `size` bytes: tag and length."""
    if size < _SHORT:
        return _TAGS[tag] + bytes((_BYTE_STRING + size,))
    if size < 0x100:
        return _TAGS[tag] + bytes((0x58, size))
    if size < 0x10000:
        return _TAGS[tag] + b"\x59" + size.to_bytes(2, "big")
    return _TAGS[tag] + b"\x5a" + size.to_bytes(4, "big")


def column(tag: int, content: bytes) -> bytes:
    """One whole column.

    >>> column(U16, b"ab").hex()
    'd845426162'
    """
    return column_head(tag, len(content)) + content


def vector(tag: int, numbers: Sequence[int] | Sequence[float]) -> bytes:
    """A column of numbers; the caller has made sure that they fit."""
    return column(tag, struct.pack(f"<{len(numbers)}{FORMATS[tag]}", *numbers))


def joined(parts: Sequence[bytes]) -> bytes:
    """Byte strings as two columns: their u32 lengths, and all of them in a row."""
    return vector(U32, list(map(len, parts))) + column(PLAIN, b"".join(parts))


def codes(numbers: Sequence[int], distinct: int) -> bytes:
    """A column of numbers below `distinct`, in the narrowest unsigned type."""
    if distinct <= 0x100:
        return column(U8, bytes(numbers))
    return vector(U16 if distinct <= 0x10000 else U32, numbers)


class Column:
    """A column found in a batch: its element type, its content, and its position."""

    __slots__ = ("content", "position", "tag")

    def __init__(self, tag: int, content: memoryview, position: int) -> None:
        self.tag = tag
        self.content = content
        self.position = position

    def numbers(self) -> tuple[int, ...]:
        """The elements as Python integers (or floats, of an F64 column)."""
        count = len(self.content) // WIDTHS[self.tag]
        return struct.unpack(f"<{count}{FORMATS[self.tag]}", self.content)

    def array(self) -> "np.ndarray":
        """The elements as a read-only numpy array over the batch's bytes."""
        import numpy as np

        return np.frombuffer(self.content, dtype=f"<{DTYPES[self.tag]}")

    def corrupt(self, message: str) -> CorruptRecord:
        """The error that says what is wrong with this column."""
        return CorruptRecord(message, position=self.position)


class Cursor:
    """Takes one column after the other from a batch."""

    __slots__ = ("_end", "_payload", "position")

    def __init__(self, payload: memoryview, start: int, end: int) -> None:
        self._payload = payload
        self._end = end
        self.position = start

    def take(self, tag: int, count: int) -> Column:
        """The next column, which must have this tag and `count` elements."""
        taken = self.take_any(tag)
        if len(taken.content) != count * WIDTHS[tag]:
            size = len(taken.content)
            raise taken.corrupt(f"column of {size} bytes where {count * WIDTHS[tag]} are needed")
        return taken

    def take_codes(self, count: int) -> Column:
        """The next column, which must have `count` elements of an unsigned type."""
        return self.take(self._one_of((U8, U16, U32)), count)

    def take_offsets(self, count: int) -> Column:
        """The next column, which must have `count` elements of a signed type."""
        return self.take(self._one_of((I32, I64)), count)

    def take_any(self, tag: int) -> Column:
        """The next column, which must have this tag and whole elements."""
        start = at = self.position
        if tag != PLAIN:
            if self._next_tag() != tag:
                raise CorruptRecord(f"no column of tag {tag} where one is needed", position=start)
            at += 2
        size, at = self._read_size(at)
        if size > self._end - at:
            message = f"column of {size} bytes, {self._end - at} are left"
            raise CorruptRecord(message, position=start)
        taken = Column(tag, self._payload[at : at + size], start)
        if size % WIDTHS[tag]:
            raise taken.corrupt(f"column of {size} bytes is not a vector of {WIDTHS[tag]} each")
        self.position = at + size
        return taken

    def finish(self) -> None:
        """Raise `CorruptRecord` unless all bytes were taken."""
        if self.position != self._end:
            message = f"{self._end - self.position} bytes follow the last column"
            raise CorruptRecord(message, position=self.position)

    def _next_tag(self) -> int:
        at = self.position
        if self._end - at > 2 and self._payload[at] == 0xD8:
            return self._payload[at + 1]
        return PLAIN

    def _one_of(self, tags: tuple[int, ...]) -> int:
        """The tag of the next column; if it is none of `tags`, the first of them: taking fails."""
        tag = self._next_tag()
        return tag if tag in tags else tags[0]

    def _read_size(self, at: int) -> tuple[int, int]:
        left = self._end - at
        first = self._payload[at] if left > 0 else 0
        if _BYTE_STRING <= first < _BYTE_STRING + _SHORT:
            return first - _BYTE_STRING, at + 1
        extra = {0x58: 1, 0x59: 2, 0x5A: 4}.get(first, 0)
        if extra == 0 or left <= extra:
            raise CorruptRecord("no byte string where a column is needed", position=at)
        size = int.from_bytes(self._payload[at + 1 : at + 1 + extra], "big")
        if size < (_SHORT, 0x100, 0x10000)[extra >> 1]:
            raise CorruptRecord("column length is not in its shortest form", position=at)
        return size, at + 1 + extra


def split(lengths: Column, content: Column) -> list[bytes]:
    """The byte strings of a pair of columns written by `joined`."""
    return split_at(lengths, lengths.numbers(), bytes(content.content))


def split_at(lengths: Column, sizes: Sequence[int], data: bytes) -> list[bytes]:
    """`data` cut into pieces of these sizes, which come from the column `lengths`."""
    if sum(sizes) != len(data):
        raise lengths.corrupt(f"lengths add up to {sum(sizes)}, the content has {len(data)} bytes")
    # Reading a BytesIO in C is twice as fast as slicing in a loop, and shares the bytes.
    return list(map(BytesIO(data).read, sizes))


def split_text(lengths: Column, content: Column) -> list[str]:
    """The strings of a pair of columns written by `joined`, as UTF-8."""
    parts = split(lengths, content)
    try:
        return list(map(bytes.decode, parts))
    except UnicodeDecodeError:
        raise content.corrupt("text is not UTF-8") from None
