"""Odd consensus messages: of a member, and of a stranger."""

from collections.abc import Iterable

import pytest
import trio

from raftmq.consensus import Message, MessageKind
from raftmq.consensus.messages import TRANSFER
from raftmq.wire import raft
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello, Welcome
from raftmq.wire.numbers import NUMBER_MAX
from tests.broker.cluster.test_reconfiguration import produce_everywhere
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

STRANGER = 9


async def say(
    cluster: Cluster, messages: Iterable[Message], *, group: int = 2, node: int = 2, to: int = 1
) -> None:
    """Send messages of a group to a node, from a process that says it is another node."""
    known = cluster.nodes.get(node)
    name = known.incarnation if known is not None else "stranger"
    cluster_name = cluster.settings(to).node.cluster
    async with cluster.connection(to) as client:
        hello = Hello(PROTOCOL, cluster_name, node, name, "x", f"node{node}", 7400)
        await client.ask(FrameKind.HELLO, hello, Welcome)
        for message in messages:
            await client._stream.send_all(b"".join(raft.encode(group, message)))
        await trio.sleep(3)


@pytest.mark.parametrize("term", [1 << 62, NUMBER_MAX])
def test_vote_of_the_highest_term_leaves_terms_for_the_next_elections(term: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 3)
        # The most up-to-date log, and a transfer, so that nothing holds the candidate up.
        log = {"index": 1 << 40, "log_term": 1 << 40}
        vote = Message(MessageKind.VOTE, 1, sender=2, term=term, context=TRANSFER, **log)
        await say(cluster, [vote])
        cluster.kill(cluster.leader(2))
        await trio.sleep(20)
        assert cluster.leader(2)
        await cluster.start(*(node for node in (1, 2, 3) if node not in cluster.processes))
        await produce_everywhere(cluster, 3, 5)

    in_cluster(scenario)
