"""The messages of PostgreSQL's logical decoding plugin `pgoutput`, protocol version 1.

| message | bytes after its letter |
|---|---|
| B begin | 8 LSN of the commit record, 8 time, 4 transaction |
| C commit | 1 flags, 8 LSN of the commit record, 8 LSN after it, 8 time |
| R relation | 4 id, text schema, text name, 1 replica identity, 2 columns, of each: 1 flags, text name, 4 type, 4 modifier |
| I insert | 4 relation, `N`, tuple |
| U update | 4 relation, optionally `K` or `O` and a tuple, `N`, tuple |
| D delete | 4 relation, `K` or `O`, tuple |
| T truncate | 4 relations, 1 options, of each: 4 relation |

A tuple is 2 bytes of how many columns, and of each a letter: `n` NULL, `u` unchanged and not sent,
`t` and 4 bytes of length and the text. Numbers are big-endian; texts without a length end with a
zero byte. Other messages (`Y` type, `O` origin, `M` message) are not about rows.

Sources: "Logical Replication Message Formats" in PostgreSQL's documentation.
"""  # noqa: E501  # a row of the table is a line

from struct import Struct
from typing import NamedTuple

_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_COLUMN = Struct(">Ii")
_INT32 = Struct(">I")
_INT16 = Struct(">H")

Tuple = list[str | None]
"""A row's values as text, in the order of the relation's columns."""


class Begin(NamedTuple):
    """A transaction begins."""

    lsn: int
    """The place of its commit record; grows from transaction to transaction."""
    txid: int
    """The transaction's number."""


class End(NamedTuple):
    """The transaction has ended."""

    lsn: int
    """The place after its commit record."""


class Relation(NamedTuple):
    """The shape of a table, for the changes that follow."""

    id: int
    """The number by which changes name the table."""
    schema: str
    """The schema that holds the table."""
    name: str
    """The table's name."""
    is_full: bool
    """Whether old rows are sent whole."""
    columns: tuple[tuple[str, int], ...]
    """For each column: the name, and the number of the type."""


class Insert(NamedTuple):
    """A row was inserted."""

    relation: int
    """The table's `Relation.id`."""
    new: Tuple
    """The row."""


class Update(NamedTuple):
    """A row was changed."""

    relation: int
    """The table's `Relation.id`."""
    old: Tuple | None
    """The row before; None: not sent."""
    new: Tuple
    """The row after; values that did not change and were not sent are taken from `old`."""


class Delete(NamedTuple):
    """A row was deleted."""

    relation: int
    """The table's `Relation.id`."""
    old: Tuple
    """The row before."""


class Truncate(NamedTuple):
    """Tables were emptied."""

    relations: tuple[int, ...]
    """The tables' `Relation.id`s."""


Decoded = Begin | End | Relation | Insert | Update | Delete | Truncate


def decode(data: bytes) -> Decoded | None:
    """Decode one message; None: it is not about rows.

    >>> decode(b"B" + bytes(6) + b"\\1\\0" + bytes(8) + b"\\0\\0\\0\\7")
    Begin(lsn=256, txid=7)
    """
    match data[:1]:
        case b"B":
            lsn, _, txid = _BEGIN.unpack_from(data, 1)
            return Begin(lsn, txid)
        case b"C":
            return End(_COMMIT.unpack_from(data, 1)[2])
        case b"R":
            return _relation(data)
        case b"I":
            return Insert(_int32(data, 1), _tuple(data, 6, None)[0])
        case b"U":
            return _update(data)
        case b"D":
            return Delete(_int32(data, 1), _tuple(data, 6, None)[0])
        case b"T":
            count = _int32(data, 1)
            return Truncate(tuple(_int32(data, 6 + 4 * n) for n in range(count)))
    return None


def _update(data: bytes) -> Update:
    old: Tuple | None = None
    at = 5
    if data[at : at + 1] in (b"K", b"O"):
        old, at = _tuple(data, at + 1, None)
    new, _ = _tuple(data, at + 1, old)
    return Update(_int32(data, 1), old, new)


def _relation(data: bytes) -> Relation:
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    is_full = data[at : at + 1] == b"f"
    (count,) = _INT16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _text(data, at + 1)
        type_, _ = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append((column, type_))
    return Relation(_int32(data, 1), schema, name, is_full, tuple(columns))


def _tuple(data: bytes, at: int, old: Tuple | None) -> tuple[Tuple, int]:
    """A tuple and where it ends."""
    (count,) = _INT16.unpack_from(data, at)
    at += 2
    values: Tuple = []
    for number in range(count):
        letter = data[at : at + 1]
        at += 1
        if letter == b"t":
            end = at + 4 + _int32(data, at)
            values.append(data[at + 4 : end].decode())
            at = end
        elif letter == b"u":
            # Only large values stored apart are not sent; old rows, sent whole, have them.
            assert old is not None, "a large value was not sent: old rows are not sent whole"
            values.append(old[number])
        else:
            assert letter == b"n", letter
            values.append(None)
    return values, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _int32(data: bytes, at: int) -> int:
    value: int = _INT32.unpack_from(data, at)[0]
    return value
