"""Consumer groups with filters, in whole simulated clusters: the messages that they get."""

from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any, Literal

import pytest
import trio

from raftmq.broker import loop_budget
from raftmq.broker.deliver import matching
from raftmq.broker.deliver.matching import Matching
from raftmq.broker.node import Node
from raftmq.broker.serve.fetches import Fetches
from raftmq.broker.settings import Log
from raftmq.client import Client, Consumer
from raftmq.errors import FilterSyntaxError, Reason, Rejected, Unavailable
from raftmq.filters import compile as compile_filter
from raftmq.machine.machine import PartitionMachine
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, with_client


async def send(mq: Client, props: list[Mapping[str, Any]], *, queue: int = 0) -> None:
    """Messages with these properties, in batches of three; the body says the properties."""
    async with mq.producer("orders", batch_messages=3) as p:
        for each in props:
            p.send_nowait(repr(dict(each)).encode(), props=dict(each), queue=queue)
        await p.flush()


def numbers(*values: int) -> list[Mapping[str, Any]]:
    return [{"n": value} for value in values]


async def take(c: Consumer, count: int) -> list[int]:
    """The property `n` of the next messages."""
    got: list[int] = []
    while len(got) < count:
        batch = await c.fetch(count - len(got), wait=30)
        assert batch, got
        got += [m.props["n"] for m in batch]  # type: ignore[misc]
    return got


async def drain(c: Consumer) -> list[int]:
    """The property `n` of all messages until no more come."""
    got: list[int] = []
    while batch := await c.fetch(100, wait=6):
        got += [m.props["n"] for m in batch]  # type: ignore[misc]
    return got


def test_group_gets_what_matches_and_its_position_passes_the_rest() -> None:
    async def job(_: Cluster, mq: Client) -> tuple[list[int], dict[int, int], int | None, int]:
        await send(mq, numbers(*range(20)))
        async with mq.consumer("orders", group="g", filter="n BETWEEN 4 AND 9 OR n = 13") as c:
            got = await drain(c)
            position = c.position
            await c.commit()
        described = await mq.admin.describe_group("g")
        return got, position, described.lag, described.offsets[0].passed

    got, position, lag, passed = with_client(job)
    assert got == [4, 5, 6, 7, 8, 9, 13]
    assert position == {0: 20}
    assert lag == 0
    assert passed == 13


def test_tags_select_messages() -> None:
    async def job(_: Cluster, mq: Client) -> list[bytes]:
        async with mq.producer("orders") as p:
            for tag in ("paid", "shipped", None, "lost"):
                p.send_nowait(str(tag).encode(), tag=tag)
            await p.flush()
        async with mq.consumer("orders", group="g", tags="paid || lost") as c:
            return (await c.fetch(10, wait=10)).bodies

    assert with_client(job) == [b"paid", b"lost"]


def test_consumer_of_the_group_without_a_filter_follows_the_subscription() -> None:
    async def job(_: Cluster, mq: Client) -> tuple[list[int], list[int]]:
        await mq.admin.subscribe("orders", "g", "n > 7")
        await send(mq, numbers(*range(10)))
        async with mq.consumer("orders", group="g", start="earliest") as c:
            of_group = await drain(c)
        async with mq.consumer("orders") as c:
            return of_group, await drain(c)

    assert with_client(job) == ([8, 9], list(range(10)))


def test_seed_1109581_new_leader_takes_a_filter_over_as_soon_as_it_may() -> None:
    """Messages that the new leader hands out before that are not filtered."""

    async def job(cluster: Cluster, mq: Client) -> float:
        group = next(g for g in (1, 2, 3) if cluster.leader(g) != cluster.leader(0))
        cluster.kill(cluster.leader(group))
        await mq.admin.subscribe("orders", "g", "n > 7")
        await cluster.wait_led(group)
        led_at = trio.current_time()
        leader = cluster.nodes[cluster.leader(group)]
        machine = leader.groups[group].machine
        assert isinstance(machine, PartitionMachine)
        wanted = leader.catalog.subscribers
        await cluster.wait_until(lambda: machine.subscriptions.version == wanted.version > 0)
        return trio.current_time() - led_at

    assert with_client(job, queues=3) < 0.1


