"""`raftmq consume`: read messages, alone or as a consumer group."""

import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.output import Meter, note, output_option
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import START
from raftmq.errors import Reason, Rejected
from raftmq.words import counted

from .formats import TABLE_HEADING, as_json, as_row, compiled

if TYPE_CHECKING:
    import anyio

    from raftmq.client import Client, Consumer, Message, Messages
    from raftmq.client.consume.start import Start
    from raftmq.client.pop.popped import PoppedMessages

FETCH_MESSAGES = 5_000
"""The most messages of one fetch, which are written, then committed."""


@dataclass(slots=True)
class _Reading:
    """The options of a run, and its progress."""

    topic: str
    group: str | None
    start: "Start"
    queues: tuple[int, ...]
    count: int | None
    until_end: bool
    render: "Callable[[Messages | PoppedMessages], bytes]"
    filter: str | None = None
    is_assigned: bool = False
    instance: str | None = None
    is_broadcast: bool = False
    is_start_given: bool = False
    done: int = 0
    is_interrupted: bool = False
    is_waiting_told: bool = False

    @property
    def names_places(self) -> bool:
        """Whether an option is given that only a group that reads by offset heeds."""
        is_placed = self.start not in ("earliest", "latest")
        return is_placed or bool(self.queues or self.is_assigned or self.instance)

    @property
    def wanted(self) -> int:
        """The number of messages to take next."""
        return FETCH_MESSAGES if self.count is None else min(FETCH_MESSAGES, self.count - self.done)


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("-g", "--group", type=GROUP, help="As this consumer group: go on where it was.")
@click.option(
    "--filter",
    "filter_",
    metavar="EXPRESSION",
    help="Subscribe the group (-g) to this: tags as 'paid || shipped', or SQL as 'amount > 5'.",
)
@click.option(
    "--from",
    "start",
    type=START,
    default="earliest",
    metavar="START",
    help="earliest, latest, an offset, a time as 2026-11-20T10:00, or 15m (that long ago). With -g "
    "only where the group has no place yet.  [default: earliest; of a new instance latest]",
)
@click.option("-q", "--queue", "queues", type=int, multiple=True, help="Only this queue (repeat).")
@click.option(
    "--assigned",
    "is_assigned",
    is_flag=True,
    help="As a member of the group (-g): a topic's queues are shared out among its members.",
)
@click.option(
    "--instance",
    metavar="NAME",
    help="Of a member, or of a group that broadcasts: a name that outlives this process.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option(
    "-e",
    "--exit",
    "until_end",
    is_flag=True,
    help="Stop at the present end; popping: when nothing comes.",
)
@click.option(
    "-f",
    "--format",
    "template",
    help=r"Print each message so: %v body, %k key, %g tag, %h properties, %t topic, %q queue, "
    r"%o offset, %i id, %T and %d time, as '%k\t%v\n'.",
)
@output_option("raw", "json", "table", default="raw")
@with_session
def consume(
    session: Session,
    topic: str,
    group: str | None,
    filter_: str | None,
    start: "Start",
    queues: tuple[int, ...],
    is_assigned: bool,
    instance: str | None,
    count: int | None,
    until_end: bool,
    template: str | None,
    output: str,
) -> int:
    """Read messages until Ctrl-C, or until -n or -e ends it.

    For a group (-g) messages are popped, and acknowledged after they were written to stdout. A
    group of mode pull reads by offset instead, which is committed after that; so does a new group
    with --queue, --assigned, --instance, or --from an offset or time. Of a group of mode broadcast
    this is one instance, which gets every message.

    \b
    raftmq consume orders -n 10
    raftmq consume orders -g billing -o json
    raftmq consume orders -g billing --assigned
    raftmq consume orders --from 15m -f '%k\\t%v\\n'
    """
    given = click.get_current_context().get_parameter_source
    if template is not None and given("output") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("-f says how to print: leave out -o")
    render = _renderer(output, template)
    reading = _Reading(topic, group, start, queues, count, until_end, render, filter_)
    reading.is_assigned, reading.instance = is_assigned, instance
    reading.is_start_given = given("start") is not click.core.ParameterSource.DEFAULT
    if filter_ is not None and group is None:
        message = (
            "--filter is what a group subscribes to: name one with -g, of its own to look once"
        )
        raise click.UsageError(message)
    if group is None and (is_assigned or instance is not None):
        option = "--assigned" if is_assigned else "--instance"
        raise click.UsageError(f"{option} is for a consumer group: name it with -g")
    if queues and is_assigned:
        raise click.UsageError("--assigned says which queues: leave out --queue")
    if output == "table" and template is None:
        _write(TABLE_HEADING)
    session.run(lambda mq: _read(mq, reading))
    if not reading.is_interrupted:
        return ExitCode.OK
    note(f"\n{counted(reading.done, 'message')}")
    return ExitCode.OK if count is None and not until_end else ExitCode.INTERRUPTED


async def _read(mq: "Client", reading: _Reading) -> None:
    mode = await _mode(mq, reading)
    if mode is None:
        await _read_by_offset(mq, reading)
    else:
        await _pop(mq, reading, mode)


async def _mode(mq: "Client", reading: _Reading) -> "Literal['pop', 'ordered'] | None":
    """The mode in which to pop; None: read by offset."""
    if reading.group is None:
        return None
    found = await mq.admin.consumer_groups(name=reading.group)
    _refuse_instance(reading, found[0].mode if found else "")
    if not found:
        by_offset = reading.names_places or await _has_committed(mq, reading.group)
        return None if by_offset else "pop"
    mode = found[0].mode
    reading.is_broadcast = mode == "broadcast"
    if reading.is_broadcast and not reading.is_start_given:
        # As in the client: a new instance begins at the queues' ends.
        reading.start = "latest"
    return "pop" if mode == "pop" else "ordered" if mode == "ordered" else None


