"""Messages as an Arrow record batch, made from the columns of their batches by numpy: no Python
object a message.

    lengths (u32) ──cumsum──> offsets (i32) ┐
    bodies, joined ─────────────────────────┴─> one binary column

| column | Arrow type | made from |
|---|---|---|
| topic | string | the topic's name, repeated |
| queue | int32 | the queue within the topic |
| offset | int64 | counted from the batch's base offset |
| key | string | lengths and joined keys; null: none |
| tag | string | the batch's dictionary, taken by codes; null: none |
| body | binary | lengths and joined bodies, decompressed once a batch |
| props | map<string, string> | see below; empty where there are none |
| created | timestamp[us, UTC] | the producer's clock |
| timestamp | timestamp[us, UTC] | the leader's stamp of the batch |

Properties become text: integers and floats as the shortest decimal that reads back as the same
number (`1`, `0.1`, `1e+300`, `inf`, `nan`; a float that is whole has no point), booleans as `true`
and `false`, bytes as base64, text as it is. A message's properties stand in the order of the
batch's columns.

Times beyond the range of 64 bits of microseconds (the year 294,246) become the last in range.

Bodies of one uncompressed batch are not copied: the record batch keeps the batch's bytes alive.

Arrays are made from buffers, never by `pa.array`: `pa.array` loads pandas where pandas is
installed, which takes over a second in each reading process.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, assert_never

import numpy as np
import pyarrow as pa

from raftmq.batch import NO_KEY, Pieces, PropertyColumn, PropertyKind
from raftmq.errors import Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_MASK

from .slices import Slice, Slices

_INT32_MAX: Final = 2**31 - 1
_MS_MAX: Final = (2**63 - 1) // 1000

_TIME = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    {
        "topic": pa.string(),
        "queue": pa.int32(),
        "offset": pa.int64(),
        "key": pa.string(),
        "tag": pa.string(),
        "body": pa.binary(),
        "props": pa.map_(pa.string(), pa.string()),
        "created": _TIME,
        "timestamp": _TIME,
    }
)
"""All columns, in order."""


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The schema of these columns, in the order of `SCHEMA`.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such column, or `columns` is empty.
    """
    wanted = set(columns)
    unknown = sorted(wanted - set(SCHEMA.names))
    if unknown or not wanted:
        message = f"no columns {unknown}: there are {', '.join(SCHEMA.names)}"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return pa.schema([field for field in SCHEMA if field.name in wanted])


def record_batch(messages: Slices, columns: Iterable[str] | None = None) -> pa.RecordBatch:
    """See `MessageColumns.to_arrow`."""
    schema = SCHEMA if columns is None else schema_of(columns)
    if not messages:
        return pa.RecordBatch.from_arrays([pa.nulls(0, of) for of in schema.types], schema=schema)
    columns_made = [_column(messages, name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns_made, schema=schema)


def _column(messages: Slices, name: str) -> pa.Array:
    match name:
        case "topic":
            return _taken([messages.topic], np.zeros(len(messages), np.int64))
        case "queue":
            mask = QUEUE_MASK
            queues = _spread(messages, lambda part: part.queue_number & mask)
            return _numbers(queues.astype(np.int32))
        case "offset":
            return _numbers(np.concatenate([_offsets(part) for part in messages.parts]))
        case "key":
            return _keys(messages)
        case "tag":
            return _tags(messages)
        case "body":
            bodies = messages.each(lambda part: part.batch.body_pieces.between(*_range(part)))
            return _joined(bodies, pa.binary())
        case "props":
            return _maps(messages.each(_props))
        case "created":
            return _times(np.concatenate(messages.each(_created)))
        case _:
            assert name == "timestamp", name
            return _times(_spread(messages, lambda part: part.batch.timestamp))


def _range(part: Slice) -> tuple[int, int]:
    return part.start, part.stop


def _spread(messages: Slices, value: Callable[[Slice], int]) -> np.ndarray:
    """One number for each slice, repeated for its messages."""
    parts = messages.parts
    counts = [part.stop - part.start for part in parts]
    return np.repeat(np.array([value(part) for part in parts], np.int64), counts)


def _offsets(part: Slice) -> np.ndarray:
    base = part.batch.base_offset
    return np.arange(base + part.start, base + part.stop, dtype=np.int64)


def _created(part: Slice) -> np.ndarray:
    created = part.batch.created_ms
    if created is None:
        return np.full(part.stop - part.start, part.batch.head.base_ms, np.int64)
    return created[part.start : part.stop]


def _times(milliseconds: np.ndarray) -> pa.Array:
    within = np.clip(milliseconds, -_MS_MAX, _MS_MAX)
    return _numbers(within * 1000).view(_TIME)


def _numbers(values: np.ndarray) -> pa.Array:
    """Integers or floats as an array; contiguous values are not copied."""
    kind, data = pa.from_numpy_dtype(values.dtype), pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, data])


# Texts and bytes.


def _taken(texts: Sequence[str | None], places: np.ndarray) -> pa.Array:
    """The text at each of `places` (int64); null for None."""
    encoded = [None if text is None else text.encode() for text in texts]
    sizes = np.array([NO_KEY if each is None else len(each) for each in encoded], np.uint32)
    content = b"".join(each for each in encoded if each is not None)
    return _joined([Pieces(sizes, content)], pa.string()).take(_numbers(places))


