"""`raftmq chaos`: exit codes, stdout and stderr; everything printed can be used."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from raftmq.chaos import campaign
from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import FAMILIES, FAULTS, Schedule, World, of_world
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim import run as sim_run
from raftmq.chaos.sim.checks.availability import TO_SERVICE
from raftmq.chaos.workload_names import WORKLOADS
from raftmq.checkers import ANOMALIES, INVARIANTS, Recorder, write_parquet
from raftmq.cli.chaos import run
from raftmq.cli.exits import ExitCode
from tests.chaos.cli.simulated_world import play
from tests.chaos.report.made_up import history
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import wait_until

KILLS = ("chaos", "run", "--faults", "kill", "--jobs", "1", "--time", "20s")
PAUSES = ("chaos", "run", "--faults", "pause", "--jobs", "1", "--time", "20s")


def test_options_know_every_world_and_workload() -> None:
    assert set(run.WORLDS) == {world.value for world in World}
    assert tuple(sim_run.WORKLOADS) == WORKLOADS


def test_run_names_the_workloads_of_a_world_that_has_not_the_one_that_is_wanted(
    raftmq: CommandLine,
) -> None:
    ended = raftmq("chaos", "run", "--world", "real", "--workload", "members", "--seed", "1")
    assert ended.code == ExitCode.USAGE
    assert "no workload 'members' in the real world, only log" in ended.stderr


# run


@pytest.mark.usefixtures("simulated_world")
def test_run_of_good_seeds_ends_with_0_and_prints_only_a_summary(raftmq: CommandLine) -> None:
    ended = raftmq(*PAUSES, "--seeds", "1..4")
    assert ended.code == ExitCode.OK
    assert ended.stdout == ""
    assert "4 seeds: 4 valid" in ended.stderr


def test_longest_of_a_campaign_is_that_of_one_run_and_is_printed(
    raftmq: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(schedule: Schedule) -> Outcome:
        counts = {TO_SERVICE: 1000 * schedule.seed, "acked": 10}
        return replace(play(schedule), counts=counts)

    monkeypatch.setattr(campaign, "_runner", lambda plan, mutant: timed)
    ended = raftmq(*PAUSES, "--seeds", "1..3", "-o", "json")
    assert json.loads(ended.stdout)["counts"] == {"acked": 30, TO_SERVICE: 3000}
    ended = raftmq(*PAUSES, "--seeds", "1..3")
    assert "longest from heal to service 3.00 s" in ended.stderr


@pytest.mark.usefixtures("simulated_world")
def test_broken_promise_ends_with_5_names_it_and_prints_a_line_that_replays_it(
    raftmq: CommandLine,
) -> None:
    ended = raftmq(*KILLS, "--seed", "3")
    assert ended.code == ExitCode.VIOLATION
    assert "lost-middle: log lost one" in ended.stdout
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("replay: ")]
    words = shlex.split(line.removeprefix("replay: "))
    again = raftmq(*words[1:], "-o", "json")
    assert again.code == ExitCode.VIOLATION
    assert again.json["schedule"]["seed"] == 3
    assert again.json["violations"][0]["name"] == "lost-middle"


@pytest.mark.usefixtures("simulated_world")
def test_run_as_json_counts_verdicts_faults_and_coverage(raftmq: CommandLine) -> None:
    ended = raftmq(*KILLS, "--seeds", "1..5", "-o", "json")
    found = ended.json
    assert found["seeds"] == 5
    assert sum(found["verdicts"].values()) == 5
    assert found["simulated_seconds"] == 100
    assert found["faults"]["kill"] >= sum(row[4] for row in found["coverage"]) > 0
    assert [one["seed"] for one in found["bad"]] == sorted(one["seed"] for one in found["bad"])
    assert found["counts"]["acked"] == 50


def test_page_of_a_test_that_failed_stays_as_the_test_wrote_it(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "kept" / "test_it"
    folder.mkdir(parents=True)
    write_parquet(history(lost=1), folder / "history.parquet")
    (folder / "node-1.log").write_text("a log")
    (folder / "report.html").write_text("with faults")
    for path in (folder, folder.parent):
        ended = raftmq.ok("chaos", "report", str(path))
        assert ended.stdout == f"as the test wrote it  {folder / 'report.html'}\n"
    raftmq.ok("chaos", "report", str(folder), "--to", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text() == "with faults"


@pytest.mark.usefixtures("simulated_world")
def test_vacuous_run_does_not_end_with_0(raftmq: CommandLine) -> None:
    ended = raftmq("chaos", "run", "--seed", "1", "--time", "500ms", "--jobs", "1")
    assert ended.code == ExitCode.FAILED
    assert "vacuous: no fault of the schedule had an effect" in ended.stdout


@pytest.mark.usefixtures("simulated_world")
def test_artifacts_hold_the_run_its_history_and_its_page(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    raftmq(*KILLS, "--seed", "3", "--artifacts", str(tmp_path))
    folder = tmp_path / "sim-log-seed-3"
    names = {file.name for file in folder.iterdir()}
    assert names == {"outcome.json", "history.parquet", "report.html", "replay.txt"}
    assert json.loads((tmp_path / "campaign.json").read_text())["verdicts"] == {"invalid": 1}
    again = raftmq("chaos", "replay", str(folder))
    assert again.code == ExitCode.VIOLATION


@pytest.mark.usefixtures("simulated_world")
def test_run_that_cannot_be_kept_is_refused_before_it_is_played(
    raftmq: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Formerly the run was played and its verdict lost: exit code 1, and two lines about pip.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ended = raftmq(*KILLS, "--seed", "3", "--artifacts", str(tmp_path / "kept"))
    assert ended.code == ExitCode.FAILED
    assert "pyarrow is not installed" in ended.stderr
    assert "pip install '.[chaos]'" in ended.stderr
    assert not (tmp_path / "kept").exists()
    assert raftmq(*KILLS, "--seed", "3").code == ExitCode.VIOLATION


@pytest.mark.usefixtures("simulated_world")
def test_single_run_is_kept_though_it_is_good_and_those_of_a_campaign_are_not(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    ended = raftmq.ok(*PAUSES, "--seed", "1", "--artifacts", str(tmp_path / "one"))
    assert f"kept in {tmp_path / 'one' / 'sim-log-seed-1'}" in ended.stderr
    assert "VALID" in (tmp_path / "one" / "sim-log-seed-1" / "report.html").read_text()
    raftmq.ok(*PAUSES, "--seeds", "1..2", "--artifacts", str(tmp_path / "two"))
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["campaign.json"]


@pytest.mark.usefixtures("simulated_world")
def test_shrink_leaves_the_one_fault_that_matters(raftmq: CommandLine) -> None:
    arguments = ("chaos", "run", "--faults", "kill,pause,delay", "--jobs", "1")
    plan = Plan(faults=("kill", "pause", "delay"))
    drawn = {seed: {event.fault for event in plan.schedule(seed).events} for seed in range(50)}
    first = next(seed for seed in drawn if {"kill", "pause"} <= drawn[seed])
    ended = raftmq(*arguments, "--seed", str(first), "--shrink", "-o", "json")
    events = ended.json["shrunk"]["schedule"]["events"]
    assert [event[1] for event in events] == ["kill"]
    schedule = json.dumps(ended.json["bad"][0]["schedule"])
    alone = raftmq("chaos", "shrink", schedule)
    assert alone.code == ExitCode.VIOLATION
    assert "shrunk to 1 fault:" in alone.stdout


@pytest.mark.usefixtures("simulated_world")
def test_schedule_that_breaks_nothing_is_not_shrunk(raftmq: CommandLine) -> None:
    schedule = Plan(faults=("pause",), seconds=20).schedule(1).to_json()
    ended = raftmq("chaos", "shrink", schedule)
    assert ended.code == ExitCode.FAILED
    assert "breaks nothing" in ended.stderr


@pytest.mark.usefixtures("simulated_world")
def test_replay_of_many_times_compares_traces(
    raftmq: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = Plan(faults=("pause",), seconds=20).schedule(1).to_json()
    same = raftmq("chaos", "replay", schedule, "--times", "3", "-o", "json")
    assert same.code == ExitCode.OK
    assert len(same.json["trace_hashes"]) == 1

    numbers = count()
    monkeypatch.setattr(
        "raftmq.chaos.campaign._runner",
        lambda plan, mutant: lambda *given: replace(play(*given), trace_hash=str(next(numbers))),
    )
    other = raftmq("chaos", "replay", schedule, "--times", "3")
    assert other.code == ExitCode.FAILED
    assert "3 plays of one schedule went 3 ways" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--seeds", "5..1"), "goes backwards"),
        (("--seeds", "1.."), "give --budget too"),
        (("--seeds", "some"), "is none of 1..100"),
        (("--seed", "1", "--seeds", "1..2"), "exclude each other"),
        (("--seed", "1", "--faults", "kil"), "did you mean kill"),
        (("--seed", "1", "--faults", "partitions"), "did you mean partition"),
        (("--seed", "1", "--faults", "no-descriptors"), "worlds that can: real"),
        (("--seed", "1", "--faults", "client", "--world", "core"), "no fault of the family client"),
        (("--seed", "1", "--workload", "pop", "--world", "core"), "core world has no clients"),
        (("--seed", "1", "--network", "proxy", "--world", "core"), "only real processes have a"),
        (("--seed", "1", "--network", "namespaces"), "leave out --network, or give --world real"),
        (("--seed", "1", "--workload", "flows", "--world", "real"), "name one of them with --work"),
        (("--seed", "1", "--liveness", "--world", "core"), "a seed of the core world decides"),
        (("--seed", "1", "--mutant", "44", "--world", "real"), "worlds that can: core, sim"),
    ],
)
def test_wrong_argument_is_a_usage_error_that_says_what_is_right(
    raftmq: CommandLine, arguments: tuple[str, ...], told: str
) -> None:
    ended = raftmq("chaos", "run", "--jobs", "1", *arguments)
    assert ended.code == ExitCode.USAGE
    assert told in ended.stderr


@pytest.mark.usefixtures("simulated_world")
def test_families_of_faults_are_drawn_from(raftmq: CommandLine) -> None:
    arguments = ("--faults", "partition,kill", "--seeds", "1..30", "--jobs", "1", "-o", "json")
    drawn = raftmq("chaos", "run", *arguments).json["faults"].keys()
    assert {"kill", "isolate-leader", "cut-clients"} <= drawn
    assert drawn <= {"kill", *FAMILIES["partition"]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"seed": 1, "events": []}', "it has no events, seconds, seed"),
        ('{"seed": 1, "seconds": 9, "events": [[1, "moon", [], 0, 0]]}', "no fault 'moon'"),
        (
            '{"seed": 1, "seconds": 9, "events": [[1, "clone", [1], 0, 0]]}',
            "'clone' hits two nodes",
        ),
        ('{"seed": 1, "seconds": 9, "events": [[1, "kill"]]}', "an event is [at_ms, fault"),
        ('{"seed": 1, ', "this is no schedule"),
        ("found/sim-log-seed-7", "No such file or directory"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_what_is_no_schedule_is_refused_with_what_would_be_one(
    raftmq: CommandLine, command: str, text: str, told: str
) -> None:
    ended = raftmq("chaos", command, text)
    assert ended.code == ExitCode.USAGE
    assert told in ended.stderr
    assert "--artifacts" in ended.stderr


@pytest.mark.parametrize("command", ["replay", "shrink"])
@pytest.mark.parametrize("fault", ["kill", "split-majority"])
def test_node_that_the_core_world_lacks_is_refused_with_those_it_has(
    raftmq: CommandLine, command: str, fault: str
) -> None:
    # Formerly a KeyError of the harness, reported as a broken promise.
    text = f'{{"seed": 7, "seconds": 6, "events": [[1000, "{fault}", [2, 9], 1000, 0]]}}'
    ended = raftmq("chaos", command, text, "--world", "core")
    assert (ended.code, ended.stdout) == (ExitCode.USAGE, "")
    assert f"1.000s {fault} node 2,9 for 1.000s: there is no node 9" in ended.stderr
    assert "nodes 1 to 3 and the spares 4 to 5" in ended.stderr
    assert "--nodes" in ended.stderr.partition("fix:")[2]


def test_node_is_there_if_the_cluster_is_large_enough(raftmq: CommandLine) -> None:
    text = '{"seed": 7, "seconds": 6, "events": [[1000, "kill", [9], 1000, 0]]}'
    played = raftmq("chaos", "replay", text, "--world", "core", "--nodes", "9", "-o", "json").json
    assert played["violations"] == []


@pytest.mark.parametrize("name", ["", "outcome.json", "replay.txt"])
def test_kept_run_is_played_as_it_was(raftmq: CommandLine, tmp_path: Path, name: str) -> None:
    kept = ("--artifacts", str(tmp_path))
    arguments = ("--world", "core", "--mutant", "28", "--seeds", "0..2", "--time", "20s", *kept)
    first = raftmq("chaos", "run", *arguments, "-o", "json").json["bad"][0]
    place = str(Path(first["folder"]) / name)
    again = raftmq("chaos", "replay", place, "-o", "json").json
    assert again["trace_hash"] == first["trace_hash"]
    assert again["replay"] == first["replay"]
    # The command line has precedence over the file.
    other = raftmq("chaos", "replay", place, "--mutant", "44", "-o", "json").json
    assert "--mutant 44" in other["replay"] or not other["violations"]


def test_file_that_holds_no_run_is_refused(raftmq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text("[1, 2]")
    ended = raftmq("chaos", "replay", str(tmp_path))
    assert ended.code == ExitCode.USAGE
    assert "it has no events, seconds, seed" in ended.stderr


def test_folder_of_runs_is_named_as_one(raftmq: CommandLine, tmp_path: Path) -> None:
    ended = raftmq("chaos", "replay", str(tmp_path))
    assert ended.code == ExitCode.USAGE
    assert "this folder is not that of a run: it has no outcome.json" in ended.stderr
    for seed in ("seed-7", "seed-9"):
        (tmp_path / seed).mkdir()
        (tmp_path / seed / "outcome.json").write_text("{}")
    ended = raftmq("chaos", "replay", str(tmp_path))
    assert ended.code == ExitCode.USAGE
    assert f"this folder holds 2 runs: name one, as {tmp_path / 'seed-7'}" in ended.stderr


@pytest.mark.usefixtures("simulated_world")
def test_seeds_without_end_stop_when_the_budget_is_used_up(raftmq: CommandLine) -> None:
    ended = raftmq(*PAUSES, "--seeds", "1..", "--budget", "200ms", "-o", "json")
    assert ended.json["seeds"] > 0
    assert not ended.json["verdicts"].get("invalid")


def test_interrupted_run_prints_what_it_has_and_ends_with_130(
    raftmq: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays = iter(range(3))

    def interrupted(schedule: Schedule) -> Outcome:
        if next(plays) == 2:
            raise KeyboardInterrupt
        return play(schedule)

    monkeypatch.setattr("raftmq.chaos.campaign._runner", lambda plan, mutant: interrupted)
    ended = raftmq(*PAUSES, "--seeds", "1..9", "-o", "json")
    assert ended.code == ExitCode.INTERRUPTED
    assert ended.json["seeds"] == 2
    assert "interrupted" in ended.stderr


def hear_ctrl_c() -> None:
    """A shell that runs the tests in its background has them ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


