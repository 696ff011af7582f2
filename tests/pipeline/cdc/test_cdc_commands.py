"""`raftmq pipeline cdc`: plans change nothing, and each action is reported."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.exits import Failure
from raftmq.cli.pipeline.cdc import cdc
from tests.pipeline.cdc.shops import Shop, contents
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(cdc, [str(argument) for argument in arguments])


def test_commands_plan_then_do(
    nodes: Nodes, mq: "BlockingClient", sqlite_item: Shop, tmp_path: Path
) -> None:
    sqlite_item.execute("INSERT INTO item (id) VALUES (1)")
    table = (sqlite_item.url, "--table", "item", "--topic", "commands")
    cluster = ("--url", nodes.url)
    planned = run("prepare", *table, "--dry-run")
    assert planned.output.count("CREATE TRIGGER") == 3
    before = run("capture", *table, *cluster, "--dry-run")
    assert before.output == "nothing: the table has to be prepared first, by 5 statements\n"
    done = run("prepare", *table)
    assert done.stdout == planned.stdout
    assert run("prepare", *table).output == "item is ready\n"
    assert (
        "a snapshot of item into commands" in run("capture", *table, *cluster, "--dry-run").output
    )
    assert "commands" not in [topic.name for topic in mq.admin.list_topics()]
    once = run("capture", *table, *cluster, "--once")
    # The table is empty, its row, and how far it is.
    assert once.output.endswith("3 messages sent\n")
    assert [change["op"] for change in contents(mq, "commands")] == ["t", "r", "m"]
    again = run("capture", *table, *cluster, "--dry-run").output
    assert again.startswith("changes of item after ")
    folder = tmp_path / "out"
    planned = run("rebuild", "commands", "--out", folder, *cluster, "--dry-run", "-o", "json")
    assert '"until": 3' in planned.output
    assert not folder.exists()
    folder.mkdir()
    verify = ("verify", *table, "--out", folder, *cluster, "--dry-run")
    planned = json.loads(run(*verify, "-o", "json").output)
    assert planned["capture"] == again.strip()
    assert planned["compare"] == f"item with {folder}"
    assert not list(folder.iterdir())
    undone = run("prepare", *table, "--undo")
    assert undone.output.count("DROP TRIGGER") == 3
    assert "CREATE" in run("prepare", *table, "--dry-run").output


def test_what_is_wrong_is_a_failure_with_a_fix(nodes: Nodes, tmp_path: Path) -> None:
    missing = ("sqlite:" + str(tmp_path / "none"), "--table", "t", "--topic", "t")
    for command in ("prepare", "capture"):
        options = ("--url", nodes.url) if command == "capture" else ()
        error = run(command, *missing, *options).exception
        assert isinstance(error, Failure)
        assert (error.code, error.fix) == (1, "give the path of one")
    error = run("rebuild", "nothing", "--out", tmp_path, "--url", nodes.url).exception
    assert isinstance(error, Failure)
    assert "nothing" in str(error)


@pytest.mark.parametrize("command", ["prepare", "capture", "rebuild", "verify"])
def test_each_command_can_be_planned(command: str) -> None:
    assert "--dry-run" in run(command, "--help").output