def test_leader_lets_in_no_filter_while_matches_are_restarts_and_all_of_them_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def job(cluster: Cluster, mq: Client) -> tuple[int, list[int]]:
        leader = cluster.nodes[cluster.leader_of(QUEUE)]
        machine = leader.groups[1].machine
        assert isinstance(machine, PartitionMachine)
        known = machine.subscriptions
        monkeypatch.setattr(Matching, "is_behind_filters", property(lambda _: True))
        for name in ("g", "h"):
            await mq.admin.subscribe("orders", name, "n > 7")
        await trio.sleep(5)
        while_starved = known.version
        monkeypatch.undo()
        leader._fetches.matching._on_caught_up()
        await trio.sleep(0.1)
        assert known.version == leader.catalog.subscribers.version > 0
        await send(mq, numbers(*range(10)))
        async with mq.consumer("orders", group="h", start="earliest") as c:
            return while_starved, await drain(c)

    assert with_client(job) == (0, [8, 9])


def waiting_fetches(node: Node) -> int:
    """Fetches of all sessions that are open."""
    return sum(map(len, node._fetches.sessions._open.values()))


def test_waiting_group_is_woken_by_a_match_and_not_by_others() -> None:
    async def job(cluster: Cluster, mq: Client) -> tuple[list[float], int]:
        times: list[float] = []
        async with mq.consumer("orders", group="g", filter="n = 7") as c:
            assert not await c.fetch(1, wait=0.5)
            node = cluster.nodes[cluster.leader_of(QUEUE)]
            answers = waiting_fetches(node)
            begun = trio.current_time()
            await send(mq, numbers(1, 2, 3))
            assert not await c.fetch(1, wait=1.0)
            assert waiting_fetches(node) == answers == 1
            await send(mq, numbers(4, 7))
            assert await take(c, 1) == [7]
            times.append(trio.current_time() - begun)
            return times, c.position[0]

    (seconds,), position = with_client(job)
    assert seconds < 2
    assert position == 5


def test_position_of_a_waiting_group_moves_without_a_match() -> None:
    async def job(_: Cluster, mq: Client) -> dict[int, int]:
        async with mq.consumer("orders", group="g", filter="n = 7") as c:
            assert not await c.fetch(1, wait=0.5)
            await send(mq, numbers(1, 2, 3))
            assert not await c.fetch(1, wait=6)
            return c.position

    assert with_client(job) == {0: 3}


def test_changed_subscription_holds_for_what_is_stored_after_it() -> None:
    async def job(_: Cluster, mq: Client) -> tuple[list[int], list[int]]:
        await mq.admin.subscribe("orders", "g", "n < 3")
        async with mq.consumer("orders", group="g") as c:
            await send(mq, numbers(*range(6)))
            live = await take(c, 3)
            await mq.admin.subscribe("orders", "g", "n >= 3")
            async with mq.consumer("orders", group="g", filter="n >= 3") as other:
                # Once this one is answered, the data group knows.
                await other.fetch(1, wait=1)
            await send(mq, numbers(*range(6)))
            live += await drain(c)
        async with mq.consumer("orders", group="g") as c:
            return live, await drain(c)

    live, again = with_client(job)
    assert live == [0, 1, 2, 3, 4, 5]
    assert again == [0, 1, 2, 3, 4, 5]


def test_nothing_that_does_not_match_slips_through_right_after_subscribing() -> None:
    async def job(_: Cluster, mq: Client) -> list[list[int]]:
        await send(mq, numbers(*range(9)), queue=0)
        got = []
        for at in range(9):
            async with mq.consumer("orders", group=f"g{at}", filter=f"n = {at}") as c:
                got.append(await drain(c))
        return got

    assert with_client(job) == [[n] for n in range(9)]


def test_unsubscribed_group_gets_everything_from_where_it_is() -> None:
    async def job(_: Cluster, mq: Client) -> list[int]:
        await mq.admin.subscribe("orders", "g", "n = 1")
        async with mq.consumer("orders", group="g") as c:
            await send(mq, numbers(0, 1, 2))
            got = await drain(c)
            await mq.admin.unsubscribe("orders", "g")
            await trio.sleep(1)
            await send(mq, numbers(3, 4))
            return got + await drain(c)

    assert with_client(job) == [1, 3, 4]


def test_filter_survives_a_change_of_leader_and_a_restart() -> None:
    async def job(cluster: Cluster, mq: Client) -> tuple[list[int], list[int]]:
        await mq.admin.subscribe("orders", "g", "n > 2 AND n < 5 OR n = 11")
        await send(mq, numbers(*range(10)))
        async with mq.consumer("orders", group="g") as c:
            first = await take(c, 2)
            leader = cluster.leader_of(QUEUE)
            cluster.kill(leader, power=True)
            await send(mq, numbers(10, 11, 12))
            first += await take(c, 1)
        await cluster.start(leader)
        await trio.sleep(20)
        async with mq.consumer("orders", group="g") as c:
            return first, await drain(c)

    assert with_client(job) == ([3, 4, 11], [3, 4, 11])


