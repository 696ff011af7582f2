"""One fault means one thing: it calls the same verbs, of the same nodes, in each world."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from random import Random
from typing import Any

import pytest

from raftmq.chaos.core.arena import CoreArena
from raftmq.chaos.core.faults.nemesis import HANDLERS as CORE
from raftmq.chaos.faults import FAMILIES, FAULTS, Aim, Event, World, draw, of_world
from raftmq.chaos.faults.arena import (
    Arena,
    CannotMake,
    RunningFault,
    Skipped,
    Steps,
    aimed,
    while_lasts,
)
from raftmq.chaos.faults.shared import SHARED
from raftmq.chaos.real.arena import RealArena
from raftmq.chaos.real.faults.nemesis import HANDLERS as REAL
from raftmq.chaos.sim.arena import SimArena
from raftmq.chaos.sim.faults.nemesis import HANDLERS as SIM

ARENAS: dict[World, type[Arena]] = {
    World.CORE: CoreArena,
    World.SIM: SimArena,
    World.REAL: RealArena,
}
HANDLERS = {World.CORE: CORE, World.SIM: SIM, World.REAL: REAL}
ANSWERS = ("members", "leader")
"""Methods of an arena that only answer questions."""
VERBS = [
    name
    for name, value in vars(Arena).items()
    if inspect.isfunction(value) and not name.startswith("_") and name not in ANSWERS
]
NOT_DRAWN = {
    (World.CORE, "cut-clients"),
    (World.CORE, "stop"),
    (World.REAL, "stall-monotonic"),
    (World.REAL, "remove-leader"),
}
"""Faults that a world has the verbs for and does not draw: one name more in a world would change
the draw of all its schedules."""
NODES = 5
SECONDS = 60
Call = tuple[int, str, Any]


class Recorder(Arena):
    """Records the verbs of a fault, and refuses those that a world lacks."""

    def __init__(self, world: World, seed: int, nodes: int = NODES) -> None:
        self.world = world
        self.nodes = nodes
        self.random = Random(seed)
        self.now_ms = 0
        self.calls: list[Call] = []
        self.open = 0
        self._plan: list[tuple[int, Callable[[], None]]] = []

    def members(self) -> list[int]:
        return list(range(1, self.nodes + 1))

    def leader(self) -> int:
        return 2

    def __getattribute__(self, name: str) -> Any:
        if name not in VERBS:
            return super().__getattribute__(name)
        verb = getattr(ARENAS[self.world], name)
        if verb is getattr(Arena, name):
            return partial(verb, self)
        return partial(self._call, name, inspect.signature(verb))

    def _call(self, name: str, signature: inspect.Signature, *args: Any, **named: Any) -> Any:
        bound = signature.bind(self, *args, **named).arguments
        bound.pop("self")
        if name == "damage" and bound["kind"] not in ARENAS[self.world].damages:
            raise CannotMake(self, f"do the damage of {bound['kind']}")
        told = {key: list(v) if isinstance(v, Iterator) else v for key, v in bound.items()}
        self.calls.append((self.now_ms, name, told))
        return self._until_end(name)

    @contextmanager
    def _until_end(self, name: str) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            self.calls.append((self.now_ms, f"{name} ends", None))

    def play(self, event: Event) -> list[Call]:
        """The calls of a shared fault from its begin to its end."""
        steps = SHARED[event.fault](self, aimed(event, event.nodes, self.leader()))
        running = RunningFault(steps, self._later)
        running.go_on()
        end_ms = event.lasts_ms or SECONDS * 1000
        while self._plan and self._plan[0][0] <= end_ms:
            self.now_ms, call = self._plan.pop(0)
            call()
        self.now_ms = end_ms
        running.end()
        assert not self.open, "the end undoes everything"
        return self.calls

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._plan.append((self.now_ms + int(seconds * 1000), call))


def events_of(name: str) -> list[Event]:
    """Events as schedules have them."""
    drawn = (draw(seed, [FAULTS[name]], nodes=NODES, seconds=SECONDS) for seed in range(4))
    return [event for schedule in drawn for event in schedule.events[:2]]


@pytest.mark.parametrize("name", SHARED)
def test_fault_calls_the_same_verbs_in_all_worlds(name: str) -> None:
    for event in events_of(name):
        first, *others = [
            Recorder(world, event.at_ms).play(event)
            for world in sorted(FAULTS[name].worlds, key=lambda world: world.value)
        ]
        assert first
        assert others
        assert all(other == first for other in others)


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_no_two_names_of_partitions_mean_the_same(nodes: int) -> None:
    cuts: dict[str, set[str]] = {}
    kinds = [FAULTS[name] for name in sorted(set(FAMILIES["partition"]) & SHARED.keys())]
    for seed in range(200):
        for event in draw(seed, kinds, nodes=nodes, seconds=SECONDS).events:
            recorder = Recorder(World.SIM, seed, nodes)
            calls = recorder.play(event._replace(lasts_ms=3000))
            pairs = [sorted(call[2]["pairs"]) for call in calls if call[1] == "cut"]
            cuts.setdefault(event.fault, set()).add(str(pairs))
    assert len(cuts) >= 9
    for one, other in combinations(cuts, 2):
        assert cuts[one] != cuts[other], f"{one} and {other} of {nodes} nodes are one fault"


@pytest.mark.parametrize("name", SHARED)
def test_world_that_cannot_make_a_fault_lacks_a_verb_of_it(name: str) -> None:
    for world in set(World) - FAULTS[name].worlds:
        if (world, name) in NOT_DRAWN:
            continue
        recorder = Recorder(world, 1)
        with pytest.raises(CannotMake, match=f"the {world.value} world cannot"):
            recorder.play(events_of(name)[0])


@pytest.mark.parametrize("world", World)
def test_world_makes_the_faults_that_the_catalogue_says(world: World) -> None:
    assert set(HANDLERS[world]) == {
        fault.name for fault in of_world(world, has_users=True, has_added=True)
    }


@pytest.mark.parametrize("world", World)
def test_fault_that_a_world_writes_itself_is_made_in_no_other(world: World) -> None:
    own = set(HANDLERS[world]) - set(SHARED)
    assert {name for name in own if FAULTS[name].worlds != {world}} == set()


def test_verb_that_a_world_lacks_is_refused_by_name() -> None:
    class Bare(Arena):
        world = World.CORE

        def members(self) -> list[int]:
            return []

        def leader(self) -> int:
            return 0

    steps = while_lasts(lambda arena, event: arena.lose(event.level))(Bare(), Event(0, "loss"))
    with pytest.raises(CannotMake, match="the core world cannot lose messages"):
        next(steps)


def test_fault_of_a_leader_needs_one_and_a_fault_of_a_pair_needs_two() -> None:
    assert aimed(Event(0, "kill-leader"), (), 3).nodes == (3,)
    with pytest.raises(Skipped, match="no node leads"):
        aimed(Event(0, "kill-leader"), (), 0)
    with pytest.raises(Skipped, match="no pair"):
        aimed(Event(0, "flap", (1, 1)), (1,), 3)
    assert FAULTS["flap"].aim is Aim.PAIR


def test_fault_that_finds_no_target_after_a_wait_ends_there() -> None:
    calls: list[Callable[[], None]] = []

    def fault() -> Steps:
        yield 1.0
        raise Skipped("the node is down")

    running = RunningFault(fault(), lambda _, call: calls.append(call))
    running.go_on()
    calls.pop()()
    running.go_on()
    assert calls == []
