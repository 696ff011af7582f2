"""Sentences of a run's time line become spans, bands and marks."""

import pytest

from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import FAULTS, Event, Schedule, World, draw
from raftmq.chaos.outcome import Happening
from raftmq.chaos.report.timeline import DEAD, UP, bands, heal_ms, marks, spans

NO_FAULTS = Schedule(1, 10, ())


def roles(timeline: list[tuple[int, int, str]]) -> list[tuple[int, int, str, int, int, int]]:
    found = spans([Happening(*row) for row in timeline], 10_000)
    return [(one.node, one.group, one.role, one.term, one.start_ms, one.end_ms) for one in found]


def test_a_role_lasts_until_the_next_one_of_its_node_and_group() -> None:
    assert roles(
        [
            (100, 1, "follower of group 1, term 1"),
            (150, 1, "leader of group 2, term 1"),
            (700, 1, "leader of group 1, term 3"),
        ]
    ) == [
        (1, 1, "follower", 1, 100, 700),
        (1, 1, "leader", 3, 700, 10_000),
        (1, 2, "leader", 1, 150, 10_000),
    ]


def test_a_dead_node_has_no_role_in_any_group_until_it_has_one_again() -> None:
    assert roles(
        [
            (0, 2, "leader of group 0, term 1"),
            (0, 2, "follower of group 1, term 1"),
            (500, 2, "dead"),
            (900, 2, "follower of group 1, term 2"),
        ]
    ) == [
        (2, -1, DEAD, 0, 500, 900),
        (2, 0, "leader", 1, 0, 500),
        (2, 1, "follower", 1, 0, 500),
        (2, 1, "follower", 2, 900, 10_000),
    ]


def test_world_with_one_group_names_none() -> None:
    assert roles([(5, 3, "candidate, term 7")]) == [(3, -1, "candidate", 7, 5, 10_000)]


def test_fault_that_was_seen_to_begin_and_end_is_a_band_on_the_node_it_hit() -> None:
    timeline = [
        Happening(100, 2, "isolate-leader begins"),
        Happening(400, 2, "isolate-leader ends"),
        Happening(500, 3, "kill"),
        Happening(600, 0, "delay begins"),
    ]
    found = bands(timeline, NO_FAULTS, 1_000)
    assert [(one.name, one.nodes, one.start_ms, one.end_ms) for one in found] == [
        ("isolate-leader", (2,), 100, 400),
        ("kill", (3,), 500, 500),
        ("delay", (), 600, 1_000),
    ]


def test_schedule_gives_the_bands_if_no_fault_was_seen() -> None:
    schedule = Schedule(1, 10, (Event(100, "pause", (2,), 300), Event(700, "kill", (1,))))
    found = bands([Happening(0, 1, "leader, term 1")], schedule, 1_000)
    assert [(one.name, one.nodes, one.start_ms, one.end_ms) for one in found] == [
        ("pause", (2,), 100, 400),
        ("kill", (1,), 700, 700),
    ]


def test_what_is_neither_role_nor_fault_is_a_mark() -> None:
    timeline = [
        Happening(1, 1, "leader, term 1"),
        Happening(2, 1, "kill"),
        Happening(3, 0, "everything is healed"),
    ]
    assert [(one.at_ms, one.node, one.text) for one in marks(timeline, NO_FAULTS)] == [
        (3, 0, "everything is healed")
    ]


def test_fault_of_ones_own_is_a_band_too() -> None:
    schedule = Schedule(1, 10, (Event(5, "drop-backlog"),))
    found = bands([Happening(7, 0, "drop-backlog")], schedule, 1_000)
    assert [(one.name, one.start_ms) for one in found] == [("drop-backlog", 7)]
    assert marks([Happening(7, 0, "drop-backlog")], schedule) == []


