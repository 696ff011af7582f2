"""A client for operators: backlogs, dead letters, messages settled by handle."""

from typing import Any

import msgspec
import pytest

from raftmq.client import Backlog, Client
from raftmq.client.pop.handles import handle_of
from raftmq.errors import Reason, Rejected
from raftmq.wire.messages import Done, FrameKind
from raftmq.wire.popping import ChangeDead, DeadChanged, Pop, Popped, ResetGroup
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import with_client


async def popping(mq: Client, count: int, group: str = "g") -> list[Any]:
    """Messages that a consumer popped, and that stay leased."""
    async with mq.consumer("orders", group=group, mode="pop", prefetch=0) as consumer:
        found: list[Any] = []
        while len(found) < count:
            found += [
                (m.body, handle_of(m)) for m in await consumer.pop(count - len(found), wait=5.0)
            ]
        return found


async def rejecting(mq: Client, count: int, together: int) -> None:
    """Pop messages, and reject those that came together at once: in few letters."""
    async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
        while count:
            popped = await consumer.pop(min(count, together), wait=5.0)
            await popped.reject()
            count -= len(popped)


async def send(mq: Client, count: int) -> None:
    """Messages `0`, `1`, …, by turns in all queues."""
    async with mq.producer("orders") as producer:
        for n in range(count):
            await producer.send(b"%d" % n, queue=n % 4)


def counts(backlogs: list[Backlog]) -> dict[str, int]:
    fields = ("fresh", "leased", "waiting", "ready", "dead", "acked", "lag")
    return {name: sum(getattr(each, name) for each in backlogs) for name in fields}


@pytest.mark.parametrize("seed", range(6))
def test_consumer_that_ended_has_leased_what_it_was_given_and_no_more(seed: int) -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g")
        await send(mq, 20)
        await popping(mq, 10)
        # Credit that still stood got the messages that were given back, and its consumer was gone.
        assert counts(await mq.admin.backlogs(group="g"))["leased"] == 10
        return len(await popping(mq, 10))

    assert with_client(job, queues=4, seed=seed) == 10


def test_backlog_says_what_became_of_each_message() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g", schedule=[60])
        await send(mq, 20)
        taken = await popping(mq, 10)
        handles = [handle for _, handle in taken]
        await mq.settle(handles[:3], "ack")
        await mq.settle(handles[3:5], "nack")
        await mq.settle(handles[5:6], "nack", delay=0.0)
        await mq.settle(handles[6:7], "reject", reason="no")
        return counts(await mq.admin.backlogs(group="g")), len(await mq.admin.backlogs())

    found, queues = with_client(job, queues=4)
    ready = found["ready"]
    to_hand_out = ready + found.pop("fresh")
    assert found == {
        "ready": ready, "leased": 3, "waiting": 2, "dead": 1, "acked": 3, "lag": 16,
    }  # fmt: skip
    # Several leaders answered one call; the surplus went back.
    assert (to_hand_out, ready >= 1) == (11, True)
    assert queues == 4


def test_messages_that_wait_for_their_key_are_to_be_handed_out_and_purged_ones_are_told() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g", "ordered", run=1)
        async with mq.producer("orders") as producer:
            for n in range(10):
                await producer.send(b"%d" % n, key=b"one")
        async with mq.consumer("orders", group="g", mode="ordered", prefetch=0) as consumer:
            (message,) = await consumer.pop(5, wait=5.0)
            held = counts(await mq.admin.backlogs(group="g"))
            await message.reject("no")
        await mq.admin.purge(await mq.admin.dead_letters("orders", "g"))
        return held, sum(each.purged for each in await mq.admin.backlogs(group="g"))

    held, purged = with_client(job, queues=1)
    assert (held["lag"], held["leased"], held["ready"] + held["fresh"]) == (10, 1, 9)
    assert purged == 1


def test_what_several_leaders_gave_and_one_call_did_not_take_goes_back() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 8)
        taken = len(await popping(mq, 3))
        return taken, counts(await mq.admin.backlogs(group="g"))["leased"]

    taken, leased = with_client(job, queues=4)
    assert taken == leased == 3


def test_group_that_nobody_popped_for_is_told_as_it_will_begin() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 8)
        await mq.admin.attach("orders", "early")
        await mq.admin.attach("orders", "late", start="latest")
        await mq.admin.attach("orders", "reader", mode="pull")
        return [(b.group, b.queue, b.fresh) for b in await mq.admin.backlogs(topic="orders")]

    early = [("early", queue, 2) for queue in range(4)]
    late = [("late", queue, 0) for queue in range(4)]
    assert with_client(job, queues=4) == early + late


def test_dead_letters_are_listed_redriven_and_purged() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 12)
        bodies = dict(await popping(mq, 12))
        for n, reason in enumerate(["late", "late", "never", "never", "never"]):
            await mq.settle([bodies[b"%d" % n]], "reject", reason=reason)
        letters = await mq.admin.dead_letters("orders", "g")
        reasons = sorted(letter.reason for letter in letters)
        ids = {i: letter.reason for letter in letters for i in letter.ids}
        messages = {(await mq.get(i)).body: reason for i, reason in ids.items()}
        some = await mq.admin.dead_letters("orders", "g", limit=1)
        late = [letter for letter in letters if letter.reason == "late"]
        redriven = [await mq.admin.redrive(late), await mq.admin.redrive(late)]
        again = sorted(body for body, _ in await popping(mq, 2))
        purged = await mq.admin.purge(letters)
        left = await mq.admin.dead_letters("orders", "g")
        return reasons, messages, len(some), redriven, again, purged, left

    reasons, messages, some, redriven, again, purged, left = with_client(job, queues=4)
    assert reasons == ["late", "late", "never", "never", "never"]
    assert messages == {b"0": "late", b"1": "late", b"2": "never", b"3": "never", b"4": "never"}
    assert 1 <= some <= 5
    assert redriven == [2, 0]
    assert again == [b"0", b"1"]
    assert (purged, left) == (3, [])


