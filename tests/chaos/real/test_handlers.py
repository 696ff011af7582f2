"""The catalogue and the handlers know the same faults, and the effects of a handler are counted."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from raftmq.chaos.faults import FAULTS, Event, Schedule, World, of_world
from raftmq.chaos.outcome import Coverage
from raftmq.chaos.real.faults.handlers import LASTING, ONCE
from raftmq.chaos.real.faults.nemesis import HANDLED, HANDLERS, OVERLAY_ONLY, play
from raftmq.chaos.real.network.rules import Rules
from raftmq.chaos.real.stage import Stage


def test_every_fault_of_the_real_world_has_a_handler_and_no_other_has() -> None:
    assert {fault.name for fault in of_world(World.REAL)} == HANDLED


def test_lasting_faults_are_held_and_others_happen() -> None:
    old = HANDLED - HANDLERS.keys()
    assert {name for name in old if FAULTS[name].lasts} == LASTING.keys()
    assert not LASTING.keys() & ONCE.keys()


def test_at_least_25_kinds_need_no_overlay() -> None:
    assert OVERLAY_ONLY < HANDLED
    assert len({FAULTS[name].code for name in HANDLED - OVERLAY_ONLY}) >= 25


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
