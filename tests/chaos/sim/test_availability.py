"""Service while a majority is well: what is judged, and that a lack of it is found out."""

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from raftmq.broker import duties
from raftmq.broker.group import Group
from raftmq.chaos.faults import FAULTS, Event, Schedule, World, draw_patient, of_world
from raftmq.chaos.sim.availability import (
    CONFINED,
    HARMLESS,
    SETTLE_SECONDS,
    WINDOW_SECONDS,
)
from raftmq.chaos.sim.nemesis import Nemesis
from raftmq.chaos.sim.run import run

LOW = Event(3000, "low-disk", (1,), 41_000, 0.75)
"""A node that follows and must not lead, for as long as the run lasts."""


def test_faults_that_excuse_nothing_are_in_the_catalogue_and_can_be_made() -> None:
    assert {FAULTS[name] for name in CONFINED | HARMLESS} <= set(of_world(World.SIM))


def test_service_goes_on_while_one_disk_is_low_and_is_there_soon_after_the_heal() -> None:
    outcome = run(Schedule(3, 60, (LOW,)))
    assert outcome.is_good, str(outcome)
    assert outcome.counts["windows judged"] > 20
    assert outcome.counts["heal to service, ms"] < 5000


def test_leader_that_hands_over_in_vain_again_and_again_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(members: Iterable[int], asked: object, *, since: float) -> int:
        return next(iter(members), 0)

    monkeypatch.setattr(Group, "decline", lambda *_: None)
    monkeypatch.setattr(duties, "first_not_in", first)
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
    watch = SimpleNamespace(note=lambda *_: None, situations=lambda *_: [])
    stage = SimpleNamespace(
        agenda=now, watch=watch, is_healing=False, nodes_of=lambda _: [], leader=lambda: 0
    )
    lasting: set[int] = set()
    availability = SimpleNamespace(
        fault_begins=lambda number, _: lasting.add(number), fault_ends=lasting.discard
    )
    nemesis = Nemesis(stage, Schedule(0, 60.0, ()), availability)  # type: ignore[arg-type]
    # Clients are to be cut off from whoever leads, and nobody does.
    nemesis._begin(0, Event(0, "cut-clients", (), lasts_ms=60_000))
    assert lasting == set()
