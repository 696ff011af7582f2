"""`raftmq topic replay`: send a range of a topic's messages to another topic again.

    orders  queue 0   ....[120 ..... 480)....   ──> orders-again  queue 0, in order
            queue 1   ....[118 ..... 495)....   ──> orders-again  queue 1, in order

The range is fixed before the first message is sent: exactly these messages, each queue in its
order, with keys, tags and properties. They get new ids, and go out at once even if they were
delayed. If the command is interrupted, it prints up to which offset of the present queue all is
stored.

Left out: a replay to one group. `raftmq group reset` moves a group to an earlier place; for exactly
a range, let a group of its own read the other topic.
"""

from typing import TYPE_CHECKING, NamedTuple

import click

from raftmq.cli.exits import Failure
from raftmq.cli.names import TOPIC
from raftmq.cli.options import execute_option, queues_option
from raftmq.cli.output import Result, Table, note, with_output
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import START
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.client import Client, Message, Producer
    from raftmq.client.consume.start import Start

READ_MESSAGES = 1000
"""Messages that are read and sent at once."""
READ_SECONDS = 30.0
"""The longest wait for stored messages to arrive."""


class Range(NamedTuple):
    """The part of a queue that is replayed."""

    queue: int
    """The queue within the topic, from 0."""
    start: int
    """The first offset."""
    stop: int
    """The offset after the last one."""
    target: int
    """The queue of the other topic."""


@click.command()
@click.argument("source", type=TOPIC)
@click.argument("target", type=TOPIC)
@click.option(
    "--from",
    "start",
    type=START,
    required=True,
    metavar="START",
    help="earliest, an offset, a time as 2026-11-20T10:00, or 15m (that long ago).",
)
@click.option(
    "--until",
    "stop",
    type=START,
    default="latest",
    metavar="START",
    help="The end, which is not sent.  [default: latest]",
)
@queues_option
@execute_option
@with_output
@with_session
def replay(
    session: Session,
    source: str,
    target: str,
    start: "Start",
    stop: "Start",
    queues: tuple[int, ...],
    execute: bool,
) -> Result:
    """Send a range of SOURCE's messages to the topic TARGET again. A dry run without --execute.

    Each queue keeps its order. The same command again sends the messages again. If TARGET has fewer
    queues than SOURCE, several queues of SOURCE share a queue.

    \b
    raftmq topic replay orders orders-again --from 2026-11-20T10:00 --until 2026-11-20T11:00
    """
    if source == target:
        raise click.UsageError("TARGET is SOURCE itself: it would read what it sends")

    async def call(mq: "Client") -> list[Range]:
        ranges = await _ranges(mq, source, target, start, stop, queues)
        if execute:
            async with mq.producer(target) as producer:
                for each in ranges:
                    await _replay(mq, source, each, producer)
        return ranges

    ranges = session.run(call)
    count = sum(each.stop - each.start for each in ranges)
    undone = [] if execute else ["nothing was sent: add --execute to do it"]
    return Result(
        {"executed": execute, "messages": count, "queues": ranges},
        [Table([">QUEUE", ">FROM", ">UNTIL", ">TO QUEUE"], ranges)],
        notes=[counted(count, "message"), *undone],
    )


async def _ranges(
    mq: "Client", source: str, target: str, start: "Start", stop: "Start", queues: tuple[int, ...]
) -> list[Range]:
    """The ranges to replay, by queue; empty ones are left out."""
    first = await mq.admin.find_offsets(source, start, queues=queues or None)
    last = await mq.admin.find_offsets(source, stop, queues=queues or None)
    count = len((await mq.admin.describe_topic(target)).queues)
    return [
        Range(queue, first[queue], last[queue], queue % count)
        for queue in sorted(first)
        if first[queue] < last[queue]
    ]


async def _replay(mq: "Client", source: str, part: Range, producer: "Producer") -> None:
    """Send the messages of a queue, in order; on return they are stored."""
    done = part.start
    try:
        async with mq.consumer(source, queues=[part.queue], start=part.start) as consumer:
            while done < part.stop:
                count = min(READ_MESSAGES, part.stop - done)
                messages: list[Message] = list(await consumer.fetch(count, wait=READ_SECONDS))
                if not messages:
                    what = f"queue {part.queue} of {source} has messages and sends none"
                    raise Failure(what, fix="`raftmq cluster status` shows what its nodes lack")
                await producer.send_many(messages, queue=part.target)
                done = messages[-1].offset + 1
    finally:
        if done < part.stop:
            note(f"queue {part.queue}: all before offset {done} is stored, go on from there")
