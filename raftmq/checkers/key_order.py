"""Order by key: a sender's messages of one key are delivered in their order, one at a time.

For ordered groups, with the keys spread over any queues and consumers. The row's key is the
ordering key. Two rules:

- *order-inversion*: the first deliveries of one sender's messages for a key come in the order of
  their sends. A message delivered again, after a lease ran out, may come late.
- *order-overtake*: while a message is out for delivery and not acked, no later one of its sender
  and key is delivered. Judged for messages that were acked in the end, if acks are in the history:
  a message that was never acked may have become a dead letter, which blocks no other message.

Left out: order between different senders of a key, which only the log's offsets define (see
`log.anomalies`).

Sources: OpenChaos' order per sharding key; SQS FIFO's message groups.
"""

import numpy as np

from .history import NONE, History, Integers, RowType
from .traffic import ACK, Traffic, doubt, traffic
from .verdict import EXAMPLES_MAX, Anomaly, Report, Verdict, judged

CHECKER = "key-order"
NO_KEYS = "vacuous: nothing with a key was delivered"
"""The reason of an undecided verdict: no message has an order by key."""


def check_key_order(history: History) -> Report:
    """Judge sends, polls and acks by key."""
    found = traffic(history)
    why = doubt(found)
    if why:
        return Report(CHECKER, Verdict.UNKNOWN, why)
    sends, deliveries = found.sends, found.deliveries
    first = found.first_delivery()[sends.value]
    places = np.flatnonzero((first != NONE) & (sends.key != NONE))
    if not len(places):
        return Report(CHECKER, Verdict.UNKNOWN, NO_KEYS)
    # Within a sender and key the places are in the order of the sends.
    order = np.lexsort((sends.key[places], sends.process[places]))
    places = places[order]
    row = deliveries.row[first[places]]
    is_new = np.ones(len(places), np.bool_)
    process, key = sends.process[places], sends.key[places]
    is_new[1:] = (process[1:] != process[:-1]) | (key[1:] != key[:-1])
    run = np.cumsum(is_new, dtype=np.int64)
    before, inverted = _behind(run, row, row, len(history))
    acked = _first_ack(found)[sends.value[places]]
    holder, overtaken = _behind(run, acked, row, len(history))
    anomalies = [
        _anomaly(found, "order-inversion", int(places[before[one]]), int(places[one]))
        for one in inverted[:EXAMPLES_MAX]
    ]
    anomalies += [
        _anomaly(found, "order-overtake", int(places[holder[one]]), int(places[one]))
        for one in overtaken[:EXAMPLES_MAX]
    ]
    counts = {
        "keys and senders": int(run[-1]),
        "messages": len(places),
        "order-inversion": len(inverted),
        "order-overtake": len(overtaken),
    }
    # The first message of a sender and key has none before it to be compared with.
    return judged(CHECKER, anomalies, counts, compared=len(places) - int(run[-1]))


def _behind(
    run: Integers, earlier: Integers, later: Integers, width: int
) -> tuple[Integers, Integers]:
    """Places whose `later` is below the highest `earlier` of those before them in their run.

    Returns, for every place, the place before it that holds the highest; and the places found.
    """
    lifted = run * (width + 2) + earlier
    highest = np.maximum.accumulate(lifted)
    is_new = np.ones(len(run), np.bool_)
    is_new[1:] = highest[1:] != highest[:-1]
    holder = np.maximum.accumulate(np.where(is_new, np.arange(len(run)), 0))
    before = np.zeros(len(run), np.int64)
    before[1:] = holder[:-1]
    is_found = np.zeros(len(run), np.bool_)
    is_found[1:] = (run[1:] == run[:-1]) & (highest[:-1] > run[1:] * (width + 2) + later[1:])
    return before, np.flatnonzero(is_found)


def _first_ack(found: Traffic) -> Integers:
    """By value code: the row where its first successful ack began, or -1."""
    history = found.history
    acked = np.flatnonzero(
        history.is_function(ACK) & (history.type == RowType.OK) & (history.value != NONE)
    )
    rows = np.full(len(history.values), NONE, np.int64)
    rows[history.value[acked][::-1]] = found.start[history.operation[acked][::-1]]
    return rows


def _anomaly(found: Traffic, name: str, earlier: int, later: int) -> Anomaly:
    sends, deliveries, history = found.sends, found.deliveries, found.history
    values = [int(sends.value[earlier]), int(sends.value[later])]
    first = found.first_delivery()
    operations = {int(sends.operation[place]) for place in (earlier, later)}
    operations |= {int(deliveries.operation[first[value]]) for value in values}
    texts = [found.value_text(value) for value in values]
    key = found.key_text(int(sends.key[later]))
    if name == "order-overtake":
        acks = np.flatnonzero(history.is_function(ACK) & (history.value == values[0]))
        operations |= {int(history.operation[row]) for row in acks}
        fact = f"{texts[1]} of key {key} was delivered before {texts[0]}, sent earlier, was acked"
    else:
        fact = f"{texts[0]} of key {key} was sent before {texts[1]} and delivered after it"
    return Anomaly(name, fact, tuple(sorted(operations)), tuple(values))
