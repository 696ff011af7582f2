"""Groups that nothing is sent to after a change of their members, and that start again."""

from functools import partial

import pytest
import trio

from raftmq.broker.replica.group import Group
from raftmq.broker.tickets import Callback, Ticket
from raftmq.consensus import Change, ChangeKind
from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from tests.broker.cluster.test_reconfiguration import log_files
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

from .test_removed_learners import place


def is_forgotten(cluster: Cluster, node: int) -> bool:
    return node not in cluster.nodes[1].catalog.nodes


async def end(cluster: Cluster, how: str, *nodes: int) -> None:
    for node in nodes:
        if how == "stop":
            await cluster.stop(node)
        else:
            cluster.kill(node, power=how == "power")
    await trio.sleep(1)


@pytest.mark.parametrize(("how", "left"), [("stop", [1]), ("kill", [1, 4]), ("power", [1, 4, 5])])
def test_group_that_moved_is_led_after_all_its_voters_started_again(
    how: str, left: list[int]
) -> None:
    """That its last change is committed was known to the leader alone, while the logs of those who
    had to vote before were deleted."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await place(cluster, *left)
        await cluster.wait_until(lambda: cluster.members(1) == set(left))
        gone = {1, 2, 3} - set(left)
        await cluster.wait_until(lambda: not any(log_files(cluster, node, 1) for node in gone))
        await end(cluster, how, *left)
        await cluster.start(*left)
        await cluster.wait_led(1)

    in_cluster(scenario, size=5)


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_group_that_has_grown_is_led_by_its_majority_after_all_its_voters_started_again(
    how: str,
) -> None:
    """That its growth is committed was known to the leader alone, which fails for good."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await place(cluster, 1)
        await cluster.wait_until(lambda: cluster.members(1) == {1})
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await trio.sleep(5)
        await end(cluster, how, 2, 3, 1)
        await cluster.start(2, 3)
        await cluster.wait_led(1)

    in_cluster(scenario)


def test_removed_nodes_may_be_stopped_when_the_catalog_has_forgotten_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        for node in (3, 2):
            await cluster.change("remove", node)
            await cluster.wait_until(partial(is_forgotten, cluster, node))
            await cluster.stop(node)
        await end(cluster, "stop", 1)
        await cluster.start(1)
        await cluster.wait_led(0, 1, 2, 3)

    in_cluster(scenario)


def test_voter_that_hears_late_of_a_change_knows_by_itself_that_it_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It writes the change and what follows at once, so that no mark between them says so. The
    leader fails for good, and the third voter knows of the change alone."""

    async def scenario(cluster: Cluster) -> None:
        others = [f"node{node}" for node in (1, 2, 3, 4)]
        change_members = Group.change_members

        def change(group: Group, changes: list[Change], ticket: Ticket) -> None:
            if group.number == 1 and Change(ChangeKind.ADD_VOTER, 5) in changes:
                for other in others:
                    cluster.network.block(other, "node5")
            change_members(group, changes, ticket)

        await cluster.found("t", 3)
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        monkeypatch.setattr(Group, "change_members", change)
        await place(cluster, 1, 4, 5)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 4, 5})
        cluster.kill(4)
        ticket = Callback(lambda _: None, lambda _: None)
        cluster.nodes[1].groups[1].propose(Kind.COMMANDS, encode_commands([]), ticket)
        for other in others:
            cluster.network.unblock(other, "node5")
        await cluster.wait_until(lambda: not any(log_files(cluster, node, 1) for node in (2, 3)))
        for node in (1, 5):
            cluster.kill(node, power=True)
        await cluster.start(4, 5)
        await cluster.wait_led(1)

    in_cluster(scenario, size=5)
