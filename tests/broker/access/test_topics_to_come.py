"""A fetch may name queues that no topic has yet: they are answered, and not kept in its session."""

import trio

from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.broker.harness import Cluster, RawClient
from tests.broker.scenario import in_cluster

QUEUES = 5000
SECRET = b"nobody's business"


async def fetch(client: RawClient, request: Fetch) -> Frame:
    (frame,) = await client.request_all((FrameKind.FETCH, pack(request), ()))
    return frame


def test_session_that_names_a_topic_to_come_reads_nothing_of_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.is_under_tls = True
        cluster.user = ADMIN
        await cluster.found("orders", 1)
        known = cluster.nodes[cluster.leader(0)].catalog
        first = (known.topic_last + 1) << 16
        async with (
            cluster.client(1, user="mallory") as one,
            cluster.client(2, user="mallory") as two,
            cluster.client(3, user="mallory") as three,
        ):
            sessions = {}
            for number, client in enumerate((one, two, three), 1):
                queues = [FetchFrom(first | n, 0) for n in range(QUEUES)]
                frame = await fetch(client, Fetch(queues, 0, 1 << 20, epoch=0))
                answer = unpack(Fetched, frame.header)
                errors = {each.error.code for each in answer.queues if each.error is not None}
                assert (len(answer.queues), errors) == (QUEUES, {"unknown_topic"})
                sessions[number] = client, answer.session
            async with cluster.client(cluster.leader(0)) as admin:
                await admin.admin("create_topic", "secret", 1)
            await cluster.wait_known("secret")
            assert known.topics["secret"].id << 16 == first
            leader = cluster.leader_of(first)
            async with cluster.client(leader) as admin:
                await admin.produce(first, [SECRET], 0)
            await trio.sleep(1)
            client, session = sessions[leader]
            assert (await fetch(client, Fetch([FetchFrom(first, 0)], 0, 1))).kind == FrameKind.ERROR
            frame = await fetch(client, Fetch([], 0, 1 << 20, session=session, epoch=1))
            assert SECRET not in bytes(frame.body)

    in_cluster(scenario)
