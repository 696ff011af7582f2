"""`raftmq dlq`: dead letters: messages that failed for the last time, or were rejected.

A *letter* holds messages that failed together: one message, or neighbours of one queue. A command
chooses messages by letter, id, reason and a filter on their properties; all given conditions must
hold. Other messages of the same letters stay where they are.

A command reads the list of letters once, then their messages; it does not touch letters that come
meanwhile.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from raftmq.cli.exits import Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.options import argument, execute_option, option, with_options
from raftmq.cli.output import (
    NOT_EXECUTED,
    Lines,
    Meter,
    Note,
    Result,
    Table,
    note,
    print_line,
    time_text,
    with_output,
)
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import RATE
from raftmq.machine.queue_numbers import QUEUE_MASK
from raftmq.words import counted

from .formats import as_json, body_text
from .msg import CUT, event_json, events_table

if TYPE_CHECKING:
    from raftmq.client import Client, DeadLetter, Message, Trace
    from raftmq.filters import Filter

CHUNK_MESSAGES = 2000
"""Messages that are read and then handled together."""
READ_MESSAGES = 1000
"""Messages of one fetch."""
READ_SECONDS = 2.0
"""The longest wait for stored messages to arrive; without any, the rest counts as gone."""
FAR_MESSAGES = 5000
"""Distance in messages to the next wanted one from which a seek is cheaper than reading on."""
PREFETCH_BYTES = 1024 * 1024
"""Bytes that the consumer reads ahead."""
STEP_SECONDS = 0.1
"""With --rate: seconds' worth of messages in one step."""


class _Read(NamedTuple):
    """A dead letter with its messages, None for one that retention took; empty if unread."""

    letter: "DeadLetter"
    messages: "list[Message | None]"

    def part(self, places: Sequence[int]) -> "_Read":
        """The letter with only the messages at these places."""
        letter = self.letter._replace(ids=tuple(self.letter.ids[at] for at in places))
        return _Read(letter, [self.messages[at] for at in places] if self.messages else [])


