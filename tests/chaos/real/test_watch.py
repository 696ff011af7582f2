"""The observer's time line of nodes that end and come back."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.chaos.outcome import Happening
from raftmq.chaos.real.run_state import RunState
from raftmq.chaos.real.watch import Watch
from raftmq.chaos.report.timeline import DEAD, UP, spans


class Nodes:
    """One node, whose process changes as a test says."""

    def __init__(self) -> None:
        self.process = 11
        self.while_asked: Callable[[], None] = lambda: None

    @property
    def nodes(self) -> list[int]:
        return [1]

    def pid(self, node: int) -> int:
        return self.process

    async def statuses(self) -> dict[int, dict[str, Any]]:
        group = {"group": 1, "role": "follower", "term": 4, "applied": 7, "digest": 8}
        self.while_asked()
        return {1: {"groups": [group]}}


def observed(nodes: Nodes) -> tuple[Watch, list[Happening]]:
    """An observer, and its entries."""
    told: list[Happening] = []

    def note(node: int, what: str) -> None:
        told.append(Happening(len(told) * 100, node, what))

    state: RunState = SimpleNamespace(nodes=nodes, note=note)  # type: ignore[assignment]
    return Watch(state), told


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.mark.anyio
async def test_node_that_comes_again_with_the_same_role_is_seen_to_have_it_again() -> None:
    nodes = Nodes()
    watch, told = observed(nodes)
    await watch.look()
    await watch.look()
    watch._state.note(1, "is killed")
    watch._state.note(1, "starts")
    nodes.process = 12
    await watch.look()
    role = "follower of group 1, term 4"
    assert [what for _, _, what in told] == [role, "is killed", "starts", role]
    shown = [(one.role, one.start_ms, one.end_ms) for one in spans(told, 400)]
    assert shown == [
        (DEAD, 100, 200),
        (UP, 200, 300),
        ("follower", 0, 100),
        ("follower", 300, 400),
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("process", [0, 12])
async def test_answer_of_a_process_that_ended_meanwhile_is_not_believed(process: int) -> None:
    nodes = Nodes()
    nodes.while_asked = lambda: setattr(nodes, "process", process)
    watch, told = observed(nodes)
    await watch.look()
    assert told == []
    assert watch.statuses == {}
