"""`raftmq produce`: send messages."""

import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure, explained
from raftmq.cli.names import TOPIC
from raftmq.cli.options import argument, option, with_options
from raftmq.cli.output import Meter, note, output_option, print_line
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import DURATION, PROPERTY, SIZE
from raftmq.errors import RaftmqError, Reason, Rejected, Unavailable
from raftmq.words import counted

from .sources import Chunk, given, lines, made_up

if TYPE_CHECKING:
    from anyio import CancelScope

    from raftmq.cli.values import Scalar
    from raftmq.client import Client, PendingMany, Producer, SentMany

ANSWER_SECONDS_MAX = 2.0
"""The longest wait after Ctrl-C for answers to messages under way."""

UNDER_WAY_MAX = 32
"""Most chunks that wait for their receipts at a time."""

RECEIPTS_SHOWN_MAX = 100
"""The most arguments for which each receipt is printed; more messages are only counted."""


@dataclass(frozen=True, slots=True)
class _Options:
    topic: str = argument(type=TOPIC)
    messages: tuple[str, ...] = argument(nargs=-1)
    file: Path | None = option(
        "--file",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
        help="Send each line of this file; - is stdin.",
    )
    whole: bool = option("--whole", is_flag=True, help="With --file: send the file as one message.")
    key: str | None = option("-k", "--key", help="Messages of one key go to one queue, in order.")
    key_separator: str | None = option(
        "-K", "--key-separator", help=r"Each line is KEY<separator>BODY, as -K '\t'."
    )
    tag: str | None = option("--tag", help="The tag, a label for filters.")
    props: "tuple[tuple[str, Scalar], ...]" = option(
        "-p",
        "--prop",
        type=PROPERTY,
        multiple=True,
        help='A property; numbers, true and false are typed, "7" is text (repeat).',
    )
    queue: int | None = option("-q", "--queue", type=click.IntRange(0), help="Send to this queue.")
    delay: float | None = option(
        "--delay", type=DURATION, help="Deliver the messages after this time, as 10s or 2h."
    )
    count: int | None = option(
        "--count", type=click.IntRange(1), help="Send this many simulated messages."
    )
    rate: float | None = option(
        "--rate", type=click.FloatRange(0, min_open=True), help="With --count: messages per second."
    )
    size: int = option(
        "--size", type=SIZE, default="100", help="With --count: bytes of a message.  [default: 100]"
    )

    @property
    def total(self) -> int | None:
        """The number of messages; None: unknown before all are read."""
        return self.count or len(self.messages) or None


@dataclass(slots=True)
class _Sending:
    options: _Options
    source: AsyncIterator[Chunk]
    show: "Callable[[SentMany], None]"
    done: int = 0
    unstored: int = 0
    in_doubt: int = 0
    error: RaftmqError | None = None
    is_interrupted: bool = False
    started: float = 0.0
    reading: "CancelScope | None" = None


@click.command()
@with_options(_Options)
@output_option()
@with_session
def produce(session: Session, options: _Options, output: str) -> int:
    """Send messages: MESSAGES, or the lines of --file or stdin, or --count simulated ones.

    A message counts as sent when it is stored on the disks of a majority.

    \b
    raftmq produce orders hello world -k order-1 --tag paid -p buyerId=7
    seq 1000 | raftmq produce orders
    raftmq produce orders --count 100000 --size 1k --rate 5000
    raftmq produce orders "still there?" --delay 2h
    """
    _check(options)
    sending = _Sending(options, _source(options), _shower(output, options.messages))
    try:
        session.run(lambda mq: _send(mq, sending), backend="trio")
    except KeyboardInterrupt:
        _summarize(sending)
        return ExitCode.INTERRUPTED
    except Failure:
        if sending.done or sending.unstored or sending.in_doubt:
            _summarize(sending)
        raise
    _summarize(sending)
    if sending.error is not None:
        raise _failure(sending, sending.error, session.url)
    return ExitCode.INTERRUPTED if sending.is_interrupted else ExitCode.OK