def test_sentences_of_all_worlds_are_understood() -> None:
    # As the simulators of cores and of brokers write them.
    assert roles(
        [
            (0, 1, "starts, life 1"),
            (5, 1, "leader, term 2"),
            (9, 1, "is killed"),
            (20, 2, "serves"),
            (25, 2, "pre_candidate of group 3, term 7"),
            (30, 2, "group 3: candidate, term 8"),
            (40, 2, "gives up: RotFound at 7"),
        ]
    ) == [
        (1, -1, UP, 0, 0, 5),
        (1, -1, "leader", 2, 5, 9),
        (1, -1, DEAD, 0, 9, 10_000),
        (2, -1, UP, 0, 20, 25),
        (2, -1, DEAD, 0, 40, 10_000),
        (2, 3, "pre-candidate", 7, 25, 30),
        (2, 3, "candidate", 8, 30, 40),
    ]
    timeline = [
        Happening(100, 0, "0.100s pause node 3 for 2.000s"),
        Happening(200, 0, "0.200s split-halves node 2,1 for 1.000s begins"),
        Happening(300, 0, "0.300s kill node 1 begins"),
        Happening(400, 0, "split-halves ends"),
        Happening(500, 0, "pause ends"),
        Happening(600, 0, "mute skipped: no node leads"),
        Happening(700, 2, "stops: RotFound"),
    ]
    found = bands(timeline, NO_FAULTS, 1_000)
    assert [(one.name, one.nodes, one.start_ms, one.end_ms) for one in found] == [
        ("pause", (3,), 100, 500),
        ("split-halves", (2, 1), 200, 400),
        ("kill", (1,), 300, 300),
    ]
    assert [one.text for one in marks(timeline, NO_FAULTS)] == [
        "mute skipped: no node leads",
        "stops: RotFound",
    ]


@pytest.mark.parametrize("world", [World.CORE])
def test_time_line_of_a_world_gives_every_fault_that_was_played_and_a_role_to_each_node(
    world: World,
) -> None:
    kinds = [FAULTS["pause"], FAULTS["isolate-leader"]]
    run = Plan(world).play(draw(5, kinds, nodes=3, seconds=20))
    found = bands(run.timeline, run.schedule, 20_000)
    played = [one for one in run.timeline if " skipped" not in one.what]
    assert len(found) == len(run.schedule.events) - (len(run.timeline) - len(played))
    shown = spans(run.timeline, 20_000)
    assert {one.role for one in shown} >= {"leader", UP}


def test_fault_at_the_leader_is_shown_on_whoever_led_alone_then() -> None:
    timeline = [
        Happening(0, 2, "leader, term 1"),
        Happening(100, 0, "isolate-leader begins"),
        Happening(300, 0, "isolate-leader ends"),
        Happening(400, 1, "leader of group 1, term 4"),
        Happening(500, 0, "kill-leader"),
    ]
    found = bands(timeline, NO_FAULTS, 1_000)
    assert [(one.name, one.nodes) for one in found] == [
        ("isolate-leader", (2,)),
        ("kill-leader", ()),
    ]


def test_schedule_tells_all_nodes_of_a_fault_that_was_seen_on_one() -> None:
    schedule = Schedule(1, 10, (Event(100, "swizzle", (3, 1, 2), 400),))
    timeline = [Happening(120, 3, "swizzle begins"), Happening(520, 3, "swizzle ends")]
    assert [one.nodes for one in bands(timeline, schedule, 1_000)] == [(3, 1, 2)]


def test_fault_that_nobody_ended_ends_with_the_heal_if_it_began_before() -> None:
    timeline = [
        Happening(100, 2, "isolate-leader begins"),
        Happening(700, 0, "everything heals"),
        Happening(800, 0, "delay begins"),
    ]
    found = bands(timeline, NO_FAULTS, 1_000)
    assert [(one.name, one.start_ms, one.end_ms) for one in found] == [
        ("isolate-leader", 100, 700),
        ("delay", 800, 1_000),
    ]


@pytest.mark.parametrize("what", ["heal", "everything heals", "everything is healed"])
def test_heal_is_when_the_world_says_so_else_when_the_schedule_does(what: str) -> None:
    schedule = Schedule(1, 10, (Event(5, "kill"),))
    assert heal_ms([Happening(8_000, 0, what)], schedule) == 8_000
    assert heal_ms([], schedule) == 7_500
    assert heal_ms([], NO_FAULTS) == -1
