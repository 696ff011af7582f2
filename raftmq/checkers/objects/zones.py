"""Linearizability of registers with unique values, by comparing intervals of time.

All operations on one value form a *cluster*: its write, and the reads that returned it. They must
stand together in any order that explains the history. Of a cluster let f be the earliest end of an
operation and s the latest begin. If f < s, the value surely was current from f to s: its zone is
*forward*. Otherwise the whole cluster can take effect at one moment between s and f: its zone is
*backward*. A history is linearizable if and only if

1. each value read was written, by a write that began before the read ended (phantom-read);
2. no two forward zones of a register overlap (zone-overlap);
3. no backward zone lies inside a forward zone (zone-inside).

        write 1 ├────┤     ├─┤ read 1       forward zone of 1: from the end of the write
                     f─────s                 to the begin of the read
                        ├┤ write 2, inside: a read of 1 after it can never be right

The value of a register before all writes is a cluster, too, of a write before all time. A write
without an answer counts as endless if its value was read, and as never done if it was not.

Zones apply if the history has only reads and writes of registers, each value is written at most
once to a register, and None is never written.

Invariants:
- Where zones apply, their verdict equals the search's, in n log n for all registers at once.

Sources: Gibbons and Korach, "Testing shared memories" (1997), §4 on read-mapped histories.
"""

from typing import NamedTuple

import numpy as np

from raftmq.checkers.history import NONE, History, Integers, RowType
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly, Report, Verdict, judged, vacuous

CHECKER = "linearizability by zones"
BEFORE = -1
"""The time of the writes that made the first values."""
ENDLESS = 2**62


class _Operations(NamedTuple):
    """Writes and reads that count, one element each."""

    operation: Integers
    cluster: Integers
    """Number of the register and value."""
    is_write: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    begin: Integers
    end: Integers


class _Zones(NamedTuple):
    """One element a cluster, sorted by register and low."""

    cluster: Integers
    register: Integers
    low: Integers
    high: Integers


def why_zones_do_not_apply(history: History) -> str:
    """The reason as a sentence; empty if zones apply."""
    used = {history.functions[int(code)] for code in np.unique(history.function)}
    if not used <= {"read", "write"}:
        return "zones judge reads and writes only"
    written = history.is_function("write") & (history.type == RowType.INVOKE)
    if (history.value[written] == NONE).any():
        return "a write of nothing cannot be told from the first state"
    names = _cluster(history, history.key[written], history.value[written])
    if len(np.unique(names)) != len(names):
        return "a value is written twice to one register"
    return ""


def check_zones(history: History) -> Report:
    """Judge all registers of a history; unknown where zones do not apply."""
    why = why_zones_do_not_apply(history)
    if why:
        return Report(CHECKER, Verdict.UNKNOWN, f"does not apply: {why}")
    if not (history.type == RowType.OK).any():
        return vacuous(CHECKER, "no operation was answered")
    operations, failed = _operations(history)
    anomalies, counts = _phantoms(history, operations, failed)
    forward, backward = _zones(history, operations)
    width = len(history) + 2
    pairs = np.flatnonzero(
        (forward.register[1:] == forward.register[:-1]) & (forward.low[1:] < forward.high[:-1])
    )
    overlaps = [(int(forward.cluster[one]), int(forward.cluster[one + 1])) for one in pairs]
    # Of the forward zones that begin before a backward one, the last reaches furthest.
    lows = forward.register * width + forward.low
    place = np.searchsorted(lows, backward.register * width + backward.low) - 1
    if len(lows):
        is_inside = (
            (place >= 0)
            & (forward.register[place] == backward.register)
            & (backward.high < forward.high[place])
        )
        inside = np.flatnonzero(is_inside)
    else:
        inside = np.zeros(0, np.int64)
    insides = [(int(forward.cluster[place[one]]), int(backward.cluster[one])) for one in inside]
    for name, found in (("zone-overlap", overlaps), ("zone-inside", insides)):
        counts[name] = len(found)
        anomalies += [_pair(history, operations, name, *one) for one in found[:EXAMPLES_MAX]]
    counts["operations"] = len(operations.operation)
    return judged(CHECKER, anomalies, counts, compared=counts["operations"])


def _cluster(history: History, key: Integers, value: Integers) -> Integers:
    return (key + 1) * (len(history.values) + 1) + value + 1


