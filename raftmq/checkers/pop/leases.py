"""Rules of leases: who holds a message, for how long, and when it is handed out again.

| anomaly | what is wrong | needs clocks |
|---|---|---|
| `token-reused` | one token stands for two hand-outs | |
| `token-order` | a later hand-out of a queue has a smaller token | |
| `expired-delivery` | an application got a message whose time was up | |
| `two-leases` | a message was handed out again while a lease of it surely ran | yes |
| `fenced-wrongly` | a lease that surely ran was refused as stale | yes |
| `redelivered-early` | a message that failed came before its wait was over | yes |
| `redelivered-late` | a message that was due did not come | yes |

A lease *surely runs* until the earliest possible deadline, by all answers to its consumer; a
hand-out surely happened before the answer of the pop that showed it. Both are times of clients, so
each rule allows for `clock_ms_max`.

Left out: leases that no application saw.

Sources: the invariants Q10, Q11 and Q18 of this project; Kleppmann, "How to do distributed
locking".
"""

from collections.abc import Iterable, Sequence

from .calls import NEVER, SETTLING, Delivery, QueueTraffic, Settlement
from .messages import Findings, Lease, Message, PopRules, returned


def judge_tokens(traffic: QueueTraffic, rules: PopRules, found: Findings) -> None:
    """Judge the rules of tokens, over all messages of a queue."""
    first: dict[int, Delivery] = {}
    seen: dict[tuple[int, int], Delivery] = {}
    for one in traffic.deliveries:
        other = first.setdefault(one.token, one)
        is_other = (other.call.process, other.attempt) != (one.call.process, one.attempt)
        again = seen.setdefault((one.token, one.offset), one)
        if is_other or again is not one:
            two = again if again is not one else other
            fact = f"offsets {two.offset} and {one.offset} of {traffic.name}: {two}; and {one}"
            found.add("token-reused", fact, (two, one))
        if one.remaining_ms <= -rules.handing_ms_max:
            fact = f"offset {one.offset} of {traffic.name} came {-one.remaining_ms} ms late: {one}"
            found.add("expired-delivery", fact, (one,))
    # A message taken ahead reaches its application after later hand-outs: its token may be smaller.
    if not rules.is_ahead:
        _order(traffic, found)


def _order(traffic: QueueTraffic, found: Findings) -> None:
    """Pops that were begun after others had ended have larger tokens."""
    by_begin = sorted(traffic.deliveries, key=lambda one: one.call.begin)
    by_end = sorted(traffic.deliveries, key=lambda one: one.call.end)
    highest: Delivery | None = None
    place = 0
    for one in by_begin:
        while place < len(by_end) and by_end[place].call.end < one.call.begin:
            other = by_end[place]
            highest = other if highest is None or other.token > highest.token else highest
            place += 1
        if highest is not None and one.token <= highest.token:
            fact = f"{traffic.name}: a pop gave {highest}, and a later one {one}"
            found.add("token-order", fact, (highest, one))


def judge_leases(
    message: Message, leases: dict[int, Lease], rules: PopRules, end_ms: float, found: Findings
) -> None:
    """All rules that need clocks, for one message."""
    if rules.clock_ms_max is None:
        return
    for one, two in message.pairs():
        if two.token > one.token and not message.revivals:
            _second(message, one, two, leases[one.token], rules, found)
    for refused in message.settlements:
        if refused.is_fenced:
            _fenced(message, refused, leases[refused.token], rules, found)
    if rules.late_ms_max is not None and not message.revivals:
        _late(message, leases, rules, end_ms, found)


def _second(
    message: Message, one: Delivery, two: Delivery, lease: Lease, rules: PopRules, found: Findings
) -> None:
    """Judge a second hand-out: the first lease must be over by then."""
    assert rules.clock_ms_max is not None
    came = two.call.end_ms + rules.clock_ms_max
    # An ack or reject ends the lease for good: `settlement` judges what comes after it.
    if any(message.settled_by(one.token, "ack", "reject")):
        return
    if returned(message, one, rules, lease):
        # Out of a shared lease the message may have come back with an earlier one, whose delay then
        # counts, not its own.
        nacks = () if rules.has_shared_leases else message.settled_by(one.token, "nack")
        for nack in nacks:
            _early(message, one, two, nack, rules, found)
        return
    until = surely_until(one, lease.extensions)
    if came < until:
        fact = (
            f"{message.name} was handed out with {one}, which ran for {until - two.call.end_ms:.0f}"
            f" ms more when {two} came"
        )
        found.add("two-leases", fact, (one, two), [each.call for each in lease.extensions])


