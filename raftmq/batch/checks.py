"""Checks of whole columns at once: no Python object a message.

These are the vector forms of the checks that `decode` makes one by one when a column is first read.
A broker runs them over each batch that a producer sends, so that no consumer meets a batch that it
cannot read.

| check | holds if |
|---|---|
| `check_lengths` | the lengths add up to the bytes that they cut |
| `check_text` | the lengths do so, none is over its limit, and each piece is UTF-8 |
| `check_below` | each code stands in its dictionary |
| `check_within` | each time is in range |

UTF-8 is checked once over the joined pieces. One fault remains: a piece that begins inside a
character, so with a byte 10xxxxxx.

Invariants:
- Each raises `CorruptRecord` if and only if reading the column would.
"""

from typing import TYPE_CHECKING, Final

from .columns import WIDTHS, Column, split_at
from .layout import NO_KEY

if TYPE_CHECKING:
    import numpy as np

_FEW: Final = 64
"""Elements below which plain Python is faster than an array."""


def _count(column: Column) -> int:
    return len(column.content) // WIDTHS[column.tag]


def check_lengths(lengths: Column, total: int) -> None:
    """The lengths of a u32 column add up to `total`."""
    if _count(lengths) < _FEW:
        found = sum(lengths.numbers())
    else:
        found = int(lengths.array().sum(dtype="u8"))
    if found != total:
        raise lengths.corrupt(f"lengths add up to {found}, the content has {total} bytes")


def check_text(
    lengths: Column, content: Column, *, bytes_max: int | None = None, absent: int | None = None
) -> None:
    """The lengths cut `content` into pieces of UTF-8.

    Args:
        lengths: a u32 column.
        content: the joined pieces.
        bytes_max: the longest piece allowed; None: any.
        absent: a length that stands for no piece at all, such as `NO_KEY`.
    """
    if _count(lengths) < _FEW:
        numbers = [0 if size == absent else size for size in lengths.numbers()]
        _check_longest(lengths, max(numbers, default=0), bytes_max)
        pieces = split_at(lengths, numbers, bytes(content.content))
        if not all(map(_is_text, pieces)):
            raise content.corrupt("text is not UTF-8")
        return
    import numpy as np

    sizes = lengths.array()
    longest = int(sizes.max())
    if longest == absent:
        sizes = np.where(sizes == absent, 0, sizes)
        longest = int(sizes.max())
    _check_longest(lengths, longest, bytes_max)
    data = bytes(content.content)
    found = int(sizes.sum(dtype="u8"))
    if found != len(data):
        raise lengths.corrupt(f"lengths add up to {found}, the content has {len(data)} bytes")
    if not data.isascii():
        _check_characters(sizes, content, data)


def _check_longest(lengths: Column, longest: int, bytes_max: int | None) -> None:
    if bytes_max is not None and longest > bytes_max:
        raise lengths.corrupt(f"text of {longest} bytes; the limit is {bytes_max}")


def check_keys(lengths: Column, content: Column, *, bytes_max: int) -> None:
    """As `check_text`, for keys."""
    check_text(lengths, content, bytes_max=bytes_max, absent=NO_KEY)


def _check_characters(sizes: "np.ndarray", content: Column, data: bytes) -> None:
    import numpy as np

    if not _is_text(data):
        raise content.corrupt("text is not UTF-8")
    starts = sizes.cumsum(dtype="u8")
    first_bytes = np.frombuffer(data, np.uint8)[starts[starts < len(data)]]
    if ((first_bytes & 0xC0) == 0x80).any():
        raise content.corrupt("text is not UTF-8: a piece begins inside a character")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_below(column: Column, limit: int) -> None:
    """Each unsigned number is below `limit`."""
    if not column.content:
        return
    highest = max(column.numbers()) if _count(column) < _FEW else int(column.array().max())
    if highest >= limit:
        raise column.corrupt(f"code {highest} where {limit - 1} is the highest")


def out_of_range(time: int, low: int, high: int) -> str:
    """The text of the fault of a time."""
    return f"a time is out of range: {time} is not within {low} and {high}"


def check_within(column: Column, low: int, high: int) -> None:
    """Each number is from `low` to `high`."""
    values = column.array()
    if int(values.min()) < low or int(values.max()) > high:
        outside = int(values.min()) if int(values.min()) < low else int(values.max())
        raise column.corrupt(out_of_range(outside, low, high))
