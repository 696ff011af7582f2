"""Real processes are killed, paused, stopped and restarted under load; nothing acked is lost."""

import time

import anyio
import pytest

import raftmq
from raftmq.errors import OutcomeUnknown, Unavailable
from raftmq.testing import cluster

from .load import QUEUES, running, wait_agreed

pytestmark = [pytest.mark.process, pytest.mark.anyio]


async def test_killed_leader_costs_nothing_that_was_acked() -> None:
    async with cluster() as nodes, running(nodes) as load:
        for group in (1, 2):
            victim = await nodes.leader(group)
            nodes.kill(victim)
            assert await nodes.leader(group) != victim
            await load.wait_acked(500)
            await nodes.restart(victim)
        await load.wait_acked(500)
        assert load.errors == []
        load.stop()
        await wait_agreed(nodes)


async def test_leader_that_stands_still_for_5_s_leads_no_second_time_in_its_term() -> None:
    async with cluster() as nodes, running(nodes) as load:
        paused = await nodes.leader(1)
        terms = {g["group"]: g["term"] for g in (await nodes.statuses())[paused]["groups"]}
        nodes.pause(paused)
        began = time.monotonic()
        heir = await nodes.leader(1)
        assert heir != paused
        await load.wait_acked(500)
        await anyio.sleep(max(0.0, began + 5.0 - time.monotonic()))
        nodes.resume(paused)
        await load.wait_acked(1_000)
        assert load.errors == []
        load.stop()
        await wait_agreed(nodes)
        statuses = await nodes.statuses()
        for group in (1, 2, 3):
            leaders = [node for node, status in statuses.items() if group in status["leads"]]
            assert len(leaders) == 1, f"group {group} is led by {leaders}"
        (term,) = {g["term"] for s in statuses.values() for g in s["groups"] if g["group"] == 1}
        assert term > terms[1]


async def test_all_nodes_killed_at_once_come_back_with_all_that_was_acked() -> None:
    async with cluster() as nodes, running(nodes) as load:
        for _ in range(2):
            await load.wait_acked(500)
            for node in nodes.nodes:
                nodes.kill(node)
            for node in nodes.nodes:
                nodes.start(node)
            await nodes.wait_ready()
        await load.wait_acked(500)
        assert load.errors == []
        load.stop()
        await wait_agreed(nodes)


async def test_minority_down_stops_no_queue() -> None:
    async with cluster() as nodes, running(nodes) as load:
        down = nodes.nodes[-1]
        nodes.kill(down)
        for group in (0, 1, 2, 3):
            assert await nodes.leader(group) != down
        async with raftmq.connect(nodes.url) as mq:
            # Of another topic, since the load knows each message of its own.
            await mq.admin.create_topic("aside", queues=QUEUES)
            async with mq.producer("aside") as producer:
                for queue in range(QUEUES):
                    assert (await producer.send(b"x", queue=queue)).queue == queue
        await load.wait_acked(500)
        assert load.errors == []


async def test_majority_down_is_answered_by_the_deadline_and_recovers() -> None:
    timeout = 3.0
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic("t", queues=QUEUES)
        async with mq.producer("t") as producer:
            before = [await producer.send(b"before", queue=queue) for queue in range(QUEUES)]
            for node in nodes.nodes[1:]:
                nodes.kill(node)
            outcomes: list[str] = []

            async def send(queue: int) -> None:
                began = anyio.current_time()
                try:
                    await producer.send(b"during", queue=queue, timeout=timeout)
                except (Unavailable, OutcomeUnknown) as error:
                    outcomes.append(type(error).__name__)
                took = anyio.current_time() - began
                assert timeout - 0.5 < took < timeout + 2.0, f"answered after {took:.1f} s"

            async with anyio.create_task_group() as tasks:
                for queue in range(QUEUES):
                    tasks.start_soon(send, queue)
            assert len(outcomes) == QUEUES
            for node in nodes.nodes[1:]:
                nodes.start(node)
            await nodes.wait_ready()
            after = [await producer.send(b"after", queue=queue) for queue in range(QUEUES)]
        async with mq.consumer("t") as consumer:
            ends = await mq.admin.find_offsets("t", "latest")
            bodies: dict[int, list[bytes]] = {queue: [] for queue in ends}
            while any(consumer.position[queue] < end for queue, end in ends.items()):
                for m in await consumer.fetch(wait=5.0):
                    bodies[m.queue].append(m.body)
        for queue, (first, last) in enumerate(zip(before, after, strict=True)):
            assert first.offset == 0
            assert last.offset == len(bodies[queue]) - 1
            assert bodies[queue] in (
                [b"before", b"after"],
                [b"before", b"during", b"after"],
            )


async def test_sigterm_hands_over_and_ends_with_status_0() -> None:
    async with cluster() as nodes, running(nodes) as load:
        for node in nodes.nodes:
            assert await nodes.stop(node, timeout=20.0) == 0
            await nodes.restart(node)
            await nodes.wait_ready()
            await load.wait_acked(300)
        assert load.errors == []
        load.stop()
        await wait_agreed(nodes)
