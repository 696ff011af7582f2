"""Order in a log: of one process's polls and sends, inside one call, and in real time.

Each check sorts by (process, key) and compares neighbours: a few vector operations for the whole
history. The order of a process that is given other queues to read (`assign`) starts over.

Invariants:
- Two rows are neighbours only within one process and key; for polls, between two `assign`s.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from raftmq.checkers.history import NONE, Flags, Integers, RowType
from raftmq.checkers.traffic import ASSIGN, POLL, Traffic
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly

from .found import Found, Pairs, Placements, send_operations

NEVER = np.iinfo(np.int64).max


def polls(placements: Placements) -> Found:
    """Judge that the ranks of successive deliveries rise by one; else a message was skipped or
    repeated."""
    result = Found()
    result.add_pairs(poll_pairs(placements), partial(_poll_pair, placements))
    return result


def poll_pairs(placements: Placements) -> Iterator[Pairs]:
    """Successive deliveries whose ranks do not rise by one."""
    found = placements.found
    deliveries = found.deliveries
    places = np.flatnonzero((deliveries.offset != NONE) & (deliveries.key != NONE))
    process, key = deliveries.process[places], deliveries.key[places]
    epoch = _epochs(found, process, deliveries.row[places])
    # Rows are in order already, and the sort is stable.
    order = np.lexsort((epoch, key, process))
    places, process, key, epoch = (one[order] for one in (places, process, key, epoch))
    rank = placements.rank_at(key, deliveries.offset[places])
    is_pair = (process[1:] == process[:-1]) & (key[1:] == key[:-1]) & (epoch[1:] == epoch[:-1])
    operation = deliveries.operation[places]
    is_inside = operation[1:] == operation[:-1]
    step = rank[1:] - rank[:-1]
    for name, is_wrong in (
        ("poll-skip", (step > 1) & ~is_inside),
        ("nonmonotonic-poll", (step < 1) & ~is_inside),
        ("internal-poll-skip", (step > 1) & is_inside),
        ("internal-nonmonotonic-poll", (step < 1) & is_inside),
    ):
        pairs = np.flatnonzero(is_wrong & is_pair)
        yield Pairs(name, places[pairs], places[pairs + 1])


def _epochs(found: Traffic, process: Integers, row: Integers) -> Integers:
    """A number for each row: two rows of a process differ if an `assign` lies between them."""
    history = found.history
    assigned = np.flatnonzero(history.is_function(ASSIGN) & (history.type == RowType.OK))
    if not len(assigned):
        return np.zeros(len(row), np.int64)
    width = len(history)
    marks = np.sort(_ranked(history.process[assigned], history.process) * width + assigned)
    return np.searchsorted(marks, _ranked(process, history.process) * width + row)


def _ranked(values: Integers, among: Integers) -> Integers:
    """Small dense numbers for process names, which may be negative or huge."""
    return np.searchsorted(np.unique(among), values)


def _poll_pair(placements: Placements, name: str, before: int, after: int) -> Anomaly:
    found = placements.found
    deliveries = found.deliveries
    key = int(deliveries.key[before])
    offsets = int(deliveries.offset[before]), int(deliveries.offset[after])
    values = [int(deliveries.value[before]), int(deliveries.value[after])]
    operations = {int(deliveries.operation[before]), int(deliveries.operation[after])}
    fact = (
        f"process {deliveries.process[before]} read {found.key_text(key)}/{offsets[0]}, "
        f"then {found.key_text(key)}/{offsets[1]}"
    )
    if name.endswith("skip"):
        # At least one message between the two was passed over: show the first.
        bounds = np.array([key, key]), np.array([offsets[0] + 1, offsets[1]])
        missed = int(placements._search(*bounds)[0])
        values.append(int(placements.value[missed]))
        operations.add(int(found.history.operation[placements.row[missed]]))
        fact += f", and not {placements.value_text(missed)} at {placements.place_text(missed)}"
    operations |= send_operations(found, values)
    return Anomaly(name, fact, tuple(sorted(operations)), tuple(dict.fromkeys(values)))


def sends(placements: Placements, *, is_send_contiguous: bool) -> Found:
    """Judge that offsets of one process's acknowledged sends rise, in the order of the calls."""
    result = Found()
    pairs = send_pairs(placements, is_send_contiguous=is_send_contiguous)
    result.add_pairs(pairs, partial(_send_pair, placements))
    return result


