"""The floor's frame walker finds the same ends however the stream is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bench.floor_server import HEADER, FrameWalker

BODIES = st.lists(st.binary(max_size=40), max_size=12)
CUTS = st.lists(st.integers(min_value=0, max_value=700), max_size=30)


@given(BODIES, CUTS)
def test_frame_ends_do_not_depend_on_how_the_stream_is_cut(
    bodies: list[bytes], cuts: list[int]
) -> None:
    frames = [HEADER.pack(len(body), i) + body for i, body in enumerate(bodies)]
    stream = b"".join(frames)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    walker = FrameWalker()
    found = [
        end for start, stop in itertools.pairwise(edges) for end in walker.feed(stream[start:stop])
    ]
    expected = [sum(map(len, frames[: i + 1])) for i in range(len(frames))]
    assert found == expected


def test_frame_cut_byte_by_byte_ends_once() -> None:
    frame = HEADER.pack(3, 9) + b"abc"
    walker = FrameWalker()
    ends = [walker.feed(frame[i : i + 1]) for i in range(len(frame))]
    assert ends == [[]] * (len(frame) - 1) + [[len(frame)]]


def test_empty_body_is_a_frame() -> None:
    walker = FrameWalker()
    assert walker.feed(HEADER.pack(0, 1) * 2) == [HEADER.size, 2 * HEADER.size]
