"""Users of a cluster of real processes: each node judges by what the cluster has decided."""

from contextlib import AbstractAsyncContextManager

import pytest
import trio

import raftmq
from raftmq import testing
from raftmq.errors import OutcomeUnknown, Reason, Rejected
from raftmq.testing import Cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

PASSWORD = "correct horse"
HELD_SECONDS_MAX = 10.0
"""A change holds within a second; a busy machine gets more."""


def as_user(
    nodes: Cluster, login: raftmq.Login, *only: int
) -> AbstractAsyncContextManager[raftmq.Client]:
    """A client with a login in place of the administrator's certificate, of some nodes or all."""
    url = nodes.url_of(only or nodes.nodes)
    base, _, query = url.partition("?")
    files = "&".join(part for part in query.split("&") if not part.startswith("cert="))
    return raftmq.connect(f"{base}?{files}", login=login, timeout=20)


def test_a_node_that_was_down_accepts_the_users_made_meanwhile_and_no_others() -> None:
    async def main() -> None:
        async with testing.cluster(secure=True) as nodes, raftmq.connect(nodes.url) as root:
            await root.access.put_user("old", PASSWORD)
            system = await nodes.leader(0)
            node = next(each for each in nodes.nodes if each != system)
            nodes.kill(node)
            await root.access.put_user("new", PASSWORD)
            await root.access.allow("new", "describe", "cluster")
            await root.access.drop_user("old")
            nodes.start(node)
            # At once: the node has its old catalog, and hears of the rest only now.
            async with as_user(nodes, raftmq.Login("new", PASSWORD), node) as new:
                assert (await new.admin.status(node))["id"] == node
            with pytest.raises(Rejected) as refused:
                async with as_user(nodes, raftmq.Login("old", PASSWORD), node):
                    pass
            assert refused.value.reason is Reason.UNAUTHENTICATED

    trio.run(main)


def test_a_right_is_taken_away_on_all_nodes_under_load() -> None:
    async def main() -> None:
        async with testing.cluster(secure=True) as nodes, raftmq.connect(nodes.url) as root:
            await root.admin.create_topic("orders", 6)
            await root.access.put_user("alice", PASSWORD)
            await root.access.allow("alice", "write", "topic", "orders")
            sent = 0
            async with (
                as_user(nodes, raftmq.Login("alice", PASSWORD)) as alice,
                alice.producer("orders") as producer,
            ):
                unknown: list[str] = []
                reasons: list[Reason] = []

                async def send() -> None:
                    nonlocal sent
                    try:
                        while True:
                            await producer.send(b"an order")
                            sent += 1
                    except OutcomeUnknown as error:
                        # It was under way when the connection was ended.
                        unknown.append(str(error))
                    except Rejected as error:
                        reasons.append(error.reason)

                async with trio.open_nursery() as nursery:
                    for _ in range(6):
                        nursery.start_soon(send)
                    while sent < 300:
                        await trio.sleep(0.01)
                    (rule,) = await root.access.rules("alice")
                    await root.access.drop_rule(rule)
                    nursery.cancel_scope.deadline = trio.current_time() + HELD_SECONDS_MAX
                assert not nursery.cancel_scope.cancelled_caught

                # A node that led no queue of these sends may hear of it last. A send may also go to
                # a connection that is being ended, and then again.
                async def send_for_ever() -> None:
                    nonlocal sent
                    while True:
                        await producer.send(b"another")
                        sent += 1

                with (
                    trio.fail_after(HELD_SECONDS_MAX),
                    pytest.raises((Rejected, OutcomeUnknown), match="may not write"),
                ):
                    await send_for_ever()
            queues = (await root.admin.describe_topic("orders")).queues
            assert set(reasons) <= {Reason.DENIED}
            assert all("may not write" in text for text in unknown)
            # What was acknowledged is there; of what was under way some may be.
            assert sent <= sum(queue.end for queue in queues) <= sent + 6

    trio.run(main)
