"""Where nodes stand: told by the nodes, kept by the catalog, heeded by changes of the nodes."""

import pytest
import trio

from raftmq.broker.placement.places import crowding
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.levels import FIRST_LEVEL
from raftmq.machine.catalog.state import Place
from tests.broker.harness import Cluster, Refused
from tests.broker.replica.test_old_catalogs import lead
from tests.broker.scenario import in_cluster

ZONES = {1: Place("a"), 2: Place("b"), 3: Place("c", "m3")}


def known(cluster: Cluster) -> dict[int, Place]:
    return cluster.nodes[cluster.leader(SYSTEM_GROUP)].catalog.places


def test_leader_notes_where_nodes_stand_and_where_they_went() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.places = dict(ZONES)
        await cluster.found()
        await cluster.wait_until(lambda: known(cluster) == ZONES)
        cluster.places[2] = Place("d")
        await cluster.stop(2)
        assert known(cluster) == ZONES
        await cluster.start(2)
        await cluster.wait_until(lambda: known(cluster) == {**ZONES, 2: Place("d")})
        version = cluster.nodes[1].catalog.version
        await trio.sleep(20)
        assert cluster.nodes[1].catalog.version == version

    in_cluster(scenario)


def test_no_place_is_noted_below_its_level() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.places, cluster.level_max = dict(ZONES), {2: FIRST_LEVEL}
        await cluster.found()
        await trio.sleep(10)
        assert known(cluster) == {}

    in_cluster(scenario)


def test_node_that_joins_nodes_with_zones_names_its_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.places = {1: Place("a"), 2: Place("a"), 3: Place("b")}
        await cluster.found()
        await cluster.wait_until(lambda: len(known(cluster)) == 3)
        with pytest.raises(Refused, match=r"have zones \(a, b\): name that of node 4"):
            await cluster.change("add", 4, host="node4", port=7400)
        await cluster.change("add", 4, host="node4", port=7400, zone="c")
        leader = cluster.nodes[cluster.leader(SYSTEM_GROUP)]
        assert leader.catalog.places[4] == Place("c")
        # Of each group that it takes over it gets the copy that stood beside another one.
        taken = [group for group in leader.catalog.groups.values() if 4 in group.members]
        assert len(taken) == 3
        for group in taken[1:]:
            assert crowding(group.members, leader.catalog.places).zones == 0
        # A request that is repeated, perhaps by an older client, needs no zone.
        await cluster.change("add", 4, host="node4", port=7400)
        assert leader.catalog.places[4] == Place("c")

    in_cluster(scenario)


def test_place_in_a_nodes_settings_overrides_that_of_the_command() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.places = dict(ZONES)
        await cluster.found()
        await cluster.change("add", 4, host="node4", port=7400, zone="c")
        cluster.places[4] = Place("b", "m3")
        await cluster.start(4)
        await cluster.wait_until(lambda: known(cluster)[4] == Place("b", "m3"))

    in_cluster(scenario)


def test_leader_that_was_cut_off_does_not_bring_back_an_old_place() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.places = dict(ZONES)
        await cluster.found()
        await lead(cluster, SYSTEM_GROUP, 1)
        await cluster.wait_until(lambda: known(cluster) == ZONES)
        await cluster.stop(3)
        await lead(cluster, SYSTEM_GROUP, 2)
        for one, other in (("node1", "node3"), ("node3", "node1")):
            cluster.network.block(one, other)
        cluster.places[3] = Place("d")
        await cluster.start(3)
        await cluster.wait_until(lambda: known(cluster)[3] == Place("d"))
        await lead(cluster, SYSTEM_GROUP, 1)
        await trio.sleep(10)
        assert known(cluster)[3] == Place("d")

    in_cluster(scenario)
