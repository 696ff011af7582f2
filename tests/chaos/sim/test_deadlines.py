"""Each call of a client is answered by its timeout, in whatever a workload does."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from raftmq.chaos.faults import FAULTS, Schedule, draw
from raftmq.chaos.sim.run import run
from raftmq.chaos.workloads.deadlines import Deadlines
from raftmq.client.produce.producer import Producer
from tests.quality.mutants import MUTANTS, planted


def test_seed_2_commit_of_several_leaders_has_one_timeout() -> None:
    """It had one for each leader that it told, so that it was answered late."""
    kinds = ("client-crash", "client-churn", "client-slow", "pause")
    schedule = draw(2, [FAULTS[kind] for kind in kinds], nodes=3, seconds=15.0)
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "part-is-the-whole")
    with planted(mutant):
        outcome = run(schedule)
    assert "answered-late" not in {violation.name for violation in outcome.violations}
    assert outcome.compared["answers by their deadlines"] > 100


def test_run_without_a_measured_call_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.chaos.workloads.deadlines.CALLS", {})
    monkeypatch.setattr("raftmq.chaos.workloads.deadlines.LATER", {})
    outcome = run(Schedule(1, 4, ()))
    assert "answers by their deadlines" in outcome.vacuous


def test_calls_are_as_they_were_afterwards() -> None:
    send = Producer.send
    with Deadlines(now=lambda: 0.0, seconds=1.0).watched():
        assert Producer.send is not send
    assert Producer.send is send


@pytest.mark.parametrize(("seconds", "late"), [(0.9, []), (3.0, ["had no answer"])])
def test_call_that_is_cancelled_after_its_deadline_is_late(
    seconds: float, late: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send_many(producer: Producer, *, timeout: float) -> None:
        await trio.sleep_forever()

    async def give_up(deadlines: Deadlines) -> None:
        producer: Any = SimpleNamespace()
        with deadlines.watched(), trio.move_on_after(seconds):
            await Producer.send_many(producer, timeout=1.0)

    monkeypatch.setattr(Producer, "send_many", send_many)
    deadlines = Deadlines(now=trio.current_time, seconds=None)
    trio.run(give_up, deadlines, clock=MockClock(autojump_threshold=0))
    assert len(deadlines.late) == len(late)
    assert all(words in text for words, text in zip(late, deadlines.late, strict=True))
    assert deadlines.compared.total() == len(late)
