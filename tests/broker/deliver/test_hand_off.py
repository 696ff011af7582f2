"""Hand-offs in whole simulated clusters: each popped message gives one result."""

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio

from raftmq.chaos.sim.clients import Clients
from raftmq.client import Client, PopConsumer, PoppedMessage, Producer
from raftmq.client.routing.router import Router
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.wire.messages import FrameKind
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster, kill_some, with_client

QUEUES = 4
SECONDS = 20

Job = Callable[[Cluster, Client, Producer], Awaitable[None]]


def hand_off_with(job: Job, *, inputs: int = 3) -> None:
    """Run a job that finds messages in `orders`, and makes others in `bills`."""

    async def begin(cluster: Cluster, mq: Client) -> None:
        await mq.admin.create_topic("bills", queues=QUEUES)
        async with mq.producer("orders") as p:
            if inputs:
                await p.send_many([b"%d" % n for n in range(inputs)], queue=0)
        async with mq.producer("bills") as p:
            await job(cluster, mq, p)

    with_client(begin, queues=QUEUES)


async def bills(mq: Client) -> list[bytes]:
    """The bills of all queues, sorted."""
    found: list[bytes] = []
    async with mq.consumer("bills") as c:
        while batch := await c.fetch(1_000, wait=3.0):
            found += batch.bodies
    return sorted(found)


async def acked(mq: Client) -> int:
    """Number of orders that are acked."""
    backlogs = await mq.admin.backlogs(group="billing", topic="orders")
    return sum(each.acked for each in backlogs)


def test_what_is_made_is_seen_and_what_it_was_made_of_is_acknowledged() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=5) as c:
            batch = await c.pop(3)
            async with p.transaction(acks=batch, note="three") as t:
                await t.send_many([b"bill " + m.body for m in batch])
                (found,) = await mq.open_transactions()
                assert (found.id, found.group, found.note) == (t.id, "", "three")
                assert (found.messages, found.inputs) == (3, 3)
                assert await bills(mq) == []
            assert await bills(mq) == [b"bill 0", b"bill 1", b"bill 2"]
            # A repeated end counts once.
            assert (await batch.ack()).is_complete
            await trio.sleep(10)
            assert not await c.pop(3)
            assert await acked(mq) == 3
            events = [event.what for event in await mq.why(batch[0].id)]
            assert events == ["stored", "handed out", "acked"]

    hand_off_with(job)


def test_message_of_which_nothing_is_made_is_acknowledged_all_the_same() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=2) as c:
            async with p.transaction(acks=[await anext(c)]):
                pass
            await trio.sleep(5)
            assert [m.body for m in await c.pop(5)] == [b"1", b"2"]

    hand_off_with(job)


def test_who_is_too_slow_is_told_so_and_the_message_comes_again() -> None:
    async def slow(p: Producer, message: PoppedMessage) -> None:
        async with p.transaction(acks=[message]) as t:
            await t.send(b"slow")
            await trio.sleep(3)

    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=2) as c:
            message = await anext(c)
            with pytest.raises(Rejected, match="handed out again") as refused:
                await slow(p, message)
            assert refused.value.reason is Reason.FENCED
            with pytest.raises(Rejected) as refused:
                await slow(p, message)
            assert refused.value.reason is Reason.FENCED
            assert await mq.open_transactions() == []
            again = await anext(c)
            assert (again.body, again.attempt) == (message.body, 2)
            async with p.transaction(acks=[again]) as t:
                await t.send(b"quick")
            assert await bills(mq) == [b"quick"]

    hand_off_with(job, inputs=1)


def test_hand_off_of_a_dead_process_ends_with_its_lease() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=2) as c:
            # As if the process died: the block is never left.
            t = p.transaction(acks=[await anext(c)])
            await t.send(b"half")
            assert len(await mq.open_transactions()) == 1
            # No producer is asked about it.
            async with mq.check_back("", lambda _: True, after=0, every=0.5):
                await trio.sleep(3)
            assert await mq.open_transactions() == []
            assert t.id is not None
            with pytest.raises(Rejected) as refused:
                await mq.end_transaction(t.id, commit=True)
            assert refused.value.reason is Reason.FENCED
            assert await mq.end_transaction(t.id, commit=False) == 0
            assert await bills(mq) == []

    hand_off_with(job, inputs=1)


def test_commit_from_elsewhere_acknowledges_too() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=20) as c:
            message = await anext(c)
            t = p.transaction(acks=[message])
            await t.send(b"half")
            assert t.id is not None
            assert await mq.end_transaction(t.id, commit=True) == 1
            # The application's own commit comes second, and gets the same answer.
            await t.commit()
            await message.ack()
            assert await bills(mq) == [b"half"]
            assert await acked(mq) == 1

    hand_off_with(job, inputs=1)


