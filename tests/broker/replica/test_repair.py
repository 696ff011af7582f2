"""Rot on a minority of the copies: never served, nothing lost, mended; on all: reported."""

from random import Random
from typing import Any

import pytest
import trio

from raftmq.broker.node import Node
from raftmq.broker.replica import scrub
from raftmq.broker.settings import Log
from raftmq.log.cutting import NOTE_NAME
from raftmq.log.faults import RotFound
from raftmq.log.store import LogSettings, LogStore
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, bodies, in_cluster

COLD = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0, scrub_bytes_per_second=0)
"""Nothing but reads finds rot."""

BATCHES = 60
BATCH_BYTES = 25_000
FIRST = 2
"""The first segment follows the founding snapshot at index 1."""


@pytest.fixture(autouse=True)
def _quick_scrub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of the scrub follows the other."""
    monkeypatch.setattr(scrub, "ROUND_SECONDS_MIN", 1.0)


def folder(group: int) -> str:
    """Where a group's log is kept."""
    return f"/data/groups/{group:05d}"


def segment_path(group: int, name: int = FIRST) -> str:
    """A segment's file."""
    return f"{folder(group)}/{name:020d}.log"


async def stored(cluster: Cluster, count: int = BATCHES, size: int = BATCH_BYTES) -> int:
    """Found a cluster and store this many batches, sealing segments: the partition group."""
    await cluster.found("t", 1)
    leader = cluster.leader_of(QUEUE)
    await produced(cluster, 0, count, size)
    group = cluster.nodes[leader].catalog.group_of(QUEUE)
    assert group is not None
    return group


async def produced(cluster: Cluster, first: int, count: int, size: int = BATCH_BYTES) -> None:
    """Store batches of one message each, trying again while no leader can take them."""
    for n in range(first, first + count):
        with trio.fail_after(120):
            while True:
                try:
                    async with cluster.client(cluster.leader_of(QUEUE)) as client:
                        for number in range(n, first + count):
                            await client.produce(QUEUE, [body(number, size)], number)
                        return
                except (Refused, KeyError, OSError):
                    await trio.sleep(0.2)


def body(number: int, size: int = BATCH_BYTES) -> bytes:
    """The message of a batch."""
    return b"%d." % number + b"x" * size


async def read_patiently(cluster: Cluster, queue: int = QUEUE) -> list[bytes]:
    """All messages of a queue; a refused fetch is tried again."""
    with trio.fail_after(300):
        while True:
            try:
                return await bodies(cluster, queue)
            except (AssertionError, Refused, KeyError, OSError):
                await trio.sleep(0.2)


def findings(cluster: Cluster, group: int) -> list[Any]:
    """Rotten pieces that the nodes report."""
    return [f for node in cluster.nodes.values() for f in node.repairs.status(group)]


async def wait_scrubbed(node: Node, cluster: Cluster) -> None:
    """Wait until all has been read twice."""
    rounds = node.status()["scrub"]["rounds"]
    await cluster.wait_until(lambda: node.status()["scrub"]["rounds"] >= rounds + 2, 3000)


def abstaining(cluster: Cluster, group: int) -> list[int]:
    """The nodes whose replica abstains."""
    return sorted(
        number
        for number, node in cluster.nodes.items()
        if (replica := node.groups.get(group)) is not None and replica.raft.abstains
    )


async def wait_mended(cluster: Cluster, group: int) -> None:
    """Wait until nothing is damaged and no member abstains."""
    await cluster.wait_until(
        lambda: not findings(cluster, group) and not abstaining(cluster, group), 300
    )


