"""Transactions in whole simulated clusters: all or nothing, through crashes of either side."""

from typing import Any

import pytest
import trio

from raftmq.client import Client, Outgoing
from raftmq.client.produce.transactions import OpenTransaction, Transaction
from raftmq.client.routing.connection import Connection, Lost
from raftmq.client.routing.router import Router
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.wire.messages import FrameKind
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, bodies, with_client


def test_messages_are_seen_after_the_block_and_not_before() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            async with p.transaction(group="shop", note="order 17") as t:
                await t.send(b"a", key="k", tag="paid", props={"n": 1})
                await t.send_many([b"b", Outgoing(b"c", "k")])
                await p.send(b"other")
                await trio.sleep(5)
                assert await bodies(cluster, QUEUE) == [b"other"]
                (found,) = await mq.open_transactions()
                assert (found.id, found.note, found.messages) == (t.id, "order 17", 3)
            await trio.sleep(1)
            assert await bodies(cluster, QUEUE) == [b"other", b"a", b"b", b"c"]
            assert await mq.open_transactions() == []
            first = (await mq.find("orders", key="k"))[0]
            assert first.tag in ("paid", None)

    with_client(job)


def test_exception_rolls_back() -> None:
    async def fail(t: Transaction) -> None:
        async with t:
            await t.send(b"a")
            raise ZeroDivisionError

    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            t = p.transaction(group="shop")
            with pytest.raises(ZeroDivisionError):
                await fail(t)
            await p.send(b"other")
            await trio.sleep(1)
            assert await bodies(cluster, QUEUE) == [b"other"]
            assert await mq.open_transactions() == []
            assert t.id is not None
            with pytest.raises(Rejected) as refused:
                await mq.end_transaction(t.id, commit=True)
            assert refused.value.reason is Reason.TRANSACTION_ENDED
            assert await mq.end_transaction(t.id, commit=False) == 0

    with_client(job)


def test_transactions_of_a_leader_whose_clock_was_ahead_are_listed() -> None:
    """By a clock that is right again, their opening lies in the future."""

    async def job(cluster: Cluster, mq: Client) -> None:
        clocks = [machine.clock for machine in cluster.machines.values()]
        async with mq.producer("orders") as p:
            for clock in clocks:
                clock.skew_ms = 86_400_000
            await p.send(b"other")
            for clock in clocks:
                clock.skew_ms = 0
            t = p.transaction(group="shop", note="order 17")
            await t.send(b"a", key="k")
            assert [one.note for one in await mq.open_transactions()] == ["order 17"]
            decided: list[str] = []
            async with mq.check_back("shop", lambda one: decided.append(one.note), after=2):
                await trio.sleep(15)
            assert decided

    with_client(job)


