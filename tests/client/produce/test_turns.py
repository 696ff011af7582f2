"""Turns of queues by weights: a model of nodes with given round trips, without an event loop."""

from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.client.produce.turns import TURN_BYTES, Turns
from raftmq.client.routing.weights import Outcome, Weights


class Model:
    """A topic whose queue n is led by node n % nodes + 1; messages are sent one after the other."""

    def __init__(self, queues: int, nodes: int, seconds: Callable[[int], float]) -> None:
        self.weights = Weights()
        self.groups = [queue % nodes + 1 for queue in range(queues)]
        self.leaders = {group: group for group in self.groups}
        self.senders: dict[int, Any] = {}
        self.turns = Turns(0, self.senders, self.weights, lambda group: self.leaders[group])
        self.now = 100.0
        self.seconds = seconds

    def pick(self, n: int = 0) -> int:
        return self.turns.queue(self.groups, self.now, n)

    def sender(self, queue: int, **state: bool) -> None:
        self.senders[queue] = SimpleNamespace(**({"is_idle": True, "is_recovering": False} | state))

    def send(self) -> int:
        """Send a message and wait for its answer."""
        queue = self.pick()
        self.sender(queue)
        node = self.leaders[self.groups[queue]]
        request = object()
        self.weights.began(node, request, self.now)
        self.turns.note_sent(queue, 100)
        self.now += self.seconds(node)
        self.weights.ended(node, request, Outcome.STORED, self.now)
        return queue


def test_queues_of_equal_nodes_have_turns_one_after_the_other() -> None:
    model = Model(6, 3, lambda _: 0.005)
    assert [model.send() for _ in range(12)] == [*range(6), *range(6)]


@pytest.mark.parametrize("nodes", [3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_queues_of_nodes_that_vary_alike_get_equal_shares(nodes: int, seed: int) -> None:
    random = Random(seed)
    model = Model(nodes * 3, nodes, lambda _: random.expovariate(1 / 0.01))
    counts = Counter(model.send() for _ in range(nodes * 3 * 200))
    assert max(counts.values()) <= 1.2 * 200
    assert min(counts.values()) >= 200 / 1.2


def test_node_that_is_ten_times_slower_gets_far_less_and_never_nothing() -> None:
    model = Model(9, 3, lambda node: 0.1 if node == 2 else 0.01)
    sent = [model.send() for _ in range(3000)]
    counts = Counter(queue % 3 + 1 for queue in sent)
    assert 3000 / 90 < counts[2] < 3000 / 3 / 10
    assert counts[1] == pytest.approx(counts[3], rel=0.05)
    of_slow = Counter(queue for queue in sent if queue % 3 == 1)
    assert max(of_slow.values()) - min(of_slow.values()) <= 2, "its queues share alike"
    gaps = [b - a for a, b in zip(positions(sent, 2), positions(sent, 2)[1:], strict=False)]
    assert max(gaps) < 130, "the turns of the slow node's queues are spread"


def positions(sent: list[int], node: int) -> list[int]:
    return [at for at, queue in enumerate(sent) if queue % 3 + 1 == node]


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.5])
def test_node_that_got_quick_again_gets_its_share_again(pause: float) -> None:
    slow = {2}
    model = Model(3, 3, lambda node: 0.5 if node in slow else 0.005)
    for _ in range(300):
        model.send()
    slow.clear()
    until = model.now + 90.0
    while model.now < until:
        model.now += pause
        model.send()
    counts = Counter(model.send() for _ in range(300))
    assert counts == {0: 100, 1: 100, 2: 100}


def test_failed_node_gets_nothing_at_once_and_returns_step_by_step() -> None:
    model = Model(3, 3, lambda _: 0.005)
    for _ in range(30):
        model.send()
    model.weights.failed(2, model.now)
    assert 1 not in {model.send() for _ in range(60)}
    found = []
    while model.now < 112.0:
        start = model.now
        sent = []
        while model.now < start + 1.0:
            sent.append(model.send())
        found.append(sent.count(1) / len(sent))
    assert found == sorted(found), "never less than in the second before"
    assert 0 < found[2] < 0.2 < found[5] < 0.34
    assert found[-1] == pytest.approx(1 / 3, abs=0.01)


def test_turn_goes_on_if_all_nodes_fail() -> None:
    model = Model(3, 3, lambda _: 0.005)
    for node in (1, 2, 3):
        model.weights.failed(node, model.now)
    found = []
    for _ in range(6):
        found.append(model.pick())
        model.turns.note_full(found[-1])
    assert found == [0, 1, 2, 0, 1, 2]


def test_turn_ends_while_a_batch_waits_for_longer_than_at_other_nodes() -> None:
    model = Model(3, 3, lambda _: 0.005)
    for _ in range(30):
        model.send()
    queue = model.pick()
    model.sender(queue, is_idle=False)
    model.weights.began(queue + 1, "batch", model.now)
    model.turns.note_sent(queue, 100)
    model.now += 0.018
    assert model.pick() == queue, "a batch is under way: what comes shares the next one"
    model.now += 0.004
    assert model.pick() != queue


def test_turn_stays_while_all_nodes_are_late_alike() -> None:
    model = Model(3, 3, lambda _: 0.005)
    for _ in range(30):
        model.send()
    queue = model.pick()
    for each in range(3):
        model.sender(each, is_idle=False)
        model.weights.began(each + 1, "batch", model.now)
    model.turns.note_sent(queue, 100)
    for _ in range(40):
        model.now += 0.1
        assert model.pick() == queue


def test_turn_stays_while_no_queue_can_be_sent_to() -> None:
    model = Model(3, 3, lambda _: 0.005)
    model.send()
    for each in range(3):
        model.sender(each, is_idle=False, is_recovering=True)
    assert len({model.pick() for _ in range(5)}) == 1


def test_new_leader_counts_at_once() -> None:
    model = Model(6, 3, lambda _: 0.005)
    for _ in range(7):
        model.send()
    model.weights.failed(4, model.now)
    model.leaders[2] = 4
    assert {model.send() for _ in range(12)} == {0, 2, 3, 5}


def test_batches_of_one_call_go_to_the_next_turns() -> None:
    model = Model(3, 3, lambda _: 0.005)
    model.weights.failed(2, model.now)
    assert [model.pick(n) for n in range(4)] == [0, 2, 0, 2]
    for queue in (0, 2, 0):
        model.turns.note_full(queue)
    assert model.pick() == 2
    model.turns.note_sent(2, TURN_BYTES)
    assert model.pick() == 0
