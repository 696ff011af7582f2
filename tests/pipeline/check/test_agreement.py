"""Spark's checkers and those of raftmq.checkers agree on random histories full of mistakes."""

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from raftmq.checkers import (
    History,
    LogRules,
    Report,
    check_key_order,
    check_log,
    check_total_queue,
    dictionary,
    key_order,
    total_queue,
    write_parquet,
)
from raftmq.checkers.log import anomalies, found, order
from raftmq.pipeline.check import CHECKERS, Rules, bag, find, judge, log
from raftmq.pipeline.check import key_order as by_key
from raftmq.pipeline.check.job import Report as SparkReport
from raftmq.pipeline.check.rules import KEY_ORDER, LOG, TOTAL_QUEUE
from tests.pipeline.check.random_history import Careless, write_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMITED = (total_queue, anomalies, found, order, key_order)
ONE_OF_PAIR = {"realtime-send": 1, "order-inversion": 1, "order-overtake": 1}
"""Anomalies of pairs that name the later message: several earlier ones may show the same."""
BOTH = {"nonmonotonic-send", "internal-nonmonotonic-send", "internal-send-skip"}


@pytest.fixture(autouse=True)
def _all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in LIMITED:
        monkeypatch.setattr(module, "EXAMPLES_MAX", 10**6)


def identity(name: str, values: list[str]) -> tuple[str, ...]:
    """The parts of an anomaly that must be equal: its name and its messages."""
    if name == "inconsistent-offset":
        # Three messages at one place are two pairs, and either checker pairs them as it likes.
        return (name,)
    if name in BOTH:
        return name, *values[:2]
    return name, values[ONE_OF_PAIR.get(name, 0)]


def in_python(history: History, rules: Rules) -> list[Report]:
    log_rules = LogRules(is_drained=rules.is_drained, is_send_contiguous=rules.is_send_contiguous)
    return [
        check_total_queue(
            history, is_exactly_once=rules.is_exactly_once, is_drained=rules.is_drained
        ),
        check_log(history, log_rules),
        check_key_order(history),
    ]


def assert_agree(history: History, report: SparkReport, rules: Rules) -> Counter[str]:
    """Verdicts, reasons, counts and anomalies are the same; the kinds that occurred."""
    occurred: Counter[str] = Counter()
    used = [one.checker for one in report.checkers]
    expected = [one for one in in_python(history, rules) if one.checker in used]
    assert used == [one.checker for one in expected]
    rows = report.violations.to_pylist()
    for ours, theirs in zip(report.checkers, expected, strict=True):
        assert (ours.verdict, ours.reason) == (theirs.verdict.value, theirs.reason)
        figures = {name: theirs.counts[name] for name in theirs.counts if name != "lag_ms_worst"}
        assert {name: ours.counts[name] for name in figures} == figures
        texts = [msgspec.json.encode(value).decode() for value in history.values]
        anomalies = Counter(
            identity(one.name, [texts[code] for code in one.values]) for one in theirs.anomalies
        )
        mine = [row for row in rows if row["checker"] == ours.checker]
        assert Counter(identity(row["kind"], row["values"]) for row in mine) == anomalies
        occurred.update(one.name for one in theirs.anomalies)
    return occurred


@pytest.mark.parametrize(
    ("checker", "kinds"),
    [(TOTAL_QUEUE, bag.KINDS), (LOG, log.KINDS), (KEY_ORDER, by_key.KINDS)],
    ids=CHECKERS,
)
def test_careless_broker_is_judged_alike(
    spark: "SparkSession", tmp_path: Path, checker: str, kinds: tuple[str, ...]
) -> None:
    history = Careless(random.Random(10), mistake=0.04).run(1500)
    write_parts(history, tmp_path / "history", parts=2, group_rows=5000)
    rules = Rules(is_send_contiguous=True, examples_max=10**5)
    report = judge(spark, find(tmp_path / "history"), rules, checkers=[checker])
    # Every kind of anomaly occurred.
    assert set(assert_agree(history, report, rules)) == set(kinds)
    assert set(kinds) <= set(dictionary.ANOMALIES)


def test_messages_told_apart_by_text_are_judged_alike(
    spark: "SparkSession", tmp_path: Path
) -> None:
    history = Careless(random.Random(10), mistake=0.04, is_text=True).run(1500)
    write_parquet(history, tmp_path / "history.parquet")
    rules = Rules(examples_max=10**5)
    recorded = find(tmp_path / "history.parquet")
    report = judge(spark, recorded, rules, checkers=[TOTAL_QUEUE])
    assert set(assert_agree(history, report, rules)) == set(bag.KINDS)


def test_nearly_right_broker_is_judged_alike(spark: "SparkSession", tmp_path: Path) -> None:
    history = Careless(random.Random(0), mistake=0.002).run(250)
    write_parquet(history, tmp_path / "history.parquet")
    rules = Rules(is_exactly_once=True, is_drained=False, examples_max=10**5)
    recorded = find(tmp_path / "history.parquet")
    report = judge(spark, recorded, rules, checkers=CHECKERS[:2])
    assert_agree(history, report, rules)
