"""A node whose data folder was lost re-enters with a blank one, by itself, as another member."""

from collections.abc import Sequence
from functools import partial

import msgspec
import pytest
import trio

from raftmq.broker.cluster.identity import Identity, WrongFolder, load, save
from raftmq.broker.cluster.peer_identities import SUPERSEDED, PeerIdentities
from raftmq.broker.replica.group import generation_of, member_id, node_of
from raftmq.broker.serve.connection import Refusal
from raftmq.broker.settings import Settings
from raftmq.broker.tickets import Callback
from raftmq.chaos.world import MemoryFiles
from raftmq.consensus import ConfState
from raftmq.log.record import Kind
from raftmq.machine.catalog import replicas
from raftmq.machine.catalog.catalog import Catalog, Node
from raftmq.machine.catalog.nodes import NameNode
from raftmq.machine.commands import encode_commands
from raftmq.wire.messages import PROTOCOL, ErrorReply, Hello
from tests.broker.cluster.test_reconfiguration import (
    DATA_GROUPS,
    check_everywhere,
    produce_everywhere,
)
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

GROUPS = (0, *DATA_GROUPS)


def voters(cluster: Cluster, group: int) -> set[int]:
    """The member ids that vote in a group, if those of them that run agree on it; else none."""
    leader = cluster.leader(group)
    conf = cluster.nodes[leader].groups[group].conf_state if leader else ConfState()
    for node in cluster.nodes.values():
        replica = node.groups.get(group)
        is_voter = member_id(node.id, node.generation) in conf.voters
        if is_voter and (replica is None or replica.conf_state != conf):
            return set()
    return set() if conf.voters_outgoing else set(conf.voters)


def generation(cluster: Cluster, node: int) -> int:
    """The generation of a node that runs; 0 also if it does not."""
    return cluster.nodes[node].generation if node in cluster.nodes else 0


async def wait_voters(cluster: Cluster, *members: int) -> None:
    """Wait until exactly these member ids vote in every group."""
    await cluster.wait_until(
        lambda: all(voters(cluster, group) == set(members) for group in GROUPS)
    )


def wipe(cluster: Cluster, *nodes: int) -> None:
    """Nodes lose their disks."""
    for node in nodes:
        if node in cluster.processes:
            cluster.kill(node)
        cluster.wipe(node)


async def wait_level(cluster: Cluster, nodes: Sequence[int]) -> None:
    """Wait until these nodes' replicas are alike."""

    def is_level() -> bool:
        for group in GROUPS:
            machines = [cluster.nodes[n].groups[group].machine for n in nodes]
            if len({(machine.applied, machine.digest) for machine in machines}) > 1:
                return False
        return True

    await cluster.wait_until(is_level)


async def wait_gives_up(cluster: Cluster, node: int) -> str:
    """Wait until a node has stopped by itself: its last words."""
    await cluster.wait_until(lambda: node in cluster.stopped)
    return str(cluster.stopped.pop(node))


