"""The anomalies of a log that is written and read by offset.

A *log* is a queue, named by the rows' key. The answers of sends and polls show which value stood at
which offset. Offsets may have gaps (a transaction's markers, say), so "the next message" is counted
over the offsets that are known to hold one: the *rank*.

| anomaly | found where |
|---|---|
| unexpected, aborted-read | a delivery of a value that was never sent, or whose send failed |
| inconsistent-offset | one offset, two values |
| duplicate | one value, two offsets |
| lost-write | acknowledged below what was read, never read |
| unseen | acknowledged above what was read, never read, though readers drained the log |
| poll-skip, nonmonotonic-poll | ranks of two polls in a row of one process; `assign` starts over |
| internal-poll-skip, internal-nonmonotonic-poll | ranks inside one poll |
| nonmonotonic-send, internal-nonmonotonic-send | offsets of one process's sends, in order |
| internal-send-skip | ranks inside one send, if `is_send_contiguous` |
| realtime-send | an offset below one acknowledged before the send began |
| realtime-lag | a poll that missed what had been acknowledged `lag_ms_max` before it began |

Readers must read whole queues: with a filter, or when consumers share the messages of a queue, use
the total queue instead. Sends with an unknown outcome count as committed if their value was read.

Left out: transactions (Adya's G0, G1c, precommitted reads; Jepsen uses Elle for them), so reads of
a process's own uncommitted writes are not looked for.

Sources: Jepsen's Kafka workload (jepsen.tests.kafka), also for the names; Redpanda's own chaos
tests for `realtime-send`.
"""

from dataclasses import dataclass

import numpy as np

from raftmq.checkers.history import NONE, History, RowType
from raftmq.checkers.log import order
from raftmq.checkers.total_queue import aborted_read
from raftmq.checkers.traffic import Traffic, doubt, traffic
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly, Report, Verdict, judged

from .found import Found, Pairs, Placements

CHECKER = "log"
NO_OFFSETS = "no answer names an offset: use the total queue"
"""The reason of an undecided verdict: the history shows no log."""


@dataclass(frozen=True, slots=True)
class LogRules:
    """The promises of this log beyond those of every log."""

    is_drained: bool = True
    """Readers polled until nothing more came: a message that they never got is `unseen`."""
    is_send_contiguous: bool = False
    """The messages of one send get offsets in a row, as raftmq's batches do."""
    lag_ms_max: float | None = None
    """A poll that misses older acknowledged messages is an anomaly; None: only measured."""
    tolerated: frozenset[str] = frozenset()
    """Names of anomalies that are reported but do not make the history invalid."""


def check_log(history: History, rules: LogRules | None = None) -> Report:
    """Judge sends and polls as logs with offsets."""
    rules = rules or LogRules()
    found = traffic(history)
    why = doubt(found)
    if not why and not ((found.sends.offset != NONE).any() or (found.deliveries.offset >= 0).any()):
        why = NO_OFFSETS
    if why:
        return Report(CHECKER, Verdict.UNKNOWN, why)
    placements = Placements.of(found)
    parts = [
        _phantoms(found),
        _inconsistent(placements),
        _duplicates(placements),
        _unread(found, rules),
        order.polls(placements),
        order.sends(placements, is_send_contiguous=rules.is_send_contiguous),
        order.backdated_sends(placements),
    ]
    lags, figures = order.lags(placements, rules.lag_ms_max)
    anomalies: list[Anomaly] = []
    counts = {
        "acknowledged": int((found.sends.outcome == RowType.OK).sum()),
        "deliveries": len(found.deliveries.row),
    }
    for part in [*parts, lags]:
        anomalies += part.anomalies
        counts |= part.counts
    return judged(
        CHECKER,
        anomalies,
        counts | figures,
        compared=len(found.deliveries.row),
        tolerated=rules.tolerated,
    )


def _phantoms(found: Traffic) -> Found:
    deliveries, sends = found.deliveries, found.sends
    source = found.send_of_value[deliveries.value]
    result = Found()
    phantoms = np.flatnonzero(source == NONE)
    result.add(
        "unexpected",
        len(phantoms),
        (
            Anomaly(
                "unexpected",
                f"process {deliveries.process[place]} was delivered "
                f"{found.value_text(int(deliveries.value[place]))}, which was never sent",
                (int(deliveries.operation[place]),),
                (int(deliveries.value[place]),),
            )
            for place in phantoms[:EXAMPLES_MAX]
        ),
    )
    aborted = np.flatnonzero((sends.outcome[source] == RowType.FAIL) & (source != NONE))
    result.add(
        "aborted-read",
        len(aborted),
        (aborted_read(found, int(place)) for place in aborted[:EXAMPLES_MAX]),
    )
    return result


