"""Which cells a run measures, in which order, and what a stopped run measures again."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

import bench.machine
from bench import run
from bench.journal import Outcome
from bench.results import Row
from bench.scenarios import (
    AT_REST_SECONDS_MAX,
    GROWING,
    GROWTH,
    READS,
    SCENARIOS,
    SYSTEMS,
    Cell,
    cells,
    wait_until_at_rest,
    without_fills,
)
from bench.system import SETTLE_SECONDS, Sample
from tests.bench.test_report import row

SINGLE = ["--only", "single", "--systems", "floor,nats", "--seconds", "1", "--rounds", "2"]
BOTH = ["--only", "produce-10kB,consume-10kB", "--systems", "floor", "--seconds", "1"]


def test_every_other_round_goes_backwards_through_the_systems() -> None:
    order = [cell.system for cell in cells(["single-200B"], ["floor", "raftmq", "nats"], 2)]
    assert order == ["floor", "raftmq", "nats", "nats", "raftmq", "floor"]


def test_settings_of_writes_are_measured_by_writes_alone() -> None:
    planned = cells(list(SCENARIOS), ["kafka-fsync", "rocketmq-fsync", "nats-fsync"], 1)
    assert len(planned) == 3 * 4
    assert not [cell for cell in planned if SCENARIOS[cell.scenario].operation in READS]


def test_each_system_has_the_order_that_it_keeps() -> None:
    def systems(scenario: str) -> set[str]:
        return {each.system for each in cells([scenario], list(SYSTEMS), 1)}

    assert systems("ordered-100B") >= {"raftmq", "nats", "rabbitmq"}
    assert not systems("ordered-100B") & {"kafka", "rocketmq", "kafka-own"}
    assert systems("in-order-100B") >= {"raftmq", "kafka", "rocketmq", "nats", "rabbitmq"}


@pytest.mark.parametrize(("quiet_after", "is_noted"), [(3, False), (1000, True)])
def test_rest_begins_when_the_servers_are_at_rest(quiet_after: int, is_noted: bool) -> None:
    slept: list[float] = []

    def used(_: int) -> float:
        # A processor of each server is full until it is quiet.
        return sum(slept[:quiet_after])

    note = wait_until_at_rest([1, 2, 3], cpu_seconds=used, sleep=slept.append)
    assert bool(note) == is_noted
    assert sum(slept) <= SETTLE_SECONDS + AT_REST_SECONDS_MAX
    assert len(slept) == (quiet_after + 1 if not is_noted else len(slept))


def test_pysyncobj_and_own_tools_run_in_the_first_round_alone() -> None:
    planned = cells(["produce-100B"], list(SYSTEMS), 3)
    once = [name for name in SYSTEMS if name.endswith("-own")] + ["pysyncobj"]
    assert [c.round for c in planned if c.system in once] == [0] * len(once)
    assert {c.round for c in planned if c.system == "kafka"} == {0, 1, 2}


def test_scenarios_that_grow_run_in_the_first_round_alone_for_systems_that_have_queues() -> None:
    growing = [name for name, each in SCENARIOS.items() if each.operation in GROWING]
    planned = cells(growing, list(SYSTEMS), 3)
    assert {cell.round for cell in planned} == {0}
    assert {cell.system for cell in planned} == {"raftmq", "kafka", "rocketmq", "nats", "rabbitmq"}
    assert len(planned) == 3 * 5


def test_plan_counts_the_time_of_growing() -> None:
    beside = SYSTEMS["nats"].beside_seconds
    grown = SCENARIOS["queues-20000"].expected_seconds
    assert grown > 0
    assert Cell(0, "queues-20000", "nats").expected_seconds(3.0) == beside + grown + 3.0


def test_backlog_has_its_rates_and_says_what_it_did_not_store() -> None:
    class System:
        def fill(self, *, messages: int, seconds: float, **_: int) -> Sample:
            counts = [100] * 10 + [400] * 90
            return Sample(sum(counts), 100, 10.0, 1.0, 2.0, 0.0, counts=counts)

        def consume(self, **_: float) -> Sample:
            return Sample(5000, 100, 2.0, None, None, 10.0)

    scenario = SCENARIOS["backlog-20M"]
    (sample,) = scenario.run(cast("Any", System()), 3.0)
    assert sample.figures == {
        "messages": 37_000,
        "messages/s at first": 1000.0,
        "messages/s at last": 4000.0,
        "messages/s read": 2500.0,
    }
    assert "were over" in sample.note
    (enough,) = scenario.run(cast("Any", System()), 3.0, scale=37_000 / 20_000_000)
    assert enough.note == ""


@pytest.mark.parametrize(
    ("reached", "own", "said"),
    [(1000, "", ""), (400, "", "60 s were over"), (400, "no more files", "no more files")],
)
def test_amount_that_was_not_reached_has_a_reason(reached: int, own: str, said: str) -> None:
    class System:
        def waiting(self, **_: int) -> Sample:
            return Sample(300, 200, 1.0, 1.0, 2.0, 0.0, figures={"consumers": reached}, note=own)

    (sample,) = SCENARIOS["waiting-1000"].run(cast("Any", System()), 3.0)
    assert sample.note.startswith(said)
    assert bool(sample.note) == bool(said)


def test_expected_time_counts_the_filling_of_a_log() -> None:
    beside = SYSTEMS["kafka"].beside_seconds
    reading = SYSTEMS["kafka"].read_seconds
    times = SCENARIOS["consume-100B"].times
    assert reading > 0
    assert Cell(0, "single-200B", "kafka").expected_seconds(4.0) == beside + 4.0
    assert Cell(0, "consume-1MiB", "kafka").expected_seconds(4.0) == beside + reading + 8.0
    assert Cell(0, "consume-100B", "kafka").expected_seconds(4.0) == (
        beside + reading + (times + 1) * 4.0
    )


def test_consume_brings_the_row_of_the_produce_that_it_reads_back() -> None:
    found = {each.rows for each in SCENARIOS.values() if each.operation == "consume"}
    assert found == {(f"produce-{size}", f"consume-{size}") for size in ("100B", "10kB", "1MiB")}
    for produce, consume in ((SCENARIOS[first], SCENARIOS[then]) for first, then in found):
        load = (consume.size, consume.batch, consume.window, consume.times)
        assert (produce.size, produce.batch, produce.window, produce.times) == load
    assert SCENARIOS["produce-10kB"].rows == ("produce-10kB",)


def test_produce_has_a_cell_of_its_own_only_without_its_consume() -> None:
    planned = cells(list(SCENARIOS), list(SYSTEMS), 3)
    kept = without_fills(planned)
    assert {cell.system for cell in kept if "produce" in cell.scenario} == {
        name
        for name, each in SYSTEMS.items()
        if "produce-100B" in each.scenarios and "consume-100B" not in each.scenarios
    }
    given = [
        Cell(cell.round, name, cell.system)
        for cell in kept
        for name in SCENARIOS[cell.scenario].rows
    ]
    assert len(given) == len(set(given))
    assert set(given) == set(planned)
    alone = cells(["produce-100B", "consume-10kB"], ["floor"], 1)
    assert without_fills(alone) == alone


class Machine:
    """Stands in for the cells' processes, and keeps which ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.stops_before = -1
        self.failing: set[str] = set()
        """Systems and scenarios that fail."""
        self.unsupported = {("floor", "pop-100B")}

    def run_cell(self, system: str, scenario: str, *_: object) -> dict[str, Outcome]:
        if len(self.ran) == self.stops_before:
            raise KeyboardInterrupt
        self.ran.append((system, scenario))
        return {name: self.outcome(system, name) for name in SCENARIOS[scenario].rows}

    def outcome(self, system: str, scenario: str) -> Outcome:
        if {system, scenario} & self.failing:
            return Outcome(None, "it broke\nat a line", has_failed=True)
        if (system, scenario) in self.unsupported:
            return Outcome(None, "no such thing")
        made: Row = row(scenario, system, 100.0 + len(self.ran))
        return Outcome(made)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(run, "_run_cell", machine.run_cell)
    monkeypatch.setattr(run, "why_unavailable", lambda _: None)
    monkeypatch.setattr(bench.machine, "commit", lambda: "a1b2")
    monkeypatch.setattr(bench.machine, "describe", lambda: {"processor": "2 x test"})
    return machine


