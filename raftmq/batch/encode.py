"""Encoding a batch: sequences of bodies, keys, tags and properties become columns, once.

`encode` gives a `Sealed` batch: everything but the stamp (queue, producer, epoch, sequence), which
is often known only when the batch is sent, and may change when it is sent again.

>>> sealed = encode([b"one", b"two"], keys=["k", None])
>>> from .layout import peek
>>> peek(sealed.to_bytes(queue=7, first_sequence=40)).first_sequence
40

Invariants:
- The same messages give the same bytes.
- A sealed batch decodes: values that a decoder would refuse are refused here.
"""

import struct
from collections.abc import Sequence
from typing import cast

import cbor2
import google_crc32c

from .columns import I32, I64, U32, codes, column, joined, vector
from .compression import Compression, compress
from .keys import key_hash
from .layout import (
    CRC,
    EMPTY_HEADER,
    FIXED,
    HEAD_BYTES,
    HEADER_BYTES_MAX,
    MAGIC,
    NO_KEY,
    STAMP,
    TIME_MS_MAX,
    Flag,
    Limits,
    key_hashes_at,
)
from .properties import PropertyTable, Row
from .refusals import bad_argument, too_large, utf8, utf8_key

_DEFAULT_LIMITS = Limits()


class Sealed:
    """An encoded batch that lacks its stamp: the queue and the producer's numbers.

    A sealed batch can be stamped again (another queue, a new epoch) at the cost of 36 bytes.
    """

    __slots__ = ("_body", "_crc", "_middle", "body_bytes", "count", "size")

    def __init__(self, middle: bytes, body: bytes, *, count: int, body_bytes: int) -> None:
        """For `seal`: `middle` is the batch from its flags to its columns."""
        self._middle = middle
        self._body = body
        self._crc = google_crc32c.extend(google_crc32c.value(middle), body)
        self.count = count
        """Messages in the batch."""
        self.size = CRC.size + STAMP.size + len(middle) + len(body)
        """Bytes of the batch, exactly."""
        self.body_bytes = body_bytes
        """Bytes of the bodies before compression."""

    def stamp(
        self, *, queue: int, producer: int = 0, epoch: int = 0, first_sequence: int = 0
    ) -> list[bytes]:
        """The batch as parts to write one after the other; a large body is not copied.

        Args:
            queue: the queue's number.
            producer: the producer's id; 0 means none: repeats of the batch are not recognised.
            epoch: the producer's epoch.
            first_sequence: the producer's number of the first message on this queue.
        """
        assert not first_sequence >> 63, first_sequence
        stamp = STAMP.pack(MAGIC, queue, producer, first_sequence, epoch)
        crc = google_crc32c.extend(self._crc, stamp)
        return [CRC.pack(crc) + stamp, self._middle, self._body]

    def to_bytes(
        self, *, queue: int, producer: int = 0, epoch: int = 0, first_sequence: int = 0
    ) -> bytes:
        """The parts of `stamp`, joined."""
        return b"".join(
            self.stamp(queue=queue, producer=producer, epoch=epoch, first_sequence=first_sequence)
        )


