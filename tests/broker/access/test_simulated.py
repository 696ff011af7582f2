"""Users in the simulated world: catalogs that come by snapshot, and clocks that jump."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raftmq.access.tokens import ID_BYTES, SECRET_BYTES, digest_of, draw_token, parts_of
from raftmq.broker.replica.snapshots import Snapshots
from raftmq.broker.settings import Log
from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.access import TOKEN, LoggedIn, LogIn
from raftmq.wire.messages import FrameKind
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.scenario import in_cluster

TOKEN_TEXT = draw_token(bytes(ID_BYTES), bytes(SECRET_BYTES))
LIFE_MS = 600_000
HELD_SECONDS_MAX = 1.0
"""From the end of a right to the end of a connection."""
EXPIRED_SECONDS_MAX = 11.0
"""From the end of a token, by a clock that jumps, to the end of its connections."""


def with_users(
    scenario: Callable[[Cluster], Awaitable[Any]], *, size: int = 3, log: Log | None = None
) -> None:
    """Run a scenario with a founded cluster that knows its users."""

    async def founded(cluster: Cluster) -> None:
        cluster.network.is_under_tls = True
        await cluster.found()
        await scenario(cluster)

    in_cluster(founded, size=size, log=log)


async def change(cluster: Cluster, *commands: list[Any]) -> None:
    """Make changes as the administrator."""
    async with cluster.client(cluster.leader(0), user=ADMIN) as root:
        for command in commands:
            await root.admin(*command)


async def make_alice(cluster: Cluster, *, until_ms: int = 0) -> None:
    """Make a user with a token."""
    id_, secret = parts_of(TOKEN_TEXT)
    await change(
        cluster, ["put_user", "alice"], ["put_token", "alice", id_, digest_of(secret), until_ms]
    )


async def log_in(client: RawClient) -> str:
    """Log in by the token; the user."""
    return (await client.ask(FrameKind.LOG_IN, LogIn(TOKEN, TOKEN_TEXT), LoggedIn)).user


def is_in(cluster: Cluster, node: int) -> bool:
    """True if alice has a connection to a node."""
    clients = cluster.nodes[node].gate._clients.values()
    return any(
        client.identity is not None and client.identity.user == "alice" for client in clients
    )


def now_ms(cluster: Cluster, node: int) -> int:
    return cluster.machines[node].clock.now_ms()


def part(cluster: Cluster, node: int) -> None:
    """Let a node and the others hear each other no more."""
    for other in cluster.machines.keys() - {node}:
        cluster.network.block(f"node{node}", f"node{other}")
        cluster.network.block(f"node{other}", f"node{node}")


def join(cluster: Cluster, node: int) -> None:
    for other in cluster.machines.keys() - {node}:
        cluster.network.unblock(f"node{node}", f"node{other}")
        cluster.network.unblock(f"node{other}", f"node{node}")


def test_a_catalog_that_comes_by_a_snapshot_has_connections_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restored: list[int] = []
    restore = Snapshots.restore

    async def scenario(cluster: Cluster) -> None:
        await make_alice(cluster)
        away = cluster.leader(0) % 3 + 1

        def restoring(own: Snapshots, group: Any, snapshot: Any) -> None:
            restore(own, group, snapshot)
            if group.number == 0:
                # The records after the snapshot would have the connections judged as well.
                part(cluster, away)
                restored.append(own._node.id)

        async with cluster.client(away) as alice:
            assert await log_in(alice) == "alice"
            part(cluster, away)
            fillers = [["put_rule", ["bob", True, "read", "topic", f"{n:0100}", False]]
                       for n in range(1000)]  # fmt: skip
            await change(cluster, ["drop_user", "alice"], *fillers)
            await trio.sleep(10)
            assert is_in(cluster, away)
            behind = cluster.nodes[away].groups[0].raft.commit
            ahead = cluster.nodes[cluster.leader(0)].groups[0]
            # The catalog's log is dropped by no retention: what is missing has come by repair.
            ahead.machine.log_start = ahead.store.segments()[-1].base
            await change(cluster, ["put_user", "bob"])
            await cluster.wait_until(lambda: ahead.store.first_index > behind)
            monkeypatch.setattr(Snapshots, "restore", restoring)
            join(cluster, away)
            await cluster.wait_until(lambda: bool(restored))
            await trio.sleep(HELD_SECONDS_MAX)
            assert not is_in(cluster, away)
            assert restored == [away]

    with_users(scenario, log=Log(segment_bytes=16 * 1024, cache_bytes=1 << 20, reserve_bytes=0))


@pytest.mark.parametrize("ahead_ms", [2 * LIFE_MS, 144 * LIFE_MS])
def test_a_token_ends_by_the_nodes_own_clock_wherever_it_jumps(ahead_ms: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        clock = cluster.machines[1].clock
        await make_alice(cluster, until_ms=now_ms(cluster, 1) + LIFE_MS)
        async with cluster.client(1) as before, cluster.client(1) as late:
            assert await log_in(before) == "alice"
            clock.skew_ms += ahead_ms
            with pytest.raises(Refused, match="not valid"):
                await log_in(late)
            await trio.sleep(EXPIRED_SECONDS_MAX)
            assert not is_in(cluster, 1)
            # The login that has ended does not come back with the time.
            clock.skew_ms -= ahead_ms
            await trio.sleep(EXPIRED_SECONDS_MAX)
            assert not is_in(cluster, 1)
        async with cluster.client(1) as again:
            assert await log_in(again) == "alice"
            clock.skew_ms -= ahead_ms
            await trio.sleep(2 * LIFE_MS / 1000)
            assert is_in(cluster, 1)
            clock.skew_ms += ahead_ms
            await trio.sleep(EXPIRED_SECONDS_MAX)
            assert not is_in(cluster, 1)

    with_users(scenario, size=1)
