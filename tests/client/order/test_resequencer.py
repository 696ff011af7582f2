"""Streams over several queues, from a sequencer to a resequencer, on a cluster in memory."""

from random import Random
from typing import Any, cast

import anyio
import pytest

from raftmq.batch import encode
from raftmq.client import Client, Producer, Resequencer, Sequencer, connect
from raftmq.client.pop.handles import handle_of
from raftmq.errors import MissingMessages, Reason, Rejected, WrongType
from raftmq.log.record import Kind
from tests.client.fake_cluster import URL, FakeCluster
from tests.client.popping_cluster import audit, opened

pytestmark = pytest.mark.anyio


def add(cluster: FakeCluster, queue: int, stream: str, *numbers: int) -> None:
    """A batch of messages with these numbers, as a producer stores it in a queue."""
    number = cluster.catalog.topics["orders"].queues[queue]
    log = cluster.log_of(number)
    bodies = [b"%s%d" % (stream.encode(), n) for n in numbers]
    props: list[dict[str, Any]] = [{"stream": stream, "stream_number": n} for n in numbers]
    first = log.machine.ends.get(number, 0)
    payload = encode(bodies, props=props).to_bytes(queue=number, producer=7, first_sequence=first)
    log.add(Kind.BATCH, payload, cluster.clock_ms)
    cluster.clock_ms += 1
    cluster.tell()


async def taken(messages: Resequencer[Any], count: int) -> list[bytes]:
    with anyio.fail_after(20.0):
        return [(await anext(messages)).body for _ in range(count)]


async def spread(mq: Client, producer: Producer, sequencer: Sequencer, count: int) -> None:
    """Send numbered messages to queues at random."""
    rng = Random(1)
    for n in range(count):
        await producer.send(b"%d" % n, props=sequencer.stamp(), queue=rng.randrange(4))


async def test_order_of_the_sender_is_restored_over_queues(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=4)
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders") as p,
        mq.consumer("orders") as c,
    ):
        await spread(mq, p, Sequencer(), 60)
        messages = Resequencer(c)
        assert await taken(messages, 60) == [b"%d" % n for n in range(60)]
        assert messages.statistics().messages == 0


async def test_messages_without_a_stamp_are_handed_on_as_they_come(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    odd: list[dict[str, Any]] = [
        {"stream": "s"},
        {"stream": "s", "stream_number": -1},
        {"stream": "s", "stream_number": True},
        {"stream": 7, "stream_number": 1},
    ]
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders") as p,
        mq.consumer("orders") as c,
    ):
        await p.send(b"held back", props=Sequencer("s", first=5).stamp())
        await p.send_many(bodies=[b"%d" % n for n in range(4)], props=odd)
        messages = Resequencer(c, gap_timeout=2.0)
        assert await taken(messages, 5) == [b"0", b"1", b"2", b"3", b"held back"]


async def test_gap_is_raised_and_the_next_call_goes_on_after_it(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 0, 3)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c, gap_timeout=1.0)
        assert await taken(messages, 1) == [b"s0"]
        begun = anyio.current_time()
        with pytest.raises(MissingMessages) as raised:
            await anext(messages)
        assert anyio.current_time() - begun >= 0.9
        assert (raised.value.stream, raised.value.first, raised.value.last) == ("s", 1, 2)
        assert await taken(messages, 1) == [b"s3"]
        # Too late: the gap was reported.
        add(cluster, 1, "s", 1, 2)
        add(cluster, 0, "s", 4)
        assert await taken(messages, 1) == [b"s4"]
        with anyio.move_on_after(0.3):
            await anext(messages)
        assert messages.statistics().dropped == 2


async def test_gap_is_given_to_the_function_instead(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    add(cluster, 0, "s", 0, 3, 5)
    gaps: list[MissingMessages] = []
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c, gap_timeout=0.5, on_gap=gaps.append)
        assert await taken(messages, 3) == [b"s0", b"s3", b"s5"]
    assert [(gap.first, gap.last) for gap in gaps] == [(1, 2), (4, 4)]


async def test_repeat_by_the_sender_is_dropped(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders") as p,
        mq.consumer("orders") as c,
    ):
        stamp = Sequencer()
        props = stamp.stamp()
        await p.send(b"once", props=props, queue=0)
        await p.send(b"once", props=props, queue=1)
        await p.send(b"then", props=stamp.stamp(), queue=1)
        assert await taken(Resequencer(c), 2) == [b"once", b"then"]