def encode(
    bodies: Sequence[bytes],
    *,
    keys: Sequence[str | bytes | None] | None = None,
    tags: Sequence[str | None] | None = None,
    props: Sequence[Row | None] | None = None,
    deliver_at_ms: Sequence[int] | None = None,
    created_ms: Sequence[int] | None = None,
    base_ms: int = 0,
    compression: Compression = Compression.NONE,
    limits: Limits | None = None,
) -> Sealed:
    """Encode messages given as parallel sequences, each as long as `bodies`.

    Args:
        bodies: at least one; each may be empty.
        keys: text, or bytes that are its UTF-8; None: no key, which differs from an empty one.
        tags: one tag a message; None: no tag.
        props: values by name; None as a value is the same as leaving the name out.
        deliver_at_ms: milliseconds since 1970; 0: at once.
        created_ms: milliseconds since 1970; left out: all were created at `base_ms`.
        base_ms: milliseconds since 1970 by the producer's clock.
        compression: the bodies' compression; ignored where it does not make them smaller.
        limits: the bounds beyond which messages are refused; by default those of every decoder.

    Raises:
        Rejected: `TOO_LARGE` if a limit is exceeded, `BAD_ARGUMENT` for a value of a type that
            has no column, a number beyond 64 bits, or text that is not Unicode.
    """
    limits = limits or _DEFAULT_LIMITS
    for name, given in (
        ("keys", keys),
        ("tags", tags),
        ("props", props),
        ("deliver_at_ms", deliver_at_ms),
        ("created_ms", created_ms),
    ):
        if given is not None and len(given) != len(bodies):
            raise bad_argument(f"{len(bodies)} bodies and {len(given)} {name}")
    table = None
    if props is not None:
        table = PropertyTable(limits)
        table.gather(props)
    return seal(
        as_bytes(bodies),
        keys=None if keys is None else utf8_keys(keys, limits),
        tags=None if tags is None else code_tags(tags, limits),
        table=table,
        deliver_at_ms=deliver_at_ms,
        created_ms=created_ms,
        base_ms=base_ms,
        compression=compression,
        limits=limits,
    )


def seal(
    bodies: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None,
    tags: tuple[Sequence[bytes], Sequence[int]] | None,
    table: PropertyTable | None,
    deliver_at_ms: Sequence[int] | None,
    created_ms: Sequence[int] | None,
    base_ms: int,
    compression: Compression,
    limits: Limits,
) -> Sealed:
    """`encode` for checked text: keys in UTF-8, and tags as distinct ones and codes."""
    count = len(bodies)
    if not 0 < count <= limits.messages_max:
        raise bad_argument(f"a batch has 1 to {limits.messages_max} messages, not {count}")
    assert keys is None or len(keys) == count, f"{len(keys)} keys of {count} messages"
    assert tags is None or len(tags[1]) == count, f"{len(tags[1])} codes of {count} messages"
    flags = 0
    columns: list[bytes] = []
    lengths = vector(U32, _lengths(bodies, limits))
    if keys is not None and any(key is not None for key in keys):
        flags |= Flag.KEYS.value
        columns += _key_columns(keys, lengths)
    else:
        columns.append(lengths)
    if tags is not None and tags[0]:
        flags |= Flag.TAGS.value
        columns += (joined(tags[0]), codes(tags[1], len(tags[0]) + 1))
    if deliver_at_ms is not None and any(deliver_at_ms):
        flags |= Flag.DELIVERY.value
        columns.append(_times(deliver_at_ms, "deliver_at_ms"))
    if created_ms is not None and any(created != base_ms for created in created_ms):
        flags |= Flag.CREATED.value
        columns.append(_times_after(created_ms, base_ms))
    header = EMPTY_HEADER
    if table:
        described, property_columns = table.encode(count)
        if described:
            flags |= Flag.PROPERTIES.value
            header = header_of(described)
            columns += property_columns
    return assemble(
        header,
        columns,
        b"".join(bodies),
        count=count,
        flags=flags,
        base_ms=base_ms,
        compression=compression,
        limits=limits,
    )


def assemble(
    header: bytes,
    columns: Sequence[bytes],
    body: bytes,
    *,
    count: int,
    flags: int,
    base_ms: int,
    compression: Compression,
    limits: Limits,
) -> Sealed:
    """A batch of columns that are encoded and in order; `body` is all bodies, joined.

    Raises:
        Rejected: the batch is too large, or `base_ms` is not a time.
    """
    check_time(base_ms, "base_ms")
    flag, stored = compress(body, compression)
    flags |= flag
    content = b"".join(columns)
    size = HEAD_BYTES + len(header) + len(content) + len(body)
    if size > limits.batch_bytes_max:
        raise too_large("the batch", size, limits.batch_bytes_max)
    if len(header) > HEADER_BYTES_MAX:
        raise too_large("the batch's list of property columns", len(header), HEADER_BYTES_MAX)
    hashes_at = key_hashes_at(flags, count, len(header))
    # A broker takes the hashes from there, without a look at the column's head.
    first_end = HEAD_BYTES + len(header) + len(columns[0])
    assert not hashes_at or hashes_at + 4 * count == first_end, "key hashes are the first column"
    fixed = FIXED.pack(
        flags,
        count,
        len(header),
        base_ms,
        len(content),
        len(stored),
        len(body),
        hashes_at,
    )
    middle = b"".join((fixed, header, content))
    sealed = Sealed(middle, stored, count=count, body_bytes=len(body))
    # `peek` refuses a batch that its lengths do not fill.
    assert sealed.size == size - len(body) + len(stored) <= size, f"a batch of {sealed.size} bytes"
    return sealed


