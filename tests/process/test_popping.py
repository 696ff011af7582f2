"""Consumers in processes of their own share a topic; one of them hangs, and nothing else does."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

import raftmq
from raftmq.client import Client
from raftmq.testing import cluster

pytestmark = [pytest.mark.process, pytest.mark.anyio]

ROOT = Path(__file__).parents[2]
TOPIC, GROUP = "orders", "billing"
RATE = 200


class Popper:
    """A consumer's process, and its output."""

    def __init__(self, url: str, path: Path) -> None:
        self._path = path
        with path.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.process.popper", url, TOPIC, GROUP],
                stdout=out,
                cwd=ROOT,
            )

    def said(self, what: str) -> list[str]:
        """The bodies that it said this of."""
        lines = self._path.read_text().splitlines(keepends=True)
        words = [line.split() for line in lines if line.endswith("\n")]
        return [body for said, body in words if said == what]


async def send(mq: Client, numbers: range) -> None:
    """Messages at a steady pace."""
    async with mq.producer(TOPIC) as producer:
        for number in numbers:
            await producer.send(b"%d" % number)
            await anyio.sleep(1 / RATE)


@pytest.mark.campaign
async def test_frozen_consumer_costs_what_it_has_in_hand_and_nothing_else(tmp_path: Path) -> None:
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic(TOPIC, queues=6)
        await mq.admin.create_consumer_group(GROUP, schedule=[0.5])
        poppers = [Popper(nodes.url, tmp_path / f"{n}") for n in range(3)]
        try:
            await send(mq, range(500))
            frozen, *others = poppers
            frozen.process.send_signal(signal.SIGSTOP)
            await anyio.sleep(0.5)
            before = sum(len(each.said("acked")) for each in others)
            await send(mq, range(500, 1000))
            await anyio.sleep(0.5)
            # All messages since, except those that the frozen consumer had asked for before.
            went_on = sum(len(each.said("acked")) for each in others) - before
            assert went_on >= 500 - 3 * 2 * 10
            with anyio.fail_after(30):
                # Except the message that it was working on, and may have acknowledged.
                while len({body for p in poppers for body in p.said("acked")}) < 999:
                    await anyio.sleep(0.2)
            frozen.process.send_signal(signal.SIGCONT)
            with anyio.fail_after(30):
                while len({body for p in poppers for body in p.said("acked")}) < 1000:
                    await anyio.sleep(0.2)
            await anyio.sleep(1.0)
            counts = Counter(body for each in poppers for body in each.said("acked"))
            assert sorted(map(int, counts)) == list(range(1000))
            assert set(counts.values()) == {1}
            assert set(frozen.said("fenced")) <= set(counts)
        finally:
            for each in poppers:
                each.process.kill()
                each.process.wait()