async def check_copies(cluster: Cluster, group: int, count: int) -> None:
    """All messages are there, and all replicas hold the same bytes, read from their disks."""
    messages = await read_patiently(cluster)
    assert [int(message.split(b".")[0]) for message in messages] == list(range(count))
    await cluster.wait_until(
        lambda: (
            len({node.groups[group].machine.applied for node in cluster.nodes.values()}) == 1
            and len({node.groups[group].store.last_index for node in cluster.nodes.values()}) == 1
        )
    )
    copies = []
    for number in sorted(cluster.nodes):
        store = cluster.nodes[number].groups[group].store
        copies.append(store.read(store.first_index, store.last_index + 1, 1 << 40))
    assert len({copy[-1].index for copy in copies}) == 1
    first = max(copy[0].index for copy in copies)
    tails = [[record.encoded for record in copy if record.index >= first] for copy in copies]
    assert all(tail == tails[0] for tail in tails)


def damage(cluster: Cluster, node: int, path: str, kind: str, random: Random) -> None:
    """Spoil a place in a file."""
    files = cluster.files[node]
    data = bytearray(files.bytes_of(path))
    at = random.randrange(136, len(data) - 1)
    match kind:
        case "flip":
            data[at] ^= 1 << random.randrange(8)
        case "zeros":
            start = at // 512 * 512
            data[start : start + 512] = bytes(len(data[start : start + 512]))
        case "missing":
            del data[at : at + 700]
        case "misplaced":
            other = random.randrange(136, len(data) - 1)
            piece = data[other : other + 600]
            data[at : at + 600] = piece[: len(data[at : at + 600])]
        case "unreadable":
            files.spoil(path, at // 512 * 512, at // 512 * 512 + 512)
        case _:
            raise AssertionError(kind)
    inode = files.inode(path)
    inode.data[:] = data
    inode.sync()


KINDS = ["flip", "zeros", "missing", "misplaced", "unreadable"]


@pytest.mark.parametrize("kind", KINDS)
def test_rot_in_a_cold_range_of_the_leader_is_never_served_and_is_mended(kind: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        leader = cluster.leader(group)
        assert cluster.nodes[leader].groups[group].cache.get(5) is None
        damage(cluster, leader, segment_path(group), kind, Random(5))
        messages = await read_patiently(cluster)
        assert messages == [body(n) for n in range(BATCHES)]
        await wait_mended(cluster, group)
        assert sum(node.repairs.mended for node in cluster.nodes.values()) <= 1
        await check_copies(cluster, group, BATCHES)

    in_cluster(scenario, log=COLD)


def test_reader_of_a_rotten_record_is_told_to_try_again_and_the_leader_hands_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        leader = cluster.leader(group)
        cluster.files[leader].flip(segment_path(group), 8 * 3000)
        async with cluster.client(leader) as client:
            fetched, data = await client.fetch(QUEUE, 0)
            (item,) = fetched.queues
            assert data == b""
            assert item.error is not None
            assert item.error.code == "unavailable"
            assert "are being mended" in item.error.message
            assert item.error.retry_ms > 0
        await cluster.wait_until(lambda: cluster.leader(group) not in (0, leader))
        await wait_mended(cluster, group)
        assert cluster.nodes[leader].repairs.mended == 1
        await check_copies(cluster, group, BATCHES)

    in_cluster(scenario, log=COLD)


@pytest.mark.parametrize("kind", KINDS)
def test_rot_in_a_cold_range_of_a_follower_is_found_by_the_scrub_and_mended(kind: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        follower = cluster.leader(group) % 3 + 1
        damage(cluster, follower, segment_path(group), kind, Random(6))
        node = cluster.nodes[follower]
        await cluster.wait_until(lambda: node.status()["scrub"]["rounds"] >= 2, 3000)
        await wait_mended(cluster, group)
        await check_copies(cluster, group, BATCHES)

    log = Log(segment_bytes=128 * 1024, cache_bytes=1 << 20, reserve_bytes=0)
    in_cluster(scenario, log=log)


def test_rot_in_the_last_segment_is_mended_though_nothing_more_is_written() -> None:
    async def scenario(cluster: Cluster) -> None:
        await stored(cluster)
        follower = cluster.leader(0) % 3 + 1
        path = "/data/groups/00000/00000000000000000002.log"
        last = cluster.nodes[follower].groups[0].store.last_index
        cluster.files[follower].spoil(path, 0, 512)
        found = RotFound("the disk cannot read it", file=path, position=0)
        cluster.nodes[follower].repairs.found(found)
        await wait_mended(cluster, 0)
        assert cluster.nodes[follower].repairs.mended == 1
        assert cluster.nodes[follower].groups[0].store.last_index == last
        cluster.kill(follower, power=True)
        await cluster.start(follower)
        await cluster.wait_led(0)

    in_cluster(scenario, log=COLD)


def test_lost_file_of_a_sealed_segment_is_made_anew_after_a_restart() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        follower = cluster.leader(group) % 3 + 1
        cluster.kill(follower)
        cluster.files[follower].remove(segment_path(group))
        await cluster.start(follower)
        await wait_mended(cluster, group)
        assert cluster.nodes[follower].repairs.mended == 1
        await check_copies(cluster, group, BATCHES)

    in_cluster(scenario, log=COLD)


def test_range_that_is_rotten_on_all_nodes_is_reported_and_the_rest_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        for number in (1, 2, 3):
            cluster.files[number].flip(segment_path(group), 8 * 3000)
        with pytest.raises(AssertionError, match="are being mended"):
            await bodies(cluster, QUEUE)
        await trio.sleep(60)
        (finding, *_) = findings(cluster, group)
        assert segment_path(group) in finding["file"]
        assert "no peer has sound records" in finding["state"]
        assert "it cannot be read here either" in finding["state"]
        # Records elsewhere are read and written as ever.
        await produced(cluster, BATCHES, 5)
        found: list[bytes] = []
        with trio.fail_after(60):
            while len(found) < 40:
                async with cluster.client(cluster.leader_of(QUEUE)) as client:
                    found = []
                    offset = 20
                    while batches := await client.read(QUEUE, offset):
                        found += [each for _, batch in batches for each in batch.bodies]
                        offset = batches[-1][0] + 1
        assert found == [body(n) for n in range(20, BATCHES + 5)]
        # One node gets its disk back: the others follow.
        cluster.files[2].flip(segment_path(group), 8 * 3000)
        await wait_mended(cluster, group)
        await check_copies(cluster, group, BATCHES + 5)

    in_cluster(scenario, log=COLD)


def test_power_loss_at_every_disk_call_of_a_repair_is_harmless() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 12)
        follower = cluster.leader(group) % 3 + 1
        path = segment_path(group)
        crashes = 0
        for call in range(1, 12):
            cluster.files[follower].flip(path, 8 * 3000)
            node = cluster.nodes[follower]
            sealed = next(s for s in node.groups[group].store.sealed if s.name == FIRST)
            with pytest.raises(Exception, match="was durable"):
                node.groups[group].store.read(FIRST, sealed.last + 1, 1 << 30)
            cluster.files[follower].crash_at(call)
            node.repairs._scrub._at = (-1, 0, 0)
            try:
                node.groups[group].store.read(FIRST, sealed.last + 1, 1 << 30)
            except Exception as fault:
                node.read_failed(fault)
            await trio.sleep(3)
            if follower not in cluster.nodes:
                crashes += 1
                await cluster.start(follower)
                node = cluster.nodes[follower]
                try:
                    node.groups[group].store.read(FIRST, sealed.last + 1, 1 << 30)
                except Exception as fault:
                    node.read_failed(fault)
            await wait_mended(cluster, group)
            await check_copies(cluster, group, 12)
        assert crashes > 3

    in_cluster(scenario, log=COLD)


# The last segment: cut, and abstain.


@pytest.mark.parametrize("role", ["follower", "leader"])
@pytest.mark.parametrize("kind", KINDS)
def test_rot_in_the_last_segment_at_a_start_is_cut_and_filled_again(kind: str, role: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 30, 500)
        await trio.sleep(3)
        victim = cluster.leader(group) if role == "leader" else cluster.leader(group) % 3 + 1
        cluster.kill(victim)
        path = segment_path(group)
        before = len(cluster.files[victim].bytes_of(path))
        files = cluster.files[victim]
        data = files.bytes_of(path)
        damage(cluster, victim, path, kind, Random(9))
        await cluster.wait_until(lambda: cluster.leader(group) != 0)
        await produced(cluster, 30, 10, 500)
        assert before <= len(data)
        await cluster.start(victim)
        await wait_mended(cluster, group)
        assert NOTE_NAME not in files.list(folder(group))
        assert any(".rotten-" in name for name in files.list(folder(group)))
        await check_copies(cluster, group, 40)
        # It counts again: with it alone beside the leader, messages are taken.
        others = [n for n in cluster.nodes if n not in (victim, cluster.leader(group))]
        cluster.kill(others[0])
        await produced(cluster, 40, 5, 500)

    in_cluster(scenario, log=COLD)


def test_acked_records_survive_when_the_only_other_holder_dies_after_rot() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 10, 500)
        leader = cluster.leader(group)
        rotten, behind = (n for n in (1, 2, 3) if n != leader)
        cluster.kill(behind)
        await produced(cluster, 10, 10, 500)
        await trio.sleep(2)
        cluster.kill(rotten)
        cluster.kill(leader)
        path = segment_path(group)
        cluster.files[rotten].flip(path, 8 * (len(cluster.files[rotten].bytes_of(path)) // 2))
        await cluster.start(rotten, behind)
        await trio.sleep(60)
        # The two are a majority, and neither has the acked records: neither may lead.
        assert cluster.leader(group) == 0
        assert abstaining(cluster, group) == [rotten]
        status = cluster.nodes[rotten].status()
        (described,) = [each for each in status["groups"] if each["group"] == group]
        assert "was durable" in described["abstains"]
        await cluster.start(leader)
        await wait_mended(cluster, group)
        await check_copies(cluster, group, 20)

    in_cluster(scenario, log=COLD)


@pytest.mark.parametrize("is_oldest", [True, False])
def test_rotten_snapshot_is_passed_over_or_the_replica_is_filled_anew(is_oldest: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        victim = cluster.leader(group) % 3 + 1
        cluster.kill(victim)
        files = cluster.files[victim]
        snapshots = [p for p in files.paths() if p.startswith(folder(group)) and "snapshot" in p]
        assert len(snapshots) > 2
        for path in snapshots if is_oldest else snapshots[1:]:
            files.flip(path, 8 * len(files.bytes_of(path)) - 4)
        await cluster.start(victim)
        assert abstaining(cluster, group) == ([victim] if is_oldest else [])
        await wait_mended(cluster, group)
        await check_copies(cluster, group, BATCHES)

    in_cluster(scenario, log=COLD)


def test_scrub_reads_no_faster_than_it_is_told() -> None:
    async def scenario(cluster: Cluster) -> None:
        await stored(cluster)
        node = cluster.nodes[1]
        before = node.status()["scrub"]["bytes"]
        await trio.sleep(20)
        # A read gives one record at least, and they are larger than the pace here.
        read = node.status()["scrub"]["bytes"] - before
        assert 0 < read <= 22 * (BATCH_BYTES + 200)

    in_cluster(
        scenario,
        log=Log(
            segment_bytes=128 * 1024, cache_bytes=1 << 20, reserve_bytes=0,
            scrub_bytes_per_second=10_000,
        ),
    )  # fmt: skip


def test_two_of_three_that_abstain_elect_nobody_and_lose_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 20, 500)
        await trio.sleep(2)
        leader = cluster.leader(group)
        others = [n for n in (1, 2, 3) if n != leader]
        for number in (1, 2, 3):
            cluster.kill(number)
        for number in others:
            path = segment_path(group)
            cluster.files[number].flip(path, 8 * 4000)
        await cluster.start(1, 2, 3)
        await trio.sleep(60)
        assert cluster.leader(group) == 0
        assert abstaining(cluster, group) == others
        store = cluster.nodes[leader].groups[group].store
        kept = store.read(store.first_index, store.last_index + 1, 1 << 30)
        assert sum(b"x" * 500 in record.encoded for record in kept) == 20

    in_cluster(scenario, log=COLD)


def test_last_write_that_was_lost_without_a_trace_is_noticed_and_the_node_abstains() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 20, 500)
        await trio.sleep(3)
        victim = cluster.leader(group) % 3 + 1
        cluster.kill(victim)
        files, path = cluster.files[victim], segment_path(group)
        data = files.bytes_of(path)
        files.put(path, data[: len(data) - 900])
        await cluster.start(victim)
        await cluster.wait_until(lambda: victim in cluster.stopped)
        message = str(cluster.stopped[victim])
        assert "RecordsLost" in message
        assert "abstains until it holds them again" in message
        await cluster.start(victim)
        assert abstaining(cluster, group) == [victim]
        await cluster.wait_led(group)
        await wait_mended(cluster, group)
        await check_copies(cluster, group, 20)

    in_cluster(scenario, log=COLD)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(10))
def test_seeded_damage_to_one_node_again_and_again_loses_nothing(seed: int) -> None:
    random = Random(f"damage {seed}")

    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 24, 12_000)
        count = 24
        for _ in range(3):
            victim = random.randint(1, 3)
            is_down = random.random() < 0.6
            if is_down:
                cluster.kill(victim, power=random.random() < 0.5)
            files = cluster.files[victim]
            logs = [p for p in files.paths() if p.startswith(folder(group)) and p[-4:] == ".log"]
            for path in random.sample(logs if is_down else logs[:-1], random.randint(1, 2)):
                damage(cluster, victim, path, random.choice(KINDS), random)
            await produced(cluster, count, 5, 12_000)
            count += 5
            if is_down:
                await cluster.start(victim)
            await trio.sleep(2)
            if victim in cluster.stopped:
                # The last write was damaged: its log looked torn.
                assert "RecordsLost" in str(cluster.stopped[victim])
                await cluster.start(victim)
            await read_patiently(cluster)
            await wait_scrubbed(cluster.nodes[victim], cluster)
            await wait_mended(cluster, group)
            await check_copies(cluster, group, count)

    log = Log(segment_bytes=128 * 1024, cache_bytes=1 << 20, reserve_bytes=0)
    in_cluster(scenario, seed=seed, log=log)


