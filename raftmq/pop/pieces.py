"""Pieces: spans as the core keeps them, with the hashes of the messages' keys if it needs them.

    base 100, bits 0b1101, keys 7 9 0  =  100 (key 7), 102 (key 9), 103 (without a key)

Only groups ordered by key carry keys; everywhere else `keys` is empty and costs nothing.

Invariants:
- As with spans: never empty, and bit 0 is set.
- `keys` is empty, or has four bytes, little-endian, for each message that is set, by offset.
- numpy is imported where many messages are looked at: clients use this module and start without it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .spans import Span, shifted, to_bytes, width_of

if TYPE_CHECKING:
    import numpy as np

WIDTH_MAX = 65_536
"""From the first offset of a lease to its last: bounds a lease's memory, and its bits on the
wire."""
JOINED_WIDTH_MAX = 8_192
"""Maximum width of a piece built by joining; each join copies the bits."""
KEY_BYTES = 4
"""Bytes of a key's hash."""
_FEW = 16
"""Up to this number of messages a loop is faster than numpy."""


class Piece(NamedTuple):
    """Some messages of a queue, handed out equally often, and their keys."""

    base: int
    """Offset of the first message."""
    bits: int
    """Bit n stands for the message at `base + n`."""
    attempt: int = 0
    """How often they were handed out so far."""
    keys: bytes = b""
    """The hashes of the messages' keys; empty if the group keeps no order by key."""

    @property
    def size(self) -> int:
        """How many messages."""
        return self.bits.bit_count()

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.base + self.bits.bit_length()

    @property
    def span(self) -> Span:
        """The piece without its keys, as other modules see it."""
        return Span(self.base, self.bits, self.attempt)

    def split(self, count: int) -> "tuple[Piece, Piece | None]":
        """The first `count` messages, at least one, and the rest."""
        if self.size <= count:
            return self, None
        first, rest = self.before(self.base + width_of(self.bits, count))
        assert first is not None
        return first, rest

    def before(self, offset: int) -> "tuple[Piece | None, Piece | None]":
        """The messages before an offset, and those from it on."""
        width = min(max(offset - self.base, 0), self.bits.bit_length())
        first = self.bits & (1 << width) - 1
        cut = first.bit_count() * KEY_BYTES
        return (
            piece(self.base, first, self.attempt, self.keys[:cut]),
            piece(self.base, self.bits ^ first, self.attempt, self.keys[cut:]),
        )


def piece(base: int, bits: int, attempt: int = 0, keys: bytes = b"") -> Piece | None:
    """The piece of these bits; None if there are none."""
    if not bits:
        return None
    skipped = (bits & -bits).bit_length() - 1
    return Piece(base + skipped, bits >> skipped, attempt, keys)


def divided(messages: Piece, chosen: Span) -> tuple[Piece | None, Piece | None]:
    """The messages of a piece that are among the chosen ones, and the rest; attempts play no
    part."""
    base, bits, attempt, keys = messages
    shift = chosen.base - base
    # A choice that begins behind the piece is not shifted: its offset may be huge.
    taken = bits & shifted(chosen.bits, shift) if shift < bits.bit_length() else 0
    left = bits ^ taken
    return (
        piece(base, taken, attempt, pick(keys, bits, taken)),
        piece(base, left, attempt, pick(keys, bits, left)),
    )


def joined(first: Piece, second: Piece, *, width_max: int = JOINED_WIDTH_MAX) -> Piece | None:
    """Both pieces in one; None if their attempts differ, if they lie too far apart, or if they have
    keys and the second does not come after the first."""
    base = min(first.base, second.base)
    if first.attempt != second.attempt or max(first.stop, second.stop) - base > width_max:
        return None
    if (first.keys or second.keys) and second.base < first.stop:
        return None
    one, other = first.bits << first.base - base, second.bits << second.base - base
    assert not one & other, f"messages from {base} on are in two pieces"
    return Piece(base, one | other, first.attempt, first.keys + second.keys)


def joined_by_queue(pieces: list[tuple[int, Piece]]) -> list[tuple[int, Piece]]:
    """The same messages in fewer pieces: pieces of one queue and attempt that lie together become
    one. Sorted by queue, attempt and offset."""
    found: list[tuple[int, Piece]] = []
    for queue, each in sorted(pieces, key=lambda one: (one[0], one[1].attempt, one[1].base)):
        both = joined(found[-1][1], each) if found and found[-1][0] == queue else None
        if both is None:
            found.append((queue, each))
        else:
            found[-1] = (queue, both)
    return found


def pick(keys: bytes, bits: int, chosen: int) -> bytes:
    """The keys of the messages in `chosen`, which is a part of `bits`; `keys` are those of all."""
    if not keys or bits == chosen:
        return keys
    assert bits & chosen == chosen, "keys of messages that the piece does not hold"
    low = chosen & -chosen
    if bits & (1 << chosen.bit_length()) - low == chosen:
        # Neighbours: mostly messages are settled in their order.
        start = (bits & low - 1).bit_count() * KEY_BYTES
        return keys[start : start + chosen.bit_count() * KEY_BYTES]
    if chosen.bit_count() > _FEW:
        import numpy as np

        size = (bits.bit_length() + 7) // 8
        flags = [
            np.unpackbits(np.frombuffer(each.to_bytes(size, "little"), np.uint8), bitorder="little")
            for each in (bits, chosen)
        ]
        found = np.frombuffer(keys, "<u4")[flags[1][flags[0] == 1] == 1]
        return bytes(found.tobytes())
    picked = b""
    while chosen:
        low = chosen & -chosen
        rank = (bits & low - 1).bit_count() * KEY_BYTES
        picked += keys[rank : rank + KEY_BYTES]
        chosen ^= low
    return picked


def bits_of(offsets: Sequence[int]) -> int:
    """The bits of a piece with these rising offsets, counted from the first one."""
    base, width = offsets[0], offsets[-1] - offsets[0] + 1
    assert 0 < width <= WIDTH_MAX, "a piece that is too wide for a lease"
    if width == len(offsets):
        return (1 << width) - 1
    if len(offsets) <= _FEW:
        bits = 0
        for offset in offsets:
            bits |= 1 << offset - base
        return bits
    import numpy as np

    flags = np.zeros(offsets[-1] - base + 1, np.uint8)
    flags[np.array(offsets, np.int64) - base] = 1
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def positions(bits: int) -> list[int]:
    """The positions of the set bits, rising."""
    found: list[int] = places(bits).tolist()
    return found


def places(bits: int) -> "np.ndarray":
    """The positions of the set bits, rising, as an array."""
    import numpy as np

    flags = np.frombuffer(to_bytes(bits), np.uint8)
    return np.flatnonzero(np.unpackbits(flags, bitorder="little"))
