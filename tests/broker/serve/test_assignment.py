"""Members that share out a topic's queues, in whole simulated clusters."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio

from raftmq.chaos.sim.clients import Clients
from raftmq.client import Client, Consumer
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.machine.machine import PartitionMachine
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

QUEUES = 12
SESSION = 5.0


def with_clients(
    job: Callable[[Cluster, list[Client]], Awaitable[Any]], *, clients: int = 4
) -> Any:
    """Run a job with clients, each a process of its own, of a new cluster with topic "orders"."""

    async def all_of_it(cluster: Cluster, mqs: list[Client], _: Clients) -> Any:
        return await job(cluster, mqs)

    return with_processes(all_of_it, clients=clients)


def with_processes(
    job: Callable[[Cluster, list[Client], Clients], Awaitable[Any]], *, clients: int, seed: int = 1
) -> Any:
    """As `with_clients`, for a job that starts processes of its own."""

    async def scenario(cluster: Cluster) -> Any:
        await cluster.found("orders", QUEUES)
        async with trio.open_nursery() as nursery:
            processes = Clients(cluster, nursery, seed=seed)
            opened: list[Client] = []
            is_ready, is_over = trio.Event(), trio.Event()

            async def run(mq: Client, _: object) -> None:
                opened.append(mq)
                if len(opened) == clients:
                    is_ready.set()
                await is_over.wait()

            for number in range(clients):
                processes.start(f"client {number}", run)
            await is_ready.wait()
            try:
                return await job(cluster, opened, processes)
            finally:
                assert not processes.failures, processes.failures
                nursery.cancel_scope.cancel()

    return in_cluster(scenario, seed=seed)


async def send(mq: Client, count: int, *, first: int = 0) -> None:
    """Messages that say their number, in turn to all queues."""
    async with mq.producer("orders") as p:
        for number in range(first, first + count):
            p.send_nowait(b"%d" % number, queue=number % QUEUES)
        await p.flush()


def opened(mq: Client, **options: Any) -> Consumer:
    options = {"group": "g", "queues": "assigned", "session": SESSION, **options}
    found: Consumer = mq.consumer("orders", **options)
    return found


async def settled(*consumers: Consumer, shares: list[int] | None = None) -> None:
    """Wait until each queue has an owner among these, evenly."""
    with trio.fail_after(60):
        while True:
            found = [c.assignment for c in consumers]
            queues = sorted(queue for each in found for queue in each)
            lengths = sorted(map(len, found))
            if queues == list(range(QUEUES)) and lengths[-1] - lengths[0] <= 1:
                return
            await trio.sleep(0.05)


async def committed(c: Consumer) -> None:
    """Commit; queues that were lost are no matter."""
    try:
        await c.commit()
    except Rejected as error:
        if error.reason is not Reason.FENCED:
            raise


async def read_on(c: Consumer) -> None:
    """Read until a read is refused."""
    while True:
        await c.fetch(1, wait=1)


class Reader:
    """Reads with a consumer until `is_over`, and notes (time, queue, number) of each message."""

    def __init__(self, c: Consumer) -> None:
        self.c = c
        self.got: list[tuple[float, int, int]] = []
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            with suppress(Unavailable, OutcomeUnknown):
                batch = await self.c.fetch(50, wait=0.2)
                for m in batch:
                    self.got.append((trio.current_time(), m.queue, int(m.body)))
                await committed(self.c)

    @property
    def numbers(self) -> list[int]:
        return [number for _, _, number in self.got]


def test_members_share_out_all_queues_and_nothing_is_read_twice() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with AsyncExitStack() as stack:
            consumers = [await stack.enter_async_context(opened(mq)) for mq in mqs[:3]]
            await settled(*consumers)
            await send(mqs[3], 120)
            readers = [Reader(c) for c in consumers]
            async with trio.open_nursery() as nursery:
                for reader in readers:
                    nursery.start_soon(reader.run)
                while sum(len(reader.got) for reader in readers) < 120:
                    await trio.sleep(0.1)
                await trio.sleep(2)
                for reader in readers:
                    reader.is_over = True
            assert [len(reader.got) for reader in readers] == [40, 40, 40]
            assert sorted(n for reader in readers for n in reader.numbers) == list(range(120))

    with_clients(job)


def test_one_that_comes_gets_its_share_and_one_that_leaves_gives_it_back_at_once() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0]) as a:
            assert a.assignment == tuple(range(QUEUES))
            async with opened(mqs[1]) as b:
                begun = trio.current_time()
                await settled(a, b)
                kept = set(a.assignment)
                assert trio.current_time() - begun < 1
            begun = trio.current_time()
            await settled(a)
            assert trio.current_time() - begun < 1
            assert kept < set(a.assignment)

    with_clients(job)


def test_next_owner_goes_on_exactly_where_the_last_one_committed() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 240)
        async with opened(mqs[0]) as a:
            first = Reader(a)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run)
                while len(first.got) < 60:
                    await trio.sleep(0.01)
                async with opened(mqs[1]) as b:
                    second = Reader(b)
                    nursery.start_soon(second.run)
                    await settled(a, b)
                    await send(mqs[3], 120, first=240)
                    while len(first.got) + len(second.got) < 360:
                        await trio.sleep(0.1)
                    await trio.sleep(3)
                    first.is_over = second.is_over = True
                    await trio.sleep(1)
            assert sorted(first.numbers + second.numbers) == list(range(360))

    with_clients(job)


def test_named_offsets_of_all_owned_queues_are_committed_and_of_no_others() -> None:
    """A queue that is being given up is owned, and not read; a queue of another member is named
    beside one that is owned."""

    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 2 * QUEUES)
        async with opened(mqs[0]) as a:
            await settled(a)
            count = 0
            while count < 2 * QUEUES:
                count += len(await a.fetch(wait=1))
            position, epochs = a.position, a.epochs
            assert len(epochs) == QUEUES
            async with opened(mqs[1]) as b:
                with trio.fail_after(SESSION / 2):
                    while len(a.assignment) == QUEUES:
                        await trio.sleep(0.01)
                assert a.epochs == epochs
                await a.commit(position)
                await settled(a, b)
                theirs, mine = b.assignment[0], a.assignment[0]
                assert b.position == {queue: position[queue] for queue in b.assignment}
                with pytest.raises(Rejected, match=rf"queues \[{theirs}\] no longer") as refused:
                    await a.commit({theirs: 1, mine: 1})
                assert refused.value.reason is Reason.FENCED
                assert (await a.committed())[mine] == 1
                assert (await b.committed())[theirs] == position[theirs]

    with_clients(job)


def test_frozen_member_loses_its_queues_at_its_lease_and_the_others_never_stop() -> None:
    async def job(cluster: Cluster, mqs: list[Client], processes: Clients) -> None:
        hung: list[Consumer] = []
        mine: list[int] = []
        refusals: list[Reason] = []
        is_over = trio.Event()

        async def hang(mq: Client, _: object) -> None:
            async with opened(mq) as c:
                hung.append(c)
                while not mine:
                    mine.extend(int(m.body) for m in await c.fetch(5, wait=1))
                # Here it stands still.
                await trio.sleep(1)
                try:
                    await c.commit()
                except Rejected as error:
                    refusals.append(error.reason)
                is_over.set()

        async with opened(mqs[0]) as b, opened(mqs[1]) as c, trio.open_nursery() as nursery:
            processes.start("hung", hang)
            while not hung:
                await trio.sleep(0.1)
            await settled(hung[0], b, c)
            lost = set(hung[0].assignment)
            readers = [Reader(b), Reader(c)]
            for reader in readers:
                nursery.start_soon(reader.run)

            async def produce() -> None:
                for n in range(200):
                    await send(mqs[2], QUEUES, first=n * QUEUES)
                    await trio.sleep(0.1)

            nursery.start_soon(produce)
            while not mine:
                await trio.sleep(0.01)
            processes.process("hung").freeze()
            begun = trio.current_time()
            while not lost <= {*b.assignment, *c.assignment}:
                await trio.sleep(0.05)
            moved_after = trio.current_time() - begun
            await trio.sleep(3)
            processes.process("hung").thaw()
            await is_over.wait()
            await trio.sleep(10)
            for reader in readers:
                reader.is_over = True
        assert SESSION - 2 < moved_after < SESSION + 3
        assert refusals == [Reason.FENCED]
        # Messages that the frozen member had not committed came again.
        assert set(mine) <= {n for reader in readers for n in reader.numbers}
        for reader in readers:
            times = [at for at, queue, _ in reader.got if queue not in lost]
            gaps = [later - at for at, later in pairwise(times)]
            assert max(gaps) < 0.5, "a member stopped for one that was frozen"

    with_processes(job, clients=3)


def test_members_outlive_a_change_of_the_system_groups_leader() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0]) as a, opened(mqs[1]) as b:
            await settled(a, b)
            before = (a.assignment, b.assignment)
            epochs = {c.queue: c.epoch for x in (a, b) for c in x._owned()}
            leader = cluster.leader(0)
            cluster.kill(leader)
            await trio.sleep(3 * SESSION)
            assert (a.assignment, b.assignment) == before
            await cluster.start(leader)
            await trio.sleep(3 * SESSION)
            after = {c.queue: c.epoch for x in (a, b) for c in x._owned()}
            assert (a.assignment, b.assignment) == before
            assert after == epochs

    with_clients(job)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_members_outlive_a_jump_of_the_leaders_clock(jump_ms: int) -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0]) as a, opened(mqs[1]) as b:
            await settled(a, b)
            before = {c.queue: c.epoch for x in (a, b) for c in x._owned()}
            cluster.machines[cluster.leader(0)].clock.skew_ms += jump_ms
            await trio.sleep(3 * SESSION)
            assert {c.queue: c.epoch for x in (a, b) for c in x._owned()} == before
            await send(mqs[3], 24)
            assert len(await a.fetch(100, wait=1)) + len(await b.fetch(100, wait=1)) > 0

    with_clients(job)


def test_dead_members_queues_are_shared_out_after_a_day_that_was_not() -> None:
    """The log stays a day ahead when the clock is right again; leases run by the log's time."""

    async def job(cluster: Cluster, mqs: list[Client], processes: Clients) -> None:
        hung: list[Consumer] = []

        async def hang(mq: Client, _: object) -> None:
            async with opened(mq) as c:
                hung.append(c)
                await trio.sleep_forever()

        async with opened(mqs[0]) as b:
            processes.start("hung", hang)
            while not hung:
                await trio.sleep(0.1)
            await settled(hung[0], b)
            clock = cluster.machines[cluster.leader(0)].clock
            clock.skew_ms += 86_400_000
            await trio.sleep(2 * SESSION)
            clock.skew_ms -= 86_400_000
            processes.process("hung").freeze()
            # The log's time goes on at half the pace.
            await trio.sleep(3 * SESSION)
            found = b.assignment
            processes.process("hung").thaw()
        assert sorted(found) == list(range(QUEUES))

    with_processes(job, clients=1)