async def test_restart_hands_on_all_that_was_held_back_and_nothing_twice(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 0, 3)
    # Read after 3, which is held back, and handed on at once.
    add(cluster, 0, "t", 0, 1)
    async with connect(URL, world=cluster) as mq:
        async with mq.consumer("orders", group="g") as c:
            messages = Resequencer(c)
            assert await taken(messages, 3) == [b"s0", b"t0", b"t1"]
            await messages.commit()
            assert await c.committed() == {0: 1, 1: 0}
            stored = messages.numbers
        assert stored == {"s": 1, "t": 2}
        add(cluster, 1, "s", 1, 2)
        add(cluster, 1, "t", 2)
        async with mq.consumer("orders", group="g") as c:
            messages = Resequencer(c, numbers=stored)
            assert sorted(await taken(messages, 4)) == [b"s1", b"s2", b"s3", b"t2"]
            with anyio.move_on_after(0.3):
                await anext(messages)
            assert messages.statistics().dropped == 2, "t0 and t1 came again"
            await messages.commit()
            assert await c.committed() == {0: 4, 1: 3}


async def test_cancelling_loses_nothing(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 1)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c)
        for _ in range(3):
            with anyio.move_on_after(0.2) as scope:
                await anext(messages)
            assert scope.cancelled_caught
        add(cluster, 1, "s", 0)
        assert await taken(messages, 2) == [b"s0", b"s1"]


async def test_backlog_much_larger_than_the_bounds_has_no_gap(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=4)
    # Each queue has every fourth number, and is read in answers much larger than the bound.
    for queue in range(4):
        for first in range(queue, 2000, 400):
            add(cluster, queue, "s", *range(first, first + 400, 4))
    most = bytes_most = 0
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c, messages_max=40)
        for n in range(2000):
            assert (await anext(messages)).body == b"s%d" % n
            held = messages.statistics()
            most, bytes_most = max(most, held.messages), max(bytes_most, held.bytes)
        assert (held.messages, held.bytes, held.streams) == (0, 0, 1)
    assert 10 < most <= 40
    assert bytes_most > 0


async def test_bound_of_bytes_reports_a_gap_before_its_time(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    add(cluster, 0, "s", 0, 2, 3)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c, gap_timeout=3600.0, bytes_max=1)
        assert await taken(messages, 1) == [b"s0"]
        with pytest.raises(MissingMessages, match="before 1 message"):
            await anext(messages)
        assert await taken(messages, 2) == [b"s2", b"s3"]


async def test_paused_queue_is_read_on_after_a_change_of_leader(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", *range(1, 40, 2))
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c, messages_max=10)
        with anyio.move_on_after(0.5):
            await anext(messages)
        held = messages.statistics().messages
        assert 5 <= held < 10, "queue 0 is read up to half of the bound"
        add(cluster, 0, "s", *range(41, 60, 2))
        add(cluster, 1, "s", *range(0, 60, 2))
        group = cluster.catalog.topics["orders"].groups[0]
        cluster.leaders[group] = 1 + cluster.leaders[group] % 3
        assert await taken(messages, 60) == [b"s%d" % n for n in range(60)]


async def test_queues_are_read_on_if_all_of_them_are_ahead(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 1, 3, 5)
    add(cluster, 1, "s", 2, 4, 6)
    # Sent again late.
    add(cluster, 1, "s", 0)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c, messages_max=10)
        assert await taken(messages, 7) == [b"s%d" % n for n in range(7)]


@pytest.mark.parametrize(("of_t", "place_of_t0"), [(6, 0), (2, 1)])
async def test_paused_queue_is_read_on_once_less_is_held_back(
    cluster: FakeCluster, of_t: int, place_of_t0: int
) -> None:
    cluster.create_topic(queues=3)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        messages = Resequencer(c, gap_timeout=5.0, messages_max=20)
        add(cluster, 1, "t", *range(1, of_t + 1))
        # Half of the bound is reached: the queues 0 and 1 are paused.
        add(cluster, 0, "s", *range(1, 11 - of_t))
        with anyio.move_on_after(0.5):
            await anext(messages)
        assert messages.statistics().messages == 10
        # Queue 0 is no longer ahead, or queue 1 is, and little is held back.
        add(cluster, place_of_t0, "t", 0)
        add(cluster, 2, "s", 0)
        assert sorted(await taken(messages, 12)) == sorted(
            [b"s%d" % n for n in range(11 - of_t)] + [b"t%d" % n for n in range(of_t + 1)]
        )
        assert messages.numbers == {"s": 11 - of_t, "t": of_t + 1}


async def test_consumer_that_would_commit_or_lose_messages_held_back_is_refused(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"group": "a", "auto_commit": 1.0}, "auto_commit"),
        ({"group": "b", "mode": "broadcast"}, "auto_commit"),
        ({"group": "c", "queues": "assigned"}, "assigned"),
        ({"group": "d", "mode": "pop"}, "renew"),
    ]
    async with connect(URL, world=cluster) as mq:
        for options, word in wrong:
            with pytest.raises(Rejected, match=word) as refused:
                Resequencer(mq.consumer("orders", **options))
            assert refused.value.reason is Reason.BAD_ARGUMENT
        with pytest.raises(WrongType, match="PopConsumer"):
            Resequencer(iter([]))  # type: ignore[arg-type]
        with pytest.raises(Rejected, match="cannot go on at -1"):
            Resequencer(mq.consumer("orders"), numbers={"s": -1})
        with pytest.raises(Rejected, match="ack each"):
            await Resequencer(mq.consumer("orders", group="e", mode="pop", renew=9)).commit()


