"""No second cluster is founded beside one that runs, and founders agree on what they found."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from raftmq.broker.cluster.admission import _Question
from raftmq.broker.cluster.founders import settings_not_followed
from raftmq.broker.leader_tasks import LeaderTasks
from raftmq.broker.settings import NodeSettings, Peer, Settings
from raftmq.chaos.sim.cluster import PORT
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, in_cluster


def peers(*numbers: int) -> list[Peer]:
    return [Peer(number, f"node{number}", PORT) for number in numbers]


def change_settings(cluster: Cluster, /, **changes: Any) -> None:
    """Start nodes with other settings from now on; a function is called with the node's number."""
    settings = cluster.settings

    def changed(number: int) -> Settings:
        found = settings(number)
        new = {name: each(number) if callable(each) else each for name, each in changes.items()}
        node: NodeSettings = msgspec.structs.replace(found.node, **new)
        return msgspec.structs.replace(found, node=node).validate()

    cluster.settings = changed  # type: ignore[method-assign]


async def check_that_they_wait(cluster: Cluster, words: Mapping[int, str]) -> None:
    """Nodes wait, and say for what; none of them has founded anything."""
    await trio.sleep(20)
    for number, text in words.items():
        assert not cluster.nodes[number].is_serving
        assert not cluster.nodes[number].groups
        assert text in cluster.nodes[number].waits_for


def test_nodes_added_to_the_settings_found_no_second_cluster() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.peers = peers(1)
        await cluster.found("t", 1)
        async with cluster.client(1) as client:
            await client.produce(QUEUE, [b"kept"] * 20, 0)
        assert not settings_not_followed(cluster.nodes[1])
        await cluster.stop(1)
        cluster.peers = peers(1, 2, 3)
        for node in (2, 3, 1):
            cluster.start_soon(node)
        text = (
            "node 1 is in a cluster that was founded without node {0}: "
            "`raftmq cluster add {0} node{0}:7400` there and `join`"
        )
        await check_that_they_wait(cluster, {node: text.format(node) for node in (2, 3)})
        told = settings_not_followed(cluster.nodes[1])
        assert "`raftmq cluster add 2 node2:7400`" in told
        assert "`raftmq cluster add 3 node3:7400`" in told
        assert "only when the cluster is founded" in told
        # As the advice says.
        for node in (2, 3):
            cluster.kill(node)
            cluster.join[node] = peers(1)
            await cluster.start(node)
            await cluster.change("add", node, host=f"node{node}", port=PORT)
            await cluster.wait_until(partial(cluster.has_joined, node))
        await cluster.wait_until(lambda: not settings_not_followed(cluster.nodes[1]))
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            assert [len(batch) for _, batch in await client.read(QUEUE, 0)] == [20]

    in_cluster(scenario)


