"""The drawing of a history: lanes of operations, latency and rates over time.

Rates and quantiles use all operations. Lanes show a sample where operations are too many: first the
operations of anomalies, then those that failed or stayed unknown, then every n-th of the others.
`Sample` counts the operations that were left out.

Invariants:
- The same history gives the same drawing.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from raftmq.checkers.history import NONE, History, Integers, RowType
from raftmq.words import counted

OPERATIONS_MAX = 2_400
"""Bars of a drawing; more bars would be slow in a browser and too thin to see."""

TROUBLED_MAX = 800
"""Bars for operations that failed or are unknown, without those of anomalies."""

LANES_MAX = 48
"""Processes with a lane: those with anomalies first, then the busiest."""

BUCKETS = 200
"""Intervals of time, for rates and quantiles."""

DEPTH_MAX = 4
"""Rows in a lane for operations of one process that overlap."""

TEXT_CHARACTERS_MAX = 120
"""Longest text of an operation."""

NAMED_MAX = 4
"""Messages of one call that the text names one by one."""


class Timed(NamedTuple):
    """Columns of a history's operations: one element for each operation."""

    start_ns: Integers
    end_ns: Integers
    """Time of the answer; the end of the history for an operation without an answer."""
    process: Integers
    function: Integers
    outcome: Integers
    """A `RowType`."""
    row: Integers
    """The operation's first row, an invoke."""
    last_row: Integers


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """One operation in a lane."""

    operation: int
    lane: int
    depth: int
    start_ms: float
    end_ms: float
    function: int
    outcome: int
    """A `RowType`."""
    is_anomalous: bool
    text: str


class Sample(msgspec.Struct, frozen=True):
    """The drawn operations, and counts of the others."""

    bars: list[Bar]
    lanes: list[int]
    """The processes with a lane, from top to bottom."""
    total: int
    """Operations of the history."""
    step: int
    """Every `step`-th operation that ended ok is drawn; 1: all of them."""
    troubled_left_out: int
    lanes_left_out: int

    def sentence(self) -> str:
        """A sentence for people about the drawn operations."""
        if len(self.bars) == self.total:
            return f"All {self.total:,} operations are drawn."
        parts = [f"{len(self.bars):,} of {self.total:,} operations are drawn: all of the anomalies"]
        if self.troubled_left_out:
            parts.append(f"those that failed or are unknown but {self.troubled_left_out:,}")
        else:
            parts.append("all that failed or are unknown")
        parts.append(f"one in {self.step:,} of the others")
        text = ", ".join(parts)
        if self.lanes_left_out:
            text += f"; without a lane: {counted(self.lanes_left_out, 'process', 'processes')}"
        return text + ". Rates and quantiles below are made of all."


class Curve(msgspec.Struct, frozen=True):
    """Rates and latency of one function, by bucket; quantiles are -1 where nothing ended."""

    function: str
    ok: list[int]
    fail: list[int]
    unknown: list[int]
    median_ms: list[float]
    p99_ms: list[float]
    max_ms: list[float]


def timed(history: History) -> Timed:
    """Start, end and outcome of each operation."""
    count = history.operation_count
    rows = np.arange(len(history))
    first = np.unique(history.operation, return_index=True)[1].astype(np.int64)
    last = np.full(count, NONE, np.int64)
    # If an operation has several rows, the last assignment stays.
    last[history.operation] = rows
    end_ns = history.time[last].copy()
    has_end = history.type[last] != RowType.INVOKE
    end_ns[~has_end] = history.time.max(initial=0)
    return Timed(
        history.time[first], end_ns, history.process[first], history.function[first],
        history.outcomes(), first, last,
    )  # fmt: skip


