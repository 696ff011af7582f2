"""The data of `bench.pipeline.jobs`: two sides, changes of a table, lives of messages.

All data is computed from row numbers, so that the right results are known without the jobs.
"""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftmq.pipeline.cdc.change import Change, Column, Message, Op, Row, Table, Value, message_of

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

FILES = 4
"""Parquet files of one side."""
CHUNK = 10_000
"""Messages in one call of the producer."""

Difference = tuple[str, str, Decimal]
"""(key, kind, left minus right)."""


def write_sides(left: Path, right: Path, rows: int) -> list[Difference]:
    """Write two sides as Parquet, the second in another order; returns the differences by key."""
    numbers = np.arange(rows)
    cents = numbers * 7919 % 100_000 + 1
    _write_side(left, numbers, cents)
    order = np.random.default_rng(1).permutation(rows)
    numbers, cents = numbers[order], cents[order]
    gone, again, changed = numbers[[rows // 5, rows // 3, rows // 2]].tolist()
    missed, doubled, other = cents[[rows // 5, rows // 3, rows // 2]].tolist()
    # The right side ends with two rows: a key a second time, and a new key in place of a gone one.
    stays = np.ones(rows, bool)
    stays[rows // 5] = False
    cents[rows // 2] += 5
    _write_side(
        right,
        np.concatenate([numbers[stays], [again, rows]]),
        np.concatenate([cents[stays], [doubled, 77]]),
    )
    assert other == cents[rows // 2] - 5
    return sorted(
        [
            (_key(gone), "left_only", Decimal(missed)),
            (_key(rows), "right_only", Decimal(-77)),
            (_key(again), "duplicate", Decimal(-doubled)),
            (_key(changed), "amount", Decimal(-5)),
        ]
    )


def _key(number: int) -> str:
    return f"order-{number}"


def _write_side(folder: Path, numbers: "np.ndarray", cents: "np.ndarray") -> None:
    folder.mkdir()
    for part, rows in enumerate(np.array_split(np.arange(len(numbers)), FILES)):
        keys = pc.binary_join_element_wise("order", pa.array(numbers[rows]).cast(pa.string()), "-")
        table = pa.table({"id": keys, "cents": cents[rows]})
        pq.write_table(table, folder / f"part-{part}.parquet", compression="zstd")


TABLE = Table(
    "sqlite",
    "orders",
    (
        Column("id", "int", "INTEGER", 1),
        Column("customer", "text", "TEXT", 0),
        Column("cents", "int", "INTEGER", 0),
        Column("paid", "bool", "BOOLEAN", 0),
        Column("note", "text", "TEXT", 0),
    ),
)
"""The captured table."""
CHANGED_EVERY = 100
"""One row in this many changes: 1 %."""


def row_of(number: int, *, is_changed: bool = False) -> Row:
    """A row of the table."""
    return {
        "id": number,
        "customer": f"customer-{number % 5_000}",
        "cents": number * 7919 % 100_000 + is_changed,
        "paid": is_changed,
        "note": None if number % 3 else f"parcel {number} to the neighbour",
    }


def snapshot(rows: int) -> Iterator[Message]:
    """The table before the changes, as one transaction."""
    yield message_of(TABLE, Change(Op.EMPTY, 1, 1, "1", None), is_last=False)
    for number in range(rows):
        change = Change(Op.READ, 1, number + 2, "1", None, None, row_of(number))
        yield message_of(TABLE, change, is_last=number == rows - 1)


def changed(rows: int) -> Iterator[Message]:
    """The changes, each a transaction: of ten one deletes a row, one creates one, eight update."""
    for step, number in enumerate(range(0, rows, CHANGED_EVERY)):
        change = _change(step, number, rows)
        yield message_of(TABLE, change, is_last=True)


def _change(step: int, number: int, rows: int) -> Change:
    position, lsn = step + 2, str(step + 2)
    match step % 10:
        case 0:
            return Change(Op.DELETE, position, 1, lsn, None, row_of(number))
        case 1:
            return Change(Op.CREATE, position, 1, lsn, None, None, row_of(rows + number))
    after = row_of(number, is_changed=True)
    return Change(Op.UPDATE, position, 1, lsn, None, row_of(number), after)


def table_after(rows: int) -> Iterator[Iterable[Value]]:
    """The right rows of the table after the changes, as values in the order of the columns."""
    for number in range(rows):
        step, rest = divmod(number, CHANGED_EVERY)
        if rest or step % 10 > 1:
            yield row_of(number, is_changed=not rest).values()
        elif step % 10 == 1:
            yield row_of(number).values()
            yield row_of(rows + number).values()


def send(mq: "BlockingClient", topic: str, messages: Iterable[Message]) -> None:
    """Send messages in order, as a capture sends them."""
    with mq.producer(topic) as producer:
        rest = iter(messages)
        while batch := list(islice(rest, CHUNK)):
            producer.send_many(
                bodies=[each.body for each in batch],
                keys=[each.key for each in batch],
                tags=[each.tag for each in batch],
            )


TAKEN = 1_000
"""Messages that a consumer takes at once."""
FAILS_EVERY = 50
"""One message in this many fails once."""


def live(mq: "BlockingClient", topic: str, count: int, *, queues: int) -> int:
    """Send, pop and acknowledge messages; returns the number of messages that failed once.

    Of each pop every second message is acknowledged first, then the others, as when several workers
    share the messages: so almost every acknowledgement is an event of its own.
    """
    mq.admin.create_topic(topic, queues=queues)
    mq.admin.create_consumer_group("workers", schedule=[0.1], attempts_max=3)
    with mq.producer(topic) as producer:
        for first in range(0, count, CHUNK):
            producer.send_many(bodies=[b"x" * 100] * min(CHUNK, count - first))
    left, failed = count, 0
    with mq.consumer(topic, group="workers", mode="pop", invisible=120.0) as consumer:
        while left:
            found = list(consumer.pop(TAKEN, wait=30.0))
            assert found, f"{left} messages do not come"
            fails = [each.attempt == 1 and each.offset % FAILS_EVERY == 7 for each in found]
            done = [each for each, is_bad in zip(found, fails, strict=True) if not is_bad]
            for part in (done[::2], done[1::2]):
                assert not part or consumer.ack(part).is_complete
            consumer.nack(each for each, is_bad in zip(found, fails, strict=True) if is_bad)
            left, failed = left - len(done), failed + sum(fails)
    return failed
