"""The table `events` of the source: the history of all messages, from the log's own entries.

    spark.read.format("raftmq").option("table", "events").load()

| column | type | meaning |
|---|---|---|
| partition_group | int | whose log |
| index, step | bigint, int | the record in that log, and which of its rows, from 0 |
| term | bigint | its term |
| timestamp | timestamp | its time: when the leader made it |
| what | string | what it did: see `raftmq.client.admin.events` |
| topic, topic_id, queue | string, bigint, int | the queue; a topic that is gone is `#` and its id |
| offset, count | bigint, bigint | the run of messages; count is null if the run has no end |
| group | string | the consumer group; null: none; one that is gone is `#` and a number |
| attachment | bigint | the number of the group's attachment to the topic; null: none |
| producer | bigint | of `stored`: who sent them, the same id on all queues; null: not known |
| consumer, token | bigint, bigint | the acting or owning consumer, and the lease; null: none |
| attempt | int | how often the messages were handed out by then |
| until | timestamp | when the lease runs out, or they are due again; null: neither |

| option | default | meaning |
|---|---|---|
| table | messages | `events` |
| subscribe | all | only rows about these topics, separated by commas |
| url | `RAFTMQ_URL` | `raftmq://host:port[,host:port...]` |
| startingOffsets | earliest | `earliest`, or JSON: partition group → the first record |
| endingOffsets | latest | `latest`, or JSON: partition group → the record after the last; batch |
| maxOffsetsPerTrigger | | records of the logs a micro-batch at most; streams |
| minPartitions | | Spark partitions at least |
| failOnDataLoss | true | whether records that retention took away unread are an error |
| timeout | 60 | seconds without a leader until an error |

An offset of this table is a partition group's position in its log: `{"1": 5000, "2": 731}` is the
next record to read of each.

Invariants:
- A range of records gives the same rows whenever it is read; only names of what was deleted
  meanwhile turn into numbers.
- Ranges of one read are without gap or overlap.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import Reason, Rejected
from raftmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.blocking import BlockingClient

COLUMNS = {
    "partition_group": "int",
    "index": "bigint",
    "step": "int",
    "term": "bigint",
    "timestamp": "timestamp",
    "what": "string",
    "topic": "string",
    "topic_id": "bigint",
    "queue": "int",
    "offset": "bigint",
    "count": "bigint",
    "group": "string",
    "attachment": "bigint",
    "producer": "bigint",
    "consumer": "bigint",
    "token": "bigint",
    "attempt": "int",
    "until": "timestamp",
}
"""Column → its type in Spark's words, in order."""
DDL = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
"""All of them as Spark's schema."""

NAMES = (
    "table", "subscribe", "url", "startingOffsets", "endingOffsets", "maxOffsetsPerTrigger",
    "minPartitions", "failOnDataLoss", "timeout",
)  # fmt: skip
"""All options."""

Indexes = dict[int, int]
"""Partition group → a record of its log."""

_HOW = 'write {"1": 5000, "2": 731}: partition group, record'


class Span(NamedTuple):
    """Neighbouring records of one log."""

    partition_group: int
    """The partition group of the log."""
    start: int
    """The first record."""
    end: int
    """The index after the last record."""


@dataclass(frozen=True, slots=True)
class EventOptions:
    """The options as the user gave them, checked."""

    url: str
    """The cluster."""
    topics: frozenset[str]
    """Only rows about these; empty: about all."""
    start: Indexes | None
    """The first records to read; None: the first record of each log."""
    end: Indexes | None
    """The records after the last ones of a batch; None: the ends of the logs."""
    records_max: int | None
    """Records a micro-batch at most; None: all there are."""
    parts_min: int
    """Spark partitions at least."""
    fails_on_loss: bool
    """Whether records that are gone are an error."""
    timeout: float
    """Seconds."""


def parse(given: Mapping[str, str]) -> EventOptions:
    """Read options; names may be in any case.

    Raises:
        PipelineError: an option does not exist, or cannot be read.
    """
    names = {name.lower(): name for name in NAMES}
    unknown = sorted(name for name in given if name.lower() not in names)
    if unknown:
        message = f"table events has no option {unknown[0]!r}"
        raise PipelineError(message, f"there are {', '.join(NAMES)}")
    said = {names[name.lower()]: str(value).strip() for name, value in given.items()}
    url = said.get("url") or os.environ.get("RAFTMQ_URL", "")
    if not url:
        raise PipelineError(
            "no cluster is named", 'set RAFTMQ_URL, or .option("url", "raftmq://host:7400")'
        )
    fails = said.get("failOnDataLoss", "true").lower()
    if fails not in ("true", "false"):
        raise PipelineError(f"option failOnDataLoss is neither true nor false: {fails}", "set one")
    return EventOptions(
        url=url,
        topics=frozenset(name.strip() for name in said.get("subscribe", "").split(",")) - {""},
        start=_indexes(said, "startingOffsets", "earliest"),
        end=_indexes(said, "endingOffsets", "latest"),
        records_max=_number(said, "maxOffsetsPerTrigger"),
        parts_min=_number(said, "minPartitions") or 1,
        fails_on_loss=fails == "true",
        timeout=float(_number(said, "timeout") or 60),
    )


def _number(said: Mapping[str, str], name: str) -> int | None:
    text = said.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise PipelineError(f"option {name} is no whole number from 1: {text}", "give it one")
    return int(text)


def _indexes(said: Mapping[str, str], name: str, default: str) -> Indexes | None:
    text = said.get(name, default)
    if text.lower() == default:
        return None
    try:
        return from_json(json.loads(text))
    except (ValueError, PipelineError):
        message = f"option {name} cannot be read: {text[:100]}"
        raise PipelineError(message, f"{_HOW}; or {default}") from None


