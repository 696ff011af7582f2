"""`raftmq consume`: read messages, alone or as a consumer group."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from raftmq.errors import Reason, Rejected

from .exits import ExitCode
from .formats import TABLE_HEADING, as_json, as_row, compiled
from .output import Meter, note, output_option
from .session import Session, with_session
from .values import START

if TYPE_CHECKING:
    import anyio

    from raftmq.client import Client, Consumer, Messages
    from raftmq.client.consumer import Start

FETCH_MESSAGES = 5_000
"""The most that is taken at once: it is written, then committed."""


@dataclass(slots=True)
class _Reading:
    """What to read, how to print it, and how much was read so far."""

    topic: str
    group: str | None
    start: "Start"
    queues: tuple[int, ...]
    count: int | None
    until_end: bool
    render: "Callable[[Messages], bytes]"
    filter: str | None = None
    done: int = 0
    is_interrupted: bool = False

    @property
    def wanted(self) -> int:
        """How many to take next."""
        return FETCH_MESSAGES if self.count is None else min(FETCH_MESSAGES, self.count - self.done)


@click.command()
@click.argument("topic")
@click.option("-g", "--group", help="Commit as this consumer group, and go on where it was.")
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
    help="earliest, latest, an offset, a time as 2026-11-20T10:00, or 15m (so long ago). With -g "
    "only where the group has committed nothing.  [default: earliest]",
)
@click.option("-q", "--queue", "queues", type=int, multiple=True, help="Only this queue (repeat).")
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("-e", "--exit", "until_end", is_flag=True, help="Stop at the present end.")
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
    count: int | None,
    until_end: bool,
    template: str | None,
    output: str,
) -> int:
    """Read messages until Ctrl-C, or until -n or -e ends it.

    A group's offsets are committed after the messages were written to stdout.

    \b
    raftmq consume orders -n 10
    raftmq consume orders -g billing -o json
    raftmq consume orders --from 15m -f '%k\\t%v\\n'
    """
    render = _renderer(output, template)
    reading = _Reading(topic, group, start, queues, count, until_end, render, filter_)
    if output == "table" and template is None:
        _write(TABLE_HEADING)
    try:
        session.run(lambda mq: _read(mq, reading))
    except BrokenPipeError:
        # Whoever read our stdout has enough; what is buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not reading.is_interrupted:
        return ExitCode.OK
    note(f"\n{reading.done:,} messages")
    return ExitCode.OK if count is None and not until_end else ExitCode.INTERRUPTED


async def _read(mq: "Client", reading: _Reading) -> None:
    import anyio

    ends = await _ends(mq, reading) if reading.until_end else {}
    async with (
        mq.consumer(
            reading.topic,
            group=reading.group,
            queues=reading.queues or None,
            start=reading.start,
            filter=reading.filter,
        ) as consumer,
        anyio.create_task_group() as tasks,
    ):
        if isinstance(reading.start, int):
            _refuse_beyond(reading, consumer.position, ends or await _ends(mq, reading))
        tasks.start_soon(_await_interrupt, reading, tasks.cancel_scope)
        # Where the messages themselves are seen, no progress is.
        with Meter("reading", total=reading.count, is_shown=not sys.stdout.isatty()) as meter:
            while not _is_enough(reading, consumer, ends):
                messages = await consumer.fetch(reading.wanted, wait=1.0)
                if not messages:
                    if reading.filter is not None:
                        # What does not match is read, too.
                        await consumer.commit()
                    continue
                _write(reading.render(messages))
                reading.done += len(messages)
                if reading.group is not None:
                    # What was written is committed, Ctrl-C or not.
                    with anyio.CancelScope(shield=True):
                        await consumer.commit()
                meter.advance(len(messages))
        tasks.cancel_scope.cancel()


def _refuse_beyond(reading: _Reading, position: dict[int, int], ends: dict[int, int]) -> None:
    """An offset that does not exist yet is a mistake: to wait for new messages, say `latest`."""
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
    return reading.until_end and all(position.get(q, 0) >= end for q, end in ends.items())


async def _ends(mq: "Client", reading: _Reading) -> dict[int, int]:
    return await mq.admin.find_offsets(reading.topic, "latest", queues=reading.queues or None)


def _renderer(output: str, template: str | None) -> "Callable[[Messages], bytes]":
    if template is not None:
        render = compiled(template)
        return lambda messages: b"".join(map(render, messages))
    if output == "raw":
        return lambda messages: b"\n".join(messages.bodies) + b"\n"
    line = as_json if output == "json" else as_row
    return lambda messages: b"".join(map(line, messages))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
