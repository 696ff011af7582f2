"""Everything at once, by chance, in checked mode: a healthy queue raises no alarm."""

from pathlib import Path
from random import Random

import anyio
import pytest

import raftmq
from raftmq.errors import Rejected

pytestmark = [pytest.mark.anyio, pytest.mark.process]

SECONDS = 3.0
BODIES = [b"a", b"a", b"b", b"", b"longer than what is shown of a body"]
KEYS = [None, None, "k1", "k2", "k3"]


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def send(mq: raftmq.Embedded, random: Random) -> None:
    while True:
        async with mq.producer("orders") as producer:
            for _ in range(random.randrange(1, 20)):
                body, key = random.choice(BODIES), random.choice(KEYS)
                match random.randrange(6):
                    case 0:
                        await producer.send(body, key=key, tag=random.choice(["t", None]))
                    case 1:
                        producer.send_nowait(body, key=key)
                    case 2:
                        keys = random.choices(KEYS, k=30)
                        await producer.send_many(bodies=random.choices(BODIES, k=30), keys=keys)
                    case 3:
                        with anyio.move_on_after(random.random() * 0.002):
                            await producer.send(body, key=key)
                    case 4:
                        transaction = producer.transaction(group="shop")
                        await transaction.send_many([body] * 3)
                        await random.choice([transaction.commit, transaction.rollback])()
                    case _:
                        await producer.send(body, delay=random.random() * 2)
                await anyio.sleep(random.random() * 0.02)


async def read(mq: raftmq.Embedded, random: Random) -> None:
    while True:
        group = random.choice([None, "reads", "filtered"])
        expression = "t" if group == "filtered" else None
        async with mq.consumer("orders", group=group, filter=expression) as consumer:
            for _ in range(random.randrange(1, 20)):
                await consumer.fetch(random.randrange(1, 200), wait=0.1)
                if random.random() < 0.1:
                    await consumer.seek(to="earliest")


async def pop(mq: raftmq.Embedded, random: Random, mode: str) -> None:
    options = {"group": f"{mode}-group", "mode": mode, "invisible": 1.0}
    while True:
        async with (
            mq.consumer("orders", **options) as popper,  # type: ignore[call-overload]
            mq.producer("orders") as producer,
        ):
            for _ in range(random.randrange(1, 30)):
                batch = await popper.pop(random.randrange(1, 40), wait=0.2)
                try:
                    await settle(batch, producer, random)
                except Rejected:
                    continue  # its time ran out
                if random.random() < 0.1:
                    await popper.flush()


async def settle(batch: raftmq.PoppedMessages, producer: raftmq.Producer, random: Random) -> None:
    match random.randrange(9):
        case 0:
            await batch.nack(0.05)
        case 1:
            batch.ack_nowait()
        case 2:
            await batch.extend(1.0)
            await batch.ack()
        case 3:
            await anyio.sleep(1.5)  # the lease runs out
            await batch.ack()
        case 4 if len(batch):
            await batch[0].reject("by chance")
        case 5 if len(batch):
            async with producer.transaction(acks=batch) as transaction:
                await transaction.send(b"made of another", key=batch[0].key)
                await anyio.sleep(random.choice([0, 0, 1.5]))
        case _:
            await batch.ack()


async def operate(mq: raftmq.Embedded, random: Random) -> None:
    while True:
        await anyio.sleep(0.5)
        letters = await mq.admin.dead_letters("orders", "pop-group")
        if letters and random.random() < 0.5:
            await mq.admin.redrive(letters[:1])


@pytest.mark.parametrize("seed", [1])
async def test_healthy_queue_under_load_by_chance_is_not_called_wrong(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=3)
        for mode in ("pop", "ordered"):
            await mq.admin.create_consumer_group(f"{mode}-group", mode, attempts_max=4)
            await mq.admin.attach("orders", f"{mode}-group", mode=mode)
        with anyio.move_on_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(send, mq, Random(random.random()))
                    tasks.start_soon(read, mq, Random(random.random()))
                    tasks.start_soon(pop, mq, Random(random.random()), "pop")
                    tasks.start_soon(pop, mq, Random(random.random()), "ordered")
                tasks.start_soon(operate, mq, Random(random.random()))
                await anyio.sleep(SECONDS / 2)
                # While the others go on.
                assert (await mq.check()).verdict == "valid"
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)
    assert checked.counts["acknowledged"] > 100
