"""Encoding a batch from Arrow arrays: their buffers become columns, with no object a message.

Arrow's text and binary arrays are offsets and joined bytes; a batch has lengths and joined bytes.
numpy computes the rest for all messages at once: the lengths, the hashes of the keys, the codes of
the tags, and which property stands in which message.

    offsets (i32) ──diff──> lengths (u32)          joined bytes ──as they are──> joined bytes

The result equals that of `encode` for the same messages, but for the order of property columns:
here a struct's fields give the order, or the names' first appearance in a map.

Invariants:
- Text is checked to be UTF-8, as Spark's need not be.

Left out: one property of several types in a batch, which a map or a struct cannot have.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns import F64, I64, PLAIN, U8, U16, U32, column
from .compression import Compression
from .encode import Sealed, assemble, header_of
from .layout import EMPTY_HEADER, NO_KEY, TIME_MS_MAX, Flag, Limits, PropertyKind
from .refusals import bad_argument, too_large, utf8

_POLYNOMIAL: Final = 0x82F63B78
"""CRC-32C, reflected."""


class ArrowColumns(NamedTuple):
    """Messages as arrays of equal length; None: no message has one."""

    bodies: pa.Array
    """Binary, without nulls."""
    keys: pa.Array | None = None
    """String; null: the message has no key."""
    tags: pa.Array | None = None
    """String; null: the message has no tag."""
    props: pa.Array | None = None
    """A map of strings to one type, or a struct."""
    dues: np.ndarray | None = None
    """When to deliver, i64 milliseconds since 1970; 0: at once."""
    hashes: np.ndarray | None = None
    """The keys' hashes, u32 as `hashes_of` gives them; None: `encode_arrow` computes them."""

    def between(self, start: int, stop: int) -> "ArrowColumns":
        """The messages from position `start` to before `stop`, nothing copied."""
        return ArrowColumns(*(each if each is None else each[start:stop] for each in self))

    def take(self, positions: np.ndarray) -> "ArrowColumns":
        """The messages at these positions."""
        return ArrowColumns(
            *(
                each[positions]
                if isinstance(each, np.ndarray)
                else each
                if each is None
                else each.take(pa.array(positions))
                for each in self
            )
        )


def encode_arrow(
    columns: ArrowColumns,
    *,
    base_ms: int = 0,
    compression: Compression = Compression.NONE,
    limits: Limits | None = None,
) -> Sealed:
    """As `encode`, of arrays.

    Raises:
        Rejected: as `encode`.
    """
    limits = limits or Limits()
    bodies, keys, tags, props, dues, hashes = columns
    count = len(bodies)
    if not 0 < count <= limits.messages_max:
        raise bad_argument(f"a batch has 1 to {limits.messages_max} messages, not {count}")
    flags, header = 0, EMPTY_HEADER
    lengths, body = parts_of(bodies)
    encoded = [column(U32, lengths.astype("<u4").tobytes())]
    if keys is not None and keys.null_count < count:
        flags |= Flag.KEYS.value
        encoded = _key_columns(keys, hashes, encoded[0], limits)
    if tags is not None and tags.null_count < count:
        flags |= Flag.TAGS.value
        encoded += _tag_columns(tags, limits)
    if dues is not None and dues.any():
        flags |= Flag.DELIVERY.value
        encoded.append(_time_column(dues))
    if props is not None:
        described, values = _property_columns(props, limits)
        if described:
            flags |= Flag.PROPERTIES.value
            header = header_of(described)
            encoded += values
    return assemble(
        header,
        encoded,
        body,
        count=count,
        flags=flags,
        base_ms=base_ms,
        compression=compression,
        limits=limits,
    )


def parts_of(array: pa.Array) -> tuple[np.ndarray, bytes]:
    """The lengths and the joined bytes of a text or binary array that has no nulls."""
    edges = edges_of(array)
    data = array.buffers()[2]
    joined = b"" if data is None else bytes(memoryview(data)[edges[0] : edges[-1]])
    return np.diff(edges), joined


def edges_of(array: pa.Array) -> np.ndarray:
    """The positions in an array's data where its texts begin, and where the last one ends."""
    if not len(array):
        return np.zeros(1, np.int64)
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    item = np.dtype(np.int64 if is_large else np.int32)
    offsets = array.buffers()[1]
    return np.frombuffer(offsets, item, len(array) + 1, array.offset * item.itemsize)


