"""Rules of the end: nothing is missing, and the broker's own counts agree with what clients saw.

| anomaly | what is wrong |
|---|---|
| `pop-lost` | a message whose send was acknowledged is neither acked, nor dead, nor left to do |
| `books-unbalanced` | the counts do not add up, or are not what clients did |

The books tell how many of the unsettled messages are still leased or waiting, but not which. If
more messages are unsettled, some are lost.

Sources: Jepsen's total-queue, for a group that settles; the invariants Q1, Q7, Q8 and Q13 of this
project.
"""

from collections.abc import Mapping

from raftmq.checkers.history import RowType

from .calls import Books, QueueTraffic
from .messages import Findings, Message, PopRules


def judge_books(
    traffic: QueueTraffic, messages: Mapping[int, Message], rules: PopRules, found: Findings
) -> None:
    """Judge one queue of one group."""
    books, booked = traffic.books, traffic.booked
    if books is None or booked is None:
        return
    if rules.begun >= 0:
        _lost(traffic, books, messages, rules, found)
        if not any(message.revivals for message in messages.values()):
            _balance(traffic, books, messages, rules, found)


def _lost(
    traffic: QueueTraffic,
    books: Books,
    messages: Mapping[int, Message],
    rules: PopRules,
    found: Findings,
) -> None:
    missing = [
        message
        for offset, message in sorted(messages.items())
        if rules.begun <= offset < books.next and _is_unsettled(message, rules)
    ]
    open_ones = books.leased + books.waiting + books.ready + books.lost
    if rules.is_wanted is None:
        open_ones += books.passed
    if traffic.listed is None:
        open_ones += books.dead
    for message in missing if len(missing) > open_ones else []:
        assert message.sent is not None
        last = message.deliveries[-1:]
        what = f"was last handed out with {last[0]}" if last else "never came"
        fact = (
            f"{message.name} was acknowledged, {what}, was not settled, and is no dead letter; "
            f"{len(missing)} are so, and {open_ones} are left"
        )
        found.add("pop-lost", fact, (message.sent, *last), (traffic.booked, traffic.listed))


def _is_unsettled(message: Message, rules: PopRules) -> bool:
    """Whether a message was acknowledged before the books were made, and no call can have ended
    it."""
    sent, booked = message.sent, message.traffic.booked
    assert booked is not None
    # Only an answered send shows which value stands at the offset, and so whether it is wanted.
    if sent is None or (rules.is_wanted is not None and not rules.is_wanted(sent.value)):
        return False
    return (
        sent.call.outcome is RowType.OK
        and sent.call.end < booked.begin
        and not message.buried
        and not any(message.maybe("ack"))
        and not any(one.function == "purge" for one in message.revivals)
    )


def _balance(
    traffic: QueueTraffic,
    books: Books,
    messages: Mapping[int, Message],
    rules: PopRules,
    found: Findings,
) -> None:
    booked = traffic.booked
    assert booked is not None

    def wrong(what: str) -> None:
        fact = f"{traffic.name}: {what}; the books say {books}"
        found.add("books-unbalanced", fact, (), (booked, traffic.listed))

    total = books.leased + books.waiting + books.ready + books.dead
    total += books.acked + books.passed + books.lost
    if books.next - rules.begun != total or books.next > books.end:
        wrong(f"{books.next - rules.begun} messages were handed out and {total} are accounted for")
    acks = [list(message.maybe("ack")) for message in messages.values()]
    least = sum(any(one.is_done and one.call.end < booked.begin for one in of) for of in acks)
    most = sum(any(one.call.begin < booked.end for one in of) for of in acks)
    if not least <= books.acked <= most:
        wrong(f"clients acked {least} to {most} messages")
    listed = traffic.listed
    buried = sum(bool(message.buried) for message in messages.values())
    if listed is not None and _is_quiet(traffic) and buried != books.dead:
        wrong(f"{buried} messages are listed as dead letters")


def _is_quiet(traffic: QueueTraffic) -> bool:
    """Whether no call was under way while both lists were made, and no lease can have run out."""
    assert traffic.listed is not None
    assert traffic.booked is not None
    assert traffic.books is not None
    since = min(traffic.listed.begin, traffic.booked.begin)
    calls = [one.call for one in traffic.deliveries]
    calls += [one.call for one in traffic.settlements]
    return not traffic.books.leased and all(call.end < since for call in calls)
