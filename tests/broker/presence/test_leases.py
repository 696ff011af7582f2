"""Leases that clients take through a node: one holder at a time, each in its turn."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest

from raftmq.broker.presence.leases import HOLDER_SILENT_SECONDS, WAITING_MAX, Lessor
from raftmq.broker.serve.answers import LATER
from raftmq.wire.directory import HOLD_SECONDS, AskLease, LeaseAnswer

Act = Literal["take", "keep", "release"]
HELD, NOT_HELD = LeaseAnswer(is_held=True), LeaseAnswer(is_held=False)


class Asked:
    """An open request, and its answers."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.answers: list[Any] = []

    def answer(self, answer: Any) -> None:
        self.answers.append(answer)


class OfNode:
    """The directory's leases: the node has those that are named in `has`."""

    def __init__(self) -> None:
        self.has: set[str] = set()
        self.wanted: set[str] = set()

    def want(self, name: str) -> None:
        self.wanted.add(name)

    def give_up(self, name: str) -> None:
        self.wanted.discard(name)
        self.has.discard(name)

    def is_held(self, name: str) -> bool:
        return name in self.has


class Connected:
    """A connection of a client."""

    is_closed = False

    def end(self, lessor: Lessor) -> None:
        """The connection breaks."""
        self.is_closed = True
        lessor.closed(self)  # type: ignore[arg-type]


class Stage:
    """A lessor with two clients, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.of_node = OfNode()
        settings = SimpleNamespace(directory=SimpleNamespace(is_on=True))
        self.lessor = Lessor(SimpleNamespace(id=1, settings=settings))
        self.directory = SimpleNamespace(leases=self.of_node, leader=1)
        self.lessor.begin(self.directory)  # type: ignore[arg-type]
        self.first, self.second = (Connected() for _ in range(2))

    def ask(self, connection: Any, act: Act, wait: float = 30.0) -> Asked:
        asked = Asked(connection)
        request = AskLease("report", act, int(wait * 1000))
        answer = self.lessor.answer(request, asked)  # type: ignore[arg-type]
        if answer is not LATER:
            asked.answer(answer)
        return asked

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.lessor.look()


@pytest.fixture(name="stage")
def _stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr("trio.current_time", lambda: stage.now)
    return stage


def test_taker_waits_for_the_node_and_then_its_turn(stage: Stage) -> None:
    first, second = stage.ask(stage.first, "take"), stage.ask(stage.second, "take")
    stage.wait(1)
    assert (first.answers, second.answers) == ([], [])
    assert stage.of_node.wanted == {"report"}
    stage.of_node.has.add("report")
    stage.wait(1)
    assert (first.answers, second.answers) == ([HELD], [])
    stage.ask(stage.first, "release")
    assert second.answers == [HELD]


def test_lease_that_no_connection_wants_is_given_up(stage: Stage) -> None:
    stage.of_node.has.add("report")
    assert stage.ask(stage.first, "take").answers == [HELD]
    assert stage.ask(stage.first, "release").answers == [NOT_HELD]
    assert stage.of_node.wanted == set()
    late = stage.ask(stage.second, "take", wait=2)
    stage.wait(3)
    assert late.answers == [NOT_HELD]
    assert stage.of_node.wanted == set()


def test_keeper_hears_of_the_loss_or_that_there_is_none(stage: Stage) -> None:
    stage.of_node.has.add("report")
    stage.ask(stage.first, "take")
    kept = stage.ask(stage.first, "keep", wait=1)
    stage.wait(1.5)
    assert kept.answers == [HELD]
    lost = stage.ask(stage.first, "keep", wait=10)
    stage.of_node.has.clear()
    stage.wait(0.1)
    assert lost.answers == [NOT_HELD]
    assert stage.ask(stage.first, "keep").answers == [NOT_HELD]


def test_stranger_keeps_nothing(stage: Stage) -> None:
    stage.of_node.has.add("report")
    stage.ask(stage.first, "take")
    assert stage.ask(stage.second, "keep").answers == [NOT_HELD]
    assert stage.ask(stage.second, "release").answers == [NOT_HELD]
    assert stage.ask(stage.first, "take").answers == [HELD]


def test_lease_of_a_closed_connection_waits_as_its_client_may_count_on_it(stage: Stage) -> None:
    stage.of_node.has.add("report")
    stage.ask(stage.first, "take")
    second = stage.ask(stage.second, "take")
    stage.first.end(stage.lessor)
    stage.wait(HOLD_SECONDS - 0.1)
    assert second.answers == []
    stage.wait(0.2)
    assert second.answers == [HELD]


def test_silent_holder_loses_its_lease(stage: Stage) -> None:
    stage.of_node.has.add("report")
    stage.ask(stage.first, "take")
    second = stage.ask(stage.second, "take")
    stage.wait(HOLDER_SILENT_SECONDS - 0.1)
    assert second.answers == []
    stage.wait(0.2)
    assert second.answers == [HELD]
    assert stage.ask(stage.first, "keep").answers == [NOT_HELD]


def test_taker_that_leaves_has_no_turn(stage: Stage) -> None:
    first = stage.ask(stage.first, "take")
    second = stage.ask(stage.second, "take")
    stage.first.end(stage.lessor)
    assert first.answers == [NOT_HELD]
    stage.of_node.has.add("report")
    stage.wait(0.1)
    assert second.answers == [HELD]


def test_requests_that_wait_have_a_bound(stage: Stage) -> None:
    for _ in range(WAITING_MAX):
        stage.ask(stage.second, "take")
    (busy,) = stage.ask(stage.second, "take").answers
    assert busy.code == "busy"


def test_lease_that_the_node_lost_goes_to_nobody_while_its_client_may_count_on_it(
    stage: Stage,
) -> None:
    """The answer to the holder may be under way for long."""
    stage.of_node.has.add("report")
    stage.ask(stage.first, "take")
    stage.wait(4)
    stage.ask(stage.first, "keep")
    second = stage.ask(stage.second, "take")
    stage.of_node.has.clear()
    stage.wait(0.5)
    stage.of_node.has.add("report")
    stage.wait(HOLD_SECONDS - 0.6)
    assert second.answers == []
    assert stage.of_node.wanted == {"report"}
    stage.wait(0.2)
    assert second.answers == [HELD]


def test_lease_that_nobody_else_wants_is_given_up_when_its_client_has_given_up(
    stage: Stage,
) -> None:
    stage.of_node.has.add("report")
    stage.ask(stage.first, "take")
    stage.first.end(stage.lessor)
    stage.wait(HOLD_SECONDS - 0.1)
    assert stage.of_node.wanted == {"report"}
    stage.wait(0.2)
    assert stage.of_node.wanted == set()


def test_node_without_a_majority_sends_takers_to_another_one(stage: Stage) -> None:
    stage.directory.leader = 0
    (refusal,) = stage.ask(stage.first, "take").answers
    assert refusal.code == "unavailable"
    assert stage.of_node.wanted == set()


def test_keeper_that_asks_after_a_standstill_of_the_node_hears_of_the_loss(stage: Stage) -> None:
    stage.of_node.has.add("report")
    stage.ask(stage.first, "take")
    first = stage.ask(stage.first, "keep")
    stage.now += 60
    stage.of_node.has.clear()
    assert stage.ask(stage.first, "keep").answers == [NOT_HELD]
    assert first.answers == [NOT_HELD]
