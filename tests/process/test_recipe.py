"""The recipe of docs/transactions.md, on each database that it names: one row decides."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from subprocess import PIPE
from threading import Event

import anyio
import pytest
from anyio import to_thread

import raftmq
from raftmq.client import Client, OpenTransaction
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.popped import PoppedMessage
from raftmq.errors import Reason, Rejected
from raftmq.testing import Cluster, cluster
from tests.process.databases import Database, connected, create_tables, postgresql
from tests.process.recipe import is_new, is_paid, pay, ship, ship_if_new, ship_once
from tests.process.recipe_worker import GROUP

pytestmark = [pytest.mark.process, pytest.mark.anyio]

ROOT = Path(__file__).parents[2]
NUMBERS = count(1)
PATIENCE_SECONDS = 90.0
"""The longest that anything may take on a machine that does a lot else."""
REFUSED = "(?i)unique constraint"
"""Each database's error for a second row with the same primary key."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
async def nodes(anyio_backend: str) -> AsyncIterator[Cluster]:
    async with cluster(1) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name of a database with the recipe's tables and no rows."""
    if request.param == "sqlite":
        name = f"sqlite:{tmp_path / 'shop.db'}"
    else:
        where = request.getfixturevalue("server")
        own = f"test_{next(NUMBERS)}"
        with connected(f"postgresql:{where}") as database:
            database.execute(f"CREATE SCHEMA {own}")
        name = f"postgresql:{where} options='-c search_path={own}'"
    create_tables(name)
    return name


@pytest.fixture
async def mq(nodes: Cluster) -> AsyncIterator[Client]:
    async with raftmq.connect(nodes.url) as mq:
        yield mq


@pytest.fixture
async def topic(mq: Client) -> str:
    """A topic of this test's own; failed messages come again soon."""
    topic = f"orders-{next(NUMBERS)}"
    await mq.admin.create_topic(topic, queues=1)
    if not await mq.admin.consumer_groups(name=GROUP):
        await mq.admin.create_consumer_group(GROUP, schedule=[0.05])
    await mq.admin.attach(topic, GROUP)
    return topic


class Fragile:
    """Processes that follow the recipe up to a point and are killed there."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.process.recipe_worker"]
        self._parent = subprocess.Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE)

    def live_until(self, where: str, *, url: str, name: str, topic: str) -> None:
        """One of them, from its start to its death."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([url, name, topic, where]).encode() + b"\n")
        self._parent.stdin.flush()
        pid = int(self._parent.stdout.readline())
        assert pid > 0, f"it ended before it was {where}"
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._parent.communicate()


@pytest.fixture(scope="module")
def fragile() -> Iterator[Fragile]:
    with closing(Fragile()) as fragile:
        yield fragile


def receiving(mq: Client, topic: str, lease_seconds: float = PATIENCE_SECONDS) -> PopConsumer:
    consumer = mq.consumer(topic, group=GROUP, mode="pop", invisible=lease_seconds, prefetch=0)
    assert isinstance(consumer, PopConsumer)
    return consumer


async def next_of(consumer: PopConsumer) -> PoppedMessage:
    """The next message, however long the machine is busy with something else."""
    while True:
        for message in await consumer.pop(1, wait=5.0):
            return message


async def told(mq: Client, topic: str, count: int) -> list[str]:
    """All messages delivered of a topic: at least `count`."""
    found: list[str] = []
    async with mq.consumer(topic) as consumer:
        while len(found) < count:
            found += [m.body.decode() for m in await consumer.fetch(100, wait=5.0)]
        found += [m.body.decode() for m in await consumer.fetch(100, wait=0.2)]
    return sorted(found)


async def wait_ended(mq: Client, topic: str) -> None:
    """Until no transaction of a topic's shop is open."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while await mq.open_transactions(topic):
            await anyio.sleep(0.05)


async def send(mq: Client, topic: str, *numbers: str) -> None:
    async with mq.producer(topic) as p:
        for number in numbers:
            await p.send(number.encode())


@pytest.mark.parametrize("where", ["shipping", "shipped"])
async def test_message_whose_receiver_died_comes_again_and_is_shipped_once(
    fragile: Fragile, nodes: Cluster, mq: Client, topic: str, name: str, where: str
) -> None:
    await send(mq, topic, "a")
    fragile.live_until(where, url=nodes.url, name=name, topic=topic)
    with connected(name) as database:
        # The database undoes an uncommitted row.
        was_shipped = where == "shipped"
        assert database.column("SELECT number FROM shipped") == ["a"] * was_shipped
        async with receiving(mq, topic) as consumer:
            message = await next_of(consumer)
            assert message.attempt > 1
            assert ship_once(database, message.id, "a") is not was_shipped
            await message.ack()
        assert database.column("SELECT number FROM shipped") == ["a"]
    (backlog,) = await mq.admin.backlogs(topic=topic)
    assert (backlog.acked, backlog.lag) == (1, 0)


def ship_without_labels(database: Database, message_id: str) -> None:
    """Work that fails in the middle of its database transaction."""
    with database.transaction():
        assert is_new(database, message_id)
        ship(database, "a")
        raise ConnectionError("the printer of labels does not answer")


async def test_message_whose_work_failed_is_new_when_it_comes_again(
    mq: Client, topic: str, name: str
) -> None:
    await send(mq, topic, "a")
    with connected(name) as database:
        async with receiving(mq, topic) as consumer:
            message = await next_of(consumer)
            with pytest.raises(ConnectionError):
                ship_without_labels(database, message.id)
            assert database.column("SELECT id FROM done") == []
            await message.nack()
            again = await next_of(consumer)
            assert (again.id, again.attempt) == (message.id, 2)
            assert ship_once(database, again.id, "a")
            await again.ack()
        assert database.column("SELECT number FROM shipped") == ["a"]


class Held:
    """A database transaction in a thread of its own, open until it is let go."""

    def __init__(self, name: str, work: Callable[[Database], object]) -> None:
        self._name = name
        self._work = work
        self._is_begun = Event()
        self._goes_on = Event()
        self._is_committed = True

    def run(self) -> None:
        """The thread's work."""
        with connected(self._name) as database, suppress(ConnectionError), database.transaction():
            self._work(database)
            self._is_begun.set()
            assert self._goes_on.wait(PATIENCE_SECONDS)
            if not self._is_committed:
                raise ConnectionError

    async def wait_begun(self) -> None:
        """Until the work is done and not committed."""
        assert await to_thread.run_sync(self._is_begun.wait, PATIENCE_SECONDS)

    def end(self, *, is_committed: bool) -> None:
        """Let it commit, or roll back."""
        self._is_committed = is_committed
        self._goes_on.set()