def _joined(parts: Sequence[Pieces], kind: pa.DataType) -> pa.Array:
    """Pieces as one string or binary column; null where a size is `NO_KEY`."""
    sizes, content = parts[0]
    if len(parts) > 1:
        sizes = np.concatenate([part.sizes for part in parts])
        content = b"".join([part.content for part in parts])
    is_absent = sizes == NO_KEY
    nulls = int(np.count_nonzero(is_absent))
    validity = None
    if nulls:
        sizes = np.where(is_absent, 0, sizes)
        validity = pa.py_buffer(np.packbits(~is_absent, bitorder="little"))
    buffers = [validity, pa.py_buffer(_ends(sizes)), pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, len(sizes), buffers, nulls)


def _ends(sizes: np.ndarray) -> np.ndarray:
    """Arrow's offsets: the start of each piece, and the end of the last one."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    if ends[-1] > _INT32_MAX:
        message = f"a column of {ends[-1]} bytes; Arrow holds {_INT32_MAX}: take fewer messages"
        raise Rejected(Reason.TOO_LARGE, message)
    return ends.astype(np.int32)


def _keys(messages: Slices) -> pa.Array:
    def keys(part: Slice) -> Pieces:
        pieces = part.batch.key_pieces
        if pieces is None:
            return Pieces(np.full(part.stop - part.start, NO_KEY, np.uint32), b"")
        return pieces.between(part.start, part.stop)

    return _joined(messages.each(keys), pa.string())


def _tags(messages: Slices) -> pa.Array:
    distinct: list[str | None] = [None]
    codes = []
    for part, (dictionary, numbers) in zip(
        messages.parts, messages.each(lambda part: part.batch.tags), strict=True
    ):
        # Code 0 is no tag; the others move behind the tags of the slices before.
        own = numbers[part.start : part.stop].astype(np.int64)
        codes.append(np.where(own == 0, 0, own + (len(distinct) - 1)))
        distinct += dictionary
    return _taken(distinct, np.concatenate(codes))


# Properties.


class _Props(NamedTuple):
    """The properties of a slice, message after message."""

    counts: np.ndarray
    """Number of properties of each message."""
    names: pa.Array
    """The names of all properties."""
    values: pa.Array
    """The values of all properties, as text."""


_NO_TEXTS = pa.nulls(0, pa.string())


def _maps(parts: list[_Props]) -> pa.Array:
    ends = _ends(np.concatenate([part.counts for part in parts]))
    names = pa.concat_arrays([part.names for part in parts])
    values = pa.concat_arrays([part.values for part in parts])
    return pa.MapArray.from_arrays(_numbers(ends), names, values)


def _props(part: Slice) -> _Props:
    start, stop = _range(part)
    columns = [column.between(start, stop) for column in part.batch.columns]
    if not columns:
        return _Props(np.zeros(stop - start, np.int64), _NO_TEXTS, _NO_TEXTS)
    present = np.ones((stop - start, len(columns)), np.bool_)
    for n, column in enumerate(columns):
        if column.present is not None:
            present[:, n] = column.present
    # For each value, message after message: its column, and its place in that column.
    rows, which = np.nonzero(present)
    place = (np.cumsum(present, axis=0) - 1)[rows, which]
    texts = [_as_text(column) for column in columns]
    firsts = np.cumsum([0, *map(len, texts)])
    names = _taken([column.name for column in columns], which)
    values = pa.concat_arrays(texts).take(_numbers(firsts[which] + place))
    return _Props(present.sum(axis=1), names, values)


def _as_text(column: PropertyColumn) -> pa.Array:
    """The present values of a column as text."""
    match column.kind:
        case PropertyKind.INTEGER | PropertyKind.FLOAT:
            return _numbers(np.array(column.values)).cast(pa.string())
        case PropertyKind.BOOLEAN:
            return _taken(["false", "true"], np.array(column.values, np.int64))
        case PropertyKind.TEXT:
            assert column.pieces is not None
            return _joined([column.pieces], pa.string())
        case PropertyKind.TEXT_CODED:
            assert column.dictionary is not None
            return _taken(column.dictionary, np.array(column.values, np.int64))
        case PropertyKind.BINARY:
            assert column.pieces is not None
            return _base64(column.pieces)
        case _:
            assert_never(column.kind)


_ALPHABET = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)


def _base64(pieces: Pieces) -> pa.Array:
    """Each piece in base64, all at once.

    Each piece is padded with zeros to whole groups of three bytes; a group becomes four letters.
    The last one or two letters of a padded group are then `=`.
    """
    sizes = pieces.sizes.astype(np.int64)
    groups = (sizes + 2) // 3
    ends = np.cumsum(groups)
    # The place of each byte: its place in the content plus the padding of the pieces before it.
    padding = groups * 3 - sizes
    padded = np.zeros(int(groups.sum()) * 3, np.uint32)
    before = np.cumsum(padding) - padding
    padded[np.arange(int(sizes.sum())) + np.repeat(before, sizes)] = np.frombuffer(
        pieces.content, np.uint8
    )
    triples = padded.reshape(-1, 3)
    words = triples[:, 0] << 16 | triples[:, 1] << 8 | triples[:, 2]
    letters = _ALPHABET[words[:, None] >> np.array([18, 12, 6, 0], np.uint32) & 63].reshape(-1)
    letters[ends[padding > 0] * 4 - 1] = ord("=")
    letters[ends[padding == 2] * 4 - 2] = ord("=")
    return _joined([Pieces((groups * 4).astype(np.uint32), letters.tobytes())], pa.string())
