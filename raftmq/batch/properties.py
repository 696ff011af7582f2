"""Writing properties: rows go in, a mapping a message, and typed columns come out.

A column holds the values of one name and one kind; where a name has values of several kinds within
a batch, it has several columns, and no message is in two of them. None is the same as absent, as in
SQL. Strings are stored once each if that is smaller (`TEXT_CODED`).

The reading side is `property_columns`.

Left out: integers beyond 64 bits, times, decimals, nested values. A producer that needs them puts
them into the body, which filters do not read.

Sources: Arrow's validity bitmaps and dictionary arrays, with only the present values stored.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from raftmq.errors import Rejected, WrongType

from .columns import (
    F64,
    HEAD_BYTES_MAX,
    I64,
    PLAIN,
    U8,
    codes,
    column,
    joined,
    vector,
)
from .layout import BATCH_BYTES_MAX, Limits, PropertyKind
from .refusals import bad_argument, too_large, utf8

Value = int | float | bool | str | bytes
"""The types of a property's value. None in a `Row`: the message does not have the property."""

Row = Mapping[str, Value | None]
"""The properties of one message."""

_ARRAY_HEAD_BYTES = 3
_DESCRIPTION_BYTES_MAX = 6
"""Most bytes of `[name, kind, nullable]` without the name's characters."""
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1
_KINDS: Final[dict[type, PropertyKind]] = {
    bool: PropertyKind.BOOLEAN,
    int: PropertyKind.INTEGER,
    float: PropertyKind.FLOAT,
    str: PropertyKind.TEXT,
    bytes: PropertyKind.BINARY,
}


class _Gathered:
    """An unfinished column: the values of one name and kind, and the messages that have them."""

    __slots__ = ("kind", "name", "positions", "values")

    def __init__(self, name: str, kind: PropertyKind) -> None:
        self.name = name
        self.kind = kind
        self.positions: list[int] = []
        self.values: list[Value] = []