def _early(
    message: Message,
    one: Delivery,
    two: Delivery,
    nack: Settlement,
    rules: PopRules,
    found: Findings,
) -> None:
    assert rules.clock_ms_max is not None
    delay = _delay(one, nack, rules)
    if delay is None or not nack.is_done:
        return
    early = nack.call.begin_ms + delay - two.call.end_ms - rules.clock_ms_max
    if early > 0:
        fact = (
            f"{message.name} failed, was to wait {delay} ms, and came {early:.0f} ms early: {two}"
        )
        found.add("redelivered-early", fact, (one, nack, two))


def _delay(one: Delivery, nack: Settlement | None, rules: PopRules) -> int | None:
    """The wait in ms of a message that failed, or whose lease ran out; None: unknown."""
    if nack is not None and isinstance(nack.argument, int) and nack.argument >= 0:
        return nack.argument
    schedule = rules.schedule_ms
    return schedule[min(one.attempt, len(schedule)) - 1] if schedule else None


def surely_until(one: Delivery, extensions: Iterable[Settlement]) -> float:
    """The earliest time at which a lease may end, by the answers to its consumer."""
    done = [each for each in extensions if each.is_done]
    last = max((each.call.begin for each in done), default=-1)
    until = []
    # The hand-out, and each extension that no other one surely followed, may have set the deadline.
    if not done:
        until.append(one.call.end_ms + one.remaining_ms)
    for each in extensions:
        if each.is_refused or last > each.call.end:
            continue
        length = each.result if each.result is not None else each.argument
        assert isinstance(length, int)
        until.append(each.call.begin_ms + length)
    return min(until)


def _at_last_until(one: Delivery, extensions: Sequence[Settlement]) -> float:
    """The latest time at which a lease may end."""
    until = [one.call.end_ms + one.remaining_ms]
    for each in extensions:
        if not each.is_refused:
            length = each.result if each.result is not None else each.argument
            assert isinstance(length, int)
            until.append(each.call.end_ms + length)
    return max(until)


def _fenced(
    message: Message, fenced: Settlement, lease: Lease, rules: PopRules, found: Findings
) -> None:
    """Judge a refusal as stale: something must have ended the lease before."""
    assert rules.clock_ms_max is not None
    held = [
        one
        for one in message.deliveries
        if one.token == fenced.token and one.call.process == fenced.call.process
    ]
    if not held or returned(message, held[0], rules, lease):
        return
    if any(one is not fenced for one in message.settled_by(fenced.token, *SETTLING)):
        return
    until = surely_until(held[0], lease.extensions)
    if fenced.call.end_ms + rules.clock_ms_max < until:
        fact = (
            f"{message.name}: {fenced.function} of token {fenced.token} was refused as stale, and "
            f"the lease ran for {until - fenced.call.end_ms:.0f} ms more"
        )
        found.add("fenced-wrongly", fact, (held[0], fenced), [one.call for one in lease.extensions])


def _late(
    message: Message,
    leases: dict[int, Lease],
    rules: PopRules,
    end_ms: float,
    found: Findings,
) -> None:
    """Judge whether a due message is handed out again in time; consumers pop all the time."""
    assert rules.late_ms_max is not None
    assert rules.clock_ms_max is not None
    nexts: list[Delivery | None] = [*message.deliveries[1:], None]
    for one, two in zip(message.deliveries, nexts, strict=False):
        due = _due(message, one, leases[one.token], rules)
        if due is None:
            continue
        if two is None and any(dead.attempt > one.attempt for dead in message.buried):
            # Hand-outs that no application saw used up the other attempts, to the last one.
            continue
        came = end_ms if two is None else two.call.end_ms
        late = came - due - rules.late_ms_max - rules.clock_ms_max
        if late > 0:
            what = "had not come again" if two is None else f"came again with {two}"
            fact = f"{message.name}, {one}, was due and {what} {came - due:.0f} ms later"
            shown = message.settled_by(one.token, *SETTLING)
            found.add("redelivered-late", fact, (one, *shown, *([two] if two else [])))


def _due(message: Message, one: Delivery, lease: Lease, rules: PopRules) -> float | None:
    """When a message is handed out again at the latest; None: never, or unknown."""
    settled = list(message.settled_by(one.token, *SETTLING))
    # With two calls, or one without an answer, it is unknown which of them took effect.
    if len(settled) > 1 or any(not each.is_done for each in settled):
        return None
    by = settled[0] if settled else None
    if by is not None and by.function in ("ack", "reject"):
        return None
    if by is not None and by.function == "give_back":
        return by.call.end_ms
    if rules.attempts_max is not None and one.attempt >= rules.attempts_max:
        return None
    delay = _delay(one, by, rules)
    since = by.call.end_ms if by is not None else _at_last_until(one, lease.extensions)
    return None if delay is None or since >= NEVER else since + delay
