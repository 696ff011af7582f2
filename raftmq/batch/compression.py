"""The bodies of a batch, compressed and back, within a stated size.

The decompressed size stands in the batch's head, where limits are checked before a byte is spent:
a decompressor is never asked for more than that.

Left out: trained dictionaries for each topic, which would suit batches of one small message.
"""

from enum import Enum


class Compression(Enum):
    """How a producer stores the bodies of its batches. Where it does not pay, they stay raw."""

    NONE = "none"
    """As they are."""
    LZ4 = "lz4"
    """Fast in both directions."""
    ZSTD = "zstd"
    """Smaller, at several times the work."""
