"""Processes that follow the recipe up to a point, say so, and stand still there to be killed.

Each line of input, `[URL, DATABASE, TOPIC, WHERE]` in JSON, is answered by a line with the number
of a new process that has come so far, or 0 if it never did. They are forked, one at a time, because
starting Python and loading raftmq takes longer than all else.

| where | it has |
|---|---|
| sent | sent its message, and not paid |
| paying | paid in a database transaction that is open |
| paid | paid, and not committed its messages |
| shipping | popped a message and shipped in a database transaction that is open |
| shipped | shipped, and not acknowledged |
"""

import json
import os
import sys

import trio

import raftmq
from raftmq.client import Client
from tests.process.databases import Database, connected
from tests.process.recipe import is_new, pay, ship, ship_once

GROUP = "warehouse"
LEASE_SECONDS = 1.0


async def _stand() -> None:
    print(os.getpid(), flush=True)
    await trio.sleep_forever()


async def _sell(mq: Client, database: Database, topic: str, where: str) -> None:
    async with mq.producer(topic) as p, p.transaction(group=topic, note=where) as t:
        await t.send(where.encode(), key=where)
        if where == "sent":
            await _stand()
        if where == "paying":
            with database.transaction():
                database.execute("INSERT INTO orders VALUES (?, 'paid')", where)
                await _stand()
        pay(database, where)
        await _stand()


async def _receive(mq: Client, database: Database, topic: str, where: str) -> None:
    consumer = mq.consumer(topic, group=GROUP, mode="pop", invisible=LEASE_SECONDS, prefetch=0)
    async with consumer:
        (message,) = await consumer.pop(1, wait=60.0)
        number = message.body.decode()
        if where == "shipping":
            with database.transaction():
                assert is_new(database, message.id)
                ship(database, number)
                await _stand()
        assert ship_once(database, message.id, number)
        await _stand()


async def main(url: str, name: str, topic: str, where: str) -> None:
    """Up to where it stands still."""
    async with raftmq.connect(url) as mq:
        work = _receive if where in ("shipping", "shipped") else _sell
        with connected(name) as database:
            await work(mq, database, topic, where)


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            trio.run(main, *json.loads(line))
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(0, flush=True)