def test_heartbeats_cost_one_entry_a_second_at_most() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> int:
        async with AsyncExitStack() as stack:
            consumers = [
                await stack.enter_async_context(opened(mqs[n % 4], group=f"g{n}"))
                for n in range(20)
            ]
            await settled(consumers[0])
            group = cluster.nodes[cluster.leader(0)].groups[0]
            before = group.machine.applied
            await trio.sleep(30)
            return group.machine.applied - before

    assert with_clients(job) <= 31


def test_next_process_of_an_instance_takes_over_at_once_and_the_first_one_is_told() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], instance="i") as a, opened(mqs[1]) as b:
            await settled(a, b)
            mine = a.assignment
            async with opened(mqs[2], instance="i") as again:
                assert again.assignment == mine
                with pytest.raises(Rejected, match="another process") as refused:
                    await read_on(a)
                assert refused.value.reason is Reason.FENCED
                assert set(again.assignment) | set(b.assignment) == set(range(QUEUES))

    with_clients(job)


def test_consumer_that_nobody_hears_says_so_now_and_then() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> list[float]:
        told: list[float] = []
        async with opened(mqs[0]) as a:
            for node in (1, 2, 3):
                cluster.kill(node)
            begun = trio.current_time()
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await read_on(a)
                told.append(trio.current_time() - begun)
            for node in (1, 2, 3):
                await cluster.start(node)
            await send(mqs[1], 12)
            with trio.fail_after(60):
                assert await a.fetch(1, wait=60)
        return told

    first, second = with_clients(job)
    assert first > 5
    assert second - first > 5