@pytest.mark.parametrize("when", ["before", "later"])
def test_blank_founder_of_four_founds_nothing_beside_three(when: str) -> None:
    """Neither if it is added while it waits, nor after a restart."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        change_settings(cluster, peers=lambda number: peers(*range(1, max(3, number) + 1)), join=[])
        if when == "before":
            await cluster.change("add", 4, host="node4", port=PORT)
        cluster.start_soon(4)
        text = "is in a cluster that was founded without node 4"
        await check_that_they_wait(cluster, {4: text})
        if when == "later":
            await cluster.change("add", 4, host="node4", port=PORT)
            await check_that_they_wait(cluster, {4: text})
        cluster.kill(4)
        cluster.start_soon(4)
        await check_that_they_wait(cluster, {4: text})

    in_cluster(scenario)


def test_founder_whose_log_is_still_to_be_opened_is_not_taken_for_blank() -> None:
    """Its answer would say that the cluster is being founded."""

    async def scenario(cluster: Cluster) -> None:
        cluster.peers = peers(1)
        await cluster.found("t", 1)
        await cluster.stop(1)
        cluster.peers = peers(1, 2)
        cluster.start_soon(1)
        await cluster.wait_until(lambda: 1 in cluster.nodes and hasattr(cluster.nodes[1], "links"))
        node = cluster.nodes[1]
        await cluster.wait_until(lambda: node.links.is_admitted)
        await cluster.wait_until(lambda: node.is_serving)
        groups = dict(node.groups)
        node.groups.clear()
        node.is_serving = False
        cluster.start_soon(2)
        await check_that_they_wait(cluster, {2: "an answer of nodes [1]"})
        node.groups.update(groups)
        node.is_serving = True
        await check_that_they_wait(cluster, {2: "was founded without node 2"})

    in_cluster(scenario)


def test_founder_that_never_spoke_goes_by_what_was_founded_not_by_peers_that_were_edited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its folder is lost after it has answered the others, and before it founds and has a name.
    name_of, is_open = LeaderTasks._incarnation_of, vars(_Question)["is_open"].fget
    monkeypatch.setattr(
        LeaderTasks, "_incarnation_of", lambda s, n: "" if n == 3 else name_of(s, n)
    )
    lasting = property(lambda self: self._node.id == 3 or is_open(self))
    monkeypatch.setattr(_Question, "is_open", lasting)

    async def scenario(cluster: Cluster) -> None:
        for node in (1, 2, 3):
            cluster.start_soon(node)
        await cluster.wait_until(lambda: all(n in cluster.nodes for n in (1, 2, 3)))
        nodes = cluster.nodes
        await cluster.wait_until(lambda: all(getattr(nodes[n], "groups", {}) for n in (1, 2)))
        cluster.kill(3)
        cluster.wipe(3)
        await cluster.wait_until(lambda: cluster.nodes[1].catalog.is_bootstrapped)
        await cluster.start(4)
        await cluster.change("add", 4, host="node4", port=PORT)
        await cluster.wait_until(lambda: cluster.has_joined(4))
        assert not cluster.nodes[1].catalog.nodes[3].incarnation
        await cluster.stop(1)
        change_settings(
            cluster,
            peers=lambda number: [] if number == 4 else peers(1, 2, 3, 4)[: 3 + (number == 1)],
        )
        await cluster.start(1)
        monkeypatch.undo()
        cluster.start_soon(3)
        await cluster.wait_until(lambda: 3 in cluster.nodes and cluster.nodes[3].is_serving, 20)
        await cluster.wait_until(lambda: cluster.nodes[3].catalog.is_bootstrapped)

    in_cluster(scenario)


def of_third(value: Any, others: Any) -> Callable[[int], Any]:
    return lambda number: value if number == 3 else others


DIFFERENCES = {
    "groups": ({"groups": of_third(6, 3)}, "`groups` is 6 there and 3 here"),
    "replicas": ({"replicas": of_third(1, 3)}, "`replicas` is 1 there and 3 here"),
    "port": (
        {"peers": of_third([*peers(1, 3), Peer(2, "node2", 7)], peers(1, 2, 3))},
        "`peers` has node 2 at node2:7 there and node2:7400 here",
    ),
    "more": (
        {"peers": of_third(peers(1, 2, 3, 4), peers(1, 2, 3))},
        "`peers` has node 4 at node4:7400 there and not here",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_founders_whose_settings_differ_wait_and_say_what_differs(name: str) -> None:
    changes, text = DIFFERENCES[name]

    async def scenario(cluster: Cluster) -> None:
        settings = cluster.settings
        change_settings(cluster, **changes)
        for node in (1, 2, 3):
            cluster.start_soon(node)
        where = "founder node 3 has other settings: "
        await check_that_they_wait(cluster, {1: where + text, 2: where + text, 3: "founder node 1"})
        cluster.kill(3)
        cluster.settings = settings  # type: ignore[method-assign]
        await cluster.start(3)
        await cluster.wait_led(0)
        await cluster.wait_until(lambda: cluster.nodes[3].catalog.is_bootstrapped)

    in_cluster(scenario)


def test_founders_that_list_each_other_in_another_order_found_together() -> None:
    async def scenario(cluster: Cluster) -> None:
        change_settings(cluster, peers=of_third(peers(3, 1, 2), peers(1, 2, 3)))
        await cluster.found("t", 1)

    in_cluster(scenario)


def test_waiting_founder_names_the_address_and_the_error_of_each_it_waits_for() -> None:
    async def scenario(cluster: Cluster) -> None:
        change_settings(cluster, cluster=lambda number: "prod" if number == 2 else "production")
        for node in (1, 2):
            cluster.start_soon(node)
        await check_that_they_wait(
            cluster,
            {
                1: "node 2 at node2:7400: this is cluster 'prod', not 'production'",
                2: "node 1 at node1:7400: this is cluster 'production', not 'prod'",
            },
        )
        for node in (1, 2):
            assert "node 3 at node3:7400: " in cluster.nodes[node].waits_for
        assert "name some of them in `join`" not in cluster.nodes[2].waits_for

    in_cluster(scenario)


def test_names_in_peers_are_missed_only_if_the_settings_were_edited() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await cluster.start(4)
        await cluster.change("add", 4, host="node4", port=PORT)
        await cluster.wait_until(lambda: cluster.has_joined(4))
        # A cluster that grew has founders that name the founders: that is as it should be.
        assert not any(map(settings_not_followed, cluster.nodes.values()))
        cluster.kill(3)
        change_settings(cluster, peers=lambda number: peers(1, 3) if number == 3 else peers(1, 2))
        await cluster.start(3)
        await cluster.wait_until(lambda: cluster.nodes[3].catalog.is_bootstrapped)
        assert "`raftmq cluster remove 2`" in settings_not_followed(cluster.nodes[3])

    in_cluster(scenario)
