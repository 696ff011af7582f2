"""Hand-offs: the transaction that acknowledges an input makes its one output.

| function | key | value of its invoke | value of its answer, a row a message |
|---|---|---|---|
| `send` | queue of inputs | input | - |
| `hand_off` | queue of inputs, a row an input | (input, transaction) | - |
| `made` | - | - | (input, transaction), with its queue and offset |

`hand_off` ends with `ok` if the commit was answered, and with `fail` if the transaction is surely
rolled back. `made` reads all outputs to their end, after all inputs are settled.

| anomaly | what is wrong |
|---|---|
| `made-twice` | two outputs of one input |
| `made-undone` | an output of a transaction that was rolled back |
| `made-lost` | a transaction was committed, and an output is missing |
| `input-lost` | an input was acknowledged to its producer, and nothing was made of it |

Invariants:
- An input has one value, and each transaction makes one output of each of its inputs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from raftmq.checkers.history import History, RowType
from raftmq.checkers.rows import Row, number_of, pair_of, rows_of
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly, Report, judged

CHECKER = "hand-off"
HAND_OFF = "hand_off"
MADE = "made"


def check_hand_off(history: History, *, topic: str, is_drained: bool) -> Report:
    """Judge hand-offs.

    Args:
        history: what clients did.
        topic: whose messages are the inputs; their queues are named `topic/0` and so on.
        is_drained: False: inputs may be left, and `made` need not have found all.
    """
    tried: dict[tuple[int, int], Row] = {}
    made: dict[int, list[Row]] = defaultdict(list)
    sent: dict[int, Row] = {}
    for row in rows_of(history, HAND_OFF, MADE, "send"):
        if row.function == MADE and not row.is_invoke and row.key:
            made[pair_of(row.value)[0]].append(row)
        elif row.function == HAND_OFF and row.is_invoke:
            tried[pair_of(row.value)] = row
        elif row.function == "send" and row.is_invoke and row.key.startswith(f"{topic}/"):
            sent[number_of(row.value)] = row
    found = [*_wrong_outputs(made, tried)]
    compared = sum(map(len, made.values()))
    if is_drained:
        found += [*_lost_outputs(made, tried), *_lost_inputs(made, sent)]
        compared += len(tried) + len(sent)
    counts = Counter(anomaly.name for anomaly in found)
    kept = [one for n, one in enumerate(found) if _place(found, n) < EXAMPLES_MAX]
    told = {"outputs": sum(map(len, made.values())), "inputs": len(sent), **counts}
    # Without outputs nothing could have been made twice.
    return judged(CHECKER, kept, told, compared=compared if made else 0)


def _place(found: list[Anomaly], at: int) -> int:
    """The number of earlier anomalies of the same name."""
    return sum(one.name == found[at].name for one in found[:at])


def _wrong_outputs(
    made: dict[int, list[Row]], tried: dict[tuple[int, int], Row]
) -> Iterator[Anomaly]:
    for value, rows in made.items():
        if len(rows) > 1:
            places = " and ".join(f"{row.key} offset {row.offset}" for row in rows)
            fact = f"of input {value} {len(rows)} outputs were made: {places}"
            yield _anomaly("made-twice", fact, *rows)
        for row in rows:
            attempt = tried.get(pair_of(row.value))
            if attempt is None or attempt.call.outcome is RowType.FAIL:
                fact = f"output {row.value} is of a transaction that was rolled back or never was"
                yield _anomaly("made-undone", fact, row, *([attempt] if attempt else []))


def _lost_outputs(
    made: dict[int, list[Row]], tried: dict[tuple[int, int], Row]
) -> Iterator[Anomaly]:
    for name, row in tried.items():
        is_done = row.call.outcome is RowType.OK
        if is_done and all(pair_of(one.value) != name for one in made.get(name[0], [])):
            fact = f"transaction {name[1]} was committed, and its output of {name[0]} is missing"
            yield _anomaly("made-lost", fact, row)


def _lost_inputs(made: dict[int, list[Row]], sent: dict[int, Row]) -> Iterator[Anomaly]:
    for value, row in sent.items():
        if row.call.outcome is RowType.OK and value not in made:
            fact = f"input {value} of {row.key} was acknowledged, and nothing was made of it"
            yield _anomaly("input-lost", fact, row)


def _anomaly(name: str, fact: str, *rows: Row) -> Anomaly:
    operations = tuple(row.call.operation for row in rows)
    return Anomaly(name, fact, operations, tuple(row.code for row in rows))