@pytest.mark.parametrize("node", [1, 2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_wiped_node_re_enters_and_counts_again(node: int, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 10)
        others = [n for n in (1, 2, 3) if n != node]
        wipe(cluster, node)
        await produce_everywhere(cluster, 10, 5)
        await cluster.start(node)
        await wait_voters(cluster, *others, member_id(node, 1))
        assert cluster.nodes[node].status()["generation"] == 1
        # It votes and holds everything: with it, one of the others can be missed.
        cluster.kill(others[0])
        await cluster.wait_led(*GROUPS)
        await produce_everywhere(cluster, 15, 5)
        await cluster.start(others[0])
        await check_everywhere(cluster, 20)
        await wait_level(cluster, (1, 2, 3))

    in_cluster(scenario, seed=seed)


def test_wiped_node_does_not_vote_before_it_has_what_it_once_acknowledged() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        # Records that only nodes 1 and 2 hold are acked, then 2 is wiped and 1 is down.
        cluster.kill(3)
        await cluster.wait_led(*GROUPS)
        await produce_everywhere(cluster, 0, 10)
        wipe(cluster, 2)
        cluster.kill(1)
        cluster.start_soon(2)
        cluster.start_soon(3)
        await trio.sleep(60)
        assert [cluster.leader(group) for group in GROUPS] == [0, 0, 0, 0]
        assert "a majority of the other nodes" in cluster.nodes[2].waits_for
        await cluster.start(1)
        await wait_voters(cluster, 1, member_id(2, 1), 3)
        await check_everywhere(cluster, 10)

    in_cluster(scenario)


def test_two_wiped_nodes_of_three_wait_and_say_for_what() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 1)
        wipe(cluster, 2, 3)
        cluster.start_soon(2)
        cluster.start_soon(3)
        await trio.sleep(60)
        for node in (2, 3):
            assert not cluster.nodes[node].is_serving
            assert "its data folder is blank, and it had another" in cluster.nodes[node].waits_for

    in_cluster(scenario)


def test_folder_that_is_the_only_hope_of_a_group_is_not_fenced_off() -> None:
    """A node with the only replica of a group starts without its mount."""

    async def scenario(cluster: Cluster) -> None:
        settings = cluster.settings

        def single(number: int) -> Settings:
            chosen = settings(number)
            own = msgspec.structs.replace(chosen.node, replicas=1)
            return msgspec.structs.replace(chosen, node=own)

        cluster.settings = single  # type: ignore[method-assign]
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        cluster.kill(2)
        old = cluster.files[2].copy()
        wipe(cluster, 2)
        cluster.start_soon(2)
        await trio.sleep(60)
        text = "partition groups [2] have no leader without its old folder"
        assert text in cluster.nodes[2].waits_for
        cluster.kill(2)
        cluster.files[2].become(old)
        await cluster.start(2)
        await cluster.wait_led(*GROUPS)
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


def test_nodes_can_be_wiped_one_after_the_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        expected = {1: 1, 2: 2, 3: 3}
        for turn, node in enumerate((1, 2, 3, 2)):
            wipe(cluster, node)
            await cluster.start(node)
            expected[node] = member_id(node, generation_of(expected[node]) + 1)
            await wait_voters(cluster, *expected.values())
            await produce_everywhere(cluster, 5 * turn + 5, 5)
        await check_everywhere(cluster, 25)
        for node in (1, 2, 3):
            cluster.kill(node, power=True)
        await cluster.start(1, 2, 3)
        await cluster.wait_led(*GROUPS)
        await check_everywhere(cluster, 25)
        await wait_level(cluster, (1, 2, 3))

    in_cluster(scenario)


def test_node_that_had_joined_and_is_wiped_re_enters() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await cluster.start(4)
        await cluster.change("replace", 1, new=4, host="node4", port=7400)
        await wait_voters(cluster, 2, 3, 4)
        await produce_everywhere(cluster, 0, 5)
        wipe(cluster, 4)
        await cluster.start(4)
        await wait_voters(cluster, 2, 3, member_id(4, 1))
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.2, 0.5, 1.0])
def test_node_that_is_wiped_again_while_it_re_enters_gets_there(pause: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        wipe(cluster, 2)
        cluster.start_soon(2)
        await cluster.wait_until(lambda: cluster.nodes[1].catalog.nodes[2].generation == 1)
        await trio.sleep(pause)
        wipe(cluster, 2)
        await cluster.start(2)
        await wait_voters(cluster, 1, member_id(2, 2), 3)
        for group in GROUPS:
            conf = cluster.nodes[cluster.leader(group)].groups[group].conf_state
            assert conf.learners == ()
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


async def lose_power_while_re_entering(cluster: Cluster, node: int, call: int) -> None:
    """A node starts with an empty disk, whose machine loses power at a call to the disk."""
    wipe(cluster, node)
    cluster.files[node].crash_at(call)
    cluster.start_soon(node)
    starts = cluster.incarnations[node]
    await cluster.wait_until(
        lambda: cluster.incarnations[node] > starts and node not in cluster.processes
    )


@pytest.mark.parametrize("call", range(1, 25))
def test_power_loss_at_any_disk_call_of_re_entering_is_harmless(call: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 3)
        await lose_power_while_re_entering(cluster, 2, call)
        await cluster.start(2)
        await cluster.wait_until(
            lambda: all(set(map(node_of, voters(cluster, g))) == {1, 2, 3} for g in GROUPS)
        )
        own = cluster.nodes[2]
        assert own.generation >= 1
        await wait_voters(cluster, 1, member_id(own.id, own.generation), 3)
        await check_everywhere(cluster, 3)

    in_cluster(scenario)


@pytest.mark.parametrize("has_joined", [False, True])
def test_old_folder_that_comes_back_after_another_took_its_place_stops(has_joined: bool) -> None:
    async def scenario(cluster: Cluster) -> str:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        cluster.kill(2)
        old = cluster.files[2].copy()
        wipe(cluster, 2)
        cluster.start_soon(2)
        if has_joined:
            await wait_voters(cluster, 1, member_id(2, 1), 3)
            await produce_everywhere(cluster, 5, 5)
        else:
            await cluster.wait_until(lambda: generation(cluster, 2) == 1)
        cluster.kill(2)
        new = cluster.files[2].copy()
        cluster.files[2].become(old)
        cluster.start_soon(2)
        words = await wait_gives_up(cluster, 2)
        # No other member was disturbed, and the new folder still has its place.
        cluster.files[2].become(new)
        await cluster.start(2)
        await wait_voters(cluster, 1, member_id(2, 1), 3)
        await check_everywhere(cluster, 10 if has_joined else 5)
        return words

    words = in_cluster(scenario)
    assert words.startswith("Superseded: node 2 has another data folder by now")


def test_old_folder_stops_even_if_all_others_were_renewed_since() -> None:
    async def scenario(cluster: Cluster) -> str:
        await cluster.found("t", 3)
        cluster.kill(2)
        old = cluster.files[2].copy()
        expected = {1: 1, 2: 2, 3: 3}
        for node in (2, 1, 3):
            wipe(cluster, node)
            await cluster.start(node)
            expected[node] = member_id(node, generation_of(expected[node]) + 1)
            await wait_voters(cluster, *expected.values())
        cluster.kill(2)
        cluster.files[2].become(old)
        cluster.start_soon(2)
        return await wait_gives_up(cluster, 2)

    assert in_cluster(scenario).startswith("Superseded: node 2 has another data folder by now")


@pytest.mark.parametrize("call", range(1, 25))
def test_power_loss_while_re_entering_under_a_leader_of_no_founders_name(call: int) -> None:
    # Each founder says what it knows, and the leader's word comes later.
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        for new in (4, 5):
            await cluster.start(new)
            await cluster.change("add", new, host=f"node{new}", port=7400)
        await cluster.wait_until(lambda: 4 in voters(cluster, 0))
        cluster.nodes[cluster.leader(0)].groups[0].transfer(4)
        await cluster.wait_until(lambda: cluster.leader(0) == 4)
        await lose_power_while_re_entering(cluster, 3, call)
        # Long enough that the leader does not try to reach it right at its start.
        await trio.sleep(5)
        await cluster.start(3)
        await cluster.wait_until(lambda: member_id(3, generation(cluster, 3)) in voters(cluster, 0))
        assert generation(cluster, 3) >= 1

    in_cluster(scenario)


def test_blank_folder_that_waits_for_a_place_is_not_ended_by_who_has_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        wipe(cluster, 2)
        await cluster.start(2)
        await wait_voters(cluster, 1, member_id(2, 1), 3)
        wipe(cluster, 2)
        cluster.start_soon(2)
        await cluster.wait_until(lambda: 2 in cluster.nodes and bool(cluster.nodes[2].waits_for))
        cluster.nodes[2].links._refused(ErrorReply(SUPERSEDED, "another folder has your place"))
        await wait_voters(cluster, 1, member_id(2, 2), 3)

    in_cluster(scenario)


def test_leader_that_dies_while_a_node_re_enters_does_not_stop_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        victim = cluster.leader(0) % 3 + 1
        wipe(cluster, victim)
        cluster.start_soon(victim)
        for turn in range(6):
            await trio.sleep(0.1 * turn)
            leader = cluster.leader(0)
            if leader:
                cluster.kill(leader)
                await cluster.start(leader)
            await cluster.wait_led(0)
        await cluster.wait_until(
            lambda: (
                all(set(map(node_of, voters(cluster, g))) == {1, 2, 3} for g in GROUPS)
                and all(member_id(victim, 1) in voters(cluster, g) for g in GROUPS)
            )
        )
        await check_everywhere(cluster, 5)

    for seed in range(4):
        in_cluster(scenario, seed=seed)


def test_folder_does_not_take_the_place_of_one_that_is_up() -> None:
    """A container that was started twice, once without its disk."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        twin = cluster.leader(0) % 3 + 1
        settings = cluster.settings

        def also_as_nine(number: int) -> Settings:
            if number != 9:
                return settings(number)
            chosen = settings(twin)
            own = msgspec.structs.replace(chosen.node, host="node9")
            return msgspec.structs.replace(chosen, node=own)

        cluster.settings = also_as_nine  # type: ignore[method-assign]
        cluster.start_soon(9)
        await trio.sleep(10)
        assert f"node {twin} is up with the folder" in cluster.nodes[9].waits_for
        assert cluster.nodes[1].catalog.nodes[twin].generation == 0
        await produce_everywhere(cluster, 5, 5)
        cluster.kill(9)
        await check_everywhere(cluster, 10)

    in_cluster(scenario)


def test_node_that_is_replaced_while_it_re_enters_leaves() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        wipe(cluster, 2)
        cluster.start_soon(2)
        await cluster.wait_until(lambda: generation(cluster, 2) == 1)
        await cluster.start(4)
        await cluster.change("replace", 2, new=4, host="node4", port=7400)
        await wait_voters(cluster, 1, 3, 4)
        await cluster.wait_until(lambda: sorted(cluster.nodes[1].catalog.nodes) == [1, 3, 4])
        cluster.kill(2)
        await check_everywhere(cluster, 5)

    for seed in range(3):
        in_cluster(scenario, seed=seed)


def test_node_that_is_removed_before_it_re_enters_is_told_so() -> None:
    async def scenario(cluster: Cluster) -> str:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        wipe(cluster, 2)
        await cluster.wait_led(*GROUPS)
        await cluster.change("remove", 2)
        cluster.start_soon(2)
        words = await wait_gives_up(cluster, 2)
        await wait_voters(cluster, 1, 3)
        return words

    words = in_cluster(scenario)
    assert words.startswith("KnownOtherwise: node 2 had another data folder")
    assert "about to leave the cluster" in words or "does not belong to the cluster" in words


def test_number_of_a_removed_node_can_be_given_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        for generation in (1, 2):
            await cluster.change("remove", 3)
            await cluster.wait_until(lambda: 3 not in cluster.nodes[1].catalog.nodes)
            wipe(cluster, 3)
            await cluster.change("add", 3, host="node3", port=7400)
            await cluster.start(3)
            assert cluster.nodes[3].generation == generation
            await cluster.wait_until(
                partial(lambda member: member in voters(cluster, 0), member_id(3, generation))
            )
        # And with the folder that it had.
        await cluster.change("remove", 3)
        await cluster.wait_until(lambda: 3 not in cluster.nodes[1].catalog.nodes)
        await cluster.change("add", 3, host="node3", port=7400)
        await cluster.wait_until(lambda: member_id(3, 2) in voters(cluster, 0))
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


# Remembered identities


def known(files: MemoryFiles, *nodes: Node) -> PeerIdentities:
    catalog = Catalog()
    catalog.nodes = {node.id: node for node in nodes}
    return PeerIdentities(files, "/data", lambda: catalog)


def hello(node: int, name: str) -> Hello:
    return Hello(PROTOCOL, "c", node, name, "test")


def test_damaged_file_of_other_folders_is_told_in_one_sentence() -> None:
    for damaged in (b'{"2": "a', b'{"two": "aa"}', b"[]"):
        files = MemoryFiles()
        files.make_folder("/data")
        known(files).admit(hello(2, "aa"), 2)
        file = files.create("/data/peers.json")
        file.append([damaged])
        file.close()
        with pytest.raises(WrongFolder, match=r"^/data/peers\.json cannot be read: "):
            known(files)


def test_no_flipped_bit_makes_a_folder_another_one_or_its_peer() -> None:
    files = MemoryFiles()
    files.make_folder("/data")
    others, mine = known(files), Identity(1, "c", 1, "aa", replicas={0: 0, 3: 1})
    others.admit(hello(2, "bb"), 2)
    others.admit(hello(3, "cc"), member_id(3, 1))
    save(files, "/data", mine)
    folders = [others.folder_of(node) for node in (2, 3)]
    for name, said in (("node.json", mine), ("peers.json", folders)):
        path = f"/data/{name}"
        for bit in range(8 * len(files.bytes_of(path))):
            files.flip(path, bit)
            try:
                again = known(files)
                told = [again.folder_of(node) for node in (2, 3)]
                found = load(files, "/data", cluster="c", node=1)
                assert (found if name == "node.json" else told) == said
            except WrongFolder:
                pass
            files.flip(path, bit)


def test_folders_of_others_without_a_checksum_are_believed() -> None:
    files = MemoryFiles()
    files.make_folder("/data")
    files.put("/data/peers.json", b'{"2": "bb"}')
    assert known(files).folder_of(2) == (0, "bb")


def test_folder_of_a_higher_generation_is_believed_and_fences_off_the_lower() -> None:
    files = MemoryFiles()
    files.make_folder("/data")
    others = known(files)
    others.admit(hello(2, "aa"), 2)
    with pytest.raises(Refusal) as caught:
        others.admit(hello(2, "bb"), 2)
    assert caught.value.reply.code == "wrong_cluster"
    others.admit(hello(2, "bb"), member_id(2, 1))
    for acquaintances in (others, known(files)):
        assert acquaintances.folder_of(2) == (1, "bb")
        acquaintances.admit(hello(2, "bb"), member_id(2, 1))
        with pytest.raises(Refusal) as caught:
            acquaintances.admit(hello(2, "aa"), 2)
        assert caught.value.reply.code == "superseded"


def test_catalog_fences_off_a_folder_before_the_new_one_was_met() -> None:
    files = MemoryFiles()
    files.make_folder("/data")
    others = known(files, Node(2, "h", 1, incarnation="bb", generation=1))
    assert others.folder_of(2) == (1, "bb")
    with pytest.raises(Refusal) as caught:
        others.admit(hello(2, "aa"), 2)
    assert caught.value.reply.code == "superseded"
    assert "peers.json" not in files.list("/data")


def test_folder_that_took_part_unnamed_is_not_mistaken_for_the_one_that_was_named() -> None:
    """A founder voted, was wiped, and its blank folder was seen by the leader first."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        wipe(cluster, 2)
        await cluster.wait_led(0)
        leader = cluster.nodes[cluster.leader(0)]
        # As if no command had named it before.
        for node in cluster.nodes.values():
            listed = node.catalog.nodes[2]
            node.catalog.nodes[2] = Node(2, listed.host, listed.port)
        cluster.start_soon(2)
        await cluster.wait_until(lambda: 2 in cluster.nodes and bool(cluster.nodes[2].incarnation))
        name = NameNode(2, cluster.nodes[2].incarnation)
        ticket = Callback(lambda _: None, lambda _: None)
        leader.groups[0].propose(Kind.COMMANDS, encode_commands([name]), ticket)
        await wait_voters(cluster, 1, member_id(2, 1), 3)

    in_cluster(scenario)


def test_node_of_old_member_ids_re_enters_with_a_blank_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        # As older software did: the generation stands where the replica generation is now.
        monkeypatch.setattr(replicas, "REPLICA_BITS", 0)
        monkeypatch.setattr(replicas, "REPLICA_MAX", 0)
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        wipe(cluster, 3)
        await cluster.start(3)
        await wait_voters(cluster, 1, 2, 1 << 32 | 3)
        for node in (1, 2, 3):
            cluster.kill(node)
        monkeypatch.undo()
        wipe(cluster, 3)
        await cluster.start(1, 2, 3)
        await wait_voters(cluster, 1, 2, member_id(3, 2))
        await check_everywhere(cluster, 5)

    in_cluster(scenario)
