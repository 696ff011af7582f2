"""`raftmq filter`, which needs no cluster: its output and its refusals."""

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, process

LINES = '{"amount": 7, "TAGS": "paid"}\n\n{"amount": 3}\n{"amount": "9"}\n{"amount": null}\n'


@pytest.fixture
def messages(tmp_path: Path) -> str:
    path = tmp_path / "messages.jsonl"
    path.write_text(LINES)
    return str(path)


def test_explain_shows_tree_buckets_and_the_reason(raftmq: CommandLine) -> None:
    text = "type IN ('a', 'b') AND NOT (n <= 5 OR type = 'b')"
    ended = raftmq.ok("filter", "explain", text, "-p", "type=b", "-p", "n=6")
    assert ended.stdout.splitlines() == [
        "means",
        "  type IN ('a', 'b') AND n > 5 AND type <> 'b'",
        "tree",
        "  all of",
        "    type IN ('a', 'b')",
        "    n > 5",
        "    type <> 'b'",
        "index",
        "  only messages with one of these values are looked at",
        "  PROPERTY  VALUE  THEN EVALUATED",
        "  type      'a'    n > 5",
        "  type      'b'    FALSE",
        "sample message: type = 'b', n = 6",
        "  false    all of",
        "  true       type IN ('a', 'b')      type is 'b'",
        "  true       n > 5                   n is 6",
        "  false      type <> 'b'             type is 'b'",
    ]


def test_explain_makes_a_sample_and_says_what_is_not_indexed(raftmq: CommandLine) -> None:
    found = raftmq.ok("filter", "explain", "paid || lost", "-o", "json").json
    assert found["sample"] == {"TAGS": "paid"}
    assert found["outcome"] == "true"
    assert [bucket["key"] for bucket in found["buckets"]] == ["paid", "lost"]
    ended = raftmq.ok("filter", "explain", "n > 5")
    assert "in the order of bounds" in ended.stdout
    assert "unknown  n > 5" in ended.stdout
    for text, sentence in [
        ("n <> 5", "evaluated for every batch"),
        ("*", "every message matches"),
        ("FALSE", "no message can match"),
    ]:
        assert sentence in raftmq.ok("filter", "explain", text).stdout


def test_explain_shows_signs_as_sql(raftmq: CommandLine) -> None:
    signs = raftmq.ok("filter", "explain", 'type == "a" && !(n <= 5) || city == nil').stdout
    assert signs.splitlines()[1] == "  (type = 'a' AND n > 5) OR city IS NULL"
    text = "type = 'a' AND NOT n <= 5 OR city IS NULL"
    assert raftmq.ok("filter", "explain", text).stdout == signs


def test_what_a_filter_does_not_have_is_refused_with_the_remedy(raftmq: CommandLine) -> None:
    ended = raftmq("filter", "explain", "string.contains(name, 'x')")
    assert ended.code == 2
    assert "write name CONTAINS 'x' (at character 1)" in ended.stderr
    assert "  ^^^^^^\n" in ended.stderr


def test_test_prints_the_outcome_of_each_message(raftmq: CommandLine, messages: str) -> None:
    ended = raftmq.ok("filter", "test", "amount > 5", messages)
    outcomes = [line.split()[0] for line in ended.stdout.splitlines()]
    assert outcomes == ["true", "false", "unknown", "unknown"]
    assert ended.stderr == "1 of 4 messages match\n"
    signs = raftmq.ok("filter", "test", "amount > 5 && amount != 9", messages)
    assert signs.stdout == ended.stdout
    only = raftmq.ok("filter", "test", "paid", messages, "--only")
    assert only.stdout == '{"amount": 7, "TAGS": "paid"}\n'
    as_json = raftmq.ok("filter", "test", "amount > 5", messages, "-o", "json").lines
    assert [(each["line"], each["outcome"]) for each in as_json][:2] == [(1, "true"), (3, "false")]
    assert as_json[0]["props"] == {"amount": 7, "TAGS": "paid"}


def test_test_reads_stdin() -> None:
    ended = process(["filter", "test", "amount = 3", "-", "--only"], data=LINES.encode())
    assert (ended.code, ended.stdout) == (0, '{"amount": 3}\n')


@pytest.mark.parametrize("command", [["explain"], ["test"]])
def test_wrong_filter_is_shown_with_a_caret(
    raftmq: CommandLine, messages: str, command: list[str]
) -> None:
    file = [messages] if command == ["test"] else []
    ended = raftmq("filter", *command, "amount BETWEN 1 AND 2", *file)
    assert ended.code == 2
    assert "did you mean BETWEEN?" in ended.stderr
    assert "         ^^^^^^" in ended.stderr


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"a": [1]}', "is a list or an object"),
        (b'{"a": 9223372036854775808}', "64 bits"),
    ],
)
def test_wrong_line_is_named(
    raftmq: CommandLine, tmp_path: Path, line: bytes, problem: str
) -> None:
    path = tmp_path / "messages.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    ended = raftmq("filter", "test", "a = 1", str(path))
    assert ended.code == 1
    assert "line 2" in ended.stderr
    assert problem in ended.stderr
