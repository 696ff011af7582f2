"""The operator of a run on real processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from raftmq.broker.cluster.links import ADVICE
from raftmq.chaos.real.operator import Operator
from raftmq.chaos.real.run_state import RunState


@dataclass
class Processes:
    """Nodes 5, 6 and 7, of which the last waits, as it says in a line and talks on."""

    named: dict[int, frozenset[int]]
    joined: list[tuple[int, list[int]]] = field(default_factory=list)
    up_now: set[int] = field(default_factory=lambda: {5, 6, 7})

    def pid(self, node: int) -> int:
        return node * (node in self.up_now)

    is_running = resume_quietly = pid

    def last_words(self, node: int, *, lines: int = 3) -> str:
        words = [f"it waits; {ADVICE}", *["peer reached"] * 5] if node == 7 else ["leads"]
        return "\n".join(words[-lines:])

    def join(self, node: int, others: Sequence[int]) -> None:
        self.joined.append((node, list(others)))
        self.named[node] = frozenset(others)

    def kill(self, node: int) -> None:
        self.up_now.remove(node)

    async def up(self, node: int) -> None:
        self.up_now.add(node)


@pytest.mark.parametrize(
    ("named", "joined"), [({1, 2, 3}, [(7, [5, 6])]), ({1, 2, 5}, []), ({7, 1}, [(7, [5, 6])])]
)
def test_blank_node_whose_settings_name_only_nodes_that_are_gone_gets_those_of_today(
    named: set[int], joined: list[tuple[int, list[int]]]
) -> None:
    nodes: Any = Processes({5: frozenset({1}), 6: frozenset({1}), 7: frozenset(named)})

    async def main() -> RunState:
        unused: Any = None
        state = RunState(nodes, unused, unused, Random(1), unused, trio.current_time())
        state.members = {5, 6, 7}
        with trio.move_on_after(5.0):
            await Operator(state).run()
        return state

    state = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert nodes.joined == joined
    assert nodes.up_now == {5, 6, 7}
    assert state.counts["settings of old"] == len(joined)


def test_node_that_leaves_is_started_again_until_no_group_counts_on_it() -> None:
    nodes: Any = Processes({5: frozenset({6}), 6: frozenset({5})}, up_now={5})

    async def main() -> None:
        unused: Any = None
        state = RunState(nodes, unused, unused, Random(1), unused, trio.current_time())
        state.members, state.leaving, state.down = {5}, {6}, {6: 0.0, 7: 0.0}
        with trio.move_on_after(5.0):
            await Operator(state).run()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert nodes.up_now == {5, 6}
