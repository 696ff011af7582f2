"""Runs the golden scripts in tests/scripts/consensus; `--rewrite` writes their outputs again."""

from pathlib import Path

import pytest

from tests.consensus.datadriven import parse
from tests.consensus.scripted import Script

FOLDER = Path(__file__).parents[1] / "scripts" / "consensus"
SCRIPTS = sorted(FOLDER.glob("*.txt"))


def run(text: str) -> str:
    """The script with the outputs it has now."""
    script, lines = Script(), text.split("\n")
    pieces, place = [], 0
    for directive in parse(text):
        head = lines[place : directive.line]
        pieces += head
        pieces += ["----", *script.handle(directive).split("\n"), ""]
        place = directive.line + 1 + directive.expected.count("\n")
        while place < len(lines) and not lines[place].strip():
            place += 1
    return "\n".join(pieces)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_holds(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    actual = run(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(actual)
        return
    assert actual == text, "run pytest --rewrite and look at the difference"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_opens_with_its_claim(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 8
