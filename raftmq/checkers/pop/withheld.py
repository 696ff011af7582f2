"""Judges delayed messages and transactions by clients' calls and their answers alone.

    report = check_withheld(history, WithheldRules(is_drained=True))

| anomaly | what is wrong |
|---|---|
| `delivered-early` | a delayed message came before its time |
| `delivered-after-cancel` | a message was taken back, and came all the same |
| `half-visible` | a message of a transaction came before any call to commit it |
| `delivered-after-rollback` | a transaction was rolled back, and a message of it came |
| `transaction-torn` | some messages of a transaction came, and others never |
| `withheld-lost` | a message fell due, or its transaction committed, and it never came |
| `duplicate`, `aborted-read` | it stands at two offsets, or its send had failed |
| `outcome-changed` | a transaction ended in two ways, or in a way that no call had asked for |
| `undecided-unlisted`, `ended-listed` | the list of open transactions is wrong |

Two clocks show that a message is early: the leaders' stamps, which are the log's time, and the
clocks of clients, where these agree.

How calls are written down: `withheld_calls`.

Invariants:
- Without a reader that begins at the start of each queue, a loss cannot be seen, and no history is
  valid.

Left out: losses in a queue whose beginning retention had taken before it was read. The order of
delayed messages among each other, which the committed log shows (`raftmq.chaos.ledger`).

Sources: the invariants Q1, Q4, Q18 and Q20 of this project; RocketMQ's timer and transaction
issues, for what goes wrong.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.checkers.history import History, RowType, Value
from raftmq.checkers.verdict import Report, judged, vacuous

from .messages import Findings, Shown
from .withheld_calls import Ending, Seen, Withheld, WithheldTraffic, withheld_traffic

CHECKER = "withheld"


@dataclass(frozen=True, slots=True, kw_only=True)
class WithheldRules:
    """How well the clocks were known, and whether a missing message counts as lost."""

    clock_ms_max: int | None = None
    """The most by which the clocks of clients differ. None: nothing is judged by these clocks."""
    is_drained: bool = True
    """The reader came when everything had fallen due. False: losses are not judged."""
    retains_all: bool = True
    """False: retention may have taken messages before a reader came, so a missing message does not
    count as lost."""


def check_withheld(history: History, rules: WithheldRules | None = None) -> Report:
    """Judge all delayed messages and transactions of a history."""
    rules = rules or WithheldRules()
    traffic = withheld_traffic(history)
    if not any(one.call.outcome is RowType.OK for one in traffic.messages):
        return vacuous(CHECKER, "no delayed message and none of a transaction was acknowledged")
    if traffic.last_found is None and not traffic.seen:
        return vacuous(CHECKER, "no message was read")
    found = Findings()
    by_transaction: dict[Value, list[Withheld]] = defaultdict(list)
    for message in traffic.messages:
        seen = traffic.seen.get(message.value, [])
        _places(message, seen, found)
        if message.transaction is None:
            _delayed(message, seen, traffic, rules, found)
        else:
            by_transaction[message.transaction].append(message)
    for name, messages in by_transaction.items():
        _transaction(name, messages, traffic, rules, found)
    for name, endings in traffic.endings.items():
        _outcomes(name, endings, found)
    counts = {**_counts(traffic), **dict(sorted(found.counts.items()))}
    doubt = _doubt(traffic, by_transaction, rules)
    compared = len(traffic.messages) + sum(map(len, traffic.endings.values()))
    return judged(CHECKER, found.anomalies, counts, compared=compared, doubt=doubt)


def _doubt(
    traffic: WithheldTraffic, by_transaction: dict[Value, list[Withheld]], rules: WithheldRules
) -> str:
    if traffic.last_found is None:
        return "the queues were never read from their start: missing messages may be there"
    if by_transaction and traffic.listed is None:
        return "the list of open transactions was never asked for"
    if not rules.is_drained:
        return "not all had fallen due when the queues were read"
    return ""


def _counts(traffic: WithheldTraffic) -> dict[str, int]:
    stored = [one for one in traffic.messages if one.call.outcome is RowType.OK]
    cancels = [one for of in traffic.cancels.values() for one in of]
    told = {name: {one.outcome for one in of} for name, of in traffic.endings.items()}
    return {
        "delayed": sum(one.transaction is None for one in stored),
        "cancelled": sum(one.is_done for one in cancels),
        "of transactions": sum(one.transaction is not None for one in stored),
        "committed": sum(True in of for of in told.values()),
        "rolled back": sum(False in of for of in told.values()),
        "undecided": 0 if traffic.listed is None else len(traffic.listed.transactions),
    }


# One message


def _places(message: Withheld, seen: Sequence[Seen], found: Findings) -> None:
    """A message stands at one place at most, and at none if its send failed."""
    for one in seen[:1]:
        if message.call.outcome is RowType.FAIL:
            fact = f"{message.value!r} came, {one}, and its send failed"
            found.add("aborted-read", fact, (message, one))
    for one in seen[1:]:
        if (one.queue, one.offset) != (seen[0].queue, seen[0].offset):
            fact = f"{message.value!r} came, {seen[0]}, and {one}"
            found.add("duplicate", fact, (message, seen[0], one))
            break


def _delayed(
    message: Withheld,
    seen: Sequence[Seen],
    traffic: WithheldTraffic,
    rules: WithheldRules,
    found: Findings,
) -> None:
    for one in seen:
        early = _early_ms(message, one, rules)
        if early > 0:
            fact = f"{message.value!r} was due at {message.due}, and came {early} ms early, {one}"
            found.add("delivered-early", fact, (message, one))
            break
    cancels = traffic.cancels.get(message.value, [])
    done = [one for one in cancels if one.is_done]
    if done and seen:
        fact = f"{message.value!r} was taken back by process {done[0].call.process}, and came, "
        found.add("delivered-after-cancel", f"{fact}{seen[0]}", (message, done[0], seen[0]))
    # A cancellation that may have succeeded explains why the message never came.
    if not any(one.may_be_done for one in cancels):
        _lost(message, traffic, rules, found, "fell due", cancels)


def _early_ms(message: Withheld, one: Seen, rules: WithheldRules) -> int:
    """By how many milliseconds a message surely came early; 0: it may have been due."""
    if message.delay <= 0:
        # The client sends such a message without a delay, so the leader's stamp may lie before the
        # due time if the log's time is behind the client's.
        return 0
    early = 0 if one.stamp is None else message.due - one.stamp
    if rules.clock_ms_max is not None:
        due_ms = message.call.begin_ms + message.delay
        early = max(early, round(due_ms - one.call.end_ms - rules.clock_ms_max))
    return max(early, 0)


def _lost(
    message: Withheld,
    traffic: WithheldTraffic,
    rules: WithheldRules,
    found: Findings,
    why: str,
    others: Sequence[Shown] = (),
) -> None:
    """Report a message that must have come and did not."""
    if message.call.outcome is not RowType.OK or traffic.seen.get(message.value):
        return
    reader = traffic.last_found
    is_judged = rules.is_drained and rules.retains_all
    if not is_judged or reader is None or traffic.starts.get(message.queue, 0):
        return
    fact = f"{message.value!r} was acknowledged for {message.queue}, {why}, and never came"
    found.add("withheld-lost", fact, (message, *others), (reader,))


# One transaction


def _transaction(
    name: Value,
    messages: Sequence[Withheld],
    traffic: WithheldTraffic,
    rules: WithheldRules,
    found: Findings,
) -> None:
    endings = traffic.endings.get(name, [])
    rolled_back = [one for one in endings if one.outcome is False]
    committed = [one for one in endings if one.outcome is True]
    came = [(message, one) for message in messages for one in traffic.seen.get(message.value, [])]
    for message, one in came:
        asked = (each for each in endings if each.is_commit and each.may_be_done)
        if not any(each.call.begin < one.call.end for each in asked):
            fact = f"{message.value!r} of transaction {name!r} came, {one}, before any commit of it"
            # The report shows all endings, so that a reader can see that none explains the message.
            found.add("half-visible", fact, (message, one, *endings))
            break
    if rolled_back and came:
        message, one = came[0]
        fact = f"transaction {name!r} was rolled back, and {message.value!r} came, {one}"
        found.add("delivered-after-rollback", fact, (message, one, rolled_back[0]))
    for message in messages if committed else ():
        _lost(message, traffic, rules, found, f"transaction {name!r} committed", committed[:1])
    if came and not committed:
        _torn(name, messages, came[0], traffic, rules, found)
    _listing(name, messages, endings, traffic, found)


def _torn(
    name: Value,
    messages: Sequence[Withheld],
    came: tuple[Withheld, Seen],
    traffic: WithheldTraffic,
    rules: WithheldRules,
    found: Findings,
) -> None:
    """A message came, so the transaction did commit, though no answer said so: then all of its
    messages must have come."""
    reader = traffic.last_found
    if not (rules.is_drained and rules.retains_all) or reader is None:
        return
    for message in messages:
        is_there = traffic.seen.get(message.value) or traffic.starts.get(message.queue, 0)
        if message.call.outcome is RowType.OK and not is_there:
            fact = f"of transaction {name!r} {came[0].value!r} came, {came[1]}, and never "
            fact += f"{message.value!r}"
            asked = [one for one in traffic.endings.get(name, []) if one.is_commit]
            found.add("transaction-torn", fact, (*came, message, *asked), (reader,))
            return


def _listing(
    name: Value,
    messages: Sequence[Withheld],
    endings: Sequence[Ending],
    traffic: WithheldTraffic,
    found: Findings,
) -> None:
    """The list of open transactions has all undecided ones, and none that has ended."""
    listed = traffic.listed
    if listed is None:
        return
    begun = [
        one
        for one in messages
        if one.call.outcome is RowType.OK and one.call.end < listed.call.begin
    ]
    ended = [one for one in endings if one.outcome is not None]
    is_asked = any(one.call.outcome is not RowType.FAIL for one in endings)
    if name in listed.transactions:
        before = [one for one in ended if one.call.end < listed.call.begin]
        for one in before[:1]:
            fact = f"transaction {name!r} had ended, and is listed as open"
            found.add("ended-listed", fact, (*messages[:1], one), (listed.call,))
    elif begun and not is_asked:
        fact = f"transaction {name!r} was begun and never ended, and is not listed as open"
        found.add("undecided-unlisted", fact, (begun[0], *endings), (listed.call,))


def _outcomes(name: Value, endings: Sequence[Ending], found: Findings) -> None:
    """The first outcome holds, and a call asked for it."""
    told = [one for one in endings if one.outcome is not None]
    for one in told:
        other = next((each for each in told if each.outcome is not one.outcome), None)
        if other is not None:
            fact = f"transaction {name!r}: {_said(one)}, and {_said(other)}"
            found.add("outcome-changed", fact, (one, other))
            return
    for one in told:
        if not any(_may_explain(each, one) for each in endings):
            fact = f"transaction {name!r}: {_said(one)}, and that was never asked for"
            found.add("outcome-changed", fact, (one,))
            return


def _said(one: Ending) -> str:
    what = "committed" if one.outcome else "rolled back"
    return f"process {one.call.process} was told that it is {what}"


def _may_explain(one: Ending, told: Ending) -> bool:
    """Whether the call `one` may have ended the transaction with the outcome that was answered."""
    return (
        one.is_commit is told.outcome
        and one.call.outcome is not RowType.FAIL
        and one.call.begin < told.call.end
    )
