"""`raftmq consume`: read messages, alone or as a consumer group."""

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.interrupts import first_calls
from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.options import argument, option, with_options
from raftmq.cli.output import Meter, note, output_option
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import START
from raftmq.errors import Reason, Rejected
from raftmq.words import counted

from .formats import TABLE_HEADING, as_json, as_row, compiled

if TYPE_CHECKING:
    from raftmq.client import Client, Consumer, Message, Messages
    from raftmq.client.consume.start import Start
    from raftmq.client.pop.popped import PoppedMessages

FETCH_MESSAGES = 5_000
"""The most messages of one fetch, which are written, then committed."""


@dataclass(frozen=True, slots=True)
class _Options:
    topic: str = argument(type=TOPIC)
    group: str | None = option(
        "-g", "--group", type=GROUP, help="Consume as this consumer group, from its position on."
    )
    filter: str | None = option(
        "--filter",
        metavar="EXPRESSION",
        help="Subscribe the group (-g) to this filter: tags as 'paid || shipped', or SQL as "
        "'amount > 5'.",
    )
    start: "Start" = option(
        "--from",
        type=START,
        default="earliest",
        metavar="START",
        help="earliest, latest, an offset, a time as 2026-11-20T10:00, or 15m (that long ago). "
        "With -g only where the group has no position yet.  "
        "[default: earliest; of a new instance latest]",
    )
    queues: tuple[int, ...] = option(
        "-q", "--queue", type=int, multiple=True, help="Only this queue (repeat)."
    )
    is_assigned: bool = option(
        "--assigned",
        is_flag=True,
        help="Be a member of the group (-g): the members share a topic's queues.",
    )
    instance: str | None = option(
        "--instance",
        metavar="NAME",
        help="The name of a member, or of an instance of a broadcast group, over restarts.",
    )
    count: int | None = option(
        "-n", "--count", type=click.IntRange(1), help="Stop after this many messages."
    )
    until_end: bool = option(
        "-e",
        "--exit",
        is_flag=True,
        help="Stop at the present end; when popping, once no message comes.",
    )
    template: str | None = option(
        "-f",
        "--format",
        help=r"Print each message in this format: %v body, %k key, %g tag, %h properties, %t "
        r"topic, %q queue, %o offset, %i id, %T and %d time, as '%k\t%v\n'.",
    )

    @property
    def names_places(self) -> bool:
        """Whether an option is given that only a group that reads by offset heeds."""
        is_placed = self.start not in ("earliest", "latest")
        return is_placed or bool(self.queues or self.is_assigned or self.instance)


@dataclass(slots=True)
class _Reading:
    """A run's options, and its progress."""

    options: _Options
    render: "Callable[[Messages | PoppedMessages], bytes]"
    start: "Start"
    is_broadcast: bool = False
    done: int = 0
    is_interrupted: bool = False
    is_waiting_told: bool = False

    @property
    def wanted(self) -> int:
        """The number of messages to take next."""
        count = self.options.count
        return FETCH_MESSAGES if count is None else min(FETCH_MESSAGES, count - self.done)


@click.command()
@with_options(_Options)
@output_option("raw", "json", "table", default="raw")
@with_session
def consume(session: Session, options: _Options, output: str) -> int:
    """Read messages until Ctrl-C, or until -n or -e ends it.

    With a group (-g) the command pops messages, and acknowledges them after it wrote them to
    stdout. A group of mode pull reads by offset, and the command commits the offsets; so does a new
    group with --queue, --assigned, --instance, or --from an offset or time. In a group of mode
    broadcast the command is one instance, which gets every message.

    \b
    raftmq consume orders -n 10
    raftmq consume orders -g billing -o json
    raftmq consume orders -g workers --assigned
    raftmq consume orders --from 15m -f '%k\\t%v\\n'
    """
    if options.template is not None and _is_given("output"):
        raise click.UsageError("-f says how to print: leave out -o")
    if options.filter is not None and options.group is None:
        message = (
            "--filter is what a group subscribes to: name one with -g, of its own to look once"
        )
        raise click.UsageError(message)
    if options.group is None and (options.is_assigned or options.instance is not None):
        name = "--assigned" if options.is_assigned else "--instance"
        raise click.UsageError(f"{name} is for a consumer group: name it with -g")
    if options.queues and options.is_assigned:
        raise click.UsageError("--assigned says which queues: leave out --queue")
    reading = _Reading(options, _renderer(output, options.template), options.start)
    if output == "table" and options.template is None:
        _write(TABLE_HEADING)
    session.run(lambda mq: _read(mq, reading))
    if not reading.is_interrupted:
        return ExitCode.OK
    note(f"\n{counted(reading.done, 'message')}")
    is_endless = options.count is None and not options.until_end
    return ExitCode.OK if is_endless else ExitCode.INTERRUPTED


