"""`raftmq chaos soak`: every kind of run, a book that grows, and lines that replay what broke."""

import json
import shlex
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from raftmq.chaos import campaign
from raftmq.chaos.campaign import Plan, Result, play_all
from raftmq.chaos.faults import Schedule, World
from raftmq.chaos.outcome import Outcome, Violation
from raftmq.chaos.soak import FIRST_SEED, POPPING, SHARES, Book, kind_of, page, plan_of
from raftmq.checkers import Verdict
from raftmq.cli.exits import ExitCode
from tests.cli.command_line import CommandLine
from tests.quality.mutants import MUTANTS, planted

ROOT = Path(__file__).parents[3]
SECONDS = "0.0005"
"""Of a soak, in hours: two seconds."""
R1 = Violation("R1", 5, "two leaders")


def soak(raftmq: CommandLine, folder: Path, hours: str = SECONDS) -> tuple[int, Book, str]:
    """Play the core world for a while: exit code, book and page."""
    book = folder / "soak.json"
    ended = raftmq(
        *("chaos", "soak", "--world", "core", "--hours", hours, "--jobs", "1"),
        *("--artifacts", str(folder / "found"), "--book", str(book)),
    )
    return ended.code, Book.read(book), book.with_suffix(".md").read_text()


def test_soak_of_seconds_writes_the_page_and_the_next_one_goes_on_with_new_seeds(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    code, book, text = soak(raftmq, tmp_path)
    (first,) = book.soaks
    assert code == ExitCode.OK
    assert first.first_seed == FIRST_SEED
    assert first.total.runs == first.last_seed - first.first_seed + 1 > 0
    assert 0 < first.total.cpu_seconds < 60
    assert first.total.simulated_seconds > 6 * first.total.runs
    assert first.total.faults > 0
    assert f"| {first.date} | `{first.commit}` | {FIRST_SEED}..{first.last_seed} | " in text
    assert "Nothing so far." in text
    _, book, text = soak(raftmq, tmp_path)
    assert [row.first_seed for row in book.soaks] == [FIRST_SEED, first.last_seed + 1]
    assert text.count("| `") == 2


def test_planted_bug_is_found_kept_and_replayed_by_the_line_on_the_page(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    (mutant,) = (one for one in MUTANTS if one.number == 17)
    with planted(mutant):
        code, book, text = soak(raftmq, tmp_path)
        found = book.soaks[0].found[0]
        again = raftmq(*shlex.split(found.replay)[1:], "-o", "json")
    assert code == again.code == ExitCode.VIOLATION
    assert {violation["name"] for violation in again.json["violations"]} == set(found.what)
    assert again.json["schedule"]["seed"] == found.seed
    assert found.replay in text
    assert "Cause: not known yet." in text
    kept = [folder.name for folder in (tmp_path / "found").iterdir()]
    nodes = plan_of(found.seed, [World.CORE]).nodes
    assert f"core-nodes-{nodes}-seed-{found.seed}" in kept
    # Only the bug breaks the run: the same line without the bug is clean.
    well = raftmq(*shlex.split(found.replay)[1:])
    assert well.code == ExitCode.OK, well.stdout


def test_runs_that_break_alike_are_one_find_and_a_cause_is_kept(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "soak.json"
    book = Book()
    row = book.begin()
    book.soaks.append(row)
    for seed in (FIRST_SEED, FIRST_SEED + 1):
        broken = Outcome(World.CORE, Schedule(seed, 10.0, ()), Verdict.INVALID, (R1,))
        row.add(Result(Plan(World.CORE), seed, broken, 0.5))
    (found,) = row.found
    assert (found.runs, found.seed) == (2, FIRST_SEED)
    found.cause = "a vote that was forgotten."
    book.write(path)
    _, book, text = soak(raftmq, tmp_path)
    assert [one.first_seed for one in book.soaks] == [FIRST_SEED, FIRST_SEED + 2]
    assert "Cause: a vote that was forgotten.\n" in text


def test_seed_draws_every_kind_every_size_and_many_lengths() -> None:
    plans = [plan_of(seed, [World.CORE, World.SIM]) for seed in range(3000)]
    assert plans == [plan_of(seed, [World.SIM, World.CORE]) for seed in range(3000)]
    kinds = Counter(map(kind_of, plans))
    assert set(kinds) == {"core", *(f"sim {name}" for name in SHARES[World.SIM])}
    assert {plan.nodes for plan in plans} == set(range(1, 10))
    assert {plan.is_liveness for plan in plans if plan.world is World.SIM} == {False, True}
    assert len({plan.seconds for plan in plans}) > 80
    assert all(6 <= plan.seconds <= 120 for plan in plans)
    assert all(plan.seconds <= 40 for plan in plans if plan.workload in POPPING)


@pytest.mark.parametrize("nodes", [1, 2, pytest.param(9, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("workload", ["log", "pop"])
def test_sim_world_plays_clusters_of_every_size(nodes: int, workload: str) -> None:
    plan = Plan(World.SIM, ("kill",), workload, seconds=8.0, nodes=nodes)
    outcome = plan.play(plan.schedule(9))
    assert outcome.is_good, str(outcome)
    assert f"--nodes {nodes}" in outcome.replay_line()


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [70_000, 70_001])
@pytest.mark.parametrize("nodes", [8, 9])
def test_core_world_replaces_what_is_broken_in_clusters_of_eight_and_nine(
    nodes: int, seed: int
) -> None:
    plan = Plan(World.CORE, nodes=nodes)
    outcome = plan.play(plan.schedule(seed))
    assert outcome.is_good, str(outcome)


def test_run_that_raises_an_error_is_a_find_and_ends_no_other_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(schedule: Schedule) -> Outcome:
        if schedule.seed == 2:
            raise ValueError("seed 2 broke the world")
        return Outcome(World.SIM, schedule, Verdict.VALID, struck={"kill": 1})

    monkeypatch.setattr(campaign, "_runner", lambda plan, mutant: play)
    tasks = [(Plan(seconds=6.0, nodes=4), seed) for seed in (1, 2, 3)]
    results = list(play_all(tasks, jobs=1, seconds_max=None, artifacts=None))
    assert [result.outcome.verdict for result in results] == [
        Verdict.VALID,
        Verdict.INVALID,
        Verdict.VALID,
    ]
    row = Book().begin()
    for result in results:
        row.add(result)
    (found,) = row.found
    assert found.what == ["error"]
    assert "seed 2 broke the world" in found.text
    assert "--nodes 4" in found.replay


def test_row_counts_what_was_undecided_apart_from_what_broke() -> None:
    row = Book().begin()
    schedule = Schedule(FIRST_SEED, 10.0, ())
    for verdict in (Verdict.VALID, Verdict.UNKNOWN, Verdict.INVALID):
        broken = (R1,) if verdict is Verdict.INVALID else ()
        outcome = Outcome(World.CORE, schedule, verdict, broken, struck={"kill": 2})
        row.add(Result(Plan(World.CORE), FIRST_SEED, outcome, 0.5))
    assert (row.total.runs, row.total.undecided, row.total.faults) == (3, 1, 6)
    assert row.total.cpu_seconds == 1.5
    assert [found.what for found in row.found] == [["R1"]]


def test_book_that_is_none_is_refused_with_the_remedy(raftmq: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    path.write_text("[]")
    ended = raftmq("chaos", "soak", "--book", str(path))
    assert ended.code == ExitCode.USAGE
    assert "is no book of soaks" in ended.stderr
    assert "--book" in ended.stderr


def test_page_shows_the_book() -> None:
    path = ROOT / "docs/chaos/soak.json"
    book = Book.read(path)
    assert path.with_suffix(".md").read_text() == page(book)
    assert book == msgspec.convert(json.loads(path.read_text()), Book)
    for row in book.soaks:
        for found in row.found:
            *_, schedule = shlex.split(found.replay)
            assert json.loads(schedule)["seed"] == found.seed


def test_book_is_whole_after_a_write_that_ends_half_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "soak.json"
    book = Book()
    book.soaks.append(book.begin())
    book.write(path)
    before = path.read_bytes(), path.with_suffix(".md").read_bytes()
    written = Path.write_bytes

    def half(self: Path, data: bytes) -> int:
        written(self, data[: len(data) // 2])
        raise OSError("the machine is switched off")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="switched off"):
        book.write(path)
    assert (path.read_bytes(), path.with_suffix(".md").read_bytes()) == before
