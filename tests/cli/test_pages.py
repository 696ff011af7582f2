"""Command lines of the pages: all are understood, and those of a cluster run as printed, in order.

This file parses lines of Spark and chaos, `tests/pipeline/test_pages.py` and
`tests/chaos/cli/test_pages.py` play them. Synopses of databases are parsed only, and `make` is left
to CI.
"""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import click
import pytest

import raftmq as mq_package
from raftmq.cli.app import cli
from tests.cli.command_line import CommandLine, Ended, interrupted, process
from tests.cli.local_cluster import LocalCluster
from tests.pages import FENCE, ROOT, SHELL

PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if not path.is_relative_to(ROOT / "docs/reference") and path.name != "CHANGELOG.md"
]

STAND_INS = {"DATABASE": "sqlite:shop.db", "HANDLE": "h", "ID": "10000-2a"}
"""Words in capitals that a reader replaces → what stands for them where a line is only parsed."""
RUN = "recorded/sim-log-seed-7/history.parquet"
FILES = ["node.toml", "history.parquet", "orders.parquet", "trades.toml", RUN, "orders/v=1"]
ENDLESS = re.compile(r"^(top|group lag --watch|consume orders -g billing)$")
"""Commands that a reader ends with Ctrl-C."""


def commands_of(block: str) -> list[str]:
    """The command lines of a block, without prompts, comments and output."""
    lines = block.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    found = []
    for line in lines:
        if line.startswith("raftmq "):
            words = shlex.shlex(line, posix=True, punctuation_chars="|;<>&")
            words.whitespace_split = True
            found.append(shlex.join(words))
    return found


def blocks_of(path: Path) -> list[list[str]]:
    """The blocks of a page that have commands."""
    found = [commands_of(body) for kind, body in FENCE.findall(path.read_text()) if kind in SHELL]
    return [block for block in found if block]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def understand(words: list[str]) -> None:
    """Parse a command line without running it, or raise `click.UsageError`."""
    command: click.Command | None = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        called = words.pop(0)
        command = command.get_command(context, called)
        if command is None:
            raise click.UsageError(f"there is no command {called!r}")
    assert command is not None
    command.make_context("raftmq", words)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_each_command_line_of_a_page_is_understood(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in FILES:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    for line in (line for block in blocks_of(path) for line in block):
        for part in re.split(r" [|;] ", line):
            words = [STAND_INS.get(word, word) for word in shlex.split(part)]
            if words.pop(0) != "raftmq":
                continue
            end = next((at for at, word in enumerate(words) if word[0] in "<>"), len(words))
            try:
                understand(words[:end])
            except click.UsageError as error:
                pytest.fail(f"{name(path)}: {line}: {error.format_message()}")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_each_command_in_the_prose_of_a_page_exists(path: Path) -> None:
    prose = FENCE.sub("", path.read_text())
    for line in re.findall(r"`raftmq ([a-z][^`]*)`", prose):
        command: click.Command | None = cli
        for word in line.split():
            if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z-]+", word):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"{name(path)}: raftmq {line}"


def test_pages_give_a_group_one_mode_each() -> None:
    modes: dict[str, dict[str, str]] = {}

    def note(group: str, mode: str, where: str) -> None:
        modes.setdefault(group, {})[mode] = where

    for path in [*PAGES, ROOT / "docs/reference/commands.md"]:
        text = path.read_text()
        for group, rest in re.findall(r'consumer\(\s*"\w+", group="([\w-]+)"([^)]*)\)', text):
            said = re.search(r'mode="(\w+)"', rest)
            note(group, said[1] if said else "pull", name(path))
        for line in re.findall(r"raftmq (?:consume|pop|dlq \w+|group create) [^`\n|]*", text):
            found = re.search(r"(?:-g|group create) ([a-z][\w-]*)", line)
            if found is not None:
                said = re.search(r"--mode (\w+)", line)
                is_pull, is_all = "--assigned" in line, "--instance" in line
                mode = "pull" if is_pull else "broadcast" if is_all else "pop"
                note(found[1], said[1] if said else mode, name(path))
    assert len(modes) > 8
    assert {group: found for group, found in modes.items() if len(found) > 1} == {}


# On a cluster


NOTHING = re.compile("^(0 messages in 0 letters|no dead letters of)", re.MULTILINE)
"""The words of `dlq` for an example that finds nothing."""


