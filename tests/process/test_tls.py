"""A cluster of processes under TLS: it elects, serves, and takes up new certificates as it runs."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

import raftmq
from raftmq.chaos.real.faults.certificates import TAKEN_UP, begin_authority, give_out, renew, trust
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.testing import Cluster, cluster
from raftmq.tls.authority import CRL, Authority
from raftmq.tls.local_cluster import DAYS

pytestmark = pytest.mark.process

GAP_SECONDS_MAX = 10.0
"""Between two acknowledgements: an election and a new connection, on a busy machine."""


class Load:
    """A client that sends all the time; another one may take its place before it ends."""

    def __init__(self, url: str, nursery: trio.Nursery) -> None:
        self._url = url
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._numbers = count()
        self._last = trio.current_time()
        self.acked: set[int] = set()
        self.longest = 0.0
        """Longest time between two acknowledgements, in seconds."""

    async def renew(self) -> None:
        """Let a client with the files of today take over."""
        before, self._scope = self._scope, await self._nursery.start(self._send)
        before.cancel()

    def stop(self) -> None:
        self._scope.cancel()

    async def _send(self, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with raftmq.connect(self._url, timeout=30) as mq, mq.producer("t") as producer:
                self._last = trio.current_time() if not self.acked else self._last
                task_status.started(scope)
                while True:
                    await self._send_one(producer)
                    await trio.sleep(0.005)

    async def _send_one(self, producer: raftmq.Producer) -> None:
        number = next(self._numbers)
        try:
            await producer.send(b"%d" % number)
        except OutcomeUnknown:
            return
        now = trio.current_time()
        self.longest, self._last = max(self.longest, now - self._last), now
        self.acked.add(number)


@asynccontextmanager
async def under_load(nodes: Cluster) -> AsyncIterator[Load]:
    """Messages are sent inside the block; after it all that were acknowledged must be there."""
    async with raftmq.connect(nodes.url, timeout=30) as mq:
        await mq.admin.create_topic("t", queues=3)
    async with trio.open_nursery() as nursery:
        load = Load(nodes.url, nursery)
        await load.renew()
        yield load
        load.stop()
    missing = set(load.acked)
    async with raftmq.connect(nodes.url, timeout=30) as mq, mq.consumer("t") as consumer:
        with trio.fail_after(60):
            while missing:
                missing -= {int(each.body) for each in await consumer.fetch(1000, wait=5)}
    assert len(load.acked) > 100


@asynccontextmanager
async def taken_up(nodes: Cluster) -> AsyncIterator[None]:
    """The block changes files; after it the nodes have taken them up."""
    before = {node: nodes.log(node).count(TAKEN_UP) for node in nodes.nodes}
    yield
    with trio.fail_after(30):
        while any(nodes.log(node).count(TAKEN_UP) <= n for node, n in before.items()):
            await trio.sleep(0.05)


async def wait_links(nodes: Cluster, node: int, *, connected: bool) -> str:
    """Wait until node 1 has a link to another one, or has none for a while; its last error."""
    steady, link = 0, {"connected": None, "last_error": ""}
    with trio.fail_after(30):
        # Links are tried again within a second: ten looks in a row span several tries.
        while steady < (1 if connected else 10):
            await trio.sleep(0.3)
            status = await nodes.status(1)
            link = (status["links"] if status else {}).get(str(node), link)
            steady = steady + 1 if link["connected"] is connected else 0
    return str(link["last_error"])


async def send(url: str, count: int = 1) -> None:
    async with raftmq.connect(url, timeout=30) as mq, mq.producer("t") as producer:
        for n in range(count):
            await producer.send(b"%d" % n)


def test_cluster_under_tls_survives_a_leader_and_takes_new_certificates() -> None:
    async def main() -> None:
        async with cluster(3, secure=True) as nodes:
            async with raftmq.connect(nodes.url) as mq:
                await mq.admin.create_topic("t", queues=3)
            await send(nodes.url, 10)
            leader = await nodes.leader(1)
            nodes.kill(leader)
            await send(nodes.url, 10)
            await nodes.restart(leader)
            assert nodes.certs is not None
            for node in nodes.nodes:
                renew(nodes.certs, nodes.certs, f"node-{node}", days=DAYS)
                os.kill(nodes.pid(node), signal.SIGHUP)
            with trio.fail_after(30):
                while not all(TAKEN_UP in nodes.log(n) for n in nodes.nodes):
                    await trio.sleep(0.05)
            await send(nodes.url, 10)
            with pytest.raises(Rejected, match="raftmqs://") as refused:
                await send(nodes.url.replace("raftmqs", "raftmq").partition("?")[0])
            assert refused.value.reason is Reason.TLS
            async with raftmq.connect(nodes.url) as mq, mq.consumer("t") as consumer:
                assert len(await consumer.fetch(30, wait=20)) > 0

    trio.run(main)


def test_node_whose_certificate_is_revoked_takes_no_more_part() -> None:
    async def main() -> None:
        async with cluster(3, secure=True) as nodes:
            assert nodes.certs is not None
            async with raftmq.connect(nodes.url) as mq:
                await mq.admin.create_topic("t", queues=3)
            Authority(nodes.certs).revoke(nodes.certs / "node-3.pem")
            assert "revoked" in await wait_links(nodes, 3, connected=False)
            await wait_links(nodes, 2, connected=True)
            await send(nodes.url.replace(f",{nodes.address(3)}", ""), 10)

    trio.run(main)


def test_node_whose_certificate_expires_is_out_until_it_has_another_one() -> None:
    life_seconds = 3.0

    async def main() -> None:
        async with cluster(3, secure=True) as nodes, under_load(nodes) as load:
            certs = nodes.certs
            assert certs is not None
            began = trio.current_time()
            renew(certs, certs, "node-3", days=life_seconds / 86_400)
            with trio.fail_after(30):
                while TAKEN_UP not in nodes.log(3):
                    await trio.sleep(0.05)
            await trio.sleep_until(began + life_seconds + 0.5)
            # Open connections go on; this ends all of them.
            async with taken_up(nodes):
                (certs / CRL).touch()
            assert "expired" in await wait_links(nodes, 3, connected=False)
            await wait_links(nodes, 2, connected=True)
            renew(certs, certs, "node-3", days=DAYS)
            await wait_links(nodes, 3, connected=True)
            assert nodes.pid(3)
            assert load.longest < GAP_SECONDS_MAX

    trio.run(main)


def test_another_authority_takes_the_place_of_the_first_under_load(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(3, secure=True) as nodes:
            certs = nodes.certs
            assert certs is not None
            old = tmp_path / "user-admin.pem"
            old.write_bytes((certs / "user-admin.pem").read_bytes())
            async with under_load(nodes) as load:
                other = begin_authority(certs)
                async with taken_up(nodes):
                    trust(certs, certs, other)
                await load.renew()
                async with taken_up(nodes):
                    give_out(certs, other)
                await load.renew()
                async with taken_up(nodes):
                    trust(certs, other)
                for node in (2, 3):
                    await wait_links(nodes, node, connected=True)
                done = len(load.acked)
                with trio.fail_after(30):
                    while len(load.acked) < done + 50:
                        await trio.sleep(0.05)
                print(f"longest gap: {load.longest:.2f} s")
                assert load.longest < GAP_SECONDS_MAX
            # Certificates of the first one are worth nothing.
            with pytest.raises(Rejected) as refused:
                await send(nodes.url.replace(str(certs / "user-admin.pem"), str(old)))
            assert refused.value.reason is Reason.TLS

    trio.run(main)


def test_wrong_certificates_stop_a_node_at_its_start_with_a_remedy(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(1, secure=True, folder=tmp_path) as nodes:
            assert nodes.certs is not None
            nodes.kill(1)
            (nodes.certs / "node-1.key").unlink()
            with pytest.raises(Unavailable):
                await nodes.restart(1)
            assert "node-1.key" in nodes.log(1)
            assert "raftmq cert make" in nodes.log(1)

    trio.run(main)
