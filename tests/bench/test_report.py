"""Sentences and ratios of the result files come from the rows."""

import dataclasses
import json

import pytest

from bench import report, results, standing
from bench.scenarios import SCENARIOS
from bench.system import READ_ALIKE


def row(scenario: str, system: str, rate: float, p50_ms: float | None = 1.0) -> results.Row:
    return {
        "scenario": scenario,
        "system": system,
        "version": "1",
        "settings": "defaults",
        "messages": round(2 * rate),
        "seconds": 2.0,
        "messages_per_s": rate,
        "mb_per_s": rate / 10.0,
        "p50_ms": p50_ms,
        "p99_ms": p50_ms,
        "server_cpu_s_per_million": 1.5,
        "server_mib": 80.0,
        "ratio_to_floor": None,
        "rounds": 1,
    }


ROWS = results.with_ratios(
    [
        row("single-200B", "nats", 3000.0, 0.4),
        row("single-200B", "floor", 1500.0, 0.6),
        row("single-200B", "raftmq", 1200.0, 0.8),
        row("produce-100B", "raftmq", 800.0),
        row("produce-100B", "floor", 1000.0),
        row("produce-100B", "nats", 100.0, 2.0),
        row("consume-100B", "raftmq", 1000.0, None),
    ]
)


def result(rows: list[results.Row], skipped: list[results.Skip]) -> results.Result:
    return results.Result(
        date="2026-11-20",
        command="make bench",
        seconds=6.0,
        rounds=1,
        machine={"processor": "2 x test"},
        rows=rows,
        skipped=skipped,
    )


def gap(system: str, *gaps_ms: float, failed: int = 0) -> results.Gap:
    return {
        "system": system,
        "version": "1",
        "settings": "",
        "gaps_ms": list(gaps_ms),
        "failed": failed,
    }


def test_ratio_is_to_the_floor_of_the_same_scenario() -> None:
    ratios = {(each["scenario"], each["system"]): each["ratio_to_floor"] for each in ROWS}
    assert ratios["single-200B", "nats"] == 2.0
    assert ratios["produce-100B", "raftmq"] == 0.8


def test_ratio_is_null_without_a_floor() -> None:
    assert results.with_ratios([row("single-200B", "nats", 1.0)])[0]["ratio_to_floor"] is None


def test_losses_name_every_peer_that_is_faster_and_no_floor() -> None:
    assert standing.losses(ROWS) == [
        (
            "single-200B: nats 2.50 times raftmq's rate; nats 2.00 times shorter p50; "
            "nats 2.00 times shorter p99."
        )
    ]


def test_losses_name_peers_whose_slowest_answers_are_quicker() -> None:
    rows = [row("single-200B", name, rate) for name, rate in (("raftmq", 9.0), ("nats", 1.0))]
    rows[0]["p99_ms"], rows[1]["p99_ms"] = 6.0, 4.0
    assert standing.losses(rows) == ["single-200B: nats 1.50 times shorter p99."]


def test_page_without_peers_claims_no_place_among_them() -> None:
    page = report.markdown(result([row("single-200B", "raftmq", 9.0)], []))
    assert "No peer was measured in this run." in page
    assert "Nowhere" not in page


def test_page_tells_which_reads_were_short_and_which_amounts_are_scaled() -> None:
    rows = [row("consume-1MiB", name, 9.0) for name in ("raftmq", "kafka")]
    rows[1]["seconds"] = 0.318
    page = report.markdown(dataclasses.replace(result(rows, []), scale=0.01))
    assert "read in less than a second: consume-1MiB by kafka (0.32 s)." in page
    assert "messages are multiplied by 0.01." in page


def test_fastest_peer_of_each_scenario_stands_beside_raftmq() -> None:
    rows = [*ROWS, row("produce-100B", "rabbitmq", 90.0)]
    assert standing.best_peers(rows) == [
        ("produce-100B", 800.0, "nats", 100.0),
        ("single-200B", 1200.0, "nats", 3000.0),
    ]
    page = report.markdown(result(rows, []))
    assert "| One awaited send at a time, 200 B | 1,200 | nats | 3,000 | **0.40** |" in page
    assert page.index("raftmq beside the fastest peer") < page.index("(`produce-100B`)")


def test_row_of_another_system_of_raftmqs_is_no_peer() -> None:
    rows = [row("ordered-100B", "raftmq", 100.0), row("ordered-100B", "raftmq-assigned", 400.0)]
    assert standing.best_peers(rows) == []
    assert standing.losses(rows) == []


def test_page_says_how_long_each_row_was_measured() -> None:
    reading: results.Row = {**row("consume-100B", "raftmq", 1000.0), "seconds": 0.64}
    page = report.markdown(result([reading], []))
    assert "| **raftmq** | 1,000 | 100.0 | 1.00 | 1.00 | 0.6 | 1.50 | 80 | - | 1 |" in page


def test_rows_of_older_results_have_no_length() -> None:
    old = row("consume-100B", "raftmq", 1000.0)
    del old["seconds"], old["messages"]
    page = report.markdown(result([old], []))
    assert "| **raftmq** | 1,000 | 100.0 | 1.00 | 1.00 | - | 1.50 |" in page


@pytest.mark.parametrize(
    ("commits", "said"),
    [
        ([], "All systems ran in one run."),
        (["a1b2"], "All systems ran in one run, at commit a1b2."),
        (["a1b2", "c3d4+"], "Measured at commits a1b2, c3d4+: rows of older code are among them."),
    ],
)
def test_page_names_the_commits_that_were_measured(commits: list[str], said: str) -> None:
    made = dataclasses.replace(result(ROWS, []), commits=commits)
    assert said in report.markdown(made)


