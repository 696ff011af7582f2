"""Tests of the tests: planted anomalies of claims, hand-offs, moves and topics are named."""

import pytest

from raftmq.checkers import ANOMALIES, Verdict, check_claims, explain
from tests.quality.planted_flow_anomalies import (
    PLANTS,
    RIGHT,
    Check,
    FlowScript,
    Plant,
    claimed_while_a_short_one_runs,
)


@pytest.mark.parametrize(("name", "plant", "check"), PLANTS)
def test_planted_anomaly_is_named_and_explained(name: str, plant: Plant, check: Check) -> None:
    script = FlowScript()
    plant(script)
    history = script.history()
    report = check(history)
    assert report.verdict is Verdict.INVALID
    assert report.names() == {name}
    assert report.counts[name] >= 1
    assert ANOMALIES[name] in explain(report, history)


@pytest.mark.parametrize(("plant", "check"), RIGHT)
def test_right_history_is_valid_and_was_compared(plant: Plant, check: Check) -> None:
    script = FlowScript()
    plant(script)
    report = check(script.history())
    assert report.verdict is Verdict.VALID, report
    assert report.compared > 1


@pytest.mark.parametrize("check", [check for _, check in RIGHT])
def test_history_without_such_calls_is_vacuous(check: Check) -> None:
    script = FlowScript()
    script.sent(0, 0, "another/0")
    report = check(script.history())
    assert report.verdict is Verdict.UNKNOWN
    assert report.reason.startswith("vacuous")


def test_short_claim_is_believed_where_clocks_are_right_alone() -> None:
    script = FlowScript()
    claimed_while_a_short_one_runs(script)
    assert check_claims(script.history(), clock_ms_max=None).verdict is Verdict.VALID
