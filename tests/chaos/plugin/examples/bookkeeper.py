"""A service under test: reads payments from a topic and books each of them once in a database."""

import sqlite3
import sys

import raftmq


def main(url: str, path: str) -> None:
    """Book payments for ever."""
    books = sqlite3.connect(path, isolation_level=None)
    books.execute("create table if not exists booked (id text primary key, number integer)")
    with (
        raftmq.blocking.connect(url, timeout=60) as mq,
        mq.consumer("payments", group="books") as consumer,
    ):
        while True:
            payments = consumer.fetch(100, wait=1.0)
            for payment in payments:
                # A payment that comes again, since we died before the commit, is booked already.
                books.execute(
                    "insert or ignore into booked values (?, ?)", (payment.id, int(payment.body))
                )
            consumer.commit()


if __name__ == "__main__":
    main(*sys.argv[1:])
