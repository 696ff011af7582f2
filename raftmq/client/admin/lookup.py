"""Finding single messages: by id, and by key."""

from datetime import datetime
from typing import NamedTuple

from raftmq.client.consume.offsets import time_ms
from raftmq.client.consume.read_ahead import batches_in
from raftmq.client.message import Message, decode, parse_id
from raftmq.client.routing.requests import find_topic, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import ProtocolError, Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_MASK
from raftmq.wire.codec import unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    ErrorReply,
    FindKey,
    FoundKey,
    FrameKind,
    TopicView,
)
from raftmq.words import counted


class Place(NamedTuple):
    """The place of a message."""

    topic: TopicView
    """The topic's row of the routing table."""
    number: int
    """The cluster-wide number of the queue."""
    queue: int
    """The queue within the topic."""
    offset: int
    """The offset in the queue."""
    partition_group: int
    """The partition group that carries the queue."""


async def place_of(router: Router, message_id: str, timeout: float | None) -> Place:
    """The place that an id names, with or without a message there.

    Raises:
        Rejected: the text is no id, or there is no such queue.
        Unavailable: the topic was not found in time.
    """
    queue_number, offset = parse_id(message_id)
    looking = router.topic_of(queue_number)
    topic = await router.within(timeout, looking, f"looking up the topic of {message_id}")
    queue = queue_number & QUEUE_MASK
    if queue >= len(topic.groups):
        queues = counted(len(topic.groups), "queue")
        message = f"topic {topic.name!r} has {queues}, and no queue {queue}"
        raise Rejected(Reason.OFFSET_OUT_OF_RANGE, message)
    return Place(topic, queue_number, queue, offset, topic.groups[queue])


async def get_message(router: Router, message_id: str, timeout: float | None) -> Message:
    """See `Client.get`."""
    left = seconds_left(router, timeout)
    topic, queue_number, queue, offset, group = await place_of(router, message_id, left())
    request = Fetch([FetchFrom(queue_number, offset)], wait_ms=0, bytes_max=1)
    frame = await router.call_leader(
        group,
        FrameKind.FETCH,
        request,
        timeout=left(),
        refusal_in=_refusal_in,
        queue_number=queue_number,
    )
    for _, batches in batches_in(unpack(Fetched, frame.header).queues, frame.body):
        for base, timestamp, payload in batches[:1]:
            batch = decode(payload, base, timestamp, queue_number, topic.name)
            if 0 <= offset - base < len(batch):
                return Message(batch, offset - base, queue_number, topic.name)
    message = f"queue {queue} of topic {topic.name!r} holds no message at offset {offset} yet"
    raise Rejected(Reason.OFFSET_OUT_OF_RANGE, message)


def _refusal_in(frame: Frame) -> ErrorReply | None:
    """The refusal of the one queue in the answer; None: the queue was read."""
    queues = unpack(Fetched, frame.header).queues
    return queues[0].error if queues else None


async def find_by_key(
    router: Router,
    topic_name: str,
    *,
    key: str,
    since: datetime | None,
    limit: int,
    timeout: float | None,
) -> list[Message]:
    """See `Client.find`."""
    left = seconds_left(router, timeout)
    since_ms = 0 if since is None else time_ms(since)
    if limit < 1:
        raise Rejected(Reason.BAD_ARGUMENT, "limit must be positive")
    # A stale table would lack queues, and the search would miss their messages without an error.
    topic = await find_topic(router, topic_name, left())
    found: list[Message] = []
    # The key may be in any queue: queues may have been added, or named by the producer.
    for group in sorted(set(topic.groups)):
        request = FindKey(group, topic.id, key.encode(), since_ms, limit)
        frame = await router.call_leader(group, FrameKind.KEY, request, timeout=left())
        answer, position = unpack(FoundKey, frame.header), 0
        router.note_throttled(answer.throttle_ms)
        for entry in answer.batches:
            payload = frame.body[position : position + entry.size]
            position += entry.size
            if len(payload) != entry.size:
                raise ProtocolError("the batches of a search are cut")
            batch = decode(payload, entry.base_offset, entry.timestamp, entry.queue, topic_name)
            messages = [Message(batch, at, entry.queue, topic_name) for at in range(len(batch))]
            if entry.timestamp >= since_ms:
                found += [message for message in messages if message.key == key]
    found.sort(key=lambda message: (message.timestamp, message.queue, message.offset), reverse=True)
    return found[:limit]