def test_old_batches_are_matched_from_disk() -> None:
    log = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0)

    async def job(cluster: Cluster, mq: Client) -> tuple[list[int], bool]:
        async with mq.producer("orders", batch_messages=10) as p:
            for n in range(3000):
                p.send_nowait(bytes(1000), props={"n": n}, queue=0)
                if n % 500 == 499:
                    await p.flush()
        group = cluster.nodes[cluster.leader_of(QUEUE)].groups
        numbers_ = [g for g in group.values() if isinstance(g.machine, PartitionMachine)]
        is_cold = any(g.cache.memory_start() > 100 for g in numbers_)
        async with mq.consumer("orders", group="g", filter="n IN (3, 1500, 2999)") as c:
            return await drain(c), is_cold

    assert with_client(job, log=log) == ([3, 1500, 2999], True)


@pytest.mark.parametrize("seed", range(3))
def test_groups_together_get_exactly_what_a_scan_would_give(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With odd seeds the work for many stops wherever it can.
    monkeypatch.setattr(loop_budget, "TURN_SECONDS", 0.0 if seed % 2 else loop_budget.TURN_SECONDS)
    random = Random(seed)
    texts = [
        "n > 50", "n < 10 OR n IN (20, 30)", "kind = 'a'", "kind = 'b' AND n > 30", "kind IS NULL",
        "*", "kind <> 'a'", "n = 1000", "NOT (kind = 'a')",
    ]  # fmt: skip
    props: list[Mapping[str, Any]] = [
        {"n": random.randrange(100)}
        | ({"kind": random.choice("abc")} if random.random() < 0.7 else {})
        for _ in range(150)
    ]

    async def job(_: Cluster, mq: Client) -> list[list[int]]:
        got: dict[int, list[int]] = {}

        async def read(at: int, started: trio.Event) -> None:
            async with mq.consumer("orders", group=f"g{at}", filter=texts[at]) as c:
                started.set()
                found = []
                while batch := await c.fetch(7, wait=8):
                    found += batch.offsets
                got[at] = found

        async with trio.open_nursery() as nursery:
            for at in range(len(texts)):
                started = trio.Event()
                nursery.start_soon(read, at, started)
                await started.wait()
                await send(mq, props[at * 10 : at * 10 + 10])
            await send(mq, props[len(texts) * 10 :])
        return [got[at] for at in range(len(texts))]

    filters = [compile_filter(text) for text in texts]
    wanted = [[at for at, each in enumerate(props) if f.matches(each)] for f in filters]
    assert with_client(job) == wanted


def test_subscriptions_are_listed_and_described() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.subscribe("orders", "g", "paid")
        await mq.admin.subscribe("orders", "h", "n > 1")
        await mq.admin.create_topic("other", 1)
        await mq.admin.subscribe("other", "g", "*")
        everything = [tuple(each) for each in await mq.admin.list_subscriptions()]
        of_group = [tuple(each) for each in (await mq.admin.describe_group("g")).subscriptions]
        return everything, of_group

    everything, of_group = with_client(job)
    assert everything == [("orders", "g", "paid"), ("orders", "h", "n > 1"), ("other", "g", "*")]
    assert of_group == [("orders", "g", "paid"), ("other", "g", "*")]


def test_signs_are_kept_as_sql_and_select_the_same() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq, [{"n": 1, "vip": False}, {"n": 1, "vip": True}])
        await send(mq, [{"vip": False}, {"n": 2, "x": "y"}])
        await mq.admin.subscribe("orders", "asked", "n == nil || n != 1")
        async with mq.consumer("orders", group="read", filter="n == 1 && !vip") as c:
            read = (await c.fetch(10, wait=10)).bodies
        popping = mq.consumer("orders", group="popped", mode="pop", filter='x != "x" && n >= 2')
        async with popping as c:
            popped = [m.props["n"] for m in await c.pop(10, wait=10)]
        return read, popped, [tuple(each)[1:] for each in await mq.admin.list_subscriptions()]

    read, popped, kept = with_client(job)
    assert len(read) == 1
    assert popped == [2]
    assert kept == [
        ("asked", "n IS NULL OR n <> 1"),
        ("popped", "x <> 'x' AND n >= 2"),
        ("read", "n = 1 AND vip = FALSE"),
    ]


