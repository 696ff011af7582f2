"""Small histories of delayed messages and transactions, each with one anomaly in it."""

from collections.abc import Callable

from raftmq.checkers.pop.withheld_calls import Cancelling
from tests.checkers.withheld_writing import WithheldScript

Plant = Callable[[WithheldScript], None]


def early_by_stamp(script: WithheldScript) -> None:
    script.delayed("a", 100)
    script.found(("a", 1, 99))


def early_by_clients(script: WithheldScript) -> None:
    script.delayed("a", 100)
    script.time.now = 90
    script.popped("a", 1)
    script.found(("a", 1, 100))
    script.opened()


def cancelled_and_came(script: WithheldScript) -> None:
    script.delayed("a")
    script.cancelled("a")
    script.found(("a", 1, 200))


def came_and_was_gone(script: WithheldScript) -> None:
    script.delayed("a")
    script.popped("a", 1)
    script.cancelled("a", Cancelling.NOT_WAITING)
    script.found()


def half_before_commit(script: WithheldScript) -> None:
    script.half("a")
    script.popped("a", 1)
    script.ended(commit=True)
    script.found(("a", 1, 200))


def half_of_nobody(script: WithheldScript) -> None:
    script.half("a")
    script.found(("a", 1, 200))


def rolled_back_and_came(script: WithheldScript) -> None:
    script.half("a")
    script.recorder.unknown(script.ending(commit=True))
    script.ended(commit=False)
    script.found(("a", 1, 200))


def torn(script: WithheldScript) -> None:
    script.half("a")
    script.half("b")
    script.recorder.unknown(script.ending(commit=True))
    script.found(("a", 1, 200))


def lost_when_due(script: WithheldScript) -> None:
    script.delayed("a")
    script.found()


def lost_after_refused_cancel(script: WithheldScript) -> None:
    script.delayed("a")
    script.cancelled("a", Cancelling.FELL_DUE)
    script.found()


def lost_though_committed(script: WithheldScript) -> None:
    script.half("a")
    script.ended(commit=True)
    script.found()


def two_outcomes(script: WithheldScript) -> None:
    script.half("a")
    script.ended(commit=True)
    script.ended(commit=False)
    script.found(("a", 1, 200))


def outcome_of_nobody(script: WithheldScript) -> None:
    script.half("a")
    script.ended(commit=True, outcome=False)
    script.found()


def not_listed(script: WithheldScript) -> None:
    script.half("a")
    script.opened()
    script.found()


def listed_after_its_end(script: WithheldScript) -> None:
    script.half("a")
    script.ended(commit=False)
    script.opened("x")
    script.found()


def twice(script: WithheldScript) -> None:
    script.delayed("a")
    script.found(("a", 1, 200), ("a", 2, 201))


def failed_and_came(script: WithheldScript) -> None:
    script.recorder.fail(script.recorder.invoke(1, "delay", "t/0", ("a", 1, 1)))
    script.found(("a", 1, 2_000_000))


PLANTS: list[tuple[str, Plant]] = [
    ("delivered-early", early_by_stamp),
    ("delivered-early", early_by_clients),
    ("delivered-after-cancel", cancelled_and_came),
    ("delivered-after-cancel", came_and_was_gone),
    ("half-visible", half_before_commit),
    ("half-visible", half_of_nobody),
    ("delivered-after-rollback", rolled_back_and_came),
    ("transaction-torn", torn),
    ("withheld-lost", lost_when_due),
    ("withheld-lost", lost_after_refused_cancel),
    ("withheld-lost", lost_though_committed),
    ("outcome-changed", two_outcomes),
    ("outcome-changed", outcome_of_nobody),
    ("undecided-unlisted", not_listed),
    ("ended-listed", listed_after_its_end),
    ("duplicate", twice),
    ("aborted-read", failed_and_came),
]
