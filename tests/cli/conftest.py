"""Fixtures of the command line's tests."""

from collections.abc import Iterator

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs commands in this process."""
    return CommandLine(capsys)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three real nodes, which the commands of this module find by themselves."""
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAFTMQ_URL", cluster.start())
        yield cluster


@pytest.fixture
def topic(cluster: LocalCluster, raftmq: CommandLine, request: pytest.FixtureRequest) -> str:
    """A topic of four queues, named after the test."""
    name = request.node.name[5:60].replace("[", "-").replace("]", "")
    assert raftmq("topic", "create", name, "--queues", "4").code == 0
    return str(name)
