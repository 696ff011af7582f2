"""The test of the tests: planted bugs are noticed, each by one of its expected killers.

All that were cheap to kill when `make mutants` ran last are planted each time. Of the others a few
are, chosen by the commit: the same for one commit, others for the next.
"""

import json
import re
import subprocess
import zlib
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from raftmq.chaos.core import run
from raftmq.chaos.mutant import Patch
from raftmq.consensus import election
from tests.quality.mutants import MUTANTS, Mutant, hunt, hunts, planted
from tests.quality.mutants.__main__ import line, page
from tests.quality.mutants.hunts import SEEDS_MAX, BadSeed, Hunt, schedule_of

ROOT = Path(__file__).parent.parent.parent.parent
FOUND = ROOT / "docs" / "chaos" / "mutants.json"
CHEAP_CPU_SECONDS = 0.5
SAMPLE = 4

# Those that need whole brokers have a test of their own.
PLANTED = [mutant for mutant in MUTANTS if mutant.plant is not None and not mutant.workload]


def found() -> dict[str, dict[str, float | str]]:
    rows: dict[str, dict[str, float | str]] = json.loads(FOUND.read_text())
    return rows


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.stdout.strip() or "no repository"


def is_cheap(mutant: Mutant) -> bool:
    return float(found()[str(mutant.number)]["cpu_seconds"]) <= CHEAP_CPU_SECONDS


def sample() -> list[Mutant]:
    """The cheap mutants, and a few of the others by turns."""
    dear = [mutant for mutant in PLANTED if not is_cheap(mutant)]
    start = zlib.crc32(commit().encode()) % max(len(dear), 1)
    return [m for m in PLANTED if is_cheap(m)] + (dear + dear)[start : start + SAMPLE]


@pytest.mark.parametrize("mutant", sample(), ids=lambda mutant: mutant.name)
def test_mutant_is_killed_by_an_expected_promise(mutant: Mutant) -> None:
    seed = int(found()[str(mutant.number)]["seed"])
    # The seed that killed last time; if the simulation has changed since, all seeds from the first.
    killed = hunt(mutant, first=seed, seeds_max=1)
    if not killed.is_killed:
        killed = hunt(mutant)
    assert killed.is_as_expected, f"{killed.killer or 'not killed'}: {killed.text}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_can_be_planted_in_the_code_of_today(mutant: Mutant) -> None:
    if mutant.plant is not None:
        with planted(mutant):
            pass


def test_function_that_cannot_be_called_like_the_old_one_is_not_planted() -> None:
    with ExitStack() as stack, pytest.raises(TypeError, match="tick: too many positional"):
        Patch(stack).set(election, "tick", lambda: None)


def test_every_mutant_was_killed_within_the_limits() -> None:
    rows = found()
    with_brokers = {str(mutant.number) for mutant in MUTANTS if mutant.workload}
    assert set(rows) - with_brokers == {str(mutant.number) for mutant in PLANTED}
    for mutant in PLANTED:
        row = rows[str(mutant.number)]
        assert row["killer"] in mutant.killers, mutant.name
        assert int(row["seeds"]) <= SEEDS_MAX, mutant.name


def test_numbers_1_to_66_are_planted_or_have_a_reason() -> None:
    numbers = [mutant.number for mutant in MUTANTS]
    assert numbers[:66] == list(range(1, 67))
    assert len(set(numbers)) == len(numbers)


def test_page_says_who_was_hunted_with_hints_and_who_is_no_bug_of_the_product() -> None:
    text = page({str(mutant.number): {**ROW} for mutant in PLANTED})
    hinted = [mutant for mutant in PLANTED if mutant.hints]
    assert f"{len(hinted)} are hunted with *hints*" in text
    assert "(12, 30, 31, 43)" in text
    reasons = text.partition("## Hints")[2].partition("\n## ")[0]
    because: dict[int, str] = {}
    for numbers, reason in re.findall(r"^\| (\d[\d, to]*) \| (.*) \|$", reasons, re.MULTILINE):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            because |= dict.fromkeys(range(int(first), int(last or first) + 1), reason)
    assert because == {mutant.number: mutant.why_hinted for mutant in hinted}
    for mutant in hinted:
        assert re.search(
            rf"\| {re.escape(mutant.what)} \| \w+ \| {re.escape(mutant.hints)} \|", text
        )
        assert mutant.why_hinted, f"{mutant.name}: why does no seed draw what it needs?"


ROW: dict[str, int | float | str] = {
    "seed": 0, "killer": "R1", "seeds": 1, "cpu_seconds": 0.1, "at_seconds": 1.0,
}  # fmt: skip


def test_mutant_leaves_no_trace_in_the_code() -> None:
    before = election.settle_term
    mutant = next(mutant for mutant in PLANTED if mutant.name == "old-votes-count")
    with planted(mutant):
        assert election.settle_term is not before
    assert election.settle_term is before
    outcome = run(schedule_of(mutant, 0)._replace(seconds=10.0))
    assert outcome.is_good, str(outcome)


def test_handler_that_does_not_exist_is_not_patched() -> None:
    from contextlib import ExitStack

    from raftmq.consensus import MessageKind

    with ExitStack() as stack, pytest.raises(AssertionError):
        Patch(stack).handler(MessageKind.VOTE, election.on_propose, election.on_propose)


def test_seed_that_breaks_without_the_mutant_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if raftmq had that bug."""
    mutant = next(mutant for mutant in PLANTED if mutant.name == "vote-before-durable")
    assert hunt(mutant, seeds_max=1).killer == "R14"
    monkeypatch.setattr(hunts, "planted", nullcontext)
    with planted(mutant), pytest.raises(BadSeed, match="without mutant 1, too: R14"):
        hunt(mutant, seeds_max=1)


def test_hunt_that_needed_one_seed_says_so() -> None:
    hunted = Hunt(PLANTED[0], seed=4, killer="V1", text="what was seen", seeds=1, cpu_seconds=0.2)
    assert "   1 seed   0.2 s" in line(hunted)
