"""What became of all messages, by a range of the log of a partition group, as columns.

    page = await mq.events(1)                        from the first record that the log still has
    page = await mq.events(1, page.next)             and so on, until next == end
    page.to_arrow()                                  -> a record batch

A row is one thing that one record did to a *run*: messages of a queue that follow each other. A
thousand messages that were stored, handed out or acked at once are one row, and those of them that
failed are a row for each run among them. `Client.trace` tells the same of one message.

| what | detail |
|---|---|
| `stored` | -; the batch was placed in its queue |
| `handed out`, `extended` | until when the lease runs |
| `nacked`, `expired` | when they are due again |
| `dead letter` | the letter's number |
| `acked`, `ready`, `given back`, `redriven`, `purged`, `passed over`, `lost` | - |
| `trimmed`, `skipped` | -; about all before an offset: what is not settled is lost, or skipped |
| `filter gone`, `reset` | -; about all from an offset on that were stored by then |

Leases that run out together are one row, without consumer and token: these are in the rows of the
hand-out.

Invariants:
- Rows of one range are the same at any time and from any leader; they are told in the log's order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raftmq.errors import ProtocolError, Reason, Rejected
from raftmq.pop.touches import TouchKind
from raftmq.wire.codec import unpack
from raftmq.wire.messages import FrameKind
from raftmq.wire.tracing import FindEvents, FoundEvents

from .consumer_groups import find_groups
from .message import QUEUE_BITS
from .router import SYSTEM_GROUP, Router
from .tracing import WITH_UNTIL, word_of

if TYPE_CHECKING:
    import pyarrow

Column = npt.NDArray[Any]

_TRIMMED = "trimmed"
"""What is told of all before an offset; of a message that is not settled it is `lost`."""
_MAX32 = 2**32 - 1
OFFSET_MAX = 2**63 - 1
"""Where a run ends that has no end."""
_LAYOUT = {
    "index": "<i8",
    "term": "<i8",
    "timestamp": "<i8",
    "queue_number": "<u8",
    "offset": "<i8",
    "consumer": "<i8",
    "token": "<i8",
    "detail": "<i8",
    "count": "<u4",
    "number": "<u4",
    "bits_at": "<u4",
    "attempt": "<u2",
    "kind": "u1",
}
"""The columns of an answer."""


@dataclass(frozen=True, slots=True)
class Events:
    """Rows of the records in [start, next) of a partition group's log; each column as long."""

    partition_group: int
    """The partition group."""
    start: int
    """The first record asked for."""
    next: int
    """The record to go on with."""
    first: int
    """The first record that the log still has."""
    end: int
    """The record after the last one; `next` is `end` once all is told."""
    index: Column
    """The record's position in the log, i64."""
    term: Column
    """The record's term, i64."""
    timestamp: Column
    """The record's time, milliseconds since 1970, i64."""
    kind: Column
    """What it did, u8: see `words`."""
    queue_number: Column
    """`topic id << 16 | queue`, u64."""
    offset: Column
    """The first message of the run, i64."""
    count: Column
    """Messages in the run, i64, at least 1; up to 2^63 - 1 - `offset` where it has no end."""
    number: Column
    """The attachment of the consumer group, u32; 0: about no group."""
    consumer: Column
    """Who did it or whose the messages are, i64; 0: nobody's. Of `stored`: the producer's id."""
    token: Column
    """The lease, i64; 0: none."""
    attempt: Column
    """How often the messages were handed out by then, u16."""
    detail: Column
    """A time in milliseconds since 1970 or the number of a dead letter, i64; see the table."""
    topics: dict[int, str]
    """Names of the topics by number; `#7` for one that is gone."""
    groups: dict[int, str]
    """Names of the consumer groups by the numbers of their attachments; `#7` likewise."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def words(self) -> list[str]:
        """What the kinds are called, from kind 0 on."""
        highest = int(self.kind.max(initial=0))
        return [
            _TRIMMED if kind == TouchKind.TRIMMED else word_of(kind) for kind in range(highest + 1)
        ]

    def to_arrow(self) -> "pyarrow.RecordBatch":
        """All rows, with names in place of numbers; needs pyarrow.

        Columns: partition_group int32, index int64, step int32 (which of its record's rows it is,
        from 0), term int64, timestamp (us, UTC), what string, topic string, topic_id int64, queue
        int32, offset int64, count int64, group string, attachment int64, producer int64 (of
        `stored`), consumer int64, token int64, attempt int32, until timestamp (us, UTC). Null:
        group and attachment of `stored`, producer, consumer and token where there is none, until
        where the detail is no time.
        """
        import pyarrow as pa

        topics = (self.queue_number >> np.uint64(QUEUE_BITS)).astype(np.int64)
        queues = (self.queue_number & np.uint64((1 << QUEUE_BITS) - 1)).astype(np.int32)
        has_group = self.number != 0
        is_consumer = (self.kind != 0) & (self.consumer != 0)
        is_producer = (self.kind == 0) & (self.consumer != 0)
        attachments = self.number.astype(np.int64)
        # Events end with a record, and begin with one.
        steps = np.arange(len(self)) - np.searchsorted(self.index, self.index)
        stamp = pa.timestamp("us", "UTC")
        columns = {
            "partition_group": pa.array(np.full(len(self), self.partition_group, np.int32)),
            "index": pa.array(self.index),
            "step": pa.array(steps.astype(np.int32)),
            "term": pa.array(self.term),
            "timestamp": pa.array(self.timestamp * 1000, pa.int64()).cast(stamp),
            "what": pa.array(self.words).take(pa.array(self.kind)),
            "topic": _named(topics, self.topics),
            "topic_id": pa.array(topics),
            "queue": pa.array(queues),
            "offset": pa.array(self.offset),
            "count": pa.array(self.count),
            "group": _named(attachments, self.groups | {0: None}),
            "attachment": pa.array(attachments, mask=~has_group),
            "producer": pa.array(self.consumer, mask=~is_producer),
            "consumer": pa.array(self.consumer, mask=~is_consumer),
            "token": pa.array(self.token, mask=self.token == 0),
            "attempt": pa.array(self.attempt.astype(np.int32)),
            "until": pa.array(
                self.detail * 1000, pa.int64(), mask=~np.isin(self.kind, WITH_UNTIL)
            ).cast(stamp),
        }
        return pa.RecordBatch.from_pydict(columns)


def _named(numbers: Column, names: "dict[int, str] | dict[int, str | None]") -> "pyarrow.Array":
    import pyarrow as pa

    known, places = np.unique(numbers, return_inverse=True)
    words = pa.array([names[number] for number in known.tolist()], pa.string())
    return words.take(pa.array(places))


class Names:
    """Names of topics and of attached groups by their numbers, asked for when they are met."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.topics: dict[int, str] = {}
        """Topics by number."""
        self.groups: dict[int, str] = {}
        """Consumer groups by the numbers of their attachments."""

    async def learn(
        self, topics: Iterable[int], numbers: Iterable[int], timeout: float | None
    ) -> None:
        """Know these. What the catalog does not know is gone for ever: no number is used twice."""
        if not self.topics.keys() >= set(topics):
            asking = self._router.ask_system_leader(None)
            view = await self._router.within(timeout, asking, "reading the routing table")
            self.topics |= {topic.id: topic.name for topic in view.topics}
            self.topics |= {n: f"#{n}" for n in topics if n not in self.topics}
        if not self.groups.keys() >= set(numbers):
            for settings in await find_groups(self._router, timeout=timeout):
                self.groups |= {each.number: settings.name for each in settings.attachments}
            self.groups |= {n: f"#{n}" for n in numbers if n not in self.groups}


