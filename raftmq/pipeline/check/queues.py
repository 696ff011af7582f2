"""The rules of a log that look at one queue: the checkers of `raftmq.checkers.log`, run by Spark.

Spark brings all messages of a queue into one task, and the functions that judge a history in one
process judge these messages there: the order of polls and sends, of sends in real time, and what
stood at an offset. Queues whose hashes fall into one *bucket* are judged together, so that many
small queues cost no more than a few large ones.

Windows of Spark with the same findings took 2.5 times as long as this on 10^6 operations of 100
queues (one run on two busy cores; the whole check of a log, most of which is joins by message,
between 1.0 and 1.4 times as long), and were the rules a second time.

| column of a message | meaning |
|---|---|
| queue, process, operation, row, value | as in `messages` |
| offset | null: none was told |
| start, end | of a send, the rows at which its operation began and was answered; null: a delivery |
| epoch | of a delivery: which stretch of its process's reading it is part of |

Invariants:
- Every message of a queue is in one bucket; a bucket holds about `BUCKET_ROWS` messages, or those
  of one queue.

Left out: a queue whose messages do not fit in a worker's memory, at about 500 bytes a message.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raftmq.checkers.history import NONE, History, Integers
from raftmq.checkers.log.anomalies import inconsistent_pairs
from raftmq.checkers.log.found import Pairs, Placements
from raftmq.checkers.log.order import backdated_pairs, poll_pairs, send_pairs
from raftmq.checkers.traffic import Deliveries, Sends, Traffic

from .history import OK
from .rules import ARROW, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS = (
    "inconsistent-offset",
    "poll-skip",
    "nonmonotonic-poll",
    "internal-poll-skip",
    "internal-nonmonotonic-poll",
    "nonmonotonic-send",
    "internal-nonmonotonic-send",
    "internal-send-skip",
    "realtime-send",
)
BUCKET_ROWS = 1 << 19
"""Messages of a bucket, on average: what a worker holds at once, if no queue is larger."""
_OBJECTS = 1 << 14
"""Findings that are Python objects at once."""
_NUMBERS = ("row", "process", "operation", "offset", "start", "end", "epoch")
_FACTS = {
    "inconsistent-offset": "offset {offset} of {queue} held {value_before} and {value}",
    "poll": "process {process} read {queue}/{offset_before}, then {queue}/{offset}",
    "send": "process {process} sent {value_before} to {queue}/{offset_before} "
    "and {value} to {queue}/{offset}",
    "realtime-send": "{value_before} was acknowledged at offset {offset_before} of {queue} before "
    "the send of {value} began, which got offset {offset}",
}
"""Name of an anomaly, or the call that it is about → the fact about a pair."""


def judge_queues(messages: "DataFrame", *, rows: int, is_send_contiguous: bool) -> "DataFrame":
    """The findings in each queue, as rows of `rules.SCHEMA`.

    Args:
        messages: acknowledged sends with an offset, and deliveries.
        rows: about how many messages there are.
        is_send_contiguous: the messages of one send get offsets in a row.
    """
    from pyspark.sql import functions as f

    buckets = rows // BUCKET_ROWS + messages.sparkSession.sparkContext.defaultParallelism

    def judge(messages: pa.Table) -> pa.Table:
        return _judge(messages, is_send_contiguous=is_send_contiguous)

    bucket = f.pmod(f.xxhash64("queue"), f.lit(buckets))
    return messages.withColumn("bucket", bucket).groupBy("bucket").applyInArrow(judge, SCHEMA)


def _judge(messages: pa.Table, *, is_send_contiguous: bool) -> pa.Table:
    messages = messages.sort_by("row").combine_chunks()
    numbers = {
        name: messages[name].fill_null(NONE).to_numpy().astype(np.int64, copy=False)
        for name in _NUMBERS
    }
    found, sends, deliveries = _traffic(messages, numbers)
    placements = Placements.of(found)
    shown = _shown(placements, numbers, sends, deliveries)
    found_pairs: list[tuple[Integers, Pairs]] = [
        (shown, inconsistent_pairs(placements)),
        *((deliveries, pairs) for pairs in poll_pairs(placements)),
        *((sends, pairs) for pairs in send_pairs(
            placements, is_send_contiguous=is_send_contiguous)),
        (sends, backdated_pairs(placements)),
    ]  # fmt: skip
    findings = [
        pa.Table.from_pylist(list(_findings(messages, name, places[some], places[others])), ARROW)
        for places, (name, before, after) in found_pairs
        for some, others in zip(_cut(before), _cut(after), strict=True)
    ]
    return pa.concat_tables([ARROW.empty_table(), *findings])


def _traffic(
    messages: pa.Table, numbers: dict[str, Integers]
) -> tuple[Traffic, Integers, Integers]:
    """The messages as the checkers take them; and the places of sends and of deliveries."""
    is_send = numbers["end"] != NONE
    sends, deliveries = np.flatnonzero(is_send), np.flatnonzero(~is_send)
    key, keys = _coded(messages["queue"])
    value, values = _coded(messages["value"])
    operation = np.unique(numbers["operation"], return_inverse=True)[1].astype(np.int64)
    start = np.zeros(len(operation), np.int64)
    start[operation[sends]] = numbers["start"][sends]
    # Another stretch of a process's reading is like another process: no order binds them.
    processes = np.unique(numbers["process"], return_inverse=True)[1].astype(np.int64)
    reader = processes * (numbers["epoch"].max(initial=0) + 1) + numbers["epoch"]
    row, process, offset, end = (numbers[name] for name in ("row", "process", "offset", "end"))
    none = np.zeros(0, np.int64)
    history = History(none, none, none, none, none, none, none, none, (), keys, values)
    outcome = np.full(len(row), OK, np.int64)
    sent = (row, operation, process, key, value, outcome, offset, end)
    got = (row, operation, reader, key, value, offset)
    found = Traffic(
        history,
        Sends(*(column[sends] for column in sent)),
        Deliveries(*(column[deliveries] for column in got)),
        send_of_value=none,
        is_unique=True,
        start=start,
        strangers=none,
    )
    return found, sends, deliveries


def _coded(column: pa.ChunkedArray) -> tuple[Integers, list[str]]:
    """Texts as codes, `NONE` for null, and what the codes stand for."""
    coded = column.combine_chunks().dictionary_encode()
    codes = coded.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, coded.dictionary.to_pylist()


def _shown(
    placements: Placements, numbers: dict[str, Integers], sends: Integers, deliveries: Integers
) -> Integers:
    """For each placement: the place of the message whose answer shows it."""
    places = np.concatenate((sends, deliveries))
    answered = np.concatenate((numbers["end"][sends], numbers["row"][deliveries]))
    order = np.argsort(answered)
    return places[order[np.searchsorted(answered, placements.row, sorter=order)]]


def _cut(places: Integers) -> Iterator[Integers]:
    """Places in pieces of which Python objects are made at once."""
    return (places[at : at + _OBJECTS] for at in range(0, len(places), _OBJECTS))


def _findings(
    messages: pa.Table, name: str, before: Integers, after: Integers
) -> Iterator[dict[str, object]]:
    """A row of `SCHEMA` for each pair of places."""
    fact = _FACTS.get(name) or _FACTS["send" if "send" in name else "poll"]
    columns = ["row", "queue", "process", "offset", "operation", "value"]
    both = (messages.select(columns).take(pa.array(places)).to_pylist()
            for places in (before, after))  # fmt: skip
    for earlier, later in zip(*both, strict=True):
        words = {"queue": "-" if later["queue"] is None else later["queue"]}
        told = {f"{column}_before": earlier[column] for column in columns} | later | words
        operations = sorted({earlier["operation"], later["operation"]})
        yield {
            **{column: later[column] for column in columns[:4]},
            "kind": name,
            "values": [earlier["value"], later["value"]],
            "operations": operations,
            "fact": fact.format_map(told),
        }
