"""Rules of an ordered group: messages with one key go out one after the other, by their offsets.

| anomaly | what is wrong |
|---|---|
| `key-inversion` | a message was handed out after a later one of its key had been |
| `key-overtake` | a message was handed out while an earlier one of its key was not settled |
| `rest-delivered` | a later message of a lease in queue order was given after one had failed or |
| | been refused |

Tokens grow with every hand-out, so the first rule needs no clock. For the second, an earlier
message surely was not settled if its ack began after the later message had come; or if no call ever
settled it, and it is no dead letter.

In a group that is ordered by queue, all messages of a queue have one key, and one lease may hold
several of them.

Left out: redriven messages, which may come late.

Sources: the invariant Q19 of this project; SQS FIFO's message groups.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise

from raftmq.checkers.history import Value

from .calls import Delivery, Settlement
from .messages import Findings, Lease, Message, PopRules


def judge_order(messages: Mapping[int, Message], rules: PopRules, found: Findings) -> None:
    """Judge the messages of one queue, given by offset."""
    if not rules.order:
        return
    by_key: dict[Value, list[Message]] = defaultdict(list)
    for offset in sorted(messages):
        message = messages[offset]
        key = _key(message, rules)
        if key is not None and not message.revivals:
            by_key[key].append(message)
    for same in by_key.values():
        _inversions(same, found)
        for earlier, later in pairwise(same):
            _overtake(earlier, later, rules, found)


def _may_be_gone(message: Message) -> bool:
    """Whether retention may have taken a message: the books tell how many it took, not which."""
    books = message.traffic.books
    return books is not None and books.lost > 0


def judge_rest(
    leases: Mapping[int, Lease],
    messages: Mapping[int, Message],
    rules: PopRules,
    found: Findings,
) -> None:
    """Judge leases in the order of a queue: the rest of a lease goes back with the first message
    that failed, or was no longer its consumer's. A message that retention took is refused, too, but
    the rest of its lease stays."""
    for lease in leases.values() if rules.order == "queue" else ():
        failures = sorted(_failures(lease), key=_end)
        # For each failure: the one with the lowest offset among those up to it.
        lowest = list(accumulate(failures, _lower))
        for one in lease.deliveries:
            known = bisect_left(failures, one.call.begin, key=_end)
            failure = lowest[known - 1] if known else None
            if failure is not None and failure.offset < one.offset:
                gone = messages.get(failure.offset)
                if failure.is_fenced and gone is not None and _may_be_gone(gone):
                    continue
                how = "was refused for" if failure.is_fenced else "was done to"
                fact = (
                    f"offset {one.offset} came, {one}, after {failure.function} {how} offset "
                    f"{failure.offset} of the same lease"
                )
                found.add("rest-delivered", fact, (failure, one))


def _failures(lease: Lease) -> Iterator[Settlement]:
    """Calls of a lease's holders, acks aside, that ended messages of the lease, or whose answer was
    that the lease had ended."""
    settled = {one.offset for one in lease.settlements if not one.is_refused}
    for one in lease.settlements:
        # A call on a message that was settled before is refused, whatever happened to the lease.
        is_news = one.is_fenced and one.offset not in settled
        is_failure = is_news or (one.is_done and one.function != "ack")
        if is_failure and one.call.process in lease.holders:
            yield one


def _end(one: Settlement) -> int:
    return one.call.end


def _lower(one: Settlement, other: Settlement) -> Settlement:
    return one if one.offset <= other.offset else other


def _key(message: Message, rules: PopRules) -> Value:
    """The key that orders a message; None: no order holds for it."""
    if rules.order == "queue":
        return "the queue"
    value = message.value
    return value[1] if isinstance(value, tuple) and len(value) > 1 else None


def _inversions(same: list[Message], found: Findings) -> None:
    """Judge that offsets never go back in the order of tokens, unless both messages shared a
    lease."""
    handed = [
        (one.token, message.offset, one, message) for message in same for one in message.deliveries
    ]
    handed.sort(key=lambda each: each[:2])
    highest: tuple[Delivery, Message] | None = None
    for _, offset, one, message in handed:
        if highest is not None and offset < highest[1].offset:
            if any(each.token == highest[0].token for each in message.deliveries):
                continue
            fact = f"{message.name} was handed out, {one}, after {highest[1].name}, {highest[0]}"
            found.add("key-inversion", fact, (highest[0], one))
        else:
            highest = one, message


def _overtake(earlier: Message, later: Message, rules: PopRules, found: Findings) -> None:
    """Judge that the earlier message was over when the later one was first handed out."""
    if not later.deliveries:
        return
    first = later.deliveries[0]
    over = list(earlier.maybe("ack", "reject"))
    shared = [one for one in earlier.deliveries if one.token == first.token]
    # In the order of a queue, one lease may hold both messages.
    if shared and rules.order == "queue":
        return
    fact = f"{later.name} was handed out, {first}, "
    if shared:
        found.add("key-overtake", f"{fact}together with {earlier.name}", (shared[0], first))
        return
    if any(one.call.begin < first.call.end for one in over) or earlier.buried:
        return
    held, done = earlier.deliveries[-1:], [one for one in over if one.is_done]
    listed = later.traffic.listed
    if done:
        fact += f"before {earlier.name} was settled"
        found.add("key-overtake", fact, (*held, first, done[0]))
    elif listed is not None and listed.begin > first.call.end and not _may_be_gone(earlier):
        fact += f"and {earlier.name} was never settled and is no dead letter"
        sent = [] if earlier.sent is None else [earlier.sent]
        found.add("key-overtake", fact, (*sent, *held, first), (listed,))
