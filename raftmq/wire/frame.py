"""Frames: how messages are cut into bytes on a connection."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Frame(NamedTuple):
    """One frame, whole and checked (its body is not: it carries its own checksums)."""

    kind: int
    """What it is: `messages.FrameKind`, with `REPLY` set in answers."""
    correlation: int
    """Ties an answer to its request."""
    header: bytes
    """One CBOR item for `codec.unpack`, or empty."""
    body: bytes
    """Bulk bytes, empty in most frames."""


def encode_frame(
    kind: int, correlation: int, header: bytes, body_parts: Sequence[bytes] = ()
) -> list[bytes]:
    """The frame as parts to write one after the other; the parts of the body are not copied."""
    raise NotImplementedError


class FrameParser:
    """Turns the bytes of one connection into frames; push bytes in, take frames out."""

    def __init__(self, bytes_max: int) -> None:
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Take in what was read. Cheap: the work is done by `frames`."""
        raise NotImplementedError

    def frames(self) -> Iterator[Frame]:
        """The frames completed by what was fed. Exhaust it before the next `feed`.

        Raises:
            ProtocolError: after the good frames before it, at the first bad one; and ever after.
        """
        raise NotImplementedError

    def eof(self) -> None:
        """The other side has closed.

        Raises:
            ProtocolError: in the middle of a frame.
        """
        raise NotImplementedError