def sample(history: History, of: Timed, origin_ns: int, anomalous: Iterable[int]) -> Sample:
    """The bars to draw; operations named as anomalous are always among them."""
    count = len(of.row)
    special = np.zeros(count, np.bool_)
    special[list(anomalous)] = True
    lanes = _lanes(of, special)
    has_lane = np.isin(of.process, lanes)
    is_troubled = (of.outcome != RowType.OK) & ~special & has_lane
    troubled = np.flatnonzero(is_troubled)
    troubled_drawn = _thinned(troubled, TROUBLED_MAX)
    quiet = np.flatnonzero(~special & ~is_troubled & has_lane)
    room = max(OPERATIONS_MAX - len(troubled_drawn) - int(special.sum()), 100)
    step = max(-(-len(quiet) // room), 1)
    chosen = np.sort(np.concatenate((np.flatnonzero(special), troubled_drawn, quiet[::step])))
    chosen = chosen[np.isin(of.process[chosen], lanes)]
    depth = _depths(of, chosen)
    bars = [
        Bar(
            int(one),
            lanes.index(int(of.process[one])),
            depth[place],
            round((int(of.start_ns[one]) - origin_ns) / 1e6, 3),
            round((int(of.end_ns[one]) - origin_ns) / 1e6, 3),
            int(of.function[one]),
            int(of.outcome[one]),
            bool(special[one]),
            sentence(history, of, int(one)),
        )
        for place, one in enumerate(chosen)
    ]
    left_out = len(np.unique(of.process)) - len(lanes)
    return Sample(bars, lanes, count, step, len(troubled) - len(troubled_drawn), left_out)


def curves(history: History, of: Timed, origin_ns: int, end_ms: float) -> list[Curve]:
    """The curves of each function of the history, the most frequent function first."""
    width_ns = max(end_ms * 1e6 / BUCKETS, 1.0)
    bucket = np.clip(((of.end_ns - origin_ns) / width_ns).astype(np.int64), 0, BUCKETS - 1)
    latency_ms = (of.end_ns - of.start_ns) / 1e6
    found = []
    codes, counts = np.unique(of.function, return_counts=True)
    for code in codes[np.argsort(-counts, kind="stable")]:
        mine = of.function == code
        by_outcome = {
            kind: np.bincount(bucket[mine & (of.outcome == kind)], minlength=BUCKETS).tolist()
            for kind in (RowType.OK, RowType.FAIL, RowType.UNKNOWN)
        }
        done = np.flatnonzero(mine & (of.outcome == RowType.OK))
        median, p99, top = _quantiles(bucket[done], latency_ms[done])
        found.append(
            Curve(
                history.functions[int(code)], by_outcome[RowType.OK], by_outcome[RowType.FAIL],
                by_outcome[RowType.UNKNOWN], median, p99, top,
            )
        )  # fmt: skip
    return found


def _lanes(of: Timed, special: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[int]:
    """The processes that get a lane, by number."""
    processes, counts = np.unique(of.process, return_counts=True)
    if len(processes) <= LANES_MAX:
        return [int(process) for process in processes]
    is_special = np.isin(processes, of.process[special])
    order = np.lexsort((-counts, ~is_special))
    return sorted(int(process) for process in processes[order[:LANES_MAX]])


def _thinned(places: Integers, count_max: int) -> Integers:
    """At most `count_max` of the places, evenly chosen."""
    if len(places) <= count_max:
        return places
    return places[np.linspace(0, len(places) - 1, count_max).astype(np.int64)]


def _depths(of: Timed, chosen: Integers) -> list[int]:
    """A row for each bar, in which the bar covers no earlier bar; the last row takes the rest."""
    free: dict[int, list[int]] = {}
    depths = [0] * len(chosen)
    order = sorted(range(len(chosen)), key=lambda place: int(of.start_ns[chosen[place]]))
    for place in order:
        one = chosen[place]
        rows = free.setdefault(int(of.process[one]), [])
        start = int(of.start_ns[one])
        depth = next((row for row, until in enumerate(rows) if until <= start), len(rows))
        depth = min(depth, DEPTH_MAX - 1)
        if depth == len(rows):
            rows.append(0)
        rows[depth] = max(rows[depth], int(of.end_ns[one]))
        depths[place] = depth
    return depths


def _quantiles(
    bucket: Integers, latency_ms: "np.ndarray[tuple[int], np.dtype[np.float64]]"
) -> tuple[list[float], list[float], list[float]]:
    """Median, 99th percentile and maximum of each bucket, nearest rank."""
    order = np.lexsort((latency_ms, bucket))
    bucket, latency_ms = bucket[order], latency_ms[order]
    counts = np.bincount(bucket, minlength=BUCKETS)
    ends = np.cumsum(counts)
    starts = ends - counts
    some = np.flatnonzero(counts)

    def at(share: float) -> list[float]:
        values = np.full(BUCKETS, -1.0)
        places = starts[some] + np.maximum(np.ceil(counts[some] * share).astype(np.int64) - 1, 0)
        values[some] = np.round(latency_ms[places], 3)
        return [float(value) for value in values]

    return at(0.5), at(0.99), at(1.0)


def sentence(history: History, of: Timed, one: int, values: Iterable[int] = ()) -> str:
    """An operation in words: the call and the answer.

    An operation of several messages names those with the value codes `values`, else the first one.
    """
    rows = np.flatnonzero(history.operation[of.row[one] : of.last_row[one] + 1] == one)
    rows += of.row[one]
    is_invoke = history.type[rows] == RowType.INVOKE
    asked, answered = (
        part[history.value[part] != NONE] for part in (rows[is_invoke], rows[~is_invoke])
    )
    outcome = RowType(of.outcome[one]).name.lower()
    words = [history.functions[int(of.function[one])], _messages(history, asked, values)]
    words += ["→", outcome]
    # An answer with the values of the call adds only the offset.
    is_same = np.array_equal(history.value[asked], history.value[answered])
    words.append(_offset(history, answered) if is_same else _messages(history, answered, values))
    text = " ".join(word for word in words if word)
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"


def _messages(history: History, rows: Integers, values: Iterable[int]) -> str:
    """The messages of an operation's invoke, or of its answer, in words."""
    named = rows[np.isin(history.value[rows], list(values))][:NAMED_MAX]
    shown = named if len(named) else rows[:1]
    text = ", ".join(_message(history, int(row)) for row in shown)
    more = len(rows) - len(shown)
    return text + (f" and {more:,} more" if more else "")


def _message(history: History, row: int) -> str:
    key, text = int(history.key[row]), repr(history.values[int(history.value[row])])
    words = [text] if key == NONE else [text, f"in {history.keys[key]}"]
    return " ".join([*words, _offset(history, np.array([row]))]).rstrip()


def _offset(history: History, rows: Integers) -> str:
    """The offset of the first row, in words; empty if the row has none."""
    offset = int(history.offset[rows[0]]) if len(rows) else NONE
    return "" if offset == NONE else f"at offset {offset}"