def test_messages_of_one_letter_are_redriven_and_purged_one_by_one() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 12)
        await rejecting(mq, 12, 12)
        letters = await mq.admin.dead_letters("orders", "g")
        letter = next(each for each in letters if len(each.ids) == 3)
        first, middle, last = letter.ids
        some = [letter.part([first, last]), letter.part(["1-0"])]
        redriven = [await mq.admin.redrive(some), await mq.admin.redrive(some)]
        found = await popping(mq, 2)
        expected = sorted([(await mq.get(each)).body for each in (first, last)])
        purged = [await mq.admin.purge([letter]), await mq.admin.purge([letter.part([middle])])]
        left = await mq.admin.dead_letters("orders", "g")
        others = [each for each in letters if each != letter]
        return redriven, sorted(body for body, _ in found) == expected, purged, left == others

    assert with_client(job, queues=4) == ([2, 0], True, [1, 0], True)


def test_parts_of_many_letters_go_out_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.client.admin.dead_letters.CHANGED_BYTES", 2)
    monkeypatch.setattr("raftmq.client.admin.dead_letters.SETTLE_ITEMS_MAX", 3)

    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 40)
        await rejecting(mq, 40, 7)
        letters = await mq.admin.dead_letters("orders", "g")
        firsts = [letter.part(letter.ids[:1]) for letter in letters]
        redriven = await mq.admin.redrive(firsts)
        again = {m for m, _ in await popping(mq, redriven)}
        meant = {(await mq.get(each.ids[0])).body for each in firsts}
        left = [each.ids for each in await mq.admin.dead_letters("orders", "g")]
        return redriven == len(letters), again == meant, left, [x.ids[1:] for x in letters]

    are_all, are_meant, left, rest = with_client(job, queues=4)
    assert (are_all, are_meant) == (True, True)
    assert left == [ids for ids in rest if ids]
    assert len(left) > 3


def test_letters_of_many_pages_are_listed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.client.admin.dead_letters.PAGE_LETTERS", 2)
    monkeypatch.setattr("raftmq.broker.serve.pop_group_requests.PAGE_MAX", 3)

    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 20)
        for _, handle in await popping(mq, 20):
            await mq.settle([handle], "reject")
        letters = await mq.admin.dead_letters("orders", "g")
        return len({i for letter in letters for i in letter.ids}), counts(await mq.admin.backlogs())

    found, backlog = with_client(job, queues=4)
    assert (found, backlog["dead"]) == (20, 20)


def test_backlogs_of_many_groups_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.broker.serve.pop_group_requests.PAGE_MAX", 5)

    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 8)
        names = [f"g{n:02}" for n in range(10)]
        for name in names:
            await mq.admin.attach("orders", name)
        await popping(mq, 3, "g04")
        every = await mq.admin.backlogs()
        alone = [each for name in names for each in await mq.admin.backlogs(group=name)]
        return every, alone

    every, alone = with_client(job, queues=4)
    assert every == alone
    assert len(every) == 40
    assert {each.group for each in every if each.leased} == {"g04"}


def test_number_of_a_request_of_another_kind_is_refused() -> None:
    """A repeat gets the first answer, which is none to a request of another kind."""

    async def job(cluster: Cluster, mq: Client) -> None:
        number = await mq.admin.attach("orders", "g")
        group = cluster.nodes[1].catalog.group_of(1 << 16)
        assert group is not None
        change = ChangeDead(group, number, [], request=7)
        reset = ResetGroup(group, number, [1 << 16], [0], request=8)
        async with cluster.client(cluster.leader(group)) as client:
            await client.ask(FrameKind.POP, Pop(group, number, 1, 0, 0, 0, 1), Popped)
            for _ in range(2):
                assert await client.ask(FrameKind.CHANGE_DEAD, change, DeadChanged) == DeadChanged(
                    0
                )
                await client.ask(FrameKind.RESET, reset, Done)
            for kind, request in (
                (FrameKind.CHANGE_DEAD, msgspec.structs.replace(change, request=8)),
                (FrameKind.RESET, msgspec.structs.replace(reset, request=7)),
            ):
                with pytest.raises(Refused, match="another kind of request"):
                    await client.ask(kind, request, Done)

    with_client(job)


def test_topics_and_groups_that_are_not_there_are_refused() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        reasons = []
        for asking in (
            mq.admin.backlogs(topic="none"),
            mq.admin.dead_letters("none", "g"),
            mq.admin.dead_letters("orders", "g"),
        ):
            with pytest.raises(Rejected) as caught:
                await asking
            reasons.append(caught.value.reason)
        return reasons, await mq.admin.backlogs(group="g")

    unknown = [Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_GROUP]
    assert with_client(job) == (unknown, [])


def test_handle_of_a_deleted_group_is_refused() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, 1)
        ((_, handle),) = await popping(mq, 1)
        await mq.admin.delete_consumer_group("g")
        with pytest.raises(Rejected) as caught:
            await mq.settle([handle])
        return caught.value.reason

    assert with_client(job, queues=4) is Reason.UNKNOWN_GROUP
