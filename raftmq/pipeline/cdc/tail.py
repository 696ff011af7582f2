"""The end of a topic of changes: how far the capture is, and which table the topic carries.

The messages themselves record this, so there is no second record that could differ.
"""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.pipeline.errors import PipelineError

from .change import Op, Place, Table

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

READ_SECONDS = 10.0
"""Time to wait for a message that is stored, and only has to arrive."""
STEP = 500
"""Messages read at once on the way back."""


class Tail(NamedTuple):
    """The last message of a topic of changes."""

    offset: int
    """The message's offset."""
    op: Op
    """The kind of its change."""
    position: int
    """See `Change`."""
    seq: int
    """See `Change`."""
    lsn: str
    """See `Change`."""
    is_last: bool
    """Whether its transaction, or its snapshot, is complete."""
    source: str
    """The kind of database that it comes from."""
    table: str
    """The table that it is about."""
    schema: str
    """The fingerprint of the table's columns."""

    @property
    def place(self) -> Place:
        """The place from which the database goes on."""
        return Place(self.position, self.lsn)

    @property
    def has_snapshot(self) -> bool:
        """Whether the topic has a whole snapshot; it begins with one."""
        return self.is_last or self.op not in (Op.EMPTY, Op.READ)


def open_topic(mq: "BlockingClient", topic: str) -> None:
    """Make the topic, with one queue, unless it is there.

    One queue: the order of its offsets is the order of commits, and its last message says how far
    the capture is. Consumers still share the work, in order for each key: they pop.

    Raises:
        PipelineError: it has several queues.
    """
    found = [each for each in mq.admin.list_topics() if each.name == topic]
    if found and found[0].queues != 1:
        raise PipelineError(
            f"the topic {topic} has {found[0].queues} queues, and commits are in order in one",
            f"capture into another topic, or make it again: raftmq topic create {topic} --queues 1",
        )
    mq.admin.create_topic(topic, 1)


def read_tail(mq: "BlockingClient", topic: str) -> Tail | None:
    """The last message; None: the topic is empty.

    Raises:
        PipelineError: the message is no change, or there were messages and none is left.
    """
    queue = mq.admin.describe_topic(topic).queues[0]
    if queue.end == 0:
        return None
    if queue.earliest == queue.end:
        raise PipelineError(
            f"retention has dropped all messages of {topic}: the last captured place is unknown",
            "capture into another topic, and keep its messages longer",
        )
    return tail_at(mq, topic, queue.end - 1)


def tail_at(mq: "BlockingClient", topic: str, offset: int) -> Tail:
    """The message at this offset."""
    return _tails(mq, topic, offset, offset + 1)[0]


def whole_end(mq: "BlockingClient", topic: str, start: int) -> int:
    """The offset after the last transaction that is complete; `start` if none is from there on."""
    queue = mq.admin.describe_topic(topic).queues[0]
    end = queue.end
    first = max(start, queue.earliest)
    while end > first:
        before = max(first, end - STEP)
        for tail in reversed(_tails(mq, topic, before, end)):
            if tail.is_last:
                return tail.offset + 1
        end = before
    return start


def check_tail(tail: Tail, table: Table, topic: str) -> None:
    """Refuse a topic of another table.

    Raises:
        PipelineError: the topic carries another table.
    """
    if (tail.source, tail.table) != (table.source, table.name):
        raise PipelineError(
            f"the topic {topic} carries {tail.table} of {tail.source}, not {table.name}",
            "give each table a topic of its own",
        )


def _tails(mq: "BlockingClient", topic: str, start: int, end: int) -> list[Tail]:
    found: list[Tail] = []
    with mq.consumer(topic, queues=[0], start=start) as consumer:
        while len(found) < end - start:
            messages = consumer.fetch(end - start - len(found), wait=READ_SECONDS)
            if not len(messages):
                raise PipelineError(
                    f"the topic {topic} has messages and sends none",
                    "`raftmq cluster status` shows what its nodes lack",
                )
            found += [_tail(topic, each.offset, each.body) for each in messages]
    return found


def _tail(topic: str, offset: int, body: bytes) -> Tail:
    try:
        content: dict[str, Any] = json.loads(body)
        return Tail(
            offset,
            Op(content["op"]),
            content["position"],
            content["seq"],
            content["lsn"],
            content["last"],
            content["source"],
            content["table"],
            content["schema"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(
            f"the topic {topic} has a message at offset {offset} that is no change of a table",
            "give a topic that only `cdc capture` writes",
        ) from error
