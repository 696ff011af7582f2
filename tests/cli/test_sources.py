"""Where `produce` takes its messages from."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from raftmq.cli.exits import Failure
from raftmq.cli.messages import sources
from raftmq.cli.messages.sources import Chunk, lines, made_up


def collected(source: AsyncIterator[Chunk]) -> list[Chunk]:
    async def collect() -> list[Chunk]:
        return [chunk async for chunk in source]

    return anyio.run(collect, backend="trio")


def bodies(chunks: list[Chunk]) -> list[bytes]:
    return [body for chunk in chunks for body in chunk.bodies]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\n\na", [b"", b"", b"a"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_each_line_is_a_message(tmp_path: Path, data: bytes, found: list[bytes]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(data)
    assert bodies(collected(lines(path, None))) == found


def test_lines_are_whole_however_the_file_is_cut_into_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 7)
    monkeypatch.setattr(sources, "CHUNK_MESSAGES_MAX", 2)
    path = tmp_path / "lines"
    wanted = [b"%d" % n * (n % 9) for n in range(200)]
    path.write_bytes(b"\n".join(wanted) + b"\n")
    chunks = collected(lines(path, None))
    assert bodies(chunks) == wanted
    assert max(len(chunk.bodies) for chunk in chunks) <= 2


def test_line_brings_its_key_before_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"k1\tv1\n\tv2\nk4\tv4\tw4\n")
    (chunk,) = collected(lines(path, b"\t"))
    assert chunk.keys == [b"k1", b"", b"k4"]
    assert chunk.bodies == [b"v1", b"v2", b"v4\tw4"]


@pytest.mark.parametrize(("size", "line"), [(7, 4), (1000, 4)])
def test_line_without_the_separator_is_refused_after_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, line: int
) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", size)
    path = tmp_path / "lines"
    path.write_bytes(b"k1:v1\nk2:v2\nk3:v3\nno key\nk5:v5\n")
    found: list[Chunk] = []

    async def collect() -> None:
        async for chunk in lines(path, b":"):
            found.append(chunk)  # noqa: PERF401  # what came before the error counts

    with pytest.raises(Failure, match=f"line {line} has no separator ':'"):
        anyio.run(collect, backend="trio")
    assert bodies(found) == [b"v1", b"v2", b"v3"]
    assert found[0].first_line == 1


def test_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 1000)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 5000)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 600)
    with pytest.raises(Failure, match="line 1 is longer than 1000 bytes"):
        collected(lines(path, None))


def test_made_up_messages_have_the_size_and_their_number() -> None:
    found = bodies(collected(made_up(10_000, 20, None)))
    assert len(found) == 10_000
    assert {len(body) for body in found} == {20}
    assert found[0] == b"message 0 .........."
    assert found[9_999].startswith(b"message 9999 ")


def test_large_made_up_messages_come_in_small_chunks() -> None:
    chunks = collected(made_up(5, 1_000_000, None))
    assert [len(chunk.bodies) for chunk in chunks] == [1] * 5


def test_rate_is_kept() -> None:
    started = time.monotonic()
    assert len(bodies(collected(made_up(50, 10, 250.0)))) == 50
    # The first is due at once, the last after 49 intervals of 4 ms.
    assert 0.19 < time.monotonic() - started < 2.0
