"""Bytes that wait to be sent are held once, leave in order, and are freed once sent."""

import gc

import trio
import trio.testing

from raftmq.broker.serve.outbox import Outbox, Step

PART = 100_000


def test_parts_leave_whole_and_in_order_whatever_their_sizes() -> None:
    parts = [bytes([n % 251]) * (n * n * 37 % 300_000) for n in range(60)]

    async def main() -> bytes:
        near, far = trio.testing.memory_stream_pair()
        outbox = Outbox(near, Step())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            for part in parts:
                outbox.put([part])
                await trio.lowlevel.checkpoint()
            await outbox.wait_drained()
            assert outbox.size == 0
            nursery.cancel_scope.cancel()
        await near.aclose()
        received = b""
        async for data in far:
            received += data
        return received

    assert trio.run(main) == b"".join(parts)


class Part(bytes):
    """Bytes that can be counted while they live."""


def alive() -> int:
    gc.collect()
    return sum(isinstance(each, Part) for each in gc.get_objects())


def test_slow_stream_holds_only_what_it_has_not_taken() -> None:
    async def main() -> None:
        near, far = trio.testing.lockstep_stream_pair()
        outbox = Outbox(near, Step())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            outbox.put([Part(PART) for _ in range(20)])
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(5):
                await far.receive_some(1 << 20)
                await trio.testing.wait_all_tasks_blocked()
            # Two parts fit into a piece: five were taken and one is on its way.
            assert alive() == 20 - 2 * 6
            assert outbox.size == PART * (20 - 2 * 5)
            nursery.cancel_scope.cancel()

    trio.run(main)
