"""The checked mode: it finds what was broken on purpose, and nothing else."""

from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

import raftmq
from raftmq.batch import Batch
from raftmq.client.checked.verdict import Checked
from raftmq.client.consume.start import Start
from raftmq.client.pop.handles import handle_of
from raftmq.client.pop.leases import HeldLease
from raftmq.client.produce.queue_sender import QueueSender
from raftmq.client.slices import Slice
from raftmq.errors import Inconsistent, Reason, Rejected
from raftmq.machine.delays import Delays, Half
from raftmq.machine.pop_groups import PopGroups

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_queue_that_was_not_recorded_cannot_be_checked(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path) as mq:
        with pytest.raises(Rejected, match="check=True") as caught:
            await mq.check()
    assert caught.value.reason is Reason.BAD_ARGUMENT


async def test_what_is_not_recorded_cannot_be_sent_to_a_checked_queue(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"body": [b"x"]})
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", 1)
        with pytest.raises(Rejected, match="not recorded"):
            mq.claimed_producer("orders", "import")
        async with mq.producer("orders") as p:
            with pytest.raises(Rejected, match="not recorded"):
                await p.put_arrow(rows)
        assert (await mq.admin.describe_topic("orders")).queues[0].end == 0


async def test_nothing_done_is_unknown_and_not_valid(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        checked = await mq.check()
    assert checked.verdict == "unknown"
    assert str(checked) == "unknown (vacuous: no message was sent)"


async def test_lists_that_their_owner_changes_while_the_call_waits_are_no_breach(
    tmp_path: Path,
) -> None:
    bodies: list[Any] = [bytearray(b"%d" % n) for n in range(300)]

    async def change() -> None:
        await anyio.lowlevel.checkpoint()
        for body in bodies:
            body[:] = b"other"
        bodies.clear()

    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", 1)
        async with (
            mq.producer("orders", buffer_messages=150, batch_messages=100) as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(change)
            assert len(await producer.send_many(bodies=bodies)) == 300
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)


async def test_messages_with_properties_and_mixed_delays_are_recognised(tmp_path: Path) -> None:
    # Such batches are encoded by the call; the recorder reads them back.
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", 1)
        async with mq.producer("orders") as producer:
            bodies, keys, tags = [b"a", b"b", b"c"], ["k", None, b"l"], [None, "t", "u"]
            props = [{"n": 1}, None, {"city": "Rome"}]
            await producer.send_many(bodies=bodies, keys=keys, tags=tags, props=props)
            await producer.send_many(bodies=[b"now", b"soon"], delay=[None, 0.1])
        async with mq.consumer("orders") as consumer:
            got = {(await anext(consumer)).body for _ in range(5)}
        assert got == {b"a", b"b", b"c", b"now", b"soon"}
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)
    assert checked.counts["acknowledged"] == 3


async def work(mq: raftmq.Embedded, name: str) -> Checked:
    """All that a checked queue records, in one go."""
    await mq.admin.create_topic(name, queues=2)
    async with mq.producer(name) as producer:
        await producer.send(b"same", key="k", tag="t")
        await producer.send(b"same", key="k", tag="t")
        for n in range(20):
            producer.send_nowait(b"%d" % n)
        await producer.flush()
        await producer.send_many(bodies=[b"many"] * 50, keys=["k", None] * 25)
    async with mq.consumer(name) as consumer:
        got = 0
        async for _ in consumer:
            got += 1
            if got == 72:
                break
        await consumer.seek(to="earliest")
        got = 0
        while got < 72:
            got += len(await consumer.fetch(100))
    async with mq.consumer(name, group="filtered", filter="t") as consumer:
        assert [(await anext(consumer)).tag for _ in range(2)] == ["t", "t"]
    async with mq.consumer(name, group="p", mode="pop") as popper:
        one = await anext(popper)
        await one.nack(0.0)
        two = await anext(popper)
        await two.extend(20)
        await two.reject("bad")
        got = 0
        while batch := await popper.pop(30, wait=0.3):
            await batch.ack()
            got += len(batch)
        assert got == 71
    async with mq.consumer(name, group="o", mode="ordered") as popper:
        for _ in range(10):
            message = await anext(popper)
            await message.ack()
    return await mq.check()


