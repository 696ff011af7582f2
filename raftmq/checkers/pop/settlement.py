"""Rules of one message without clocks: who may settle it, how often it is tried, when it is dead.

| anomaly | what is wrong |
|---|---|
| `redelivered-after-ack` | an ack under one token was answered, and a later token came |
| `stale-delivery` | a pop was begun after the message was settled for good, and gave it |
| `settled-twice` | two calls settled what only one can have settled; a repeat is no second one |
| `stale-settled` | a token settled although a later one had been handed out |
| `foreign-settled` | a token settled for a process that had not been handed it |
| `unfenced` | a token was refused as stale, and settled after all |
| `attempt-miscounted`, `attempts-exceeded` | the number of hand-outs is wrong, or too high |
| `buried-early`, `buried-twice`, `not-buried` | dead letters: who belongs there, and once |
| `delivered-after-burial` | a dead letter was handed out, and no call had asked for that |

Left out: whether a repeated call gets the first answer after a lost one: the client repeats calls
by itself, and an application sees one call.

Sources: Jepsen's queues; the invariants Q8, Q9, Q12, Q13, Q14 and Q18 of this project.
"""

from collections.abc import Iterator
from itertools import pairwise

from .calls import SETTLING, Delivery, Settlement
from .messages import Findings, Lease, Message, PopRules, returned

FINAL = ("ack", "reject")
"""After these a message is never handed out again by itself."""
OF_TIME = ("failed", "expired")
"""The reasons of a dead letter that no call rejected."""


def judge_settling(
    message: Message, leases: dict[int, Lease], rules: PopRules, found: Findings
) -> None:
    """All rules of this module for one message."""
    _after_the_end(message, rules, found)
    _twice(message, found)
    _stale(message, found)
    _foreign(message, leases, found)
    _unfenced(message, found)
    _attempts(message, leases, rules, found)
    _burials(message, rules, found)


def ends(message: Message, rules: PopRules) -> Iterator[Settlement]:
    """Calls that surely were the last of a message's life, save for a redrive."""
    yield from message.surely(*FINAL)
    attempts = {one.token: one.attempt for one in message.deliveries}
    # Messages of a shared lease fail together, and only the first has used an attempt up.
    nacks = () if rules.has_shared_leases else message.surely("nack")
    for nack in nacks:
        if rules.attempts_max is not None and attempts.get(nack.token, 0) >= rules.attempts_max:
            yield nack


def _after_the_end(message: Message, rules: PopRules, found: Findings) -> None:
    if message.revivals:
        return
    for end in ends(message, rules):
        name = "redelivered-after-ack" if end.function == "ack" else "delivered-after-burial"
        for delivery in message.deliveries:
            is_asked_later = delivery.call.begin > end.call.end
            fact = f"{message.name}: {end.function} of token {end.token} was answered"
            if delivery.token > end.token:
                found.add(name, f"{fact}, and it was handed out with {delivery}", (end, delivery))
            elif is_asked_later and not rules.is_ahead:
                found.add(name, f"{fact}, and a later pop gave {delivery}", (end, delivery))
            elif is_asked_later:
                fact = f"{fact}, and a later pop gave it from before, {delivery}"
                found.add("stale-delivery", fact, (end, delivery))


def _twice(message: Message, found: Findings) -> None:
    done = list(message.surely(*SETTLING))
    for place, one in enumerate(done):
        for other in done[:place]:
            is_same_lease = one.token == other.token
            if is_same_lease and _is_repeat(other, one):
                continue
            is_over = other.function in FINAL and one.function in FINAL
            if is_same_lease or (is_over and not message.revivals):
                fact = (
                    f"{message.name} was settled twice: {other.function} of token {other.token} "
                    f"and {one.function} of token {one.token}"
                )
                found.add("settled-twice", fact, (other, one))
    for ack in message.surely("ack"):
        if message.buried and not message.revivals:
            fact = f"{message.name} was acked and is a dead letter"
            found.add("settled-twice", fact, (ack, message.buried[0]))


def _is_repeat(one: Settlement, again: Settlement) -> bool:
    """Whether a call repeats another one of its process, which is no second settlement."""
    return (one.function, one.call.process) == (again.function, again.call.process)


def _stale(message: Message, found: Findings) -> None:
    for one in message.surely(*SETTLING):
        for delivery in message.deliveries:
            if delivery.token > one.token and delivery.call.end < one.call.begin:
                fact = (
                    f"{message.name} was handed out with {delivery}; after that, {one.function} of "
                    f"the older token {one.token} settled it"
                )
                found.add("stale-settled", fact, (delivery, one))
                break


