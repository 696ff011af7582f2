"""Spans: some messages of a queue as a base offset and a bit for each: no object per message.

    base 100, bits 0b1101  =  the messages at 100, 102 and 103

A consumer group keeps its unsettled messages as spans: a lease, a retry and a dead letter hold one
each, and acknowledging ten thousand messages is one `&`.

Invariants:
- A span is never empty, and bit 0 of its bits is set: so equal sets of messages are equal spans.

Sources: RocketMQ's checkpoints with bitmaps (PopCheckPoint), without their limit of 32 messages.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Some messages of a queue, handed out equally often."""

    base: int
    """Offset of the first message."""
    bits: int
    """Bit n stands for the message at `base + n`."""
    attempt: int = 0
    """How often they were handed out so far."""

    @property
    def size(self) -> int:
        """How many messages."""
        return self.bits.bit_count()

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.base + self.bits.bit_length()

    def offsets(self) -> Iterator[int]:
        """The messages' offsets, rising."""
        return offsets_of(self.base, self.bits)

    def split(self, count: int) -> "tuple[Span, Span | None]":
        """The first `count` messages, at least one, and the rest."""
        if self.size <= count:
            return self, None
        width = width_of(self.bits, count)
        first = self.bits & (1 << width) - 1
        return self._replace(bits=first), span(self.base, self.bits ^ first, self.attempt)

    def before(self, offset: int) -> "tuple[Span | None, Span | None]":
        """The messages before an offset, and those from it on."""
        width = max(offset - self.base, 0)
        first = self.bits & (1 << width) - 1
        return (
            span(self.base, first, self.attempt),
            span(self.base, self.bits ^ first, self.attempt),
        )


def span(base: int, bits: int, attempt: int = 0) -> Span | None:
    """The span of these bits; None if there are none."""
    if not bits:
        return None
    skipped = (bits & -bits).bit_length() - 1
    return Span(base + skipped, bits >> skipped, attempt)


def run(base: int, count: int, attempt: int = 0) -> Span:
    """`count` messages in a row, at least one."""
    assert count > 0, count
    return Span(base, (1 << count) - 1, attempt)


def runs_of(bits: int) -> Iterator[tuple[int, int]]:
    """Runs of set bits as [start, stop).

    >>> list(runs_of(0b11100110))
    [(1, 3), (5, 8)]
    """
    at = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        length = (~bits & (bits + 1)).bit_length() - 1
        yield at + skip, at + skip + length
        bits >>= length
        at += skip + length


def offsets_of(base: int, bits: int) -> Iterator[int]:
    """The offsets that `bits` stand for, rising.

    >>> list(offsets_of(100, 0b1011))
    [100, 101, 103]
    """
    for start, stop in runs_of(bits):
        yield from range(base + start, base + stop)


def to_bytes(bits: int) -> bytes:
    """Bits as bytes, little-endian: bit n is bit n % 8 of byte n // 8."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def shifted(bits: int, by: int) -> int:
    """Bits moved up, or down if `by` is negative."""
    return bits << by if by >= 0 else bits >> -by


def told(named: Span, taken: int) -> int | bytes:
    """The number of named messages, if all were taken; else which ones were, as bits that count
    from the first named one.

    >>> told(Span(100, 0b1011), 0b1011), told(Span(100, 0b1011), 0b1001)
    (3, b'\\t')
    """
    if taken == named.bits:
        return taken.bit_count()
    return to_bytes(taken)


def width_of(bits: int, count: int) -> int:
    """How many of the lowest bits hold `count` ones, which there are."""
    low, high = count, bits.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (bits & (1 << middle) - 1).bit_count() >= count:
            high = middle
        else:
            low = middle + 1
    return low
