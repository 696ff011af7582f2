"""Total queue: all acknowledged messages come out, and no others, in any order.

For senders' values A (all attempts), E (acknowledged) and deliveries D:

| figure | definition | makes it invalid |
|---|---|---|
| lost | in E, never in D | yes |
| unexpected | in D, never in A | yes |
| aborted-read | in D, its send failed for sure | yes |
| duplicated | each delivery of a value after its first | if `is_exactly_once` |
| recovered | in D, its send's outcome unknown | no |
| redelivered-after-ack | in D by a poll that began after an ack of the value was done | yes |

A loss is classed by its place among the sender's delivered messages, in the order of sending:
before all of them (prefix), after all of them (postfix), or between (middle). If no message of a
sender was delivered, all its losses are postfix: perhaps the reader did not come that far.

Each consumer group is judged by itself, so that a group that got a message does not hide the loss
in another: the value of a poll's invoke names the group. Polls without a value form one group.

The history must end with a drain: readers that polled until nothing more came. If it did not, say
`is_drained=False`: then a postfix loss is a doubt, not an anomaly.

Left out: order (see `log.anomalies`, `key_order`), leases that overlap.

Sources: Jepsen's total-queue, where a failed send that is delivered counts as recovered (here
`fail` is a promise); Jepsen's analysis of NATS JetStream (2025) for the three parts of a loss.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .history import NONE, History, Integers, RowType
from .traffic import ACK, POLL, Traffic, by_group, doubt, traffic
from .verdict import EXAMPLES_MAX, Anomaly, Report, Verdict, judged

CHECKER = "total-queue"
NOT_DRAINED = "the queue was not drained: what is missing at the end may still be there"
"""The reason of an undecided verdict: messages are missing at the end only."""


def check_total_queue(
    history: History, *, is_exactly_once: bool = False, is_drained: bool = True
) -> Report:
    """Judge sends, and each consumer group's polls, as one bag of messages."""
    found = traffic(history)
    why = doubt(found)
    if why:
        return Report(CHECKER, Verdict.UNKNOWN, why)
    sends = found.sends
    is_delivered = found.is_delivered()
    is_recovered = is_delivered & (sends.outcome == RowType.UNKNOWN)
    acknowledged = int((sends.outcome == RowType.OK).sum())
    anomalies: list[Anomaly] = []
    counts: Counter[str] = Counter({
        "attempts": len(sends.row),
        "acknowledged": acknowledged,
        "delivered": int(is_delivered.sum()),
        "recovered": int(is_recovered.sum()),
    })  # fmt: skip
    parts = by_group(found)
    for name, part in parts.items():
        shown, counted = _judge_group(part)
        counts.update(counted)
        where = f"group {name}: " if name else ""
        anomalies += [replace(one, fact=f"{where}{one.fact}") for one in shown]
    tolerated = set() if is_exactly_once else {"duplicated"}
    unsure = ""
    if not is_drained and counts["lost-postfix"]:
        tolerated.add("lost-postfix")
        unsure = NOT_DRAINED
    # Each delivery is looked up once, and each acknowledged message in each group.
    compared = len(found.deliveries.row) + acknowledged * len(parts)
    return judged(
        CHECKER,
        anomalies,
        counts,
        compared=compared,
        tolerated=frozenset(tolerated),
        doubt=unsure,
    )


def _judge_group(found: Traffic) -> tuple[list[Anomaly], dict[str, int]]:
    """The anomalies of one group's deliveries, the first few of each name; and how many."""
    sends, deliveries = found.sends, found.deliveries
    is_delivered = found.is_delivered()
    is_lost = (sends.outcome == RowType.OK) & ~is_delivered
    source = found.send_of_value[deliveries.value]
    is_aborted = (sends.outcome[source] == RowType.FAIL) & (source != NONE)
    first = found.first_delivery()[deliveries.value]
    is_again = first != np.arange(len(first))
    part = _parts(found, is_lost, is_delivered)
    late, late_ack = _after_ack(found)

    groups: list[tuple[str, Integers, Callable[[Traffic, int], Anomaly]]] = [
        ("lost-prefix", np.flatnonzero(part == 1), _lost("lost-prefix")),
        ("lost-middle", np.flatnonzero(part == 2), _lost("lost-middle")),
        ("lost-postfix", np.flatnonzero(part == 3), _lost("lost-postfix")),
        ("unexpected", np.flatnonzero(source == NONE), _unexpected),
        ("aborted-read", np.flatnonzero(is_aborted), aborted_read),
        ("duplicated", np.flatnonzero(is_again), _duplicated),
    ]
    anomalies = [
        describe(found, int(place))
        for _, places, describe in groups
        for place in places[:EXAMPLES_MAX]
    ]
    anomalies += [
        _redelivered(found, int(place), int(ack))
        for place, ack in zip(late[:EXAMPLES_MAX], late_ack[:EXAMPLES_MAX], strict=True)
    ]
    counts = {name: len(places) for name, places, _ in groups}
    return anomalies, counts | {"redelivered-after-ack": len(late)}


