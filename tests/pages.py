"""Pages as their reader meets them: blocks in order, lines as printed, and the terminal's output.

A test plays a page: the `Reader` types each block of a shell and runs each block of Python, from
the first to the last, in one folder. The rules:

- A line ends with 0, unless the test says for this line how it ends. An endless one ends by Ctrl-C
  when the screen shows what the test waits for.
- A block of TOML becomes the file that the page names last before the block.
- Lines that a page prints below a command stand on the screen in this order, perhaps with others
  (progress) between them; `...` stands for anything. Two lines are alike if they differ only in
  numbers, hexadecimal ids and times, and in how wide the columns of a table are. Words that the
  test calls exact are compared to the digit.
- `raftmq up`, `raftmq down`, `pip` and `make` are left out: the cluster is there and stays, and
  other tests install and make. Addresses and ports of the page are those of the test's cluster.
- `raftmq pipeline` runs in this process where it can, so that all pages share one Spark; bash runs
  all other lines, each as a process.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from raftmq.cli.app import run
from raftmq.cli.exits import ExitCode

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = {"sh", "console", ""}
LEFT_OUT = re.compile(r"(raftmq (up|down)|pip|make)\b")
SECONDS_MAX = 400.0
"""Ends a line that hangs. The slowest, of chaos or Spark, took 120 s where the machine was busy."""

Until = Callable[[str], bool]
"""Whether the screen shows what the reader waits for."""


class Step(NamedTuple):
    """A line of a shell."""

    line: str
    printed: list[str]
    """Output that the page shows below the line."""


class Ended(NamedTuple):
    """How a line ended."""

    code: int
    screen: str
    """Stdout and stderr, as a terminal mixes them."""


def steps_of(body: str) -> list[Step]:
    """The lines of a block of a shell; none of a block that only shows files or output.

    >>> steps_of("$ raftmq a\\nout\\n$ raftmq b  # why\\n")
    [Step(line='raftmq a', printed=['out']), Step(line='raftmq b  # why', printed=[])]
    """
    lines = body.replace("\\\n", " ").splitlines()
    has_prompts = any(line.startswith("$ ") for line in lines)
    steps: list[Step] = []
    for line in lines:
        if has_prompts and not line.startswith("$ "):
            steps[-1].printed.append(line)
        elif line.strip() and not line.startswith("#"):
            steps.append(Step(line.removeprefix("$ "), []))
    is_shell = any("raftmq " in step.line for step in steps)
    return steps if has_prompts or is_shell else []


def shape(line: str) -> str:
    """The part of a line that is equal in every run.

    >>> shape("seed 18:  R20 at 3.829s, digest 61e3b8f438c78d5")
    'seed #: R# at #, digest #'
    """
    line = re.sub(r"\b(?=[a-f]*\d)[0-9a-f]{7,}\b", "#", line)
    line = re.sub(r"(?:\d+(?:[.,:]\d+)*(?:(?:ms|[smhd])\b)?)+", "#", line)
    return re.sub(r"[ -]*-{2,}[ -]*| {2,}", " ", line).strip()


def assert_shows(screen: str, printed: list[str]) -> None:
    """Each printed line is on the screen, in this order."""
    left = iter([shape(line) for line in screen.splitlines()])
    for line in printed:
        wanted = re.compile(".*".join(map(re.escape, shape(line).split("..."))))
        is_shown = not line.strip() or any(wanted.fullmatch(shown) for shown in left)
        assert is_shown, f"{line!r} is not shown, or not in this order:\n{screen}"


class Reader:
    """Types a page's lines in `folder`, and fills in the parts that the page leaves to its reader.

    Attributes:
        codes: words of a line → how it ends, where that is not 0.
        endless: words of a line → what its reader waits for before Ctrl-C.
        apart: words of a line of `raftmq pipeline` that needs a process of its own.
        other: words that are true on a fresh cluster alone → what is true here.
        names: the definitions of the blocks of Python.
        typed: how many lines of a shell were run.
    """

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder = folder
        self.url = url
        self.codes: dict[str, int] = {}
        self.endless: dict[str, Until] = {}
        self.apart: set[str] = set()
        self.other: dict[str, Callable[[], str]] = {}
        self.names: dict[str, Any] = {"__name__": "page"}
        self.typed = 0

    def play(self, page: str, *, start: str = "", end: str = "") -> str:
        """Play a page, perhaps only from these words on, or up to those; all that was shown."""
        text = (ROOT / page).read_text()
        assert start in text, start
        assert end in text, end
        part = text[text.index(start) : text.index(end) if end else None]
        shown = []
        for found in FENCE.finditer(part):
            kind, body = found.groups()
            if kind == "python":
                shown.append(self.execute(body))
            elif kind == "toml":
                name = re.findall(r"`([\w-]+\.toml)`", part[: found.start()])[-1]
                (self.folder / name).write_text(body)
            elif kind in SHELL:
                shown += [self.type(step) for step in steps_of(body)]
        assert shown, f"{page} has nothing to play"
        return "".join(shown)

    def execute(self, body: str) -> str:
        """Run a block of Python; returns its output."""
        with _screen() as screen:
            code = compile(re.sub(r"raftmq://[\d.:,]+", self.url, body), "page", "exec")
            exec(code, self.names)
        return screen.getvalue()

    def type(self, step: Step) -> str:
        """Run a line and compare its end with the page; returns its output."""
        if LEFT_OUT.match(step.line):
            return ""
        line = re.sub(r"--page \d+", "--page 0", step.line)
        for words, here in self.other.items():
            line = line.replace(words, here()) if words in line else line
        until = next((end for words, end in self.endless.items() if words in line), None)
        is_apart = any(words in line for words in self.apart)
        is_here = line.startswith("raftmq pipeline ") and not is_apart and "|" not in line
        ended = self._here(line, until) if is_here else self._apart(line, until)
        code = next((code for words, code in self.codes.items() if words in line), 0)
        wanted = {code} if until is None else {ExitCode.OK, ExitCode.INTERRUPTED}
        assert ended.code in wanted, f"{line} ended with {ended.code}:\n{ended.screen}"
        assert_shows(ended.screen, step.printed)
        self.typed += 1
        return ended.screen

    def _here(self, line: str, until: Until | None) -> Ended:
        words = shlex.split(line, comments=True)[1:]
        file = None
        if ">" in words:
            file, words = self.folder / words[-1], words[: words.index(">")]
        with _screen() as screen, _ctrl_c(screen, until):
            try:
                code = run(words)
            except KeyboardInterrupt:
                code = ExitCode.INTERRUPTED
        if file is not None:
            file.write_text(screen.getvalue())
        return Ended(code, screen.getvalue())

    def _apart(self, line: str, until: Until | None) -> Ended:
        # A job of bash would ignore Ctrl-C in the background; `exec` leaves one process.
        folder = Path(sys.executable).parent
        environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
        command = f"exec {line}" if until else line
        screen: list[str] = []
        with subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            timer = threading.Timer(SECONDS_MAX, process.kill)
            timer.start()
            assert process.stdout is not None
            is_asked = False
            for shown in process.stdout:
                screen.append(shown)
                if until is not None and not is_asked and until("".join(screen)):
                    process.send_signal(signal.SIGINT)
                    is_asked = True
            process.wait()
            timer.cancel()
        return Ended(process.returncode, "".join(screen))


@contextmanager
def _screen() -> Iterator[StringIO]:
    """Output of the block on stdout and stderr."""
    screen = StringIO()
    with redirect_stdout(screen), redirect_stderr(screen):
        yield screen


@contextmanager
def _ctrl_c(screen: StringIO, until: Until | None) -> Iterator[None]:
    """Interrupt this process when the screen shows enough."""
    if until is None:
        yield
        return
    is_over = threading.Event()
    failures: list[Exception] = []

    def is_enough() -> bool:
        try:
            return until(screen.getvalue())
        except Exception as failure:
            # Without a watcher the command would have no end.
            failures.append(failure)
            return True

    def watch() -> None:
        end = time.monotonic() + SECONDS_MAX
        while not is_over.wait(0.2):
            if is_enough() or time.monotonic() > end:
                # Never after the command: a signal that is too late would end the tests.
                if not is_over.is_set():
                    os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
    assert not failures, failures