LONG = ("run", "--seeds", "1..8", "--time", "600s")


@contextmanager
def playing_in_workers(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own, once its workers play."""
    with subprocess.Popen(
        [sys.executable, "-m", "raftmq", "chaos", *command, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    ) as running:
        listed = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        try:
            # Two workers, and the tracker of their shared memory.
            wait_until(lambda: len(listed.read_text().split()) >= 3, what="workers")
            time.sleep(3)
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.process
@pytest.mark.parametrize("command", [LONG, ("soak",)])
def test_ctrl_c_ends_seeds_under_way_in_all_processes(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """A terminal tells all of its processes, twice if a person is impatient."""
    words = ["--book", str(tmp_path / "soak.json")] if command == ("soak",) else []
    with playing_in_workers(*command, *words) as running:
        for _ in range(2):
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGINT)
            time.sleep(0.5)
        _, err = running.communicate(timeout=30)
    assert b"interrupted: what was " in err, err
    assert running.returncode == ExitCode.INTERRUPTED


@pytest.mark.process
def test_workers_end_with_the_first_process_however_it_ends() -> None:
    with playing_in_workers(*LONG) as running:
        running.kill()
        # Its output ends when the last process that could write there has ended.
        running.communicate(timeout=30)


# check


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    write_parquet(history(lost=0), tmp_path / "good.parquet")
    write_parquet(history(lost=2), tmp_path / "bad.parquet")
    return tmp_path


def test_check_of_a_folder_judges_each_history_and_ends_with_5(
    raftmq: CommandLine, recorded: Path
) -> None:
    ended = raftmq("chaos", "check", str(recorded), "-o", "json")
    assert ended.code == ExitCode.VIOLATION
    verdicts = {Path(one["history"]).name: one["verdict"] for one in ended.json}
    assert verdicts == {"bad.parquet": "invalid", "good.parquet": "valid"}


def test_check_of_a_good_history_ends_with_0_and_explains_before_the_table(
    raftmq: CommandLine, recorded: Path
) -> None:
    ended = raftmq("chaos", "check", str(recorded / "good.parquet"), "--explain")
    assert ended.code == ExitCode.OK
    assert ended.stdout.index("total-queue: valid") < ended.stdout.index("HISTORY")
    plain = raftmq("chaos", "check", str(recorded / "good.parquet"), "--explain", "-o", "json")
    assert plain.json[0]["verdict"] == "valid"
    assert "total-queue: valid" in plain.stderr


def test_check_explains_and_writes_pages(raftmq: CommandLine, recorded: Path) -> None:
    pages = recorded / "pages"
    ended = raftmq(
        "chaos", "check", str(recorded / "bad.parquet"), "--explain", "--report", str(pages)
    )
    assert ended.code == ExitCode.VIOLATION
    assert "lost-middle" in ended.stdout
    assert ANOMALIES["lost-middle"] in ended.stdout
    assert "INVALID" in (pages / "bad.html").read_text()


def test_pages_of_files_with_one_name_in_many_folders_are_kept_apart(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    for place, lost in (("one", 0), ("two", 2)):
        (tmp_path / "kept" / place).mkdir(parents=True)
        write_parquet(history(lost=lost), tmp_path / "kept" / place / "history.parquet")
    pages = tmp_path / "pages"
    ended = raftmq("chaos", "check", str(tmp_path / "kept"), "--report", str(pages), "-o", "json")
    assert len(ended.json) == 2
    assert {page.name for page in pages.iterdir()} == {"one-history.html", "two-history.html"}
    assert "INVALID" in (pages / "two-history.html").read_text()


@pytest.mark.parametrize(
    ("others", "code"), [("good", ExitCode.USAGE), ("bad", ExitCode.VIOLATION)]
)
def test_file_that_is_no_history_does_not_hide_the_others(
    raftmq: CommandLine, recorded: Path, others: str, code: ExitCode
) -> None:
    broken = recorded / "broken.parquet"
    broken.write_bytes((recorded / "good.parquet").read_bytes()[:200])
    ended = raftmq("chaos", "check", str(broken), str(recorded / f"{others}.parquet"), "-o", "json")
    assert ended.code == code
    assert [Path(one["history"]).stem for one in ended.json] == [others]
    assert "broken.parquet" in ended.stderr
    assert "fix:" in ended.stderr


def test_check_that_cannot_decide_ends_with_1(raftmq: CommandLine, tmp_path: Path) -> None:
    write_parquet(Recorder().history(), tmp_path / "empty.parquet")
    ended = raftmq("chaos", "check", str(tmp_path))
    assert ended.code == ExitCode.FAILED
    assert "vacuous" in ended.stdout or "empty" in ended.stdout


@pytest.mark.parametrize("name", ["nothing.txt", "folder"])
def test_check_of_what_is_no_history_is_a_usage_error(
    raftmq: CommandLine, tmp_path: Path, name: str
) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("three blind mice\n")
    ended = raftmq("chaos", "check", str(tmp_path / name))
    assert ended.code == ExitCode.USAGE
    assert "fix:" in ended.stderr


# report


@pytest.mark.usefixtures("simulated_world")
def test_report_writes_the_pages_of_all_kept_runs_again(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    raftmq(*KILLS, "--seeds", "3..6", "--artifacts", str(tmp_path))
    pages = sorted(tmp_path.glob("*/report.html"))
    before = [page.read_bytes() for page in pages]
    for page in pages:
        page.unlink()
    ended = raftmq("chaos", "report", str(tmp_path))
    assert ended.code == ExitCode.OK
    assert len(before) > 1
    assert [page.read_bytes() for page in pages] == before


def test_report_of_a_history_goes_beside_it(raftmq: CommandLine, recorded: Path) -> None:
    ended = raftmq("chaos", "report", str(recorded / "bad.parquet"))
    assert ended.code == ExitCode.OK
    assert "lost-middle" in (recorded / "bad.html").read_text()


def test_report_of_a_folder_without_runs_says_how_to_keep_some(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    ended = raftmq("chaos", "report", str(tmp_path))
    assert ended.code == ExitCode.USAGE
    assert "--artifacts" in ended.stderr


# list


def test_list_of_faults_has_each_with_its_sentence(raftmq: CommandLine) -> None:
    found = raftmq("chaos", "list", "faults", "-o", "json").json
    assert {row["name"]: row["what"] for row in found} == {
        name: fault.what for name, fault in FAULTS.items()
    }


def test_list_of_nothing_in_particular_counts_what_the_lists_hold(raftmq: CommandLine) -> None:
    found = {row["list"]: row["entries"] for row in raftmq("chaos", "list", "-o", "json").json}
    assert found["faults"] == len(FAULTS)
    assert found["invariants"] == len(INVARIANTS)
    for name, entries in found.items():
        assert len(raftmq("chaos", "list", name, "-o", "json").json) == entries > 0
    assert "mutants" in raftmq("chaos", "list").stdout


def test_list_of_faults_of_one_world_has_only_those(raftmq: CommandLine) -> None:
    found = raftmq("chaos", "list", "faults", "--world", "core", "-o", "json").json
    assert [row["name"] for row in found] == [fault.name for fault in of_world(World.CORE)]


def test_lists_of_invariants_and_anomalies_are_whole(raftmq: CommandLine) -> None:
    invariants = raftmq("chaos", "list", "invariants", "-o", "json").json
    assert [row["number"] for row in invariants] == list(INVARIANTS)
    anomalies = raftmq("chaos", "list", "anomalies", "-o", "json").json
    assert [row["name"] for row in anomalies] == list(ANOMALIES)


def test_list_of_checkers_has_a_sentence_for_each(raftmq: CommandLine) -> None:
    found = raftmq("chaos", "list", "checkers", "-o", "json").json
    assert {"check_total_queue", "check_linearizability"} <= {row["name"] for row in found}
    assert all(row["what"].endswith(".") for row in found)


def test_list_of_mutants_has_a_killer_or_a_reason_for_each(raftmq: CommandLine) -> None:
    found = raftmq("chaos", "list", "mutants", "-o", "json").json
    assert len(found) > 40
    assert all(bool(row["killers"]) != bool(row["cannot be planted"]) for row in found)


def test_planted_bug_is_found_in_the_core_world_and_its_line_finds_it_again(
    raftmq: CommandLine,
) -> None:
    arguments = ("chaos", "run", "--world", "core", "--mutant", "28", "--seeds", "0..2")
    ended = raftmq(*arguments, "--jobs", "1", "--time", "20s", "-o", "json")
    assert ended.code == ExitCode.VIOLATION
    first = ended.json["bad"][0]
    assert first["violations"][0]["name"] == "R14"
    words = shlex.split(first["replay"])
    assert words[words.index("--mutant") + 1] == "28"
    again = raftmq(*words[1:], "--times", "2", "-o", "json")
    assert again.code == ExitCode.VIOLATION
    assert again.json["trace_hashes"] == [first["trace_hash"]]
    # Without the bug the same schedule is clean.
    words = [word for word in words[1:] if word not in ("--mutant", "28")]
    assert raftmq(*words).code == ExitCode.OK


@pytest.mark.parametrize(
    ("mutant", "told"), [("no-such-bug", "there is no mutant"), ("33", "cannot be planted")]
)
def test_bug_that_cannot_be_planted_is_refused(raftmq: CommandLine, mutant: str, told: str) -> None:
    ended = raftmq("chaos", "run", "--world", "core", "--seed", "1", "--mutant", mutant)
    assert ended.code == ExitCode.USAGE
    assert told in ended.stderr


def test_workers_give_the_same_as_this_process(raftmq: CommandLine) -> None:
    arguments = ("chaos", "run", "--world", "core", "--seeds", "1..3", "--time", "3s")
    one = raftmq(*arguments, "--jobs", "1", "-o", "json").json
    two = raftmq(*arguments, "--jobs", "2", "-o", "json").json
    for name in ("verdicts", "faults", "counts", "coverage", "simulated_seconds"):
        assert one[name] == two[name], name
