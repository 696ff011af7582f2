"""How commands end: exit codes, and an error as what and fix."""

import errno
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from raftmq.cli import app
from raftmq.cli.exits import ExitCode, Failure, explained, unwrapped
from raftmq.cli.lazy import LazyGroup
from raftmq.cli.node.playground import RunningNode, State, choose_ports
from raftmq.cli.session import DEFAULT_URL
from raftmq.errors import (
    CorruptRecord,
    OutcomeUnknown,
    ProtocolError,
    RaftmqError,
    Reason,
    Rejected,
    Unavailable,
)
from tests.cli.command_line import CommandLine

URL = "raftmq://10.0.0.1:7400"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Unavailable("no leader"), ExitCode.UNREACHABLE, URL),
        (OutcomeUnknown("no answer"), ExitCode.FAILED, "--timeout"),
        (Rejected(Reason.UNKNOWN_TOPIC, "no topic"), ExitCode.FAILED, "topic create"),
        (ProtocolError("bad frame"), ExitCode.FAILED, "doctor"),
        (CorruptRecord("bad bytes", position=7), ExitCode.FAILED, "doctor"),
    ],
)
def test_client_error_has_its_exit_code_and_a_fix(
    error: RaftmqError, code: ExitCode, words: str
) -> None:
    failure = explained(error, url=URL)
    assert failure.code == code
    assert words in failure.fix


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("no process listens at 10.0.0.1:7400", "`raftmq up` starts a cluster here"),
        (
            "reading the routing table was not possible in time: 10.0.0.2:7400 cannot be reached",
            "a majority of the nodes has to run and answer",
        ),
        ("this node is starting: it waits for node 2", "start the other nodes"),
        ("the buffer has no room for 7 messages", "--url or RAFTMQ_URL"),
    ],
)
def test_fix_of_an_unreachable_cluster_depends_on_whether_a_node_answered(
    text: str, begin: str
) -> None:
    fix = explained(Unavailable(text), url=URL).fix
    assert fix.startswith(begin)
    assert URL in fix


def test_url_by_default_names_all_nodes_of_up() -> None:
    nodes = [RunningNode(n, f"127.0.0.1:{7399 + n}", 0, "", "") for n in (1, 2, 3)]
    assert State(0, nodes=nodes).url == DEFAULT_URL


def test_full_disk_has_a_fix_about_the_disk() -> None:
    text = "the disk of node 1 is full: /data has 5 bytes left, and log.reserve_bytes is 67108864"
    for error in (Unavailable(text), RaftmqError(f"1 of 2 messages are not stored: {text}")):
        fix = explained(error, url=URL).fix
        assert "free space" in fix
        assert "raftmq up" not in fix


@pytest.mark.parametrize("reason", [each for each in Reason if each is not Reason.BAD_ARGUMENT])
def test_every_reason_has_a_fix(reason: Reason) -> None:
    assert len(explained(Rejected(reason, "no"), url=URL).fix) > 10


def test_error_whose_message_says_it_all_has_no_line_with_a_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    explained(Rejected(Reason.BAD_ARGUMENT, "1 to 9, not 10"), url=URL).show()
    assert capsys.readouterr().err == "error: 1 to 9, not 10\n"


def test_error_that_stands_for_others_has_the_fix_of_its_cause() -> None:
    error = RaftmqError("1 of 2 messages are not known to be stored")
    error.__cause__ = Rejected(Reason.TOO_LARGE, "17 MiB")
    assert "limits.batch_bytes_max" in explained(error, url=URL).fix


@pytest.mark.parametrize(
    ("package", "extra"), [("pyarrow.parquet", "spark"), ("psycopg", "cdc"), ("pytest", "chaos")]
)
def test_package_of_an_extra_that_is_missing_is_told_with_the_extra(
    package: str, extra: str, raftmq: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(app.cli, "main", fail)
    ended = raftmq("pipeline", "check", "history")
    assert ended.code == 1
    assert f"error: {package.partition('.')[0]} is not installed" in ended.stderr
    assert f"raftmq[{extra}]" in ended.stderr
    package = "raftmq.nowhere"
    with pytest.raises(ModuleNotFoundError):
        raftmq("pipeline")


def test_address_where_no_process_listens_is_told_at_once(
    raftmq: CommandLine,
) -> None:
    ports = choose_ports(2, 20_000, any_port=True)
    url = ",".join(f"127.0.0.1:{port}" for port in ports)
    began = time.monotonic()
    ended = raftmq("topic", "list", "--url", f"raftmq://{url}", "--timeout", "60s")
    assert (ended.code, time.monotonic() - began < 30) == (3, True)
    assert f"no process listens at 127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]}" in ended.stderr


def test_one_error_comes_out_of_nested_groups() -> None:
    error = Unavailable("no leader")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [error])])
    assert unwrapped(group) is error
    both = ExceptionGroup("two", [error, ValueError()])
    assert unwrapped(both) is both


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (Failure("it failed", fix="do better", code=ExitCode.UNHEALTHY), 4, "fix: do better"),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), 130, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "no space"), 1, "no space"),
        (CorruptRecord("bad bytes", position=7), 1, "bad bytes"),
        (click.UsageError("no such thing"), 2, "no such thing"),
    ],
)
def test_command_that_raises_ends_with_a_code_and_no_traceback(
    raftmq: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    code: int,
    words: str,
) -> None:
    @click.command()
    def fails() -> None:
        raise raised

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: fails)
    ended = raftmq("topic")
    assert ended.code == code
    assert words in ended.stderr
    assert ended.stdout == ""


