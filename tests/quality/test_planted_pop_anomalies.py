"""Tests of the tests: each way to break the promises of POP, planted into a history, is named."""

from collections.abc import Callable

import numpy as np
import pytest

from raftmq.checkers import ANOMALIES, History, PopRules, Report, Verdict, check_pop, explain
from raftmq.checkers.judge import judge
from raftmq.checkers.pop.messages import Ordering
from tests.checkers.pop_writing import PopScript
from tests.quality.planted_pop_anomalies import (
    PLANTS,
    Plant,
    check_group,
    older_token_after_ack,
    one_done,
    stale,
)


@pytest.mark.parametrize(
    ("name", "plant", "check"),
    PLANTS,
    ids=[f"{name}-{plant.__name__}" for name, plant, _ in PLANTS],
)
def test_planted_anomaly_is_named_and_explained(
    name: str, plant: Plant, check: Callable[[History], Report]
) -> None:
    script = PopScript()
    one_done(script)
    plant(script)
    history = script.history()
    report = check(history)
    assert report.verdict is Verdict.INVALID
    assert name in report.names()
    assert report.counts[name] >= 1
    assert ANOMALIES[name] in explain(report, history)
    # The minimal sub-history shows the same anomaly by itself.
    (anomaly, *_) = (one for one in report.anomalies if one.name == name)
    assert anomaly.operations
    alone = history.select(np.isin(history.operation, anomaly.operations))
    again = check(alone)
    assert name in again.names() or again.reason.startswith("vacuous")


def healthy() -> PopScript:
    """A message acked, one acked after a failure, one dead, and one left."""
    script = PopScript()
    for offset, value in enumerate("abcd"):
        script.sent(value, offset)
    for offset, value in enumerate("abc"):
        script.popped(1, value, offset, 10 + offset)
    script.acked(1, 0, 10)
    script.settled(1, "nack", 1, 11, 0)
    script.settled(1, "reject", 2, 12, "poison")
    script.popped(2, "b", 1, 13, 2)
    script.settled(1, "ack", 1, 11, result=-1)
    script.acked(2, 1, 13)
    script.popped(1, "d", 3, 14)
    script.listed((2, (1, 1, "poison")))
    script.booked(4, 4, 1, 0, 0, 1, 2, 0, 0)
    return script


def test_healthy_history_is_valid_for_every_check() -> None:
    history = healthy().history()
    for check in (*{check for _, _, check in PLANTS}, check_pop):
        report = check(history)
        assert report.verdict is Verdict.VALID, explain(report, history)
        assert not report.anomalies
    (report,) = judge(history)
    assert report.verdict is Verdict.VALID


def test_message_taken_ahead_may_come_late_from_an_older_lease() -> None:
    script = PopScript()
    older_token_after_ack(script)
    script.ended(acked=1)
    assert check_pop(script.history()).verdict is Verdict.VALID
    assert check_pop(script.history()).names() == {"stale-delivery"}
    assert check_pop(script.history(), PopRules(is_ahead=False)).verdict is Verdict.INVALID


@pytest.mark.parametrize("ending", ["nack", "refused", "none"])
def test_rest_of_a_lease_in_queue_order_goes_back_with_what_failed(ending: str) -> None:
    script = PopScript()
    script.sent("a", 0)
    script.sent("b", 1)
    script.popped(1, "a", 0, 10)
    if ending == "nack":
        script.settled(1, "nack", 0, 10, 0)
    elif ending == "refused":
        script.settled(1, "ack", 0, 10, result=-1)
    script.popped(1, "b", 1, 10)
    script.settled(1, "ack", 1, 10, result=-1)
    for offset, value in enumerate("ab"):
        script.popped(1, value, offset, 11 + offset, 2 - offset)
        script.acked(1, offset, 11 + offset)
    script.ended(acked=2)
    history = script.history()
    report = check_pop(history, PopRules(order="queue"))
    if ending == "none":
        assert report.verdict is Verdict.VALID
        assert not report.anomalies
        return
    assert report.verdict is Verdict.INVALID
    assert report.names() == {"rest-delivered"}
    assert ANOMALIES["rest-delivered"] in explain(report, history)


@pytest.mark.parametrize("key", ["k", "other"])
def test_rest_of_a_run_goes_back_with_what_failed_of_its_key(key: str) -> None:
    script = PopScript()
    first, second = (1, "k"), (2, key)
    script.sent(first, 0)
    script.sent(second, 1)
    script.popped(1, first, 0, 10)
    script.settled(1, "nack", 0, 10, 0)
    script.popped(1, second, 1, 10)
    script.settled(1, "ack", 1, 10, result=1 if key == "other" else -1)
    script.popped(1, first, 0, 11, 2)
    script.acked(1, 0, 11)
    if key == "k":
        script.popped(1, second, 1, 12, 1)
        script.acked(1, 1, 12)
    script.ended(acked=2)
    report = check_pop(script.history(), PopRules(order="runs"))
    assert report.names() == ({"rest-delivered"} if key == "k" else set())


@pytest.mark.parametrize("order", ["runs", "queue", "key"])
@pytest.mark.parametrize("key", ["k", "other"])
def test_messages_of_a_lease_come_in_order(order: Ordering, key: str) -> None:
    script = PopScript()
    values = [(0, "k"), (1, key), (2, "k")]
    for offset, value in enumerate(values):
        script.sent(value, offset)
    for offset in (1, 0, 2):
        script.popped(1, values[offset], offset, 10)
        script.acked(1, offset, 10)
    script.ended(acked=3)
    history = script.history()
    report = check_pop(history, PopRules(order=order))
    if order == "key":
        assert "lease-inversion" not in report.names()
    elif order == "queue" or key == "k":
        assert report.names() == {"lease-inversion"}
        assert ANOMALIES["lease-inversion"] in explain(report, history)
    else:
        assert report.verdict is Verdict.VALID


