r"""MySQL's binary JSON, as its log has it, as the text that a query gives.

    03                type: a small array
    02 00  0d 00      2 elements, 13 bytes in all
    05  01 00         element 0, a 16-bit integer: the value itself
    0c  0a 00         element 1, a text: its offset from the count
    02  6f 6b         length and characters

>>> json_text(bytes.fromhex("02 0200 0d00 05 0100 0c 0a00 02 6f6b"))
'[1, "ok"]'

An object has an entry for each key, its offset and length, before the entries of the values. Large
arrays and objects have 4 bytes where small ones have 2, and 32-bit integers in their entries.

A value that JSON does not know (`opaque`) has a type of a column. A query writes decimals as
numbers, times as text, and all others as `base64:typeN:…`.

Sources: the heading of `sql/json_binary.h` of MySQL 8.0; the texts were compared with those of a
server.
"""

import base64
import json
import struct
from collections.abc import Callable

_INLINE = frozenset({0x04, 0x05, 0x06})
"""Types whose values stand in an entry: literals and 16-bit integers."""
_INLINE_LARGE = _INLINE | {0x07, 0x08}
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {0x05: "<h", 0x06: "<H", 0x07: "<i", 0x08: "<I", 0x09: "<q", 0x0A: "<Q"}
_DECIMAL = 246
_TIMESTAMP, _DATE, _TIME, _DATETIME = 7, 10, 11, 12
_POINTS = range(-14, 16)
"""Places of the decimal point, from the first digit on, at which a double has no exponent."""
_GROUP_DIGITS = 9
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of a group of digits of a decimal, by their number."""


def json_text(data: bytes) -> str:
    """The text of a document. An empty one, of a row that is older than its column, is null."""
    return _value(data[0], data[1:]) if data else "null"


def _value(kind: int, data: bytes) -> str:
    match kind:
        case 0x00 | 0x01 | 0x02 | 0x03:
            return _members(data, is_object=kind < 0x02, is_large=bool(kind & 1))
        case 0x04:
            return _LITERALS[data[0]]
        case 0x0B:
            return _double(struct.unpack_from("<d", data)[0])
        case 0x0C:
            return _quoted(_sized(data).decode())
        case 0x0F:
            return _opaque(data[0], _sized(data[1:]))
    return str(struct.unpack_from(_NUMBERS[kind], data)[0])


def _members(data: bytes, *, is_object: bool, is_large: bool) -> str:
    width = 4 if is_large else 2

    def number(at: int) -> int:
        return int.from_bytes(data[at : at + width], "little")

    count = number(0)
    keys: list[str] = []
    if is_object:
        for entry in range(2 * width, 2 * width + count * (width + 2), width + 2):
            start = number(entry)
            size = int.from_bytes(data[entry + width : entry + width + 2], "little")
            keys.append(_quoted(data[start : start + size].decode()))
    texts: list[str] = []
    first = 2 * width + len(keys) * (width + 2)
    for entry in range(first, first + count * (width + 1), width + 1):
        kind = data[entry]
        is_inline = kind in (_INLINE_LARGE if is_large else _INLINE)
        texts.append(_value(kind, data[entry + 1 if is_inline else number(entry + 1) :]))
    if is_object:
        return "{" + ", ".join(map("{}: {}".format, keys, texts)) + "}"
    return "[" + ", ".join(texts) + "]"


def _sized(data: bytes) -> bytes:
    """Bytes after their length, which has 7 bits in each of its bytes, the lowest first."""
    size, at = 0, 0
    while True:
        size |= (data[at] & 0x7F) << 7 * at
        at += 1
        if data[at - 1] < 0x80:
            return data[at : at + size]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _double(value: float) -> str:
    """The shortest digits that give the same double.

    >>> [_double(each) for each in (2.0, -0.0, 1e-7, 1.5e20)]
    ['2.0', '-0.0', '0.0000001', '1.5e20']
    """
    digits, _, exponent = f"{value!r}e0".partition("e")
    sign = "-" if digits.startswith("-") else ""
    whole, _, part = digits.lstrip("-").partition(".")
    point = len(whole) + int(exponent.partition("e")[0])
    digits = whole + part
    shift = len(digits) - len(digits.lstrip("0"))
    digits, point = digits.strip("0"), point - shift
    if not digits:
        return f"{sign}0.0"
    if point not in _POINTS and not 0 < point < len(digits):
        tail = f".{digits[1:]}" if digits[1:] else ""
        return f"{sign}{digits[0]}{tail}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"


def _opaque(type_: int, data: bytes) -> str:
    write = _OPAQUES.get(type_)
    if write is None:
        # In lines of 76 characters.
        return _quoted(f"base64:type{type_}:{base64.encodebytes(data).decode().rstrip()}")
    return write(data)


def _decimal(data: bytes) -> str:
    """Digits in groups of nine from the point on, as big-endian numbers. The first bit is
    inverted, and all bits of a negative number are."""
    precision, scale = data[0], data[1]
    is_negative = data[2] < 0x80
    body = bytes(byte ^ 0xFF for byte in data[2:]) if is_negative else data[2:]
    body = bytes([body[0] ^ 0x80]) + body[1:]
    groups, rest = divmod(precision - scale, _GROUP_DIGITS)
    after, last = divmod(scale, _GROUP_DIGITS)
    texts, at = [], 0
    for digits in [rest, *[_GROUP_DIGITS] * (groups + after), last]:
        size = _GROUP_BYTES[digits]
        texts.append(
            str(int.from_bytes(body[at : at + size], "big")).zfill(digits) if digits else ""
        )
        at += size
    text = "".join(texts)
    whole = text[: precision - scale].lstrip("0") or "0"
    return ("-" if is_negative else "") + whole + (f".{text[-scale:]}" if scale else "")


def _moment(data: bytes, *, has_day: bool = True, has_time: bool = True) -> str:
    """A packed time: 24 bits of a second's fraction, 17 of a time, and the day above."""
    packed = int.from_bytes(data[:8], "little", signed=True)
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    fraction, whole = packed & 0xFFFFFF, packed >> 24
    texts = []
    if has_day:
        month, day = divmod(whole >> 17, 32)
        texts.append(f"{month // 13:04}-{month % 13:02}-{day:02}")
        whole &= 0x1FFFF
    if has_time:
        seconds = f"{whole >> 12:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{fraction:06}"
        texts.append(sign + seconds)
    return _quoted(" ".join(texts))


_OPAQUES: dict[int, Callable[[bytes], str]] = {
    _DECIMAL: _decimal,
    _TIMESTAMP: _moment,
    _DATETIME: _moment,
    _DATE: lambda data: _moment(data, has_time=False),
    _TIME: lambda data: _moment(data, has_day=False),
}
"""Types that a query writes in a way of their own."""
