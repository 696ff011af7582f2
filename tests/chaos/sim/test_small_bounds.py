"""Runs whose nodes have small bounds: work stops at them, and all promises hold."""

from typing import Any

import pytest

from raftmq.broker.deliver.matching import Matching
from raftmq.broker.loop_budget import Turns
from raftmq.broker.serve import pages
from raftmq.chaos.campaign import Plan, run_seed
from raftmq.chaos.faults.catalogue import World
from raftmq.chaos.sim.small_bounds import SMALL, SMALL_EVERY, small_bounds


def test_bounds_are_small_for_one_seed_in_ten_and_return() -> None:
    before = {bound: getattr(*bound) for bound in SMALL}
    small = []
    for seed in range(3 * SMALL_EVERY):
        with small_bounds(seed):
            if pages.LOOKS_MAX == 1:
                small.append(seed)
                assert {bound: getattr(*bound) for bound in SMALL} == SMALL
        assert {bound: getattr(*bound) for bound in SMALL} == before
    assert small == [8, 18, 28]


@pytest.mark.campaign
def test_work_stops_at_small_bounds_and_all_goes_well(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"turns": 0, "masks": 0}
    go_on, carry_out = Turns._go_on, Matching._carry_out_one

    def counted_turn(turns: Turns) -> None:
        counts["turns"] += 1
        go_on(turns)

    async def counted_mask(matching: Any) -> None:
        counts["masks"] += 1
        await carry_out(matching)

    monkeypatch.setattr(Turns, "_go_on", counted_turn)
    monkeypatch.setattr(Matching, "_carry_out_one", counted_mask)
    outcome = run_seed(Plan(world=World.SIM, workload="pop", seconds=20), 8).outcome
    assert outcome.is_good, outcome.violations
    assert counts["turns"] > 100
    assert counts["masks"] > 10
