"""Messages of a lease as the bits of an integer: bit n stands for the message at `base + n`."""

from raftmq.errors import ProtocolError
from raftmq.pop.actions import FENCED
from raftmq.pop.spans import runs_of, to_bytes
from raftmq.wire.popping import Settled


def packed(base: int, bits: int) -> tuple[int, bytes]:
    """Messages as a request carries them: the offset of the first, and the bits from there on.

    >>> packed(100, 0b1100)
    (102, b'\\x03')
    """
    skip = (bits & -bits).bit_length() - 1
    bits >>= skip
    return base + skip, to_bytes(bits)


def lowest(bits: int, count: int) -> int:
    """The `count` lowest of these bits.

    >>> bin(lowest(0b11010, 2))
    '0b1010'
    """
    found = 0
    for start, stop in runs_of(bits):
        stop = min(stop, start + count)
        found |= ((1 << (stop - start)) - 1) << start
        count -= stop - start
        if not count:
            break
    return found


def settled_of(bits: int, result: int, which: bytes) -> int:
    """The messages of an item that are settled, by the item's answer: see `Settled`.

    >>> bin(settled_of(0b11010, 2, b"\\x09"))
    '0b10010'
    """
    if result == FENCED:
        return 0
    if which:
        return bits & int.from_bytes(which, "little") << (bits & -bits).bit_length() - 1
    # A node of older software tells only the count; retention takes the lowest offsets.
    return bits ^ lowest(bits, max(bits.bit_count() - result, 0))


def results_of(settled: Settled, count: int) -> list[tuple[int, bytes]]:
    """For each item of a settlement, its result and the bits of the settled messages.

    Raises:
        ProtocolError: it does not answer a settlement of `count` items.
    """
    which = settled.bits or [b""] * count
    if not len(settled.results) == len(which) == count:
        message = f"a settlement of {count} items has {len(settled.results)} results"
        raise ProtocolError(message)
    return list(zip(settled.results, which, strict=True))
