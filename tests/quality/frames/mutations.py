"""Ways to make a request wrong: its values, its CBOR, its body, its frame, or all of its bytes.

A mutation of values leaves a frame that can be read, so that the connection goes on; a mutation of
bytes mostly ends the connection. Checksums are made right again after most mutations: a wrong one
would hide what stands behind it.
"""

import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any, NamedTuple

import cbor2
import google_crc32c

from raftmq.broker.serve import connection
from raftmq.wire.frame import FIXED_BYTES, encode_frame
from raftmq.wire.messages import REPLY, FrameKind

from .corpus import KINDS, Things, request

INTEGERS = (
    -(2**64), -(2**63) - 1, -(2**63), -(2**31), -2, -1, 0, 1, 2, 255, 256, 2**15, 2**16, 65_535,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**53, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
    2**64,
)  # fmt: skip
TEXTS = (
    "", "\0", "a\0b", "\x1b[31m\x1b]0;x\x07", "../../etc/passwd", "\u202egnp.exe", "*", "@", "a@b",
    "x" * 127, "x" * 128, "x" * 5000, "é" * 127, "\ufdfa" * 300, "raftmq_x_y", " ", "a b", "-a",
    ".", "\r\n\r\n", "<script>alert(1)</script>", "%s%n{0}", "\ufeff", "\U0010ffff",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, 1.5, float("nan"), float("inf"), b"", b"\0", bytes(64), b"\xff" * 1000, [],
    {}, {"a": 1}, [[]], [None] * 9, [0] * 3000, "1", b"1", 0,
)  # fmt: skip
SNIPPETS = (
    b"\x9b" + b"\xff" * 8, b"\x9a\x7f\xff\xff\xff", b"\x99\xff\xff", b"\x5b" + b"\xff" * 8,
    b"\x5a\x7f\xff\xff\xff", b"\x7b\x7f" + b"\xff" * 7, b"\xbb" + b"\xff" * 8,
    b"\xba\x00\x10\x00\x00",
    b"\x81" * 31, b"\x81" * 40, b"\x81" * 5000, b"\xa1\x61\x61" * 40, b"\xc2\x58\x20" + bytes(32),
    b"\xd8\x1c\x80", b"\xd8\x1d\x00", b"\xd8\x23\x61\x28", b"\xd9\xd9\xf7\x80", b"\x9f\xff",
    b"\x5f\x41\x00\xff", b"\xf7", b"\xf9\x7e\x00", b"\xfb\x7f\xf0" + bytes(6), b"\xe0", b"\xf8\xff",
    b"\x1c", b"\xff", b"\x62\xff\xfe", b"\x63\xed\xa0\x80", b"\xa2\x61\x61\x01\x61\x61\x02", b"",
)  # fmt: skip
"""Pieces of CBOR: lengths that are claimed, depth, tags, indefinite items, texts that are none."""
LONG_BYTES = 200_000
"""About the bytes of a header with one very long list."""
HEADER_BYTES_MAX = connection.HEADER_BYTES_MAX + 100
"""A little more than a node takes of a client."""
RAW_BYTES_MAX = 300
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_NUMBERS_OF_A_BATCH = (36, 40, 44, 56, 60, 64, 68)
"""Where a batch has its numbers of 32 bits: see `raftmq.batch.layout`."""


class Sent(NamedTuple):
    """A mutated frame."""

    kind: int
    """The kind in the frame; of raw bytes: as a frame would have it there."""
    correlation: int
    data: bytes
    """The whole frame."""
    mutation: str
    """The name of the mutation."""
    may_end: bool = False
    """True: the node may end the connection, or wait for more, so no frame should follow."""


def mutated(things: Things, random: Random, correlation: int) -> Sent:
    """A frame that is wrong in some way, or, at times, in none."""
    kind, header, body = request(random.choice(KINDS), things, random)
    drawn = random.random()
    if drawn < 0.06:
        return _framed(kind, correlation, _encoded(header), body, "nothing")
    if drawn < 0.68 and header is not None:
        name, header = _bent(header, random)
        return _framed(kind, correlation, _encoded(header), body, name)
    if drawn < 0.86 and (body or random.random() < 0.3):
        name, body = _bent_body(body, random)
        return _framed(kind, correlation, _encoded(header), body, name)
    if drawn < 0.95:
        name, header = _bent_bytes(_encoded(header), random)
        return _framed(kind, correlation, header, body, name)._replace(may_end=True)
    return _bent_frame(kind, correlation, _encoded(header), body, random)


