"""Events of all messages, from a range of a partition group's log, as columns.

    page = await mq.events(1)                        from the first record that the log still has
    page = await mq.events(1, page.next)             and so on, until next == end
    page.to_arrow()                                  -> a record batch

A row is one effect of one record on a *run*: messages of a queue that follow each other. A thousand
messages that were stored, handed out or acked at once are one row, and those of them that failed
are a row for each run among them. `Client.trace` returns the events of one message.

| what | detail |
|---|---|
| `stored` | -; the batch was placed in its queue |
| `handed out`, `extended` | until when the lease runs |
| `nacked`, `expired` | when they are due again |
| `dead letter` | the letter's number |
| `acked`, `ready`, `given back`, `redriven`, `purged`, `passed over`, `lost` | - |
| `trimmed`, `skipped` | -; all messages before an offset: the unsettled are lost, or skipped |
| `filter gone`, `reset` | -; all messages from an offset on that were stored by then |

Leases that run out together are one row, without consumer and token: these are in the rows of the
hand-out.

Invariants:
- Rows of one range are equal at any time and from any leader; they stand in the log's order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from raftmq.client.routing.requests import read_table, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK, SYSTEM_GROUP
from raftmq.pop import message_events
from raftmq.pop.message_events import OPEN as OPEN  # these three are for readers of `Events`
from raftmq.pop.message_events import SETTLED as SETTLED
from raftmq.pop.message_events import EventKind as EventKind
from raftmq.wire.codec import unpack
from raftmq.wire.messages import FrameKind
from raftmq.wire.traces import FindEvents, FoundEvents

from .consumer_groups import find_groups
from .traces import WITH_UNTIL, word_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow

Column: TypeAlias = "npt.NDArray[Any]"

WORDS = tuple(
    # It is about all messages before an offset; in the trace of one message it is called `lost`.
    "trimmed" if kind == EventKind.TRIMMED else word_of(kind)
    for kind in EventKind
)
"""The names of the kinds, from kind 0 on."""
STATES = OPEN + SETTLED
"""The states of a message for a group, as in `Journey.state`; those that are final come last."""
LEADS_TO = {WORDS[kind]: state for kind, state in message_events.LEADS_TO.items()}
"""Event → the state of a message after it; other events leave the state as it was. `nacked` and
`expired` lead to `ready` if their time is over at once; `trimmed` and `skipped` concern messages
that are not settled, `filter gone` those that were passed over."""
SWEEPING = tuple(WORDS[kind] for kind in message_events.SWEEPING)
"""Events about a whole stretch: all messages before an offset or from one on."""


@dataclass(frozen=True, slots=True)
class Events:
    """Rows of the records in [start, next) of a partition group's log; all columns equally long."""

    partition_group: int
    """Number of the partition group."""
    start: int
    """The first record asked for."""
    next: int
    """The record to go on with."""
    first: int
    """The first record that the log still has."""
    end: int
    """The record after the last one; at the end `next` is `end`."""
    index: Column
    """The record's position in the log, i64."""
    term: Column
    """The record's term, i64."""
    timestamp: Column
    """The record's time, milliseconds since 1970, i64."""
    kind: Column
    """The kind of event, u8: see `words`."""
    queue_number: Column
    """`topic id << 16 | queue`, u64."""
    offset: Column
    """The first message of the run, i64."""
    count: Column
    """Messages in the run, i64, at least 1; 2^63 - 1 - `offset` for a run without an end."""
    number: Column
    """The attachment of the consumer group, u32; 0: the event concerns no group."""
    consumer: Column
    """The consumer that acted or has the messages, i64; 0: none. For `stored`: the producer."""
    token: Column
    """The lease, i64; 0: none."""
    attempt: Column
    """Number of hand-outs of the messages by then, u16."""
    detail: Column
    """A time in milliseconds since 1970 or the number of a dead letter, i64; see the table."""
    topics: dict[int, str]
    """Names of the topics by number; `#7` for one that is gone."""
    groups: dict[int, str]
    """Names of the consumer groups by the numbers of their attachments; `#7` for one that is
    gone."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def words(self) -> list[str]:
        """The names of the kinds, from kind 0 on; `kind 99` for one that this client lacks."""
        unknown = range(len(WORDS), int(self.kind.max(initial=0)) + 1)
        return [*WORDS, *map(word_of, unknown)]

    def to_arrow(self) -> "pyarrow.RecordBatch":
        """All rows, with names in place of numbers; needs pyarrow.

        Columns: partition_group int32, index int64, step int32 (the row's place among the rows of
        its record, from 0), term int64, timestamp (us, UTC), what string, topic string, topic_id
        int64, queue int32, offset int64, count int64, group string, attachment int64, producer
        int64 (of `stored`), consumer int64, token int64, attempt int32, until timestamp (us, UTC).
        Null: group and attachment of `stored`, a missing producer, consumer or token, and until if
        the detail is no time.
        """
        import numpy as np
        import pyarrow as pa

        topics = (self.queue_number >> np.uint64(QUEUE_BITS)).astype(np.int64)
        queues = (self.queue_number & np.uint64(QUEUE_MASK)).astype(np.int32)
        has_group = self.number != 0
        is_consumer = (self.kind != 0) & (self.consumer != 0)
        is_producer = (self.kind == 0) & (self.consumer != 0)
        attachments = self.number.astype(np.int64)
        # `Events` hold whole records, so the first row of an index here is its step 0.
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
    import numpy as np
    import pyarrow as pa

    known, places = np.unique(numbers, return_inverse=True)
    words = pa.array([names[number] for number in known.tolist()], pa.string())
    return words.take(pa.array(places))


class Names:
    """Names of topics and of attached groups by their numbers, fetched when first needed."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.topics: dict[int, str] = {}
        """Topics by number."""
        self.groups: dict[int, str] = {}
        """Consumer groups by the numbers of their attachments."""

    async def learn(
        self, topics: Iterable[int], numbers: Iterable[int], timeout: float | None
    ) -> None:
        """Fetch these names. A number that the catalog does not know is gone for ever: no number is
        used twice."""
        left = seconds_left(self._router, timeout)
        if not self.topics.keys() >= set(topics):
            view = await read_table(self._router, timeout=left())
            self.topics |= {topic.id: topic.name for topic in view.topics}
            self.topics |= {n: f"#{n}" for n in topics if n not in self.topics}
        if not self.groups.keys() >= set(numbers):
            for settings in await find_groups(self._router, timeout=left()):
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
    left = seconds_left(router, timeout)
    from . import event_columns

    await _require(router, partition_group, left())
    found, pages = FoundEvents(0, 0, 0, 0, 0, 0), [event_columns.columns_of(0, 0, b"")]
    if start is None or bytes_max <= 0:
        found, _ = await _ask(router, FindEvents(partition_group, 0, bytes_max=0), left())
    following = start = found.first if start is None else start
    skip, is_cut = 0, bytes_max > 0 and stop != start
    # A page may end within a record; the caller gets whole records.
    while is_cut:
        question = FindEvents(partition_group, following, stop or 0, skip, bytes_max)
        found, body = await _ask(router, question, left())
        pages.append(event_columns.columns_of(found.rows, found.bits, body))
        following, skip = found.next, found.skip
        is_cut = skip > 0
    columns = event_columns.joined(pages)
    topics, numbers = event_columns.topics_of(columns), event_columns.numbers_of(columns)
    await names.learn(topics, numbers, left())
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
    """Refuse a number that is no partition group with queues, for which no node would answer."""
    if partition_group not in router.groups:
        await read_table(router, timeout=timeout)
    known = sorted(router.groups.keys() - {SYSTEM_GROUP})
    if partition_group not in known:
        message = f"there is no partition group {partition_group} with queues: there are {known}"
        raise Rejected(Reason.BAD_ARGUMENT, message)