def _parts(found: Traffic, is_lost: np.ndarray, is_delivered: np.ndarray) -> Integers:
    """By send: 0 not lost, 1 prefix, 2 middle, 3 postfix among its sender's deliveries."""
    sends = found.sends
    processes, sender = np.unique(sends.process, return_inverse=True)
    places = np.arange(len(sends.row))
    first = np.full(len(processes), len(places), np.int64)
    last = np.full(len(processes), -1, np.int64)
    np.minimum.at(first, sender[is_delivered], places[is_delivered])
    np.maximum.at(last, sender[is_delivered], places[is_delivered])
    part = np.full(len(places), 2, np.int64)
    part[places < first[sender]] = 1
    part[places > last[sender]] = 3
    part[~is_lost] = 0
    return part


def _after_ack(found: Traffic) -> tuple[Integers, Integers]:
    """Deliveries by a poll that began after an ack of the value had completed; and those acks."""
    history, deliveries = found.history, found.deliveries
    acked = np.flatnonzero(
        history.is_function(ACK)
        & (history.type == RowType.OK)
        & (history.value != NONE)
        & ~np.isin(history.process, found.strangers)
    )
    ack_row = np.full(len(found.send_of_value), np.iinfo(np.int64).max, np.int64)
    # Of several acks of one value the first counts; the last assignment holds: go backwards.
    ack_row[history.value[acked][::-1]] = acked[::-1]
    is_late = found.start[deliveries.operation] > ack_row[deliveries.value]
    places = np.flatnonzero(is_late)
    return places, ack_row[deliveries.value[places]]


def _lost(name: str) -> Callable[[Traffic, int], Anomaly]:
    def describe(found: Traffic, place: int) -> Anomaly:
        sends = found.sends
        value, process = int(sends.value[place]), int(sends.process[place])
        fact = f"{found.value_text(value)} of process {process} was acknowledged, never delivered"
        operations, values = _neighbours(found, place)
        operations.add(int(sends.operation[place]))
        return Anomaly(name, fact, tuple(sorted(operations)), (value, *values))

    return describe


def _neighbours(found: Traffic, place: int) -> tuple[set[int], list[int]]:
    """The nearest delivered sends of the same sender, before and after, with their deliveries."""
    sends, deliveries = found.sends, found.deliveries
    same = np.flatnonzero(found.is_delivered() & (sends.process == sends.process[place]))
    near = [*same[same < place][-1:], *same[same > place][:1]]
    values = [int(sends.value[one]) for one in near]
    first = found.first_delivery()
    operations = {int(sends.operation[one]) for one in near}
    operations |= {int(deliveries.operation[first[value]]) for value in values}
    if not near:
        # The report must show that a reader polled at all: add the last poll.
        polls = np.flatnonzero(found.history.is_function(POLL))
        operations.add(int(found.history.operation[polls[-1]]))
    return operations, values


def _unexpected(found: Traffic, place: int) -> Anomaly:
    deliveries = found.deliveries
    value, process = int(deliveries.value[place]), int(deliveries.process[place])
    fact = f"process {process} was delivered {found.value_text(value)}, which was never sent"
    return Anomaly("unexpected", fact, (int(deliveries.operation[place]),), (value,))


def aborted_read(found: Traffic, place: int) -> Anomaly:
    """The delivery at `place`, of a value whose send had failed."""
    deliveries, sends = found.deliveries, found.sends
    value = int(deliveries.value[place])
    send = int(sends.operation[found.send_of_value[value]])
    fact = f"{found.value_text(value)} was delivered, and its send failed"
    return Anomaly("aborted-read", fact, (send, int(deliveries.operation[place])), (value,))


def _duplicated(found: Traffic, place: int) -> Anomaly:
    deliveries = found.deliveries
    value = int(deliveries.value[place])
    first = found.first_delivery()[value]
    operations = {int(deliveries.operation[first]), int(deliveries.operation[place])}
    fact = f"{found.value_text(value)} was delivered again"
    return Anomaly("duplicated", fact, tuple(sorted(operations)), (value,))


def _redelivered(found: Traffic, place: int, ack_row: int) -> Anomaly:
    deliveries = found.deliveries
    value = int(deliveries.value[place])
    operations = (int(found.history.operation[ack_row]), int(deliveries.operation[place]))
    fact = f"{found.value_text(value)} was acked, and a later poll brought it again"
    return Anomaly("redelivered-after-ack", fact, operations, (value,))