def _encoded(header: Any) -> bytes:
    # Two mutations may make a header longer than any frame: it is cut.
    return b"" if header is None else cbor2.dumps(header)[:HEADER_BYTES_MAX]


def _framed(kind: int, correlation: int, header: bytes, body: bytes, name: str) -> Sent:
    data = b"".join(encode_frame(kind, correlation, header, [body] if body else ()))
    # A longer header than a node takes ends the connection.
    return Sent(kind, correlation, data, name, len(header) > connection.HEADER_BYTES_MAX)


# Values


def _bent(header: list[Any], random: Random) -> tuple[str, list[Any]]:
    """A header with one or two values that do not belong there."""
    name, bend = random.choice(_BENDS)
    bend(header, random)
    if random.random() < 0.2:
        bend = random.choice(_BENDS)[1]
        bend(header, random)
    return name, header


def _place(header: list[Any], random: Random) -> tuple[list[Any], int] | None:
    """A random place in the lists within a header."""
    inside = header
    while inside:
        index = random.randrange(len(inside))
        value = inside[index]
        if not isinstance(value, list) or not value or random.random() < 0.3:
            return inside, index
        inside = value
    return None


def _replace(values: Sequence[Any]) -> Callable[[list[Any], Random], None]:
    def bend(header: list[Any], random: Random) -> None:
        if (place := _place(header, random)) is not None:
            # A copy: the next mutation may go on inside it.
            place[0][place[1]] = deepcopy(random.choice(values))

    return bend


def _like_for_like(header: list[Any], random: Random) -> None:
    if (place := _place(header, random)) is None:
        return
    inside, index = place
    match inside[index]:
        case bool():
            inside[index] = random.choice((0, 1, None))
        case int():
            inside[index] = random.choice(INTEGERS)
        case str():
            inside[index] = random.choice(TEXTS)
        case bytes():
            inside[index] = random.randbytes(random.choice((0, 1, 8, 500, 9000)))
        case value:
            inside[index] = [value] * random.choice((0, 2, 50))


def _drop(header: list[Any], random: Random) -> None:
    if (place := _place(header, random)) is not None:
        del place[0][place[1]]


def _repeat(header: list[Any], random: Random) -> None:
    if (place := _place(header, random)) is not None:
        inside, index = place
        inside[index:index] = [inside[index]] * random.choice((1, 2, 30))


def _grow(header: list[Any], random: Random) -> None:
    """One list as long as a header can hold, or nearly."""
    lists = [value for value in header if isinstance(value, list) and value]
    if lists and random.random() < 0.05:
        chosen = random.choice(lists)
        size = max(1, len(cbor2.dumps(chosen)))
        chosen *= LONG_BYTES // size + 1


def _nest(header: list[Any], random: Random) -> None:
    if (place := _place(header, random)) is not None:
        inside, index = place
        for _ in range(random.choice((1, 5, 27, 33, 200))):
            inside[index] = [inside[index]]


def _add(header: list[Any], random: Random) -> None:
    header += [random.choice(INTEGERS[4:])] * random.choice((1, 2, 90))


_BENDS: tuple[tuple[str, Callable[[list[Any], Random], None]], ...] = (
    ("a value of its type", _like_for_like),
    ("a value of its type", _like_for_like),
    ("a number", _replace(INTEGERS)),
    ("a text", _replace(TEXTS)),
    ("another type", _replace(OTHERS)),
    ("fewer fields", _drop),
    ("repeated fields", _repeat),
    ("a long list", _grow),
    ("a nested value", _nest),
    ("more fields", _add),
)


# Bytes of the header