def test_log_that_was_cut_is_not_opened_by_who_does_not_know_of_abstaining() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 20, 500)
        cluster.kill(1)
        cluster.files[1].flip(segment_path(group), 8 * 4000)
        files = cluster.files[1].copy()
        identity = cluster.nodes[2].groups[group].store._identity._replace(node=1)
        settings = LogSettings(segment_bytes=64 * 1024)
        LogStore.open(files, folder(group), settings, identity, mends=True)[0].close()
        with pytest.raises(Exception, match="was cut and abstains"):
            LogStore.open(files, folder(group), settings, identity)

    in_cluster(scenario, log=COLD)


def snapshot_paths(cluster: Cluster, node: int, group: int) -> list[str]:
    """The snapshots that a replica keeps, oldest first."""
    paths = sorted(cluster.files[node].paths())
    return [p for p in paths if p.startswith(folder(group)) and p.endswith(".snapshot")]


def test_rotten_snapshot_of_a_leader_is_not_sent_and_one_with_a_sound_one_leads() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        leader = cluster.leader(group)
        oldest = snapshot_paths(cluster, leader, group)[0]
        files = cluster.files[leader]
        files.flip(oldest, 8 * len(files.bytes_of(oldest)) - 4)
        # A node with a blank disk needs the snapshot at which the kept log begins.
        blank = leader % 3 + 1
        cluster.kill(blank)
        cluster.wipe(blank)
        await cluster.start(blank)
        await cluster.wait_until(
            lambda: (
                group in cluster.nodes[blank].groups
                and cluster.nodes[blank].groups[group].raft.id
                in cluster.nodes[blank].groups[group].conf_state.voters
            )
        )
        status = cluster.nodes[leader].status()
        (replica,) = [each for each in status["groups"] if each["group"] == group]
        (text,) = replica["rotten_snapshots"]
        assert "fails its CRC-32C" in text
        assert status["leads"] == [g for g in status["leads"] if g != group]
        await check_copies(cluster, group, BATCHES)
        sent = snapshot_paths(cluster, blank, group)[0]
        assert cluster.files[blank].bytes_of(sent) != files.bytes_of(oldest)

    in_cluster(scenario, log=COLD)