def _frozen(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> frozenset[str]:
    return frozenset(values)


def _as_told(ctx: click.Context, param: click.Parameter, ids: tuple[str, ...]) -> frozenset[str]:
    """Message ids in the form that brokers write."""
    if not ids:
        return frozenset()
    from raftmq.client import format_id, parse_id
    from raftmq.errors import Rejected

    try:
        return frozenset(format_id(*parse_id(each)) for each in ids)
    except Rejected as error:
        raise Failure(str(error), fix="`raftmq dlq show` shows the ids") from error


def _compiled(
    ctx: click.Context, param: click.Parameter, expression: str | None
) -> "Filter | None":
    if expression is None:
        return None
    from raftmq.errors import FilterSyntaxError
    from raftmq.filters import compile as compile_filter

    try:
        return compile_filter(expression)
    except FilterSyntaxError as error:
        fix = "correct the text; `raftmq filter explain TEXT` shows what it means"
        raise Failure(str(error), fix=fix) from error


@dataclass(slots=True)
class _Choice:
    """The conditions that choose messages in dead letters."""

    topic: str = argument(type=TOPIC)
    group: str = option("-g", "--group", type=GROUP, required=True, help="The consumer group.")
    numbers: frozenset[str] = option(
        "-l", "--letter", multiple=True, callback=_frozen, help="Only this letter (repeat)."
    )
    ids: frozenset[str] = option(
        "-i", "--id", multiple=True, callback=_as_told, help="Only this message (repeat)."
    )
    reason: str | None = option("--reason", help="Only messages with this reason.")
    filter: "Filter | None" = option(
        "--filter",
        callback=_compiled,
        metavar="EXPRESSION",
        help="Only messages that match: tags as 'paid || shipped', or SQL as 'amount > 5'.",
    )
    left_unread: int = 0
    """Number of messages that had to be read, but that retention took."""
    missing: list[str] = field(default_factory=list)
    """The letters and messages that the command line names but that do not exist."""

    @property
    def missing_notes(self) -> list[str]:
        """Notes on what is missing."""
        return [f"there is no {what} now" for what in self.missing]

    @property
    def takes_all(self) -> bool:
        """Whether only the topic and the group are given."""
        return not self.numbers and not self.ids and self.reason is None and self.filter is None

    async def letters(self, mq: "Client", limit: int | None = None) -> "list[DeadLetter]":
        """The letters that fit all conditions but the filter, which needs the messages read."""
        found = await mq.admin.dead_letters(self.topic, self.group, limit=limit)
        numbers = {number_of(letter) for letter in found}
        ids = {each for letter in found for each in letter.ids}
        self.missing = [f"dead letter {each}" for each in sorted(self.numbers - numbers)]
        self.missing += [f"message {each} in a dead letter" for each in sorted(self.ids - ids)]
        if self.numbers:
            found = [letter for letter in found if number_of(letter) in self.numbers]
        if self.ids:
            found = [letter.part(self.ids) for letter in found]
        return [letter for letter in found if letter.ids and self.reason in (None, letter.reason)]

    def takes(self, message: "Message | None") -> bool:
        """Whether the filter matches a message."""
        if self.filter is None:
            return True
        return message is not None and self.filter.matches(message.props, tag=message.tag)

    def part(self, read: _Read) -> _Read:
        """The chosen messages of a letter that was read; counts messages that retention took."""
        self.left_unread += read.messages.count(None)
        return read.part(
            [
                at
                for at, message in enumerate(read.messages)
                if message is not None and self.takes(message)
            ]
        )


@click.group(cls=HintedGroup)
def dlq() -> None:
    """Dead letters: list, show, hand out again, purge, export.

    \b
    raftmq dlq list
    raftmq dlq show orders -g billing
    raftmq dlq redrive orders -g billing --filter "city = 'Paris'" --execute
    """


@dlq.command("list")
@click.option("-t", "--topic", type=TOPIC, help="Only of this topic.")
@click.option("-g", "--group", type=GROUP, help="Only of this consumer group.")
@with_output
@with_session
def list_(session: Session, topic: str | None, group: str | None) -> Result:
    """List the groups with dead letters, and the number of messages in them."""

    async def call(mq: "Client") -> dict[tuple[str, str], int]:
        dead: dict[tuple[str, str], int] = {}
        for each in await mq.admin.backlogs(topic=topic, group=group):
            if each.dead:
                key = (each.group, each.topic)
                dead[key] = dead.get(key, 0) + each.dead
        return dead

    dead = session.run(call)
    table = Table(["GROUP", "TOPIC", ">DEAD"], [(g, t, count) for (g, t), count in dead.items()])
    return Result(
        [{"group": g, "topic": t, "dead": count} for (g, t), count in dead.items()],
        [table if dead else Note("there are no dead letters")],
    )


@dlq.command()
@click.option(
    "-n", "--count", type=click.IntRange(1), default=20, help="At most this many.  [default: 20]"
)
@click.option("--history", is_flag=True, help="Add each hand-out, failure and retry.")
@with_output
@with_options(_Choice)
@with_session
def show(session: Session, options: _Choice, count: int, history: bool) -> Result:
    """Show messages in dead letters: why, since when, after how many attempts."""
    documents, rows = Lines(), list[tuple[Any, ...]]()
    histories: list[Trace] = []

    async def call(mq: "Client") -> None:
        # The choice may reject any number of letters, so a limit could end the search too early.
        limit = count if options.takes_all else None
        async with aclosing(_read(mq, await options.letters(mq, limit))) as reads:
            async for read in reads:
                for at, message in enumerate(read.messages):
                    if len(rows) < count and options.takes(message):
                        told = {}
                        if history:
                            histories.append(await _history(mq, options, read.letter.ids[at]))
                            told["history"] = [event_json(one) for one in histories[-1].events]
                        documents.append({**_plain(read, at), **told})
                        rows.append(_row(read, at))
                if len(rows) >= count:
                    return

    session.run(call)
    columns = ["!LETTER", "!ID", ">TRIES", "~REASON", "!SINCE", "KEY", "TAG", "~BODY"]
    shown: list[Table | str] = [Table(columns, rows)] if rows else []
    for found in histories:
        shown += [f"\n{found.id}", events_table(found)]
    notes = [] if all(found.is_whole for found in histories) else [CUT]
    notes += options.missing_notes
    if not rows:
        notes.append(f"no dead letters of {options.group} in {options.topic} like that")
    return Result(documents, shown, notes)


async def _history(mq: "Client", choice: _Choice, message_id: str) -> "Trace":
    """The trace of a message in this consumer group only."""
    found = await mq.trace(message_id)
    own = tuple(journey for journey in found.journeys if journey.group == choice.group)
    return found._replace(journeys=own)


@dlq.command()
@click.option("--to", "target", metavar="TOPIC", help="Send the messages to this topic instead.")
@click.option("--rate", type=RATE, metavar="N/s", help="At most this many messages a second.")
@execute_option
@with_output
@with_options(_Choice)
@with_session
def redrive(
    session: Session, options: _Choice, target: str | None, rate: float | None, execute: bool
) -> Result:
    """Hand dead letters out again as if for the first time. A dry run unless --execute is given.

    With --to the messages are sent to another topic, and then purged here: after an interruption
    some messages may be in both.

    \b
    raftmq dlq redrive orders -g billing --execute --rate 100/s
    raftmq dlq redrive orders -g billing --reason "no such account" --to inspection --execute
    """
    what = f"sent to {target}" if target else "handed out again"
    return _change(session, options, what=what, target=target, rate=rate, execute=execute)


@dlq.command()
@execute_option
@with_output
@with_options(_Choice)
@with_session
def purge(session: Session, options: _Choice, execute: bool) -> Result:
    """Purge dead letters; no consumer gets them. A dry run unless --execute is given.

    The messages themselves stay in their queues until retention takes them.
    """
    return _change(session, options, what="thrown away", execute=execute, is_purge=True)


@dlq.command()
@with_options(_Choice)
@with_session
def export(session: Session, options: _Choice) -> None:
    """Print messages in dead letters as JSON, one per line. Changes nothing.

    \b
    raftmq dlq export orders -g billing > dead.jsonl
    """

    async def call(mq: "Client") -> int:
        count = 0
        async for read in _read(mq, await options.letters(mq)):
            for at, message in enumerate(read.messages):
                if options.takes(message):
                    print_line(_plain(read, at))
                    count += 1
        return count

    note(counted(session.run(call), "message"))
    for each in options.missing_notes:
        note(each)


def number_of(letter: "DeadLetter") -> str:
    """A letter's name on the command line."""
    return f"{letter.partition_group}-{letter.letter}"


# Changing


def _change(
    session: Session,
    choice: _Choice,
    *,
    what: str,
    execute: bool,
    target: str | None = None,
    rate: float | None = None,
    is_purge: bool = False,
) -> Result:
    """Redrive or purge the chosen messages; without `execute`, only count them."""
    if target == choice.topic:
        raise click.UsageError("--to names the topic itself: leave it out")
    messages, left_gone, numbers = 0, 0, set[str]()

    async def act(mq: "Client", part: list[_Read]) -> int:
        letters = [read.letter for read in part]
        if not execute:
            return _size(part)
        # Send before the purge: a crash between the two leaves messages in both places, and the
        # other order would lose them.
        if target is not None:
            await _send(mq, target, part)
        return await (mq.admin.purge(letters) if is_purge or target else mq.admin.redrive(letters))

    async def call(mq: "Client") -> None:
        nonlocal messages, left_gone
        import anyio

        letters = await choice.letters(mq)
        total = sum(len(letter.ids) for letter in letters)
        with Meter("dead letters", total=total, is_shown=execute) as meter:
            async for part in _parts(mq, choice, letters, rate, is_read=target is not None):
                count = await act(mq, part)
                messages += count
                left_gone += _size(part) - count
                numbers.update(number_of(read.letter) for read in part)
                meter.advance(_size(part))
                if rate is not None and execute:
                    await anyio.sleep(_size(part) / rate)

    session.run(call)
    left = {"unreadable": choice.left_unread, "gone": left_gone}
    done = {"messages": messages, "letters": len(numbers), "left": left}
    would = "" if execute else "would be "
    letters_text = counted(len(numbers), "letter")
    return Result(
        {"executed": execute, **done},
        [f"{counted(messages, 'message')} in {letters_text} {would}{what}"],
        notes=[*_left_notes(choice, left_gone), *([] if execute else [NOT_EXECUTED])],
    )


async def _parts(
    mq: "Client",
    choice: _Choice,
    letters: "Sequence[DeadLetter]",
    rate: float | None,
    *,
    is_read: bool,
) -> AsyncIterator[list[_Read]]:
    """The chosen messages, in parts that are handled in one step; unread unless a filter or
    `is_read` needs them."""
    size = CHUNK_MESSAGES if rate is None else max(1, int(rate * STEP_SECONDS))
    part: list[_Read] = []
    if choice.filter is None and not is_read:
        reads = _unread(letters)
    else:
        reads = _chosen(mq, choice, letters)
    async with aclosing(reads):
        async for read in reads:
            places = range(len(read.letter.ids))
            while places:
                room = size - _size(part)
                part.append(read.part(places[:room]))
                places = places[room:]
                if _size(part) == size:
                    yield part
                    part = []
    if part:
        yield part


def _size(part: "Sequence[_Read]") -> int:
    """The number of messages in a part."""
    return sum(len(read.letter.ids) for read in part)


async def _send(mq: "Client", target: str, part: list[_Read]) -> None:
    """Send the messages to another topic; on return they are stored there."""
    messages = [message for read in part for message in read.messages if message is not None]
    async with mq.producer(target) as producer:
        await producer.send_many(messages)


# Reading


async def _unread(letters: "Sequence[DeadLetter]") -> AsyncGenerator[_Read, None]:
    for letter in letters:
        yield _Read(letter, [])


async def _chosen(
    mq: "Client", choice: _Choice, letters: "Sequence[DeadLetter]"
) -> AsyncGenerator[_Read, None]:
    async with aclosing(_read(mq, letters)) as reads:
        async for read in reads:
            yield choice.part(read)


async def _read(mq: "Client", letters: "Sequence[DeadLetter]") -> AsyncGenerator[_Read, None]:
    """Letters with their messages, some at a time."""
    start = 0
    while start < len(letters):
        stop, size = start, 0
        while stop < len(letters) and size < CHUNK_MESSAGES:
            size += len(letters[stop].ids)
            stop += 1
        chunk = letters[start:stop]
        found = await _messages(
            mq, chunk[0].topic, [each for letter in chunk for each in letter.ids]
        )
        for letter in chunk:
            yield _Read(letter, [found[each] for each in letter.ids])
        start = stop


async def _messages(mq: "Client", topic: str, ids: Sequence[str]) -> "dict[str, Message | None]":
    """Messages of a topic by id; None: retention took the message."""
    from raftmq.client import parse_id

    found: dict[str, Message | None] = dict.fromkeys(ids)
    queues: dict[int, list[int]] = {}
    for each in ids:
        queue_number, offset = parse_id(each)
        queues.setdefault(queue_number & QUEUE_MASK, []).append(offset)
    for queue, offsets in queues.items():
        # The broker sends whole batches: reading a queue in order fetches each batch only once.
        async for message in _in_queue(mq, topic, queue, sorted(offsets)):
            found[message.id] = message
    return found


async def _in_queue(
    mq: "Client", topic: str, queue: int, offsets: list[int]
) -> "AsyncGenerator[Message, None]":
    """The messages of a queue at these offsets, in rising order, as far as they are kept."""
    from raftmq.errors import UnreadableBatch

    wanted = deque(offsets)
    async with mq.consumer(
        topic,
        queues=[queue],
        start=wanted[0],
        on_trimmed="earliest",
        prefetch_bytes=PREFETCH_BYTES,
    ) as consumer:
        while wanted:
            try:
                messages = await consumer.fetch(READ_MESSAGES, wait=READ_SECONDS)
            except UnreadableBatch as error:
                # Its messages count as gone: the letters behind it must stay reachable.
                await consumer.seek(queue=queue, offset=error.next_offset)
                continue
            if not messages:
                return
            for message in messages:
                while wanted and wanted[0] < message.offset:
                    wanted.popleft()
                if wanted and wanted[0] == message.offset:
                    wanted.popleft()
                    yield message
            if wanted and wanted[0] >= consumer.position[queue] + FAR_MESSAGES:
                await consumer.seek(queue=queue, offset=wanted[0])


# Printing


def _row(read: _Read, at: int) -> tuple[Any, ...]:
    letter, message = read.letter, read.messages[at]
    known = (
        number_of(letter),
        letter.ids[at],
        letter.attempt,
        letter.reason,
        time_text(letter.timestamp)[5:19].replace("T", " "),
    )
    if message is None:
        return (*known, "", "", "(no longer kept)")
    return (*known, message.key or "", message.tag or "", body_text(message))


def _plain(read: _Read, at: int) -> dict[str, Any]:
    import json

    letter, message = read.letter, read.messages[at]
    dead = {
        "letter": number_of(letter),
        "attempts": letter.attempt,
        "reason": letter.reason,
        "dead_since": letter.timestamp,
    }
    if message is None:
        return {**dead, "topic": letter.topic, "queue": letter.queue, "id": letter.ids[at]}
    plain: dict[str, Any] = json.loads(as_json(message, dead))
    return plain


def _left_notes(choice: _Choice, gone: int) -> Iterator[str]:
    """Notes on the messages that were left, and why."""
    yield from choice.missing_notes
    if choice.left_unread:
        messages = counted(choice.left_unread, "message")
        yield f"left: {messages} that cannot be read, as retention took what was written in them"
    if gone:
        messages = counted(gone, "message")
        yield f"passed over: {messages} that retention took, or that left their letters meanwhile"