async def _send(mq: "Client", sending: _Sending) -> None:
    import anyio

    under_way: deque[tuple[int, PendingMany]] = deque()
    sending.started = time.monotonic()
    total = sending.options.total
    is_many = total is None or total > RECEIPTS_SHOWN_MAX
    is_typed = total is None and sys.stdin.isatty()
    with Meter("sending", total=total, is_shown=is_many and not is_typed) as meter:

        async def settle() -> None:
            count, pending = under_way[0]
            sent = await pending.wait(check=False)
            under_way.popleft()
            sending.show(sent)
            _count(sending, sent)
            meter.advance(count)

        async with mq.producer(sending.options.topic) as producer, _until_interrupted(sending):
            try:
                with anyio.CancelScope() as sending.reading:
                    await _send_all(producer, sending, under_way, settle)
                # Messages under way are mostly answered within milliseconds: after Ctrl-C, too,
                # wait for them, so that fewer are in doubt.
                with anyio.move_on_after(ANSWER_SECONDS_MAX if sending.is_interrupted else None):
                    while under_way:
                        await settle()
                if under_way:
                    # Leaving the producer normally would wait until the messages' deadlines.
                    raise KeyboardInterrupt
            finally:
                sending.in_doubt += sum(count for count, _ in under_way)


async def _send_all(
    producer: "Producer",
    sending: _Sending,
    under_way: "deque[tuple[int, PendingMany]]",
    settle: "Callable[[], Awaitable[None]]",
) -> None:
    try:
        async for chunk in sending.source:
            while (pending := _take(producer, sending, chunk)) is None:
                if not under_way:
                    raise Unavailable(
                        f"the buffer has no room for {counted(len(chunk.bodies), 'message')}"
                    )
                await settle()
            under_way.append((len(chunk.bodies), pending))
            while under_way and (under_way[0][1].is_done or len(under_way) >= UNDER_WAY_MAX):
                await settle()
            if sending.error is not None:
                # The caller settles the chunks under way, some of which may be stored.
                return
    except (Failure, Rejected):
        # A line cannot be sent: wait for the answers to the lines before it, so that they count.
        while under_way:
            await settle()
        raise


def _count(sending: _Sending, sent: "SentMany") -> None:
    """Count outcomes. The error shown is the first in doubt if there is any; else the first."""
    sending.done += len(sent) - len(sent.failed)
    for _, error in sent.failed:
        is_sure = isinstance(error, Unavailable | Rejected)
        if sending.error is None or not (is_sure or sending.in_doubt):
            sending.error = error
        if is_sure:
            sending.unstored += 1
        else:
            sending.in_doubt += 1


def _failure(sending: _Sending, error: RaftmqError, url: str) -> Failure:
    """Why not all messages are stored, in the words and numbers of the summary."""
    total = sending.done + sending.unstored + sending.in_doubt
    failed, what = sending.unstored, "not stored"
    if sending.in_doubt:
        failed, what = sending.in_doubt, "not known to be stored"
    shown = explained(error, url=url)
    # "Unreachable" promises that nothing happened.
    code = ExitCode.FAILED if sending.done or sending.in_doubt else shown.code
    text = f"{failed:,} of {counted(total, 'message')} {what}; the first one: {error}"
    return Failure(text, fix=shown.fix, code=code)


@asynccontextmanager
async def _until_interrupted(sending: _Sending) -> AsyncIterator[None]:
    """Inside, the first Ctrl-C ends the reading, and the second one ends the command."""
    import anyio

    async def watch() -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                if sending.is_interrupted:
                    raise KeyboardInterrupt
                sending.is_interrupted = True
                assert sending.reading is not None
                sending.reading.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        yield
        tasks.cancel_scope.cancel()


def _take(producer: "Producer", sending: _Sending, chunk: Chunk) -> "PendingMany | None":
    """Hand a chunk to the producer; None: the buffer has no room now."""
    size, options = len(chunk.bodies), sending.options
    try:
        return producer.send_many_nowait(
            bodies=chunk.bodies,
            keys=chunk.keys or ([options.key] * size if options.key else None),
            tags=[options.tag] * size if options.tag else None,
            props=[dict(options.props)] * size if options.props else None,
            queue=options.queue,
            delay=options.delay,
        )
    except Unavailable:
        return None
    except Rejected as error:
        if not chunk.first_line or error.reason is not Reason.TOO_LARGE:
            raise
        sizes = [len(body) for body in chunk.bodies]
        line = chunk.first_line + sizes.index(max(sizes))
        sent = f"nothing from line {chunk.first_line:,} on is sent"
        raise Failure(
            f"line {line:,} is too large: {error}; {sent}",
            fix="send shorter lines, or raise limits.batch_bytes_max on every node",
        ) from error