def text_of(array: pa.Array, what: str) -> pa.Array:
    """A text array of a text or binary one; nulls stay.

    Raises:
        Rejected: the array is of another type, or not UTF-8; `what` names it.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    try:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return array.cast(pa.large_string() if pa.types.is_large_binary(kind) else pa.string())
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise bad_argument(f"{what} must be text, not of Arrow's type {kind}")
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise bad_argument(f"{what} is not Unicode text: {error}") from None
    return array


# -- keys ------------------------------------------------------------------------------------------


def hashes_of(keys: pa.Array) -> np.ndarray:
    """The CRC-32C of each text, u32; 0 where there is none.

    >>> [hex(value) for value in hashes_of(pa.array(["123456789", None, ""]))]
    ['0xe3069283', '0x0', '0x0']
    """
    sizes, joined = parts_of(_filled(keys))
    return crc32c_of(joined, sizes)


def crc32c_of(joined: bytes, sizes: np.ndarray) -> np.ndarray:
    """The CRC-32C of each of many byte strings, given as their sizes and all of them joined.

    A CRC is linear: the CRC of a string is the exclusive or of one term for each byte, which
    depends on the byte and on the number of bytes that follow. So all bytes are looked up at once
    in a table of 256 values for each distance from the end.
    """
    hashes = _starts(int(sizes.max(initial=0)))[sizes]
    data = np.frombuffer(joined, np.uint8)
    if len(data):
        # 32 bits are enough for a batch, and faster.
        ends: np.ndarray = np.cumsum(sizes, dtype=np.int32)
        after = np.repeat(ends, sizes) - np.arange(1, len(data) + 1, dtype=np.int32)
        added = _table(_rounded(int(sizes.max()))).ravel()[(after << 8) | data]
        having = np.flatnonzero(sizes)
        hashes[having] ^= np.bitwise_xor.reduceat(added, (ends - sizes)[having])
    finished: np.ndarray = hashes ^ np.uint32(0xFFFFFFFF)
    return finished


@lru_cache(maxsize=16)
def _table(rows: int) -> np.ndarray:
    """The terms that bytes add to a CRC: one row for each number of bytes that follow."""
    table = np.empty((rows, 256), np.uint32)
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = first >> np.uint32(1) ^ (first & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    table[0] = first
    for row in range(1, rows):
        before = table[row - 1]
        table[row] = first[before & 0xFF] ^ (before >> 8)
    return table


def _starts(size: int) -> np.ndarray:
    """The terms that a CRC's initial value of all ones adds, one for each length up to `size`."""
    starts: np.ndarray = _all_starts(_rounded(size))[: size + 1]
    return starts


@lru_cache(maxsize=16)
def _all_starts(rows: int) -> np.ndarray:
    first = _table(1)[0].tolist()
    value, starts = 0xFFFFFFFF, []
    for _ in range(rows + 1):
        starts.append(value)
        value = first[value & 0xFF] ^ (value >> 8)
    return np.array(starts, np.uint32)


def _rounded(size: int) -> int:
    """The smallest power of two that is at least `size`: so there are few tables."""
    return 1 << max(size - 1, 0).bit_length()


