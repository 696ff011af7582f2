"""The lives of messages of one queue: events become timelines, without a Python loop over rows.

A *timeline* is about a run of messages of one queue and one consumer group that had the same life,
to the millisecond: a thousand messages that were stored, handed out and acked together are one.

    stored     [0 ............................ 1000)     borders of all runs cut the queue into
    handed out [0 ........... 500)[500 ...... 1000)      pieces; within a piece all messages have
    acked      [0 ........... 500)[500 .. 900)           the same events. Each event is laid on the
    nacked                              [900..1000)      pieces that it covers, and a piece's
    pieces     |             |          |         |      events are reduced to a timeline.

Pieces that come out alike and stand side by side are joined.

An event about all messages before an offset or from one on (`trimmed`, `skipped`, `reset`,
`filter gone`) concerns only messages that were stored by then, and only in some states: as in
`raftmq.client.Trace`.

Invariants:
- Events come in the order of the log: by index and step.
- A message has a timeline of a group only if an event of the group is about it, and if the events
  hold its storing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raftmq.client.admin.events import LEADS_TO, OPEN, STATES, SWEEPING

if TYPE_CHECKING:
    import pyarrow as pa

Column = npt.NDArray[Any]

SETTLED_FROM = len(OPEN)
"""States from this index on are final, but for a redrive, a reset, or a filter that is removed."""
_FRESH, _WAITING, _READY, _ACKED, _PASSED = map(
    STATES.index, ("fresh", "waiting", "ready", "acked", "passed")
)

TIMELINE = {
    "topic": "string",
    "topic_id": "bigint",
    "queue": "int",
    "offset": "bigint",
    "count": "bigint",
    "group": "string",
    "attachment": "bigint",
    "stored": "timestamp",
    "first_handed": "timestamp",
    "last_handed": "timestamp",
    "ended": "timestamp",
    "outcome": "string",
    "attempts": "int",
    "handed": "int",
    "failed": "int",
    "consumer": "bigint",
    "wait_ms": "bigint",
    "service_ms": "bigint",
    "total_ms": "bigint",
}
"""Column → its type in Spark's words, in order; see `raftmq.pipeline.trace`."""

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one queue in the order of the log, as columns; words stand as numbers."""

    index: Column
    """The record."""
    time: Column
    """Milliseconds since 1970."""
    what: Column
    """An index into `words`."""
    start: Column
    """The first message."""
    end: Column
    """The offset after the last one."""
    attachment: Column
    """0: none."""
    attempt: Column
    """How often they were handed out by then."""
    consumer: Column
    """The consumer's id; 0: none."""
    until: Column
    """Milliseconds since 1970; 0: neither a lease nor a due time."""
    words: list[str]
    """The names of the events."""

    def take(self, rows: Column) -> "Events":
        """Some of them."""
        return Events(
            self.index[rows],
            self.time[rows],
            self.what[rows],
            self.start[rows],
            self.end[rows],
            self.attachment[rows],
            self.attempt[rows],
            self.consumer[rows],
            self.until[rows],
            self.words,
        )

    def are(self, *words: str) -> Column:
        """A mask of the events with one of these names."""
        wanted = [n for n, word in enumerate(self.words) if word in words]
        return np.isin(self.what, wanted)


def timelines(table: "pa.Table", low: int, high: int) -> "pa.Table":
    """The timelines of the messages [low, high) of one queue, by attachment and offset.

    Args:
        table: their events, as the source has them, in any order; others may be among them.
        low: the first message.
        high: the offset after the last one.
    """
    import pyarrow as pa

    table = table.sort_by([("index", "ascending"), ("step", "ascending")])
    events = _events(table, low, high)
    stored = events.take(events.are("stored"))
    happened = events.take((events.attachment > 0) & events.are(*LEADS_TO))
    attachments, firsts = np.unique(_attachments(table), return_index=True)
    found = []
    for attachment, first in zip(attachments.tolist(), firsts.tolist(), strict=True):
        lives = _lives(happened.take(happened.attachment == attachment), stored)
        if len(lives["offset"]):
            lives["attachment"] = np.full(len(lives["offset"]), attachment)
            # The oldest row has the group's name: later ones have a number if the group is gone.
            found.append(_table(lives, table["group"][first].as_py()))
    schema = arrow_schema()
    if not found:
        return schema.empty_table()
    joined = pa.concat_tables(found)
    place = {
        "topic": pa.array([table["topic"][0].as_py()] * len(joined), pa.string()),
        "topic_id": pa.array([table["topic_id"][0].as_py()] * len(joined), pa.int64()),
        "queue": pa.array([table["queue"][0].as_py()] * len(joined), pa.int32()),
    }
    for name, column in place.items():
        joined = joined.append_column(name, column)
    return joined.select(schema.names).cast(schema)


