"""Record batches: what one producer sends to one queue at once, as columns.

Start reading at `layout` (the bytes, and `peek` for brokers), then `encode`, `draft` and `builder`
(for producers), `decode` (for consumers) and `cut` (a part of a batch). Pure: no clock, no I/O.
numpy is imported only where an array is asked for, so that a small command starts without it.
"""

from .builder import BatchBuilder
from .compression import Compression
from .cut import cut
from .decode import Batch, BatchMessage, TagColumn, admit
from .draft import Draft
from .encode import Sealed, encode
from .keys import key_hash, queue_of
from .layout import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    HEAD_BYTES,
    MESSAGES_MAX,
    NO_KEY,
    BatchHead,
    Flag,
    Limits,
    PropertyKind,
    peek,
    verify,
)
from .pieces import Pieces
from .properties import Row, Value
from .property_columns import PropertyColumn

__all__ = [
    "BATCH_BYTES_DEFAULT",
    "BATCH_BYTES_MAX",
    "HEAD_BYTES",
    "MESSAGES_MAX",
    "NO_KEY",
    "Batch",
    "BatchBuilder",
    "BatchHead",
    "BatchMessage",
    "Compression",
    "Draft",
    "Flag",
    "Limits",
    "Pieces",
    "PropertyColumn",
    "PropertyKind",
    "Row",
    "Sealed",
    "TagColumn",
    "Value",
    "admit",
    "cut",
    "encode",
    "key_hash",
    "peek",
    "queue_of",
    "verify",
]
