"""When a message that failed comes again."""

from typing import Any

import trio

from raftmq import exponential
from raftmq.client import Client
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client


def test_message_comes_again_by_a_schedule_that_rises() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        schedule = exponential(1, factor=3, most=5)
        await mq.admin.create_consumer_group("g", schedule=schedule, attempts_max=5)
        async with mq.producer("orders") as producer:
            await producer.send(b"x")
        waits = []
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            (message,) = await consumer.pop(1, wait=5.0)
            for attempt in range(2, 6):
                await message.nack()
                begun = trio.current_time()
                (message,) = await consumer.pop(1, wait=10.0)
                assert message.attempt == attempt
                waits.append(trio.current_time() - begun)
            await message.nack()
            (letter,) = await mq.admin.dead_letters("orders", "g")
        return waits, letter.attempt

    waits, attempt = with_client(job)
    # The last delay repeats.
    for wait, right in zip(waits, [1, 3, 5, 5], strict=True):
        assert right - 0.1 <= wait <= right + 0.1
    assert attempt == 5