async def test_healthy_queue_is_valid(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        checked = await work(mq, "orders")
        assert checked.verdict == "valid", str(checked)
        assert checked.counts["acknowledged"] >= 72
        assert checked.counts["completeness undecided for filtered groups"] == 1
        again = await mq.check()
        assert again.verdict == "valid", str(again)


async def test_what_was_there_before_is_not_judged(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"old"] * 10)
        async with mq.consumer("orders", group="p", mode="pop") as popper:
            await (await popper.pop(3)).ack()
    async with raftmq.open(tmp_path, check=True) as mq:
        async with mq.producer("orders") as producer:
            await producer.send(b"new")
        async with mq.consumer("orders", group="p", mode="pop") as popper:
            for _ in range(8):
                await (await anext(popper)).ack()
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)
    assert checked.counts["acknowledged"] == 1


async def test_deleted_topic_is_not_judged(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        for name in ("gone", "kept"):
            await mq.admin.create_topic(name, queues=1)
            async with mq.producer(name) as producer:
                await producer.send(b"x")
        await mq.admin.delete_topic("gone")
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)


async def test_calls_that_nobody_waited_for_are_unknown_and_not_wrong(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            with anyio.move_on_after(0):
                await producer.send(b"cancelled")
            await producer.send(b"sent")
            async with mq.consumer("orders", group="p", mode="pop") as popper:
                (await popper.pop(1, wait=5.0)).ack_nowait()
                await popper.flush()
            producer.send_nowait(b"perhaps")
            checked = await mq.check()
    assert checked.verdict == "valid", str(checked)


# -- planted bugs --------------------------------------------------------------------------------


async def test_message_acknowledged_and_not_stored_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_nothing(lane: QueueSender, parcel: Any, _: Any) -> None:
        lane._settle(parcel, 1, 0, False)

    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"stored")
            with monkeypatch.context() as patch:
                patch.setattr(QueueSender, "_write", write_nothing)
                await producer.send(b"lost")
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert set(caught.value.anomalies) & {"lost-postfix", "unseen"}
    assert "'lost'" in str(caught.value)


async def test_reader_that_skips_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raftmq.client.consume.read_ahead import Fetcher

    healthy = Fetcher.take

    def skip(fetcher: Fetcher, count: int) -> list[Slice]:
        return [part._replace(start=part.start + 1) for part in healthy(fetcher, count)]

    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"%d" % n for n in range(10)])
        async with mq.consumer("orders") as consumer:
            await consumer.fetch(3)
            monkeypatch.setattr(Fetcher, "take", skip)
            await consumer.fetch(3)
            monkeypatch.undo()
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert "poll-skip" in caught.value.anomalies


async def test_message_of_another_sender_is_found(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"mine")
        foreign = raftmq.Client(mq._router, mq._supervisor, mq._world)
        async with foreign.producer("orders") as producer:
            await producer.send(b"not on the tape")
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert "unexpected" in caught.value.anomalies


async def test_ack_that_did_not_happen_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raftmq.client.pop.settlement_sender import SettlementSender

    def pretend(
        settler: SettlementSender, lease: HeldLease, action: Any, bits: int, waiter: Any, **_: Any
    ) -> None:
        waiter.settled += bits.bit_count()

    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"x")
        async with mq.consumer("orders", group="p", mode="pop", invisible=1.0) as popper:
            batch = await popper.pop(1, wait=5.0)
            with monkeypatch.context() as patch:
                patch.setattr(SettlementSender, "settle", pretend)
                await batch.ack()
            assert await popper.pop(1, wait=30.0)
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert "redelivered-after-ack" in caught.value.anomalies


