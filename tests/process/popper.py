"""A consumer in a process of its own: pops, acknowledges, and prints the bodies that are done.

python -m tests.process.popper URL TOPIC GROUP
"""

import sys
from functools import partial

import trio

import raftmq
from raftmq.errors import Reason, Rejected


async def main(url: str, topic: str, group: str) -> None:
    """Until it is killed."""
    async with (
        raftmq.connect(url) as mq,
        mq.consumer(topic, group=group, mode="pop", invisible=2.0, prefetch=10) as consumer,
    ):
        async for message in consumer:
            try:
                await message.ack()
            except Rejected as error:
                if error.reason is not Reason.FENCED:
                    raise
                print("fenced", message.body.decode(), flush=True)
            else:
                print("acked", message.body.decode(), flush=True)


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
