"""The end of a run: nodes that liveness mode leaves dead, and a step that is late."""

from types import SimpleNamespace

import pytest

from raftmq.chaos.faults import Schedule
from raftmq.chaos.sim import drain
from raftmq.chaos.sim.drain import _can_lose
from raftmq.chaos.sim.run import run
from raftmq.chaos.sim.run_state import RunState
from raftmq.machine.catalog.state import CatalogState, Group


def state(*, voters: tuple[int, ...], wanted: tuple[int, ...]) -> RunState:
    conf = SimpleNamespace(voters=voters, voters_outgoing=())
    node = SimpleNamespace(groups={1: SimpleNamespace(conf_state=conf)})
    catalog = CatalogState()
    catalog.groups = {1: Group(1, list(wanted))}
    made: RunState = SimpleNamespace(  # type: ignore[assignment]
        damaged=set(),
        newest_catalog=lambda: catalog,
        cluster=SimpleNamespace(nodes={1: node}),
    )
    return made


NINE, ELEVEN = tuple(range(1, 10)), tuple(range(1, 12))


@pytest.mark.parametrize(
    ("voters", "wanted", "dead", "can_lose"),
    [
        (NINE, NINE, {6, 7, 8, 9}, True),
        (NINE, NINE, {5, 6, 7, 8, 9}, False),
        # Two joined nodes are about to vote: seed 1000221 left five of eleven.
        (NINE, ELEVEN, {3, 6, 7, 9, 10, 11}, False),
        (NINE, ELEVEN, {3, 6, 7, 9, 10}, True),
    ],
)
def test_group_that_is_about_to_grow_keeps_a_majority_of_what_it_becomes(
    voters: tuple[int, ...], wanted: tuple[int, ...], dead: set[int], can_lose: bool
) -> None:
    assert _can_lose(state(voters=voters, wanted=wanted), dead) is can_lose


def test_step_that_is_late_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_is_led", lambda state: False)
    outcome = run(Schedule(3, 6, ()), nodes=5)
    assert [violation.name for violation in outcome.violations] == ["V1"], str(outcome)