def send_pairs(placements: Placements, *, is_send_contiguous: bool) -> Iterator[Pairs]:
    """Successive acknowledged sends of one process whose offsets do not rise."""
    found = placements.found
    every = found.sends
    places = np.flatnonzero((every.offset != NONE) & (every.outcome == RowType.OK))
    order = np.lexsort((every.key[places], every.process[places]))
    places = places[order]
    process, key = every.process[places], every.key[places]
    operation, offset = every.operation[places], every.offset[places]
    is_pair = (process[1:] == process[:-1]) & (key[1:] == key[:-1])
    is_inside = operation[1:] == operation[:-1]
    is_back = offset[1:] <= offset[:-1]
    rank = placements.rank_at(key, offset)
    checks: list[tuple[str, Flags]] = [
        ("nonmonotonic-send", is_back & ~is_inside),
        ("internal-nonmonotonic-send", is_back & is_inside),
    ]
    if is_send_contiguous:
        checks.append(("internal-send-skip", (rank[1:] - rank[:-1] > 1) & is_inside))
    for name, is_wrong in checks:
        pairs = np.flatnonzero(is_wrong & is_pair)
        yield Pairs(name, places[pairs], places[pairs + 1])


def _send_pair(placements: Placements, name: str, before: int, after: int) -> Anomaly:
    found = placements.found
    every = found.sends
    values = [int(every.value[before]), int(every.value[after])]
    key = found.key_text(int(every.key[before]))
    fact = (
        f"process {every.process[after]} sent {found.value_text(values[0])} to "
        f"{key}/{every.offset[before]} and {found.value_text(values[1])} to "
        f"{key}/{every.offset[after]}"
    )
    operations = {int(every.operation[before]), int(every.operation[after])}
    if name == "internal-send-skip":
        bounds = every.key[before : before + 1], every.offset[before : before + 1] + 1
        between = int(placements._search(*bounds)[0])
        values.append(int(placements.value[between]))
        operations.add(int(found.history.operation[placements.row[between]]))
        operations |= send_operations(found, values)
        fact += f", and {placements.value_text(between)} came between"
    return Anomaly(name, fact, tuple(sorted(operations)), tuple(values))


def backdated_sends(placements: Placements) -> Found:
    """Judge that an acknowledged offset is above all offsets acknowledged before the send began."""
    result = Found()
    result.add_pairs([backdated_pairs(placements)], partial(_backdated, placements.found))
    return result


def backdated_pairs(placements: Placements) -> Pairs:
    """Sends, each with one acknowledged before the send began whose offset is not below."""
    found = placements.found
    every = found.sends
    places = np.flatnonzero((every.offset != NONE) & (every.outcome == RowType.OK))
    key, end, offset = every.key[places], every.end[places], every.offset[places]
    begin = found.start[every.operation[places]]
    order = np.lexsort((end, key))
    # Rows up to the highest end stay apart from those of the next key.
    width = int(max(end.max(initial=0), begin.max(initial=0))) + 1
    ends = key[order] * width + end[order]
    highest, holder = _running_max(key[order], offset[order])
    # For each send: the last answer for its key before the send began.
    last = np.searchsorted(ends, key * width + begin) - 1
    is_same = (last >= 0) & (key[order][last] == key)
    pairs = np.flatnonzero(is_same & (highest[last] >= offset))
    return Pairs("realtime-send", places[order[holder[last[pairs]]]], places[pairs])


def _backdated(found: Traffic, name: str, before: int, after: int) -> Anomaly:
    every = found.sends
    values = int(every.value[before]), int(every.value[after])
    fact = (
        f"{found.value_text(values[0])} was acknowledged at offset {every.offset[before]} of "
        f"{found.key_text(int(every.key[after]))} before the send of {found.value_text(values[1])} "
        f"began, which got offset {every.offset[after]}"
    )
    operations = sorted({int(every.operation[before]), int(every.operation[after])})
    return Anomaly(name, fact, tuple(operations), values)


def _running_max(group: Integers, values: Integers) -> tuple[Integers, Integers]:
    """Within each run of equal `group`s: the highest value so far, and the place that holds it."""
    if not len(values):
        return values, values
    lift = int(values.max()) + 1
    runs = np.cumsum(np.concatenate(([0], group[1:] != group[:-1])))
    highest = np.maximum.accumulate(values + runs * lift)
    is_new = np.ones(len(values), np.bool_)
    is_new[1:] = highest[1:] != highest[:-1]
    holder = np.maximum.accumulate(np.where(is_new, np.arange(len(values)), 0))
    return highest - runs * lift, holder


