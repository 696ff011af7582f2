"""A consumer that makes a bill of each order, in a process that may be killed: `biller URL`.

It prints `made` after each commit, so that the test knows when it is at work, and `fenced` when it
was too slow.
"""

import sys
from functools import partial

import anyio

import raftmq
from raftmq.errors import Reason, Rejected

ORDERS, BILLS, GROUP = "orders", "bills", "billing"
INVISIBLE_SECONDS = 1.0
PAUSE_SECONDS = 0.004


async def hand_off(producer: raftmq.Producer, message: raftmq.PoppedMessage) -> None:
    """Make a bill, with time to die in the middle."""
    async with producer.transaction(acks=[message]) as t:
        await t.send(message.body)
        await anyio.sleep(PAUSE_SECONDS)


async def main(url: str) -> None:
    """Until it is killed."""
    async with (
        raftmq.connect(url) as mq,
        mq.producer(BILLS) as producer,
        mq.consumer(ORDERS, group=GROUP, mode="pop", invisible=INVISIBLE_SECONDS) as consumer,
    ):
        async for message in consumer:
            try:
                await hand_off(producer, message)
            except Rejected as error:
                if error.reason is not Reason.FENCED:
                    raise
                print("fenced", flush=True)
            else:
                print("made", flush=True)


if __name__ == "__main__":
    anyio.run(partial(main, sys.argv[1]), backend="trio")
