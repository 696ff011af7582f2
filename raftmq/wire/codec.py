"""Typed message headers to CBOR and back."""

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def pack(message: msgspec.Struct) -> bytes:
    """The header of this message: one CBOR array, in the order of the struct's fields."""
    raise NotImplementedError


def unpack(type_: type[S], header: bytes) -> S:
    """The message that `header` holds.

    Raises:
        ProtocolError: it is not exactly one CBOR item, or does not fit the type; the text names
            the message and the field.
    """
    raise NotImplementedError
