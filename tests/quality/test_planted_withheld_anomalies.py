"""Tests of the tests: planted anomalies of delayed messages and transactions are named."""

import numpy as np
import pytest

from raftmq.checkers import (
    ANOMALIES,
    History,
    Report,
    Verdict,
    WithheldRules,
    check_withheld,
    explain,
)
from raftmq.checkers.judge import judge
from raftmq.checkers.pop.withheld_calls import Cancelling
from tests.checkers.withheld_writing import WithheldScript
from tests.quality.planted_withheld_anomalies import PLANTS, Plant, listed_after_its_end


def check_clocks(history: History) -> Report:
    """Clients' clocks agree."""
    return check_withheld(history, WithheldRules(clock_ms_max=0))


@pytest.mark.parametrize(
    ("name", "plant"), PLANTS, ids=[f"{name}-{plant.__name__}" for name, plant in PLANTS]
)
def test_planted_anomaly_is_named_and_explained(name: str, plant: Plant) -> None:
    script = WithheldScript()
    script.delayed("fine", 0, offset=0)
    plant(script)
    script.opened(*(["x"] if plant is listed_after_its_end else []))
    script.found(("fine", 0, 0))
    history = script.history()
    report = check_clocks(history)
    assert report.verdict is Verdict.INVALID
    assert name in report.names()
    assert report.counts[name] >= 1
    assert ANOMALIES[name] in explain(report, history)
    # The minimal sub-history shows the same anomaly by itself.
    (anomaly, *_) = (one for one in report.anomalies if one.name == name)
    alone = history.select(np.isin(history.operation, anomaly.operations))
    again = check_clocks(alone)
    assert name in again.names() or again.reason.startswith("vacuous")


def test_seed_1110184_point_in_time_that_has_come_means_at_once_where_the_log_is_behind() -> None:
    script = WithheldScript()
    script.time.now = 2000
    script.delayed("due", 0, offset=0)
    script.delayed("later", 1)
    script.opened()
    # By a leader whose clock is behind.
    script.found(("due", 0, 900), ("later", 1, 900))
    report = check_withheld(script.history(), WithheldRules())
    assert report.counts["delivered-early"] == 1
    assert "'later'" in explain(report, script.history())


def healthy() -> WithheldScript:
    script = WithheldScript()
    script.delayed("due", 100)
    script.delayed("unwanted", 500)
    script.delayed("perhaps", 500)
    script.cancelled("unwanted")
    script.cancelled("unwanted", Cancelling.NOT_WAITING)
    script.cancelled("perhaps", None)
    script.half("one", "committed")
    script.half("two", "committed")
    script.half("three", "rolled back")
    script.half("four", "undecided")
    script.half("five", "in doubt")
    script.recorder.unknown(script.ending("in doubt", commit=True))
    script.ended("committed", commit=True)
    script.ended("committed", commit=False, outcome=True)
    script.ended("rolled back", commit=False)
    script.time.now = 300
    script.popped("due", 0)
    script.cancelled("due", Cancelling.FELL_DUE)
    script.opened("undecided", "in doubt")
    script.found(("due", 0, 100), ("one", 1, 150), ("two", 2, 150))
    return script


def test_healthy_history_is_valid_and_counted() -> None:
    report = check_clocks(healthy().history())
    assert report.verdict is Verdict.VALID, explain(report, healthy().history())
    assert not report.anomalies
    assert report.counts == {
        "delayed": 3, "cancelled": 2, "of transactions": 5, "committed": 1, "rolled back": 1,
        "undecided": 2,
    }  # fmt: skip


def test_judge_finds_the_checker_by_the_functions() -> None:
    (report,) = [one for one in judge(healthy().history()) if one.checker == "withheld"]
    assert report.verdict is Verdict.VALID


def test_cancellation_without_an_answer_may_have_taken_it_back_or_not() -> None:
    for is_there in (False, True):
        script = WithheldScript()
        script.delayed("a")
        script.cancelled("a", None)
        script.found(*([("a", 0, 200)] if is_there else []))
        assert check_clocks(script.history()).verdict is Verdict.VALID


def test_commit_without_an_answer_may_have_happened_or_not() -> None:
    for is_there in (False, True):
        script = WithheldScript()
        script.half("a")
        script.recorder.unknown(script.ending(commit=True))
        script.opened(*([] if is_there else ["x"]))
        script.found(*([("a", 0, 200)] if is_there else []))
        assert check_clocks(script.history()).verdict is Verdict.VALID


def test_what_retention_may_have_taken_is_not_called_lost() -> None:
    script = WithheldScript()
    script.delayed("a")
    script.delayed("b")
    script.found(("b", 7, 200))
    assert check_clocks(script.history()).verdict is Verdict.VALID


@pytest.mark.parametrize(
    ("rules", "is_read", "is_listed", "why"),
    [
        (WithheldRules(), False, True, "the queues were never read from their start"),
        (WithheldRules(), True, False, "the list of open transactions was never asked for"),
        (WithheldRules(is_drained=False), True, True, "not all had fallen due"),
    ],
)
def test_loss_that_could_not_have_shown_leaves_a_doubt(
    rules: WithheldRules, is_read: bool, is_listed: bool, why: str
) -> None:
    script = WithheldScript()
    script.half("a")
    script.popped("x", 3)
    script.ended(commit=False)
    if is_listed:
        script.opened()
    if is_read:
        script.found()
    report = check_withheld(script.history(), rules)
    assert report.verdict is Verdict.UNKNOWN
    assert why in report.reason


def test_history_without_withheld_messages_is_vacuous() -> None:
    script = WithheldScript()
    script.popped("x", 3)
    report = check_withheld(script.history())
    assert report.verdict is Verdict.UNKNOWN
    assert report.reason.startswith("vacuous")