def _refuse_instance(reading: _Reading, mode: str) -> None:
    """Refuse `--instance` alone for other groups than those created with mode broadcast."""
    if reading.instance is None or reading.is_assigned or mode not in ("", "pull"):
        return
    what = f"has mode {mode}" if mode else "was never created"
    raise Failure(
        f"consumer group {reading.group!r} {what}: --instance names one of a group that broadcasts",
        fix=f"`raftmq group create {reading.group} --mode broadcast` makes one, under a name that "
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

    assert reading.group is not None
    start = reading.start
    if reading.is_assigned or reading.instance:
        raise Failure(
            f"consumer group {reading.group!r} has mode {mode}: it has neither members nor "
            "instances, each consumer is handed what comes next",
            fix="leave out --assigned and --instance, or take another group",
        )
    if reading.queues or start not in ("earliest", "latest"):
        raise Failure(
            f"consumer group {reading.group!r} has mode {mode}: it takes what it is handed, "
            "whatever the queue or offset",
            fix="leave out --queue, and give --from earliest or latest, which a new group heeds",
        )
    async with (
        mq.consumer(
            reading.topic,
            group=reading.group,
            mode=mode,
            start="latest" if start == "latest" else "earliest",
            filter=reading.filter,
        ) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_await_interrupt, reading, tasks.cancel_scope)
        with Meter("reading", total=reading.count, is_shown=not sys.stdout.isatty()) as meter:
            while reading.count is None or reading.done < reading.count:
                messages = await consumer.pop(reading.wanted, wait=1.0)
                if not messages:
                    if reading.until_end:
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
        tasks.cancel_scope.cancel()


def _tell_waiting(reading: _Reading) -> None:
    """Note once, for a person at a terminal, that no messages have come yet."""
    if not reading.done and not reading.is_waiting_told and sys.stdout.isatty():
        reading.is_waiting_told = True
        note("no messages yet: waiting for some; Ctrl-C ends")


async def _read_by_offset(mq: "Client", reading: _Reading) -> None:
    import anyio

    ends = await _ends(mq, reading) if reading.until_end else {}
    async with (
        mq.consumer(
            reading.topic,
            group=reading.group,
            mode="broadcast" if reading.is_broadcast else "pull",
            queues="assigned" if reading.is_assigned else reading.queues or None,
            instance=reading.instance,
            start=reading.start,
            filter=reading.filter,
        ) as consumer,
        anyio.create_task_group() as tasks,
    ):
        if isinstance(reading.start, int):
            _refuse_beyond(reading, consumer.position, ends or await _ends(mq, reading))
        tasks.start_soon(_await_interrupt, reading, tasks.cancel_scope)
        # A terminal shows the messages themselves, so no progress is drawn there.
        with Meter("reading", total=reading.count, is_shown=not sys.stdout.isatty()) as meter:
            while not _is_enough(reading, consumer, ends):
                messages = await consumer.fetch(reading.wanted, wait=1.0)
                if not messages:
                    _refuse_closed_pipe()
                    _tell_waiting(reading)
                    if reading.filter is not None:
                        # Messages that do not match are read, too: without a commit the group
                        # would read them again.
                        await consumer.commit()
                    continue
                _write(reading.render(messages))
                reading.done += len(messages)
                if reading.group is not None:
                    # Written messages are committed even after Ctrl-C: they would come again.
                    with anyio.CancelScope(shield=True):
                        await _commit(consumer, reading)
                meter.advance(len(messages))
        tasks.cancel_scope.cancel()


async def _commit(consumer: "Consumer", reading: _Reading) -> None:
    """Commit the written messages; those of queues that went to other members come again there."""
    try:
        await consumer.commit()
    except Rejected as error:
        if error.reason is not Reason.FENCED or not reading.is_assigned:
            raise
        note(str(error))


def _refuse_beyond(reading: _Reading, position: dict[int, int], ends: dict[int, int]) -> None:
    """Refuse a start offset beyond the end: `latest` is the way to wait for new messages."""
    for queue, end in ends.items():
        if position.get(queue, 0) > end:
            raise Rejected(
                Reason.OFFSET_OUT_OF_RANGE,
                f"queue {queue} of topic {reading.topic!r} ends at offset {end}, and "
                f"--from {position[queue]} is beyond it",
            )


async def _await_interrupt(reading: _Reading, scope: "anyio.CancelScope") -> None:
    """End the reading on the first signal; a second one ends the process."""
    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            reading.is_interrupted = True
            scope.cancel()
            break


def _is_enough(reading: _Reading, consumer: "Consumer", ends: dict[int, int]) -> bool:
    if reading.count is not None and reading.done >= reading.count:
        return True
    position = consumer.position
    # A member reads only its own queues, so only their ends count.
    mine = {q: end for q, end in ends.items() if not reading.is_assigned or q in position}
    return reading.until_end and all(position.get(q, 0) >= end for q, end in mine.items())


async def _ends(mq: "Client", reading: _Reading) -> dict[int, int]:
    return await mq.admin.find_offsets(reading.topic, "latest", queues=reading.queues or None)


def _renderer(output: str, template: str | None) -> "Callable[[Messages | PoppedMessages], bytes]":
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
