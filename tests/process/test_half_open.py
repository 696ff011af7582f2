"""A real node among thousands of connections that begin a handshake, or nothing, and stay so."""

from pathlib import Path

import pytest
import trio

import raftmq
from bench.alone.half_open import strangers
from raftmq import testing
from raftmq.broker.serve.load import NODE_PLACES

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

STRANGERS = 10_000
CONNECTIONS_MAX = 2_000
"""Fewer places than there are strangers."""
GROWTH_MIB_MAX = 128


def resident_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20


def test_ten_thousand_half_open_connections_take_places_and_memory_within_bounds() -> None:
    async def main() -> None:
        settings = {"limits": {"connections_max": CONNECTIONS_MAX}}
        async with (
            testing.cluster(1, secure=True, settings=settings) as nodes,
            raftmq.connect(nodes.url, timeout=30) as early,
        ):
            await early.admin.create_topic("t", 1)
            before = resident_mib(nodes.pid(1))
            async with (
                early.producer("t") as producer,
                strangers(nodes.public_port(1), STRANGERS, 200),
            ):
                for _ in range(50):
                    await producer.send(b"by a client that was there before")
                async with raftmq.connect(nodes.url, timeout=30) as late:
                    async with late.producer("t") as other:
                        await other.send(b"by a client that came later")
                    status = await late.admin.status(1)
                assert status["connections"] <= CONNECTIONS_MAX + NODE_PLACES
                assert status["connections"] > CONNECTIONS_MAX / 2, "the strangers were there"
                assert resident_mib(nodes.pid(1)) - before < GROWTH_MIB_MAX
            with trio.fail_after(30):
                while (await early.admin.status(1))["connections"] > 10:
                    await trio.sleep(0.1)

    trio.run(main)
