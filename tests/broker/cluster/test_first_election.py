"""Groups of a new cluster find their leaders although its nodes do not begin to serve together."""

import pytest
import trio
from msgspec.structs import replace

from raftmq.broker.cluster.first_election import SECONDS_MAX, hasten
from raftmq.broker.replica.group import Group
from raftmq.broker.settings import Raft, Settings
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

PACE = Raft(tick_ms=50)
SEEDS = range(1, 9)


def seconds_until_led(seed: int, *, is_hastened: bool, is_own_first: bool = False) -> float:
    """Simulated seconds from the last node's start until all groups of a new cluster are led.

    `is_own_first`: each node's settings list this node before the others.
    """

    async def scenario(cluster: Cluster) -> float:
        cluster.raft = PACE
        plain = cluster.settings

        def own_first(number: int) -> Settings:
            settings = plain(number)
            peers = sorted(settings.node.peers, key=lambda peer: peer.id != number)
            return replace(settings, node=replace(settings.node, peers=peers))

        if is_own_first:
            cluster.settings = own_first  # type: ignore[method-assign]

        async def start(number: int) -> None:
            await cluster.start(number)
            if is_hastened:
                node = cluster.nodes[number]
                node.start_soon(hasten, node)

        async with trio.open_nursery() as nursery:
            for peer in cluster.peers:
                nursery.start_soon(start, peer.id)
        started = trio.current_time()
        await cluster.wait_led(0, 1, 2, 3)
        return trio.current_time() - started

    seconds: float = in_cluster(scenario, seed=seed)
    return seconds


def test_new_groups_are_led_before_an_election_timeout_could_pass() -> None:
    timeout = PACE.election_ticks * PACE.tick_ms / 1000
    assert max(seconds_until_led(seed, is_hastened=True) for seed in SEEDS) < timeout
    # Without `hasten` some wait for one: the seeds would show nothing otherwise.
    assert max(seconds_until_led(seed, is_hastened=False) for seed in SEEDS) >= timeout


def test_order_of_the_peers_in_the_settings_does_not_matter() -> None:
    timeout = PACE.election_ticks * PACE.tick_ms / 1000
    slowest = max(seconds_until_led(n, is_hastened=True, is_own_first=True) for n in SEEDS)
    assert slowest < timeout


def test_groups_that_have_a_leader_or_records_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    campaigns: list[int] = []

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        monkeypatch.setattr(Group, "campaign", lambda group: campaigns.append(group.number))
        cluster.kill(1)
        cluster.start_soon(1)
        await cluster.wait_until(lambda: 1 in cluster.nodes and cluster.nodes[1].is_serving)
        for node in cluster.nodes.values():
            with trio.fail_after(SECONDS_MAX / 2):
                await hasten(node)

    in_cluster(scenario)
    assert campaigns == []