# -- popping -------------------------------------------------------------------------------------


async def test_popped_messages_come_in_the_order_of_the_sender(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=4)
    async with (
        opened(cluster) as mq,
        mq.producer("orders") as p,
        mq.consumer("orders", group="g", mode="pop", renew=30) as c,
    ):
        await spread(mq, p, Sequencer(), 40)
        messages = Resequencer(c)
        got = []
        for _ in range(40):
            message = await anext(messages)
            await message.ack()
            got.append(message.body)
        assert got == [b"%d" % n for n in range(40)]
    assert audit(cluster) == {"acked": 40}


async def test_message_held_back_for_longer_than_its_lease_is_still_in_hand(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 1)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=1.0, renew=1.0) as c,
    ):
        messages = Resequencer(c)
        with anyio.move_on_after(3.5):
            await anext(messages)
        add(cluster, 1, "s", 0)
        first, second = [await anext(messages) for _ in range(2)]
        assert (first.body, second.body, second.attempt) == (b"s0", b"s1", 1)
        await first.ack()
        await second.ack()


async def test_message_held_back_that_was_lost_and_popped_again_is_settled_by_the_new_lease(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 1)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", renew=30) as c,
    ):
        messages = Resequencer(c)
        with anyio.move_on_after(0.5):
            await anext(messages)
        (held,) = messages._held
        # As if the lease had run out: another process settles the message as failed.
        assert await mq.settle([handle_of(held)], "nack", delay=0.1) == [True]
        with anyio.move_on_after(1.5):
            await anext(messages)
        add(cluster, 1, "s", 0)
        first, second = [await anext(messages) for _ in range(2)]
        assert (first.body, second.body, second.attempt) == (b"s0", b"s1", 2)
        await first.ack()
        await second.ack()
    assert audit(cluster) == {"acked": 2}


async def test_popped_repeat_is_acked_and_a_nacked_message_comes_again(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 0)
    add(cluster, 1, "s", 0, 1)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", renew=30) as c,
    ):
        messages = Resequencer(c)
        first, second = [await anext(messages) for _ in range(2)]
        assert [first.body, second.body] == [b"s0", b"s1"]
        await second.ack()
        await first.nack(0.1)
        again = await anext(messages)
        assert (again.id, again.attempt) == (first.id, 2)
        await again.ack()
        assert (await c.flush()).is_complete
        assert messages.statistics().dropped == 1
    assert audit(cluster) == {"acked": 3}


async def test_popped_messages_below_the_stored_numbers_are_acked_and_dropped(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=2)
    add(cluster, 0, "s", 0)
    add(cluster, 1, "s", 1)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop", renew=30) as c:
            messages = Resequencer(c)
            # The results are stored along with the numbers, and no ack gets out.
            for message in [await anext(messages) for _ in range(2)]:
                await message.nack(0.1)
            assert (await c.flush()).is_complete
            numbers = messages.numbers
        async with mq.consumer("orders", group="g", mode="pop", renew=30) as c:
            messages = Resequencer(c, numbers=numbers)
            with anyio.move_on_after(1.0):
                await anext(messages)
            assert messages.statistics().dropped == 2
            add(cluster, 0, "s", 2)
            third = await anext(messages)
            assert third.body == b"s2"
            await third.ack()
            assert (await c.flush()).is_complete
    assert audit(cluster) == {"acked": 3}


# -- the sender ----------------------------------------------------------------------------------


def test_sequencer_numbers_from_0_or_the_given_number_and_keeps_the_other_properties() -> None:
    numbers = Sequencer("meter-7", first=41)
    assert numbers.stamp({"unit": "kWh"}) == {
        "unit": "kWh",
        "stream": "meter-7",
        "stream_number": 41,
    }
    assert (numbers.stamp()["stream_number"], numbers.next) == (42, 43)
    assert Sequencer().next == 0
    assert Sequencer().stream != Sequencer().stream


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Sequencer(""), "has a name"),
        (lambda: Sequencer(cast("str", 7)), "stream is a text"),
        (lambda: Sequencer(first=-1), "first is 0"),
        (lambda: Sequencer(first=cast("int", 1.5)), "first is a whole"),
        (lambda: Sequencer().stamp({"stream": "mine"}), "rename yours"),
    ],
)
def test_wrong_stamp_is_refused(call: Any, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        call()


def test_refused_stamp_draws_no_number() -> None:
    numbers = Sequencer()
    with pytest.raises(Rejected):
        numbers.stamp({"stream_number": 1})
    assert numbers.next == 0
