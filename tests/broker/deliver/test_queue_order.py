"""A group that keeps the order of queues, from the client's call to the brokers and back."""

from raftmq.client import Client
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client


def test_message_that_failed_is_not_overtaken_by_what_was_handed_out_with_it() -> None:
    async def job(_: Cluster, mq: Client) -> list[tuple[bytes, int]]:
        await mq.admin.create_consumer_group("g", mode="ordered", order="queue")
        async with mq.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(6)])
        got: list[tuple[bytes, int]] = []
        async with mq.consumer("orders", group="g", mode="ordered") as consumer:
            while len(got) < 7:
                (message,) = await consumer.pop(1, wait=30.0)
                got.append((message.body, message.attempt))
                await (message.nack(0) if len(got) == 3 else message.ack())
        return got

    bodies = [b"0", b"1", b"2", b"2", b"3", b"4", b"5"]
    assert with_client(job) == [(body, 1 + (n == 3)) for n, body in enumerate(bodies)]
