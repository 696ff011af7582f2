"""Quotas of topics and fetch sessions: the topics of all queues of a session count, and a fetch
does not go through those queues.
"""

from collections.abc import Iterator

import trio

from raftmq.wire.fetches import FetchFrom
from tests.broker.harness import Cluster
from tests.broker.quotas.throttled import TOPIC, put_quota
from tests.broker.scenario import QUEUE, in_cluster

from .test_fetch_sessions import fetches_of, led_by, opened


class Offsets(dict[int, int]):
    """The offsets of a session; they count how often all queues are gone through."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_fetches_of_a_session_go_through_its_queues_only_when_those_have_changed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found(TOPIC, 30)
        await put_quota(cluster, "topic", TOPIC, read_messages=1_000_000)
        queues = led_by(cluster, 1, 30)
        async with cluster.client(1) as client:
            reader = await opened(cluster, client, queues[1:], wait_ms=0)
            (sessions,) = fetches_of(cluster, 1).sessions._kept.values()
            session = sessions[reader.session]
            offsets = session.offsets = Offsets(session.offsets)
            await client.produce(queues[1], [b"x"], 0)
            for _ in range(5):
                await reader.ask()
            assert offsets.walks == 1
            await reader.ask(FetchFrom(queues[1], 0))
            await reader.ask()
            assert offsets.walks == 1
            await reader.ask(FetchFrom(queues[0], 0))
            for _ in range(5):
                await reader.ask()
            assert offsets.walks == 2
            await reader.ask(forgotten=(queues[0],))
            for _ in range(5):
                await reader.ask()
            assert offsets.walks == 3
            assert len(reader.bodies[queues[1]]) == 2

    in_cluster(scenario)


def test_a_quota_holds_for_a_topic_that_came_into_a_session_later_and_until_it_leaves() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("free", 1)
        async with cluster.client(cluster.leader(0)) as admin:
            await admin.admin("create_topic", TOPIC, 1, "free")
        await put_quota(cluster, "topic", TOPIC, read_messages=10)
        bounded = QUEUE + (1 << 16)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            reader = await opened(cluster, client, [QUEUE], wait_ms=0)
            assert not (await reader.ask()).throttle_ms
            await client.produce(bounded, [b"x"] * 25, 0)
            assert not (await reader.ask(FetchFrom(bounded, 0))).throttle_ms
            assert len(reader.bodies[bounded]) == 25
            assert (await reader.ask()).throttle_ms > 1400
            await trio.sleep(1)
            await reader.ask(FetchFrom(bounded, 0))
            assert (await reader.ask(forgotten=(bounded,))).throttle_ms > 1400
            # The bucket is full again, and the session does not read from the topic.
            await client.fetch(bounded, 0)
            assert not (await reader.ask()).throttle_ms

    in_cluster(scenario)
