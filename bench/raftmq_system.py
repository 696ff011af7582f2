"""raftmq under test: three `raftmq serve` processes, and the public client on trio.

One topic of six queues over three partition groups, each group led by another node. Every ack means
an fdatasync on a majority. The producer's settings are the defaults; one call sends the scenario's
batch, and calls that meet in a queue share a stored batch. Reading uses `fetch`, in batches, and
commits offsets once a second. Popping uses `pop` and `ack_nowait`, also in an ordered group, whose
order is by key. Order by queue is a group with assigned queues: each of two clients reads its
queues by `fetch`, and awaits a commit after each.
"""

import contextlib
import dataclasses
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import trio

import raftmq
from bench.keys import KeyOrder, keyed
from bench.processes import Clustered, free_ports, wait_for_port
from bench.system import (
    CREATE_SECONDS_MAX,
    PROBE_SECONDS_MAX,
    READ_ALIKE,
    REST_SECONDS,
    SETTLE_SECONDS,
    Meter,
    Sample,
)
from raftmq.broker.local_nodes import SERVE, node_settings, toml_text
from raftmq.errors import OutcomeUnknown, Unavailable
from raftmq.tls.local_cluster import certify, cluster_url, secure_settings, tls_settings

QUEUES = 6
TOPIC, MANY = "bench", "many"
"""The topic of six queues, and that of as many as a scenario wants."""
START_SECONDS_MAX = 30.0
FETCH = 10_000
"""Most messages of one fetch."""
ORDERED_AHEAD = 10_000
"""Messages that a consumer of an ordered group asks for ahead, 20 times the default: more of them
share an entry of the log."""
WAIT_SECONDS = 60.0
"""Time for which a consumer that waits asks."""
CONFIRM_SECONDS = 0.02
"""Pause between two counts of confirmed acknowledgements."""


USER = "load"
"""The user of the load, where a cluster knows its users."""
RULES = 20
"""Rules of that user that are about other topics."""


class Security(Enum):
    """The proofs that a cluster demands of its clients."""

    PLAIN = "plain"
    """Nothing."""
    TLS = "TLS"
    """TLS."""
    USERS = "users"
    """TLS, and to be a user whom the rules allow what it does."""


