"""An error in a job leaves its command as two lines and an exit code."""

import json
import logging
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.pipeline import live
from raftmq.cli.pipeline.starter import Starter, _logged_into
from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.pipeline import PipelineError
from raftmq.pipeline.live import Source
from tests.cli.command_line import CommandLine
from tests.pipeline.live.messages import BOARD

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


@pytest.fixture
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("raftmq.pipeline.session", refuse)


@pytest.mark.usefixtures("_no_spark")
def test_folder_that_cannot_be_made_is_refused_before_spark_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = CommandLine(capsys)("pipeline", "report", "run", "--out", "/proc/x")
    assert ended.code == 1
    assert "the folder /proc/x cannot be used" in ended.stderr
    assert "give --out another" in ended.stderr


@pytest.mark.usefixtures("_no_spark")
def test_port_that_is_taken_is_refused_before_spark_starts(tmp_path: Path) -> None:
    source = Source(STARTER.url, "earliest", "job")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=f"cannot serve the page on port {port}"):
            live._run(
                STARTER, BOARD, source, tmp_path, page=port, into=None, is_once=True, every=0.0
            )


@pytest.mark.usefixtures("_no_spark")
def test_topic_of_alerts_that_is_not_there_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def describe(topic: str) -> None:
        raise Rejected(Reason.UNKNOWN_TOPIC, f"there is no topic {topic!r}")

    mq = SimpleNamespace(admin=SimpleNamespace(describe_topic=describe))
    monkeypatch.setattr("raftmq.blocking.connect", lambda _: nullcontext(mq))
    words = ("pipeline", "report", "run", "--out", str(tmp_path), "--alerts", "pages")
    ended = CommandLine(capsys)(*words)
    assert ended.code == 1
    assert "there is no topic 'pages'" in ended.stderr


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


def test_error_of_py4j_that_came_of_ctrl_c_is_an_interruption() -> None:
    from py4j.protocol import Py4JError

    def call() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            # So does py4j.clientserver, if its connection is being made again at that moment.
            raise Py4JError("Gateway must be connected to send cancel cmd.")  # noqa: B904

    with pytest.raises(KeyboardInterrupt), STARTER.explaining():
        call()


_INTERRUPTED = """
import os, signal, threading
from raftmq.cli.pipeline.starter import Starter
with Starter("", None, "1g").session("interrupted") as session:
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        session.sparkContext._jvm.java.lang.Thread.sleep(10_000)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.timeout(300)
def test_ctrl_c_while_java_works_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    # In a process of its own: the call that is broken leaves a session without its thread in Java.
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", _INTERRUPTED]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=250, check=True
    )
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "starting Spark\n")
    assert "while sending command" in (tmp_path / "raftmq" / "spark.log").read_text()


@pytest.mark.parametrize("name", ["SQLQueryContextLogger", "DataFrameQueryContextLogger"])
def test_what_spark_says_of_a_refused_query_is_in_its_log_only(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(name)
    logger.propagate = False
    before = logger.handlers[:]
    path = tmp_path / "logs" / "spark.log"
    with _logged_into(path):
        logger.error("no such column")
        logging.getLogger("py4j").error("a call was ended")
    assert capfd.readouterr().err == ""
    said = path.read_text().splitlines()
    assert json.loads(said[0])["msg"] == "no such column"
    assert "a call was ended" in said[1]
    assert logger.handlers == before