def test_filter_that_cannot_be_read_is_refused_before_anything_is_sent() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        with pytest.raises(FilterSyntaxError, match="at character 4"):
            await mq.admin.subscribe("orders", "g", "n >")
        with pytest.raises(Rejected) as refused:
            mq.consumer("orders", group="g", filter="n >")
        with pytest.raises(Rejected, match="no list of tags"):
            mq.consumer("orders", group="g", tags="n > 5")
        with pytest.raises(Rejected, match="a filter is a group's"):
            mq.consumer("orders", filter="n > 5")
        return refused.value.reason, await mq.admin.list_subscriptions()

    assert with_client(job) == (Reason.BAD_FILTER, [])


@pytest.mark.parametrize("seed", [11, 12])
def test_nothing_is_missed_and_nothing_else_comes_while_leaders_die(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_budget, "TURN_SECONDS", 0.0 if seed % 2 else loop_budget.TURN_SECONDS)
    random = Random(seed)
    wanted = {"g0": "n >= 30 AND n < 45", "g1": "kind = 'a' OR n = 7", "g2": "NOT (kind = 'b')"}
    props: list[Mapping[str, Any]] = [
        {"n": n} | ({"kind": random.choice("ab")} if random.random() < 0.7 else {})
        for n in range(90)
    ]

    async def job(cluster: Cluster, mq: Client) -> dict[str, list[int]]:
        got: dict[str, list[int]] = {name: [] for name in wanted}
        is_sent = False

        async def read(name: str) -> None:
            async with mq.consumer("orders", group=name, filter=wanted[name]) as c:
                while not is_sent or c.position[0] < len(props):
                    with suppress(Unavailable):
                        got[name] += [m.props["n"] for m in await c.fetch(5, wait=3)]  # type: ignore[misc]

        async with trio.open_nursery() as nursery:
            for name in wanted:
                nursery.start_soon(read, name)
            for first in range(0, len(props), 15):
                await send(mq, props[first : first + 15])
                leader = cluster.leader_of(QUEUE)
                cluster.kill(leader, power=random.random() < 0.5)
                await trio.sleep(random.uniform(0.1, 8))
                await cluster.start(leader)
                await trio.sleep(random.uniform(0.1, 8))
            is_sent = True
        return got

    got = with_client(job)
    for name, text in wanted.items():
        found = compile_filter(text)
        assert got[name] == [n for n, each in enumerate(props) if found.matches(each)], name


def test_popping_group_gets_what_its_filter_asks_for_from_the_first_message_on() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await send(mq, numbers(*range(10)))
        async with mq.consumer("orders", group="g", mode="pop", filter="n >= 7") as c:
            got: list[Any] = []
            while len(got) < 3:
                popped = await c.pop(10, wait=5.0)
                got += [message.props["n"] for message in popped]
                await popped.ack()
            assert sorted(got) == [7, 8, 9]
            await send(mq, numbers(1, 70))
            (message,) = await c.pop(10, wait=5.0)
            assert message.props["n"] == 70

    with_client(job)


async def pop_all(c: Any) -> list[int]:
    """The property `n` of all messages until no more come, each acknowledged."""
    got: list[int] = []
    while popped := await c.pop(10, wait=6.0):
        got += [message.props["n"] for message in popped]
        await popped.ack()
    return sorted(got)


@pytest.mark.parametrize("mode", ["pop", "ordered"])
def test_leased_messages_follow_the_filter_of_their_place_in_the_log(
    mode: Literal["pop", "ordered"],
) -> None:
    async def job(_: Cluster, mq: Client) -> None:
        async with mq.consumer("orders", group="g", mode=mode, filter="n < 3") as c:
            await send(mq, numbers(*range(6)))
            # No pop yet: the boundary is where messages are stored, not where they are handed out.
            await mq.admin.subscribe("orders", "g", "n >= 4")
            await trio.sleep(2)
            await send(mq, numbers(*range(6)))
            assert await pop_all(c) == [0, 1, 2, 4, 5]
            await mq.admin.unsubscribe("orders", "g")
            await trio.sleep(2)
            await send(mq, numbers(*range(6)))
            assert await pop_all(c) == [0, 1, 2, 3, 4, 5]
        backlogs = await mq.admin.backlogs(topic="orders", group="g")
        assert sum(each.passed for each in backlogs) == 3 + 4
        assert sum(each.acked for each in backlogs) == 11
        assert sum(each.lag for each in backlogs) == sum(each.lost for each in backlogs) == 0

    with_client(job)


