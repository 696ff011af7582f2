"""A shop that pays and tells of it, as a process that may be killed: `shop URL DATABASE FIRST`.

The recipe (docs/transactions.md): the note of a transaction is the primary key of the local work,
so whoever is asked how the transaction ended looks there, and the first outcome holds there too.
"""

import sqlite3
import sys
from pathlib import Path

import anyio

import raftmq
from raftmq.client import OpenTransaction

GROUP = "shop"
PAUSE_SECONDS = 0.003


def database(path: Path) -> sqlite3.Connection:
    """The shop's orders; each has one outcome, as the number is the primary key."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, outcome TEXT)")
    return connection


def pay(connection: sqlite3.Connection, number: str) -> None:
    """The local work: durable when this returns. Raises if the order was refused meanwhile."""
    connection.execute("INSERT INTO orders VALUES (?, 'paid')", (number,))


def is_paid(connection: sqlite3.Connection, transaction: OpenTransaction) -> bool:
    """How a transaction ended. If it was not paid, it is refused, or a slow shop could pay after
    this said no."""
    number = transaction.note
    connection.execute("INSERT OR IGNORE INTO orders VALUES (?, 'refused')", (number,))
    outcome = connection.execute("SELECT outcome FROM orders WHERE number = ?", (number,))
    return bool(outcome.fetchone() == ("paid",))


async def main(url: str, path: Path, first: int) -> None:
    """Pay one order after the other, for ever."""
    connection = database(path)
    async with raftmq.connect(url) as mq, mq.producer("payments") as p:
        print("ready", flush=True)
        while True:
            number = str(first)
            async with p.transaction(group=GROUP, note=number) as t:
                await t.send(number.encode(), key=number)
                await anyio.sleep(PAUSE_SECONDS)
                pay(connection, number)
                await anyio.sleep(PAUSE_SECONDS)
            first += 1


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), backend="trio")
