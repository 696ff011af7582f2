"""What goes wrong in a job leaves its command as two lines and an exit code."""

import logging
import os
import signal
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.pipeline.running import Starter
from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.pipeline import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTER = Starter("raftmq://10.0.0.1:7400", None, "1g")


@pytest.mark.parametrize(
    ("error", "code", "fix"),
    [
        (PipelineError("no topic", "make it"), ExitCode.FAILED, "make it"),
        (Unavailable("nobody answers"), ExitCode.UNREACHABLE, "10.0.0.1"),
        (Rejected(Reason.UNKNOWN_TOPIC, "no topic"), ExitCode.FAILED, "topic create"),
    ],
)
def test_error_becomes_a_failure(error: Exception, code: ExitCode, fix: str) -> None:
    with pytest.raises(Failure) as raised, STARTER.explaining():
        raise error
    assert raised.value.code == code
    assert fix in raised.value.fix


def test_cluster_that_a_worker_did_not_find_is_unreachable() -> None:
    from pyspark.errors import PySparkException

    text = "Job aborted\n  raftmq.errors.Unavailable: no node answered\n at java.lang.Thread"
    with pytest.raises(Failure) as raised, STARTER.explaining():
        raise PySparkException(text)
    assert raised.value.code == ExitCode.UNREACHABLE
    assert "no node answered" in str(raised.value)


def test_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), STARTER.explaining():
        raise ZeroDivisionError


def test_ctrl_c_while_java_works_writes_nothing_to_the_terminal(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The session of the tests goes on afterwards.
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)
    monkeypatch.setenv("RAFTMQ_URL", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # As in a process without pytest, which has handlers of its own.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    press = Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])

    def work() -> None:
        with STARTER.session("interrupted") as session:
            jvm = session.sparkContext._jvm
            assert jvm is not None
            press.start()
            jvm.java.lang.Thread.sleep(10_000)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert capsys.readouterr().err == "starting Spark\n"
    assert "while sending command" in (tmp_path / "raftmq" / "spark.log").read_text()
    assert logging.getLogger().handlers == []
    assert spark.range(3).count() == 3
