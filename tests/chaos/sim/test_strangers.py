"""Strangers, outages and names that are lost: short campaigns, and the old bugs that they catch."""

from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from raftmq.chaos.faults import FAULTS
from raftmq.chaos.faults.schedule import draw
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.faults import hostile
from raftmq.chaos.sim.run import run
from raftmq.chaos.workloads.strangers import FRAME_BYTES
from tests.quality.mutants import MUTANTS, play


@pytest.mark.parametrize("seed", [0, 1])
def test_cluster_survives_strangers(seed: int) -> None:
    outcome = run(draw(seed, [FAULTS["strangers"]], nodes=3, seconds=20.0))
    assert outcome.is_good, outcome.violations
    assert outcome.counts["strangers"] > 0


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [6])
def test_wiped_nodes_come_back_where_strangers_lie_and_settings_are_of_old(seed: int) -> None:
    names = ("strangers", "wipe", "lose-group", "kill-leader", "replace-node", "return-blank")
    outcome = run(draw(seed, [FAULTS[name] for name in names], nodes=3, seconds=40.0))
    assert outcome.is_good, outcome.violations
    assert outcome.counts["settings of old"] > 0


def test_cluster_serves_after_outages_and_lost_names() -> None:
    kinds = [FAULTS["outage"], FAULTS["lost-names"]]
    outcome = run(draw(0, kinds, nodes=3, seconds=20.0))
    assert outcome.is_good, outcome.violations
    assert outcome.counts["outage"] > 0


KILLED = [(211, 0), (212, 0), (213, 0), (216, 0), (218, 2), (231, 0), (232, 0), (235, 0)]


@pytest.mark.campaign
@pytest.mark.parametrize(("number", "seed"), KILLED)
def test_mutant_of_connections_is_killed(number: int, seed: int) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.number == number)
    names = {violation.name for violation in play(mutant, seed).violations}
    assert names & set(mutant.killers), names


def test_what_the_node_holds_no_more_gives_it_no_room_and_takes_none() -> None:
    def stream(taken: int, **others: bool) -> SimpleNamespace:
        states = {"is_open": True, "is_orphan": False, "is_held": True, **others}
        return SimpleNamespace(**states, taken_bytes=taken)

    stranger = object.__new__(hostile.Stranger)
    limit = hostile.LIMITS.requests_bytes_max + FRAME_BYTES + hostile.READ_BYTES
    gone = [stream(0, is_open=False) for _ in range(100)]
    gone += [stream(limit, is_orphan=True) for _ in range(100)]
    # Its system connected them while the node stood still.
    gone += [stream(0, is_held=False) for _ in range(hostile.DESCRIPTORS)]
    for taken, names in ((limit, []), (limit + 1, ["B1"])):
        found: list[Violation] = []
        state = SimpleNamespace(violations=found, watch=SimpleNamespace(now_ms=0))
        streams = [*gone, stream(taken)]
        vars(stranger).update(_state=state, _target="node1", _streams=streams, _endless=streams)

        async def look() -> None:
            with trio.move_on_after(2 * hostile.LOOK_SECONDS):
                await stranger._look()

        trio.run(look, clock=MockClock(autojump_threshold=0))
        assert [violation[0] for violation in found] == names
