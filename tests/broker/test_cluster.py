"""Whole brokers in a simulated world: found, elect, produce, fetch, fail over, restart."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
import trio

from raftmq.batch import encode
from raftmq.broker.serve.key_search import KEY_CHUNK, KeySearch
from raftmq.broker.settings import Log
from raftmq.broker.tickets import Callback
from raftmq.broker.world import Worker
from raftmq.log.record import Kind, Record
from raftmq.log.store import LogStore
from raftmq.wire.assignment import (
    CommitOffsets,
    Committed,
    CommittedOffsets,
    OffsetsCommitted,
    QueueOffset,
)
from raftmq.wire.codec import pack
from raftmq.wire.fetches import Fetch, FetchFrom
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import (
    EARLIEST,
    LATEST,
    Done,
    FindKey,
    FindOffset,
    FindOffsets,
    FoundKey,
    FoundOffsets,
    FrameKind,
    NodeStatus,
    Status,
    Transfer,
)
from tests.broker.scenario import QUEUE, bodies, in_cluster

from .harness import Cluster, Refused


async def produce_and_fetch(cluster: Cluster) -> list[Any]:
    await cluster.found("orders", 3)
    seen: list[Any] = []
    for queue in range(QUEUE, QUEUE + 3):
        leader = cluster.leader_of(queue)
        async with cluster.client(leader) as client:
            produced = await client.produce(queue, [b"a", b"b"], 0)
        seen.append((leader, produced.base_offset, await bodies(cluster, queue)))
    return [*seen, trio.current_time()]


def test_three_nodes_found_a_cluster_and_carry_messages() -> None:
    *seen, _ = in_cluster(produce_and_fetch)
    assert [(base, messages) for _, base, messages in seen] == [(0, [b"a", b"b"])] * 3


def test_leadership_spreads_over_the_nodes() -> None:
    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found()
        await trio.sleep(10)
        return [cluster.leader(group) for group in (1, 2, 3)]

    assert in_cluster(scenario) == [1, 2, 3]


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    async def scenario(cluster: Cluster) -> list[Any]:
        seen = await produce_and_fetch(cluster)
        cluster.kill(cluster.leader(1))
        await cluster.wait_led(0, 1, 2, 3)
        return [*seen, cluster.leader(1), trio.current_time()]

    first = in_cluster(scenario, seed=3)
    assert in_cluster(scenario, seed=3) == first
    assert in_cluster(scenario, seed=4)[-1] != first[-1]


def test_acked_messages_survive_the_leader_and_a_repeat_is_stored_once() -> None:
    async def scenario(cluster: Cluster) -> list[bytes]:
        await cluster.found("t", 1)
        old = cluster.leader_of(QUEUE)
        async with cluster.client(old) as client:
            for n in range(10):
                await client.produce(QUEUE, [b"%d" % n], n)
        cluster.kill(old)
        await trio.sleep(5)
        new = cluster.leader_of(QUEUE)
        assert new not in (0, old)
        async with cluster.client(new) as client:
            again = await client.produce(QUEUE, [b"9"], 9)
            assert (again.base_offset, again.duplicate) == (9, True)
            await client.produce(QUEUE, [b"10"], 10)
        await cluster.start(old)
        await trio.sleep(5)
        return await bodies(cluster, QUEUE)

    assert in_cluster(scenario) == [b"%d" % n for n in range(11)]


def test_acked_messages_survive_a_power_loss_of_all_nodes() -> None:
    async def scenario(cluster: Cluster) -> list[bytes]:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for n in range(30):
                await client.produce(QUEUE, [b"%d" % n], n)
        for number in (1, 2, 3):
            cluster.kill(number, power=True)
        await cluster.start()
        await cluster.wait_led(0, 1, 2, 3)
        await cluster.wait_known("t")
        return await bodies(cluster, QUEUE)

    for seed in range(5):
        assert in_cluster(scenario, seed=seed) == [b"%d" % n for n in range(30)]


def test_waiting_fetch_is_answered_when_the_batch_commits() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        times: dict[str, float] = {}

        async def wait(task_status: trio.TaskStatus[None]) -> None:
            async with cluster.client(leader) as client:
                task_status.started()
                fetched, _ = await client.fetch(QUEUE, 0, wait_ms=60_000)
                times["fetched"] = trio.current_time()
                assert fetched.queues[0].end == 1

        async with trio.open_nursery() as nursery, cluster.client(leader) as client:
            await nursery.start(wait)
            await trio.sleep(7)
            await client.produce(QUEUE, [b"x"], 0)
            times["produced"] = trio.current_time()
        assert times["fetched"] - times["produced"] < 0.001

    in_cluster(scenario)


def test_waiting_fetch_ends_empty_when_its_time_is_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            started = trio.current_time()
            fetched, _ = await client.fetch(QUEUE, 0, wait_ms=2_500)
            assert fetched.queues == []
            assert trio.current_time() - started == pytest.approx(2.5, abs=0.05)

    in_cluster(scenario)


def test_waiting_fetch_is_told_when_the_leader_changes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as client, trio.open_nursery() as nursery:
            nursery.start_soon(cluster.stop, leader)
            fetched, _ = await client.fetch(QUEUE, 0, wait_ms=60_000)
            error = fetched.queues[0].error
            assert error is not None
            assert error.code == "not_leader"

    in_cluster(scenario)


def test_follower_refuses_a_batch_and_names_the_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        follower = leader % 3 + 1
        async with cluster.client(follower) as client:
            with pytest.raises(Refused) as caught:
                await client.produce(QUEUE, [b"x"], 0)
        assert (caught.value.reply.code, caught.value.reply.leader) == ("not_leader", leader)

    in_cluster(scenario)


def test_requests_for_what_does_not_exist_are_refused_with_the_reason() -> None:
    async def scenario(cluster: Cluster) -> list[str]:
        await cluster.found("t", 1)
        codes = []
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for request in (
                lambda: client.produce(QUEUE + 1, [b"x"], 0),
                lambda: client.produce(77 << 16, [b"x"], 0),
                lambda: client.request(FrameKind.PRODUCE, b"", [b"no batch"]),
                lambda: client.produce(QUEUE, [b"x"], 5),
                lambda: client.request(99),
            ):
                with pytest.raises(Refused) as caught:
                    await request()
                codes.append(caught.value.reply.code)
        return codes

    assert in_cluster(scenario) == [
        "unknown_topic",
        "unknown_topic",
        "corrupt_batch",
        "unknown_producer",
        "bad_argument",
    ]


def test_offset_past_the_end_is_refused_and_says_what_is_kept() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            await client.produce(QUEUE, [b"x"], 0)
            fetched, _ = await client.fetch(QUEUE, 2)
            error = fetched.queues[0].error
            assert error is not None
            assert (error.code, error.earliest, error.end) == ("offset_out_of_range", 0, 1)

    in_cluster(scenario)


def test_committed_offsets_are_read_back_after_a_change_of_leader() -> None:
    async def scenario(cluster: Cluster) -> list[tuple[str, int, int]]:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as client:
            await client.produce(QUEUE, [b"x"] * 5, 0)
            commit = CommitOffsets("g", [QueueOffset(QUEUE, 3)])
            await client.ask(FrameKind.COMMIT, commit, OffsetsCommitted)
        cluster.kill(leader)
        await trio.sleep(5)
        group = next(iter(cluster.nodes.values())).catalog.group_of(QUEUE)
        assert group is not None
        async with cluster.client(cluster.leader(group)) as client:
            found = await client.ask(FrameKind.COMMITTED, Committed(group, None), CommittedOffsets)
        return [(o.consumer_group, o.queue, o.offset) for o in found.offsets]

    assert in_cluster(scenario) == [("g", QUEUE, 3)]


def test_offsets_are_found_by_time() -> None:
    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found("t", 1)
        stamps = []
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for n in range(5):
                produced = await client.produce(QUEUE, [b"x", b"y"], 2 * n)
                stamps.append(produced.timestamp)
                await trio.sleep(1)
            times = [EARLIEST, LATEST, 0, stamps[2], stamps[2] + 1, stamps[4] + 1]
            asked = FindOffsets([FindOffset(QUEUE, at) for at in times])
            found = await client.ask(FrameKind.OFFSETS, asked, FoundOffsets)
        return [answer.offset for answer in found.queues]

    assert in_cluster(scenario) == [0, 10, 0, 4, 6, 10]


def test_messages_are_found_by_key_across_segments() -> None:
    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found("t", 1)
        group = cluster.nodes[1].catalog.group_of(QUEUE)
        assert group is not None
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for n in range(60):
                key = "wanted" if n % 20 == 7 else f"other-{n}"
                await client.produce(QUEUE, [b"x" * 4000], n, keys=[key])
            request = FindKey(group, 1, b"wanted", 0, 10)
            found = await client.ask(FrameKind.KEY, request, FoundKey)
        return [batch.base_offset for batch in found.batches]

    assert in_cluster(scenario) == [47, 27, 7]


def test_search_for_a_key_sees_one_topic_and_stops_at_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Records that each job of the reading thread looks into: others wait for their turn.
    looks: list[int] = []
    begin, read_at = KeySearch.__init__, LogStore.read_at

    def begun(self: KeySearch, service: Any, reader: Worker, **settings: Any) -> None:
        begin(self, service, cast("Worker", CountedJobs(reader, looks)), **settings)

    def read(self: LogStore, indexes: Iterable[int], bytes_max: int) -> list[Record]:
        looks[-1] += 1
        return read_at(self, indexes, bytes_max)

    monkeypatch.setattr(KeySearch, "__init__", begun)

    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader(0)) as client:
            await client.admin("create_topic", "unrelated", 3)
        await cluster.wait_known("unrelated")
        group = cluster.nodes[1].catalog.group_of(QUEUE)
        assert group is not None
        other = next(
            q
            for q in range(2 << 16, (2 << 16) + 3)
            if cluster.nodes[1].catalog.group_of(q) == group
        )
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for n in range(5):
                await client.produce(QUEUE, [b"mine"], n, keys=["wanted"])
            for n in range(200):
                await client.produce(other, [b"not mine"], n, keys=["wanted"])
            monkeypatch.setattr(LogStore, "read_at", read)
            request = FindKey(group, 1, b"wanted", 0, 3)
            found = await client.ask(FrameKind.KEY, request, FoundKey)
        return [batch.base_offset for batch in found.batches]

    assert in_cluster(scenario) == [4, 3, 2]
    assert sum(looks) >= 203
    assert max(looks) <= KEY_CHUNK


class CountedJobs:
    """A worker whose jobs are noted as they begin."""

    def __init__(self, worker: Worker, begun: list[int]) -> None:
        self._worker = worker
        self._begun = begun

    def submit(self, job: Callable[[], Any], done: Callable[..., None]) -> None:
        def noted() -> Any:
            self._begun.append(0)
            return job()

        self._worker.submit(noted, done)


def test_log_rolls_restarts_and_serves_what_is_in_sealed_segments() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        expected = [b"%d" % n + b"." * 3000 for n in range(100)]
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for n, body in enumerate(expected):
                await client.produce(QUEUE, [body], n)
        group = cluster.nodes[1].catalog.group_of(QUEUE)
        assert group is not None
        assert len(cluster.nodes[1].groups[group].store.segments()) >= 4
        for number in (1, 2, 3):
            cluster.kill(number)
        await cluster.start()
        await cluster.wait_led(0, 1, 2, 3)
        await cluster.wait_known("t")
        assert await bodies(cluster, QUEUE) == expected

    in_cluster(scenario)


def test_retention_drops_segments_on_every_node_and_says_what_is_left() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for n in range(200):
                await client.produce(QUEUE, [b"x" * 4000], n)
            await trio.sleep(5)
            fetched, _ = await client.fetch(QUEUE, 0)
            error = fetched.queues[0].error
            assert error is not None
            assert error.code == "offset_out_of_range"
            assert 50 < error.earliest < 200
        group = cluster.nodes[1].catalog.group_of(QUEUE)
        assert group is not None
        for node in cluster.nodes.values():
            sizes = [segment.bytes for segment in node.groups[group].store.segments()]
            assert sum(sizes) < 5 * 64 * 1024

    in_cluster(scenario, log=Log(segment_bytes=64 * 1024, retention_bytes=3 * 64 * 1024))


def test_member_that_was_away_for_longer_than_the_log_catches_up_by_snapshot() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        away = leader % 3 + 1
        cluster.kill(away)
        async with cluster.client(leader) as client:
            for n in range(200):
                await client.produce(QUEUE, [b"x" * 4000], n)
        await trio.sleep(5)
        group = cluster.nodes[leader].catalog.group_of(QUEUE)
        assert group is not None
        ahead = cluster.nodes[leader].groups[group]
        assert ahead.store.first_index > 50
        await cluster.start(away)
        await trio.sleep(10)
        behind = cluster.nodes[away].groups[group]
        assert behind.machine.applied == ahead.machine.applied
        assert behind.machine.digest == ahead.machine.digest
        assert behind.store.first_index > 50

    in_cluster(scenario, log=Log(segment_bytes=64 * 1024, retention_bytes=3 * 64 * 1024))


def test_graceful_stop_hands_the_leadership_over_before_the_node_ends() -> None:
    async def scenario(cluster: Cluster) -> float:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        started = trio.current_time()
        await cluster.stop(leader)
        await cluster.wait_led(0, 1, 2, 3)
        assert cluster.leader_of(QUEUE) != leader
        return trio.current_time() - started

    # An election would wait for at least ten ticks of 50 ms.
    assert in_cluster(scenario) < 0.5


def test_replicas_have_the_same_digest_at_the_same_index() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        for queue in range(QUEUE, QUEUE + 3):
            async with cluster.client(cluster.leader_of(queue)) as client:
                for n in range(20):
                    await client.produce(queue, [b"%d" % n], n)
        await trio.sleep(2)
        for group in (0, 1, 2, 3):
            replicas = [node.groups[group].machine for node in cluster.nodes.values()]
            assert len({(replica.applied, replica.digest) for replica in replicas}) == 1

    in_cluster(scenario)


def test_deleted_topic_is_refused_and_its_state_is_forgotten() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        group = cluster.nodes[1].catalog.group_of(QUEUE)
        assert group is not None
        async with cluster.client(leader) as client:
            await client.produce(QUEUE, [b"x"], 0)
        async with cluster.client(cluster.leader(0)) as client:
            await client.admin("delete_topic", "t")
        await trio.sleep(5)
        async with cluster.client(leader) as client:
            with pytest.raises(Refused, match="unknown_topic"):
                await client.produce(QUEUE, [b"x"], 1)
        for node in cluster.nodes.values():
            assert node.groups[group].machine.ends == {}  # type: ignore[attr-defined]

    in_cluster(scenario)


def test_batch_that_comes_after_its_topic_was_deleted_is_forgotten_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 2)
        leader = cluster.leader_of(QUEUE)
        node = cluster.nodes[leader]
        number = node.catalog.group_of(QUEUE)
        assert number is not None
        async with cluster.client(cluster.leader(0)) as client:
            await client.admin("delete_topic", "t")
        await trio.sleep(5)
        group = node.groups[number]
        late = encode([b"x"]).to_bytes(queue=QUEUE, producer=1, first_sequence=0)
        # Taken before the node heard of the deletion, committed after.
        group.propose(Kind.BATCH, late, Callback(lambda _: None, lambda _: None))
        await trio.sleep(0.1)
        assert QUEUE in group.machine.ends  # type: ignore[attr-defined]
        await trio.sleep(5)
        assert group.machine.ends == {}  # type: ignore[attr-defined]

    in_cluster(scenario)


def test_status_tells_who_leads_what() -> None:
    async def scenario(cluster: Cluster) -> dict[str, Any]:
        await cluster.found()
        await trio.sleep(10)
        async with cluster.client(2) as client:
            return (await client.ask(FrameKind.STATUS, Status(), NodeStatus)).status

    status = in_cluster(scenario)
    assert status["id"] == 2
    assert 2 in status["leads"]
    assert [group["group"] for group in status["groups"]] == [0, 1, 2, 3]
    assert all(link["connected"] for link in status["links"].values())


def test_dead_leader_is_replaced_well_before_the_election_timeout() -> None:
    async def scenario(cluster: Cluster) -> float:
        await cluster.found("t", 1)
        await trio.sleep(5)
        leader = cluster.leader_of(QUEUE)
        group = cluster.nodes[leader].catalog.group_of(QUEUE)
        assert group is not None
        cluster.kill(leader)
        killed = trio.current_time()
        await cluster.wait_led(group)
        return trio.current_time() - killed

    # The election timeout is 0.5 to 1 s here.
    assert max(in_cluster(scenario, seed=seed) for seed in range(5)) < 0.35


def test_cluster_that_starts_again_elects_its_leaders_without_a_timeout() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await trio.sleep(10)
        for number in (1, 2, 3):
            cluster.kill(number)
        await trio.sleep(1)
        started = trio.current_time()
        await cluster.start()
        while not all(
            any(n.groups[group].is_current for n in cluster.nodes.values()) for group in range(4)
        ):
            await trio.sleep(0.01)
        timeout = cluster.settings(1).raft.election_ticks * cluster.settings(1).raft.tick_ms / 1000
        assert trio.current_time() - started < timeout / 2
        assert [cluster.leader(group) for group in (1, 2, 3)] == [1, 2, 3]

    for seed in range(5):
        in_cluster(scenario, seed=seed)


def test_node_that_starts_beside_a_leader_leaves_it_the_office() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await trio.sleep(10)
        cluster.kill(3)
        await trio.sleep(1)
        leaders = [cluster.leader(group) for group in (0, 1, 2, 3)]
        terms = [cluster.nodes[1].groups[group].raft.term for group in (0, 1, 2, 3)]
        await cluster.start(3)
        await trio.sleep(2)
        assert [cluster.leader(group) for group in (0, 1, 2, 3)] == leaders
        assert [cluster.nodes[1].groups[group].raft.term for group in (0, 1, 2, 3)] == terms

    in_cluster(scenario)


def test_leader_that_was_chosen_by_hand_keeps_the_office() -> None:
    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found("t", 1)
        async with cluster.client(2) as client:
            await client.ask(FrameKind.TRANSFER, Transfer(2, 3), Done)
        await trio.sleep(30)
        return [cluster.leader(group) for group in (1, 2, 3)]

    assert in_cluster(scenario) == [1, 3, 3]


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.3])
def test_whole_cluster_stops_gracefully_without_waiting_for_nobody(pause: float) -> None:
    async def scenario(cluster: Cluster) -> float:
        await cluster.found("t", 1)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(cluster.stop, number)
                await trio.sleep(pause)
        return trio.current_time() - started

    assert in_cluster(scenario) < 2.0


def test_fetches_that_are_forgotten_take_no_room() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        connections_room = cluster.nodes[leader].settings.limits.connection_requests_max
        wait = pack(Fetch([FetchFrom(QUEUE, 0)], 60_000, 1 << 20))
        async with cluster.client(leader) as client:
            with trio.fail_after(5):
                for correlation in range(10_000, 10_000 + 3 * connections_room):
                    fetch = encode_frame(FrameKind.FETCH, correlation, wait)
                    forget = encode_frame(FrameKind.FORGET, correlation, b"")
                    await client._stream.send_all(b"".join([*fetch, *forget]))
                # The connection is at none of its limits: other requests are answered at once.
                await client.produce(QUEUE, [b"x"], 0)
                # To forget a request that does not wait is no error.
                await client._stream.send_all(b"".join(encode_frame(FrameKind.FORGET, 7, b"")))
                await client.produce(QUEUE, [b"y"], 1)
        assert not cluster.nodes[leader]._fetches._parked
        assert not cluster.nodes[leader]._fetches.sessions._open

    in_cluster(scenario)