def test_consumer_ends_without_an_error_if_it_cannot_say_that_it_leaves() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> float:
        async with opened(mqs[0]) as a:
            assert a.assignment
            for node in (1, 2, 3):
                cluster.kill(node)
            begun = trio.current_time()
        return trio.current_time() - begun

    assert with_clients(job, clients=1) < 6


def test_deleted_topic_ends_its_consumers_with_a_reason() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0]) as a:
            await mqs[1].admin.delete_topic("orders")
            with pytest.raises(Rejected) as refused:
                await read_on(a)
            assert refused.value.reason is Reason.UNKNOWN_TOPIC

    with_clients(job)


def test_new_queues_of_a_topic_are_read_too() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0]) as a, opened(mqs[1]) as b:
            await settled(a, b)
            await mqs[2].admin.alter_topic("orders", QUEUES + 4)
            with trio.fail_after(30):
                while len(a.assignment + b.assignment) < QUEUES + 4:
                    await trio.sleep(0.1)
            assert len(a.assignment) == len(b.assignment)

    with_clients(job)


def test_members_at_the_latest_miss_nothing_in_queues_that_are_added_while_they_run() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[2], 24)
        async with opened(mqs[0], start="latest") as a, opened(mqs[1], start="latest") as b:
            await mqs[2].admin.alter_topic("orders", QUEUES + 4)
            async with mqs[2].producer("orders") as p:
                for number in range(24, 64):
                    await p.send(b"%d" % number, queue=QUEUES + number % 4)
            got: list[int] = []
            with trio.move_on_after(20):
                while len(got) < 40:
                    for each in (a, b):
                        got += [int(m.body) for m in await each.fetch(100, wait=0.5)]
            assert sorted(got) == list(range(24, 64))

    with_clients(job)


