"""Growth compares neighbouring windows, judges figures by value, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from bench import report, results
from bench.growth.loads import alternate
from bench.growth.outcome import Outcome, Window, cost_ratio, middle, rate_ratio
from bench.growth.scenarios import RUNS
from bench.scenarios import GROWTH, SCENARIOS

ROOT = Path(__file__).parents[2]


def window(rate: float, cost: float = 1.0) -> Window:
    """One second of this many messages, at this many processor seconds a million."""
    return Window(int(rate), 1.0, rate * cost / 1e6, (0.001, 0.002, 0.009))


def outcome() -> Outcome:
    found = Outcome("backlog", "1")
    found.add("start", 2.0, "s", at_most=3.0)
    found.add("memory", 500.0, "MiB", at_most=400.0)
    found.compare("produce", [window(1000.0)], [window(800.0)], at_least=0.9)
    found.add_row("produce", "raftmq, empty log", "defaults", 100, window(1000.0))
    return found


def test_ratio_is_the_median_over_neighbouring_windows() -> None:
    # The machine was ten times slower in the second round, for both sides alike.
    plain, grown = [window(1000), window(100), window(1000)], [window(900), window(80), window(950)]
    assert rate_ratio(plain, grown) == pytest.approx(0.9)


def test_cost_is_processor_time_a_message_whatever_the_rate() -> None:
    assert cost_ratio([window(1000, cost=2.0)], [window(10, cost=3.0)]) == pytest.approx(1.5)


def test_middle_window_is_one_that_was_measured() -> None:
    windows = [window(rate) for rate in (30, 10, 20, 40)]
    assert middle(windows) is windows[2]


def test_figures_are_judged_in_their_own_direction() -> None:
    verdicts = {figure["name"]: results.is_met(figure) for figure in outcome().figures}
    assert verdicts == {
        "start": True,
        "memory": False,
        "produce: rate": False,
        "produce: servers' processor time a message": None,
    }


def test_row_of_growth_has_the_fields_of_every_row() -> None:
    (row,) = outcome().rows
    assert set(row) == set(results.Row.__required_keys__)
    assert row["scenario"] == "backlog-produce"
    assert row["scenario"] not in SCENARIOS
    assert (row["mb_per_s"], row["p50_ms"], row["p99_ms"]) == (0.1, 2.0, 9.0)


def test_sides_take_turns_and_neither_always_comes_first() -> None:
    order: list[str] = []

    async def plain() -> Window:
        order.append("plain")
        return window(1)

    async def grown() -> Window:
        order.append("grown")
        return window(2)

    async def main() -> tuple[list[Window], list[Window]]:
        return await alternate(plain, grown, rounds=2)

    sides = trio.run(main)
    assert order == ["plain", "grown", "grown", "plain"]
    assert [[each.messages for each in side] for side in sides] == [[1, 1], [2, 2]]


def test_page_shows_growth_apart_from_the_comparison_with_others() -> None:
    found = outcome()
    result = results.Result("today", "bench", 1.0, 1, {}, found.rows, [], found.figures)
    page = report.markdown(result)
    assert f"### {GROWTH['backlog']} (`backlog`)" in page
    assert "| produce | raftmq, empty log | 1,000 | 0.10 | 2.00 | 9.00 |" in page
    assert "| memory | 500.00 MiB | at most 400 MiB | **no** |" in page
    assert "| start | 2.00 s | at most 3 s | yes |" in page
    assert results.by_scenario(found.rows) == {}


def test_page_without_growth_does_not_mention_it() -> None:
    result = results.Result("today", "bench", 1.0, 1, {}, [], [])
    assert "as work grows" not in report.markdown(result)


def test_each_scenario_of_growth_can_be_run_and_no_name_is_taken_twice() -> None:
    assert list(RUNS) == list(GROWTH)
    assert not set(GROWTH) & set(SCENARIOS)


def start(folder: Path, scenario: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.growth", scenario, "--scale", "0.0005"]
    return subprocess.Popen(
        [*command, "--seconds", "1.5", "--rounds", "1"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_naming(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(command.decode(errors="replace"))
    return found


@pytest.mark.campaign
@pytest.mark.process
def test_scenario_prints_rows_and_figures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    run = start(tmp_path, "backlog")
    output, _ = run.communicate(timeout=90)
    last = json.loads(output.splitlines()[-1])
    assert run.returncode == 0
    assert {row["scenario"] for row in last["rows"]} == {"backlog-produce", "backlog-tail"}
    assert all(row["messages_per_s"] > 0 for row in last["rows"])
    assert all(figure["value"] > 0 for figure in last["figures"])
    assert processes_naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_stopped_scenario_leaves_no_paused_node_and_no_folder(tmp_path: Path) -> None:
    run = start(tmp_path, "slow")
    with run:
        assert run.stdout is not None
        for line in run.stdout:
            if "paused" in line:
                break
        assert len(processes_naming(tmp_path)) == 3
        run.send_signal(signal.SIGTERM)
        run.wait(60)
    assert run.returncode == 128 + signal.SIGTERM
    assert processes_naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