def test_reader_of_stdout_that_has_enough_ends_any_command_with_0() -> None:
    program = "import raftmq.cli.app as app; app.main(['chaos', 'list', 'faults'])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_full_disk_behind_stdout_is_named() -> None:
    program = "import raftmq.cli.app as app; app.main(['chaos', 'list', 'faults'])"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"error: stdout, or a file of this command, cannot be written: No space" in done.stderr


def test_up_in_a_folder_that_cannot_be_made_names_the_option(raftmq: CommandLine) -> None:
    ended = raftmq("up", "--data", "/proc/foo")
    assert ended.code == 1
    assert "the folder /proc/foo cannot be used" in ended.stderr
    assert "give --data another folder" in ended.stderr


def test_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: fails)
    with pytest.raises(ZeroDivisionError):
        app.run(["topic"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["produce", "t", "hello"],
        ["consume", "t", "-n", "1"],
        ["group", "list"],
        ["cluster", "status"],
        ["bench", "raft", "--duration", "1s"],
    ],
    ids=" ".join,
)
def test_nobody_there_exits_with_3_and_names_the_url(
    raftmq: CommandLine, arguments: list[str]
) -> None:
    ended = raftmq(*arguments, "--url", "raftmq://127.0.0.1:1", "--timeout", "200ms")
    assert ended.code == 3
    assert "raftmq://127.0.0.1:1" in ended.stderr
    assert "raftmq up" in ended.stderr
    # No command is its own remedy.
    assert f"`raftmq {' '.join(arguments[:2])}`" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["produce", "t", "a", "--count", "3"], "exclude each other"),
        (["produce", "t", "--rate", "3"], "--rate needs --count"),
        (["produce", "t", "--whole"], "--whole needs --file"),
        (["produce", "t", "a", "-p", "novalue"], "name=value"),
        (["produce", "t", "--file", "/absent"], "does not exist"),
        (["produce", "t", "a", "-K", ""], "must not be empty"),
        (["consume", "t", "-n", "0"], "x>=1"),
        (["consume", "t", "--filter", "paid"], "name one with -g"),
        (["consume", "t", "--assigned"], "--assigned is for a consumer group: name it with -g"),
        (["consume", "t", "--instance", "one"], "--instance is for a consumer group: name it with"),
        (["consume", "t", "-f", "%z"], "is none of"),
        (["consume", "t", "-o", "yaml"], "'yaml' is not one of"),
        (["consume", "t", "-f", "%k", "-o", "json"], "-f says how to print: leave out -o"),
        (["produce", "t", "hi", "-K", "x"], "-K splits lines, of --file or stdin"),
        (["produce", "t", "-k", "a", "-K", "x"], "-k and -K exclude each other"),
        (["topic", "create", "t", "--queues", "abc"], "'abc' is not a whole number"),
        (["produce", "t", "--count", "9", "--rate", "x"], "'x' is not a"),
        (["topic", "list", "--timeout", "0"], "give more than 0, as 500ms or 10s"),
        (["cluster", "status", "--timeout", "0ms"], "give more than 0, as 500ms or 10s"),
        (["topic", "list", "--url", "http://h"], "raftmq://host:port"),
        (["topic", "list", "--url", "raftmq://h:99999"], "a port is from 1 to 65535"),
        (["--url", "raftmq://h", "topic", "list"], "--url stands behind the command"),
        (["topic", "-o", "json", "list"], "-o stands behind the command"),
        (["topic", "delete", "t"], "--yes"),
        (["cluster", "remove", "1"], "--yes"),
        (["cluster", "add", "4", "nowhere"], "host:port"),
        (["bench", "e2e", "--size", "4"], "at least 8"),
        (["serve"], "--config"),
        (["up", "-n", "0"], "1<=x<=9"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_right(
    raftmq: CommandLine, arguments: list[str], words: str
) -> None:
    ended = raftmq(*arguments)
    assert ended.code == 2
    assert words in ended.stderr
    assert ended.stdout == ""