def _inconsistent(placements: Placements) -> Found:
    def describe(name: str, before: int, after: int) -> Anomaly:
        fact = (
            f"offset {placements.offset[before]} of "
            f"{placements.found.key_text(int(placements.key[before]))} held "
            f"{placements.value_text(before)} and {placements.value_text(after)}"
        )
        return placements.anomaly(name, (before, after), fact)

    result = Found()
    result.add_pairs([inconsistent_pairs(placements)], describe)
    return result


def inconsistent_pairs(placements: Placements) -> Pairs:
    """Neighbours, sorted by (key, offset, value), at one place with two values."""
    pairs = np.flatnonzero(
        (placements.key[1:] == placements.key[:-1])
        & (placements.offset[1:] == placements.offset[:-1])
        & (placements.value[1:] != placements.value[:-1])
    )
    return Pairs("inconsistent-offset", pairs, pairs + 1)


def _duplicates(placements: Placements) -> Found:
    """Pairs of neighbours, sorted by value, of one value at two places."""
    order = np.lexsort((placements.offset, placements.key, placements.value))
    value = placements.value[order]
    pairs = np.flatnonzero(value[1:] == value[:-1])

    def describe(name: str, before: int, after: int) -> Anomaly:
        fact = (
            f"{placements.value_text(before)} stands at {placements.place_text(before)} "
            f"and at {placements.place_text(after)}"
        )
        return placements.anomaly(name, (before, after), fact)

    result = Found()
    result.add_pairs([Pairs("duplicate", order[pairs], order[pairs + 1])], describe)
    return result


def _unread(found: Traffic, rules: LogRules) -> Found:
    """Messages acknowledged and never read: lost if a later offset was read, else unseen."""
    sends, deliveries = found.sends, found.deliveries
    is_unread = (sends.outcome == RowType.OK) & ~found.is_delivered()
    # The last element stands for "no key", whose code is -1.
    bound = np.full(len(found.history.keys) + 1, NONE, np.int64)
    np.maximum.at(bound, deliveries.key, deliveries.offset)
    is_below = (sends.offset != NONE) & (sends.offset <= bound[sends.key])
    lost = np.flatnonzero(is_unread & is_below)
    unseen = np.flatnonzero(is_unread & ~is_below)
    result = Found()
    result.add("lost-write", len(lost), (_lost(found, int(one)) for one in lost[:EXAMPLES_MAX]))
    if rules.is_drained:
        examples = (_unseen(found, int(one)) for one in unseen[:EXAMPLES_MAX])
        result.add("unseen", len(unseen), examples)
    else:
        result.counts["unseen yet"] = len(unseen)
    return result


def _lost(found: Traffic, place: int) -> Anomaly:
    sends, deliveries = found.sends, found.deliveries
    key, offset, value = (int(one[place]) for one in (sends.key, sends.offset, sends.value))
    later = np.flatnonzero((deliveries.key == key) & (deliveries.offset >= offset))
    nearest = later[int(np.argmin(deliveries.offset[later]))]
    read = int(deliveries.value[nearest])
    operations = {int(sends.operation[place]), int(deliveries.operation[nearest])}
    if found.send_of_value[read] != NONE:
        operations.add(int(sends.operation[found.send_of_value[read]]))
    fact = (
        f"{found.value_text(value)} was acknowledged at {found.key_text(key)}/{offset}, "
        f"{found.value_text(read)} at offset {deliveries.offset[nearest]} was read, it never was"
    )
    return Anomaly("lost-write", fact, tuple(sorted(operations)), (value, read))


def _unseen(found: Traffic, place: int) -> Anomaly:
    sends = found.sends
    value = int(sends.value[place])
    answered = np.flatnonzero(found.history.is_function("poll"))
    operations = {int(sends.operation[place]), int(found.history.operation[answered[-1]])}
    fact = f"{found.value_text(value)} was acknowledged and no reader came as far as its offset"
    return Anomaly("unseen", fact, tuple(sorted(operations)), (value,))
