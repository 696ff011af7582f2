"""`raftmq audit` on a secure cluster."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.cli.access import audit as command
from raftmq.machine.catalog import audit
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The administrator's URL, which the commands of this module use by themselves."""
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        url = cluster.start("-n", "1", "--secure")
        patch.setenv("RAFTMQ_URL", url)
        yield url


@pytest.mark.process
@pytest.mark.usefixtures("url")
def test_log_is_shown_to_people_and_exported_in_steps(raftmq: CommandLine, tmp_path: Path) -> None:
    assert raftmq.ok("audit").stderr == "no acts of administration yet\n"
    raftmq.ok("topic", "create", "orders", "-q", "2")
    assert raftmq("topic", "create", "orders", "-q", "3").code == 1
    raftmq.ok("user", "add", "alice", "--no-password")
    raftmq.ok("acl", "allow", "alice", "write", "topic", "orders*")

    shown = raftmq.ok("audit").stdout.splitlines()
    assert shown[0].split() == ["NUMBER", "TIME", "USER", "FROM", "ACT", "ON", "DETAIL", "RESULT"]
    assert [line.split()[0] for line in shown[1:]] == ["1", "2", "3", "4"]
    assert "create_topic" in shown[1]
    assert "topic orders" in shown[1]
    assert shown[2].endswith("topic_exists")
    assert "allow alice write topic orders*" in shown[4]
    assert all(" admin " in line for line in shown[1:])

    exported = raftmq.ok("audit", "--after", "0", "-o", "json").lines
    assert [each["number"] for each in exported] == [1, 2, 3, 4]
    assert (
        exported[0].items()
        >= {
            "user": "admin",
            "address": "",
            "what": "create_topic",
            "resource": "topic",
            "name": "orders",
            "detail": "2 queues",
            "result": "done",
        }.items()
    )
    assert [each["number"] for each in raftmq.ok("audit", "-n", "2", "-o", "json").lines] == [3, 4]
    later = raftmq.ok("audit", "--after", "3", "-o", "json").lines
    assert [each["number"] for each in later] == [4]
    assert raftmq.ok("audit", "--after", "4").stderr == "no entries after that one\n"
    assert raftmq.ok("audit", "--user", "alice").stdout == ""
    assert_followed(tmp_path)
    wrong = raftmq("audit", "--after", "1", "-n", "2")
    assert wrong.code == 2
    assert "exclude each other" in wrong.stderr


def assert_followed(folder: Path) -> None:
    """The loop of the page writes each entry once."""
    page = (Path(__file__).parents[2] / "docs/security.md").read_text()
    (loop,) = re.findall(r"^while sleep 10; do\n.*?^done\n", page, re.MULTILINE | re.DOTALL)
    file = folder / "audit.jsonl"
    file.touch()
    script = loop.replace("while sleep 10", "for round in 1 2")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-ec", script], cwd=folder, check=True, env={**os.environ, "PATH": path}
    )
    numbers = [json.loads(line)["number"] for line in file.read_text().splitlines()]
    assert numbers == [1, 2, 3, 4]


def test_word_of_the_command_is_that_of_the_log() -> None:
    assert command.BEGUN == audit.BEGUN
