"""Topics keep their messages for a time of their own, in logs that they share with others."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio

from raftmq.broker.dynamic import topic_retention
from raftmq.broker.dynamic.known import TOPIC_RETENTION as NAME
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.retention import Retention
from raftmq.broker.settings import Log
from raftmq.client import Client
from raftmq.log.index_file import IndexDamaged
from raftmq.log.store import SegmentSize
from tests.broker.dynamic.test_following import known, raised
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, with_client

SHORT_MS, LONG_MS = 5_000, 120_000
LOG = Log(segment_bytes=256 * 1024, retention_ms=SHORT_MS)


async def send(mq: Client, topic: str, count: int = 40) -> None:
    """Store messages over a few seconds: more than a segment of them."""
    async with mq.producer(topic) as p:
        for _ in range(count):
            await p.send(b"x" * 20_000)
            await trio.sleep(0.1)


def first_index(cluster: Cluster, queue: int = QUEUE) -> int:
    """The first record that the log of a queue keeps at its leader."""
    node = cluster.nodes[cluster.leader_of(queue)]
    group = node.catalog.group_of(queue)
    assert group is not None
    return node.groups[group].store.first_index


def test_a_topic_keeps_its_messages_longer_than_the_nodes_say() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        version = await mq.settings.put({NAME: LONG_MS}, scope="topic", of="orders")
        await known(cluster, version)
        await send(mq, "orders")
        await trio.sleep(30)
        begun = first_index(cluster)
        cluster.kill(cluster.leader_of(QUEUE), power=True)
        await trio.sleep(30)
        assert first_index(cluster) == begun
        await mq.settings.put({NAME: None}, scope="topic", of="orders")
        await cluster.wait_until(lambda: first_index(cluster) > begun)

    with_client(job, log=LOG)


def test_a_topic_keeps_its_messages_for_less_than_the_nodes_say() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        await send(mq, "orders")
        await trio.sleep(30)
        begun = first_index(cluster)
        await mq.settings.put({NAME: SHORT_MS}, scope="topic", of="orders")
        await cluster.wait_until(lambda: first_index(cluster) > begun)

    with_client(job, log=msgspec.structs.replace(LOG, retention_ms=LONG_MS))


def test_a_segment_stays_as_long_as_any_topic_in_it_says() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        await mq.admin.create_topic("notes", queues=1, beside="orders")
        version = await mq.settings.put({NAME: LONG_MS}, scope="topic", of="notes")
        await known(cluster, version)
        await send(mq, "orders")
        await send(mq, "notes", 1)
        await send(mq, "orders")
        await trio.sleep(20)
        index = first_index(cluster)
        # The segments of orders alone are gone, that with the note stays, with all after it.
        assert index > 1
        async with mq.consumer("notes") as consumer:
            async for note in consumer:
                assert note.offset == 0
                break
        await trio.sleep(LONG_MS / 1000)
        assert first_index(cluster) > index

    with_client(job, log=LOG)


def test_nothing_is_dropped_by_age_while_the_catalog_may_be_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[bool] = []

    async def renew(node: Any) -> bool:
        answers.append(False)
        return False

    async def job(cluster: Cluster, mq: Client) -> None:
        begun = first_index(cluster)
        monkeypatch.setattr(topic_retention, "renew_catalog", renew)
        await send(mq, "orders")
        await trio.sleep(30)
        assert first_index(cluster) == begun
        assert answers
        monkeypatch.undo()
        await cluster.wait_until(lambda: first_index(cluster) > begun)

    with_client(job, log=LOG)


def test_a_leader_that_is_cut_off_from_the_catalog_drops_nothing_that_a_newer_setting_keeps() -> (
    None
):
    async def job(cluster: Cluster, mq: Client) -> None:
        await raised(cluster)
        catalog = cluster.leader(0)
        queue = next(q for q in range(3) if cluster.leader_of(QUEUE + q) != catalog)
        leader = cluster.leader_of(QUEUE + queue)
        async with mq.producer("orders") as p:
            for _ in range(300):
                await p.send(b"x" * 20_000, queue=queue)
                await trio.sleep(0.1)
        await cluster.wait_until(lambda: first_index(cluster, QUEUE + queue) > 1)
        for one, other in ((leader, catalog), (catalog, leader)):
            cluster.network.block(f"node{one}", f"node{other}")
        await trio.sleep(topic_retention.FRESH_SECONDS + 1)
        await mq.settings.put({NAME: 0}, scope="topic", of="orders")
        begun = first_index(cluster, QUEUE + queue)
        await trio.sleep(40)
        assert cluster.leader_of(QUEUE + queue) == leader
        assert cluster.nodes[leader].catalog.settings.version == 0
        assert first_index(cluster, QUEUE + queue) == begun

    with_client(job, queues=3, log=msgspec.structs.replace(LOG, retention_ms=20_000))


def test_the_bound_of_bytes_needs_no_word_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def renew(node: Any) -> bool:
        return False

    async def job(cluster: Cluster, mq: Client) -> None:
        begun = first_index(cluster)
        monkeypatch.setattr(topic_retention, "renew_catalog", renew)
        await send(mq, "orders")
        await cluster.wait_until(lambda: first_index(cluster) > begun)

    with_client(job, log=Log(segment_bytes=256 * 1024, retention_ms=0, retention_bytes=300_000))


class Times:
    """Topic 1 for 10 s, topic 2 for ever."""

    def times(self) -> Mapping[int, int]:
        return {1: 10_000, 2: 0}

    def is_fresh(self) -> bool:
        return True


class Damaged:
    """A sealed segment whose index does not check out."""

    base = 201

    def column(self, name: str) -> memoryview:
        raise IndexDamaged(name)


def sealed(base: int, *queues: int) -> Any:
    column = memoryview(b"".join(q.to_bytes(8, "little") for q in queues)).cast("Q")
    return SimpleNamespace(base=base, column=lambda name: column)


@pytest.mark.parametrize(
    ("base", "own_ms", "expected"),
    [
        (1, 5_000, 10_000),  # topic 1 alone
        (1, 20_000, 10_000),
        (101, 5_000, 0),  # topics 1 and 2
        (201, 5_000, 0),  # its index is damaged: the longest time of all
        (301, 5_000, 5_000),  # no messages
        (401, 20_000, 20_000),  # topics 1 and 3, and 3 has no time of its own
        (501, 5_000, 0),  # not sealed yet
    ],
)
def test_time_of_a_segment(base: int, own_ms: int, expected: int) -> None:
    segments = (
        sealed(1, 1 << 16, 1 << 16 | 5), sealed(101, 1 << 16, 2 << 16), Damaged(), sealed(301),
        sealed(401, 1 << 16, 3 << 16),
    )  # fmt: skip
    group = cast("Group", SimpleNamespace(store=SimpleNamespace(sealed=segments)))
    retention = Retention(lambda: Log(retention_ms=own_ms), Times())
    assert retention._kept_ms(group, SegmentSize(base, base + 99, 10, 0)) == expected
