"""Reading from Kafka: by position, as a share group, as two consumers who own the partitions.

Each load is a group of its own, and so begins with the first message. The clock starts when the
consumers have joined: with the first delivery, or, where two share the partitions, when each has
its half and nothing is read ahead yet.

Sources: librdkafka's CONFIGURATION.md; KIP-932 (share groups).
"""

import itertools
import time
from typing import Any

from bench.keys import KeyOrder
from bench.system import Meter

PARTITIONS = 6
START_SECONDS_MAX = 120.0
FETCH = 2000
"""Most messages of one call. With 10,000 the client took a third more time for a message, and two
consumers in one thread had half the rate, as one waits while the other's call fills."""
POLL_SECONDS = 0.2
FETCHING = {
    "queued.max.messages.kbytes": 128 << 10,
    "queued.min.messages": 1_000_000,
    "fetch.message.max.bytes": 4 << 20,
    "fetch.max.bytes": 64 << 20,
}
"""Of a consumer that reads a log by position: how much it has ahead."""
SHARE_FETCHING = {"fetch.message.max.bytes": 4 << 20, "fetch.max.bytes": 64 << 20}
"""Of a member of a share group, which has no queue of its own to fill."""
EMPTY_POLLS_MAX = 10
"""Empty answers in a row after which a share group has nothing left to read."""
_groups = itertools.count(1)


def read(bootstrap: str, topic: str, size: int, seconds: float) -> Meter:
    """Read a topic by position, from its beginning; the clock starts with the first delivery."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{topic}",
            "auto.commit.interval.ms": 1000,
            **FETCHING,
        }
    )
    parts = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    left = sum(consumer.get_watermark_offsets(each, timeout=10.0)[1] for each in parts)
    consumer.assign(parts)
    fetch = max(1, min(FETCH, (4 << 20) // size))
    meter: Meter | None = None
    while left > 0 and not (meter and meter.is_over()):
        messages = consumer.consume(fetch, POLL_SECONDS)
        assert all(len(message.value()) == size for message in messages)
        left -= len(messages)
        if meter:
            meter.on_delivery(len(messages))
        elif messages:
            meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
    consumer.close()
    assert meter is not None
    return meter


def share(bootstrap: str, topic: str, size: int, seconds: float) -> Meter:
    """One member of a new share group takes and acknowledges; the confirmed messages count."""
    from confluent_kafka import ShareConsumer

    group = _new_group("share")
    read_share_from_start(bootstrap, group)
    meter: Meter | None = None

    def on_commit(offsets: dict[Any, set[int]], error: Any) -> None:
        if error is not None:
            raise RuntimeError(f"an acknowledgement failed: {error}")
        if meter is not None:
            meter.on_delivery(sum(map(len, offsets.values())))

    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **SHARE_FETCHING})
    consumer.set_acknowledgement_commit_callback(on_commit)
    consumer.subscribe([topic])
    empty, joining_until = 0, time.monotonic() + START_SECONDS_MAX
    while meter is None or (empty < EMPTY_POLLS_MAX and not meter.is_over()):
        messages = consumer.poll(POLL_SECONDS)
        empty = 0 if len(messages) else empty + 1
        if meter is None and len(messages):
            meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
        elif meter is None and time.monotonic() > joining_until:
            raise RuntimeError("the share group got nothing")
        assert all(len(message.value()) == size for message in messages)
        if len(messages):
            consumer.commit_async()
    consumer.commit_sync(10.0)
    consumer.close()
    return meter


def own_queues(
    bootstrap: str, topic: str, stored: int, size: int, seconds: float, order: KeyOrder | None
) -> Meter:
    """Two consumers of a new group; each has its partitions before either of them reads."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer

    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": _new_group("in-order"),
        "enable.auto.commit": False,
        **FETCHING,
    }
    assigned: dict[Any, list[Any]] = {}

    def on_assign(consumer: Any, partitions: list[Any]) -> None:
        for each in partitions:
            each.offset = OFFSET_BEGINNING
        consumer.assign(partitions)
        # So nothing is read ahead before the clock starts.
        consumer.pause(partitions)
        assigned[consumer] = partitions

    consumers = [Consumer(settings), Consumer(settings)]
    for each in consumers:
        each.subscribe([topic], on_assign=on_assign)
    joining_until = time.monotonic() + START_SECONDS_MAX
    while [len(parts) for parts in assigned.values()] != [PARTITIONS // 2] * 2:
        if time.monotonic() > joining_until:
            raise RuntimeError("the two consumers did not share the partitions")
        for each in consumers:
            assert not each.consume(1, POLL_SECONDS / 10), "a paused partition gave a message"
    meter, taken = Meter(size=size, seconds=seconds, warm_up_seconds=0.0), 0
    for each, partitions in assigned.items():
        each.resume(partitions)
    while taken < stored and not meter.is_over():
        count = 0
        for each in consumers:
            # Without a wait, or one consumer would wait while the other has messages.
            messages = each.consume(FETCH, 0)
            if messages:
                bodies = [message.value() for message in messages]
                if order is not None:
                    order.check(bodies)
                each.commit(asynchronous=True)
                meter.on_delivery(len(messages))
                count += len(messages)
        taken += count
        if not count:
            time.sleep(0.001)
    for each in consumers:
        each.close()
    return meter


def read_share_from_start(bootstrap: str, group: str) -> None:
    """Have a new share group begin with the first message."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def _new_group(name: str) -> str:
    """A group that has read nothing."""
    return f"{name}-{next(_groups)}"
