"""What a fault did is counted."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from raftmq.chaos.faults import FAULTS, Event, Schedule
from raftmq.chaos.outcome import Coverage
from raftmq.chaos.real.faults.nemesis import HANDLERS, OVERLAY_ONLY, play
from raftmq.chaos.real.network.rules import Rules
from raftmq.chaos.real.stage import Stage


def test_at_least_25_kinds_need_no_overlay() -> None:
    assert HANDLERS.keys() > OVERLAY_ONLY
    assert len({FAULTS[name].code for name in HANDLERS.keys() - OVERLAY_ONLY}) >= 25


@pytest.mark.parametrize("has_traffic", [False, True])
def test_fault_of_the_network_that_met_no_frame_counts_as_without_effect(
    has_traffic: bool,
) -> None:
    async def main() -> Stage:
        unused: Any = None
        rules = Rules()
        stage = Stage(unused, rules, unused, Random(1), unused, trio.current_time())
        watch: Any = SimpleNamespace(
            situation=lambda _, fault: Coverage("none", "same", "unknown", fault)
        )
        async with trio.open_nursery() as nursery:
            # The second one lasts until the heal.
            delays = (Event(0, "delay", (), 200, 5.0), Event(500, "delay", (), 9000, 5.0))
            nursery.start_soon(play, stage, Schedule(1, 2.0, delays), watch)
            await trio.sleep(0.1)
            while has_traffic and stage.now_ms < 1400:
                rules.delay_seconds((1, 2), stage.random)
                await trio.sleep(0.1)
        return stage

    stage = trio.run(main)
    assert stage.struck == ({"delay": 2} if has_traffic else {})
    assert stage.counts == ({} if has_traffic else {"without effect: delay": 2})