def arrow_schema() -> "pa.Schema":
    """`TIMELINE` as Arrow has it."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in TIMELINE.items()])


def ends_of(events: "pa.Table | pa.RecordBatch") -> Column:
    """The offset after each run; 2^63 - 1 for a run without an end."""
    import pyarrow.compute as pc

    ends = pc.add(events["offset"], events["count"])
    found: Column = pc.fill_null(ends, 2**63 - 1).to_numpy(zero_copy_only=False)
    return found


def _events(table: "pa.Table", low: int, high: int) -> Events:
    """The events about messages in [low, high), cut to that range."""
    what = table["what"].combine_chunks().dictionary_encode()
    start = table["offset"].to_numpy()
    events = Events(
        index=table["index"].to_numpy(),
        time=_millis(table["timestamp"]),
        what=what.indices.to_numpy(),
        start=np.maximum(start, low),
        end=np.minimum(ends_of(table), high),
        attachment=_attachments(table),
        attempt=table["attempt"].to_numpy(),
        consumer=table["consumer"].fill_null(0).to_numpy(),
        until=_millis(table["until"]),
        words=what.dictionary.to_pylist(),
    )
    return _each_trimmed_once(events.take(events.start < events.end))


def _attachments(table: "pa.Table") -> Column:
    found: Column = table["attachment"].fill_null(0).to_numpy()
    return found


def _millis(column: "pa.ChunkedArray") -> Column:
    import pyarrow as pa

    # Milliseconds is what the broker stamps; nulls are 0.
    found: Column = column.cast(pa.int64()).fill_null(0).to_numpy()
    return found // 1000


def _each_trimmed_once(events: Events) -> Events:
    """Retention takes a message once: cut each trim to begin where the one before ended."""
    keep = np.ones(len(events.time), bool)
    is_trim = events.are("trimmed")
    for attachment in np.unique(events.attachment[is_trim]).tolist():
        rows = np.flatnonzero(is_trim & (events.attachment == attachment))
        before = np.concatenate([[0], np.maximum.accumulate(events.end[rows])[:-1]])
        events.start[rows] = np.maximum(events.start[rows], before)
        keep[rows] = events.start[rows] < events.end[rows]
    return events.take(keep)


def _lives(events: Events, stored: Events) -> dict[str, Column]:
    """The timelines of one attachment, as columns."""
    borders = np.unique(np.concatenate([events.start, events.end, stored.start, stored.end]))
    born_at, born = np.zeros(len(borders), np.int64), np.full(len(borders), _NEVER)
    pieces, rows = _laid(stored, borders)
    born_at[pieces], born[pieces] = stored.index[rows], stored.time[rows]
    pieces, rows = _laid(events, borders)
    # An event about a whole stretch does not concern messages that were stored later.
    is_there = (events.index[rows] >= born_at[pieces]) & (born[pieces] != _NEVER)
    pieces, rows = pieces[is_there], rows[is_there]
    order = np.argsort(pieces, kind="stable")
    pieces, told = pieces[order], events.take(rows[order])
    is_first = np.ones(len(pieces), bool)
    is_first[1:] = pieces[1:] != pieces[:-1]
    states, counts = _states(told, is_first)
    pieces, told, states = pieces[counts], told.take(counts), states[counts]
    return _joined(_reduced(told, pieces, states, borders, born))


def _laid(events: Events, borders: Column) -> tuple[Column, Column]:
    """The pieces that each event covers, as pairs (piece, event), by event."""
    first = np.searchsorted(borders, events.start)
    sizes = np.searchsorted(borders, events.end) - first
    rows = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return first[rows] + within, rows


def _states(events: Events, is_first: Column) -> tuple[Column, Column]:
    """The state of the messages after each event; and whether the event concerned them.

    Args:
        events: by piece, each piece's in order.
        is_first: which are the first of their piece.
    """
    numbers = {word: STATES.index(state) for word, state in LEADS_TO.items()}
    leads_to = np.array([numbers.get(word, -1) for word in events.words], np.int64)
    states = leads_to[events.what]
    states[(states == _WAITING) & (events.until <= events.time)] = _READY
    is_taking, is_filter = events.are("trimmed", "skipped"), events.are("filter gone")
    pending = is_taking | is_filter
    while pending.any():
        # The events whose predecessor's state is known; mostly all of them, in one round.
        rows = np.flatnonzero(pending & ~(_shifted(pending, fill=False) & ~is_first))
        before = _before(states, is_first)[rows]
        stays = np.where(is_filter[rows], before != _PASSED, before >= SETTLED_FROM)
        states[rows] = np.where(stays, before, states[rows])
        pending[rows] = False
    is_sweeping = events.are(*SWEEPING)
    return states, ~is_sweeping | (states != _before(states, is_first))


def _before(states: Column, is_first: Column) -> Column:
    return np.where(is_first, _FRESH, _shifted(states, fill=_FRESH))


def _shifted(column: Column, *, fill: int) -> Column:
    return np.concatenate([np.full(1, fill, column.dtype), column[:-1]])[: len(column)]


def _reduced(
    events: Events, pieces: Column, states: Column, borders: Column, born: Column
) -> dict[str, Column]:
    """One row a piece that has events."""
    is_first = np.ones(len(pieces), bool)
    is_first[1:] = pieces[1:] != pieces[:-1]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(pieces))[: len(firsts)] - 1
    here, rows = pieces[firsts], np.arange(len(pieces))
    is_handed = events.are("handed out")
    last_at = _by_piece(np.maximum, np.where(is_handed, rows, -1), firsts)
    was_handed = last_at >= 0
    first_at = _by_piece(np.minimum, np.where(is_handed, rows, len(rows) - 1), firsts)
    first_handed = np.where(was_handed, events.time[first_at], _NEVER)
    last_handed = np.where(was_handed, events.time[last_at], _NEVER)
    outcome = states[lasts]
    # A final state was reached by the piece's last event: no later one concerned it.
    ended = np.where(outcome >= SETTLED_FROM, events.time[lasts], _NEVER)
    stored = born[here]
    return {
        "offset": borders[here],
        "count": borders[here + 1] - borders[here],
        "stored": stored,
        "first_handed": first_handed,
        "last_handed": last_handed,
        "ended": ended,
        "outcome": outcome,
        "attempts": _by_piece(np.maximum, events.attempt, firsts),
        "handed": _by_piece(np.add, is_handed, firsts),
        "failed": _by_piece(np.add, events.are("nacked", "expired"), firsts),
        "consumer": np.where(was_handed, events.consumer[last_at], 0),
        "wait_ms": _between(stored, first_handed),
        "service_ms": np.where(outcome == _ACKED, _between(last_handed, ended), _NEVER),
        "total_ms": _between(stored, ended),
    }


def _by_piece(operation: np.ufunc, values: Column, firsts: Column) -> Column:
    if not len(firsts):
        return np.empty(0, np.int64)
    found: Column = operation.reduceat(values.astype(np.int64), firsts)
    return found


def _between(start: Column, end: Column) -> Column:
    """Milliseconds from `start` to `end`; `_NEVER` if either is."""
    return np.where((start == _NEVER) | (end == _NEVER), _NEVER, end - start)


def _joined(lives: dict[str, Column]) -> dict[str, Column]:
    """Join neighbouring runs that are alike."""
    offset, count = lives["offset"], lives["count"]
    if not len(offset):
        return lives
    is_new = np.ones(len(offset), bool)
    is_new[1:] = offset[1:] != offset[:-1] + count[:-1]
    for name, column in lives.items():
        if name not in ("offset", "count"):
            is_new[1:] |= column[1:] != column[:-1]
    firsts = np.flatnonzero(is_new)
    joined = {name: column[firsts] for name, column in lives.items()}
    return joined | {"count": np.add.reduceat(count, firsts)}


def _table(lives: dict[str, Column], group: str) -> "pa.Table":
    import pyarrow as pa

    columns: dict[str, Any] = {"group": pa.array([group] * len(lives["offset"]), pa.string())}
    for name, column in lives.items():
        if name == "outcome":
            columns[name] = pa.array(STATES).take(pa.array(column))
        elif TIMELINE[name] == "timestamp":
            stamps = pa.array(column * 1000, pa.int64(), mask=column == _NEVER)
            columns[name] = stamps.cast(pa.timestamp("us", "UTC"))
        elif name == "consumer":
            columns[name] = pa.array(column, mask=column == 0)
        else:
            columns[name] = pa.array(column, mask=column == _NEVER)
    return pa.table(columns)