def _source(options: _Options) -> AsyncIterator[Chunk]:
    if options.count is not None:
        return made_up(options.count, options.size, options.rate)
    if options.messages:
        return given([message.encode(errors="surrogateescape") for message in options.messages])
    path = None if str(options.file) == "-" else options.file
    if options.whole:
        return given([sys.stdin.buffer.read() if path is None else path.read_bytes()])
    if path is None and sys.stdin.isatty():
        note("one message a line; Ctrl-D ends")
    separator = options.key_separator
    return lines(path, None if separator is None else _separator(separator))


def _check(options: _Options) -> None:
    """Refuse options that exclude each other, or need another one."""
    is_given = {
        "MESSAGES": bool(options.messages),
        "--file": options.file is not None,
        "--count": options.count is not None,
    }
    given_by = [name for name, is_one in is_given.items() if is_one]
    if len(given_by) > 1:
        raise click.UsageError(f"{' and '.join(given_by)} exclude each other: give one of them")
    if options.whole and options.file is None:
        raise click.UsageError("--whole needs --file, which may be - for stdin")
    if options.rate is not None and options.count is None:
        raise click.UsageError("--rate needs --count")
    if options.key_separator is None:
        return
    _separator(options.key_separator)
    if options.messages or options.count is not None or options.whole:
        raise click.UsageError("-K splits lines, of --file or stdin: give a key with -k")
    if options.key is not None:
        raise click.UsageError("-k and -K exclude each other: each line has a key of its own")


def _separator(text: str) -> bytes:
    """The separator with `\\t` and the like replaced."""
    separator = text.encode().decode("unicode_escape").encode("latin-1")
    if not separator:
        raise click.UsageError("--key-separator must not be empty")
    return separator


def _shower(output: str, messages: tuple[str, ...]) -> "Callable[[SentMany], None]":
    """The printer of receipts: as JSON always; as text only for a few messages in arguments.

    Receipts are printed as they come: a send may have no end, and a stop loses none of them.
    """
    if output == "json":
        return _show_json
    if 0 < len(messages) <= RECEIPTS_SHOWN_MAX:
        return _show_text
    return lambda sent: None


def _show_json(sent: "SentMany") -> None:
    from raftmq.client import Receipt

    for outcome in sent:
        if isinstance(outcome, Receipt):
            plain = {"id": outcome.id, "queue": outcome.queue, "offset": outcome.offset}
            later = {"deliver_at_ms": outcome.deliver_at_ms} if outcome.number else {}
            print_line({**plain, "timestamp": outcome.timestamp, **later})
        else:
            print_line({"error": str(outcome), "kind": type(outcome).__name__})


def _show_text(sent: "SentMany") -> None:
    from raftmq.client import Receipt

    for outcome in sent:
        if isinstance(outcome, Receipt):
            place = f"offset {outcome.offset}"
            if outcome.number:
                due = datetime.fromtimestamp(outcome.deliver_at_ms / 1000).astimezone()
                place = f"due {due.isoformat(' ', 'seconds')}"
            click.echo(f"{outcome.id}  queue {outcome.queue}  {place}")


def _summarize(sending: _Sending) -> None:
    if not sending.started:
        return
    seconds = time.monotonic() - sending.started
    rate = f", {sending.done / seconds:,.0f}/s" if sending.done > RECEIPTS_SHOWN_MAX else ""
    note(f"{counted(sending.done, 'message')} stored in {seconds:.2f} s{rate}")
    if sending.unstored:
        note(f"{counted(sending.unstored, 'message')} not stored")
    if sending.in_doubt:
        note(f"{counted(sending.in_doubt, 'message')} sent and not known to be stored")