def test_what_makes_no_sense_is_refused() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        mq = mqs[0]
        for options in (
            {"queues": "some"},
            {"queues": "assigned"},
            {"queues": "assigned", "group": "g", "session": 0.5},
            {"group": "g", "instance": "i"},
            {"group": "g", "mode": "broadcast", "queues": [1]},
            {"mode": "broadcast"},
        ):
            with pytest.raises(Rejected) as refused:
                mq.consumer("orders", **options)
            assert refused.value.reason is Reason.BAD_ARGUMENT
        async with opened(mq):
            with pytest.raises(Rejected) as refused:
                async with mq.consumer("orders", group="g", mode="broadcast", instance="i"):
                    pass
            assert refused.value.reason is Reason.GROUP_MODE
            async with mq.consumer("orders", group="g") as plain:
                with pytest.raises(Rejected, match="queues='assigned'") as refused:
                    await plain.commit()
                assert refused.value.reason is Reason.FENCED
        with pytest.raises(Rejected) as refused:
            async with mq.consumer("nothing", group="g", queues="assigned"):
                pass
        assert refused.value.reason is Reason.UNKNOWN_TOPIC

    with_clients(job, clients=1)


class Members:
    """Members that come, go, hang and die while nodes and links break, and what must hold."""

    def __init__(self, cluster: Cluster, processes: Clients, *, seed: int, total: int) -> None:
        self.cluster = cluster
        self.processes = processes
        self.random = Random(seed)
        self.total = total
        self.got: set[int] = set()
        self.owners: dict[tuple[int, int], int] = {}
        self.highest: dict[int, int] = {}
        self.newest: dict[int, int] = {}
        self.is_calm = False

    @property
    def is_done(self) -> bool:
        return self.is_calm and len(self.got) == self.total

    async def live(self, mq: Client, _: object) -> None:
        """Members one after the other, in one process."""
        while not self.is_done:
            with trio.move_on_after(self.random.uniform(1, 15)):
                async with opened(mq, auto_commit=self.random.choice([None, 0.5])) as c:
                    while not self.is_done:
                        await self.step(c)
            await trio.sleep(self.random.uniform(0, 3))

    async def step(self, c: Consumer) -> None:
        batch = await c.fetch(self.random.randrange(1, 30), wait=0.5)
        for m in batch:
            self.got.add(int(m.body))
            cursor = next((x for x in c._owned() if x.queue == m.queue), None)
            if cursor is not None:
                assert c._assigned is not None
                number = c._assigned._member.join_command.member
                assert self.owners.setdefault((m.queue, cursor.epoch), number) == number
        # Work: a fault of the process now leaves it with uncommitted messages.
        await trio.sleep(self.random.uniform(0, 1))
        await committed(c)

    async def watch(self) -> None:
        """Committed offsets of leaders never go back."""
        while not self.is_done:
            for node in self.cluster.nodes.values():
                for group in node.groups.values():
                    if isinstance(group.machine, PartitionMachine) and group.is_current:
                        of_group = group.machine.committed.get("g", {})
                        term = group.raft.term
                        if self.newest.get(group.number, 0) > term:
                            # It was deposed and does not know it yet.
                            continue
                        self.newest[group.number] = term
                        for queue, (offset, _) in of_group.items():
                            assert offset >= self.highest.get(queue, 0), (group.number, queue)
                            self.highest[queue] = offset
            await trio.sleep(0.01)

    async def break_things(self) -> None:
        while not self.is_calm:
            await trio.sleep(self.random.uniform(0, 3))
            await self.random.choice(
                [self.kill_node, self.kill_member, self.freeze_member, self.cut_off_member]
            )()

    async def kill_node(self) -> None:
        node = self.random.choice(list(self.cluster.nodes))
        self.cluster.kill(node)
        await trio.sleep(self.random.uniform(0.2, 6))
        await self.cluster.start(node)

    def member(self) -> str | None:
        names = [name for name in self.processes.names() if name.startswith("member")]
        return self.random.choice(sorted(names)) if names else None

    async def kill_member(self) -> None:
        if name := self.member():
            self.processes.kill(name)

    async def freeze_member(self) -> None:
        if name := self.member():
            process = self.processes.process(name)
            process.freeze()
            await trio.sleep(self.random.uniform(0.5, 3 * SESSION))
            process.wake()

    async def cut_off_member(self) -> None:
        if name := self.member():
            hosts = self.random.sample(["node1", "node2", "node3"], self.random.randrange(1, 4))
            links = [link for host in hosts for link in ((name, host), (host, name))]
            for link in links:
                self.cluster.network.block(*link)
            await trio.sleep(self.random.uniform(0.5, 3 * SESSION))
            for link in links:
                self.cluster.network.unblock(*link)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_all_is_read_by_owners_and_offsets_never_go_back(seed: int) -> None:
    async def job(cluster: Cluster, mqs: list[Client], processes: Clients) -> None:
        members = Members(cluster, processes, seed=seed, total=600)
        for number in range(3):
            processes.start(f"member {number}", members.live)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(members.watch)
            nursery.start_soon(members.break_things)
            for first in range(0, 600, 20):
                while True:
                    with suppress(Unavailable, OutcomeUnknown):
                        await send(mqs[0], 20, first=first)
                        break
                await trio.sleep(members.random.uniform(0, 2))
            members.is_calm = True
        assert members.got == set(range(600))

    with_processes(job, clients=1, seed=seed)
