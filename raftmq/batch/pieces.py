"""Byte strings of a column as they are stored: their lengths, and all of them joined."""

from typing import TYPE_CHECKING, NamedTuple

from .checks import check_lengths, check_text
from .columns import Column
from .layout import NO_KEY

if TYPE_CHECKING:
    import numpy as np


class Pieces(NamedTuple):
    """Byte strings, for callers that read all of them at once."""

    sizes: "np.ndarray"
    """Bytes of each, u32, read-only; `NO_KEY` for a message without a key."""
    content: bytes | memoryview
    """All byte strings, joined; the sizes but `NO_KEY` add up to its length."""

    def between(self, start: int, stop: int) -> "Pieces":
        """The byte strings from position `start` to before `stop`; only sizes are copied."""
        if start == 0 and stop == len(self.sizes):
            return self
        sizes = self.sizes[:stop]
        sizes = sizes * (sizes != NO_KEY)
        first = int(sizes[:start].sum(dtype="u8"))
        end = first + int(sizes[start:].sum(dtype="u8"))
        return Pieces(self.sizes[start:stop], memoryview(self.content)[first:end])


def text_pieces(
    lengths: Column, content: Column, *, bytes_max: int | None = None, absent: int | None = None
) -> Pieces:
    """Pieces of UTF-8; see `check_text`.

    Raises:
        CorruptRecord: the lengths do not cut the content into UTF-8, or one is too long.
    """
    check_text(lengths, content, bytes_max=bytes_max, absent=absent)
    return Pieces(lengths.array(), content.content)


def byte_pieces(lengths: Column, content: bytes | memoryview) -> Pieces:
    """Pieces of any bytes.

    Raises:
        CorruptRecord: the lengths do not add up to the content.
    """
    check_lengths(lengths, len(content))
    return Pieces(lengths.array(), content)