def from_json(found: object) -> Indexes:
    """Records by partition group, as Spark keeps them and users write them.

    >>> from_json({"2": 7, "10": 3})
    {2: 7, 10: 3}

    Raises:
        PipelineError: these are no such offsets.
    """
    message = f"{json.dumps(found)[:200]} are no records of partition groups"
    wrong = PipelineError(message, f"use a checkpoint of its own for each query; {_HOW}")
    if not isinstance(found, dict):
        raise wrong
    for group, index in found.items():
        if not (str(group).isdecimal() and type(index) is int and index >= 0):
            raise wrong
    return {int(group): index for group, index in found.items()}


def to_json(indexes: Indexes) -> dict[str, int]:
    """The same as what Spark turns into JSON: equal records are equal JSON.

    >>> to_json({10: 3, 2: 7})
    {'2': 7, '10': 3}
    """
    return {str(group): indexes[group] for group in sorted(indexes)}


def bounds(mq: "BlockingClient") -> dict[int, Span]:
    """The records that each log with queues holds now, by partition group."""
    view = mq.admin.cluster()
    found = {}
    for group in sorted(each.id for each in view.groups if each.id):
        page = mq.events(group, bytes_max=0)
        found[group] = Span(group, page.first, page.end)
    return found


def spans(
    held: Mapping[int, Span], start: Indexes, end: Indexes, *, fails_on_loss: bool
) -> list[Span]:
    """The records to read, from `start` to `end`; a group not in `start` from its first record.

    Raises:
        PipelineError: retention took records away that were not read; there is no such group, or
            its log ends before `start`.
    """
    found = []
    for group, stop in sorted(end.items()):
        if group not in held:
            message = f"there is no partition group {group} with queues: there are {sorted(held)}"
            raise PipelineError(message, "leave it out of the offsets")
        first = start.get(group, held[group].start)
        if first > held[group].end:
            raise _ahead(group, first, held[group].end)
        if first < held[group].start and first < stop:
            if fails_on_loss:
                raise lost(group, first, held[group].start)
            first = held[group].start
        if first < stop:
            found.append(Span(group, first, stop))
    return found


def lost(group: int, first: int, kept: int) -> PipelineError:
    """The error: retention dropped records of a log before they were read."""
    return PipelineError(
        f"records {first} to {kept - 1} of the log of partition group {group} are gone by "
        "retention, unread",
        "read more often or keep more of the log; or go on without them: set failOnDataLoss to "
        "false",
    )


def limited(found: list[Span], records_max: int | None) -> list[Span]:
    """About `records_max` records, shared in proportion to what each log has.

    >>> limited([Span(1, 0, 300), Span(2, 50, 150)], 8)  # doctest: +ELLIPSIS
    [Span(..., end=6), Span(partition_group=2, start=50, end=52)]
    """
    total = sum(each.end - each.start for each in found)
    if records_max is None or total <= records_max:
        return found
    shares = [max(1, (each.end - each.start) * records_max // total) for each in found]
    return [
        each._replace(end=each.start + share) for each, share in zip(found, shares, strict=True)
    ]


def split(found: list[Span], parts_min: int) -> list[Span]:
    """The same records in at least `parts_min` spans, or one a record; the order stays."""
    total = sum(each.end - each.start for each in found)
    pieces = []
    for each in found:
        size = each.end - each.start
        parts = min(size, max(1, -(-size * parts_min // total)))
        edges = [each.start + size * n // parts for n in range(parts + 1)]
        pieces += [each._replace(start=start, end=end) for start, end in pairwise(edges)]
    return pieces


def read(mq: "BlockingClient", options: EventOptions, span: Span) -> "Iterator[pa.RecordBatch]":
    """The rows of a span in the order of the log, page by page.

    Raises:
        PipelineError: retention took the rest of it away meanwhile.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    topics = pa.array(sorted(options.topics), pa.string())
    start = span.start
    while start < span.end:
        try:
            page = mq.events(span.partition_group, start, span.end)
        except Rejected as refused:
            if refused.reason != Reason.OFFSET_OUT_OF_RANGE:
                raise
            kept = mq.events(span.partition_group, bytes_max=0)
            # A log that begins at or before `start`, and refuses it, ends before it: another log.
            if options.fails_on_loss or kept.first <= start:
                raise _not_there(span, start, kept.first, kept.end) from refused
            start = min(kept.first, span.end)
            continue
        batch = _without_endless(page.to_arrow())
        if len(topics):
            batch = batch.filter(pc.is_in(batch.column("topic"), value_set=topics))
        if batch.num_rows:
            yield batch
        start = page.next


def _without_endless(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Rows without an upper offset get a null count: the sum of two such counts would overflow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = batch.column("count")
    is_endless = pc.equal(pc.add(batch.column("offset"), counts), pa.scalar(2**63 - 1, pa.int64()))
    known = pc.if_else(is_endless, pa.scalar(None, pa.int64()), counts)
    return batch.set_column(batch.schema.get_field_index("count"), "count", known)


def _not_there(span: Span, start: int, first: int, end: int) -> PipelineError:
    if start < first:
        return lost(span.partition_group, start, min(first, span.end))
    return _ahead(span.partition_group, start, end)


def _ahead(group: int, index: int, end: int) -> PipelineError:
    """The error: a log that ends before a record that was read is another cluster's log.

    No leader takes back a record that was applied.
    """
    return PipelineError(
        f"the log of partition group {group} ends with record {end - 1}, and {index} is to be read",
        "check that the checkpoint or the offsets are of this cluster",
    )