def test_messages_that_shared_a_lease_may_not_be_in_two_hands_later() -> None:
    script = PopScript()
    first, second = (1, "k"), (2, "k")
    script.sent(first, 0)
    script.sent(second, 1)
    script.popped(1, first, 0, 10)
    script.popped(1, second, 1, 10)
    script.settled(1, "nack", 0, 10, 0)
    script.popped(1, first, 0, 12, 2)
    script.popped(2, second, 1, 13, 1)
    script.acked(2, 1, 13)
    script.acked(1, 0, 12)
    script.ended(acked=2)
    report = check_pop(script.history(), PopRules(order="runs"))
    assert report.names() == {"key-overtake"}


def test_messages_of_a_key_share_a_lease_only_in_runs() -> None:
    script = PopScript()
    for offset in range(2):
        script.sent((offset, "k"), offset)
    for offset in range(2):
        script.popped(1, (offset, "k"), offset, 10)
    for offset in range(2):
        script.acked(1, offset, 10)
    script.ended(acked=2)
    history = script.history()
    assert check_pop(history, PopRules(order="runs")).verdict is Verdict.VALID
    assert check_pop(history, PopRules(order="key")).names() == {"key-overtake"}


def test_message_of_a_lease_in_queue_order_may_be_settled_twice_in_vain() -> None:
    script = PopScript()
    for offset, value in enumerate("ab"):
        script.sent(value, offset)
    script.popped(1, "a", 0, 10)
    script.acked(1, 0, 10)
    script.settled(1, "nack", 0, 10, 0, result=-1)
    script.popped(1, "b", 1, 10)
    script.acked(1, 1, 10)
    script.ended(acked=2)
    report = check_pop(script.history(), PopRules(order="queue"))
    assert report.verdict is Verdict.VALID
    assert not report.anomalies


def test_times_are_judged_only_as_far_as_clocks_are_known() -> None:
    script = PopScript()
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=100)
    script.time.now += 50
    script.popped(2, "a", 0, 11, 2)
    script.acked(2, 0, 11)
    script.ended(acked=1)
    history = script.history()
    assert check_pop(history).verdict is Verdict.VALID
    assert check_pop(history, PopRules(clock_ms_max=60)).verdict is Verdict.VALID
    assert check_pop(history, PopRules(clock_ms_max=20)).names() == {"two-leases"}


def test_call_without_an_answer_may_have_settled_a_message_or_not() -> None:
    for is_again in (False, True):
        script = PopScript()
        one_done(script)
        script.sent("a", 0)
        script.popped(1, "a", 0, 10, remaining=5)
        script.recorder.unknown(script.begun(1, "ack", 0, 10))
        script.time.now += 200
        if is_again:
            script.popped(2, "a", 0, 11, 2)
            script.acked(2, 0, 11)
        script.booked(10, 10, 0, 0, 0, 0, 2, 8, 0)
        report = check_group(script.history())
        assert report.verdict is Verdict.VALID, explain(report, script.history())


def test_ack_that_is_said_twice_is_said_once() -> None:
    script = PopScript()
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.acked(1, 0, 10)
    script.acked(1, 0, 10)
    script.ended(acked=1)
    assert check_group(script.history()).verdict is Verdict.VALID


def test_redriven_message_starts_again() -> None:
    script = PopScript()
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "reject", 0, 10, "poison")
    redrive = script.recorder.invoke(9, "redrive", "g t/0", (1, 0))
    script.recorder.ok(redrive)
    script.popped(1, "a", 0, 11, 1)
    script.acked(1, 0, 11)
    script.ended(acked=1)
    report = check_group(script.history())
    assert report.verdict is Verdict.VALID, explain(report, script.history())


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (0, "no message was sent"),
        (1, "no pop was answered"),
        (2, "nothing was settled"),
    ],
)
def test_history_that_shows_nothing_is_vacuous(calls: int, why: str) -> None:
    script = PopScript()
    if calls:
        script.sent("a", 0)
    if calls > 1:
        script.popped(1, "a", 0, 10)
    report = check_pop(script.history())
    assert report.verdict is Verdict.UNKNOWN
    assert report.reason == f"vacuous: {why}"


def test_without_a_list_of_what_is_left_nothing_is_valid() -> None:
    script = PopScript()
    one_done(script)
    report = check_pop(script.history())
    assert report.verdict is Verdict.UNKNOWN
    assert "the backlog was never asked for" in report.reason


def test_each_anomaly_is_counted_and_a_few_are_explained() -> None:
    script = PopScript()
    for offset in range(20):
        script.sent(offset, offset)
        script.popped(1, offset, offset, 10 + offset)
        script.acked(1, offset, 10 + offset)
        script.settled(1, "reject", offset, 10 + offset)
    report = check_pop(script.history())
    assert report.counts["settled-twice"] == 20
    assert len(report.anomalies) == 8


def test_minimal_history_leaves_out_other_messages() -> None:
    script = PopScript()
    one_done(script)
    stale(script)
    text = explain(check_group(script.history()), script.history())
    shown = text.partition("the operations that show it")[2].partition("around them")[0]
    assert "'a'" in shown
    assert "fine" not in shown
