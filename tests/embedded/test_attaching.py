"""An attached group takes messages from that moment on, whenever its consumers come."""

from pathlib import Path

import pytest

import raftmq

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("start", "wanted"), [("earliest", 2), ("latest", 1)])
async def test_messages_between_attaching_and_the_first_consumer_are_handed_out(
    tmp_path: Path, start: str, wanted: int
) -> None:
    async with raftmq.open(tmp_path) as mq:
        await mq.admin.create_topic("orders", queues=3)
        async with mq.producer("orders") as producer:
            await producer.send(b"before", queue=1)
            await mq.admin.attach("orders", "billing", start=start)
            await producer.send(b"after", queue=1)
        async with mq.consumer("orders", group="billing", mode="pop") as consumer:
            bodies: list[bytes] = []
            while len(bodies) < wanted:
                bodies += (await consumer.pop(10, wait=5.0)).bodies
        assert bodies == [b"before", b"after"][-wanted:]
