"""The bodies of a batch, compressed and back, within a stated size.

The decompressed size stands in the batch's head, where limits are checked before memory is spent:
a decompressor is never asked for more than that size.

Left out: trained dictionaries for each topic, which would suit batches of one small message.
"""

from enum import Enum
from typing import Final, assert_never

from raftmq.errors import CorruptRecord

from .layout import BATCH_BYTES_MAX, Flag

# zstandard and lz4 are imported where they are used: most commands start without them. Each batch
# gets objects of its own: they are not safe to share between threads.

_WORTH_BYTES: Final = 64
"""Bodies of less than this number of bytes are stored as they are."""
_LZ4_RATIO_MAX: Final = 255
"""The largest growth of an lz4 block: a longer match costs one byte for each 255."""


class Compression(Enum):
    """How a producer stores the bodies of its batches. Bodies that do not shrink stay raw."""

    NONE = "none"
    """The bodies stay as they are."""
    LZ4 = "lz4"
    """Fast in both directions."""
    ZSTD = "zstd"
    """Smaller, at several times the work."""


def compress(body: bytes, compression: Compression) -> tuple[int, bytes]:
    """The flag to set and the bytes to store: 0 and `body` itself if it does not shrink."""
    if compression is Compression.NONE or len(body) < _WORTH_BYTES:
        return 0, body
    match compression:
        case Compression.LZ4:
            import lz4.block

            flag, stored = Flag.LZ4.value, lz4.block.compress(body, store_size=False)
        case Compression.ZSTD:
            import zstandard

            flag, stored = Flag.ZSTD.value, zstandard.ZstdCompressor().compress(body)
        case _:
            assert_never(compression)
    return (flag, stored) if len(stored) < len(body) else (0, body)


def decompress(stored: memoryview, flags: int, body_bytes: int, position: int) -> bytes:
    """The bodies as they were; takes memory for `body_bytes` at most.

    Raises:
        CorruptRecord: `stored`, which stands at `position`, does not decompress to that size.
    """
    if flags & Flag.LZ4.value:
        body = _from_lz4(stored, body_bytes)
    else:
        body = _from_zstd(stored, body_bytes)
    if body is None or len(body) != body_bytes:
        message = f"bodies do not decompress to the stated {body_bytes} bytes"
        raise CorruptRecord(message, position=position)
    return body


def _from_lz4(stored: memoryview, body_bytes: int) -> bytes | None:
    import lz4.block

    if body_bytes > _LZ4_RATIO_MAX * len(stored):
        return None
    try:
        body: bytes = lz4.block.decompress(stored, uncompressed_size=body_bytes)
    except lz4.block.LZ4BlockError:
        return None
    return body


def _from_zstd(stored: memoryview, body_bytes: int) -> bytes | None:
    import zstandard

    try:
        # The frame's own size decides how much memory is taken: it must equal the checked size.
        if zstandard.frame_content_size(stored) != body_bytes:
            return None
        decompressor = zstandard.ZstdDecompressor(max_window_size=BATCH_BYTES_MAX)
        return decompressor.decompress(stored, max_output_size=body_bytes, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