@pytest.mark.parametrize("is_committed", [True, False])
async def test_second_receiver_of_a_message_waits_for_the_first_and_ships_if_that_did_not(
    mq: Client, topic: str, name: str, is_committed: bool
) -> None:
    await send(mq, topic, "a")
    found: list[bool] = []

    def ship_again(message_id: str) -> None:
        with connected(name) as database:
            found.append(ship_once(database, message_id, "a"))

    async with receiving(mq, topic, 1.0) as slow, receiving(mq, topic) as other:
        message = await next_of(slow)
        held = Held(name, lambda database: ship_if_new(database, message.id, "a"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, held.run)
            await held.wait_begun()
            # Its lease runs out meanwhile.
            again = await next_of(other)
            assert again.id == message.id
            tasks.start_soon(to_thread.run_sync, ship_again, again.id)
            await anyio.sleep(0.2)
            assert found == []
            held.end(is_committed=is_committed)
        await again.ack()
        with pytest.raises(Rejected) as caught:
            await message.ack()
        assert caught.value.reason is Reason.FENCED
    assert found == [not is_committed]
    with connected(name) as database:
        assert database.column("SELECT number FROM shipped") == ["a"]


async def test_transaction_of_a_shop_that_died_ends_as_its_database_says(
    fragile: Fragile, nodes: Cluster, mq: Client, topic: str, name: str
) -> None:
    for where in ("sent", "paying", "paid"):
        fragile.live_until(where, url=nodes.url, name=name, topic=topic)
    assert len(await mq.open_transactions(topic)) == 3
    assert await told(mq, topic, 0) == []
    with connected(name) as database:

        def check(transaction: OpenTransaction) -> bool:
            return is_paid(database, transaction.note)

        async with mq.check_back(topic, check, after=0.1, every=0.1):
            await wait_ended(mq, topic)
        assert await told(mq, topic, 1) == ["paid"]
        assert database.column("SELECT number FROM orders WHERE outcome = 'paid'") == ["paid"]
        # A process that was only slow can no longer pay.
        for number in ("sent", "paying"):
            with pytest.raises(Exception, match=REFUSED):
                pay(database, number)


async def test_shop_that_was_refused_while_it_was_slow_rolls_back(
    mq: Client, topic: str, name: str
) -> None:
    async def sell(database: Database) -> None:
        async with mq.producer(topic) as p, p.transaction(group=topic, note="slow") as t:
            await t.send(b"slow")
            assert not is_paid(database, "slow")
            pay(database, "slow")

    with connected(name) as database:
        with pytest.raises(Exception, match=REFUSED):
            await sell(database)
        assert await mq.open_transactions(topic) == []
        assert await told(mq, topic, 0) == []
        assert not is_paid(database, "slow")


@pytest.mark.parametrize("is_committed", [True, False])
async def test_check_back_waits_for_a_payment_that_is_under_way(
    mq: Client, topic: str, name: str, is_committed: bool
) -> None:
    asked: list[str] = []

    def look(number: str) -> bool:
        with connected(name) as database:
            return is_paid(database, number)

    async def check(transaction: OpenTransaction) -> bool:
        asked.append(transaction.note)
        return await to_thread.run_sync(look, transaction.note)

    statement = "INSERT INTO orders VALUES (?, 'paid')"
    held = Held(name, lambda database: database.execute(statement, "17"))
    async with mq.producer(topic) as p, anyio.create_task_group() as tasks:
        await p.transaction(group=topic, note="17").send(b"17")
        tasks.start_soon(to_thread.run_sync, held.run)
        await held.wait_begun()
        async with mq.check_back(topic, check, after=0.1, every=0.1):
            with anyio.fail_after(PATIENCE_SECONDS):
                while not asked:
                    await anyio.sleep(0.05)
            await anyio.sleep(0.3)
            assert asked == ["17"]
            assert len(await mq.open_transactions(topic)) == 1
            held.end(is_committed=is_committed)
            await wait_ended(mq, topic)
    assert await told(mq, topic, int(is_committed)) == (["17"] if is_committed else [])
