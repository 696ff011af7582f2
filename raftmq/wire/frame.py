"""Frames: how messages are cut into bytes on a connection, in both directions.

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 4 | length | bytes of the frame after this field |
| 4 | 4 | crc | CRC-32C of the bytes 0 to 3 and 8 to 23 + header_length |
| 8 | 1 | version | 1 |
| 9 | 1 | kind | see `messages.FrameKind` |
| 10 | 2 | flags | zero |
| 12 | 4 | header_length | bytes of the header, at most `length` - 20 |
| 16 | 8 | correlation | ties an answer to its request |
| 24 | header_length | header | one CBOR item (`codec`), or nothing |
| | the rest | body | raw bytes: batches, records, a piece of a snapshot |

All integers are little-endian. `FrameParser` reads a connection without doing I/O: feed it the
bytes that arrived, take the frames out. A reader that can receive into given memory asks for the
room of a large body (`FrameParser.room`), which spares a copy.

>>> parser = FrameParser(bytes_max=1024)
>>> for part in encode_frame(2, 7, b"header", [b"bo", b"dy"]):
...     parser.feed(part)
>>> list(parser.frames())
[Frame(kind=2, correlation=7, header=b'header', body=b'body')]

Invariants:
- A frame's fixed part and header are checked before its body is waited for, and no memory is taken
  ahead of the bytes that arrived: a hostile length costs its sender more than its receiver. Only a
  reader that asks for room allows some ahead; clients do, nodes do not.
- The work is linear in the bytes fed, however they are cut.
- After an error nothing more is parsed: where the next frame of such a stream starts is unknown.

Left out: a checksum of the body. Batches and records carry their own, from end to end; TCP's is
enough for the rest.

Sources: the events of h11 (push bytes, pull events) without its state machine.
"""

import struct
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Final, NamedTuple, TypeVar

import google_crc32c

from raftmq.errors import ProtocolError

VERSION: Final = 1
FIXED_BYTES: Final = 24
"""A frame's bytes before its header."""
HEADER_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest header. A routing table of 100,000 queues fits; the objects that a hostile header
decodes to take up to 90 times its length, so a broker allows its clients less."""
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024 + HEADER_BYTES_MAX + FIXED_BYTES
"""The longest frame whatever the settings: it holds the largest record."""

_FIXED = struct.Struct("<IIBBHIQ")
_AFTER_CRC = struct.Struct("<BBHIQ")
_LENGTH = struct.Struct("<I")
assert _FIXED.size == FIXED_BYTES

_SMALL_BYTES = 4096
"""Pieces below this size are gathered in one buffer: a peer that sends byte by byte must not cost
an object for each byte."""
_ROOM_BYTES_MIN = 64 * 1024
"""Fewer missing bytes of a body are fed: their read brings the next frame's first bytes as well."""


FramePart = bytes | memoryview
"""Bytes of a frame to send. A view keeps the whole record behind it in memory until then."""
_Part = TypeVar("_Part", bound=FramePart)


class Frame(NamedTuple):
    """One frame, whole and checked (its body is not: it carries its own checksums)."""

    kind: int
    """The `messages.FrameKind`, with `REPLY` set in answers."""
    correlation: int
    """Ties an answer to its request."""
    header: bytes
    """One CBOR item for `codec.unpack`, or empty."""
    body: bytes
    """Bulk bytes, empty in most frames."""


def encode_frame(
    kind: int, correlation: int, header: bytes, body_parts: Sequence[_Part] = ()
) -> list[bytes | _Part]:
    """The frame as parts to write one after the other; the parts of the body are not copied."""
    header_length = len(header)
    length = FIXED_BYTES - 4 + header_length + sum(map(len, body_parts))
    assert header_length <= HEADER_BYTES_MAX, f"header of {header_length} bytes"
    assert length <= FRAME_BYTES_MAX, f"frame of {length} bytes"
    size = _LENGTH.pack(length)
    checked = _AFTER_CRC.pack(VERSION, kind, 0, header_length, correlation) + header
    crc = google_crc32c.extend(google_crc32c.value(size), checked)
    return [size + _LENGTH.pack(crc) + checked, *body_parts]


