"""The core simulator: determinism, clean seeds, every fault, liveness, damage."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from raftmq.chaos.campaign import Plan
from raftmq.chaos.core import STEADY, Run, Settings, draw_schedule, draw_settings, run
from raftmq.chaos.core.faults.effects import EFFECTS
from raftmq.chaos.core.faults.nemesis import HANDLERS
from raftmq.chaos.faults import FAULTS, Aim, Event, Schedule, World, of_world
from raftmq.chaos.faults.arena import at_once
from raftmq.checkers import INVARIANTS, Verdict

CALM = Schedule(1, 8.0, ())


def test_every_fault_of_this_world_has_a_handler_and_no_other() -> None:
    assert set(HANDLERS) == {fault.name for fault in of_world(World.CORE)}


def test_clean_seeds_keep_every_promise() -> None:
    total: Counter[str] = Counter()
    for seed in range(24):
        outcome = run(draw_schedule(seed, seconds=12))
        assert outcome.is_good, str(outcome)
        total.update(outcome.counts)
    assert total["elections"] > 24
    assert total["acked"] > 24 * 10
    assert total["crashes"] >= 24


def test_equal_seeds_give_equal_traces_in_two_processes() -> None:
    program = (
        "from raftmq.chaos.core import draw_schedule, run\n"
        "for seed in range(40, 43):\n"
        "    print(run(draw_schedule(seed, seconds=6)).trace_hash)\n"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(set(traces[0].split())) == 3


def test_schedule_read_back_from_json_plays_the_same() -> None:
    schedule = draw_schedule(3, seconds=10)
    again = Schedule.from_json(schedule.to_json())
    assert run(again).trace_hash == run(schedule).trace_hash


def every_few_seconds(name: str) -> Schedule:
    """The fault three times, on changing nodes, as a schedule of four nodes would have it."""
    fault = FAULTS[name]
    events = []
    for number, at_ms in enumerate((1_500, 3_500, 5_500)):
        order = [(number + place) % 4 + 1 for place in range(4)]
        count = {Aim.PAIR: 2, Aim.ALL: 4, Aim.MAJORITY: 3, Aim.LEADER: 0}.get(fault.aim, 1)
        level = fault.levels[number % len(fault.levels)] if fault.levels else 0.0
        events.append(Event(at_ms, name, tuple(order[:count]), 900 * fault.lasts, level))
    return Schedule(5, 12.0, tuple(events))


FOUR = Settings(nodes=4, proposals_per_second=10.0, segment_bytes=4096, cache_bytes=4096)

NEEDS_MORE = {
    "rejoin": Event(1_200, "remove-voter", (4,)),
    "return": Event(1_200, "remove-voter", (4,)),
    # A level member reads nothing: only the leader reads, for a new member.
    "read-error": Event(3_600, "add-voter", (4,)),
}
"""Events that give a fault something to strike."""


@pytest.mark.parametrize("name", sorted(HANDLERS))
def test_fault_strikes_and_no_promise_breaks(name: str) -> None:
    schedule = every_few_seconds(name)
    if name in NEEDS_MORE:
        events = sorted((NEEDS_MORE[name], *schedule.events))
        schedule = schedule._replace(events=tuple(events))
    outcome = run(schedule, FOUR)
    assert outcome.is_good, str(outcome)
    assert outcome.struck.get(name, 0) >= 1, [str(one) for one in outcome.timeline]
    assert {situation.fault for situation in outcome.coverage} >= {name}


def test_fault_has_a_known_effect() -> None:
    assert set(EFFECTS) == set(HANDLERS)


def test_handler_that_does_nothing_is_not_counted_as_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = dict.fromkeys(HANDLERS, at_once(lambda arena, event: None))
    monkeypatch.setattr("raftmq.chaos.core.faults.nemesis.HANDLERS", nothing)
    events = [event for name in sorted(HANDLERS) for event in every_few_seconds(name).events]
    outcome = run(Schedule(5, 12.0, tuple(sorted(events))), FOUR)
    assert outcome.is_good, str(outcome)
    assert not outcome.struck
    assert not outcome.coverage
    assert {f"without effect: {name}" for name in HANDLERS} <= set(outcome.counts)


def test_liveness_mode_progresses_with_a_quorum_only() -> None:
    for seed in range(6):
        settings = replace(draw_settings(seed), is_liveness=True, nodes=3)
        run_ = Run(draw_schedule(seed, seconds=12)._replace(events=()), settings)
        outcome = run_.play()
        assert outcome.is_good, str(outcome)
        assert sum(node.is_up for node in run_.cluster.nodes.values()) == 2


def test_without_faults_nobody_is_elected_twice() -> None:
    outcome = run(CALM, STEADY)
    assert outcome.verdict is Verdict.VALID
    assert outcome.counts["elections"] == 1
    assert outcome.counts.get("crashes", 0) == 0


def test_checks_say_how_often_they_compared() -> None:
    outcome = run(every_few_seconds("kill"), FOUR)
    numbers = {name.split()[0]: count for name, count in outcome.compared.items()}
    assert set(numbers) == {name for name in INVARIANTS if name[0] in "RL"}
    assert numbers["R13"] > 50
    assert numbers["L8"] >= outcome.counts["acked"] > 50
    assert numbers["R1"] == outcome.counts["elections"]


def test_run_without_a_comparison_that_is_due_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.chaos.core.checks.last_checks.check", lambda cluster, nodes: None)
    outcome = run(CALM, STEADY)
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.vacuous == "nothing was compared by: L7, L8"


def test_faults_without_effect_leave_a_run_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dict.fromkeys(HANDLERS, at_once(lambda arena, event: None))
    monkeypatch.setattr("raftmq.chaos.core.faults.nemesis.HANDLERS", nothing)
    outcome = Plan(World.CORE).play(every_few_seconds("kill"))
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.vacuous == "no fault of the schedule had an effect"


def test_run_too_short_to_mean_anything_is_vacuous() -> None:
    settings = replace(STEADY, proposals_per_second=0.001)
    outcome = run(CALM, settings)
    assert outcome.is_vacuous
    assert outcome.verdict is Verdict.UNKNOWN


def damaged(name: str, *nodes: int) -> Schedule:
    events = tuple(
        Event(at_ms, name, (node,)) for at_ms, node in zip((3000, 3500, 4000), nodes, strict=False)
    )
    return Schedule(2, 16.0, (*events, Event(5000, "kill-all", (1, 2, 3))))


@pytest.mark.parametrize("name", ["wipe", "lost-hard-state", "bad-sector"])
def test_damaged_node_is_replaced_and_nothing_is_lost(name: str) -> None:
    settings = replace(STEADY, segment_bytes=4096)
    outcome = run(damaged(name, 2), settings)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["replaced"] >= 1
    assert outcome.counts.get("refused to start", 0) <= 1


@pytest.mark.parametrize("name", ["lost-hard-state", "bad-sector"])
def test_member_whose_log_was_cut_holds_all_again_and_counts(name: str) -> None:
    settings = replace(STEADY, segment_bytes=64 * 1024, mends=True)
    outcome = run(damaged(name, 2), settings)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["members that count again"] == 1
    assert outcome.counts.get("replaced", 0) == 0


def test_atlas_spares_the_last_quorum_of_intact_copies() -> None:
    outcome = run(damaged("wipe", 2, 3), STEADY)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["wipe"] == 1
    assert outcome.counts["spared by the atlas"] == 1


def test_violation_ends_the_run_and_names_the_line_that_replays_it() -> None:
    world = Run(CALM, STEADY)
    world.cluster.loop.at(3_000_000, world.cluster.safety.leaders.update, {1: 99, 2: 99})
    world.cluster.loop.at(3_000_001, world.cluster.nodes[1].end)
    outcome = world.play()
    assert outcome.verdict is Verdict.INVALID
    assert outcome.replay_line().startswith("raftmq chaos replay --world core")
