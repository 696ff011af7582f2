"""Claims: while one runs, no other claim of its key is granted.

| function | key | value of its invoke | value of its answer |
|---|---|---|---|
| `claim` | what is claimed | (claim, ttl in ms) | (claim, 1 if granted, else 0) |
| `give_up` | what is claimed | claim | (claim, 1 if it was still held, else 0) |

Each claim has a number of its own. A claim is surely held from the row of its answer until the
first call that gives it up begins, or until its time may be over. Two claims of a key that are
surely held at one moment are `claims-overlap`. The first call that gives up a claim of `LONG_MS`
must find the claim held, if it is answered: the answer that it was over is `claim-disowned`.

    >>> recorder = Recorder(lambda: 0)
    >>> for number in (1, 2):
    ...     claim = recorder.invoke(number, "claim", "payment", (number, LONG_MS))
    ...     recorder.ok(claim, value=(number, 1))
    >>> check_claims(recorder.history(), clock_ms_max=None).names()
    {'claims-overlap'}

Left out: refusals. A claim whose answer was lost may run, so a refusal is never surely wrong.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raftmq.checkers.history import History, Recorder, RowType
from raftmq.checkers.pop.calls import NEVER, Call
from raftmq.checkers.rows import number_of, pair_of, rows_of
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly, Report, judged

CHECKER = "claims"
CLAIM = "claim"
GIVE_UP = "give_up"
LONG_MS = 20 * 24 * 3600 * 1000
"""A claim of this length outlasts the faults of clocks, which jump by days at most."""

__all__ = ["CLAIM", "GIVE_UP", "LONG_MS", "Recorder", "check_claims"]


class _Held(NamedTuple):
    """A granted claim, surely held between two rows."""

    first: int
    last: int
    operation: int
    code: int
    number: int


def check_claims(history: History, *, clock_ms_max: int | None) -> Report:
    """Judge `claim` and `give_up`.

    Args:
        history: what clients did.
        clock_ms_max: by how much the clocks of leaders differ from the recorder's pace; None: by
            any time, and only claims of `LONG_MS` and longer surely last.
    """
    by_key = _held_by_key(history, clock_ms_max)
    anomalies: list[Anomaly] = []
    compared = count = 0
    for key, claims in sorted(by_key.items()):
        compared += max(len(claims) - 1, 0)
        for one, other in _overlaps(claims):
            count += 1
            fact = f"{key}: claim {other.number} was granted while claim {one.number} was held"
            if count <= EXAMPLES_MAX:
                operations, codes = (one.operation, other.operation), (one.code, other.code)
                anomalies.append(Anomaly("claims-overlap", fact, operations, codes))
    granted = sum(map(len, by_key.values()))
    disowned, looked = _disowned(history)
    anomalies += disowned[:EXAMPLES_MAX]
    counts = {"granted": granted, "claims-overlap": count, "claim-disowned": len(disowned)}
    return judged(CHECKER, anomalies, counts, compared=compared + looked)


def _disowned(history: History) -> tuple[list[Anomaly], int]:
    """Long claims whose first giving up was answered as if their time were over, and the number of
    first answers."""
    long: set[int] = set()
    first: dict[int, int] = {}
    found: list[Anomaly] = []
    looked = 0
    for row in rows_of(history, CLAIM, GIVE_UP):
        if row.function == CLAIM:
            number, word = pair_of(row.value)
            if row.is_invoke and word >= LONG_MS:
                long.add(number)
        elif row.is_invoke:
            first.setdefault(number_of(row.value), row.call.operation)
        elif row.call.outcome is RowType.OK:
            number, word = pair_of(row.value)
            if number not in long or first[number] != row.call.operation:
                continue
            looked += 1
            if not word:
                fact = f"{row.key}: claim {number} was said to be over when it was first given up"
                operations, codes = (row.call.operation,), (row.code,)
                found.append(Anomaly("claim-disowned", fact, operations, codes))
    return found, looked


def _held_by_key(history: History, clock_ms_max: int | None) -> dict[str, list[_Held]]:
    ttls: dict[int, int] = {}
    given_up: dict[int, int] = {}
    granted: dict[int, tuple[str, Call, int]] = {}
    for row in rows_of(history, CLAIM, GIVE_UP):
        if row.function == GIVE_UP:
            if row.is_invoke:
                given_up.setdefault(number_of(row.value), row.call.begin)
            continue
        number, word = pair_of(row.value)
        if row.is_invoke:
            ttls[number] = word
        elif word and row.call.outcome is RowType.OK:
            granted[number] = row.key, row.call, row.code
    found: dict[str, list[_Held]] = defaultdict(list)
    for number, (key, call, code) in granted.items():
        over = _row_when_over(history, call, ttls[number], clock_ms_max)
        last = min(over, given_up.get(number, NEVER))
        found[key].append(_Held(call.end, last, call.operation, code, number))
    return found


def _row_when_over(history: History, call: Call, ttl_ms: int, clock_ms_max: int | None) -> int:
    """The first row at which the claim's time may be over."""
    if ttl_ms >= LONG_MS:
        return NEVER
    if clock_ms_max is None:
        return call.end
    # The leader counts from some moment of the call, so at the earliest from its beginning.
    over_ms = call.begin_ms + ttl_ms - clock_ms_max
    return int(np.searchsorted(history.time, over_ms * 1e6))


def _overlaps(claims: list[_Held]) -> Iterator[tuple[_Held, _Held]]:
    """Claims that follow each other and are surely held at one moment."""
    by_first = sorted(one for one in claims if one.first < one.last)
    for one, other in pairwise(by_first):
        if other.first < one.last:
            yield one, other
