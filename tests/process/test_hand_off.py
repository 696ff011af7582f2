"""Consumers are killed between taking an order and billing it; each order is billed once."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

import raftmq
from raftmq.client import Client
from raftmq.testing import cluster
from tests.process.biller import BILLS, GROUP, INVISIBLE_SECONDS, ORDERS

pytestmark = [pytest.mark.process, pytest.mark.anyio]

ROOT = Path(__file__).parents[2]
COUNT = 400
KILLS = 4


def open_biller(url: str) -> "subprocess.Popen[bytes]":
    """A process that makes bills."""
    command = [sys.executable, "-m", "tests.process.biller", url]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


async def acked(mq: Client) -> int:
    """How many orders are done with."""
    backlogs = await mq.admin.backlogs(group=GROUP, topic=ORDERS)
    return sum(each.acked for each in backlogs)


async def test_each_order_is_billed_once_though_billers_and_a_leader_are_killed() -> None:
    left = 0
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        queues = len((await mq.admin.cluster()).groups) - 1
        for topic in (ORDERS, BILLS):
            await mq.admin.create_topic(topic, queues=queues)
        await mq.admin.create_consumer_group(GROUP, schedule=[0.2], attempts_max=100)
        async with mq.producer(ORDERS) as p:
            await p.send_many([b"%d" % n for n in range(COUNT)])
        for kill in range(KILLS):
            with open_biller(nodes.url) as biller:
                assert biller.stdout is not None
                await anyio.to_thread.run_sync(biller.stdout.readline)
                await anyio.sleep(0.1 + 0.013 * kill)
                if kill == KILLS // 2:
                    nodes.kill(await nodes.leader(1))
                    await anyio.sleep(1.5)
                biller.kill()
            left += len(await mq.open_transactions())
        await anyio.sleep(INVISIBLE_SECONDS + 0.5)
        # Transactions that dead processes left open have ended by themselves.
        assert await mq.open_transactions() == []
        before = await acked(mq)
        assert KILLS <= before < COUNT
        async with (
            mq.producer(BILLS) as p,
            mq.consumer(ORDERS, group=GROUP, mode="pop", invisible=20) as c,
        ):
            done = before
            while done < COUNT:
                for part in (await c.pop(50)).by_partition_group():
                    async with p.transaction(acks=part) as t:
                        await t.send_many([m.body for m in part])
                    done += len(part)
        bills: list[bytes] = []
        async with mq.consumer(BILLS) as c:
            while batch := await c.fetch(1_000, wait=1.0):
                bills += batch.bodies
        assert Counter(bills) == Counter(b"%d" % n for n in range(COUNT))
        assert await acked(mq) == COUNT
    assert left, "no biller was killed in the middle: the test says nothing"