class RaftmqSystem(Clustered):
    """A cluster of three nodes; see the module heading."""

    name = "raftmq"
    version = raftmq.__version__
    settings = (
        f"3 nodes, 3 partition groups, {QUEUES} queues, default settings; ack = fdatasync on 2 of 3"
    )

    def __init__(self, security: Security = Security.PLAIN) -> None:
        self._security = security
        self.url = ""
        """URL of the cluster; empty until the cluster runs."""

    def available(self) -> str | None:
        """None: raftmq is always available in its own repository."""
        return None

    def _start(self) -> None:
        cluster = self._cluster
        ports = free_ports(3)
        addresses = {number: ("127.0.0.1", port) for number, port in enumerate(ports, 1)}
        certs = cluster.folder / "certs"
        if self._security is not Security.PLAIN:
            certify(certs, "bench", addresses, "127.0.0.1")
        for number, address in addresses.items():
            config = cluster.folder / f"node{number}.toml"
            data = cluster.folder / f"data{number}"
            own = node_settings(
                number, address, cluster="bench", data=data, founders=3, others=addresses
            )
            config.write_text(toml_text({"node": own, **self._more(certs, number)}))
            cluster.start([*SERVE, "-c", str(config)], name=f"node{number}")
        for port in ports:
            wait_for_port(port, cluster, seconds_max=START_SECONDS_MAX)
        nodes = [f"127.0.0.1:{port}" for port in ports]
        self.url = cluster_url(nodes, None if self._security is Security.PLAIN else certs)
        trio.run(self._settle)
        if self._security is Security.USERS:
            login = trio.run(self._make_user, certs)
            # The login takes the place of the administrator's certificate.
            self.url += f"&login={login}"

    def _more(self, certs: Path, node: int) -> Mapping[str, Mapping[str, Any]]:
        """The tables of a node's settings beside `node`."""
        match self._security:
            case Security.PLAIN:
                return {}
            case Security.TLS:
                return {"tls": tls_settings(certs, node)}
            case Security.USERS:
                return secure_settings(certs, node)

    async def _make_user(self, folder: Path) -> Path:
        """Make a user with rules for what the load does; the path of its login file."""
        async with raftmq.connect(self.url) as mq:
            await mq.access.put_user(USER)
            for number in range(RULES):
                await mq.access.allow(USER, "write", "topic", f"other-{number}")
            await mq.access.allow(USER, "any", "topic", "bench*")
            await mq.access.allow(USER, "any", "group", "*")
            token = await mq.access.make_token(USER)
        path = folder / "login.toml"
        path.write_text(f'token = "{token}"\n')
        return path

    async def _settle(self) -> None:
        """Create the topic, and wait until each node leads a group."""
        async with raftmq.connect(self.url, timeout=START_SECONDS_MAX) as mq:
            await mq.admin.create_topic(TOPIC, queues=QUEUES)
            with trio.fail_after(START_SECONDS_MAX):
                while True:
                    view = await mq.admin.cluster()
                    leaders = {group.leader for group in view.groups if group.id}
                    if len(leaders) == 3 and 0 not in leaders:
                        return
                    await trio.sleep(0.1)

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Publish with `window` batches in flight."""
        return trio.run(self._produce, size, batch, window, seconds)

    def fill(self, *, size: int, batch: int, window: int, messages: int, seconds: float) -> Sample:
        """As `produce`."""
        return trio.run(self._produce, size, batch, window, seconds, messages)

    def spread(self, *, queues: int, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Queues of one topic."""
        began = time.perf_counter()
        trio.run(self._create, queues)
        numbers = range(queues)
        first = (size, batch, window, CREATE_SECONDS_MAX, queues * batch, MANY, numbers)
        reached = min(queues, trio.run(self._produce, *first).messages // batch)
        figures = {"queues": reached, "s to create": round(time.perf_counter() - began, 2)}
        sample = trio.run(self._produce, size, batch, window, seconds, None, MANY, numbers)
        return dataclasses.replace(sample, figures=figures, settings="queues of one topic")

    async def _create(self, queues: int) -> None:
        async with raftmq.connect(self.url) as mq:
            await mq.admin.create_topic(MANY, queues=queues)

    async def _produce(
        self,
        size: int,
        batch: int,
        window: int,
        seconds: float,
        messages: int | None = None,
        topic: str = TOPIC,
        queues: Sequence[int] | None = None,
    ) -> Sample:
        """Publish for `seconds`, or until `messages`; a batch to each queue in turn, or None: where
        the producer chooses."""
        bodies = [b"x" * size] * batch
        turns = itertools.cycle(queues or [None])
        async with raftmq.connect(self.url) as mq, mq.producer(topic) as producer:
            meter = Meter(size=size, seconds=seconds, messages_max=messages)
            under_way: deque[tuple[float, raftmq.client.PendingMany]] = deque()
            while not meter.is_over():
                while len(under_way) < window:
                    sent_at = time.perf_counter()
                    pending = producer.send_many_nowait(bodies=bodies, queue=next(turns))
                    under_way.append((sent_at, pending))
                sent_at, pending = under_way.popleft()
                await pending.wait()
                meter.on_ack(batch, sent_at)
            for _, pending in under_way:
                await pending.wait()
        return meter.sample()

    def waiting(self, *, consumers: int, size: int, probes: int) -> Sample:
        """Consumers of one client, each of a queue of its own."""
        return trio.run(self._wait_and_probe, consumers, size, probes)

    async def _wait_and_probe(self, consumers: int, size: int, probes: int) -> Sample:
        await self._create(consumers)
        send_arrived, arrived = trio.open_memory_channel[int](1)

        async def wait(queue: int) -> None:
            async with mq.consumer(MANY, queues=[queue], start="latest") as consumer:
                while True:
                    for _ in await consumer.fetch(1, wait=WAIT_SECONDS):
                        send_arrived.send_nowait(queue)

        async with (
            raftmq.connect(self.url) as mq,
            mq.producer(MANY) as producer,
            trio.open_nursery() as nursery,
        ):
            for queue in range(consumers):
                nursery.start_soon(wait, queue)
            await trio.sleep(SETTLE_SECONDS)
            rest_began = time.perf_counter()
            await trio.sleep(REST_SECONDS)
            rest = (rest_began, time.perf_counter())
            meter = Meter(size=size, seconds=PROBE_SECONDS_MAX, messages_max=probes)
            while not meter.is_over():
                queue = random.randrange(consumers)
                sent_at = time.perf_counter()
                producer.send_nowait(b"x" * size, queue=queue)
                with trio.fail_after(PROBE_SECONDS_MAX):
                    assert await arrived.receive() == queue
                meter.on_ack(1, sent_at)
            nursery.cancel_scope.cancel()
        sample = meter.sample(settings="pull consumers of one client, each of a queue of its own")
        return dataclasses.replace(sample, figures={"consumers": consumers}, rest=rest)

    def single(self, *, size: int, seconds: float) -> Sample:
        """Publish one message at a time, awaiting each."""
        return trio.run(self._single, size, seconds)

    async def _single(self, size: int, seconds: float) -> Sample:
        body = b"x" * size
        async with raftmq.connect(self.url) as mq, mq.producer(TOPIC) as producer:
            meter = Meter(size=size, seconds=seconds)
            while not meter.is_over():
                sent_at = time.perf_counter()
                await producer.send(body)
                meter.on_ack(1, sent_at)
        return meter.sample()

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Read all messages back by position."""
        return trio.run(self._consume, size, FETCH, seconds)

    async def _consume(self, size: int, fetch: int, seconds: float) -> Sample:
        async with (
            raftmq.connect(self.url) as mq,
            mq.consumer(TOPIC, group="bench", mode="pull", auto_commit=1.0) as consumer,
        ):
            meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
            while not meter.is_over():
                messages = await consumer.fetch(fetch, wait=0.2)
                if not messages:
                    break
                assert all(len(body) == size for body in messages.bodies)
                meter.on_delivery(len(messages))
        return meter.sample(until_last=True)

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Read the log in batches of `batch`, then pop and acknowledge all messages."""
        plain = trio.run(self._consume, size, batch, seconds)
        sample = trio.run(self._pop, size, batch, window, seconds)
        ratio = round(sample.messages_per_s / plain.messages_per_s, 2)
        return dataclasses.replace(sample, figures={READ_ALIKE: ratio})

    async def _pop(self, size: int, batch: int, window: int, seconds: float) -> Sample:
        """One task pops batch after batch, and acknowledges each without waiting; another task
        counts the confirmed acknowledgements. The consumer prefetches `window` batches."""
        entries = -await self._log_entries()
        async with (
            raftmq.connect(self.url) as mq,
            mq.consumer(TOPIC, group="bench-pop", mode="pop", prefetch=window * batch) as consumer,
        ):
            meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
            popped = settled = 0
            is_over = False

            async def pop() -> None:
                nonlocal popped, is_over
                while not meter.is_over():
                    messages = await consumer.pop(batch, wait=0.2)
                    if not messages:
                        break
                    assert all(len(body) == size for body in messages.bodies)
                    popped += len(messages)
                    messages.ack_nowait()
                is_over = True

            async with trio.open_nursery() as nursery:
                nursery.start_soon(pop)
                while not is_over or settled < popped:
                    await trio.sleep(CONFIRM_SECONDS)
                    settlement = await consumer.flush()
                    assert settlement.is_complete, settlement.fenced[:3]
                    meter.on_delivery(settlement.settled)
                    settled += settlement.settled
        entries += await self._log_entries()
        settings = (
            f"one consumer, prefetch {window * batch:,}, batches of {batch}, "
            f"{entries / settled:.5f} log entries a message"
        )
        return meter.sample(until_last=True, settings=settings)

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Fill by keyed messages, then pop and acknowledge by two consumers of an ordered group,
        which prefetch `ORDERED_AHEAD` messages."""
        return trio.run(self._ordered, size, batch, window, fill_seconds, seconds)

    async def _ordered(
        self, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        async with raftmq.connect(self.url) as mq:
            sent = await _send_keyed(mq, size, batch, window, fill_seconds)
            order, settled = KeyOrder(), 0

            async def take(consumer: raftmq.client.PopConsumer, meter: Meter) -> None:
                while settled < sent and not meter.is_over():
                    messages = await consumer.pop(batch, wait=0.2)
                    order.check(messages.bodies)
                    messages.ack_nowait()

            async with (
                mq.consumer(
                    TOPIC, group="ordered", mode="ordered", prefetch=ORDERED_AHEAD
                ) as first,
                mq.consumer(
                    TOPIC, group="ordered", mode="ordered", prefetch=ORDERED_AHEAD
                ) as second,
                trio.open_nursery() as nursery,
            ):
                meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
                for consumer in (first, second):
                    nursery.start_soon(take, consumer, meter)
                while settled < sent and not meter.is_over():
                    await trio.sleep(CONFIRM_SECONDS)
                    for consumer in (first, second):
                        settlement = await consumer.flush()
                        assert settlement.is_complete, settlement.fenced[:3]
                        meter.on_delivery(settlement.settled)
                        settled += settlement.settled
        settings = f"2 consumers, mode ordered, order by key, prefetch {ORDERED_AHEAD:,}"
        return meter.sample(until_last=True, settings=settings)

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Two members of a group with assigned queues, each of a client of its own."""
        return trio.run(self._in_order, size, batch, window, fill_seconds, seconds)

    async def _in_order(
        self, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        async with raftmq.connect(self.url) as mq:
            sent = await _send_keyed(mq, size, batch, window, fill_seconds)
        order, taken = KeyOrder(), 0

        async def take(consumer: raftmq.client.Consumer, meter: Meter) -> None:
            nonlocal taken
            await consumer.seek(offset=0)
            while taken < sent and not meter.is_over():
                messages = await consumer.fetch(FETCH, wait=0.2)
                order.check(messages.bodies)
                await consumer.commit()
                meter.on_delivery(len(messages))
                taken += len(messages)

        # At the end of the queues there is nothing to read ahead before the clock starts.
        how: dict[str, Any] = {"group": "in-order", "queues": "assigned", "start": "latest"}
        async with (
            raftmq.connect(self.url) as one,
            raftmq.connect(self.url) as other,
            one.consumer(TOPIC, **how) as first,
            other.consumer(TOPIC, **how) as second,
        ):
            # The first one has all queues until it has given up half of them.
            with trio.fail_after(START_SECONDS_MAX):
                while len(first.assignment) != len(second.assignment):  # noqa: ASYNC110
                    await trio.sleep(CONFIRM_SECONDS)
            meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
            async with trio.open_nursery() as nursery:
                for consumer in (first, second):
                    nursery.start_soon(take, consumer, meter)
        settings = (
            f"2 members of a group with assigned queues, fetches of {FETCH:,} at most, a commit "
            "awaited after each"
        )
        return meter.sample(until_last=True, settings=settings)

    def leader_pid(self) -> int:
        """The node that leads queue 0."""

        async def ask() -> int:
            async with raftmq.connect(self.url) as mq:
                return (await mq.admin.describe_topic(TOPIC)).queues[0].leader

        return self.server_pids[trio.run(ask) - 1]

    def send_steadily(self, on_ack: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Send to queue 0; the client repeats by itself."""

        async def send() -> None:
            async with raftmq.connect(self.url) as mq, mq.producer(TOPIC) as producer:
                while not is_over():
                    with contextlib.suppress(Unavailable, OutcomeUnknown):
                        await producer.send(b"x" * 200, queue=0)
                        on_ack()

        trio.run(send)

    async def _log_entries(self) -> int:
        """Number of records in the logs of all data groups: the sum of the leaders' last index."""
        async with raftmq.connect(self.url) as mq:
            total = 0
            for node in (1, 2, 3):
                status = await mq.admin.status(node)
                total += sum(
                    each["last_index"]
                    for each in status["groups"]
                    if each["group"] and each["role"] == "leader"
                )
            return total


async def _send_keyed(mq: raftmq.Client, size: int, batch: int, window: int, seconds: float) -> int:
    """Send keyed messages for some seconds; their number."""
    sent = 0
    async with mq.producer(TOPIC) as producer:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            under_way = []
            for _ in range(window):
                keys, bodies = keyed(range(sent, sent + batch), size)
                under_way.append(producer.send_many_nowait(bodies=bodies, keys=keys))
                sent += batch
            for pending in under_way:
                await pending.wait()
    return sent
