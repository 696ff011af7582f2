"""The effects of faults are counted."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from raftmq.chaos.faults import FAULTS, Event, Schedule
from raftmq.chaos.outcome import Coverage
from raftmq.chaos.real.faults.nemesis import HANDLERS, OVERLAY_ONLY, play
from raftmq.chaos.real.network.rules import Rules
from raftmq.chaos.real.run_state import RunState
from raftmq.chaos.real.watch import Watch


def test_at_least_25_kinds_need_no_overlay() -> None:
    assert HANDLERS.keys() > OVERLAY_ONLY
    assert len({FAULTS[name].code for name in HANDLERS.keys() - OVERLAY_ONLY}) >= 25


@pytest.mark.parametrize("has_traffic", [False, True])
def test_fault_of_the_network_that_met_no_frame_counts_as_without_effect(
    has_traffic: bool,
) -> None:
    async def main() -> RunState:
        unused: Any = None
        rules = Rules()
        state = RunState(unused, rules, unused, Random(1), unused, trio.current_time())
        watch: Any = SimpleNamespace(
            situation=lambda _, fault: Coverage("none", "same", "unknown", fault)
        )
        async with trio.open_nursery() as nursery:
            # The second one lasts until the heal.
            delays = (Event(0, "delay", (), 200, 5.0), Event(500, "delay", (), 9000, 5.0))
            nursery.start_soon(play, state, Schedule(1, 2.0, delays), watch)
            await trio.sleep(0.1)
            while has_traffic and state.now_ms < 1400:
                rules.delay_seconds((1, 2), state.random)
                await trio.sleep(0.1)
        return state

    state = trio.run(main)
    assert state.struck == ({"delay": 2} if has_traffic else {})
    assert state.counts == ({} if has_traffic else {"without effect: delay": 2})


class Processes:
    """Node 1's process, which a test lets end."""

    def __init__(self) -> None:
        self.is_up = True
        self.stalls = 0

    def pid(self, node: int) -> int:
        return 7 * self.is_up

    def is_running(self, node: int) -> bool:
        return self.is_up

    def pause(self, node: int) -> None:
        assert self.is_up

    def resume(self, node: int) -> None:
        assert self.is_up

    def orders(self, node: int) -> Any:
        return SimpleNamespace(stall=(self.stalls, 0))

    def order(self, node: int, *, stall: tuple[int, int]) -> None:
        self.stalls += 1


def state_of(processes: Processes, nursery: trio.Nursery) -> RunState:
    nodes, unused = cast("Any", processes), cast("Any", None)
    return RunState(nodes, Rules(), unused, Random(1), nursery, trio.current_time(), members={1})


WATCH = cast(
    "Watch",
    SimpleNamespace(situation=lambda _, fault: Coverage("none", "same", "unknown", fault)),
)


def test_run_that_ends_while_a_task_of_a_fault_is_under_way_ends() -> None:
    """The undo of `slow-node` waits for its task, which the end of the run had taken along."""

    async def crash() -> None:
        await trio.sleep(0.3)
        raise RuntimeError("the proxy crashed")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            state = state_of(Processes(), nursery)
            nursery.start_soon(crash)
            schedule = Schedule(1, 60.0, (Event(0, "slow-node", (1,), 50_000, 5.0),))
            await play(state, schedule, WATCH)

    with pytest.raises(ExceptionGroup) as raised:
        trio.run(main)
    assert [str(error) for error in raised.value.exceptions] == ["the proxy crashed"]


def test_fault_whose_node_ends_and_comes_back_goes_on_and_counts_once() -> None:
    processes = Processes()

    async def main() -> RunState:
        async with trio.open_nursery() as nursery:
            state = state_of(processes, nursery)
            schedule = Schedule(1, 3.0, (Event(0, "stall-loop", (1,), 9000, 200.0),))
            nursery.start_soon(play, state, schedule, WATCH)
            await trio.sleep(0.3)
            processes.is_up, before = False, processes.stalls
            await trio.sleep(0.8)
            assert processes.stalls == before
            processes.is_up = True
        assert processes.stalls > before
        return state

    state = trio.run(main)
    assert (state.struck, state.counts) == ({"stall-loop": 1}, {})
