"""Rules of an ordered group: messages with one key go out one after the other, by their offsets.

| anomaly | what is wrong |
|---|---|
| `key-inversion` | a message was handed out after a later one of its key had been |
| `key-overtake` | a message was handed out while an earlier one of its key was not settled |
| `rest-delivered` | a later message of a lease was given after one that it is in order with had |
| | failed or been refused |

Tokens grow with every hand-out, so the first rule needs no clock. For the second, an earlier
message surely was not settled if its ack began after the later message had come; or if no call ever
settled it, and it is no dead letter.

In a group that is ordered by queue, all messages of a queue have one key. There, and in runs of a
key, one lease may hold several messages that are in order with each other.

Left out: redriven messages, which may come late.

Sources: the invariant Q19 of this project; SQS FIFO's message groups.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
        key = rules.turn_of(message.value)
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


def judge_shared_leases(
    leases: Mapping[int, Lease],
    messages: Mapping[int, Message],
    rules: PopRules,
    found: Findings,
) -> None:
    """Judge leases that hold messages in order: they come in order, and the later ones go back with
    the first message that failed, or was no longer its consumer's. A message that retention took is
    refused, too, but the rest of its lease stays."""
    for lease in leases.values() if rules.has_shared_leases else ():
        by_turn: dict[Value, list[Delivery]] = defaultdict(list)
        for one in lease.deliveries:
            by_turn[rules.turn_of(one.value)].append(one)
        failures: dict[Value, list[Settlement]] = defaultdict(list)
        for each in _failures(lease):
            failures[rules.turn_of(lease.values.get(each.offset))].append(each)
        for turn, deliveries in by_turn.items():
            if turn is not None:
                _within_lease(deliveries, found)
                _late_rest(deliveries, failures[turn], messages, found)


def _within_lease(deliveries: Sequence[Delivery], found: Findings) -> None:
    """Judge that a lease's messages of one turn came by their offsets."""
    highest = deliveries[0]
    for one in deliveries[1:]:
        if one.offset < highest.offset:
            fact = (
                f"offset {one.offset} came after offset {highest.offset} of the same lease: {one}"
            )
            found.add("lease-inversion", fact, (highest, one))
        else:
            highest = one


def _late_rest(
    deliveries: Sequence[Delivery],
    failures: Sequence[Settlement],
    messages: Mapping[int, Message],
    found: Findings,
) -> None:
    failures = sorted(failures, key=_end)
    # For each failure: the one with the lowest offset among those up to it.
    lowest = list(accumulate(failures, _lower))
    for one in deliveries:
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
    tokens = {one.token for one in earlier.deliveries} if rules.has_shared_leases else set()
    # A lease that holds both gives them in order; the first one that holds the later alone counts.
    alone = [one for one in later.deliveries if one.token not in tokens]
    if not alone:
        return
    first = alone[0]
    over = list(earlier.maybe("ack", "reject"))
    shared = [one for one in earlier.deliveries if one.token == first.token]
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
