"""Frames: cut anywhere they come out whole, and damaged ones are refused."""

import random
import struct
import tracemalloc
from itertools import pairwise

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import ProtocolError
from raftmq.wire.frame import FRAME_BYTES_MAX, Frame, FrameParser, encode_frame

MIB = 1024 * 1024
FRAMES = st.builds(
    Frame,
    kind=st.integers(0, 255),
    correlation=st.integers(0, 2**64 - 1),
    header=st.binary(max_size=60),
    body=st.binary(max_size=60),
)


def joined(frame: Frame) -> bytes:
    """The frame's bytes."""
    return b"".join(encode_frame(frame.kind, frame.correlation, frame.header, [frame.body]))


def parse(parser: FrameParser, pieces: list[bytes]) -> list[Frame]:
    """Feed the pieces one by one and take out all frames."""
    frames: list[Frame] = []
    for piece in pieces:
        parser.feed(piece)
        frames += parser.frames()
    return frames


def parse_all(data: bytes) -> list[Frame]:
    """The frames of a connection that sent this and closed."""
    parser = FrameParser(1024)
    frames = parse(parser, [data])
    parser.eof()
    return frames


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data cut at these places."""
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def test_layout_is_that_of_the_table() -> None:
    (fixed_and_header, body) = encode_frame(2, 7, b"head", [b"body"])
    assert body == b"body"
    length, crc, version, kind, flags, header_length, correlation = struct.unpack_from(
        "<IIBBHIQ", fixed_and_header
    )
    assert length == 24 - 4 + 4 + 4
    assert (version, kind, flags, header_length, correlation) == (1, 2, 0, 4, 7)
    checked = fixed_and_header[:4] + fixed_and_header[8:]
    assert crc == google_crc32c.value(checked), "of all but itself and the body"
    assert fixed_and_header[24:] == b"head"


@pytest.mark.parametrize("bit", range(10))
def test_wrong_length_is_found_before_its_body_is_waited_for(bit: int) -> None:
    stream = bytearray(joined(Frame(2, 7, b"head", b"body")))
    length = int.from_bytes(stream[:4], "little") ^ 1 << bit
    stream[:4] = length.to_bytes(4, "little")
    with pytest.raises(ProtocolError):
        parse(FrameParser(4096), [bytes(stream)])


def test_parts_of_the_body_are_not_copied() -> None:
    parts = [bytes(100), bytes(200)]
    assert encode_frame(1, 1, b"", parts)[1:] == parts
    assert all(a is b for a, b in zip(encode_frame(1, 1, b"", parts)[1:], parts, strict=True))


@given(st.lists(FRAMES, max_size=6), st.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(map(joined, frames))
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    parser = FrameParser(1024)
    assert parse(parser, cut(stream, places)) == frames
    assert parser.buffered_bytes == 0
    parser.eof()


def test_frames_split_at_every_boundary() -> None:
    frames = [Frame(1, 2, b"", b""), Frame(3, 4, b"header", b"body"), Frame(5, 6, b"", b"b")]
    stream = b"".join(map(joined, frames))
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            assert parse(FrameParser(1024), cut(stream, [first, second])) == frames


def test_frames_fed_byte_by_byte_and_all_at_once_and_before_any_is_taken() -> None:
    frames = [Frame(i, i, b"h" * i, b"b" * (40 * i)) for i in range(20)]
    stream = b"".join(map(joined, frames))
    pieces = [stream[i : i + 1] for i in range(len(stream))]
    assert parse(FrameParser(1024), pieces) == frames
    assert parse(FrameParser(1024), [stream]) == frames
    parser = FrameParser(1024)
    for piece in pieces:
        parser.feed(piece)
    assert list(parser.frames()) == frames


def test_small_frames_behind_a_large_one_are_found_when_fed_together() -> None:
    frames = [Frame(1, 1, b"", bytes(20_000)), Frame(2, 2, b"h", b""), Frame(3, 3, b"", bytes(9))]
    stream = b"".join(map(joined, frames))
    parser = FrameParser(MIB)
    parser.feed(stream[:100])
    assert list(parser.frames()) == []
    for piece in cut(stream[100:], [5_000, 10_000, len(stream) - 130, len(stream) - 110]):
        parser.feed(piece)
    assert list(parser.frames()) == frames


def test_large_frame_among_small_ones_arrives_in_reads() -> None:
    body = random.Random(1).randbytes(3 * MIB)
    frames = [Frame(1, 1, b"a", b""), Frame(2, 2, b"b", body), Frame(3, 3, b"c", b"d")]
    stream = b"".join(map(joined, frames))
    pieces = [stream[i : i + 65_536] for i in range(0, len(stream), 65_536)]
    assert parse(FrameParser(4 * MIB), pieces) == frames


def test_waiting_for_a_large_frame_takes_memory_only_for_what_came() -> None:
    start = joined(Frame(1, 1, b"", bytes(32 * MIB)))[:100]
    tracemalloc.start()
    parser = FrameParser(40 * MIB)
    assert parse(parser, [start]) == []
    # Byte by byte: an object for each would be 50 times as much.
    assert parse(parser, [b"x"] * 100_000) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert parser.buffered_bytes == 100 - 24 + 100_000
    assert peak < MIB


def parse_with_room(
    parser: FrameParser, stream: bytes, random_: random.Random, *, ahead: int
) -> list[Frame]:
    """As `parse`, with reads of any length, each into the parser's room if it has one. Some reads
    into the room are given up before any byte came, and some bytes are fed in spite of the room."""
    frames: list[Frame] = []
    at = 0
    while at < len(stream):
        data = stream[at : at + random_.choice([1, 100, 5_000, 70_000, 400_000])]
        room = parser.room(ahead)
        if room is None or random_.random() < 0.1:
            parser.feed(data)
        else:
            assert len(room) > 0
            data = data[: len(room)]
            room[: len(data)] = data
            if random_.random() < 0.1:
                continue
            parser.filled(len(data))
        at += len(data)
        frames += parser.frames()
    return frames


@pytest.mark.parametrize("ahead", [65_536, 100_000, MIB])
def test_frames_come_out_as_they_went_in_whether_fed_or_received_into_the_room(ahead: int) -> None:
    random_ = random.Random(ahead)
    sizes = (0, 9, 4_000, 65_535, 65_536, 65_537, 131_072, 300_000, MIB)
    for _ in range(40):
        bodies = [random_.randbytes(random_.choice(sizes)) for _ in range(random_.randint(1, 6))]
        frames = [Frame(i, i, b"h" * i, body) for i, body in enumerate(bodies)]
        parser = FrameParser(2 * MIB)
        stream = b"".join(map(joined, frames))
        assert parse_with_room(parser, stream, random_, ahead=ahead) == frames
        assert parser.buffered_bytes == 0
        parser.eof()


def test_only_a_body_with_much_missing_has_room() -> None:
    stream = joined(Frame(1, 1, b"head", bytes(100_000)))
    parser = FrameParser(MIB)
    for piece in (stream[:20], stream[20:27]):
        assert parser.room(MIB) is None, "no frame, or no whole header"
        assert parse(parser, [piece]) == []
    assert parser.room(MIB) is None
    assert parse(parser, [stream[27:128]]) == []
    room = parser.room(MIB)
    assert room is not None
    assert len(room) == 99_900
    room[:50_000] = bytes(50_000)
    parser.filled(50_000)
    assert list(parser.frames()) == []
    assert parser.room(MIB) is None, "the rest comes with the next frame"
    assert parser.buffered_bytes == 50_100
    with pytest.raises(ProtocolError, match="closed inside a frame, 49900 bytes or more"):
        parser.eof()


def test_room_takes_no_more_memory_ahead_than_is_allowed_or_has_come() -> None:
    start = joined(Frame(1, 1, b"", bytes(32 * MIB)))[:100]
    tracemalloc.start()
    parser = FrameParser(40 * MIB)
    assert parse(parser, [start]) == []
    room = parser.room(MIB)
    assert room is not None
    assert len(room) == MIB
    assert tracemalloc.get_traced_memory()[1] < 1.1 * MIB
    came = 76
    while came < 8 * MIB:
        parser.filled(len(room))
        came += len(room)
        assert list(parser.frames()) == []
        room = parser.room(MIB)
        assert room is not None
        assert len(room) <= max(MIB, came)
        assert tracemalloc.get_traced_memory()[0] < 2.1 * came + MIB
    tracemalloc.stop()


def test_body_received_into_its_room_is_not_copied() -> None:
    stream = memoryview(joined(Frame(1, 1, b"", random.Random(2).randbytes(8 * MIB))))
    parser = FrameParser(9 * MIB)
    assert parse(parser, [bytes(stream[:1000])]) == []
    tracemalloc.start()
    room = parser.room(8 * MIB)
    assert room is not None
    room[:] = stream[1000:]
    parser.filled(len(room))
    (frame,) = parser.frames()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert type(frame.body) is bytes
    assert frame.body == stream[24:]
    assert peak < 8.1 * MIB


def with_field(offset: int, form: str, value: int) -> bytes:
    """A frame with one field overwritten."""
    data = bytearray(joined(Frame(1, 2, b"header", b"body")))
    struct.pack_into(form, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_field(0, "<I", 1021), "frame of 1025 bytes; the limit is 1024"),
        (with_field(0, "<I", 2**32 - 1), "frame of 4294967299 bytes"),
        (with_field(0, "<I", 0), "header of 6 bytes in a frame of 4"),
        (with_field(0, "<I", 25), "header of 6 bytes in a frame of 29"),
        (with_field(4, "<I", 1), "CRC-32C"),
        (with_field(8, "<B", 2), "frame of version 2; this software speaks version 1"),
        (with_field(9, "<B", 9), "CRC-32C"),
        (with_field(10, "<H", 1), "flags 0x1"),
        (with_field(12, "<I", 11), "header of 11 bytes in a frame of 34"),
        (with_field(12, "<I", 5), "CRC-32C"),
        (with_field(12, "<I", 2**32 - 1), "frame header of 4294967295 bytes; the limit is 1000"),
        (with_field(16, "<Q", 9), "CRC-32C"),
        (with_field(24, "<B", 9), "CRC-32C"),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "version 84"),
    ],
)
def test_bad_frame_is_refused_as_soon_as_its_header_is_there(data: bytes, message: str) -> None:
    parser = FrameParser(1024)
    good = Frame(1, 1, b"good", b"")
    # The bad one lacks its last byte: its body need not have come.
    parser.feed(joined(good) + data[:-1])
    frames = parser.frames()
    assert next(frames) == good, "what stands before it is given"
    with pytest.raises(ProtocolError, match=message):
        next(frames)
    parser.feed(joined(good))
    with pytest.raises(ProtocolError, match=message):
        list(parser.frames())
    with pytest.raises(ProtocolError, match=message):
        parser.eof()


def test_header_limit_is_held() -> None:
    data = joined(Frame(1, 1, bytes(101), b""))
    assert parse(FrameParser(1024, header_bytes_max=101), [data])
    with pytest.raises(ProtocolError, match="header of 101 bytes; the limit is 100"):
        parse(FrameParser(1024, header_bytes_max=100), [data])


def test_longest_frame_passes_and_one_more_byte_does_not() -> None:
    data = joined(Frame(1, 1, b"", bytes(1000)))
    assert len(data) == 1024
    assert parse(FrameParser(1024), [data])
    with pytest.raises(ProtocolError, match="1024 bytes; the limit is 1023"):
        parse(FrameParser(1023), [data])


def test_eof_inside_a_frame_is_an_error() -> None:
    data = joined(Frame(1, 1, b"header", b"body"))
    for size in range(1, len(data)):
        parser = FrameParser(1024)
        assert parse(parser, [data[:size]]) == []
        with pytest.raises(ProtocolError, match="closed inside a frame"):
            parser.eof()
    parser = FrameParser(1024)
    parser.eof()
    parse(parser, [data])
    parser.eof()


def test_any_flipped_bit_before_the_body_is_noticed() -> None:
    data = joined(Frame(1, 2, b"header", b""))
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(ProtocolError):
                parse_all(bytes(damaged))


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_random_bytes_give_only_protocol_errors(data: bytes, places: list[int]) -> None:
    parser = FrameParser(1024)
    try:
        parse(parser, cut(data, [min(place, len(data)) for place in places]))
        parser.eof()
    except ProtocolError:
        return
    assert not data


def test_mutated_streams_give_whole_frames_or_protocol_errors() -> None:
    random_ = random.Random(11)
    frames = [Frame(i, i, b"h" * i, b"b" * i) for i in range(8)]
    stream = b"".join(map(joined, frames))
    refused = 0
    for _ in range(3_000):
        data = bytearray(stream)
        at = random_.randrange(len(data))
        match random_.randrange(3):
            case 0:
                data[at] ^= 1 << random_.randrange(8)
            case 1:
                del data[at : at + random_.randint(1, 30)]
            case _:
                data[at:at] = random_.randbytes(random_.randint(1, 30))
        parser = FrameParser(1024)
        got: list[Frame] = []
        places = [random_.randrange(len(data)) for _ in range(4)]
        try:
            for piece in cut(bytes(data), places):
                parser.feed(piece)
                for frame in parser.frames():
                    got.append(frame)  # noqa: PERF402 - those before the error count
            parser.eof()
        except ProtocolError:
            refused += 1
        # A damaged body passes: its own checksums must find it. Kinds and headers are right.
        pairs = {(f.kind, f.correlation, f.header) for f in frames}
        assert all((f.kind, f.correlation, f.header) in pairs for f in got)
    assert refused > 2_000


def test_encoding_an_impossible_frame_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        encode_frame(1, 1, bytes(4 * MIB + 1))
    with pytest.raises(AssertionError):
        FrameParser(FRAME_BYTES_MAX + 1)
