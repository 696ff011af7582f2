"""Strangers, outages and names that are lost: short campaigns, and what they catch in old code."""

from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from raftmq.chaos.faults import FAULTS
from raftmq.chaos.faults.schedule import draw
from raftmq.chaos.mutants import MUTANTS, play
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim import hostile
from raftmq.chaos.sim.run import run
from raftmq.chaos.workloads.strangers import FRAME_BYTES


@pytest.mark.parametrize("seed", [0, 1])
def test_cluster_survives_strangers(seed: int) -> None:
    outcome = run(draw(seed, [FAULTS["strangers"]], nodes=3, seconds=20.0))
    assert outcome.is_good, outcome.violations
    assert outcome.counts["strangers"] > 0


def test_cluster_serves_after_outages_and_lost_names() -> None:
    kinds = [FAULTS["outage"], FAULTS["lost-names"]]
    outcome = run(draw(0, kinds, nodes=3, seconds=20.0))
    assert outcome.is_good, outcome.violations
    assert outcome.counts["outage"] > 0


@pytest.mark.parametrize(("number", "seed"), [(211, 0), (212, 0), (213, 0), (216, 0), (231, 0)])
def test_mutant_of_connections_is_killed(number: int, seed: int) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.number == number)
    names = {violation.name for violation in play(mutant, seed).violations}
    assert names & set(mutant.killers), names


def test_streams_that_are_closed_give_the_node_no_room() -> None:
    stranger = object.__new__(hostile._Stranger)
    limit = hostile.LIMITS.requests_bytes_max + FRAME_BYTES + hostile.READ_BYTES
    closed = [SimpleNamespace(is_open=False, taken_bytes=0) for _ in range(100)]
    for taken, names in ((limit, []), (limit + 1, ["B1"])):
        found: list[Violation] = []
        stage = SimpleNamespace(violations=found, watch=SimpleNamespace(now_ms=0))
        endless = [*closed, SimpleNamespace(is_open=True, taken_bytes=taken)]
        vars(stranger).update(_stage=stage, _target="node1", _streams=[], _endless=endless)

        async def look() -> None:
            with trio.move_on_after(2 * hostile.LOOK_SECONDS):
                await stranger._look()

        trio.run(look, clock=MockClock(autojump_threshold=0))
        assert [violation[0] for violation in found] == names