def test_transaction_is_used_up_once_it_ended() -> None:
    async def job(_: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            assert p.transaction(group="shop").id is None
            async with p.transaction(group="shop") as t:
                await t.send(b"a")
                await t.commit()
                for again in (t.commit, t.rollback):
                    with pytest.raises(Rejected) as refused:
                        await again()
                    assert refused.value.reason is Reason.TRANSACTION_ENDED
            async with p.transaction(group="shop"):
                pass  # nothing was sent: nothing to end

    with_client(job)


def test_queue_of_another_partition_group_is_refused() -> None:
    async def spread(t: Transaction, other: int) -> None:
        async with t:
            await t.send(b"a", queue=0)
            await t.send(b"b")
            await t.send(b"c", queue=other)

    async def job(cluster: Cluster, mq: Client) -> None:
        groups = next(iter(cluster.nodes.values())).catalog.topics["orders"].groups
        other = next(at for at, group in enumerate(groups) if group != groups[0])
        async with mq.producer("orders") as p:
            with pytest.raises(Rejected, match="partition group") as refused:
                await spread(p.transaction(group="shop"), other)
            assert refused.value.reason is Reason.BAD_ARGUMENT
            assert await mq.open_transactions() == []

    with_client(job, queues=8)


def test_check_back_ends_what_a_dead_producer_left_open() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        asked: list[OpenTransaction] = []

        async def decide(transaction: OpenTransaction) -> bool | None:
            asked.append(transaction)
            if len(asked) < 3:
                return None
            return transaction.note == "paid"

        async with mq.producer("orders") as p:
            for note in ("paid", "failed"):
                t = p.transaction(group="shop", note=note)
                # As if the process died: the block is never left.
                await t.send(note.encode())
            await p.transaction(group="other").send(b"not asked for")
            async with mq.check_back("shop", decide, after=5, every=2):
                await trio.sleep(12)
            assert await bodies(cluster, QUEUE) == [b"paid"]
            assert {transaction.note for transaction in asked} == {"paid", "failed"}
            assert [left.group for left in await mq.open_transactions()] == ["other"]
            assert await mq.open_transactions("shop") == []

    with_client(job)


def test_check_back_goes_on_beside_a_partition_group_without_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader is asked in vain for as long as a call may take, and longer than the test."""
    call_leader, ended = Router.call_leader, [Rejected(Reason.TRANSACTION_ENDED, "by another")]

    async def call(router: Router, group: int, asked: FrameKind, *args: Any, **kwargs: Any) -> Any:
        if group != 1:
            await trio.sleep(60)
            raise Unavailable("the group has no leader")
        if asked == FrameKind.END and ended:
            raise ended.pop()
        return await call_leader(router, group, asked, *args, **kwargs)

    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            for note in ("first", "second"):
                await p.transaction(group="shop", note=note).send(note.encode())
            monkeypatch.setattr(Router, "call_leader", call)
            async with mq.check_back("shop", lambda _: True, after=1, every=10):
                await trio.sleep(15)
            monkeypatch.undo()
            # The end of the first one failed, and the second one was ended all the same.
            assert await bodies(cluster, QUEUE) == [b"second"]

    with_client(job)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_transaction_whose_beginning_has_no_answer_is_rolled_back(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    call_leader = Router.call_leader

    async def call(router: Router, group: int, asked: FrameKind, *args: Any, **kwargs: Any) -> Any:
        answer = await call_leader(router, group, asked, *args, **kwargs)
        if asked == FrameKind.BEGIN:
            await trio.sleep(5)
            raise OutcomeUnknown("BEGIN may have been done")
        return answer

    async def begin(t: Transaction) -> None:
        async with t:
            await t.send(b"a")

    async def job(cluster: Cluster, mq: Client) -> None:
        monkeypatch.setattr(Router, "call_leader", call)
        async with mq.producer("orders") as p:
            t = p.transaction(group="shop")
            if is_cancelled:
                with trio.move_on_after(1):
                    await begin(t)
            else:
                with pytest.raises(OutcomeUnknown):
                    await begin(t)
        monkeypatch.undo()
        assert await mq.open_transactions() == []
        assert t.id is not None
        with pytest.raises(Rejected):
            await mq.end_transaction(t.id, commit=True)

    with_client(job)


def test_end_is_known_although_the_leader_dies_around_it() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            wanted = []
            for n in range(6):
                leader = cluster.leader_of(QUEUE)
                async with p.transaction(group="shop") as t:
                    await t.send(b"%d" % n)
                    cluster.kill(leader, power=n % 2 == 1)
                    await t.send(b"%d'" % n)
                    wanted += [b"%d" % n, b"%d'" % n]
                await cluster.start(leader)
                await cluster.wait_led(1)
            await trio.sleep(5)
        assert await bodies(cluster, QUEUE) == wanted
        assert await mq.open_transactions() == []

    with_client(job)


def test_operator_resolves_and_bad_ids_are_refused() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            t = p.transaction(group="shop")
            await t.send(b"a")
            assert t.id is not None
            assert await mq.end_transaction(t.id, commit=True) == 1
            with pytest.raises(Rejected) as refused:
                await t.send(b"late")
            assert refused.value.reason is Reason.TRANSACTION_ENDED
        for text, reason in (
            ("nonsense", Reason.BAD_ARGUMENT),
            ("t1-", Reason.BAD_ARGUMENT),
            ("t1-77", Reason.UNKNOWN_TRANSACTION),
        ):
            with pytest.raises(Rejected) as refused:
                await mq.end_transaction(text, commit=True)
            assert refused.value.reason is reason

    with_client(job)


def test_message_that_was_stored_before_its_transaction_ended_is_not_said_to_be_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the first attempt is lost, and the second one comes after a commit."""

    async def job(cluster: Cluster, mq: Client) -> None:
        call, lost = Connection.call, [Lost(was_written=True, why="the connection broke")]

        async def ask(
            connection: Connection, asked: FrameKind, *arguments: Any, **named: Any
        ) -> Any:
            answer = await call(connection, asked, *arguments, **named)
            if asked == FrameKind.PRODUCE and lost:
                assert t.id is not None
                answer = lost.pop()
                await mq.end_transaction(t.id, commit=True)
            return answer

        async with mq.producer("orders") as p:
            t = p.transaction(group="shop")
            monkeypatch.setattr(Connection, "call", ask)
            with pytest.raises(OutcomeUnknown, match="an earlier attempt"):
                await t.send(b"a")
        await trio.sleep(1)
        assert await bodies(cluster, QUEUE) == [b"a"]

    with_client(job)


def test_transaction_finds_a_queue_that_others_have_added() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            async with cluster.client(cluster.leader(0)) as admin:
                await admin.admin("alter_topic", "orders", 4)
            async with p.transaction(group="shop") as t:
                with pytest.raises(Rejected, match="queues 0 to 3, no 9"):
                    await t.send(b"x", queue=9)
                await t.send(b"x", queue=3)
            await trio.sleep(1)
            assert await bodies(cluster, QUEUE + 3) == [b"x"]

    with_client(job)
