"""Reading properties: the columns of a batch, each made into values when it is first asked for.

`read_columns` finds the columns and checks that they fit the header; their content is checked when
it is read. The writing side is `properties`.

Sources: Arrow's validity bitmaps and dictionary arrays, with only the present values stored.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from io import BytesIO
from itertools import chain, compress, islice
from typing import TYPE_CHECKING, Final, assert_never

from cbor2 import CBORError

from raftmq.errors import CorruptRecord

from .cbor import strict_decoder
from .checks import check_below, check_lengths, check_text
from .columns import F64, I64, PLAIN, U8, U32, Column, Cursor, split, split_text
from .layout import EMPTY_HEADER, HEAD_BYTES, Limits, PropertyKind
from .pieces import Pieces, byte_pieces, text_pieces
from .properties import Value

if TYPE_CHECKING:
    import numpy as np

_BITS: Final = [tuple(byte >> bit & 1 for bit in range(8)) for byte in range(256)]
"""Byte of a bitmap → its eight bits, the first message first."""


class PropertyColumn:
    """One property column of a batch, read when it is first asked for."""

    name: str
    """The property's name; several columns have it if its values are of several kinds."""
    kind: PropertyKind
    """The type of its values as they are stored."""

    def __init__(
        self,
        name: str,
        kind: PropertyKind,
        count: int,
        bits: int | None,
        parts: Sequence[Column],
    ) -> None:
        self.name = name
        self.kind = kind
        self._count = count
        # Bit i: message i has a value. None: all have.
        self.bits = bits
        self.parts = parts
        """The batch's columns behind the bitmap that hold the values, in the order of the layout.
        """

    @cached_property
    def present(self) -> "np.ndarray | None":
        """One bool a message: has it a value? None: all have."""
        if self.bits is None:
            return None
        import numpy as np

        bitmap = np.frombuffer(self.bits.to_bytes((self._count + 7) // 8, "little"), np.uint8)
        return np.unpackbits(bitmap, count=self._count, bitorder="little").view(np.bool_)

    @cached_property
    def values(self) -> "np.ndarray | list[str] | list[bytes]":
        """The present values in message order: an int64, float64 or bool array, or a list.

        Of a `TEXT_CODED` column it is the array of codes, positions in `dictionary`.
        """
        match self.kind:
            case PropertyKind.INTEGER | PropertyKind.FLOAT:
                return self.parts[0].array()
            case PropertyKind.BOOLEAN:
                check_below(self.parts[0], 2)
                return self.parts[0].array().view("?")
            case PropertyKind.TEXT:
                return split_text(self.parts[0], self.parts[1])
            case PropertyKind.TEXT_CODED:
                check_below(self.parts[2], len(self.dictionary or ()))
                return self.parts[2].array()
            case PropertyKind.BINARY:
                return split(self.parts[0], self.parts[1])
            case _:
                assert_never(self.kind)

    @cached_property
    def pieces(self) -> Pieces | None:
        """The present values of a `TEXT` or `BINARY` column as they are stored, else None."""
        if self.kind is PropertyKind.TEXT:
            return text_pieces(self.parts[0], self.parts[1])
        if self.kind is PropertyKind.BINARY:
            return byte_pieces(self.parts[0], self.parts[1].content)
        return None

    @cached_property
    def dictionary(self) -> list[str] | None:
        """The distinct strings of a `TEXT_CODED` column, else None."""
        if self.kind is not PropertyKind.TEXT_CODED:
            return None
        return split_text(self.parts[0], self.parts[1])

    def check(self) -> None:
        """Check the content of the column; afterwards no accessor raises.

        Raises:
            CorruptRecord: reading the values would raise it.
        """
        match self.kind:
            case PropertyKind.INTEGER | PropertyKind.FLOAT:
                pass
            case PropertyKind.BOOLEAN:
                check_below(self.parts[0], 2)
            case PropertyKind.TEXT:
                check_text(self.parts[0], self.parts[1])
            case PropertyKind.TEXT_CODED:
                check_below(self.parts[2], len(self.dictionary or ()))
            case PropertyKind.BINARY:
                check_lengths(self.parts[0], len(self.parts[1].content))
            case _:
                assert_never(self.kind)

    def to_list(self) -> list[Value | None]:
        """One value a message, None where it has none; TEXT_CODED as the strings."""
        values = self._as_python()
        if self.bits is None:
            return list(values)
        following = iter(values)
        return [next(following) if flag else None for flag in self._flags()]

    def fill(self, rows: list[dict[str, Value]]) -> None:
        """Put each value into the row of its message: one step for each value."""
        name = self.name
        having = rows if self.bits is None else compress(rows, self._flags())
        for row, value in zip(having, self._as_python(), strict=True):
            row[name] = value

    def _flags(self) -> Iterable[int]:
        bitmap = (self.bits or 0).to_bytes((self._count + 7) // 8, "little")
        return islice(chain.from_iterable(map(_BITS.__getitem__, bitmap)), self._count)

    def _as_python(self) -> Iterable[Value]:
        if self.kind is PropertyKind.INTEGER or self.kind is PropertyKind.FLOAT:
            return self.parts[0].numbers()
        if self.kind is PropertyKind.BOOLEAN:
            return map(bool, self._numbers_below(2))
        if self.kind is PropertyKind.TEXT_CODED:
            dictionary = self.dictionary or []
            return map(dictionary.__getitem__, self._numbers_below(len(dictionary)))
        return self.values

    def between(self, start: int, stop: int) -> "PropertyColumn":
        """The part of the column for the messages from position `start` to before `stop`.

        The whole column is read once for all its parts: if it cannot be read, no part can.
        """
        return _Part(self, start, stop)

    def _numbers_below(self, limit: int) -> tuple[int, ...]:
        numbers = self.parts[-1].numbers()
        if numbers and max(numbers) >= limit:
            raise self.parts[-1].corrupt(f"code {max(numbers)} where {limit - 1} is the highest")
        return numbers


class _Part(PropertyColumn):
    """A range of a column."""

    def __init__(self, whole: PropertyColumn, start: int, stop: int) -> None:
        bits, first, end = whole.bits, start, stop
        if bits is not None:
            first = (bits & (1 << start) - 1).bit_count()
            bits = bits >> start & (1 << stop - start) - 1
            end = first + bits.bit_count()
        super().__init__(whole.name, whole.kind, stop - start, bits, whole.parts)
        self._whole = whole
        # Which of the values.
        self._range = slice(first, end)

    @cached_property
    def values(self) -> "np.ndarray | list[str] | list[bytes]":
        return self._whole.values[self._range]

    @cached_property
    def pieces(self) -> Pieces | None:
        whole = self._whole.pieces
        return whole and whole.between(self._range.start, self._range.stop)

    @cached_property
    def dictionary(self) -> list[str] | None:
        return self._whole.dictionary

    def check(self) -> None:
        self._whole.check()

    def _as_python(self) -> Iterable[Value]:
        values = self.values
        if isinstance(values, list):
            return values
        dictionary = self.dictionary
        if dictionary is not None:
            return map(dictionary.__getitem__, values.tolist())
        numbers: list[Value] = values.tolist()
        return numbers


def read_columns(header: bytes, cursor: Cursor, count: int, limits: Limits) -> list[PropertyColumn]:
    """The columns that the header of a batch describes, taken from `cursor`.

    Raises:
        CorruptRecord: header and columns do not fit each other or the limits.
    """
    columns: list[PropertyColumn] = []
    # Name → the messages that have a value of it; (name, kind) → seen.
    taken: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for name, kind, nullable in _read_header(header, limits):
        start = cursor.position
        bits = _read_bitmap(cursor, count) if nullable else None
        all_or_bits = (1 << count) - 1 if bits is None else bits
        if (name, kind) in seen or taken.get(name, 0) & all_or_bits:
            message = f"property {name!r} has two values in one message"
            raise CorruptRecord(message, position=start)
        seen.add((name, kind))
        taken[name] = taken.get(name, 0) | all_or_bits
        present = count if bits is None else bits.bit_count()
        of_kind = PropertyKind(kind)
        parts = _take_parts(cursor, of_kind, present)
        columns.append(PropertyColumn(name, of_kind, count, bits, parts))
    return columns


def _read_header(header: bytes, limits: Limits) -> list[tuple[str, int, bool]]:
    if header == EMPTY_HEADER:
        return []
    source = BytesIO(header)
    try:
        described = strict_decoder(source).decode()
    except CBORError as error:
        raise CorruptRecord(f"batch header is not CBOR: {error}", position=HEAD_BYTES) from None
    if source.tell() != len(header) or not isinstance(described, list):
        raise CorruptRecord("batch header is not one CBOR array", position=HEAD_BYTES)
    if len(described) > limits.property_columns_max:
        message = f"{len(described)} property columns; the limit is {limits.property_columns_max}"
        raise CorruptRecord(message, position=HEAD_BYTES)
    for entry in described:
        if not _is_description(entry, limits.name_bytes_max):
            message = "batch header does not describe a property column"
            raise CorruptRecord(message, position=HEAD_BYTES)
    return [(name, kind, nullable) for name, kind, nullable in described]


def _is_description(entry: object, name_bytes_max: int) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    name, kind, nullable = entry
    return (
        isinstance(name, str)
        and 0 < len(name.encode()) <= name_bytes_max
        and type(kind) is int
        and 0 <= kind < len(PropertyKind)
        and isinstance(nullable, bool)
    )


def _read_bitmap(cursor: Cursor, count: int) -> int:
    bitmap = cursor.take(PLAIN, (count + 7) // 8)
    bits = int.from_bytes(bitmap.content, "little")
    if bits >> count:
        raise bitmap.corrupt("bitmap has bits beyond the last message")
    return bits


def _take_parts(cursor: Cursor, kind: PropertyKind, present: int) -> list[Column]:
    match kind:
        case PropertyKind.INTEGER:
            return [cursor.take(I64, present)]
        case PropertyKind.FLOAT:
            return [cursor.take(F64, present)]
        case PropertyKind.BOOLEAN:
            return [cursor.take(U8, present)]
        case PropertyKind.TEXT | PropertyKind.BINARY:
            return [cursor.take(U32, present), cursor.take_any(PLAIN)]
        case PropertyKind.TEXT_CODED:
            return [*take_dictionary(cursor, present), cursor.take_codes(present)]
        case _:
            assert_never(kind)


def take_dictionary(cursor: Cursor, count_max: int) -> tuple[Column, Column]:
    """The two columns of a text list of at most `count_max` entries."""
    lengths = cursor.take_any(U32)
    if len(lengths.content) > 4 * count_max:
        raise lengths.corrupt(f"dictionary has more entries than the {count_max} that may use it")
    return lengths, cursor.take_any(PLAIN)