async def test_calls_beyond_the_limit_of_the_history_are_judged_by_the_witness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_nothing(lane: QueueSender, parcel: Any, _: Any) -> None:
        lane._settle(parcel, 200, 0, False)

    monkeypatch.setattr("raftmq.embedded.tape.ROWS_MAX", 100)
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"x"] * 200)
        checked = await mq.check()
        assert checked.verdict == "valid"
        assert checked.counts["found as sent"] == 200
        assert checked.counts["not judged by their history, which was full"] >= 200
        monkeypatch.setattr(QueueSender, "_write", write_nothing)
        async with mq.producer("orders") as producer:
            await producer.send(b"lost")
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert caught.value.anomalies == ("unseen",)


async def test_changed_property_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"x", props={"n": 1})
        monkeypatch.setattr(Batch, "props", lambda *_: {"n": 2})
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert "unexpected" in caught.value.anomalies


async def test_delayed_message_may_be_there_or_not(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"now")
            await producer.send(b"soon", delay=0.2)
            await producer.send(b"late", delay=600.0)
        async with mq.consumer("orders") as consumer:
            assert [(await anext(consumer)).body for _ in range(2)] == [b"now", b"soon"]
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)


async def test_transactions_and_hand_offs_are_valid(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        for name in ("orders", "bills"):
            await mq.admin.create_topic(name, queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"plain")
            async with producer.transaction(group="shop") as transaction:
                await transaction.send_many([b"a", b"b", b"c"])
            gone = producer.transaction(group="shop")
            await gone.send(b"never seen")
            await gone.rollback()
        async with (
            mq.producer("bills") as producer,
            mq.consumer("orders", group="p", mode="pop") as popper,
        ):
            for _ in range(4):
                message = await anext(popper)
                async with producer.transaction(acks=[message]) as transaction:
                    await transaction.send(message.body, key="k")
        await wait_stored(mq, "bills", 4)
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)
    assert checked.counts["acked"] == 4
    assert checked.counts["acknowledged"] == 8


async def test_message_that_was_rolled_back_and_is_there_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(self: Delays, halves: list[Half]) -> None:
        self.commit(halves, self._committed[0] + 1000)

    monkeypatch.setattr(Delays, "roll_back", late)
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"plain")
            transaction = producer.transaction(group="shop")
            await transaction.send(b"never")
            await transaction.rollback()
        await wait_stored(mq, "orders", 2)
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert "aborted-read" in caught.value.anomalies


async def test_hand_off_that_did_not_acknowledge_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PopGroups, "ack", lambda *_: None)
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_consumer_group("p", "pop", schedule=[0.1])
        for name in ("orders", "bills"):
            await mq.admin.create_topic(name, queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"a")
        options: dict[str, Any] = {"group": "p", "mode": "pop", "invisible": 1.0}
        async with (
            mq.producer("bills") as producer,
            mq.consumer("orders", **options) as popper,
        ):
            async with producer.transaction(acks=[await anext(popper)]) as transaction:
                await transaction.send(b"a")
            with anyio.fail_after(30):
                await anext(popper)
        with pytest.raises(Inconsistent) as caught:
            await mq.check()
    assert "redelivered-after-ack" in str(caught.value)


async def wait_stored(mq: raftmq.Embedded, topic: str, count: int) -> None:
    """Wait until this many messages can be read."""
    got = 0
    async with mq.consumer(topic) as consumer:
        with anyio.fail_after(30):
            while got < count:
                got += len(await consumer.fetch(count))


async def test_messages_of_one_dead_letter_that_are_redriven_by_themselves_are_valid(
    tmp_path: Path,
) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"bad", b"worse", b"worst"])
        async with mq.consumer("orders", group="p", mode="pop") as popper:
            await (await popper.pop(3, wait=5.0)).reject("no")
            (letter,) = await mq.admin.dead_letters("orders", "p")
            part = letter.part(letter.ids[1:2])
            assert await mq.admin.redrive([part, letter.part([])]) == 1
            again = await anext(popper)
            assert again.body == b"worse"
            await again.ack()
            assert await mq.admin.purge([letter]) == 2
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)