def result(folder: Path) -> dict[str, list[dict[str, object]]]:
    return json.loads((folder / "benchmarks.json").read_text())  # type: ignore[no-any-return]


def test_stopped_run_goes_on_where_it_stopped(machine: Machine, tmp_path: Path) -> None:
    machine.stops_before = 4  # the warm-up, the first round, one cell of the second
    assert run.main([*SINGLE, "--out", str(tmp_path)]) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == [run.PART]
    machine.ran.clear()
    machine.stops_before = -1
    assert run.main([*SINGLE, "--out", str(tmp_path)]) == 0
    assert machine.ran == [("floor", "produce-100B"), ("floor", "single-200B")]
    written = result(tmp_path)
    assert [(each["system"], each["rounds"]) for each in written["rows"]] == [
        ("floor", 2),
        ("nats", 2),
    ]
    assert len(written["continues"]) == 1
    assert "was stopped once and went on" in (tmp_path / "benchmarks.md").read_text()
    assert not (tmp_path / run.PART).exists()


def test_run_that_goes_on_at_another_commit_says_so_on_the_page(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.stops_before = 4
    run.main([*SINGLE, "--out", str(tmp_path)])
    machine.stops_before = -1
    monkeypatch.setattr(bench.machine, "commit", lambda: "c3d4+")
    assert run.main([*SINGLE, "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "benchmarks.json").read_text())
    assert written["commits"] == ["a1b2", "c3d4+"]
    assert "Measured at commits a1b2, c3d4+" in (tmp_path / "benchmarks.md").read_text()


def test_complete_rounds_of_a_stopped_run_are_a_page_at_once(
    machine: Machine, tmp_path: Path
) -> None:
    machine.stops_before = 4
    run.main([*SINGLE, "--out", str(tmp_path)])
    assert run.main([*SINGLE[:-1], "1", "--out", str(tmp_path)]) == 0
    assert len(machine.ran) == 4
    assert [each["rounds"] for each in result(tmp_path)["rows"]] == [1, 1]


def test_failed_cell_is_on_the_page_and_measured_by_the_next_run(
    machine: Machine, tmp_path: Path
) -> None:
    machine.failing = {"nats"}
    assert run.main([*SINGLE, "--out", str(tmp_path)]) == 1
    page = (tmp_path / "benchmarks.md").read_text()
    assert "- nats, single-200B: round 1: it broke" in page
    assert "at a line" not in page
    machine.failing = set()
    machine.ran.clear()
    assert run.main([*SINGLE, "--out", str(tmp_path)]) == 0
    assert machine.ran[1:] == [("nats", "single-200B")] * 2


def test_cell_that_is_unsupported_is_not_tried_again(machine: Machine, tmp_path: Path) -> None:
    chosen = ["--only", "pop", "--systems", "floor,kafka-fsync", "--rounds", "3"]
    assert run.main([*chosen, "--out", str(tmp_path)]) == 0
    assert machine.ran[1:] == [("floor", "pop-100B")]
    assert {each["system"]: each["reason"] for each in result(tmp_path)["skipped"]} == {
        "kafka-fsync": "left out: the setting decides when a write is on disk",
        "floor": "no such thing",
    }


def test_one_cell_gives_the_rows_of_a_produce_and_its_consume(
    machine: Machine, tmp_path: Path
) -> None:
    assert run.main([*BOTH, "--rounds", "2", "--out", str(tmp_path)]) == 0
    assert machine.ran[1:] == [("floor", "consume-10kB")] * 2
    assert [(each["scenario"], each["rounds"]) for each in result(tmp_path)["rows"]] == [
        ("produce-10kB", 2),
        ("consume-10kB", 2),
    ]


@pytest.mark.parametrize("name", ["produce-10kB", "consume-10kB"])
def test_produce_alone_and_consume_alone_have_their_own_rows_only(
    machine: Machine, tmp_path: Path, name: str
) -> None:
    assert run.main(["--only", name, "--systems", "floor", "--out", str(tmp_path)]) == 0
    assert machine.ran[1:] == [("floor", name)]
    assert [each["scenario"] for each in result(tmp_path)["rows"]] == [name]


def test_produce_whose_consume_failed_is_kept(machine: Machine, tmp_path: Path) -> None:
    machine.failing = {"consume-10kB"}
    assert run.main([*BOTH, "--out", str(tmp_path)]) == 1
    (kept,) = result(tmp_path)["rows"]
    assert kept["scenario"] == "produce-10kB"
    machine.failing = set()
    assert run.main([*BOTH, "--out", str(tmp_path)]) == 0
    produce, consume = result(tmp_path)["rows"]
    assert produce["messages_per_s"] == kept["messages_per_s"]
    assert consume["scenario"] == "consume-10kB"


def test_produce_of_a_system_without_consumers_is_measured_each_round(
    machine: Machine, tmp_path: Path
) -> None:
    machine.unsupported = {("floor", "consume-10kB")}
    assert run.main([*BOTH, "--rounds", "2", "--out", str(tmp_path)]) == 0
    (only,) = result(tmp_path)["rows"]
    assert (only["scenario"], only["rounds"]) == ("produce-10kB", 2)
    assert [each["scenario"] for each in result(tmp_path)["skipped"]] == ["consume-10kB"]


def test_rows_of_a_stopped_run_are_not_measured_twice_by_another_choice(
    machine: Machine, tmp_path: Path
) -> None:
    machine.stops_before = 2
    assert run.main([*BOTH, "--rounds", "2", "--out", str(tmp_path)]) == 130
    machine.stops_before = -1
    machine.ran.clear()
    only = ["--only", "produce-10kB", *BOTH[2:], "--rounds", "2"]
    assert run.main([*only, "--out", str(tmp_path)]) == 0
    assert machine.ran[1:] == [("floor", "produce-10kB")]
    assert [each["rounds"] for each in result(tmp_path)["rows"]] == [2]


def test_later_round_says_when_it_begins(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*SINGLE, "--out", str(tmp_path)]) == 0
    assert len(machine.ran) == 1 + 4
    assert "round 2 begins after 0 min" in capsys.readouterr().err


def test_plan_runs_nothing_and_names_the_time(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*SINGLE, "--plan", "--out", str(tmp_path / "none")]) == 0
    assert machine.ran == []
    assert not (tmp_path / "none").exists()
    assert "4 cells in rounds of about 0, 0 min" in capsys.readouterr().err


def test_growth_is_planned_by_default(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.main(["--plan", "--out", str(tmp_path)])
    assert f"{len(GROWTH)} scenarios of growth" in capsys.readouterr().err