class _Place:
    """The memory of a body, filled from its beginning."""

    __slots__ = ("_file", "_room", "capacity", "size")

    def __init__(self) -> None:
        # The one mutable memory that becomes `bytes` without a copy.
        self._file = BytesIO()
        self._room = memoryview(b"")
        self.capacity = 0
        """Bytes of memory."""
        self.size = 0
        """Bytes that are filled."""

    def grow(self, capacity: int) -> None:
        """Take `capacity` bytes of memory in all."""
        self._room.release()
        file = BytesIO(bytes(capacity))
        file.write(self._file.getbuffer()[: self.size])
        self._file, self.capacity = file, capacity

    def room(self) -> memoryview:
        """The memory that is not filled; no longer valid after another call."""
        self._room.release()
        self._room = self._file.getbuffer()[self.size :]
        return self._room

    def write(self, data: bytes | bytearray) -> None:
        """Fill some more, with `data`."""
        self._room.release()
        self._file.seek(self.size)
        self.size += self._file.write(data)

    def value(self) -> bytes:
        """The whole body, once it is filled."""
        self._room.release()
        return self._file.getvalue()


class FrameParser:
    """Turns the bytes of one connection into frames; push bytes in, take frames out.

    Args:
        bytes_max: the longest frame accepted, all of its bytes counted.
        header_bytes_max: the longest header accepted.
    """

    __slots__ = (
        "_bytes_max",
        "_chunks",
        "_error",
        "_head",
        "_header_max",
        "_needed",
        "_place",
        "_size",
    )

    def __init__(self, bytes_max: int, *, header_bytes_max: int = HEADER_BYTES_MAX) -> None:
        self.allow(bytes_max, header_bytes_max=header_bytes_max)
        self._chunks: list[bytes | bytearray] = []
        # Holds the body's bytes before those in the chunks, once room was asked for.
        self._place: _Place | None = None
        self._size = 0
        # The place and the chunks must hold this number of bytes before the next step.
        self._needed = FIXED_BYTES
        # Kind, correlation and header of the frame whose body place and chunks belong to.
        self._head: tuple[int, int, bytes] | None = None
        self._error: str | None = None

    def allow(self, bytes_max: int, *, header_bytes_max: int = HEADER_BYTES_MAX) -> None:
        """Set other limits from the next frame on; the arguments are those of the parser."""
        assert FIXED_BYTES <= bytes_max <= FRAME_BYTES_MAX, bytes_max
        self._bytes_max = bytes_max
        self._header_max = min(header_bytes_max, bytes_max - FIXED_BYTES)

    def feed(self, data: bytes) -> None:
        """Take in what was read. Cheap: the work is done by `frames`."""
        self._size += len(data)
        if self._chunks and len(data) < _SMALL_BYTES:
            last = self._chunks[-1]
            if isinstance(last, bytearray):
                last += data
            else:
                self._chunks.append(bytearray(data))
        else:
            self._chunks.append(data)

    def room(self, ahead: int) -> memoryview | None:
        """Where the next bytes of a large body belong; None: feed them.

        Tell by `filled` how many were received into the room, or feed them after all.

        Args:
            ahead: bytes of memory that may be taken for bytes that have not come; as many as have
                come may be in any case.
        """
        missing = self._needed - self._size
        if self._head is None or missing < _ROOM_BYTES_MIN:
            return None
        place = self._place = self._place or _Place()
        if place.capacity - self._size < _ROOM_BYTES_MIN:
            place.grow(self._size + min(missing, max(ahead, self._size)))
        place.write(b"".join(self._chunks))
        self._chunks = []
        return place.room()

    def filled(self, count: int) -> None:
        """Take in `count` bytes that were received into the room."""
        assert self._place is not None
        self._place.size += count
        self._size += count

    def frames(self) -> Iterator[Frame]:
        """The frames completed by what was taken in. Exhaust it before more is taken in.

        Raises:
            ProtocolError: after the good frames before it, at the first bad one; and ever after.
        """
        if self._error is not None:
            raise ProtocolError(self._error)
        while self._size >= self._needed:
            if self._head is not None:
                yield self._take_body(self._head)
            else:
                yield from self._take_small_frames()

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a frame that is not whole yet."""
        return self._size

    def drop(self) -> None:
        """Forget the bytes held; nothing is fed afterwards."""
        self._chunks, self._place, self._size, self._head = [], None, 0, None

    def eof(self) -> None:
        """The other side has closed.

        Raises:
            ProtocolError: in the middle of a frame.
        """
        if self._error is not None:
            raise ProtocolError(self._error)
        if self._head is not None or self._size:
            missing = self._needed - self._size
            self._error = (
                f"the connection closed inside a frame, {missing} bytes or more before its end"
            )
            raise ProtocolError(self._error)

    def _take_small_frames(self) -> Iterator[Frame]:
        """The whole frames in the chunks; the bytes after them are kept for later."""
        buffer = b"".join(self._chunks)
        end, position, needed = len(buffer), 0, FIXED_BYTES
        while position + FIXED_BYTES <= end:
            length, crc, version, kind, flags, header_length, correlation = _FIXED.unpack_from(
                buffer, position
            )
            header_start = position + FIXED_BYTES
            header_end = header_start + header_length
            frame_end = position + 4 + length
            # The limits come first: a hostile length must not make us wait for its bytes.
            if (
                version != VERSION
                or flags
                or frame_end - position > self._bytes_max
                or header_length > self._header_max
                or header_end > frame_end
            ):
                self._refuse(version, flags, length, header_length)
            if header_end > end:
                needed = header_end - position
                break
            # The CRC covers the length, too: a wrong length would swallow the frames that follow.
            size_crc = google_crc32c.value(buffer[position : position + 4])
            if google_crc32c.extend(size_crc, buffer[position + 8 : header_end]) != crc:
                self._fail("frame fails its CRC-32C")
            header = buffer[header_start:header_end]
            if frame_end > end:
                self._head = (kind, correlation, header)
                position, needed = header_end, frame_end - header_end
                break
            yield Frame(kind, correlation, header, buffer[header_end:frame_end])
            position = frame_end
        self._keep(buffer[position:], needed)

    def _take_body(self, head: tuple[int, int, bytes]) -> Frame:
        """The frame whose body is now complete; what was fed of a large body is copied once."""
        surplus = self._size - self._needed
        if not self._chunks or surplus > len(self._chunks[-1]):
            self._chunks = [b"".join(self._chunks)]
        last = self._chunks.pop()
        cut = len(last) - surplus
        self._chunks.append(last[:cut])
        body = b"".join(self._chunks)
        if self._place is not None:
            self._place.write(body)
            body, self._place = self._place.value(), None
        self._head = None
        self._keep(bytes(last[cut:]), FIXED_BYTES)
        return Frame(*head, body)

    def _keep(self, rest: bytes, needed: int) -> None:
        self._chunks = [rest] if rest else []
        self._size = len(rest)
        self._needed = needed

    def _refuse(self, version: int, flags: int, length: int, header_length: int) -> None:
        if version != VERSION:
            self._fail(f"frame of version {version}; this software speaks version {VERSION}")
        if flags:
            self._fail(f"frame with flags {flags:#x}, which must be zero in version {VERSION}")
        if length + 4 > self._bytes_max:
            self._fail(f"frame of {length + 4} bytes; the limit is {self._bytes_max}")
        if header_length > self._header_max:
            self._fail(f"frame header of {header_length} bytes; the limit is {self._header_max}")
        self._fail(f"frame header of {header_length} bytes in a frame of {length + 4}")

    def _fail(self, message: str) -> None:
        self._error = message
        self._keep(b"", FIXED_BYTES)
        raise ProtocolError(message)
