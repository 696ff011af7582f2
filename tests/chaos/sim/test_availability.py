"""Service while a majority is well: the judged windows, and planted outages that must be found."""

import os
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftmq.broker import leader_tasks
from raftmq.broker.replica.group import Group
from raftmq.broker.settings import Settings
from raftmq.chaos.campaign import Plan, Totals, campaign
from raftmq.chaos.faults import (
    FAULTS,
    PATIENT_EVERY,
    Event,
    Schedule,
    World,
    draw_patient,
    of_world,
)
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.checks.availability import (
    CONFINED,
    HARMLESS,
    HEAL,
    SERVICE_SECONDS_MAX,
    SETTLE_SECONDS,
    TO_SERVICE,
    WINDOW_SECONDS,
    WINDOWS,
    Availability,
    Window,
)
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.faults.nemesis import Nemesis
from raftmq.chaos.sim.run import run

LOW = Event(3000, "low-disk", (1,), 41_000, 0.75)
"""A node that follows and must not lead, for as long as the run lasts."""


def test_faults_that_excuse_nothing_are_in_the_catalogue_and_can_be_made() -> None:
    assert {FAULTS[name] for name in CONFINED | HARMLESS} <= set(of_world(World.SIM))


@pytest.mark.campaign
def test_service_goes_on_while_one_disk_is_low_and_is_there_soon_after_the_heal() -> None:
    outcome = run(Schedule(3, 60, (LOW,)))
    assert outcome.is_good, str(outcome)
    assert outcome.compared[WINDOWS] > 20
    assert outcome.compared[HEAL] > 3
    assert 0 < outcome.counts[TO_SERVICE] < 5000


SEEDS = range(3, 40, PATIENT_EVERY)
SECONDS = 60.0
PLAN = Plan(World.SIM, tuple(sorted(CONFINED)), seconds=SECONDS)
"""Patient schedules of the faults that excuse no lack of service."""


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_calls_succeed_in_each_window_of_each_run_and_soon_after_the_heal() -> None:
    totals = Totals()
    for result in campaign(PLAN, SEEDS, jobs=len(os.sched_getaffinity(0))):
        assert result.outcome.is_good, str(result.outcome)
        assert result.outcome.compared[WINDOWS] > 0, result.seed
        totals.add(result)
    assert totals.seeds == len(SEEDS)
    assert 0 < totals.counts[TO_SERVICE] < 1000 * SERVICE_SECONDS_MAX
    # No fault of these refuses a sync.
    assert set(totals.vacuous_checks) <= {"L5 a failed sync is final"}


@pytest.mark.campaign
@pytest.mark.parametrize("node", [1, 2, 3])
def test_disk_that_is_slow_for_two_minutes_costs_no_message(node: int) -> None:
    events = (
        Event(5_000, "slow-disk", (node,), 125_000, 1000.0),
        Event(45_000, "kill-leader", (), 2_000),
        Event(90_000, "power-loss", (1 + node % 3,), 2_000),
    )
    outcome = run(Schedule(node, 180, events))
    assert outcome.is_good, str(outcome)
    assert set(outcome.struck) == {event.fault for event in events}
    assert outcome.counts["acked"] > 1000


@pytest.mark.campaign
def test_run_with_windows_and_no_calls_in_them_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.chaos.sim.checks.availability.CALLS_MIN", 10**6)
    outcome = run(Schedule(3, 60, (LOW,)))
    assert not outcome.is_good
    assert WINDOWS in outcome.vacuous


def test_leader_that_hands_over_in_vain_again_and_again_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(members: Iterable[int], asked: object, *, since: float) -> int:
        return next(iter(members), 0)

    monkeypatch.setattr(Group, "decline", lambda *_: None)
    monkeypatch.setattr(leader_tasks, "first_not_in", first)
    outcome = run(Schedule(3, 60, (LOW,)))
    assert {violation.name for violation in outcome.violations} == {"V7"}, str(outcome)


def test_patient_schedule_leaves_time_to_judge() -> None:
    kinds = [FAULTS[name] for name in sorted(CONFINED)]
    for seed in range(100):
        schedule = draw_patient(seed, kinds, nodes=3, seconds=60)
        events = schedule.events
        assert all(event.at_ms + event.lasts_ms <= schedule.heal_ms for event in events)
        assert any(event.lasts_ms >= 1000 * (SETTLE_SECONDS + WINDOW_SECONDS) for event in events)


def test_lasting_fault_that_finds_nothing_to_strike_excuses_nothing() -> None:
    now = SimpleNamespace(effects=Counter(), call_after=None)
    watch = SimpleNamespace(note=lambda *_: None, situations=lambda *_: [], coverage=Counter())
    state = SimpleNamespace(
        agenda=now,
        watch=watch,
        struck=Counter(),
        counts=Counter(),
        is_healing=False,
        nodes_of=lambda _: [],
        leader=lambda: 0,
    )
    lasting: set[int] = set()
    availability = SimpleNamespace(
        fault_begins=lambda number, _: lasting.add(number), fault_ends=lasting.discard
    )
    nemesis = Nemesis(state, Schedule(0, 60.0, ()), availability)  # type: ignore[arg-type]
    # Clients are to be cut off from the leader, and there is none.
    nemesis._begin(0, Event(0, "cut-clients", (), lasts_ms=60_000))
    assert lasting == set()


@pytest.mark.campaign
def test_group_whose_only_replica_stands_still_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Cluster.settings

    def with_one_replica(self: Cluster, number: int) -> Settings:
        found = settings(self, number)
        node = msgspec.structs.replace(found.node, replicas=1)
        return msgspec.structs.replace(found, node=node)

    monkeypatch.setattr(Cluster, "settings", with_one_replica)
    windows: list[Window] = []
    judge = Availability.judge

    def judged(self: Availability, *args: Any) -> list[Violation]:
        windows.extend(self.windows)
        return judge(self, *args)

    monkeypatch.setattr(Availability, "judge", judged)
    pause = Event(1000, "pause", (2,), lasts_ms=35_000)
    run(Schedule(1, 40, (pause,)), workload="register")
    assert all(2 in window.well for window in windows)
    # Without the fault each node is well all the time.
    run(Schedule(1, 40, ()), workload="register")
    assert [window.well for window in windows] == [(1, 2, 3)] * len(windows) != []
