"""The sources of `produce`: arguments, the lines of a file, or made-up messages.

A source is an async iterator of chunks; the messages of a chunk go out together. Lines come in
chunks as they arrive, so a pipe is read in large pieces, and typed lines are sent one by one.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from raftmq.cli.exits import Failure

CHUNK_BYTES = 256 * 1024
CHUNK_MESSAGES_MAX = 4_000

LINE_BYTES_MAX = 32 * 1024 * 1024
"""The largest batch that any node takes, whatever its settings."""

BEAT_SECONDS = 0.02
"""With a rate: the least seconds between two chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages that go out together."""

    bodies: list[bytes]
    keys: list[bytes | None] | None = None
    """One key for each body, if the lines have keys."""
    first_line: int = 0
    """The number of the first line, from 1; 0: the messages are no lines."""


async def given(bodies: Sequence[bytes]) -> AsyncIterator[Chunk]:
    """The given messages as one chunk."""
    yield Chunk(list(bodies))


async def made_up(count: int, size: int, rate: float | None) -> AsyncIterator[Chunk]:
    """`count` messages of `size` bytes that begin with their number, `rate` a second."""
    import anyio

    started, done = anyio.current_time(), 0
    filler = b"." * size
    while done < count:
        due = min(CHUNK_MESSAGES_MAX, max(1, CHUNK_BYTES // max(1, size)))
        if rate is not None:
            due = min(due, int((anyio.current_time() - started) * rate) + 1 - done)
        due = min(due, count - done)
        if due > 0:
            numbers = range(done, done + due)
            yield Chunk([(b"message %d " % n + filler)[:size] for n in numbers])
            done += due
        if rate is not None:
            next_seconds = started + done / rate - anyio.current_time()
            await anyio.sleep(max(BEAT_SECONDS, next_seconds))


async def lines(path: Path | None, separator: bytes | None) -> AsyncIterator[Chunk]:
    """One message a line of a file, or of stdin; the line's end is not sent.

    With a separator, the text before the first one in a line is the message's key.

    Raises:
        Failure: a line is too long, or has no separator; the lines before it have been yielded.
    """
    import anyio

    rest, number = b"", 1
    with _opened(path) as file:
        while True:
            # The thread is left behind on Ctrl-C, as a wait for the terminal cannot be ended. The
            # file has no buffer: closing it would wait for the buffer's lock until the read ends.
            data = await anyio.to_thread.run_sync(file.read, CHUNK_BYTES, abandon_on_cancel=True)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            for start in range(0, len(whole), CHUNK_MESSAGES_MAX):
                part = whole[start : start + CHUNK_MESSAGES_MAX]
                for chunk in _chunks(part, number, separator):
                    yield chunk
                number += len(part)
            if len(rest) > LINE_BYTES_MAX:
                fix = "--whole sends a file as it is; split larger ones"
                raise Failure(f"line {number:,} is longer than {LINE_BYTES_MAX} bytes", fix=fix)
        for chunk in _chunks([rest] if rest else [], number, separator):
            yield chunk


def _opened(path: Path | None) -> FileIO:
    """The file; None: stdin, which stays open when this is closed."""
    return open(0 if path is None else path, "rb", buffering=0, closefd=path is not None)


def _chunks(found: list[bytes], number: int, separator: bytes | None) -> Iterator[Chunk]:
    """Lines as a chunk; at a line without the separator the lines before it, then `Failure`."""
    bodies = [line.removesuffix(b"\r") for line in found]
    if separator is None:
        if bodies:
            yield Chunk(bodies, first_line=number)
        return
    parts = [body.partition(separator) for body in bodies]
    # Without its key a message could go to another queue than the key's other messages.
    good = next((n for n, (_, middle, _) in enumerate(parts) if not middle), len(parts))
    if good:
        keys: list[bytes | None] = [key for key, _, _ in parts[:good]]
        yield Chunk([value for _, _, value in parts[:good]], keys, first_line=number)
    if good < len(parts):
        shown = separator.decode("latin-1")
        text = bodies[good][:40].decode(errors="replace")
        raise Failure(
            f"line {number + good:,} has no separator {shown!r}, so no key: {text!r}",
            fix=f"write KEY{shown}BODY in each line; leave -K out for messages without keys",
        )
