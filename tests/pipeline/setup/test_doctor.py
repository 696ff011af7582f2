"""The doctor of the pipeline: each failure names its fix, and a whole machine passes."""

import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline import PipelineError, doctor, java
from tests.cli.command_line import CommandLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def test_query_goes_through_a_worker_of_this_python(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    # The session of the tests goes on afterwards.
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)
    fact = doctor._query()
    assert fact.is_well
    assert "one row" in fact.found


def test_failure_of_a_part_is_told_with_its_fix_and_spark_is_not_started(
    raftmq: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(cache: Path) -> java.Java:
        raise PipelineError("there is no Java", "install one")

    monkeypatch.setattr(java, "find", none)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor, "session", lambda _: pytest.fail("Spark was started"))
    ended = raftmq("pipeline", "doctor", "-o", "json")
    assert ended.code == 4
    found = {finding["check"]: finding for finding in json.loads(ended.stdout)}
    assert found["java"]["fix"] == "install one"
    assert found["bash"]["verdict"] == "fail"
    assert found["pyspark"]["verdict"] == "ok"
    assert found["query"]["found"] == "not tried"


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    facts = list(doctor._packages())
    assert {fact.is_well for fact in facts} == {False}
    assert all("raftmq[spark]" in fact.fix for fact in facts)


def test_other_pandas_than_spark_takes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "3.1.1")
    facts = {fact.check: fact for fact in doctor._packages()}
    assert not facts["pandas"].is_well
    assert "2.*" in facts["pandas"].fix


def test_query_that_fails_tells_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise PipelineError("Spark did not start", "look into its log")

    monkeypatch.setattr(doctor, "session", broken)
    assert doctor._query() == doctor.Fact(
        "query", False, "Spark did not start", "look into its log"
    )
