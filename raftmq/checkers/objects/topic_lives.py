"""Topics that come and go under one name: a message of one life is not seen in another life, and
no life begins before its creation.

| function | key | value |
|---|---|---|
| `create_topic`, `delete_topic` | topic | life |
| `put` | topic | (message, life) |
| `put_late` | topic | (message, life): through a producer of a life that is over |
| `look_topic` | topic | the next life; an ok means that the topic is there |
| `take` | topic | its invoke: life; its answer, a row a message: (message, life of the taker) |

A *life* is a number: one creation of the topic by its one client, which deletes the topic before
the next. A taker is a consumer that was opened in the life that it names. `topic-ghost` is a
message that was taken in another life than it was put in. `topic-revived` is a topic that exists
before its next life, although each creation so far was answered: one of them took effect twice.

Left out: messages that never come. The client takes until all acknowledged messages have come, and
never ends without them.
"""

from raftmq.checkers.history import History, RowType
from raftmq.checkers.pop.resets import Found
from raftmq.checkers.rows import Row, pair_of, rows_of
from raftmq.checkers.verdict import Report, judged

CHECKER = "topic lives"
CREATE = "create_topic"
LOOK = "look_topic"
DELETE = "delete_topic"
PUT = "put"
TAKE = "take"
PUT_LATE = "put_late"


def check_topic_lives(history: History) -> Report:
    """Judge topics that come and go."""
    found = Found()
    put: dict[int, Row] = {}
    # False once a creation has no answer: it may take effect late.
    is_sure = True
    for row in rows_of(history, CREATE, LOOK, PUT, PUT_LATE, TAKE):
        if row.function == CREATE:
            is_sure &= row.call.outcome is RowType.OK
        elif row.function == LOOK:
            if row.is_invoke and is_sure:
                found.compared += 1
                if row.call.outcome is RowType.OK:
                    fact = f"{row.key}: the topic was there before life {row.value} began"
                    found.note("topic-revived", fact, row.call)
        elif row.function != TAKE:
            if row.is_invoke:
                put[pair_of(row.value)[0]] = row
        elif not row.is_invoke and row.key:
            found.compared += 1
            message, life = pair_of(row.value)
            sent = put.get(message)
            if sent is None:
                fact = f"{row.key}: message {message} came in life {life}, and was never put"
                found.note("topic-ghost", fact, row.call)
            elif sent.function == PUT_LATE or pair_of(sent.value)[1] != life:
                fact = f"{row.key}: message {sent.value} came in life {life}"
                found.note("topic-ghost", fact, sent.call, row.call)
    return judged(CHECKER, found.anomalies, found.counts, compared=found.compared)
