"""CBOR from untrusted peers: a decoder with all features off that a peer could use against us.

cbor2 knows some twenty tags out of the box: regular expressions that compile, MIME, IP networks,
big numbers, shared references. None of them has a place in our messages, so each one is refused
before its value is built; so are indefinite lengths, duplicate keys, keys that are not text, and
depth.

Sources: RFC 8949 §10 (security considerations).
"""

from collections.abc import Callable
from typing import IO, Final, NoReturn

from cbor2 import CBORDecoder

DEPTH_MAX: Final = 32
"""Nested arrays and maps; our deepest message has six levels."""

_TAGS_KNOWN_TO_CBOR2 = (
    *range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54,
    100, 256, 258, 260, 261, 1004, 43000, 55799,
)  # fmt: skip


def _refuse(value: object, immutable: bool) -> NoReturn:
    raise ValueError("a tag, where none is allowed")


_REFUSALS: Final[dict[int, Callable[[object, bool], NoReturn]]] = dict.fromkeys(
    _TAGS_KNOWN_TO_CBOR2, _refuse
)


def strict_decoder(source: IO[bytes]) -> CBORDecoder:
    """A decoder that reads plain CBOR items from `source` and raises on all else.

    It raises only `cbor2.CBORError`, which is not a `ValueError`.
    """
    return CBORDecoder(
        source,
        tag_hook=_refuse,
        semantic_decoders=_REFUSALS,
        max_depth=DEPTH_MAX,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )
