"""Typed message headers to CBOR and back: a struct is a positional array.

`pack` writes the fields in order. `unpack` is how messages evolve: fields that this software does
not know, at the end, are ignored; fields that the sender did not know, at the end, take their
defaults. So a field may be added at the end, with a default, and nothing else may change.

Invariants:
- A header is exactly one CBOR item: bytes after it are an error, not ignored (cbor2 ignores them).
- Only plain values are written. cbor2 writes a `memoryview` as an array of integers, msgspec as
  Base64 text; here it is a `TypeError` in the sender.

Sources: RFC 8949; msgspec's array-like structs.
"""

import array
import re
import threading
from io import BytesIO
from typing import NoReturn, TypeVar

import msgspec
from cbor2 import CBOREncoder, CBORError

from raftmq.batch.cbor import strict_decoder
from raftmq.errors import ProtocolError

S = TypeVar("S", bound=msgspec.Struct)

_UNTOUCHED = (bytes, bytearray, memoryview)
_FIELD = re.compile(r"`\$\[(\d+)\]")


def _refuse(encoder: CBOREncoder, value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} in a message: make it bytes or a list first")


class _Codecs(threading.local):
    """One encoder and decoder a thread: making them costs more than using them."""

    def __init__(self) -> None:
        refused: tuple[type, ...] = (memoryview, array.array, range)
        self.encoder = CBOREncoder(BytesIO(), encoders=dict.fromkeys(refused, _refuse))
        self.decoder = strict_decoder(BytesIO())


_CODECS = _Codecs()


class Misfit(ProtocolError):
    """A message is plain CBOR, and a field does not have its type or range."""


def pack(message: msgspec.Struct) -> bytes:
    """The header of this message: one CBOR array, in the order of the struct's fields.

    Raises:
        TypeError: a field holds a value without a plain form in CBOR, a `memoryview` for instance.
    """
    plain = msgspec.to_builtins(message, builtin_types=_UNTOUCHED)
    return _CODECS.encoder.encode_to_bytes(plain)


def unpack(type_: type[S], header: bytes) -> S:
    """The message that `header` holds. Numbers and text are not converted into each other.

    Raises:
        Misfit: it does not fit the type; the text names the message and the field.
        ProtocolError: it is not exactly one CBOR item.
    """
    source = BytesIO(header)
    decoder = _CODECS.decoder
    decoder.fp = source
    try:
        plain = decoder.decode()
    except CBORError as error:
        raise ProtocolError(f"{type_.__name__} is not plain CBOR: {error}") from None
    if source.tell() != len(header):
        extra = len(header) - source.tell()
        raise ProtocolError(f"{type_.__name__} is followed by {extra} bytes")
    try:
        return msgspec.convert(plain, type_, strict=True, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        field = _field_of(type_, plain, str(error))
        raise Misfit(f"{type_.__name__}{field}: {error}") from None


def _field_of(type_: type[msgspec.Struct], plain: object, message: str) -> str:
    """`.name` of the field that a msgspec message is about; empty: not known."""
    names = type_.__struct_fields__
    if type_.__struct_config__.tag is not None:
        names = ("tag", *names)
    place = _FIELD.search(message)
    if place is not None:
        index = int(place[1])
    elif isinstance(plain, list):
        # Too short: the first field that is missing.
        index = len(plain)
    else:
        return ""
    return f".{names[index]}" if index < len(names) else ""