class Reader:
    """Types a page's lines, and fills in the parts that the page leaves to its reader."""

    def __init__(self, raftmq: CommandLine, words: dict[str, str]) -> None:
        self.raftmq = raftmq
        self.words = words
        self.handles: list[str] = []

    def type(self, line: str) -> None:
        """Run one line; it must end well."""
        for part in line.split(" ';' "):
            words = shlex.split(part)
            assert words.pop(0) == "raftmq"
            words = [self.words.get(word, word) for word in words]
            words = [self.handles.pop(0) if word == "HANDLE" else word for word in words]
            ended = self.run(words)
            assert ended.code == 0, f"{line}\n{ended.stdout}{ended.stderr}"
            # An example that finds nothing ends with 0 as well.
            assert not NOTHING.search(ended.stdout + ended.stderr), f"{line}\n{ended.stdout}"
            self.handles = re.findall(r"^ *(\S{16,}) ", ended.stdout, re.MULTILINE) or self.handles

    def run(self, words: list[str]) -> Ended:
        """Run words of a line, with its redirections."""
        if "<" in words:
            at = words.index("<")
            return process(words[:at], data=Path(words[at + 1]).read_bytes())
        if ">" in words:
            at = words.index(">")
            ended = self.raftmq(*words[:at])
            Path(words[at + 1]).write_text(ended.stdout)
            return ended
        if ENDLESS.match(" ".join(words)):
            ended = interrupted(words)
            # On a busy machine Ctrl-C may come before the first look, or as Python starts.
            is_well = ended.code in (0, 130, -signal.SIGINT)
            return Ended(0 if is_well else ended.code, ended.stdout, ended.stderr)
        return self.raftmq(*words)


@pytest.fixture
def blank(
    cluster: LocalCluster, raftmq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The commands, on a cluster without topics and groups, in a folder without files."""
    monkeypatch.chdir(tmp_path)
    for topic in raftmq.ok("topic", "list", "-o", "json").json:
        raftmq.ok("topic", "delete", topic["name"], "--yes")
    for group in raftmq.ok("group", "list", "-o", "json").json:
        raftmq("group", "delete", group["name"], "--yes")
    return raftmq


def played(path: str, words: str) -> list[str]:
    """The lines of the page's block in which these words stand."""
    blocks = [block for block in blocks_of(ROOT / path) if any(words in line for line in block)]
    assert len(blocks) == 1, f"{words!r} stands in {len(blocks)} blocks of {path}"
    # The cluster is there already, and stays.
    return [line for line in blocks[0] if line.split()[1] not in ("up", "down")]


process_mark = pytest.mark.process


@process_mark
def test_first_steps_of_the_readme_run(blank: CommandLine) -> None:
    lines = played("README.md", "raftmq produce")
    reader = Reader(blank, {})
    for line in lines[:-1]:
        reader.type(line)
    (message,) = blank.ok(*shlex.split(lines[-1])[1:]).lines
    assert (message["body"], message["key"], message["tag"]) == ("hello", "order-1", "paid")


@process_mark
def test_python_of_the_readme_runs(
    blank: CommandLine, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [b for kind, b in FENCE.findall((ROOT / "README.md").read_text()) if kind == "python"]
    assert len(bodies) == 3
    for body in bodies[:2]:
        url = os.environ["RAFTMQ_URL"]
        exec(re.sub(r"raftmq://[\d.:,]+", url, body), {"__name__": "readme"})
    # A fetch returns with the first leader's messages, which need not be the one with the key.
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\S+ \d 0", lines[0])
    assert lines[-1].startswith("[")


@process_mark
def test_blocks_of_the_page_on_popping_run(blank: CommandLine) -> None:
    reader = Reader(blank, {})
    for line in played("docs/popping.md", "raftmq ack"):
        reader.type(line)
    (message,) = blank.ok("pop", "orders", "-g", "another", "-n", "1", "-o", "json").lines
    reader.words["ID"] = message["id"]
    for line in played("docs/popping.md", "raftmq group lag"):
        reader.type(line)


@process_mark
def test_blocks_of_the_page_on_operations_run(blank: CommandLine) -> None:
    reader = Reader(blank, {})
    for words in ("group create billing", "raftmq reject"):
        for line in played("docs/operations.md", words):
            reader.type(line)
    taken = [json.loads(line) for line in Path("taken").read_text().splitlines()]
    # The page names a message by an id that only its own cluster has.
    reader.words["10000-1"] = next(each["id"] for each in taken if each["body"] == "London")
    for words in ("raftmq dlq purge", "raftmq msg why"):
        for line in played("docs/operations.md", words):
            reader.type(line)
    assert "Rome" in Path("dead.jsonl").read_text()


@process_mark
def test_commands_on_transactions_run(blank: CommandLine) -> None:
    blank.ok("topic", "create", "orders")
    with mq_package.blocking.connect(os.environ["RAFTMQ_URL"]) as mq, mq.producer("orders") as p:
        open_one = p.transaction(group="shop", note="order 17")
        open_one.send(b"paid")
    (found,) = blank.ok("tx", "list", "-o", "json").json
    reader = Reader(blank, {"t1-5f3a9c": found["id"]})
    for line in played("docs/transactions.md", "raftmq tx list"):
        reader.type(line)


@process_mark
def test_block_and_table_of_the_page_on_members_run(blank: CommandLine) -> None:
    for line in played("docs/members.md", "group create cache"):
        blank.ok(*shlex.split(line)[1:])
    lines = re.findall(
        r"^\| `raftmq (.*?)` \|", (ROOT / "docs/members.md").read_text(), re.MULTILINE
    )
    assert len(lines) == 7
    for line in lines:
        # A reader presses Ctrl-C when a message has come.
        end = ["-n", "1"] if line.startswith("consume") else []
        # On a terminal a deletion asks.
        yes = ["--yes"] if "delete" in line else []
        blank.ok(*shlex.split(line), *end, *yes)
