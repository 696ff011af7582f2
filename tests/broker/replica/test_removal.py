"""A node that takes itself for removed: the nodes it asks, and the answers it believes."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from raftmq.broker.replica import removal
from raftmq.broker.replica.removal import ReplicaRemoval
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.wire.messages import ClusterView, GroupView, NodeView

OWN = 4


def view(version: int, *nodes: int, leader: int = 0) -> ClusterView:
    views = [NodeView(number, f"node{number}", 7400) for number in nodes]
    return ClusterView("c", version, views, [GroupView(SYSTEM_GROUP, leader, 1, [1, 2, 3], [])], [])


class Asked:
    """A node that asks, its catalog, and the others' answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[int, ClusterView] = {}
        self.catalog = SimpleNamespace(is_bootstrapped=True, version=10, nodes={}, groups={})
        node: Any = SimpleNamespace(id=OWN, catalog=self.catalog, groups={})
        unused: Any = None
        self.removal = ReplicaRemoval(node, unused, unused)

        async def ask_all(_: object) -> dict[int, ClusterView]:
            return {OWN: view(self.catalog.version, *self.catalog.nodes)} | self.answers

        monkeypatch.setattr(removal, "ask_all", ask_all)

    def knows(self, *nodes: int, leaving: int = 0) -> None:
        """Set the node's own catalog."""
        found = {n: SimpleNamespace(is_leaving=n == leaving) for n in nodes}
        self.catalog.nodes = found

    def is_removed(self) -> bool:
        async def main() -> bool:
            self.removal.think()
            await self.removal.look()
            return self.removal.is_removed

        return trio.run(main)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_newcomer_that_still_applies_the_log_is_not_removed(asked: Asked) -> None:
    asked.knows(1, 2, 3)
    asked.answers = {2: view(10, 1, 2, 3)}
    assert not asked.is_removed()
    asked.knows(1, 2, 3, OWN)
    assert not asked.is_removed()


def test_member_that_lags_is_not_believed_that_a_node_is_removed(asked: Asked) -> None:
    asked.knows(1, 2, 3, OWN, leaving=OWN)
    asked.answers = {2: view(9, 1, 2, 3)}
    assert not asked.is_removed()
    asked.answers = {2: view(9, 1, 2, 3, leader=2)}
    assert asked.is_removed(), "the leader of the system group said so"


def test_node_that_is_added_again_and_removed_again_is_removed_twice(asked: Asked) -> None:
    asked.knows(1, 2, 3, OWN, leaving=OWN)
    asked.answers = {2: view(11, 1, 2, 3)}
    assert asked.is_removed()
    asked.answers = {}
    assert asked.is_removed(), "silence is no word"
    asked.answers = {2: view(12, 1, 2, 3, OWN)}
    assert not asked.is_removed()
    asked.catalog.version = 12
    asked.knows(1, 2, 3, OWN)
    assert not asked.is_removed()
    asked.catalog.version = 13
    asked.knows(1, 2, 3, OWN, leaving=OWN)
    asked.answers = {2: view(14, 1, 2, 3)}
    assert asked.is_removed()
