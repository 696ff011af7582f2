"""A cluster of processes under TLS: it elects, serves, and takes up new certificates as it runs."""

import os
import signal
from pathlib import Path

import pytest
import trio

import raftmq
from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.testing import Cluster, cluster
from raftmq.tls.authority import Authority
from raftmq.tls.local_cluster import DAYS
from raftmq.tls.names import node_name

pytestmark = pytest.mark.process


async def send(url: str, count: int = 1) -> None:
    async with raftmq.connect(url, timeout=30) as mq, mq.producer("t") as producer:
        for n in range(count):
            await producer.send(b"%d" % n)


def reissue(nodes: Cluster, node: int, *, days: float = DAYS) -> None:
    """Give a node another certificate and key, in place of those that it uses."""
    assert nodes.certs is not None
    own = nodes.certs / f"node-{node}"
    for suffix in (".pem", ".key"):
        own.with_suffix(suffix).unlink()
    cluster_name = nodes.config(node).read_text().split('cluster = "')[1].split('"')[0]
    Authority(nodes.certs).issue(node_name(cluster_name, node), ["127.0.0.1"], days=days)


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
            for node in nodes.nodes:
                reissue(nodes, node)
                os.kill(nodes.pid(node), signal.SIGHUP)
            with trio.fail_after(30):
                while not all("took up certificates" in nodes.log(n) for n in nodes.nodes):
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
            steady = 0
            with trio.fail_after(30):
                # Links are tried again within a second: ten looks in a row span several tries.
                while steady < 10:
                    await trio.sleep(0.3)
                    status = await nodes.status(1)
                    links = status["links"] if status else {}
                    is_out = bool(links) and not links["3"]["connected"]
                    is_in = bool(links) and links["2"]["connected"]
                    steady = steady + 1 if is_out and is_in else 0
            assert "revoked" in links["3"]["last_error"]
            await send(nodes.url.replace(f",{nodes.address(3)}", ""), 10)

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