def lags(placements: Placements, lag_ms_max: float | None) -> tuple[Found, dict[str, int]]:
    """The time from the ack of the oldest message that a poll missed to the poll's begin.

    Only polls with a known key count: the call names it, or a delivery.
    """
    found = placements.found
    key, call, reached = _positions(found)
    known = _known_times(placements)
    result = Found()
    if not len(call) or not len(known):
        return result, {}
    # The oldest acknowledgement among all offsets above those that the process had reached.
    oldest = _suffix_min(placements.key, known)
    above = placements._search(key, reached + 1)
    inside = np.minimum(above, len(known) - 1)
    is_there = (above < len(known)) & (placements.key[inside] == key)
    acked = np.where(is_there, oldest[inside], NEVER)
    begin = found.start[call]
    is_missed = (acked < begin) & (reached != NONE)
    time = found.history.time
    lag = np.where(is_missed, time[begin] - time[np.minimum(acked, len(time) - 1)], 0)
    figures = {"lag_ms_worst": int(lag.max()) // 1_000_000}
    if lag_ms_max is not None:
        late = np.flatnonzero(is_missed & (lag > lag_ms_max * 1_000_000))
        examples = (
            _lag(found, int(call[one]), int(acked[one]), int(lag[one]), int(reached[one]))
            for one in late[:EXAMPLES_MAX]
        )
        result.add("realtime-lag", len(late), examples)
    return result, figures


def _positions(found: Traffic) -> tuple[Integers, Integers, Integers]:
    """For each poll and key: key, operation, and the highest offset read up to its end."""
    history, deliveries = found.history, found.deliveries
    outcomes = history.outcomes()
    asked = np.flatnonzero(
        history.is_function(POLL) & (history.type == RowType.INVOKE) & (history.key != NONE)
    )
    asked = asked[outcomes[history.operation[asked]] == RowType.OK]
    got = np.flatnonzero((deliveries.offset != NONE) & (deliveries.key != NONE))
    key = np.concatenate((history.key[asked], deliveries.key[got]))
    process = np.concatenate((history.process[asked], deliveries.process[got]))
    operation = np.concatenate((history.operation[asked], deliveries.operation[got]))
    offset = np.concatenate((np.full(len(asked), NONE, np.int64), deliveries.offset[got]))
    epoch = _epochs(found, process, found.start[operation])
    order = np.lexsort((operation, epoch, key, process))
    key, process, operation, offset, epoch = (
        column[order] for column in (key, process, operation, offset, epoch)
    )
    group = (_ranked(process, process) * (len(history.keys) + 1) + key) * (len(history) + 1) + epoch
    highest, _ = _running_max(group, offset + 1)
    is_last = np.ones(len(key), np.bool_)
    is_last[:-1] = (operation[1:] != operation[:-1]) | (key[1:] != key[:-1])
    return key[is_last], operation[is_last], highest[is_last] - 1


def _known_times(placements: Placements) -> Integers:
    """By placement: the row that acknowledged its send, or never."""
    found = placements.found
    source = found.send_of_value[placements.value]
    is_acked = (source != NONE) & (found.sends.outcome[source] == RowType.OK)
    return np.where(is_acked, found.sends.end[source], NEVER)


def _suffix_min(group: Integers, values: Integers) -> Integers:
    """Within each run of equal `group`s: the lowest value from here to the run's end."""
    # Ranks are small, so that shifting each run's values apart from the others' cannot overflow.
    distinct, rank = np.unique(values, return_inverse=True)
    rank = rank[::-1].astype(np.int64)
    backward = group[::-1]
    runs = np.cumsum(np.concatenate(([0], backward[1:] != backward[:-1])))
    lowest = np.minimum.accumulate(rank - runs * len(distinct)) + runs * len(distinct)
    result: Integers = distinct[lowest[::-1]]
    return result


def _lag(found: Traffic, poll: int, acked: int, lag: int, reached: int) -> Anomaly:
    history, deliveries = found.history, found.deliveries
    process, key = int(history.process[found.start[poll]]), int(history.key[acked])
    value = int(history.value[acked])
    # The last message that the process read shows how far it had come.
    read = np.flatnonzero(
        (deliveries.process == process) & (deliveries.key == key) & (deliveries.offset == reached)
    )[0]
    values = [value, int(deliveries.value[read])]
    operations = {poll, int(history.operation[acked]), int(deliveries.operation[read])}
    operations |= send_operations(found, values)
    fact = (
        f"process {process} polled {lag / 1e6:.0f} ms after {found.value_text(value)} was "
        "acknowledged and had not come so far"
    )
    return Anomaly("realtime-lag", fact, tuple(sorted(operations)), tuple(values))