def test_many_popping_groups_are_fed_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_budget, "TURN_SECONDS", 0.0)

    async def job(cluster: Cluster, mq: Client) -> None:
        await send(mq, numbers(*range(60)))
        got: dict[int, list[Any]] = {}

        async def pop(at: int) -> None:
            expression = f"n >= {at} AND n < {at + 20}"
            async with mq.consumer("orders", group=f"g{at}", mode="pop", filter=expression) as c:
                got[at] = []
                while len(got[at]) < 20:
                    popped = await c.pop(20, wait=5.0)
                    got[at] += [message.props["n"] for message in popped]
                    await popped.ack()

        async with trio.open_nursery() as nursery:
            for at in range(12):
                nursery.start_soon(pop, at)
        assert {at: sorted(of) for at, of in got.items()} == {
            at: list(range(at, at + 20)) for at in range(12)
        }
        await trio.sleep(1)
        assert all(not node._feeds._rest for node in cluster.nodes.values())

    with_client(job)


def batches_answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of batches in each answer from now on."""
    answers: list[int] = []
    real = Fetches._describe

    def counted(fetches: Fetches, pending: Any, item: Any, records: Any, budget: Any) -> Any:
        answers.append(len(records))
        return real(fetches, pending, item, records, budget)

    monkeypatch.setattr(Fetches, "_describe", counted)
    return answers


def test_group_that_wants_one_of_many_is_sent_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = batches_answered(monkeypatch)

    async def job(_: Cluster, mq: Client) -> list[int]:
        await send(mq, numbers(*range(300)))
        async with mq.consumer("orders", group="g", filter="n = 200") as c:
            return await drain(c)

    assert with_client(job) == [200]
    assert sum(answers) == 1


def empty_caches(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all nodes read from disk from now on."""
    for node in cluster.nodes.values():
        for group in node.groups.values():
            monkeypatch.setattr(group.cache, "get", lambda index: None)


@pytest.mark.parametrize("is_cold", [False, True])
def test_answers_with_few_masks_miss_nothing(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_budget, "MASKS_WORK_MAX", 2 * loop_budget.MASK_WORK)
    answers = batches_answered(monkeypatch)

    async def job(cluster: Cluster, mq: Client) -> list[int]:
        await send(mq, numbers(*range(90)))
        if is_cold:
            empty_caches(cluster, monkeypatch)
        async with mq.consumer("orders", group="g", filter="n <> 5") as c:
            return await drain(c)

    assert with_client(job) == [n for n in range(90) if n != 5]
    assert max(answers) == 2
    assert sum(answers) >= 30


@pytest.mark.parametrize("mode", ["pull", "pop", "ordered"])
@pytest.mark.parametrize("is_cold", [False, True])
def test_masks_that_are_made_to_order_miss_nothing(
    mode: Any, is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "STEP_BYTES", 0)
    monkeypatch.setattr(matching, "RECENT_MAX", 0)
    ordered: list[int] = []
    carry_out = Matching._carry_out_one

    async def counted(self: Matching) -> None:
        ordered.append(1)
        await carry_out(self)

    monkeypatch.setattr(Matching, "_carry_out_one", counted)

    async def job(cluster: Cluster, mq: Client) -> list[int]:
        await send(mq, numbers(*range(90)))
        if is_cold:
            empty_caches(cluster, monkeypatch)
        async with mq.consumer("orders", group="g", mode=mode, filter="n <> 5") as c:
            await send(mq, numbers(*range(100, 103)))
            return sorted(await (drain(c) if mode == "pull" else pop_all(c)))

    assert with_client(job) == [*(n for n in range(90) if n != 5), 100, 101, 102]
    assert 31 <= len(ordered) <= 40


def test_broadcast_members_and_ordered_groups_get_what_matches_too() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await send(mq, numbers(*range(20)))
        options: dict[str, Any] = {"filter": "n BETWEEN 5 AND 8"}
        broadcast = mq.consumer("orders", group="b", mode="broadcast", start="earliest", **options)
        async with broadcast as c:
            assert sorted(await take(c, 4)) == [5, 6, 7, 8]
        async with mq.consumer("orders", group="m", queues="assigned", **options) as c:
            assert sorted(await take(c, 4)) == [5, 6, 7, 8]
        async with mq.consumer("orders", group="o", mode="ordered", **options) as ordered:
            got: list[Any] = []
            while len(got) < 4:
                popped = await ordered.pop(10, wait=5.0)
                got += [message.props["n"] for message in popped]
                await popped.ack()
            assert sorted(got) == [5, 6, 7, 8]

    with_client(job)
