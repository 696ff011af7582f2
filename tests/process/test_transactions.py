"""Shops are killed between a payment and its message; exactly the paid orders are announced."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import raftmq
from raftmq.client import OpenTransaction
from raftmq.testing import cluster
from tests.process.databases import connected, create_tables
from tests.process.recipe import is_paid
from tests.process.shop import GROUP

pytestmark = [pytest.mark.process, pytest.mark.anyio]

ROOT = Path(__file__).parents[2]
KILLS = 8


def open_shop(url: str, name: str, first: int) -> "subprocess.Popen[bytes]":
    """A process that pays orders from a number on."""
    command = [sys.executable, "-m", "tests.process.shop", url, name, str(first)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


async def test_payments_and_messages_agree_though_shops_and_a_leader_are_killed(
    tmp_path: Path,
) -> None:
    name = f"sqlite:{tmp_path / 'shop.db'}"
    create_tables(name)
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic("payments", queues=1)
        for kill in range(KILLS):
            with open_shop(nodes.url, name, 1_000_000 * kill) as shop:
                assert shop.stdout is not None
                await anyio.to_thread.run_sync(shop.stdout.readline)
                await anyio.sleep(0.15 + 0.007 * kill)
                if kill == KILLS // 2:
                    nodes.kill(await nodes.leader(1))
                    await anyio.sleep(1.5)
                shop.kill()
        left = await mq.open_transactions(GROUP)
        with connected(name) as database:

            def check(transaction: OpenTransaction) -> bool:
                return is_paid(database, transaction.note)

            async with mq.check_back(GROUP, check, after=0.5, every=0.5):
                with anyio.fail_after(20):
                    while await mq.open_transactions(GROUP):
                        await anyio.sleep(0.1)
            paid = database.column("SELECT number FROM orders WHERE outcome = 'paid'")
        told = []
        async with mq.consumer("payments") as c:
            while batch := await c.fetch(1_000, wait=2.0):
                told += [m.body.decode() for m in batch]
        assert len(told) == len(set(told))
        assert sorted(told) == paid
        assert len(paid) > KILLS
        assert left, "no shop was killed in the middle: the test says nothing"