def test_targets_are_judged_in_their_own_direction() -> None:
    popped: results.Row = {**row("pop-100B", "raftmq", 1.0), "figures": {READ_ALIKE: 0.47}}
    rows = [*ROWS, row("single-200B", "nats-fsync", 1000.0, 0.9), popped]
    gaps = [gap("raftmq", 130.0), gap("kafka", 900.0), gap("nats", 300.0)]
    verdicts = {claim: is_met for claim, _, _, is_met in standing.targets(rows, gaps)}
    assert verdicts == {
        "produce-100B: rate over the floor's, at least": True,
        "consume-100B: rate over raftmq's own produce, at least": False,
        "single-200B: p50 over the floor's, at most": False,
        "single-200B: p50 over that of nats-fsync, the best peer that syncs a majority, at most": (
            True
        ),
        "pop-100B: rate over reading in like batches, at least": False,
        "failover: silence over that of nats, the quickest peer, at most": True,
    }


def test_costs_name_the_cheaper_peers_and_no_floor() -> None:
    rows: list[results.Row] = [
        {**row("produce-100B", name, 1.0), "server_cpu_s_per_million": cpu, "server_mib": mib}
        for name, cpu, mib in (("raftmq", 4.0, 200.0), ("nats", 1.0, 100.0), ("kafka", 3.0, 900.0))
    ]
    assert standing.lost_costs([*rows, row("produce-100B", "floor", 9.0)]) == [
        (
            "produce-100B: less processor time a message: nats 0.25, kafka 0.75 of raftmq's; "
            "less memory: nats 0.50 of raftmq's."
        )
    ]


def test_median_row_is_one_that_was_measured() -> None:
    rounds = [row("single-200B", "floor", rate) for rate in (30.0, 10.0, 20.0, 40.0)]
    assert results.median_row(rounds) == rounds[2] | {"rounds": 4}


def test_page_says_where_raftmq_loses_and_what_was_skipped() -> None:
    skip: results.Skip = {"system": "rabbitmq", "scenario": None, "reason": "not installed: x"}
    page = report.markdown(result(ROWS, [skip]))
    assert "nats 2.50 times raftmq's rate" in page
    assert "- rabbitmq: not installed: x" in page
    assert "| **raftmq** | 800 |" in page
    assert page.index("produce-100B`)") < page.index("single-200B`)")


def test_page_without_raftmq_claims_nothing_about_it() -> None:
    page = report.markdown(result([each for each in ROWS if each["system"] != "raftmq"], []))
    assert "raftmq was not part of this run" in page
    assert "Where raftmq loses" not in page


def test_rows_have_the_published_fields_and_are_json() -> None:
    assert set(json.loads(json.dumps(ROWS))[0]) == {
        "scenario", "system", "version", "settings",
        "messages", "seconds", "messages_per_s", "mb_per_s", "p50_ms", "p99_ms",
        "server_cpu_s_per_million", "server_mib", "ratio_to_floor", "rounds",
    }  # fmt: skip
    assert {each["scenario"] for each in ROWS} <= set(SCENARIOS)


def test_page_shows_failovers_with_the_shortest_median_first() -> None:
    rows = [gap("slow", 900.0, 5000.4, 800.0, failed=4), gap("quick", 200.0, 100.0, 850.0)]
    gaps = results.Gaps(date="2026-11-27", command="python -m bench.failover", rows=rows)
    page = report.markdown(result(ROWS, []), gaps)
    quick, slow = "| quick | 200 | 100 | 850 | 3 | 0 |", "| slow | 900 | 800 | 5,000 | 3 | 4 |"
    assert f"{quick}\n{slow}\n" in page
    assert "## Failover" not in report.markdown(result(ROWS, []))
    assert "on 2026-11-27.\n" in page
    gaps["commit"] = "a1b2"
    assert "on 2026-11-27, at commit a1b2.\n" in report.markdown(result(ROWS, []), gaps)


def grown(system: str, queues: float, cpu: float, note: str = "") -> results.Row:
    made = row("queues-20000", system, 1000.0)
    made["figures"] = {"queues": queues, "CPU at rest %": cpu}
    made["note"] = note
    return made


def test_figures_of_a_scenario_that_grows_are_a_table_with_what_was_not_reached() -> None:
    rows = [grown("raftmq", 20_000, 4.5), grown("kafka", 3_000, 50.0, "60 s were over")]
    page = report.markdown(result(rows, []))
    assert "| system | queues | CPU at rest % |\n|---|---:|---:|\n| raftmq | 20,000 | 4.5 |" in page
    assert "- kafka: 60 s were over." in page
    assert "- raftmq:" not in page


def test_losses_name_the_figures_and_the_memory_in_which_a_peer_is_better() -> None:
    rows = [grown("raftmq", 20_000, 4.5), grown("nats", 20_000, 1.5), grown("kafka", 30_000, 50.0)]
    rows[1]["server_mib"] = 40.0
    assert standing.losses(rows) == [
        "queues-20000: CPU at rest %: raftmq 4.5, nats 1.5.",
        "queues-20000: MiB: raftmq 80, nats 40.",
        "queues-20000: queues: raftmq 20,000, kafka 30,000.",
    ]


def test_row_without_figures_has_no_second_table() -> None:
    page = report.markdown(result(ROWS, []))
    assert "CPU at rest" not in page
