"""Linearizability: each operation seems to take effect at one moment between its call and answer.

Objects are independent, so each key is judged alone: a history is linearizable if and only if each
object's part is (Herlihy and Wing, theorem 1). Two ways to judge one:

| way | applies to | cost |
|---|---|---|
| zones (`zones`) | registers with reads and writes only, each value written once | n log n |
| search (`search`) | every model | exponential in what is under way at once |

`method="auto"` takes the zones where they apply. A search that runs into its limit of places or of
time makes the verdict unknown, unless another key is invalid for sure.

The report on an invalid key is shrunk: an operation stays only if some order would exist without
its answer. Each of the others may have taken effect in its time or not at all, and still no order
explains the remaining ones. The report adds the writes of the values that these read.

Sources: Herlihy and Wing 1990; see `search` and `zones`.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from raftmq.checkers.history import NONE, History, RowType, Value
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly, Report, Verdict, judged, vacuous

from .calls import Call, calls_by_key, without_answers
from .models import Model, model_for
from .search import PLACES_MAX, Outcome, search
from .zones import check_zones, why_zones_do_not_apply

CHECKER = "linearizability"
SHRINK_PLACES_MAX = 20_000
"""Places tried in a step of shrinking, which must not take longer than finding; a step that needs
more is given up."""


class Limit(NamedTuple):
    """When to give up."""

    places: int = PLACES_MAX
    """Places tried for each key."""
    seconds: float = 60.0
    """Seconds of processor time for the whole history."""


def check_linearizability(
    history: History,
    model: Model | None = None,
    *,
    method: Literal["auto", "search", "zones"] = "auto",
    limit: Limit | None = None,
    is_shrinking: bool = True,
) -> Report:
    """Judge the operations on single objects; by default the functions determine the model."""
    if not len(history):
        return vacuous(CHECKER, "the history is empty")
    if model is None:
        used = np.unique(history.function)
        model = model_for(frozenset(history.functions[int(code)] for code in used))
        if model is None:
            return Report(CHECKER, Verdict.UNKNOWN, "no model knows all functions of the history")
    if not (history.is_function(*model.functions) & (history.type == RowType.OK)).any():
        return vacuous(CHECKER, "no operation was answered")
    if method == "zones" or (method == "auto" and not why_zones_do_not_apply(history)):
        return check_zones(history)
    parts = calls_by_key(history, model)
    for call in (call for calls in parts.values() for call in calls):
        if not model.fits(call.function, call.argument, call.result):
            reason = f"{call.function} {call.argument!r} is nothing that a {model.name} knows"
            return Report(CHECKER, Verdict.UNKNOWN, reason)
    return _search_keys(history, model, parts, limit or Limit(), is_shrinking=is_shrinking)


def _search_keys(
    history: History,
    model: Model,
    parts: Mapping[int, Sequence[Call]],
    limit: Limit,
    *,
    is_shrinking: bool,
) -> Report:
    deadline = time.process_time() + limit.seconds

    def is_late() -> bool:
        return time.process_time() > deadline

    anomalies: list[Anomaly] = []
    counts = {"keys": 0, "operations": 0, "places": 0, "nonlinearizable": 0}
    doubts: list[str] = []
    for key, calls in sorted(parts.items()):
        outcome = search(calls, model, places_max=limit.places, is_late=is_late)
        counts["keys"] += 1
        counts["operations"] += len(calls)
        counts["places"] += outcome.places
        if outcome.is_linearizable is None:
            doubts.append("-" if key == NONE else history.keys[key])
        elif not outcome.is_linearizable:
            counts["nonlinearizable"] += 1
            if len(anomalies) < EXAMPLES_MAX:
                anomalies.append(_anomaly(history, model, key, calls, outcome, is_shrinking))
    doubt = f"gave up after the limit of places or time on keys {', '.join(doubts)}"
    return judged(
        CHECKER,
        anomalies,
        counts,
        compared=counts["operations"],
        doubt=doubt if doubts else "",
    )


def _anomaly(
    history: History,
    model: Model,
    key: int,
    calls: Sequence[Call],
    outcome: Outcome,
    is_shrinking: bool,
) -> Anomaly:
    culprits = contradiction(calls, model, outcome) if is_shrinking else list(calls)
    name = "the object" if key == NONE else history.keys[key]
    fact = f"no order explains what {len(culprits)} operations on {name} were answered"
    return Anomaly("nonlinearizable", fact, tuple(sorted(call.operation for call in culprits)))


def contradiction(calls: Sequence[Call], model: Model, outcome: Outcome) -> list[Call]:
    """A minimal set of answered calls that no order explains, whether the rest took effect or not.

    Minimal as far as the search within `SHRINK_PLACES_MAX` places can tell. The writes of the
    values in the set's answers are added.
    """
    end = outcome.furthest_end
    # Calls that began later cannot have mattered: the search failed at this end.
    early = [call for call in calls if call.begin < end]
    late = {place for place, call in enumerate(early) if call.end > end}
    left = without_answers(early, late, model)
    chunk = max(1, len(left) // 2)
    while chunk:
        left = _weakened(left, model, chunk)
        chunk //= 2
    culprits = [call for call in left if not call.is_open and not call.is_optional]
    return sorted({*culprits, *_sources(culprits, early)}, key=lambda call: call.begin)


def _weakened(left: list[Call], model: Model, chunk: int) -> list[Call]:
    """Take away the answers of `chunk` calls at a time, wherever still no order exists."""
    place = 0
    while place < len(left):
        chosen = set(range(place, min(place + chunk, len(left))))
        place += len(chosen)
        if all(left[one].is_open or left[one].is_optional for one in chosen):
            continue
        weaker = without_answers(left, chosen, model)
        if search(weaker, model, places_max=SHRINK_PLACES_MAX).is_linearizable is False:
            # Weakened observers are removed, so that the next chunk starts further to the front.
            place -= len(left) - len(weaker)
            left = weaker
    return left


def _sources(culprits: Sequence[Call], calls: Sequence[Call]) -> list[Call]:
    """For each value in an answer: the last call before the answer that may have written it."""
    found = []
    for call in culprits:
        if call.function == "cas" and isinstance(call.argument, tuple):
            value = call.argument[0] if call.result else None
        else:
            value = call.result
        writers = [
            one
            for one in calls
            if one.begin < call.end and one is not call and value in _written(one)
        ]
        found += writers[-1:] if value is not None else []
    return found


def _written(call: Call) -> tuple[Value, ...]:
    if call.function == "cas" and isinstance(call.argument, tuple):
        return call.argument[1:]
    return (call.argument,)