async def read_events(
    router: Router,
    names: Names,
    partition_group: int,
    *,
    start: int | None,
    stop: int | None,
    bytes_max: int,
    timeout: float | None,
) -> Events:
    """See `Client.events`."""
    await _require(router, partition_group, timeout)
    found, pages = FoundEvents(0, 0, 0, 0, 0, 0), [_columns(0, 0, b"")]
    if start is None or bytes_max <= 0:
        found, _ = await _ask(router, FindEvents(partition_group, 0, bytes_max=0), timeout)
    following = start = found.first if start is None else start
    skip, is_cut = 0, bytes_max > 0 and stop != start
    # A page may end within a record; what is given to the caller does not.
    while is_cut:
        question = FindEvents(partition_group, following, stop or 0, skip, bytes_max)
        found, body = await _ask(router, question, timeout)
        pages.append(_columns(found.rows, found.bits, body))
        following, skip = found.next, found.skip
        is_cut = skip > 0
    columns = {name: np.concatenate([page[name] for page in pages]) for name in pages[0]}
    topics = np.unique(columns["queue_number"] >> np.uint64(QUEUE_BITS)).tolist()
    numbers = [number for number in np.unique(columns["number"]).tolist() if number]
    await names.learn(topics, numbers, timeout)
    return Events(
        partition_group=partition_group,
        start=start,
        next=following,
        first=found.first,
        end=found.end,
        **columns,
        topics={number: names.topics[number] for number in topics},
        groups={number: names.groups[number] for number in numbers},
    )


