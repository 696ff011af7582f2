"""Chooses the checkers of a history by the functions in it."""

import numpy as np

from raftmq.checkers.log.anomalies import check_log
from raftmq.checkers.objects.linearizability import Limit, check_linearizability
from raftmq.checkers.objects.models import model_for
from raftmq.checkers.pop.calls import FUNCTIONS as POPPING
from raftmq.checkers.pop.calls import POP
from raftmq.checkers.pop.ledger import check_pop
from raftmq.checkers.pop.withheld import check_withheld
from raftmq.checkers.pop.withheld_calls import DELAY, HALF
from raftmq.checkers.pop.withheld_calls import FUNCTIONS as WITHHOLDING

from .history import NONE, History
from .total_queue import check_total_queue
from .traffic import ACK, ASSIGN, POLL, SEND
from .verdict import Report, Verdict, vacuous

CHECKER = "judge"


def judge(
    history: History, *, limit: Limit | None = None, is_shrinking: bool = True
) -> list[Report]:
    """Every report that fits: queues and logs for messages, linearizability for objects."""
    if not len(history):
        return [vacuous(CHECKER, "the history is empty")]
    used = frozenset(history.functions[int(code)] for code in np.unique(history.function))
    messages = frozenset({SEND, POLL, ACK, ASSIGN})
    reports = []
    if POP in used:
        reports.append(check_pop(history))
        messages |= POPPING
    is_withheld = bool(used & {DELAY, HALF})
    if is_withheld:
        reports.append(check_withheld(history))
        messages |= WITHHOLDING
    # A poll may return withheld messages, which `send` never sent: the queue and log checkers would
    # report them as unexpected.
    if (used & {POLL, ASSIGN} and not is_withheld) or (used & messages and not reports):
        reports.append(check_total_queue(history))
        if (history.offset != NONE).any():
            reports.append(check_log(history))
    objects = used - messages
    if objects:
        model = model_for(objects)
        if model is None:
            names = ", ".join(sorted(objects))
            reason = f"no model knows all of these functions: {names}"
            return [*reports, Report(CHECKER, Verdict.UNKNOWN, reason)]
        reports.append(
            check_linearizability(history, model, limit=limit, is_shrinking=is_shrinking)
        )
    return reports
