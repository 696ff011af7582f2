"""How leaders feed groups with a filter or an order by key, when something is in the way."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import pytest
import trio

from raftmq.broker.replica.group import Group
from raftmq.broker.settings import Log
from raftmq.broker.tickets import Ticket
from raftmq.client import Client
from raftmq.wire.messages import ErrorReply
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, with_client

BUSY = ErrorReply("busy", "leadership is being handed over", retry_ms=200)


@pytest.mark.parametrize("error", [BUSY, ErrorReply("unavailable", "no time is named")])
def test_feed_that_is_refused_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, error: ErrorReply
) -> None:
    refused: list[float] = []
    is_refusing = False
    propose = Group.propose

    def refusing(
        self: Group, kind: int, payload: bytes, ticket: Ticket, *, is_upkeep: bool = False
    ) -> None:
        if is_refusing and b"feed" in payload:
            refused.append(trio.current_time())
            ticket.failed(error)
        else:
            propose(self, kind, payload, ticket, is_upkeep=is_upkeep)

    monkeypatch.setattr(Group, "propose", refusing)

    async def job(_: Cluster, mq: Client) -> Any:
        nonlocal is_refusing
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"x"] * 20, keys=["k"] * 20)
        async with mq.consumer("orders", group="g", mode="ordered") as consumer:
            is_refusing = True
            assert not (await consumer.pop(1, wait=2.0)).bodies
            is_refusing = False
            return (await consumer.pop(1, wait=2.0)).bodies

    assert with_client(job) == [b"x"]
    # Once each 0.2 s, not as fast as the loop can.
    assert 2 <= len(refused) <= 12
    assert all(b - a >= 0.2 - 1e-6 for a, b in pairwise(refused))


@pytest.mark.parametrize("mode", ["pop", "ordered"])
def test_first_filter_that_comes_while_keys_are_read_from_disk_holds(
    monkeypatch: pytest.MonkeyPatch, mode: Literal["pop", "ordered"]
) -> None:
    held: list[Callable[[], object]] = []

    async def job(cluster: Cluster, mq: Client) -> Any:
        async with mq.producer("orders") as producer:
            for n in range(150):
                producer.send_nowait(b"%d" % n + bytes(20_000), key=f"k{n}", props={"n": n})
                if n % 10 == 9:
                    await producer.flush()
        reader = cluster.nodes[cluster.leader_of(QUEUE)]._feeds._reader
        submit = reader.submit
        monkeypatch.setattr(reader, "submit", lambda *job: held.append(partial(submit, *job)))
        await mq.admin.attach("orders", "g", mode=mode)
        await trio.sleep(1)
        # Keys are looked for before anything is handed out.
        assert bool(held) == (mode == "ordered")
        await mq.admin.subscribe("orders", "g", "n >= 145")
        await trio.sleep(3)
        monkeypatch.undo()
        for let_go in held:
            let_go()
        async with mq.consumer("orders", group="g", mode=mode) as consumer:
            got: list[int] = []
            while batch := await consumer.pop(500, wait=2.0):
                got += [int(body[:3].rstrip(bytes(1))) for body in batch.bodies]
                await batch.ack()
        return got

    assert with_client(job, log=Log(cache_bytes=1 << 20)) == list(range(145, 150))


@pytest.mark.parametrize(
    "kind", [{"mode": "pop"}, {"mode": "ordered"}, {"mode": "pop", "tags": "t"}], ids=str
)
def test_first_pop_without_a_wait_finds_the_messages_that_are_there(kind: dict[str, Any]) -> None:
    async def job(_: Cluster, mq: Client) -> list[int]:
        async with mq.consumer("orders", group="g", **kind) as consumer:
            start = trio.current_time()
            # Nothing is there, so nothing has to be looked at.
            assert not await consumer.pop(5, wait=0)
            assert trio.current_time() - start < 0.1
        async with mq.producer("orders") as producer:
            for n in range(10):
                await producer.send(b"%d" % n, key=f"k{n}", tag="t")
        await trio.sleep(5)
        found: list[int] = []
        # The second group has not read the topic before.
        for group in ("g", "h"):
            async with mq.consumer("orders", group=group, **kind) as consumer:
                found += [len(await consumer.pop(5, wait=0)) for _ in range(3)]
        return found

    assert with_client(job) == [5, 5, 0] * 2


def test_pop_without_a_wait_takes_half_a_second_at_most_while_feeds_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    propose = Group.propose

    def refusing(
        self: Group, kind: int, payload: bytes, ticket: Ticket, *, is_upkeep: bool = False
    ) -> None:
        if b"feed" in payload:
            ticket.failed(BUSY)
        else:
            propose(self, kind, payload, ticket, is_upkeep=is_upkeep)

    monkeypatch.setattr(Group, "propose", refusing)

    async def job(_: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as producer:
            await producer.send(b"x", key="k")
        async with mq.consumer("orders", group="g", mode="ordered") as consumer:
            start = trio.current_time()
            assert not await consumer.pop(1, wait=0)
            assert 0.4 < trio.current_time() - start < 0.7

    with_client(job)