def test_exception_leaves_the_message_in_hand() -> None:
    async def fail(p: Producer, message: PoppedMessage) -> None:
        async with p.transaction(acks=[message]) as t:
            await t.send(b"never")
            raise ZeroDivisionError

    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=20) as c:
            message = await anext(c)
            with pytest.raises(ZeroDivisionError):
                await fail(p, message)
            assert await mq.open_transactions() == []
            await message.nack(0)
            assert (await anext(c)).attempt == 2
            assert await bills(mq) == []

    hand_off_with(job, inputs=1)


@pytest.mark.parametrize("kind", [FrameKind.BEGIN, FrameKind.PRODUCE])
def test_hand_off_of_which_a_message_may_be_lost_is_not_committed(
    kind: FrameKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the application notes the failure and goes on."""
    call_leader, failures = Router.call_leader, [Unavailable("the leader did not answer")]

    async def call(router: Router, group: int, asked: FrameKind, *args: Any, **kwargs: Any) -> Any:
        if asked == kind and failures:
            raise failures.pop()
        return await call_leader(router, group, asked, *args, **kwargs)

    async def hand_off(p: Producer, message: PoppedMessage) -> None:
        async with p.transaction(acks=[message]) as t:
            with pytest.raises(Unavailable):
                await t.send(b"bill")
            with pytest.raises(Rejected, match="can only be rolled back"):
                await t.send(b"another bill")

    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=20) as c:
            (message,) = await c.pop(1)
            monkeypatch.setattr(Router, "call_leader", call)
            with pytest.raises(Rejected, match="rolled back"):
                await hand_off(p, message)
            assert not failures
            assert await acked(mq) == 0
            await message.nack(0)
            assert (await anext(c)).attempt == 2
            assert await bills(mq) == []

    hand_off_with(job, inputs=1)


def test_lease_is_renewed_while_the_hand_off_is_open() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop", invisible=2, renew=2) as c:
            async with p.transaction(acks=await c.pop(3)) as t:
                await t.send(b"first")
                await trio.sleep(10)
                await t.send(b"last")
            assert await bills(mq) == [b"first", b"last"]

    hand_off_with(job)


def test_leader_may_die_between_half_and_commit() -> None:
    async def job(cluster: Cluster, mq: Client, p: Producer) -> None:
        ended: list[str | None] = []
        async with mq.consumer("orders", group="billing", mode="pop", invisible=60) as c:
            for n in range(4):
                message = await anext(c)
                leader = cluster.leader(1)
                async with p.transaction(acks=[message]) as t:
                    await t.send(message.body)
                    cluster.kill(leader, power=n % 2 == 1)
                ended.append(t.id)
                await cluster.start(leader)
                await cluster.wait_led(1)
            for each in ended:
                # As after a lost answer: to the current leader.
                assert each is not None
                assert await mq.end_transaction(each, commit=True) == 0
            await trio.sleep(70)
            assert not await c.pop(4)
            assert await bills(mq) == [b"0", b"1", b"2", b"3"]

    hand_off_with(job, inputs=4)


def test_messages_of_several_partition_groups_are_handed_off_group_by_group() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.producer("orders") as orders:
            for queue in range(1, QUEUES):
                await orders.send(b"of %d" % queue, queue=queue)
        async with mq.consumer("orders", group="billing", mode="pop", invisible=60) as c:
            messages: list[PoppedMessage] = []
            while len(messages) < 3 + QUEUES - 1:
                batch = await c.pop(10)
                messages += batch
                for part in batch.by_partition_group():
                    async with p.transaction(acks=part) as t:
                        await t.send_many([m.body for m in part])
            with pytest.raises(Rejected, match="by_partition_group") as refused:
                p.transaction(acks=messages)
            assert refused.value.reason is Reason.BAD_ARGUMENT
            assert await bills(mq) == sorted(m.body for m in messages)

    hand_off_with(job)


def test_queue_elsewhere_is_refused_with_what_would_be_right() -> None:
    async def send(p: Producer, message: PoppedMessage, queue: int | None) -> None:
        async with p.transaction(acks=[message]) as t:
            await t.send(b"x", queue=queue)

    async def job(cluster: Cluster, mq: Client, p: Producer) -> None:
        topics = next(iter(cluster.nodes.values())).catalog.topics
        home = topics["orders"].groups[0]
        others = [n for n, group in enumerate(topics["bills"].groups) if group != home]
        await mq.admin.create_topic("far", queues=1)
        async with (
            mq.consumer("orders", group="billing", mode="pop", invisible=60) as c,
            mq.producer("far") as far,
        ):
            message = await anext(c)
            with pytest.raises(Rejected, match=f"here {home}.*queue=") as refused:
                await send(p, message, others[0])
            assert refused.value.reason is Reason.BAD_ARGUMENT
            with pytest.raises(Rejected, match="has no queue there") as refused:
                await send(far, message, None)
            assert refused.value.reason is Reason.BAD_ARGUMENT
            assert await mq.open_transactions() == []
            await send(p, message, None)

    hand_off_with(job, inputs=1)


def test_messages_of_a_key_are_handed_off_to_a_topic_beside_theirs() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        keys = [f"k{n}" for n in range(20)]
        await mq.admin.create_topic("beside", queues=QUEUES, beside="orders")
        async with mq.producer("orders") as orders:
            for key in keys:
                await orders.send(key.encode(), key=key)
        async with (
            mq.consumer("orders", group="billing", mode="ordered", invisible=60) as c,
            mq.producer("beside") as beside,
        ):
            for _key in keys:
                message = await anext(c)
                async with beside.transaction(acks=[message]) as t:
                    await t.send(message.body, key=message.key)
        await trio.sleep(1)
        async with mq.consumer("beside") as reader:
            found = await reader.fetch(100, wait=3.0)
        assert sorted(found.bodies) == sorted(key.encode() for key in keys)
        assert len({*found.queues}) > 1

    hand_off_with(job, inputs=0)


def test_transaction_has_inputs_or_a_group() -> None:
    async def job(_: Cluster, mq: Client, p: Producer) -> None:
        async with mq.consumer("orders", group="billing", mode="pop") as c:
            message = await anext(c)
            async with mq.consumer("orders") as reader:
                pulled = await anext(reader)
            wrong: list[dict[str, Any]] = [
                {},
                {"acks": [message], "group": "shop"},
                {"acks": []},
                {"acks": [pulled]},
            ]
            for options in wrong:
                with pytest.raises(Rejected, match="acks") as refused:
                    p.transaction(**options)
                assert refused.value.reason is Reason.BAD_ARGUMENT

    hand_off_with(job, inputs=1)


class Workers:
    """Consumers that make one message of each, while nodes die; some hang from time to time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fenced = 0
        self.doubtful = 0

    async def work(self, c: PopConsumer, p: Producer, until: float) -> None:
        while trio.current_time() < until:
            try:
                batch = await c.pop(3, wait=1)
                for part in batch.by_partition_group():
                    await self.make(p, [*part])
            except (Unavailable, OutcomeUnknown):
                # In any case an unacknowledged message comes again.
                self.doubtful += 1

    async def make(self, p: Producer, messages: list[PoppedMessage]) -> None:
        random = self.random
        t = p.transaction(acks=messages, timeout=4)
        try:
            for message in messages:
                await t.send(b"bill " + message.body)
                await trio.sleep(random.choice((0, 0, 0.2, 1.2)))
            if random.random() < 0.1:
                # As if the process died.
                return
            await (t.rollback() if random.random() < 0.1 else t.commit())
        except Rejected as error:
            if error.reason is not Reason.FENCED:
                raise
            self.fenced += 1


@pytest.mark.parametrize("seed", range(4))
def test_one_bill_for_each_order_while_nodes_die(seed: int) -> None:
    random = Random(seed)
    orders = [b"%d" % n for n in range(120)]

    async def job(mq: Client, _: object) -> None:
        await mq.admin.create_topic("bills", queues=QUEUES)
        workers, until = Workers(random), trio.current_time() + SECONDS
        async with mq.producer("orders") as p:
            await p.send_many(orders)
        async with trio.open_nursery() as nursery, mq.producer("bills") as p:
            for _ in range(3):
                c = mq.consumer("orders", group="billing", mode="pop", invisible=1.5, prefetch=8)
                nursery.start_soon(consume, workers, c, p, until)
            await trio.sleep(SECONDS + 30)
        # The rest is done without faults.
        workers.random = Random("calm")
        async with mq.producer("bills") as p:
            c = mq.consumer("orders", group="billing", mode="pop", invisible=20)
            async with c:
                while batch := await c.pop(10, wait=15):
                    for part in batch.by_partition_group():
                        async with p.transaction(acks=part) as t:
                            await t.send_many([b"bill " + m.body for m in part])
        found = Counter(await bills(mq))
        assert found == Counter(b"bill " + order for order in orders)
        assert workers.fenced > 0
        assert await mq.open_transactions() == []

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", QUEUES)
        async with trio.open_nursery() as nursery:
            clients = Clients(cluster, nursery, seed=seed)
            nursery.start_soon(kill_some, cluster, random, SECONDS)
            await clients.once(job)
            assert not clients.failures, clients.failures
            nursery.cancel_scope.cancel()

    in_cluster(scenario, seed=seed)


async def consume(workers: Workers, c: PopConsumer, p: Producer, until: float) -> None:
    async with c:
        await workers.work(c, p, until)