def _bent_bytes(header: bytes, random: Random) -> tuple[str, bytes]:
    at = random.randrange(len(header) + 1)
    match random.randrange(5):
        case 0 if header:
            flipped = bytearray(header)
            for _ in range(random.choice((1, 1, 2, 9))):
                flipped[random.randrange(len(header))] ^= 1 << random.randrange(8)
            return "flipped bits", bytes(flipped)
        case 1:
            return "a header cut short", header[:at]
        case 2:
            return "a header and more", header + random.choice(SNIPPETS)
        case 3:
            return "random bytes", random.randbytes(random.randrange(RAW_BYTES_MAX))
        case _:
            return "a piece of CBOR", header[:at] + random.choice(SNIPPETS) + header[at + 1 :]


# Bodies


def _bent_body(body: bytes, random: Random) -> tuple[str, bytes]:
    if len(body) <= 72:
        return "a body where none belongs", random.randbytes(random.choice((1, 100, 9000)))
    data = bytearray(body)
    match random.randrange(6):
        case 0:
            at = random.choice(_NUMBERS_OF_A_BATCH)
            before = _U32.unpack_from(data, at)[0]
            number = random.choice((0, 1, before + 1, before - 1, before << 1, 2**31, 2**32 - 1))
            _U32.pack_into(data, at, number % 2**32)
            name = "a number of a batch"
        case 1:
            number = random.choice(INTEGERS) % 2**64
            _U64.pack_into(data, random.choice((8, 16, 24, 48)), number)
            name = "a large number of a batch"
        case 2:
            for _ in range(random.choice((1, 1, 2, 9))):
                data[random.randrange(36, len(data))] ^= 1 << random.randrange(8)
            name = "flipped bits of a batch"
        case 3:
            del data[random.randrange(36, len(data)) :]
            name = "a batch cut short"
        case 4:
            data += random.randbytes(random.choice((1, 100)))
            name = "a batch and more"
        case _:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            return "a batch that fails its checksum", bytes(data)
    if len(data) >= 36:
        crc = google_crc32c.value(bytes(data[36:]))
        _U32.pack_into(data, 0, google_crc32c.extend(crc, bytes(data[4:36])))
    return name, bytes(data)


# Frames


def _bent_frame(kind: int, correlation: int, header: bytes, body: bytes, random: Random) -> Sent:
    drawn = random.randrange(8)
    if drawn < 3:
        kind = random.choice((0, 42, 99, 126, FrameKind.ERROR, kind | REPLY, 255, FrameKind.HELLO))
        return _framed(kind, correlation, header, body, "another kind")._replace(may_end=True)
    if drawn < 4:
        correlation = random.choice((0, correlation - 1, 2**64 - 1, 2**63))
        sent = _framed(kind, max(0, correlation), header, body, "another correlation")
        return sent._replace(may_end=True)
    data = bytearray(_framed(kind, correlation, header, body, "").data)
    match drawn:
        case 4:
            _U32.pack_into(data, 0, random.choice((0, 1, 19, 20, len(data), 2**31, 2**32 - 1)))
            name = "a length"
        case 5:
            _U32.pack_into(data, 12, random.choice((len(data), 2**31, 2**32 - 1)))
            name = "a length of the header"
        case 6:
            # The bytes 8 and 9 are version and kind, 16 to 23 the correlation, all under the CRC.
            data[random.randrange(4, FIXED_BYTES)] ^= 1 << random.randrange(8)
            name = "flipped bits of a frame"
        case _:
            name = "raw bytes"
            data = bytearray(random.randbytes(random.randrange(1, RAW_BYTES_MAX)))
    if random.random() < 0.5 and len(data) >= FIXED_BYTES:
        # With the right checksum, so that the checks before it are met alone.
        header_end = FIXED_BYTES + _U32.unpack_from(data, 12)[0]
        crc = google_crc32c.value(bytes(data[:4]))
        _U32.pack_into(data, 4, google_crc32c.extend(crc, bytes(data[8:header_end])))
    if len(data) >= FIXED_BYTES:
        kind, correlation = data[9], _U64.unpack_from(data, 16)[0]
    return Sent(kind, correlation, bytes(data), name, may_end=True)
