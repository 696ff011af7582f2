"""Schedules: drawn from a seed, written and read, made small."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.chaos.campaign import CannotPlay, Plan
from raftmq.chaos.faults import (
    FAMILIES,
    FAULTS,
    VISITS,
    Aim,
    Event,
    Schedule,
    World,
    draw,
    draw_mixed,
    draw_patient,
    expanded,
    of_world,
    shrink,
    with_access,
    with_strike,
    with_visits,
)
from raftmq.chaos.faults.schedule import EVENTS_MIN, SURE


@given(st.integers(0, 10_000), st.sampled_from(World), st.sampled_from([1, 3, 5]))
def test_seed_gives_the_same_schedule_within_its_bounds(
    seed: int, world: World, nodes: int
) -> None:
    schedule = draw(seed, of_world(world), nodes=nodes, seconds=40)
    assert schedule == draw(seed, of_world(world), nodes=nodes, seconds=40)
    assert list(schedule.events) == sorted(schedule.events)
    for event in schedule.events:
        fault = FAULTS[event.fault]
        assert world in fault.worlds
        assert fault.nodes_min <= nodes
        assert fault.aim is not Aim.PAIR or len(event.nodes) == 2
        assert event.at_ms + event.lasts_ms <= schedule.heal_ms + 1
        assert (event.lasts_ms > 0) == fault.lasts
        assert set(event.nodes) <= set(range(1, nodes + 1))
        assert len(set(event.nodes)) == len(event.nodes)


@given(st.integers(0, 10_000), st.sampled_from([3.0, 6.0, 60.0]))
def test_every_fifth_seed_is_visited_and_keeps_its_own_events(seed: int, seconds: float) -> None:
    kinds = of_world(World.SIM)
    drawn = draw(5 * seed, kinds, nodes=3, seconds=seconds)
    every = of_world(World.SIM, has_added=True)
    visited = with_visits(drawn, every, nodes=3)
    assert list(visited.events) == sorted(visited.events)
    added = [event for event in visited.events if event not in drawn.events]
    assert sorted(event.fault for event in added) == sorted(VISITS)
    assert all(event.at_ms + event.lasts_ms <= drawn.heal_ms for event in added)
    assert visited.without(added) == drawn
    assert with_visits(drawn._replace(seed=5 * seed + 1), every, nodes=3).events == drawn.events


def test_visits_that_a_world_cannot_make_are_left_out() -> None:
    empty = Schedule(5, 60.0, ())
    visits = with_visits(empty, of_world(World.REAL, has_added=True), nodes=3)
    assert {event.fault for event in visits.events} == set(VISITS) - {"outage"}
    assert not with_visits(empty, of_world(World.SIM), nodes=1).events[0].nodes[1:]


@given(st.integers(0, 10_000), st.sampled_from([3.0, 6.0, 60.0]))
def test_every_third_seed_has_faults_of_access_and_keeps_its_own_events(
    seed: int, seconds: float
) -> None:
    drawn = draw(3 * seed + 2, of_world(World.SIM), nodes=3, seconds=seconds)
    kinds = of_world(World.SIM, has_users=True)
    schedule = with_access(drawn, kinds, nodes=3)
    assert list(schedule.events) == sorted(schedule.events)
    added = [event for event in schedule.events if event not in drawn.events]
    assert {event.fault for event in added} == {kind.name for kind in kinds if kind.needs_users}
    assert all(event.at_ms + event.lasts_ms <= drawn.heal_ms for event in added)
    assert schedule.without(added) == drawn
    assert with_access(drawn._replace(seed=3 * seed), kinds, nodes=3).events == drawn.events


def test_faults_of_access_are_for_clusters_that_know_their_users() -> None:
    access = {name for name in FAMILIES["access"] if World.SIM in FAULTS[name].worlds}
    assert not set(FAMILIES["access"]) & {
        fault.name for world in World for fault in of_world(world)
    }
    for is_secure in (False, True):
        found = {
            event.fault
            for seed in range(12)
            for event in Plan(World.SIM, is_secure=is_secure).schedule(seed).events
        }
        assert (found & access == access) == is_secure
    assert {fault.name for fault in Plan(World.SIM, ("access",), is_secure=True).kinds()} == access
    for names in (("access",), ("drop-user",)):
        with pytest.raises(CannotPlay, match="users") as refused:
            Plan(World.SIM, names).kinds()
        assert refused.value.fix == "add --secure"
    with pytest.raises(CannotPlay, match="the family access") as refused:
        Plan(World.CORE, ("access",)).kinds()
    assert not refused.value.fix


@given(st.integers(0, 10_000))
def test_schedule_read_back_is_the_same(seed: int) -> None:
    schedule = draw(seed, of_world(World.SIM), nodes=3, seconds=33.5)
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        '{"seed": 1, "seconds": 2}',
        '{"seed": 1, "seconds": 2, "events": [[1, "moon", [], 0, 0]]}',
        '{"seed": 1, "seconds": 2, "events": [[1, "kill", [1]]]}',
        '{"seed": 1, "seconds": 2, "events": [[1, "clone", [1], 0, 0]]}',
        '{"seed": 1, "seconds": 2, "events": [[1, "kill", [0], 0, 0]]}',
        '{"seed": 1, "seconds": 2, "events": [7]}',
        '{"seed": 1, "seconds": 0, "events": []}',
        '{"seed": 1, "seconds": Infinity, "events": []}',
        "null",
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no schedule"):
        Schedule.from_json(text)


def test_every_fault_is_in_a_family_and_partitions_are_all_of_the_network() -> None:
    assert {name for kinds in FAMILIES.values() for name in kinds} == FAULTS.keys()
    assert not FAMILIES.keys() & FAULTS.keys()
    assert "isolate-leader" in FAMILIES["partition"]
    assert set(FAMILIES["partition"]) < set(FAMILIES["network"])


def test_family_stands_for_those_of_its_kinds_that_can_be_made() -> None:
    can = {fault.name for fault in of_world(World.CORE)}
    found = expanded(["kill", "partition", "kill"], can)
    assert found[0] == "kill"
    assert len(found) == len(set(found)) > 10
    assert "cut-clients" in FAMILIES["partition"]
    assert "cut-clients" not in found
    assert expanded(["client", "moon"], can) == ["client", "moon"]


@pytest.mark.parametrize("draws", [draw, draw_patient])
def test_partition_in_a_row_of_three_nodes_is_a_chain_if_chains_are_among_the_kinds(
    draws: Callable[..., Schedule],
) -> None:
    bridge, chain = FAULTS["bridge"], FAULTS["chain"]
    for seed in range(40):
        for event in draws(seed, [bridge, chain], nodes=3, seconds=40).events:
            assert event.fault == "chain"
            assert sorted(event.nodes) == [1, 2, 3]
        alone = draws(seed, [bridge], nodes=3, seconds=40).events
        assert {event.fault for event in alone} == {"bridge"}
        assert [event.at_ms for event in alone] == sorted(event.at_ms for event in alone)


def test_seeds_use_every_kind_and_keep_some_windows_calm() -> None:
    kinds = of_world(World.SIM)
    schedules = [draw(seed, kinds, nodes=4, seconds=40) for seed in range(300)]
    assert {event.fault for s in schedules for event in s.events} == {kind.name for kind in kinds}
    assert max(len({event.fault for event in s.events}) for s in schedules) < len(kinds) / 2


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_shrinking_finds_the_two_events_that_matter(seed: int, other: int) -> None:
    drawn = draw(seed, of_world(World.SIM), nodes=3, seconds=60)
    guilty = (Event(100, "kill", (1,)), Event(20_000, "pause", (2,), 8000))
    schedule = drawn._replace(events=tuple(sorted((*drawn.events, *guilty))))

    def fails(candidate: Schedule) -> bool:
        has_kill = any(e.at_ms == 100 for e in candidate.events)
        return has_kill and any(e.at_ms == 20_000 and e.lasts_ms >= 1000 for e in candidate.events)

    small = shrink(schedule, fails)
    assert fails(small)
    assert [event.at_ms for event in small.events] == [100, 20_000]
    assert small.events[1].lasts_ms < 2000


def test_shrinking_stops_after_its_trials_with_what_it_has() -> None:
    schedule = draw(3, of_world(World.SIM), nodes=3, seconds=60)
    trials = []

    def fails(candidate: Schedule) -> bool:
        trials.append(candidate)
        return True

    assert len(shrink(schedule, fails, trials_max=2).events) < len(schedule.events)
    assert len(trials) == 2


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("world", World)
def test_run_of_few_events_has_one_that_always_strikes(world: World, nodes: int) -> None:
    plan = Plan(world, seconds=6.0, nodes=nodes)
    for seed in range(100):
        events = plan.schedule(seed).events
        assert len(events) >= EVENTS_MIN or {event.fault for event in events} & set(SURE)


def test_members_return_only_where_another_fault_may_have_removed_them() -> None:
    returns = tuple(Event(at, "return", (1,)) for at in range(1000, 40_000, 2000))
    schedule = with_strike(Schedule(451, 60, returns), of_world(World.CORE), nodes=3)
    (added,) = set(schedule.events) - set(returns)
    assert added.fault in SURE
    assert added.at_ms == schedule.heal_ms // 2


def test_run_whose_events_all_aim_at_leaders_has_another_one() -> None:
    events = tuple(Event(at, "isolate-leader", (), 400) for at in range(1000, 40_000, 2000))
    schedule = with_strike(Schedule(261, 60, events), of_world(World.CORE), nodes=5)
    (added,) = set(schedule.events) - set(events)
    assert added.fault in SURE


@pytest.mark.parametrize("faults", [("drop-kind",), ("drop-kind", "kill")])
def test_nothing_is_added_where_faults_are_named(faults: tuple[str, ...]) -> None:
    kinds = [FAULTS[name] for name in faults]
    drawn = draw_mixed(811, kinds, nodes=3, seconds=6)
    assert Plan(World.SIM, faults, seconds=6).schedule(811) == drawn


def test_patient_schedule_stays_as_it_is() -> None:
    kinds = of_world(World.SIM)
    for seed in range(100):
        drawn = draw_patient(seed, kinds, nodes=3, seconds=60)
        assert with_strike(drawn, kinds, nodes=3) == drawn


@pytest.mark.parametrize("how", [draw, draw_patient])
@pytest.mark.parametrize("seed", range(30))
def test_short_run_has_a_fault(how: Callable[..., Schedule], seed: int) -> None:
    drawn = how(seed, of_world(World.CORE), nodes=3, seconds=3)
    assert drawn.events
    assert all(event.at_ms < drawn.heal_ms for event in drawn.events)
