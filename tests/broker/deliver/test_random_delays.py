"""Delayed messages and transactions while nodes die at random: each promise is kept at the end."""

from collections import Counter
from random import Random

import pytest
import trio

from raftmq.chaos.sim.clients import Clients
from raftmq.client import Client, Producer
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, in_cluster, kill_some

SECONDS = 25
QUEUES = 2


class Books:
    """The answers that clients got."""

    def __init__(self) -> None:
        self.dues: dict[bytes, int] = {}
        """Due times of messages that are certainly stored."""
        self.unknown: set[bytes] = set()
        """Messages that may have been stored, or taken back."""
        self.gone: set[bytes] = set()
        """Messages that must never be delivered."""
        self.committed: list[list[bytes]] = []
        self.undecided: list[list[bytes]] = []


async def send_later(p: Producer, books: Books, random: Random, name: bytes) -> None:
    """Send messages for later, and take some back."""
    number = 0
    until = trio.current_time() + SECONDS
    while trio.current_time() < until:
        body = b"%s-%d" % (name, number)
        number += 1
        try:
            receipt = await p.send(body, delay=random.uniform(0.01, 8), timeout=4)
        except (Unavailable, OutcomeUnknown) as error:
            (books.gone if isinstance(error, Unavailable) else books.unknown).add(body)
            continue
        books.dues[body] = receipt.deliver_at_ms
        if random.random() < 0.4 and receipt.number:
            assert receipt.id is not None
            await trio.sleep(random.uniform(0, 3))
            await take_back(p, books, body, receipt.id)
        await trio.sleep(random.uniform(0, 0.2))


async def take_back(p: Producer, books: Books, body: bytes, message_id: str) -> None:
    """Cancel messages, and note the answers."""
    try:
        await p.cancel(message_id, timeout=4)
        books.gone.add(body)
    except Rejected as error:
        if error.reason is not Reason.FELL_DUE:
            raise
        return
    except Unavailable:
        return
    except OutcomeUnknown:
        books.unknown.add(body)
    del books.dues[body]


async def transact(p: Producer, books: Books, random: Random) -> None:
    """Transactions of two queues of one partition group, some of them rolled back."""
    number = 0
    until = trio.current_time() + SECONDS
    while trio.current_time() < until:
        bodies = [b"t-%d-%d" % (number, n) for n in range(3)]
        number += 1
        wants_commit = random.random() < 0.7
        t = p.transaction(group="shop", timeout=4)
        try:
            for body in bodies:
                await t.send(body, queue=0)
                await trio.sleep(random.uniform(0, 0.3))
        except (Unavailable, OutcomeUnknown):
            # Left open, as by a process that died.
            books.gone.update(bodies)
            continue
        try:
            await (t.commit() if wants_commit else t.rollback())
        except (Unavailable, OutcomeUnknown):
            books.undecided.append(bodies)
        else:
            if wants_commit:
                books.committed.append(bodies)
            else:
                books.gone.update(bodies)


async def read(mq: Client) -> list[tuple[bytes, int]]:
    """All messages, and when they were placed."""
    found = []
    async with mq.consumer("orders") as c:
        while batch := await c.fetch(1_000, wait=3.0):
            found += [(m.body, m.timestamp) for m in batch]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_promises_are_kept_while_nodes_die(seed: int) -> None:
    random, books = Random(seed), Books()

    async def job(mq: Client, _: object) -> None:
        async with mq.producer("orders") as p, trio.open_nursery() as nursery:
            nursery.start_soon(send_later, p, books, random, b"a")
            nursery.start_soon(send_later, p, books, random, b"b")
            nursery.start_soon(transact, p, books, random)
        await trio.sleep(20)
        for transaction in await mq.open_transactions():
            await mq.end_transaction(transaction.id, commit=False)
        found = await read(mq)
        times = Counter(body for body, _ in found)
        assert max(times.values()) == 1
        seen = set(times)
        assert books.dues.keys() - books.unknown <= seen
        assert not books.gone & seen
        committed = {body for bodies in books.committed for body in bodies}
        assert committed <= seen
        for bodies in books.undecided:
            assert len(seen & set(bodies)) in (0, len(bodies))
        open_ones = {body for bodies in books.undecided for body in bodies}
        assert seen <= books.dues.keys() | books.unknown | committed | open_ones
        assert all(at >= books.dues.get(body, 0) for body, at in found)
        assert len(books.dues) > 20
        assert books.committed

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", QUEUES)
        assert cluster.leader_of(QUEUE)
        async with trio.open_nursery() as nursery:
            clients = Clients(cluster, nursery, seed=seed)
            nursery.start_soon(kill_some, cluster, random, SECONDS)
            await clients.once(job)
            assert not clients.failures, clients.failures
            nursery.cancel_scope.cancel()

    in_cluster(scenario, seed=seed)
