"""Play what the chapters on chaos tell of, and put what is printed, and its pictures, on the pages.

    python docs/chapters.py                rewrite all
    python docs/chapters.py a-bug          rewrite this chapter
    python docs/chapters.py --check a-bug  change nothing; exit status 1 if it would differ

A page marks each block of output by `<!-- printed: NAME -->`. The commands are those that the page
itself tells its reader to type, so that all blocks of a page come from one state of the code.

| chapter | block | is |
|---|---|---|
| `index` | `summary` | what `raftmq chaos run` says of clean seeds, with the time that it took |
| `a-bug` | `found` | what `raftmq chaos run` prints of the first seed that breaks something |
| | `shrunk`, `replay`, `without` | its smallest schedule, the line that plays it, without the bug |
| | `stale-read.png` | the page of the smallest schedule |
| `your-service` | `ring`, `ring.png` | the failure of the plain queue, never twice the same |
| | `made-up` | the payment that is lost in the simulated world |

Invariants:
- `a-bug` and `made-up` come out the same on any machine.

Left out: pictures need Chromium; without it they stay as they are, and that is said.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from raftmq.chaos.report import NoBrowser, picture

PAGES = Path(__file__).parent / "chaos"
EXAMPLES = Path(__file__).parents[1] / "tests/chaos/plugin/examples"
BLOCK = re.compile(r"(<!-- printed: (\S+) -->\n```\w+\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)

RING = """the history is invalid

total-queue: invalid
  ...
{count}
  ...
{fact}
"""
Printed = dict[str, str]
"""Blocks by name; of a picture (`*.png`) the page that it is to show."""


def printed(folder: Path, *command: str) -> tuple[str, str]:
    """What a Python module's command line says in this folder, however it ends: stdout, stderr."""
    words = [sys.executable, "-m", *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def told(page: str) -> str:
    """The first run that a page tells its reader to type."""
    found = re.search(r"^\$ (raftmq chaos run .*)$", (PAGES / page).read_text(), re.MULTILINE)
    assert found, f"{page} tells of no run"
    return found[1]


def index(folder: Path) -> Printed:
    """Many seeds that are clean."""
    command = told("index.md")
    _, said = printed(folder, *shlex.split(command))
    # Before the summary stand lines about the progress; after it may stand what struck never.
    lines = said.splitlines()
    at = next(number for number, line in enumerate(lines) if " in their worlds, " in line)
    return {"summary": "\n".join([f"$ {command}", *lines[at:], ""])}


def a_bug(folder: Path) -> Printed:
    """A seed that fails, shrunk."""
    command = told("a-bug.md")
    out, _ = printed(folder, *shlex.split(command))
    found, _, rest = out.partition("replay: ")
    shrunk = re.search(r"^shrunk to .*\n(?:  .*\n)+", rest, re.MULTILINE)
    assert shrunk, f"no seed of `{command}` fails: let the chapter name others\n{out}"
    line = rest.rpartition("replay: ")[2].strip()
    (report,) = folder.glob("found/shrunk/*/report.html")
    return {
        "found": found,
        "shrunk": shrunk[0],
        "replay": f"$ {line}\n",
        "without": "$ " + re.sub(r" --mutant \d+", "", line) + "\n",
        "stale-read.png": str(report),
    }


def your_service(folder: Path) -> Printed:
    """The two examples that fail."""
    ring = (EXAMPLES / "ring.py").read_text()
    made_up = (EXAMPLES / "made_up.py").read_text()
    loop = "                for payment in payments:"
    early = made_up.replace(loop, f"                await consumer.commit()\n{loop}")
    assert early != made_up
    (folder / "test_ring.py").write_text(ring)
    (folder / "test_made_up.py").write_text(early)
    seed = ("--chaos-seed", "0")
    out, _ = printed(folder, "pytest", "test_ring.py", *seed, "--chaos-artifacts", "kept")
    count = re.search(r"^  lost-middle: \d+$", out, re.MULTILINE)
    assert count, out
    assert "\nthe history is invalid\n\ntotal-queue: invalid\n" in out, out
    (report,) = folder.glob("kept/*/report.html")
    seen = re.search(
        r"^Seed (\d+) finds one:$", (PAGES / "your-service.md").read_text(), re.MULTILINE
    )
    assert seen, "your-service.md tells of no seed"
    late, _ = printed(folder, "pytest", "test_made_up.py", "--chaos-seed", seen[1])
    return {
        "ring": RING.format(count=count[0], fact=_lost(out)),
        "made-up": f"{_lost(late)}\n",
        "ring.png": str(report),
    }


def _lost(out: str) -> str:
    found = re.search(r"^lost-middle: \d+ of process .*$", out, re.MULTILINE)
    assert found, out
    return found[0]


CHAPTERS: dict[str, Callable[[Path], Printed]] = {
    "index": index,
    "a-bug": a_bug,
    "your-service": your_service,
}
HEIGHTS = {"stale-read.png": 790, "ring.png": 1120}
"""Of the pictures, in pixels."""


def filled(text: str, blocks: Printed) -> str:
    """A page with what its marks name."""
    return BLOCK.sub(lambda found: found[1] + blocks[found[2]] + found[4], text)


def draw(blocks: Printed) -> None:
    """Take the pictures."""
    for name in HEIGHTS.keys() & blocks.keys():
        try:
            picture(Path(blocks[name]), PAGES / name, height=HEIGHTS[name])
        except NoBrowser as problem:
            print(f"{name} stays as it is: {problem}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Rewrite or check; the exit status."""
    is_check = "--check" in arguments
    differ = []
    for name in [one for one in arguments if one in CHAPTERS] or CHAPTERS:
        path = PAGES / f"{name}.md"
        with tempfile.TemporaryDirectory(prefix="raftmq-chapter-") as folder:
            blocks = CHAPTERS[name](Path(folder))
            text = filled(path.read_text(), blocks)
            if text != path.read_text():
                differ.append(path)
            if not is_check:
                path.write_text(text)
                draw(blocks)
    for path in differ:
        print(path)
    return 1 if differ and is_check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