async def abstaining_and_cut_off(cluster: Cluster) -> tuple[int, int, int, int]:
    """A follower abstains and is cut off: partition group, leader, it, the third node."""
    group = await stored(cluster, 30, 500)
    await trio.sleep(3)
    victim = cluster.leader(group) % 3 + 1
    cluster.kill(victim)
    cluster.files[victim].flip(segment_path(group), 8 * 4000)
    for other in (1, 2, 3, 4):
        cluster.network.block(f"node{other}", f"node{victim}")
        cluster.network.block(f"node{victim}", f"node{other}")
    await cluster.start(victim)
    await cluster.wait_led(0, group)
    assert abstaining(cluster, group) == [victim]
    leader = cluster.leader(group)
    return group, leader, victim, ({1, 2, 3} - {victim, leader}).pop()


def reconnect(cluster: Cluster, node: int) -> None:
    """Let a node that was cut off be reached again."""
    for other in (1, 2, 3, 4):
        cluster.network.unblock(f"node{other}", f"node{node}")
        cluster.network.unblock(f"node{node}", f"node{other}")


def test_member_that_abstains_counts_again_in_a_membership_that_changed_meanwhile() -> None:
    async def scenario(cluster: Cluster) -> None:
        group, leader, victim, other = await abstaining_and_cut_off(cluster)
        await cluster.start(4)
        await cluster.change("replace", other, new=4, host="node4", port=7400)
        await cluster.wait_until(lambda: cluster.members(group) == {leader, victim, 4})
        assert abstaining(cluster, group) == [victim]
        reconnect(cluster, victim)
        await wait_mended(cluster, group)
        await cluster.wait_until(lambda: other not in cluster.nodes[4].catalog.nodes)
        cluster.kill(other)
        # With it alone beside the one that leads then, messages are taken.
        cluster.kill(4)
        await cluster.wait_led(0, group)
        await produced(cluster, 30, 5, 500)
        await check_copies(cluster, group, 35)

    in_cluster(scenario, log=COLD)


def test_member_that_abstains_can_be_removed() -> None:
    async def scenario(cluster: Cluster) -> None:
        group, leader, victim, other = await abstaining_and_cut_off(cluster)
        await cluster.change("remove", victim)
        await cluster.wait_until(lambda: cluster.members(group) == {leader, other})
        await cluster.wait_until(lambda: victim not in cluster.nodes[leader].catalog.nodes)
        # It does not disturb the others, of which it is no longer a part.
        reconnect(cluster, victim)
        term = cluster.nodes[leader].groups[group].raft.term
        await trio.sleep(10)
        assert cluster.nodes[leader].groups[group].raft.term == term
        cluster.kill(victim)
        await produced(cluster, 30, 5, 500)
        await check_copies(cluster, group, 35)

    in_cluster(scenario, log=COLD)