class PropertyTable:
    """Gathers rows and writes them as columns."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._columns: dict[tuple[str, PropertyKind], _Gathered] = {}
        # The same by the exact type of the values: one look-up a value.
        self._by_type: dict[tuple[str, type], _Gathered] = {}
        self._name_bytes = 0
        self._value_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._columns)

    def size_max(self, count: int) -> int:
        """An upper bound of the bytes of header and columns, of `count` messages that were added.

        The bound holds for rows taken in by `add`.
        """
        each = (count + 7) // 8 + 4 * HEAD_BYTES_MAX + _DESCRIPTION_BYTES_MAX
        return _ARRAY_HEAD_BYTES + self._name_bytes + self._value_bytes + each * len(self._columns)

    def gather(self, rows: Sequence[Row | None]) -> None:
        """Take in the properties of all messages; `encode` checks their values.

        Raises:
            Rejected: a name or the type of a value has no column.
        """
        by_type = self._by_type
        for position, row in enumerate(rows):
            if row and not hasattr(row, "items"):
                raise WrongType(f"the props of a message are a dict or None, not {row!r:.80}")
            for name, value in row.items() if row else ():
                if value is not None:
                    gathered = by_type.get((name, type(value))) or self._find(name, value)
                    gathered.positions.append(position)
                    gathered.values.append(value)

    def add(self, position: int, row: Row | None, *, room: int) -> None:
        """Take in the properties of message `position`, which is the highest so far.

        Raises:
            Rejected: a name or value cannot be stored, or all properties together would take
                more than `room` bytes; the table is as before.
        """
        checked = []
        by_type, added = self._by_type, 0
        try:
            for name, value in row.items() if row else ():
                if value is not None:
                    gathered = by_type.get((name, type(value))) or self._find(name, value)
                    checked.append((gathered, value))
                    added += _value_bytes(gathered.kind, name, value)
            size = self.size_max(position + 1) + added
            if size > room:
                limit = self._limits.batch_bytes_max
                raise too_large("the batch", limit - room + size, limit)
        except Rejected:
            self._drop_empty_columns()
            raise
        for gathered, value in checked:
            gathered.positions.append(position)
            gathered.values.append(value)
        self._value_bytes += added

    def encode(self, count: int) -> tuple[list[list[object]], list[bytes]]:
        """The header's array and the columns, of a batch of `count` messages.

        Raises:
            Rejected: a value does not fit its column.
        """
        header: list[list[object]] = []
        columns: list[bytes] = []
        for gathered in self._columns.values():
            assert len(gathered.positions) == len(gathered.values), "values of no message"
            nullable = len(gathered.positions) < count
            if nullable:
                columns.append(column(PLAIN, _bitmap(gathered.positions, count)))
            kind, encoded = _encode_values(gathered)
            columns += encoded
            header.append([gathered.name, kind.value, nullable])
        assert len(header) <= self._limits.property_columns_max, "too many property columns"
        return header, columns

    def _find(self, name: str, value: Value) -> _Gathered:
        """The column that the value belongs to, made if there is none."""
        gathered = self._by_type.get((name, type(value)))
        if gathered is not None:
            return gathered
        kind = _kind_of(name, value)
        gathered = self._columns.get((name, kind))
        if gathered is None:
            encoded = utf8(name, "a property name", self._limits.name_bytes_max)
            if not encoded:
                raise bad_argument("a property name is empty")
            if len(self._columns) == self._limits.property_columns_max:
                raise bad_argument(
                    f"a batch has {len(self._columns)} property columns (names and kinds) at most"
                )
            # A plain string, whatever subclass the name was.
            gathered = self._columns[name, kind] = _Gathered(encoded.decode(), kind)
            self._name_bytes += len(encoded)
        self._by_type[name, type(value)] = gathered
        return gathered

    def _drop_empty_columns(self) -> None:
        for key in [key for key, gathered in self._columns.items() if not gathered.values]:
            self._name_bytes -= len(key[0].encode())
            del self._columns[key]
        self._by_type = {key: g for key, g in self._by_type.items() if g.values}


def _kind_of(name: object, value: object) -> PropertyKind:
    """The kind of a value; its type may be a subclass of ours (an IntEnum, numpy's float64)."""
    for type_, kind in _KINDS.items():
        if isinstance(value, type_):
            return kind
    raise bad_argument(
        f"property {name!r} is of type {type(value).__name__}; a property is int, float, bool, str "
        "or bytes"
    )


def _value_bytes(kind: PropertyKind, name: str, value: Any) -> int:
    """An upper bound of the bytes that a value of this kind takes in its column."""
    if kind is PropertyKind.TEXT:
        if value.isascii():
            return 4 + len(value)
        return 4 + len(utf8(value, f"property {name!r}", BATCH_BYTES_MAX))
    if kind is PropertyKind.INTEGER and not _INTEGER_MIN <= value <= _INTEGER_MAX:
        raise bad_argument(f"property {name!r} does not fit into 64 bits")
    return 4 + len(value) if kind is PropertyKind.BINARY else 8


def _bitmap(positions: Sequence[int], count: int) -> bytes:
    bitmap = bytearray((count + 7) // 8)
    for position in positions:
        bitmap[position >> 3] |= 1 << (position & 7)
    return bytes(bitmap)


def _encode_values(gathered: _Gathered) -> tuple[PropertyKind, list[bytes]]:
    """The kind as it is stored and the columns of its values."""
    values: list[Any] = gathered.values
    kind = gathered.kind
    try:
        match kind:
            case PropertyKind.INTEGER:
                return kind, [vector(I64, values)]
            case PropertyKind.FLOAT:
                return kind, [vector(F64, values)]
            case PropertyKind.BOOLEAN:
                return kind, [column(U8, bytes(values))]
            case PropertyKind.BINARY:
                return kind, [joined(values)]
            case PropertyKind.TEXT | PropertyKind.TEXT_CODED:
                return _encode_text(values)
            case _:
                assert_never(kind)
    except struct.error:
        raise bad_argument(f"property {gathered.name!r} does not fit into 64 bits") from None
    except UnicodeError as error:
        raise bad_argument(f"property {gathered.name!r} is not Unicode text: {error}") from None


def _encode_text(values: list[str]) -> tuple[PropertyKind, list[bytes]]:
    distinct = {text: code for code, text in enumerate(dict.fromkeys(values))}
    # At half as many, a code and its share of the dictionary take no more than a length.
    if 2 * len(distinct) > len(values):
        return PropertyKind.TEXT, [joined(list(map(str.encode, values)))]
    numbers = list(map(distinct.__getitem__, values))
    dictionary = joined(list(map(str.encode, distinct)))
    return PropertyKind.TEXT_CODED, [dictionary, codes(numbers, len(distinct))]