def header_of(described: Sequence[Sequence[object]]) -> bytes:
    """The CBOR header of a batch with these property columns: name, kind, and is it nullable."""
    return cbor2.dumps(described)


def as_bytes(bodies: Sequence[bytes]) -> Sequence[bytes]:
    """The bodies, each one of type bytes."""
    if set(map(type, bodies)) == {bytes}:
        return bodies
    return [_as_bytes(body) for body in bodies]


def _as_bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise bad_argument(f"a body must be bytes, not {type(body).__name__}")


def _lengths(bodies: Sequence[bytes], limits: Limits) -> list[int]:
    lengths = list(map(len, bodies))
    if sum(lengths) > limits.batch_bytes_max:
        raise too_large("the batch", sum(lengths), limits.batch_bytes_max)
    return lengths


def utf8_keys(keys: Sequence[str | bytes | None], limits: Limits) -> Sequence[bytes | None]:
    """The keys in UTF-8."""
    if set(map(type, keys)) == {str}:
        try:
            encoded = list(map(str.encode, cast("Sequence[str]", keys)))
        except UnicodeError:
            encoded = []
        if encoded and max(map(len, encoded)) <= limits.key_bytes_max:
            return encoded
    # Slower, and finds the key that is wrong.
    return [None if key is None else utf8_key(key, limits.key_bytes_max) for key in keys]


def _key_columns(keys: Sequence[bytes | None], lengths: bytes) -> list[bytes]:
    """Hashes, body lengths, key lengths and joined keys, in the order of the layout."""
    present = [key for key in keys if key is not None]
    if len(present) == len(keys):
        hashes = list(map(google_crc32c.value, present))
        if 0 in hashes:
            hashes = list(map(key_hash, present))
        return [vector(U32, hashes), lengths, joined(present)]
    hashes = [0 if key is None else key_hash(key) for key in keys]
    sizes = [NO_KEY if key is None else len(key) for key in keys]
    return [vector(U32, hashes), lengths, vector(U32, sizes), column(0, b"".join(present))]


def code_tags(tags: Sequence[str | None], limits: Limits) -> tuple[Sequence[bytes], Sequence[int]]:
    """The distinct tags in UTF-8, in order of appearance, and a code for each message."""
    dictionary = tag_dictionary(tags, limits)
    known: dict[str | None, int] = {tag: code for code, tag in enumerate(dictionary, 1)}
    known[None] = 0
    return list(dictionary.values()), list(map(known.__getitem__, tags))


def tag_dictionary(tags: Sequence[str | None], limits: Limits) -> dict[str, bytes]:
    """The distinct tags and their UTF-8, in order of appearance."""
    try:
        distinct = dict.fromkeys(tags)
    except TypeError as error:
        raise bad_argument(f"a tag must be text: {error}") from None
    distinct.pop(None, None)
    return {tag: utf8(tag, "a tag", limits.tag_bytes_max) for tag in distinct if tag is not None}


def _times(times: Sequence[int], what: str) -> bytes:
    for time in times:
        check_time(time, what)
    return vector(I64, times)


def _times_after(times: Sequence[int], base_ms: int) -> bytes:
    for time in times:
        check_time(time, "created_ms")
    after = [time - base_ms for time in times]
    try:
        return vector(I32, after)
    except struct.error:
        return vector(I64, after)


def check_time(time: int, what: str) -> None:
    """Raise `Rejected` unless it is milliseconds that a batch can hold; `what` names it."""
    if not isinstance(time, int) or not 0 <= time <= TIME_MS_MAX:
        raise bad_argument(f"{what} must be whole milliseconds from 0 to 2^62 - 1, not {time!r}")
