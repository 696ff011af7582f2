"""A shop that pays and announces it, as a process that may be killed: `shop URL DATABASE FIRST`.

The note of each transaction is the primary key of its local work (`recipe`).
"""

import sys

import anyio

import raftmq
from tests.process.databases import Database, connected
from tests.process.recipe import pay

GROUP = "shop"
PAUSE_SECONDS = 0.003


async def main(url: str, name: str, first: int) -> None:
    """Pay one order after the other, for ever."""
    with connected(name) as database:
        await sell(url, database, first)


async def sell(url: str, database: Database, first: int) -> None:
    """The same with a database at hand."""
    async with raftmq.connect(url) as mq, mq.producer("payments") as p:
        print("ready", flush=True)
        while True:
            number = str(first)
            async with p.transaction(group=GROUP, note=number) as t:
                await t.send(number.encode(), key=number)
                await anyio.sleep(PAUSE_SECONDS)
                pay(database, number)
                await anyio.sleep(PAUSE_SECONDS)
            first += 1


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), backend="trio")