def _foreign(message: Message, leases: dict[int, Lease], found: Findings) -> None:
    for one in message.surely(*SETTLING):
        holders = leases[one.token].holders
        if holders and one.call.process not in holders:
            fact = (
                f"{message.name}: process {one.call.process} settled token {one.token} by "
                f"{one.function}, which was handed to process {min(holders)}"
            )
            found.add("foreign-settled", fact, (one, *holders.values()))


def _unfenced(message: Message, found: Findings) -> None:
    fenced = [one for one in message.settlements if one.is_fenced]
    for one in message.surely(*SETTLING):
        for before in fenced:
            is_same = before.token == one.token and before.call.process == one.call.process
            if is_same and before.call.end < one.call.begin:
                fact = (
                    f"{message.name}: {before.function} of token {one.token} was refused as stale, "
                    f"and {one.function} of the same token was done later"
                )
                found.add("unfenced", fact, (before, one))
                break


def _attempts(message: Message, leases: dict[int, Lease], rules: PopRules, found: Findings) -> None:
    for one in message.deliveries:
        if one.attempt < 1 or (rules.attempts_max and one.attempt > rules.attempts_max):
            fact = f"{message.name} was handed out with {one}; {rules.attempts_max} are allowed"
            found.add("attempts-exceeded", fact, (one,))
    if message.revivals:
        return
    if rules.is_complete and message.deliveries and message.deliveries[0].attempt != 1:
        one = message.deliveries[0]
        found.add("attempt-miscounted", f"{message.name}: the first was {one}", (one,))
    for one, two in message.pairs():
        # Two deliveries of one token are no second hand-out: see `token-reused`.
        if one.token == two.token:
            continue
        least, most = _next_attempts(message, one, leases[one.token], rules)
        if two.attempt < least or (rules.is_complete and two.attempt > most):
            fact = f"{message.name} was handed out with {one}, and then with {two}"
            found.add(
                "attempt-miscounted", fact, (one, two, *message.settled_by(one.token, *SETTLING))
            )


def _next_attempts(
    message: Message, one: Delivery, lease: Lease, rules: PopRules
) -> tuple[int, int]:
    """The lowest and highest attempt of the next hand-out, if no hand-out between is missing."""
    given = list(message.settled_by(one.token, "give_back"))
    if any(each.is_done for each in given):
        return one.attempt, one.attempt
    if given or (rules.has_shared_leases and _may_be_rest(message, one, rules, lease)):
        return one.attempt, one.attempt + 1
    return one.attempt + 1, one.attempt + 1


def _may_be_rest(message: Message, one: Delivery, rules: PopRules, lease: Lease) -> bool:
    """Whether a message may have come back uncounted, because an earlier one had failed."""
    is_behind = lease.is_behind_any(one.offset, lease.values, rules)
    return is_behind or returned(message, one, rules, lease)


def _burials(message: Message, rules: PopRules, found: Findings) -> None:
    for first, again in pairwise(message.buried):
        fact = f"{message.name} is in the dead letters {first.letter} and {again.letter}"
        found.add("buried-twice", fact, (first, again))
    if message.revivals:
        return
    listed = message.traffic.listed
    for end in ends(message, rules):
        is_listed = message.buried or listed is None or end.call.end > listed.begin
        if end.function != "ack" and not is_listed:
            fact = f"{message.name} is no dead letter after {end.function} of token {end.token}"
            found.add("not-buried", fact, (end, *message.deliveries[-1:]), (listed,))
    for buried in message.buried[:1]:
        why = _why_wrong(message, buried.reason, buried.attempt, rules)
        if why:
            fact = f"{message.name} is a dead letter ({buried.reason}), {why}"
            found.add("buried-early", fact, (buried, *message.deliveries, *message.settlements))


def _why_wrong(message: Message, reason: str, attempt: int, rules: PopRules) -> str:
    if reason not in OF_TIME:
        if not any(one.argument == reason for one in message.maybe("reject")):
            return "and no consumer had rejected it so"
        return ""
    if rules.attempts_max is not None and attempt != rules.attempts_max:
        return f"after {attempt} attempts of {rules.attempts_max}"
    if message.deliveries and message.deliveries[-1].attempt > attempt:
        return f"after {attempt} attempts, and the last seen was {message.deliveries[-1]}"
    return ""
