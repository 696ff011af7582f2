"""Nodes whose `[access]` differs: one without it serves no client, and others say so."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace

from raftmq.broker.access.agreement import Agreement, access_digest
from raftmq.broker.settings import Access, NodeSettings, Peer, Settings, Tls
from raftmq.chaos.sim.cluster import Cluster as SimCluster
from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.codec import pack
from raftmq.wire.messages import FrameKind, Hello, Metadata, NodeStatus, Status
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, in_cluster

OFF = Access()
ON = Access(is_on=True, admins=["ann", "bob"])
GIVEN_UP = Access(is_given_up=True)


def in_tls() -> Settings:
    own = NodeSettings(1, "c", "/d", peers=[Peer(1, "db", 7400)])
    return Settings(own, tls=Tls(cert="c", key="k", ca="a"))


def give(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, node: int, access: Access) -> None:
    """Give one node other settings than the others have."""
    settings = SimCluster.settings

    def own(self: SimCluster, number: int) -> Settings:
        made = settings(self, number)
        return replace(made, access=access) if number == node else made

    monkeypatch.setattr(SimCluster, "settings", own)


def test_stance_is_equal_for_equal_settings_alone() -> None:
    assert access_digest(OFF) == access_digest(GIVEN_UP) == "off"
    assert access_digest(ON) == access_digest(replace(ON, admins=["bob", "ann", "bob"]))
    others = [replace(ON, is_open=True), replace(ON, admins=["ann"]), replace(ON, admins=[])]
    assert len({access_digest(each) for each in [ON, *others]}) == 4


def test_only_members_count() -> None:
    agreement = Agreement(OFF)
    agreement.note(1, access_digest(ON))
    agreement.note(2, "off")
    assert "on at 1" in agreement.why_no_clients({1, 2, 3}, was_on=False)
    assert agreement.why_no_clients({2, 3}, was_on=False) == ""
    # It was restarted without access.
    agreement.note(1, "off")
    assert agreement.why_no_clients({1, 2, 3}, was_on=False) == ""


def test_members_with_older_software_are_no_difference() -> None:
    """A rolling upgrade goes on as long as `raftmq cluster status` shows no problem."""
    for access in (ON, OFF):
        agreement = Agreement(access)
        agreement.note(2, "")
        assert agreement.differences({1, 2}) == []
        assert not agreement.why_no_clients({1, 2}, was_on=False)
    agreement = Agreement(ON)
    agreement.note(2, "off")
    assert agreement.differences({1, 2}) == [
        "access is off at node 2: give it the `[access]` of this node"
    ]


def test_where_there_are_users_access_is_on_or_was_given_up() -> None:
    assert Agreement(OFF).why_no_clients({1}, was_on=True)
    assert not Agreement(ON).why_no_clients({1}, was_on=True)
    given_up = Agreement(GIVEN_UP)
    given_up.note(2, access_digest(ON))
    assert not given_up.why_no_clients({1, 2}, was_on=True)
    with pytest.raises(ValueError, match="contradict each other"):
        replace(in_tls(), access=replace(ON, is_given_up=True)).validate()
    replace(in_tls(), access=GIVEN_UP).validate()


def test_node_without_access_serves_no_client_as_long_as_a_member_has_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.is_under_tls, cluster.user = True, ADMIN
        give(cluster, monkeypatch, 3, OFF)
        await cluster.found("orders", 3)
        for number, node in cluster.nodes.items():
            others = {1, 2, 3} - {number}
            told = " ".join(node.gate.differences)
            assert all(str(each) in told for each in (others if number == 3 else {3})), told
        for user in (ADMIN, ""):
            cluster.user = user
            async with cluster.client(3) as client:
                for request in ((FrameKind.METADATA, Metadata(None)), (FrameKind.STATUS, Status())):
                    with pytest.raises(Refused) as refused:
                        await client.request(request[0], pack(request[1]))
                    assert refused.value.reply.code == "unavailable"
                    assert (
                        "node 3: access is off here, and on at 1, 2" in refused.value.reply.message
                    )
                with pytest.raises(Refused):
                    await client.produce(QUEUE, [b"x"], 0)
        # Both others turn it off, by and by.
        monkeypatch.undo()
        for each in (1, 2):
            give(cluster, monkeypatch, each, OFF)
        for each in (1, 2):
            cluster.kill(each)
            await cluster.start(each)
            await trio.sleep(3)
        async with cluster.client(3) as client:
            await client.ask(FrameKind.STATUS, Status(), NodeStatus)
        assert cluster.nodes[3].gate.differences == []

    in_cluster(scenario)


def test_node_that_forgot_access_opens_no_cluster_whose_other_nodes_forgot_it_or_are_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.is_under_tls, cluster.user = True, ADMIN
        await cluster.found("orders", 3)
        async with cluster.client(cluster.leader(0)) as admin:
            await admin.admin("put_rule", ["ann", True, "read", "topic", "orders", False])
        await trio.sleep(1)
        for each in (2, 3):
            give(cluster, monkeypatch, each, OFF)
        for each in (1, 2, 3):
            cluster.kill(each)
        for each in (2, 3):
            cluster.start_soon(each)
        await cluster.wait_led(1)
        cluster.user = ""
        for each in (2, 3):
            async with cluster.client(each) as stranger:
                with pytest.raises(Refused, match="there are users or rules"):
                    await stranger.view()
        monkeypatch.undo()
        give(cluster, monkeypatch, 2, GIVEN_UP)
        cluster.kill(2)
        await cluster.start(2)
        async with cluster.client(2) as anybody:
            assert [topic.name for topic in (await anybody.view()).topics] == ["orders"]

    in_cluster(scenario)


def test_clients_of_an_open_node_go_when_a_member_gets_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.is_under_tls = True
        settings = SimCluster.settings
        monkeypatch.setattr(
            SimCluster, "settings", lambda *args: replace(settings(*args), access=OFF)
        )
        await cluster.found("orders", 1)
        async with cluster.client(3) as client:
            await client.ask(FrameKind.STATUS, Status(), NodeStatus)
            monkeypatch.undo()
            cluster.kill(1)
            await cluster.start(1)
            await trio.sleep(3)
            is_answered = False
            with trio.move_on_after(10), suppress(trio.BrokenResourceError):
                await client.ask(FrameKind.STATUS, Status(), NodeStatus)
                is_answered = True
            assert not is_answered

    in_cluster(scenario)


def test_other_administrators_are_told_and_nobody_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.is_under_tls, cluster.user = True, ADMIN
        give(cluster, monkeypatch, 3, Access(is_on=True, admins=[ADMIN, "eve"]))
        await cluster.found("orders", 3)
        assert cluster.nodes[1].gate.differences == [
            "`access.admins` or `access.is_open` differs from that of node 3"
        ]
        assert len(cluster.nodes[3].gate.differences) == 2
        async with cluster.client(3, user=ADMIN) as client:
            await client.ask(FrameKind.STATUS, Status(), NodeStatus)

    in_cluster(scenario)


def test_a_stranger_who_says_to_be_a_node_shuts_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        gate, connection = cluster.nodes[1].gate, cast("Any", SimpleNamespace(names=None))
        gate.greet(connection, Hello(1, "test", 2, "x", "stranger", access=access_digest(ON)))
        assert gate.differences == []
        async with cluster.client(1) as client:
            await client.ask(FrameKind.STATUS, Status(), NodeStatus)

    in_cluster(scenario)
