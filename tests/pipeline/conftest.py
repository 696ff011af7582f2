"""Fixtures of the pipeline's tests: a real Spark, and a real cluster that it reads and writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raftmq
from raftmq import pipeline
from tests.cli.command_line import CommandLine
from tests.pipeline.nodes import QUICK, Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient


SECONDS_MAX = 300
"""Time limit of a test of Spark where four of them share two cores."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that start Java or nodes more time, unless they say how much."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if not {"spark", "nodes"}.isdisjoint(fixtures) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One Spark for all tests of this process."""
    with pipeline.session("tests", memory="1g", settings=QUICK) as spark:
        yield spark


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Three real nodes for the tests of this module, which find them by themselves."""
    with Nodes() as nodes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAFTMQ_URL", nodes.url)
        yield nodes


@pytest.fixture
def mq(nodes: Nodes) -> "Iterator[BlockingClient]":
    """A client of the cluster, that blocks."""
    with raftmq.blocking.connect(nodes.url) as mq:
        yield mq


@pytest.fixture
def on_spark(
    capsys: pytest.CaptureFixture[str],
    spark: "SparkSession",
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    """Commands that find the cluster by `RAFTMQ_URL`, and the Spark of all tests running."""
    # A command stops its Spark at the end: the session of the tests goes on.
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)
    monkeypatch.setenv("RAFTMQ_URL", nodes.url)
    return CommandLine(capsys)


@pytest.fixture
def topic(mq: "BlockingClient", request: pytest.FixtureRequest) -> str:
    """A topic of four queues, named after the test."""
    name: str = request.node.name[5:60].replace("[", "-").replace("]", "")
    mq.admin.create_topic(name, queues=4)
    return name


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Where a query keeps how far it has come."""
    return str(tmp_path / "checkpoint")