def _operations(history: History) -> tuple[_Operations, Integers]:
    """The operations that count, and the clusters whose write failed."""
    outcomes = history.outcomes()
    answered = np.flatnonzero(history.type == RowType.OK)
    end = np.full(history.operation_count, ENDLESS, np.int64)
    end[history.operation[answered]] = answered
    start = np.unique(history.operation, return_index=True)[1].astype(np.int64)

    write = np.flatnonzero(history.is_function("write") & (history.type == RowType.INVOKE))
    outcome = outcomes[history.operation[write]]
    read = answered[history.is_function("read")[answered]]
    read_cluster = _cluster(history, history.key[read], history.value[read])
    write_cluster = _cluster(history, history.key[write], history.value[write])
    failed = write_cluster[outcome == RowType.FAIL]
    # A write without an answer, whose value no read returned, need not have happened.
    is_kept = (outcome == RowType.OK) | (
        (outcome == RowType.UNKNOWN) & np.isin(write_cluster, read_cluster)
    )
    write, write_cluster = write[is_kept], write_cluster[is_kept]
    first = np.unique(read_cluster[history.value[read] == NONE])
    operation = np.concatenate((history.operation[write], history.operation[read]))
    begin, finish = start[operation], end[operation]
    before = np.full(len(first), BEFORE, np.int64)
    return _Operations(
        np.concatenate((operation, before)),
        np.concatenate((write_cluster, read_cluster, first)),
        np.concatenate((np.arange(len(operation)) < len(write), np.ones(len(first), np.bool_))),
        np.concatenate((begin, before)),
        np.concatenate((finish, before)),
    ), failed


def _phantoms(
    history: History, operations: _Operations, failed: Integers
) -> tuple[list[Anomaly], dict[str, int]]:
    """Reads of a value whose write failed, or did not begin before the read ended."""
    clusters, number = np.unique(operations.cluster, return_inverse=True)
    written = np.full(len(clusters), ENDLESS, np.int64)
    written[number[operations.is_write]] = operations.begin[operations.is_write]
    is_read = ~operations.is_write
    places = np.flatnonzero(is_read & (written[number] > operations.end))
    aborted = np.isin(operations.cluster[places], failed)
    anomalies = []
    for place, has_failed in list(zip(places, aborted, strict=True))[:EXAMPLES_MAX]:
        value = int(operations.cluster[place]) % (len(history.values) + 1) - 1
        why = "whose write had failed" if has_failed else "whose write had not begun"
        fact = f"a read returned {history.values[value]!r}, {why}"
        write = np.flatnonzero(
            operations.is_write & (operations.cluster == operations.cluster[place])
        )
        found = {int(operations.operation[one]) for one in (place, *write)}
        name = "aborted-read" if has_failed else "phantom-read"
        anomalies.append(Anomaly(name, fact, tuple(sorted(found))))
    counts = {
        "phantom-read": len(places) - int(aborted.sum()),
        "aborted-read": int(aborted.sum()),
    }
    return anomalies, counts


def _zones(history: History, operations: _Operations) -> tuple[_Zones, _Zones]:
    """Forward and backward zones."""
    clusters, number = np.unique(operations.cluster, return_inverse=True)
    earliest = np.full(len(clusters), ENDLESS, np.int64)
    latest = np.full(len(clusters), BEFORE, np.int64)
    np.minimum.at(earliest, number, operations.end)
    np.maximum.at(latest, number, operations.begin)
    register = clusters // (len(history.values) + 1)
    is_forward = earliest < latest
    return (
        _sorted_zones(clusters, register, earliest, latest, is_forward),
        _sorted_zones(clusters, register, latest, earliest, ~is_forward),
    )


def _sorted_zones(
    clusters: Integers, register: Integers, low: Integers, high: Integers, chosen: np.ndarray
) -> _Zones:
    order = np.flatnonzero(chosen)
    order = order[np.lexsort((low[order], register[order]))]
    return _Zones(clusters[order], register[order], low[order], high[order])


def _pair(history: History, operations: _Operations, name: str, one: int, other: int) -> Anomaly:
    """An anomaly of two clusters, shown by the write and the outermost operations of each."""
    found: set[int] = set()
    for cluster in (one, other):
        places = np.flatnonzero(operations.cluster == cluster)
        shown = [
            places[np.argmin(operations.end[places])],
            places[np.argmax(operations.begin[places])],
            *places[operations.is_write[places]],
        ]
        found |= {int(operations.operation[place]) for place in shown}
    found.discard(BEFORE)
    texts = [_value_text(history, cluster) for cluster in (one, other)]
    if name == "zone-overlap":
        fact = f"{texts[0]} and {texts[1]} were both current during the same moment"
    else:
        fact = f"{texts[1]} came and went while {texts[0]} was current the whole time"
    return Anomaly(name, fact, tuple(sorted(found)))


def _value_text(history: History, cluster: int) -> str:
    value = cluster % (len(history.values) + 1) - 1
    return "the first value" if value == NONE else repr(history.values[value])
