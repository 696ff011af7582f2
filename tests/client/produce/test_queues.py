"""Whose turn it is among a topic's queues."""

from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.client.produce.queues import Queues
from raftmq.client.produce.turns import TURN_BYTES
from raftmq.client.routing.weights import Weights
from raftmq.wire.messages import TopicView

pytestmark = pytest.mark.anyio


def three_queues() -> tuple[Queues, list[Any]]:
    def make(number: int, group: int) -> Any:
        return SimpleNamespace(queue_number=number, is_idle=True, is_recovering=False)

    async def ask() -> None:
        raise AssertionError("nobody asks")

    router: Any = SimpleNamespace(weights=Weights(), leader_of=lambda group: group)
    queues = Queues(TopicView("orders", 1, [1, 2, 3]), 0, make, ask, router)
    return queues, [queues.sender(n) for n in range(3)]


async def test_messages_sent_one_by_one_go_to_each_queue_in_turn() -> None:
    queues, senders = three_queues()
    found = []
    for _ in range(6):
        queue = queues.pick(None, None)
        found.append(queue)
        queues.note_sealed(senders[queue], 100, 1)
    assert found == [0, 1, 2, 0, 1, 2]


async def test_turn_stays_while_something_is_on_its_way_there_until_enough_went_out() -> None:
    queues, senders = three_queues()
    queues.note_sealed(senders[queues.pick(None, None)], 100, 1)
    senders[0].is_idle = False
    for _ in range(9):
        assert queues.pick(None, None) == 0
        queues.note_sealed(senders[0], 100, 1)
    queues.note_sealed(senders[0], TURN_BYTES - 1000, 1)
    assert queues.pick(None, None) == 1


async def test_full_batch_passes_the_turn_and_who_waits_for_a_leader_is_passed_over() -> None:
    queues, senders = three_queues()
    senders[0].is_idle = False
    senders[1].is_recovering = True
    queues.note_full(senders[2])
    assert queues.pick(None, None) == 0
    queues.note_full(senders[0])
    assert queues.pick(None, None) == 2