def _is_given(name: str) -> bool:
    """Whether an option stands on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


async def _read(mq: "Client", reading: _Reading) -> None:
    mode = await _mode(mq, reading)
    if mode is None:
        await _read_by_offset(mq, reading)
    else:
        await _pop(mq, reading, mode)


async def _mode(mq: "Client", reading: _Reading) -> "Literal['pop', 'ordered'] | None":
    """The mode in which to pop; None: read by offset."""
    options = reading.options
    if options.group is None:
        return None
    found = await mq.admin.consumer_groups(name=options.group)
    _refuse_instance(options, found[0].mode if found else "")
    if not found:
        by_offset = options.names_places or await _has_committed(mq, options.group)
        return None if by_offset else "pop"
    mode = found[0].mode
    reading.is_broadcast = mode == "broadcast"
    if reading.is_broadcast and not _is_given("start"):
        # As in the client: a new instance begins at the queues' ends.
        reading.start = "latest"
    return "pop" if mode == "pop" else "ordered" if mode == "ordered" else None


def _refuse_instance(options: _Options, mode: str) -> None:
    """Refuse `--instance` alone for other groups than those created with mode broadcast."""
    if options.instance is None or options.is_assigned or mode not in ("", "pull"):
        return
    what = f"has mode {mode}" if mode else "was never created"
    raise Failure(
        f"consumer group {options.group!r} {what}: --instance names one of a group that broadcasts",
        fix=f"`raftmq group create {options.group} --mode broadcast` makes one, under a name that "
        "is free; with --assigned too, it names a member of a group that shares its queues",
    )


async def _has_committed(mq: "Client", group: str) -> bool:
    """Whether a group that was never created has committed offsets."""
    try:
        return bool((await mq.admin.describe_group(group)).offsets)
    except Rejected as error:
        if error.reason is not Reason.UNKNOWN_GROUP:
            raise
        return False


async def _pop(mq: "Client", reading: _Reading, mode: "Literal['pop', 'ordered']") -> None:
    """Pop for a group; each message is acknowledged once it is written."""
    import anyio

    options = reading.options
    assert options.group is not None
    start = reading.start
    if options.is_assigned or options.instance:
        raise Failure(
            f"consumer group {options.group!r} has mode {mode}: it has neither members nor "
            "instances, each consumer is handed what comes next",
            fix="leave out --assigned and --instance, or take another group",
        )
    if options.queues or start not in ("earliest", "latest"):
        raise Failure(
            f"consumer group {options.group!r} has mode {mode}: it takes what it is handed, "
            "whatever the queue or offset",
            fix="leave out --queue, and give --from earliest or latest, which a new group heeds",
        )
    async with mq.consumer(
        options.topic,
        group=options.group,
        mode=mode,
        start="latest" if start == "latest" else "earliest",
        filter=options.filter,
    ) as consumer:
        with _until_interrupted(reading), _meter(options) as meter:
            while options.count is None or reading.done < options.count:
                messages = await consumer.pop(reading.wanted, wait=1.0)
                if not messages:
                    if options.until_end:
                        break
                    _refuse_closed_pipe()
                    _tell_waiting(reading)
                    continue
                _write(reading.render(messages))
                reading.done += len(messages)
                # Written messages are acknowledged even after Ctrl-C: they would come again.
                with anyio.CancelScope(shield=True):
                    settlement = await consumer.ack(messages)
                for message in settlement.fenced:
                    note(f"too late: {message.id} is no longer ours, and comes again")
                meter.advance(len(messages))


def _tell_waiting(reading: _Reading) -> None:
    """Note once, for a person at a terminal, that no messages have come yet."""
    if not reading.done and not reading.is_waiting_told and sys.stdout.isatty():
        reading.is_waiting_told = True
        note("no messages yet: waiting for some; Ctrl-C ends")


async def _read_by_offset(mq: "Client", reading: _Reading) -> None:
    import anyio

    options = reading.options
    ends = await _ends(mq, options) if options.until_end else {}
    async with mq.consumer(
        options.topic,
        group=options.group,
        mode="broadcast" if reading.is_broadcast else "pull",
        queues="assigned" if options.is_assigned else options.queues or None,
        instance=options.instance,
        start=reading.start,
        filter=options.filter,
    ) as consumer:
        if isinstance(reading.start, int):
            _refuse_beyond(options, consumer.position, ends or await _ends(mq, options))
        with _until_interrupted(reading), _meter(options) as meter:
            while not _is_enough(reading, consumer, ends):
                messages = await consumer.fetch(reading.wanted, wait=1.0)
                if not messages:
                    _refuse_closed_pipe()
                    _tell_waiting(reading)
                    if options.filter is not None:
                        # Messages that do not match are read, too: without a commit the group
                        # would read them again.
                        await consumer.commit()
                    continue
                _write(reading.render(messages))
                reading.done += len(messages)
                if options.group is not None:
                    # Written messages are committed even after Ctrl-C: they would come again.
                    with anyio.CancelScope(shield=True):
                        await _commit(consumer, options)
                meter.advance(len(messages))


def _meter(options: _Options) -> Meter:
    """A terminal shows the messages themselves, so no progress is drawn there."""
    return Meter("reading", total=options.count, is_shown=not sys.stdout.isatty())


async def _commit(consumer: "Consumer", options: _Options) -> None:
    """Commit the written messages; those of queues that went to other members come again there."""
    try:
        await consumer.commit()
    except Rejected as error:
        if error.reason is not Reason.FENCED or not options.is_assigned:
            raise
        note(str(error))


def _refuse_beyond(options: _Options, position: dict[int, int], ends: dict[int, int]) -> None:
    """Refuse a start offset beyond the end: `latest` is the way to wait for new messages."""
    for queue, end in ends.items():
        if position.get(queue, 0) > end:
            raise Rejected(
                Reason.OFFSET_OUT_OF_RANGE,
                f"queue {queue} of topic {options.topic!r} ends at offset {end}, and "
                f"--from {position[queue]} is beyond it",
            )


@contextmanager
def _until_interrupted(reading: _Reading) -> Iterator[None]:
    """Inside, the first signal ends the block; a second one ends the process at once."""
    import anyio

    with anyio.CancelScope() as scope:

        def stop() -> None:
            reading.is_interrupted = True
            scope.cancel()

        with first_calls(stop):
            yield


def _is_enough(reading: _Reading, consumer: "Consumer", ends: dict[int, int]) -> bool:
    options = reading.options
    if options.count is not None and reading.done >= options.count:
        return True
    position = consumer.position
    # A member reads only its own queues, so only their ends count.
    mine = {q: end for q, end in ends.items() if not options.is_assigned or q in position}
    return options.until_end and all(position.get(q, 0) >= end for q, end in mine.items())


async def _ends(mq: "Client", options: _Options) -> dict[int, int]:
    return await mq.admin.find_offsets(options.topic, "latest", queues=options.queues or None)


def _renderer(output: str, template: str | None) -> "Callable[[Messages | PoppedMessages], bytes]":
    # Not a `Result`: reading has no end, and a commit or an ack follows what is written.
    if template is not None:
        render = compiled(template)
        return lambda messages: b"".join(map(render, messages))
    if output == "raw":
        return lambda messages: b"\n".join(messages.bodies) + b"\n"
    line: Callable[[Message], bytes] = as_json if output == "json" else as_row
    return lambda messages: b"".join(map(line, messages))


def _refuse_closed_pipe() -> None:
    """Notice that the reader of stdout is gone while there is nothing to write: `| head -2`.

    Raises:
        BrokenPipeError: the reader is gone, as a write would find.
    """
    poller = select.poll()
    # `poll` reports errors without being asked for them.
    poller.register(1, 0)
    if any(event & select.POLLERR for _, event in poller.poll(0)):
        raise BrokenPipeError


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