async def _ask(
    router: Router, question: FindEvents, timeout: float | None
) -> tuple[FoundEvents, bytes]:
    group = question.partition_group
    frame = await router.call_leader(group, FrameKind.EVENTS, question, timeout=timeout)
    return unpack(FoundEvents, frame.header), frame.body


async def _require(router: Router, partition_group: int, timeout: float | None) -> None:
    """Refuse what is no partition group with queues: nobody would ever answer for it."""
    if partition_group not in router.groups:
        asking = router.ask_system_leader(None)
        await router.within(timeout, asking, "reading the routing table")
    known = sorted(router.groups.keys() - {SYSTEM_GROUP})
    if partition_group not in known:
        message = f"there is no partition group {partition_group} with queues: there are {known}"
        raise Rejected(Reason.BAD_ARGUMENT, message)


def _columns(rows: int, bits: int, body: bytes) -> dict[str, Column]:
    """The columns of an answer, a row for each run."""
    columns, at = {}, 0
    if len(body) != bits + rows * sum(np.dtype(kind).itemsize for kind in _LAYOUT.values()):
        raise ProtocolError(f"{rows} rows of events with {bits} bytes of bits in {len(body)} bytes")
    for name, kind in _LAYOUT.items():
        columns[name] = np.frombuffer(body, kind, rows, at)
        at += columns[name].nbytes
    return _in_runs(columns, np.frombuffer(body, np.uint8, bits, at))


def _in_runs(columns: dict[str, Column], bits: npt.NDArray[np.uint8]) -> dict[str, Column]:
    base, width = columns["offset"], columns["count"].astype(np.int64)
    bits_at = columns.pop("bits_at")
    gapped = np.flatnonzero(bits_at != _MAX32)
    plain = np.flatnonzero(bits_at == _MAX32)
    offsets, counts = base[plain], width[plain]
    counts = np.where(counts == _MAX32, OFFSET_MAX - offsets, counts)
    is_before = counts == 0
    counts = np.where(is_before, offsets, counts)
    offsets = np.where(is_before, 0, offsets)
    of, firsts, lengths = _runs(bits, (width[gapped] + 7) // 8)
    rows = np.concatenate([plain, gapped[of]])
    offsets = np.concatenate([offsets, base[gapped[of]] + firsts])
    counts = np.concatenate([counts, lengths])
    order = np.argsort(rows, kind="stable")
    # Before offset 0 there is nothing.
    order = order[counts[order] > 0]
    taken = {name: column[rows[order]] for name, column in columns.items()}
    return taken | {"offset": offsets[order], "count": counts[order]}


def _runs(
    bits: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]
) -> tuple[Column, Column, Column]:
    """Runs of set bits: in which of the pieces of these sizes, from which bit on, how many.

    >>> found = _runs(np.array([0b10011100, 1, 0b110], "u1"), np.array([2, 1]))
    >>> [column.tolist() for column in found]
    [[0, 0, 1], [2, 7, 1], [3, 2, 2]]
    """
    starts = np.cumsum(sizes) - sizes
    flat = np.unpackbits(bits, bitorder="little").astype(np.int8)
    before = np.concatenate([[0], flat[:-1]])
    after = np.concatenate([flat[1:], [0]])
    edges = starts * 8
    # A run ends where its piece does.
    before[edges] = 0
    after[edges[1:] - 1] = 0
    firsts = np.flatnonzero((flat == 1) & (before == 0))
    lasts = np.flatnonzero((flat == 1) & (after == 0))
    of = np.searchsorted(edges, firsts, side="right") - 1
    return of, firsts - edges[of], lasts - firsts + 1
