"""The state of the cluster as handlers of faults see it."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.real.faults.members import are_groups_settled, is_counted_on
from raftmq.chaos.real.run_state import PATIENCE_SECONDS, RunState, are_outdated, goals_of

pytestmark = pytest.mark.anyio


def level(node: int) -> dict[str, Any]:
    """A node that leads as 1 or follows, and has all that there is."""
    group = {
        "group": 1,
        "role": "leader" if node == 1 else "follower",
        "term": 1,
        "member": node,
        "voters": [1, 2, 3],
        "voters_outgoing": [],
        "learners": [],
        "last_index": 9,
        "progress": {str(voter): {"match": 9} for voter in (1, 2, 3)},
    }
    return {"id": node, "groups": [group]}


def state_of(statuses: Any) -> RunState:
    nodes: Any = SimpleNamespace(statuses=statuses)
    unused: Any = None
    state = RunState(nodes, unused, unused, Random(1), unused, trio.current_time())
    state.members = {1, 2, 3}
    return state


async def test_disk_is_damaged_once_all_others_are_level() -> None:
    async def statuses() -> dict[int, dict[str, Any]]:
        return {node: level(node) for node in (1, 3)}

    state = state_of(statuses)
    await state.wait_intact_elsewhere(2, is_latent=True)
    assert state.broken == {2: True}


def test_fault_that_needs_a_leader_waits_for_the_election() -> None:
    asked = 0

    async def statuses() -> dict[int, dict[str, Any]]:
        nonlocal asked
        asked += 1
        return {node: level(node) for node in (1, 2, 3) if node != 1 or asked > 5}

    async def main() -> None:
        assert await state_of(statuses).leader() == 1

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_damage_waits_for_others_to_be_well_and_not_for_ever() -> None:
    well = False

    async def statuses() -> dict[int, dict[str, Any]]:
        return {node: level(node) for node in (1, 3)} if well else {}

    async def main() -> None:
        nonlocal well
        state = state_of(statuses)
        with pytest.raises(Skipped, match="not well"):
            await state.need_health(2)
        assert PATIENCE_SECONDS <= trio.current_time() - state.began < 2 * PATIENCE_SECONDS
        well = True
        await state.need_health(2)
        state.broken[1] = False
        with pytest.raises(Skipped, match="damaged already"):
            await state.need_health(2)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_disk_of_a_node_that_was_replaced_meanwhile_is_left_alone() -> None:
    """Else the run would wait for ever for a node that no task will start."""

    async def statuses() -> dict[int, dict[str, Any]]:
        state.members.discard(2)
        return {node: level(node) for node in (1, 3)}

    state = state_of(statuses)
    with pytest.raises(Skipped, match="replaced"):
        await state.wait_intact_elsewhere(2, is_latent=False)
    assert not state.broken


def test_group_with_a_voter_that_leaves_is_not_well() -> None:
    """Node 1 has been replaced by 4, which group 1 has not heard of yet: it may be gone next."""
    statuses = {node: level(node) for node in (1, 3)}
    statuses[4] = {"id": 4, "groups": []}
    assert not goals_of(statuses, {3, 4}, victim=2)
    assert goals_of(statuses, {1, 3, 4}, victim=2)[1].voters == (1, 3)
    assert not goals_of(statuses, {1, 3, 4})


def test_goal_is_outdated_when_one_of_its_voters_votes_no_longer() -> None:
    statuses = {node: level(node) for node in (1, 2, 3)}
    goals = goals_of(statuses, {1, 2, 3})
    assert goals
    assert not are_outdated(statuses, goals)
    leader = statuses[goals[1].leader]["groups"][0]
    leader["voters"] = [voter for voter in leader["voters"] if voter != goals[1].voters[-1]]
    assert are_outdated(statuses, goals)


@pytest.mark.parametrize("half", ["voters", "voters_outgoing", "learners"])
async def test_node_that_leaves_is_counted_on_while_any_half_of_a_membership_has_it(
    half: str,
) -> None:
    async def statuses() -> dict[int, dict[str, Any]]:
        told = {node: level(node) for node in (1, 2, 3)}
        told[3]["groups"][0][half] = [4, 9]
        return told

    state = state_of(statuses)
    assert await is_counted_on(state, 9)
    assert not await is_counted_on(state, 8)


@pytest.mark.parametrize(
    ("changed", "is_settled"),
    [
        ({}, True),
        # A change of the voters is under way; node 4 is gone and still votes; two vote.
        ({"voters_outgoing": [1, 2, 3]}, False),
        ({"voters": [1, 2, 4]}, False),
        ({"voters": [1, 2]}, False),
    ],
)
async def test_one_node_may_die_once_three_members_vote_everywhere(
    changed: dict[str, list[int]], *, is_settled: bool
) -> None:
    answers = {node: level(node) for node in (1, 2, 3)}
    answers[2]["groups"][0] |= changed

    async def statuses() -> dict[int, dict[str, Any]]:
        return answers

    state = state_of(statuses)
    assert await are_groups_settled(state) is is_settled
    # A damaged node is not asked; one that does not answer may be in the middle of a change.
    state.broken[2] = True
    assert await are_groups_settled(state)
    del answers[3]
    assert not await are_groups_settled(state)