async def test_dead_letters_that_are_redriven_are_valid(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"bad", b"worse"])
        async with mq.consumer("orders", group="p", mode="pop") as popper:
            for _ in range(2):
                await (await anext(popper)).reject("no")
            letters = await mq.admin.dead_letters("orders", "p")
            await mq.admin.redrive(letters[:1])
            await (await anext(popper)).ack()
            await mq.admin.purge(letters[1:])
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)


async def pop_all(mq: raftmq.Embedded) -> int:
    async with mq.consumer("orders", group="g", mode="pop") as consumer:
        count = 0
        while batch := await consumer.pop(100, wait=0.5):
            await batch.ack()
            count += len(batch)
    return count


@pytest.mark.parametrize("to", ["earliest", "latest"])
async def test_group_that_is_reset_is_not_accused(tmp_path: Path, to: Start) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"x"] * 10)
        async with mq.consumer("orders", group="g", mode="pop") as consumer:
            await (await consumer.pop(3)).ack()
        await mq.admin.reset_group("g", "orders", to=to)
        assert await pop_all(mq) == (10 if to == "earliest" else 0)
        await mq.check()


async def test_group_that_is_settled_for_by_handle_is_not_accused(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"x"] * 10)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            handles = [handle_of(each) for each in await consumer.pop(5)]
            assert await mq.settle(handles) == [True] * 5
        assert await pop_all(mq) == 5
        await mq.check()


@pytest.mark.parametrize("retention_ms", [0, 3_600_000])
async def test_lost_head_is_found_unless_retention_may_have_taken_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention_ms: int
) -> None:
    from raftmq.log.index import LogIndex

    lookup = LogIndex.lookup

    def without_head(self: LogIndex, queue: int, offset: int, limit: int) -> Any:
        return lookup(self, queue, max(offset, 10), limit)

    settings = {"log": {"retention_ms": retention_ms}}
    async with raftmq.open(tmp_path, check=True, settings=settings) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            for n in range(30):
                await producer.send(b"%d" % n)
        with monkeypatch.context() as patch:
            patch.setattr(LogIndex, "lookup", without_head)
            patch.setattr(LogIndex, "earliest", lambda *_: 10)
            with pytest.raises(Inconsistent) as caught:
                await mq.check()
        assert (await mq.check()).verdict == "valid"
    assert "lost-prefix" in caught.value.anomalies


async def test_head_that_retention_took_is_no_loss(tmp_path: Path) -> None:
    log = {"retention_ms": 1, "segment_bytes": 64 * 1024}
    async with raftmq.open(tmp_path, check=True, settings={"log": log}) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            for _ in range(8):
                await producer.send(b"x" * 30_000)
            with anyio.fail_after(60):
                while (await mq.admin.find_offsets("orders", "earliest"))[0] == 0:
                    await producer.send(b"more")
                    await anyio.sleep(0.2)
        checked = await mq.check()
    assert checked.verdict == "valid", str(checked)


async def test_half_of_a_committed_transaction_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.embedded.checked.COMMIT_SECONDS", 2.0)
    commit = Delays.commit

    def half(self: Delays, halves: list[Half], index: int) -> Any:
        self.roll_back(halves[1:])
        return commit(self, halves[:1], index)

    monkeypatch.setattr(Delays, "commit", half)
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"plain")
            async with producer.transaction(group="shop") as transaction:
                await transaction.send(b"debit")
                await transaction.send(b"credit")
        with pytest.raises(Inconsistent, match="'credit'"):
            await mq.check()


async def test_groups_with_a_filter_are_counted_as_undecided(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path, check=True) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            await producer.send(b"x", tag="t")
        async with mq.consumer("orders", group="r", filter="t") as reader:
            await anext(reader)
        async with mq.consumer("orders", group="p", mode="pop", filter="t") as popper:
            await (await anext(popper)).ack()
        checked = await mq.check()
    assert checked.counts["completeness undecided for filtered groups"] == 2