def _key_columns(
    keys: pa.Array, hashes: np.ndarray | None, lengths: bytes, limits: Limits
) -> list[bytes]:
    """Hashes, body lengths, key lengths and joined keys, in the order of the layout."""
    sizes, joined = parts_of(_filled(keys))
    if sizes.max() > limits.key_bytes_max:
        raise too_large("a key", int(sizes.max()), limits.key_bytes_max)
    if hashes is None:
        hashes = crc32c_of(joined, sizes)
    stated = sizes.astype("<u4")
    if keys.null_count:
        stated[keys.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    # As `key_hash`: 0 is for messages without a key.
    hashes = np.where((hashes == 0) & (stated != NO_KEY), np.uint32(1), hashes)
    hashed = column(U32, hashes.astype("<u4").tobytes())
    return [hashed, lengths, column(U32, stated.tobytes()), column(PLAIN, joined)]


def _filled(texts: pa.Array) -> pa.Array:
    return texts.fill_null("") if texts.null_count else texts


# -- tags, times, properties -----------------------------------------------------------------------


def _tag_columns(tags: pa.Array, limits: Limits) -> list[bytes]:
    coded = tags.dictionary_encode()
    sizes, joined = parts_of(coded.dictionary)
    if sizes.max() > limits.tag_bytes_max:
        raise too_large("a tag", int(sizes.max()), limits.tag_bytes_max)
    numbers = coded.indices.fill_null(-1).to_numpy() + 1
    return [*_text_list(sizes, joined), _codes(numbers, len(sizes) + 1)]


def _text_list(sizes: np.ndarray, joined: bytes) -> list[bytes]:
    return [column(U32, sizes.astype("<u4").tobytes()), column(PLAIN, joined)]


def _codes(numbers: np.ndarray, distinct: int) -> bytes:
    """As `columns.codes`, of an array."""
    tag, item = (U8, "u1") if distinct <= 0x100 else (U16, "<u2")
    if distinct > 0x10000:
        tag, item = U32, "<u4"
    return column(tag, numbers.astype(item).tobytes())


def _time_column(dues: np.ndarray) -> bytes:
    if dues.min() < 0 or dues.max() > TIME_MS_MAX:
        raise bad_argument("deliver_at_ms must be whole milliseconds from 0 to 2^62 - 1")
    return column(I64, dues.astype("<i8").tobytes())


def _property_columns(props: pa.Array, limits: Limits) -> tuple[list[list[object]], list[bytes]]:
    """The header's array and the columns."""
    is_map = pa.types.is_map(props.type)
    if not is_map and not pa.types.is_struct(props.type):
        raise bad_argument(f"props are a map or a struct, not of Arrow's type {props.type}")
    described: list[list[object]] = []
    columns: list[bytes] = []
    seen: set[str] = set()
    for name, positions, values in _of_map(props) if is_map else _of_struct(props):
        if not len(values):
            continue
        if not utf8(name, "a property name", limits.name_bytes_max):
            raise bad_argument("a property name is empty")
        if name in seen or (np.diff(positions) == 0).any():
            raise bad_argument(f"property {name!r} has two values in one message")
        if len(seen) == limits.property_columns_max:
            raise bad_argument(f"a batch has {len(seen)} property columns at most")
        seen.add(name)
        is_nullable = len(values) < len(props)
        if is_nullable:
            present = np.zeros(len(props), np.bool_)
            present[positions] = True
            columns.append(column(PLAIN, np.packbits(present, bitorder="little").tobytes()))
        kind, encoded = _values(name, values)
        columns += encoded
        described.append([name, kind.value, is_nullable])
    return described, columns


_Property = tuple[str, np.ndarray, pa.Array]
"""A name, the messages that have it in rising order, and the value of each."""


def _of_struct(props: pa.Array) -> Iterator[_Property]:
    for field, values in zip(props.type, props.flatten(), strict=True):
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        yield field.name, present, values.drop_null()


def _of_map(props: pa.Array) -> Iterator[_Property]:
    having = np.flatnonzero(props.is_valid().to_numpy(zero_copy_only=False))
    # `take` leaves no slot of a null behind, and offsets that begin at 0.
    maps = props.take(pa.array(having))
    edges = np.frombuffer(maps.buffers()[1], np.int32, len(maps) + 1) if len(maps) else np.zeros(1)
    owners = np.repeat(having, np.diff(edges[: len(maps) + 1]).astype(np.int64))
    names = text_of(maps.keys, "a property name").dictionary_encode()
    codes = names.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    items, bounds = (
        maps.items.take(pa.array(order)),
        np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1)),
    )
    for code, name in enumerate(names.dictionary.to_pylist()):
        start, stop = int(bounds[code]), int(bounds[code + 1])
        values, positions = items[start:stop], owners[order[start:stop]]
        if values.null_count:
            positions = positions[values.is_valid().to_numpy(zero_copy_only=False)]
        yield name, positions, values.drop_null()


def _values(name: str, values: pa.Array) -> tuple[PropertyKind, list[bytes]]:
    """The kind of a property column, and its columns of values."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if pa.types.is_boolean(kind):
        return PropertyKind.BOOLEAN, [_vector(U8, values.cast(pa.uint8()))]
    if pa.types.is_integer(kind):
        try:
            return PropertyKind.INTEGER, [_vector(I64, values.cast(pa.int64()))]
        except pa.ArrowInvalid:
            raise bad_argument(f"property {name!r} does not fit into 64 bits") from None
    if pa.types.is_floating(kind):
        return PropertyKind.FLOAT, [_vector(F64, values.cast(pa.float64()))]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return PropertyKind.BINARY, _text_list(*parts_of(values))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text_values(text_of(values, f"property {name!r}"))
    raise bad_argument(
        f"property {name!r} is of Arrow's type {kind}; a property is an integer, a float, "
        "a boolean, text or binary"
    )


def _text_values(values: pa.Array) -> tuple[PropertyKind, list[bytes]]:
    # As in `properties`: coded if that is smaller.
    if 2 * pc.count_distinct(values).as_py() > len(values):
        return PropertyKind.TEXT, _text_list(*parts_of(values))
    coded = values.dictionary_encode()
    dictionary = _text_list(*parts_of(coded.dictionary))
    numbers = coded.indices.to_numpy()
    return PropertyKind.TEXT_CODED, [*dictionary, _codes(numbers, len(coded.dictionary))]


def _vector(tag: int, values: Any) -> bytes:
    return column(tag, values.to_numpy(zero_copy_only=False).tobytes())
