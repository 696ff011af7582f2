"""Judges consumer groups that pop by clients' calls and their answers alone.

    report = check_pop(history, PopRules(attempts_max=3, clock_ms_max=50))

| asked of | by |
|---|---|
| each message that was handed out: was it sent, and is it the same everywhere | here |
| who may settle it, how often it is tried, when it is dead | `settlement` |
| tokens and leases | `leases` |
| order by key | `order` |
| what is left in the end | `books` |

How calls are written down: `calls`. Promises of a group beyond those of every group: `PopRules`.

Invariants:
- The verdict rests on clients' calls alone: the broker cannot certify itself.
- Without the books of the end, a loss cannot be seen, and no history is valid.

Sources: Jepsen's checkers for queues; the invariants Q1 to Q19 of this project.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from raftmq.checkers.history import NONE, History, RowType, Value
from raftmq.checkers.verdict import Report, Verdict, judged, vacuous

from .books import judge_books
from .calls import POP, Delivery, QueueTraffic, Sent, pop_traffic, sends_of
from .leases import judge_leases, judge_tokens
from .messages import Findings, PopRules, leases_of, messages_of
from .order import judge_order, judge_shared_leases
from .settlement import judge_settling

Part: TypeAlias = Sent | Delivery

CHECKER = "pop"
TOLERATED = frozenset({"stale-delivery"})
"""A consumer that took messages ahead may hand out one whose lease has just run out: the broker
then refuses to settle that message."""


def check_pop(
    history: History, rules: PopRules | None = None, *, group: str | None = None
) -> Report:
    """Judge a consumer group that popped; None: all of them."""
    rules = rules or PopRules()
    checker = CHECKER if group is None else f"{CHECKER} {group}"
    sends, traffic = sends_of(history), pop_traffic(history)
    if group is not None:
        traffic = {key: of for key, of in traffic.items() if of.group == group}
    why = _vacuous(history, sends, traffic)
    if why:
        return vacuous(checker, why)
    if len({sent.value for sent in sends}) < len(sends):
        doubt = "a value was sent twice: whose a message is cannot be told"
        return Report(checker, Verdict.UNKNOWN, doubt)
    found = Findings()
    end_ms = int(history.time.max()) / 1e6
    by_queue: dict[str, list[Sent]] = {}
    for sent in sends:
        by_queue.setdefault(sent.queue, []).append(sent)
    _places(sends, traffic, found)
    _unwanted(traffic, rules, found)
    for of_queue in traffic.values():
        _judge(of_queue, by_queue.get(of_queue.queue, []), rules, end_ms, found)
    counts = {**_counts(sends, traffic), **dict(sorted(found.counts.items()))}
    doubt = _doubt(traffic, by_queue)
    compared = counts["handed out"]
    return judged(
        checker, found.anomalies, counts, compared=compared, tolerated=TOLERATED, doubt=doubt
    )


def _judge(
    traffic: QueueTraffic, sends: list[Sent], rules: PopRules, end_ms: float, found: Findings
) -> None:
    messages, leases = messages_of(traffic, sends), leases_of(traffic)
    judge_tokens(traffic, rules, found)
    for _, message in sorted(messages.items()):
        judge_settling(message, leases, rules, found)
        judge_leases(message, leases, rules, end_ms, found)
    judge_order(messages, rules, found)
    judge_shared_leases(leases, messages, rules, found)
    judge_books(traffic, messages, rules, found)


def _vacuous(history: History, sends: Sequence[Sent], traffic: Mapping[str, QueueTraffic]) -> str:
    if not sends:
        return "no message was sent"
    if not any(sent.call.outcome is RowType.OK for sent in sends):
        return "no send was acknowledged"
    if not (history.is_function(POP) & (history.type == RowType.OK)).any():
        return "no pop was answered"
    settled = (one for of in traffic.values() for one in of.settlements)
    if not any(one.is_done for one in settled):
        return "nothing was settled"
    return ""


def _doubt(traffic: Mapping[str, QueueTraffic], sends: Mapping[str, Sequence[Sent]]) -> str:
    for name in sorted({f"{of.group} {queue}" for of in traffic.values() for queue in sends}):
        if name not in traffic or traffic[name].books is None:
            return f"{name}: the backlog was never asked for: missing messages may be there"
    return ""


def _places(sends: Sequence[Sent], traffic: Mapping[str, QueueTraffic], found: Findings) -> None:
    """Each message was sent, is at one place, and each place holds one message."""
    by_value: dict[Value, Sent] = {sent.value: sent for sent in sends}
    place_of: dict[Value, tuple[str, int, Part]] = {}
    value_at: dict[tuple[str, int], tuple[Value, Part]] = {}

    def stands(queue: str, offset: int, value: Value, shown: Part) -> None:
        at = place_of.setdefault(value, (queue, offset, shown))
        if at[:2] != (queue, offset):
            fact = f"{value!r} is at offset {at[1]} of {at[0]} and at offset {offset} of {queue}"
            found.add("duplicate", fact, (at[2], shown))
        other = value_at.setdefault((queue, offset), (value, shown))
        if other[0] != value:
            fact = f"offset {offset} of {queue} held {other[0]!r} and {value!r}"
            found.add("inconsistent-offset", fact, (other[1], shown))

    for sent in sends:
        if sent.offset != NONE:
            stands(sent.queue, sent.offset, sent.value, sent)
    for of_queue in traffic.values():
        for one in of_queue.deliveries:
            stands(of_queue.queue, one.offset, one.value, one)
            source = by_value.get(one.value)
            if source is None:
                fact = f"{one.value!r} was handed out, {one}, and never sent"
                found.add("unexpected", fact, (one,))
            elif source.call.outcome is RowType.FAIL:
                fact = f"{one.value!r} was handed out, {one}, and its send failed"
                found.add("aborted-read", fact, (source, one))


def _unwanted(traffic: Mapping[str, QueueTraffic], rules: PopRules, found: Findings) -> None:
    """No message that the filter keeps back is handed out."""
    is_wanted = rules.is_wanted
    for of_queue in traffic.values():
        for one in of_queue.deliveries:
            if is_wanted is not None and not is_wanted(one.value):
                fact = f"{one.value!r} was handed out, {one}, and the filter keeps it back"
                found.add("unwanted", fact, (one,))


def _counts(sends: Sequence[Sent], traffic: Mapping[str, QueueTraffic]) -> dict[str, int]:
    settled = [one for of in traffic.values() for one in of.settlements]
    return {
        "acknowledged": sum(sent.call.outcome is RowType.OK for sent in sends),
        "handed out": sum(len(of.deliveries) for of in traffic.values()),
        "again": sum(one.attempt > 1 for of in traffic.values() for one in of.deliveries),
        "acked": sum(one.is_done for one in settled if one.function == "ack"),
        "failed": sum(one.is_done for one in settled if one.function == "nack"),
        "refused": sum(one.is_fenced for one in settled),
        "dead": sum(len(of.buried) for of in traffic.values()),
    }
