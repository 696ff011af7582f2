"""NATS JetStream: three nats-server processes, a stream of three file replicas, nats-py.

Two systems come out of this file:

| name | when a publish is acknowledged |
|---|---|
| `nats` | the default: a majority has it in its page cache; a sync follows every 2 minutes |
| `nats-fsync` | a majority has it on disk: `sync_interval: always`, of nats-server 2.10 and later |

JetStream has no batches: each message is published and acknowledged by itself, and `window`
batches of `batch` messages are `window * batch` single messages in flight. The load publishes with
a reply subject and counts the answers of one subscription, like `publish_async` of nats-py, but
without a future and a timer for each message. Reading back acknowledges once for each fetch
(AckPolicy.ALL), the cheapest way that the protocol offers.

Sources: docs.nats.io, "JetStream wire API" and "nats-server configuration".
"""

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.keys import QUEUES, KeyOrder, keyed, queue_of
from bench.peers import install
from bench.processes import Clustered, first_line, free_ports, wait_for_port
from bench.system import (
    CREATE_SECONDS_MAX,
    PROBE_SECONDS_MAX,
    REST_SECONDS,
    SETTLE_SECONDS,
    Meter,
    Sample,
    Unsupported,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

# nats-py's own bound for `publish_async`; a larger one gave no more throughput, only latency.
IN_FLIGHT_MAX = 4000
FETCH_MESSAGES = 1000
PAYLOAD_BYTES_MAX = 1 << 20
PULL_SECONDS = 60.0
"""Time for which a consumer that waits asks."""
STREAM, SUBJECT, ANSWERS = "bench", "bench.messages", "_INBOX.bench.answers"
MANY = "many.{}"
"""The subjects of the stream beside `SUBJECT`, by number."""


class Nats(Clustered):
    """`System` of three nats-servers; with `is_synced` it is `nats-fsync`."""

    _has_batches = False
    """Does the stream take the server's batch publish, which nats-py does not speak?"""

    def __init__(self, *, is_synced: bool = False) -> None:
        self._is_synced = is_synced
        self.name = "nats-fsync" if is_synced else "nats"

    @property
    def version(self) -> str:
        """Versions of the server and the client."""
        import nats.aio.client

        server = first_line([_server(), "--version"]).rpartition("v")[2]
        return f"nats-server {server}, nats-py {nats.aio.client.__version__}"

    @property
    def settings(self) -> str:
        """Replication and durability."""
        if not self._is_synced:
            return "R3, file storage, default sync (acked from the page cache, sync every 2 min)"
        return "R3, file storage, sync_interval: always"

    def available(self) -> str | None:
        """None, or what to install."""
        if install.program("nats-server") is None:
            return "nats-server is not installed: .venv/bin/python -m bench.peers.install nats"
        try:
            import nats  # noqa: F401
        except ImportError:
            return "nats-py is not installed: uv sync --locked --group bench"
        return None

    def _start(self) -> None:
        ports = free_ports(6)
        self._ports = ports[:3]
        self._port = ports[0]
        for number in range(3):
            config = self._write_config(number, ports[:3], ports[3:])
            self._cluster.start([_server(), "-c", str(config)], name=f"server{number}")
        for port in ports[:3]:
            wait_for_port(port, self._cluster)
        asyncio.run(self._create_stream())

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """`window * batch` single publishes in flight, up to a bound."""
        wanted = window * batch
        in_flight = min(wanted, IN_FLIGHT_MAX)
        settings = f"single messages, {in_flight} in flight" if batch > 1 else ""
        return asyncio.run(self._publish(size, in_flight, seconds, settings))

    def fill(self, *, size: int, batch: int, window: int, messages: int, seconds: float) -> Sample:
        """As `produce`."""
        in_flight = min(window * batch, IN_FLIGHT_MAX)
        settings = f"single messages, {in_flight} in flight"
        return asyncio.run(self._publish(size, in_flight, seconds, settings, messages=messages))

    def spread(self, *, queues: int, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Subjects of one stream, which come to be with their first message: 20,000 streams would
        be 20,000 Raft groups."""
        in_flight = min(window * batch, IN_FLIGHT_MAX)
        settings = f"subjects of one stream; single messages, {in_flight} in flight"
        subjects = [MANY.format(number) for number in range(queues)]
        first = asyncio.run(
            self._publish(
                size, in_flight, CREATE_SECONDS_MAX, "", messages=queues, subjects=subjects
            )
        )
        sample = asyncio.run(
            self._publish(size, in_flight, seconds, settings, subjects=subjects, run=batch)
        )
        figures = {"queues": min(queues, first.messages), "s to create": round(first.seconds, 2)}
        return replace(sample, figures=figures)

    def waiting(self, *, consumers: int, size: int, probes: int) -> Sample:
        """Pull consumers of one client, each of a subject of its own."""
        return asyncio.run(self._wait_and_probe(consumers, size, probes))

    def single(self, *, size: int, seconds: float) -> Sample:
        """One publish in flight."""
        return asyncio.run(self._publish(size, 1, seconds, ""))

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Pull and acknowledge the messages."""
        return asyncio.run(self._pull(size, seconds))

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """As `consume`: JetStream acknowledges what it delivers."""
        return self.consume(size=size, batch=batch, window=window, seconds=seconds)

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Two pullers of a consumer with `max_ack_pending=1`, JetStream's way to a strict order:
        one message of the whole stream is out at a time."""
        self.produce(size=size, batch=batch, window=window, seconds=fill_seconds)
        return asyncio.run(self._pull_in_order(size, seconds))

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Two clients, each with a consumer of each of three subjects."""
        in_flight = min(window * batch, IN_FLIGHT_MAX)
        asyncio.run(self._publish(size, in_flight, fill_seconds, "", is_keyed=True))
        return asyncio.run(self._pull_subjects(size, seconds))

    def leader_pid(self) -> int:
        """The server that leads the stream."""
        return self.server_pids[self._ports.index(self._port)]

    def send_steadily(self, on_ack: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Publish by a client that knows all servers; what has no answer within 1 s is repeated."""
        import nats.errors
        import nats.js.errors

        failures = (nats.errors.Error, nats.js.errors.Error)

        async def send() -> None:
            client = await nats.connect(
                [f"nats://127.0.0.1:{port}" for port in (self._port, *self._ports)],
                dont_randomize=True,
                reconnect_time_wait=0.05,
                max_reconnect_attempts=-1,
                error_cb=_ignore,
            )
            stream = client.jetstream(timeout=1.0)
            while not is_over():
                try:
                    await stream.publish(SUBJECT, bytes(200))
                except failures:
                    await asyncio.sleep(0.01)
                else:
                    on_ack()
            await client.close()

        asyncio.run(send())

    def _write_config(self, number: int, ports: list[int], route_ports: list[int]) -> Path:
        store = self._cluster.folder / f"store{number}"
        store.mkdir()
        sync = ", sync_interval: always" if self._is_synced else ""
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in route_ports)
        path = self._cluster.folder / f"server{number}.conf"
        path.write_text(
            f'listen: "127.0.0.1:{ports[number]}"\n'
            f"server_name: bench{number}\n"
            f'jetstream {{ store_dir: "{store}"{sync} }}\n'
            f'cluster {{ name: bench, listen: "127.0.0.1:{route_ports[number]}", '
            f"no_advertise: true, routes: [{routes}] }}\n"
        )
        return path

    async def _create_stream(self) -> None:
        import nats.errors
        import nats.js.errors
        from nats.js.api import StorageType, StreamConfig

        client = await self._connect()
        config = StreamConfig(
            name=STREAM,
            subjects=[SUBJECT, MANY.format("*")],
            num_replicas=3,
            storage=StorageType.FILE,
            allow_batched=self._has_batches or None,
        )
        deadline = time.monotonic() + 30.0
        while True:
            # Until the servers have elected a leader they refuse, or do not answer.
            try:
                await client.jetstream(timeout=2.0).add_stream(config)
                break
            except (nats.js.errors.Error, nats.errors.Error):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
        await self._wait_for_replicas(client, deadline)
        await client.close()

    async def _wait_for_replicas(self, client: "Client", deadline: float) -> None:
        while True:
            info = await client.jetstream().stream_info(STREAM)
            replicas = info.cluster.replicas or [] if info.cluster else []
            if info.cluster and len(replicas) == 2 and all(each.current for each in replicas):
                # A publish through another server would take one more hop.
                self._port = self._ports[int((info.cluster.leader or "0")[-1])]
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the stream's replicas are not current: {info.cluster}")
            await asyncio.sleep(0.2)

    async def _connect(self) -> "Client":
        import nats

        # A large pending buffer: the client's own flushing must not be the bottleneck.
        return await nats.connect(
            f"nats://127.0.0.1:{self._port}", pending_size=64 << 20, allow_reconnect=False
        )

    async def _publish(
        self,
        size: int,
        in_flight: int,
        seconds: float,
        settings: str,
        *,
        messages: int | None = None,
        subjects: Sequence[str] = (SUBJECT,),
        run: int = 1,
        is_keyed: bool = False,
    ) -> Sample:
        """Publish for `seconds`, or until `messages`; `run` messages to each subject in turn, or
        keyed messages to the subjects of their keys."""
        if size > PAYLOAD_BYTES_MAX:
            raise Unsupported(f"max_payload of nats-server is {PAYLOAD_BYTES_MAX} bytes")
        meter = Meter(size=size, seconds=seconds, messages_max=messages)
        client = await self._connect()
        try:
            made = (
                _keyed_messages(size)
                if is_keyed
                else zip(_each(subjects, run), itertools.repeat(os.urandom(size)), strict=False)
            )
            await _Window(client, in_flight, made).run(meter)
        finally:
            await client.close()
        return meter.sample(settings=settings)

    async def _pull(self, size: int, seconds: float) -> Sample:
        from nats.js.api import AckPolicy, ConsumerConfig

        client = await self._connect()
        fetch = max(1, min(FETCH_MESSAGES, (8 << 20) // size))
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=4 * fetch)
        stream = client.jetstream()
        left = (await stream.stream_info(STREAM)).state.messages
        # The client drops messages above its pending limits, which are meant for push consumers.
        puller = await stream.pull_subscribe(
            SUBJECT, "reader", stream=STREAM, config=config, pending_bytes_limit=256 << 20
        )
        meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
        while left > 0 and not meter.is_over():
            messages = await puller.fetch(min(fetch, left), timeout=10.0)
            await messages[-1].ack()
            meter.on_delivery(len(messages))
            left -= len(messages)
        await client.close()
        settings = f"pull, fetch {fetch}, acknowledged once a fetch"
        return meter.sample(until_last=True, settings=settings)

    async def _wait_and_probe(self, consumers: int, size: int, probes: int) -> Sample:
        import nats.errors

        client = await self._connect()
        stream = client.jetstream()
        subjects = [MANY.format(number) for number in range(consumers)]
        pullers = [await stream.pull_subscribe(each, stream=STREAM) for each in subjects]
        arrived: asyncio.Queue[str] = asyncio.Queue()

        async def wait(puller: "JetStreamContext.PullSubscription") -> None:
            while True:
                with contextlib.suppress(nats.errors.TimeoutError):
                    (message,) = await puller.fetch(1, timeout=PULL_SECONDS)
                    arrived.put_nowait(message.subject)
                    await message.ack()

        waiting = [asyncio.create_task(wait(each)) for each in pullers]
        await asyncio.sleep(SETTLE_SECONDS)
        rest_began = time.perf_counter()
        await asyncio.sleep(REST_SECONDS)
        rest = (rest_began, time.perf_counter())
        meter = Meter(size=size, seconds=PROBE_SECONDS_MAX, messages_max=probes)
        body = os.urandom(size)
        while not meter.is_over():
            subject = random.choice(subjects)
            sent_at = time.perf_counter()
            await client.publish(subject, body)
            assert await asyncio.wait_for(arrived.get(), PROBE_SECONDS_MAX) == subject
            meter.on_ack(1, sent_at)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await client.close()
        settings = "ephemeral pull consumers of one client, each of a subject of its own"
        return replace(meter.sample(settings=settings), figures={"consumers": consumers}, rest=rest)

    async def _pull_in_order(self, size: int, seconds: float) -> Sample:
        import nats.errors
        from nats.js.api import AckPolicy, ConsumerConfig

        client = await self._connect()
        stream = client.jetstream()
        config = ConsumerConfig(
            durable_name="ordered",
            filter_subject=SUBJECT,
            ack_policy=AckPolicy.EXPLICIT,
            max_ack_pending=1,
        )
        await stream.add_consumer(STREAM, config)
        meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)

        async def take() -> None:
            puller = await stream.pull_subscribe_bind("ordered", STREAM)
            while not meter.is_over():
                with contextlib.suppress(nats.errors.TimeoutError):
                    (message,) = await puller.fetch(1, timeout=1.0)
                    await message.ack()
                    meter.on_delivery(1)

        await asyncio.gather(take(), take())
        await client.close()
        return meter.sample(settings="2 pullers, max_ack_pending 1, order by stream")

    async def _pull_subjects(self, size: int, seconds: float) -> Sample:
        from nats.js.api import AckPolicy, ConsumerConfig

        clients = [await self._connect() for _ in range(2)]
        left = (await clients[0].jetstream().stream_info(STREAM)).state.messages
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=4 * FETCH_MESSAGES)
        pullers = [
            await clients[queue % 2]
            .jetstream()
            .pull_subscribe(
                MANY.format(queue),
                f"in-order-{queue}",
                stream=STREAM,
                config=config,
                pending_bytes_limit=256 << 20,
            )
            for queue in range(QUEUES)
        ]
        order = KeyOrder()
        meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)

        async def take(puller: "JetStreamContext.PullSubscription") -> None:
            nonlocal left
            while left > 0 and not meter.is_over():
                try:
                    messages = await puller.fetch(FETCH_MESSAGES, timeout=0.2)
                except TimeoutError:
                    continue
                order.check(each.data for each in messages)
                await messages[-1].ack()
                meter.on_delivery(len(messages))
                left -= len(messages)

        await asyncio.gather(*map(take, pullers))
        for each in clients:
            await each.close()
        settings = f"2 clients with a consumer of 3 subjects each, fetch {FETCH_MESSAGES}"
        return meter.sample(
            until_last=True, settings=f"{settings}, acknowledged once a fetch (AckPolicy.ALL)"
        )


class _Window:
    """Keeps `in_flight` publishes of subjects and bodies unanswered on one connection."""

    def __init__(
        self, client: "Client", in_flight: int, messages: Iterator[tuple[str, bytes]]
    ) -> None:
        self._client = client
        self._messages = messages
        self._in_flight = in_flight
        self._sent_at: deque[float] = deque()
        self._progress = asyncio.Event()
        self._refusal: bytes | None = None

    async def run(self, meter: Meter) -> None:
        """Publish until the meter is over."""
        self._meter = meter
        await self._client.subscribe(
            ANSWERS, cb=self._on_answer, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        while not meter.is_over():
            while len(self._sent_at) < self._in_flight and not meter.is_over():
                self._sent_at.append(time.perf_counter())
                subject, body = next(self._messages)
                await self._client.publish(subject, body, reply=ANSWERS)
            self._progress.clear()
            await asyncio.wait_for(self._progress.wait(), timeout=30.0)
            if self._refusal is not None:
                raise RuntimeError(f"a publish was refused: {self._refusal.decode()}")

    async def _on_answer(self, message: "Msg") -> None:
        # Answers of one stream to one publisher come in the order of its publishes.
        if b'"error"' in message.data:
            self._refusal = message.data
        self._meter.on_ack(1, self._sent_at.popleft())
        self._progress.set()


def _each(subjects: Sequence[str], run: int) -> Iterator[str]:
    return itertools.cycle(each for each in subjects for _ in range(run))


def _keyed_messages(size: int) -> Iterator[tuple[str, bytes]]:
    """Subject and body of each keyed message."""
    for number in itertools.count():
        _, (body,) = keyed(range(number, number + 1), size)
        yield MANY.format(queue_of(number)), body


async def _ignore(_: Exception) -> None:
    """Errors of a connection whose server was killed."""


def _server() -> str:
    """Path of the server: as installed for benchmarks, else the machine's."""
    path = install.program("nats-server")
    assert path is not None, "the system is available"
    return path
