"""RabbitMQ: three nodes on one machine, a quorum queue with three members, pika.

A quorum queue confirms a publish when a majority of its members has synced its Raft log
(`wal_sync_method = datasync`, its default), which is the promise of raftmq and the floor, too.
RabbitMQ has no batches: `window` batches of `batch` messages are `window * batch` single messages
in flight, up to a bound. Deliveries are acknowledged with the `multiple` flag, the cheapest way in
AMQP.

Three nodes run in one folder, under any user: the real script starts them, not the distribution's
wrapper (which changes user and folder); every RABBITMQ_* path points into the folder; the port
mapper `epmd` is our child process on a loopback port of its own, so that no system-wide one is used
or left behind; the nodes find one another through `classic_config`.

Sources: rabbitmq.com, "Clustering Guide: a cluster on a single machine", "Quorum Queues",
"Cluster Formation and Peer Discovery".
"""

import contextlib
import functools
import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.keys import QUEUES, KeyOrder, keyed, queue_of
from bench.peers.install import RABBITMQ_SCRIPTS
from bench.processes import Clustered, first_line, free_ports, output_of, wait_for_port
from bench.system import (
    CREATE_SECONDS_MAX,
    PROBE_SECONDS_MAX,
    REST_SECONDS,
    SETTLE_SECONDS,
    Meter,
    Sample,
)

if TYPE_CHECKING:
    from pika import ConnectionParameters, SelectConnection
    from pika.channel import Channel
    from pika.frame import Method
    from pika.spec import Basic, BasicProperties

INSTALL = ".venv/bin/python -m bench.peers.install rabbitmq"
IN_FLIGHT_MAX = 2000
PREFETCH = 2000
QUEUE, ORDERED = "bench", "ordered"
START_SECONDS_MAX = 90.0
_NODES = [f"raftmq-bench{number}@localhost" for number in range(3)]


class Rabbitmq(Clustered):
    """`System` of three RabbitMQ nodes."""

    name = "rabbitmq"
    settings = (
        "quorum queue, 3 members, default WAL (fdatasync on a majority before the confirm), "
        "schedulers unbound"
    )

    @property
    def version(self) -> str:
        """Versions of the server and the client."""
        import pika

        server = _package_version()
        return f"rabbitmq-server {server}, pika {pika.__version__}"

    def available(self) -> str | None:
        """None, or what to install."""
        if not (RABBITMQ_SCRIPTS / "rabbitmq-server").exists() or shutil.which("epmd") is None:
            return f"rabbitmq-server is not installed: {INSTALL}"
        try:
            import pika  # noqa: F401
        except ImportError:
            return "pika is not installed: uv sync --locked --group bench"
        return None

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """`window * batch` single publishes awaiting their confirm, up to a bound."""
        in_flight = min(window * batch, IN_FLIGHT_MAX)
        settings = f"single messages, {in_flight} in flight" if batch > 1 else ""
        return self._publish(size, in_flight, seconds).sample(settings=settings)

    def fill(self, *, size: int, batch: int, window: int, messages: int, seconds: float) -> Sample:
        """As `produce`."""
        in_flight = min(window * batch, IN_FLIGHT_MAX)
        meter = self._publish(size, in_flight, seconds, messages=messages)
        return meter.sample(settings=f"single messages, {in_flight} in flight")

    def spread(self, *, queues: int, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Quorum queues, declared at all three nodes at once."""
        names = [f"many{number}" for number in range(queues)]
        began = time.perf_counter()
        made = self._declare_many(names)
        in_flight = min(window * batch, IN_FLIGHT_MAX)
        first = self._publish(size, in_flight, CREATE_SECONDS_MAX, messages=len(made), queues=made)
        made = made[: first.sample().messages]
        figures = {"queues": len(made), "s to create": round(time.perf_counter() - began, 2)}
        meter = self._publish(size, in_flight, seconds, queues=made, run=batch)
        settings = f"declared on a connection to each node; single messages, {in_flight} in flight"
        return replace(
            meter.sample(settings=settings),
            figures=figures,
        )

    def waiting(self, *, consumers: int, size: int, probes: int) -> Sample:
        """Consumers of one channel, each of a quorum queue of its own."""
        queues = self._declare_many([f"many{number}" for number in range(consumers)])
        probing = _Probing(queues, os.urandom(size), probes)
        self._drive(probing.start)
        settings = "consumers of one channel, each of a quorum queue of its own, acknowledged"
        return replace(
            probing.meter.sample(settings=settings),
            figures={"consumers": len(queues)},
            rest=probing.rest,
        )

    def single(self, *, size: int, seconds: float) -> Sample:
        """One publish awaiting its confirm."""
        return self._publish(size, 1, seconds).sample()

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Take and acknowledge the messages."""
        prefetch = max(4, min(PREFETCH, (32 << 20) // size))
        meter = _reading(size, seconds)
        self._drive(functools.partial(_Reader, meter, _Left(self._stored), prefetch))
        settings = f"prefetch {prefetch}, acknowledged every {prefetch // 4}"
        return meter.sample(until_last=True, settings=settings)

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """As `consume`: RabbitMQ acknowledges what it delivers."""
        return self.consume(size=size, batch=batch, window=window, seconds=seconds)

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """As `consume`, of a queue with a single active consumer: a second one would stand by."""
        self._declare(ORDERED, **{"x-single-active-consumer": True})
        filling = Meter(size=size, seconds=fill_seconds, warm_up_seconds=0.0)
        filled = _KeyedWindow(filling, bytes(size), min(window * batch, IN_FLIGHT_MAX), (ORDERED,))
        self._drive(filled.start)
        meter, left, order = _reading(size, seconds), _Left(filled.published), KeyOrder()
        self._drive(lambda channel: _Reader(meter, left, PREFETCH, channel, (ORDERED,), order))
        settings = f"a single active consumer, order by queue, acknowledged every {PREFETCH // 4}"
        return meter.sample(until_last=True, settings=settings)

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Six queues with a single active consumer each, two at each node; two channels consume
        three of them each."""
        queues = [f"{ORDERED}{number}" for number in range(QUEUES)]
        for number, queue in enumerate(queues):
            until = time.monotonic() + START_SECONDS_MAX
            more = {"x-single-active-consumer": True}
            self._declare_at(self._ports[number % 3], [queue], until, more)
        filling = Meter(size=size, seconds=fill_seconds, warm_up_seconds=0.0)
        filled = _KeyedWindow(filling, bytes(size), min(window * batch, IN_FLIGHT_MAX), queues)
        self._drive(filled.start)
        meter, left, order = _reading(size, seconds), _Left(filled.published), KeyOrder()

        def start(channel: "Channel") -> None:
            _Reader(meter, left, PREFETCH, channel, queues[0::2], order)
            channel.connection.channel(
                on_open_callback=lambda other: _Reader(
                    meter, left, PREFETCH, other, queues[1::2], order
                )
            )

        self._drive(start)
        settings = (
            f"2 channels of 3 queues with a single active consumer each, prefetch {PREFETCH} of a "
            f"queue, acknowledged every {PREFETCH // 4}"
        )
        return meter.sample(until_last=True, settings=settings)

    def leader_pid(self) -> int:
        """The node that the queue was declared on, which leads it."""
        # The first process is the port mapper.
        return self.server_pids[1]

    def send_steadily(self, on_ack: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Publish with confirms, through the next node when a connection breaks."""
        import pika.exceptions

        for port in itertools.cycle(self._ports):
            parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
            with contextlib.suppress(pika.exceptions.AMQPError):
                with pika.BlockingConnection(parameters) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    while not is_over():
                        channel.basic_publish(
                            "", QUEUE, bytes(200), pika.BasicProperties(delivery_mode=2)
                        )
                        on_ack()
                return

    def _publish(
        self,
        size: int,
        in_flight: int,
        seconds: float,
        *,
        messages: int | None = None,
        queues: Sequence[str] = (QUEUE,),
        run: int = 1,
    ) -> Meter:
        """Publish for `seconds`, or until `messages`; `run` messages to each queue in turn."""
        meter = Meter(size=size, seconds=seconds, messages_max=messages)
        window = _Window(meter, os.urandom(size), in_flight, queues, run)
        self._drive(window.start)
        self._stored = window.published
        return meter

    def _start(self) -> None:
        ports = free_ports(7)
        self._epmd_port, distribution, amqp = ports[0], ports[1:4], ports[4:]
        self._ports, self._port = amqp, amqp[0]
        (self._cluster.folder / ".erlang.cookie").write_text("RAFTMQBENCH")
        (self._cluster.folder / ".erlang.cookie").chmod(0o400)
        self._cluster.start(
            ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)], name="epmd"
        )
        wait_for_port(self._epmd_port, self._cluster)
        for number in range(3):
            environment = self._environment(number, distribution[number], amqp[number])
            command = [str(RABBITMQ_SCRIPTS / "rabbitmq-server"), "-noinput"]
            self._cluster.start(command, name=f"node{number}", environment=environment)
        for port in amqp:
            wait_for_port(port, self._cluster, seconds_max=START_SECONDS_MAX)
        self._wait_for_members()
        self._declare()

    def _environment(self, number: int, distribution_port: int, amqp_port: int) -> dict[str, str]:
        folder = self._cluster.folder / f"node{number}"
        folder.mkdir()
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{i + 1} = {node}\n"
            for i, node in enumerate(_NODES)
        )
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{amqp_port}\n"
            f"cluster_formation.peer_discovery_backend = classic_config\n{nodes}"
        )
        (folder / "enabled_plugins").write_text("[].\n")
        return self._client_environment() | {
            "RABBITMQ_ALLOW_INPUT": "true",  # the script becomes the node, instead of its parent
            "RABBITMQ_NODENAME": _NODES[number],
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # The schedulers of three nodes, bound to the same cores, would wait for each other.
            "RABBITMQ_SCHEDULER_BIND_TYPE": "u",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _LOOPBACK,
        }

    def _client_environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self._cluster.folder),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
        }

    def _wait_for_members(self) -> None:
        environment = self._client_environment() | {"RABBITMQ_CTL_ERL_ARGS": _LOOPBACK}
        question = "length(rabbit_nodes:all_running())."
        command = [str(RABBITMQ_SCRIPTS / "rabbitmqctl"), "-q", "-n", _NODES[0], "eval", question]
        deadline = time.monotonic() + START_SECONDS_MAX
        while (answer := output_of(command, environment=environment).strip()) != "3":
            self._cluster.check_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes did not form a cluster: {answer}")
            time.sleep(0.5)

    def _declare(self, queue: str = QUEUE, **more: object) -> None:
        self._declare_at(self._port, [queue], time.monotonic() + START_SECONDS_MAX, more)

    def _declare_at(
        self, port: int, queues: Sequence[str], until: float, more: Mapping[str, object]
    ) -> list[str]:
        """Declare quorum queues, which the node leads; returns those made by `until`."""
        import pika

        made = []
        with pika.BlockingConnection(self._parameters(port)) as connection:
            channel = connection.channel()
            for queue in itertools.takewhile(lambda _: time.monotonic() < until, queues):
                channel.queue_declare(
                    queue,
                    durable=True,
                    arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": 3, **more},
                )
                made.append(queue)
        return made

    def _declare_many(self, queues: Sequence[str]) -> list[str]:
        """Declare a third of the queues at each node; returns those made in the given time."""
        until = time.monotonic() + CREATE_SECONDS_MAX
        made: dict[int, list[str]] = {}

        def declare(node: int) -> None:
            made[node] = self._declare_at(self._ports[node], queues[node::3], until, {})

        threads = [threading.Thread(target=declare, args=(node,)) for node in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if len(made) < 3:
            raise RuntimeError("a node did not declare its queues")
        # Neighbours have other nodes, so that publishes to a few of them keep all nodes busy.
        turns = itertools.zip_longest(*(made[node] for node in range(3)))
        return [queue for turn in turns for queue in turn if queue is not None]

    def _parameters(self, port: int | None = None) -> "ConnectionParameters":
        import pika

        return pika.ConnectionParameters("127.0.0.1", port or self._port, heartbeat=0)

    def _drive(self, start: "Callable[[Channel], object]") -> None:
        """Run a connection's loop; `start` gets the open channel, and callbacks stop the loop."""
        import pika

        is_closing = False

        def on_end(connection: "SelectConnection", error: BaseException) -> None:
            if not is_closing:
                raise RuntimeError(f"the connection to RabbitMQ ended: {error!r}")
            connection.ioloop.stop()

        connection = pika.SelectConnection(
            self._parameters(),
            on_open_callback=lambda opened: opened.channel(on_open_callback=start),
            on_open_error_callback=on_end,
            on_close_callback=on_end,
        )
        connection.ioloop.start()
        is_closing = True
        connection.close()
        connection.ioloop.start()


class _Window:
    """Keeps `in_flight` publishes unconfirmed, `run` to each queue in turn, then waits for the rest
    and stops the loop."""

    _channel: "Channel"

    def __init__(
        self, meter: Meter, body: bytes, in_flight: int, queues: Sequence[str], run: int = 1
    ) -> None:
        import pika

        self._meter = meter
        self._body = body
        self._names = queues
        self._queues = itertools.cycle(each for each in queues for _ in range(run))
        self._in_flight = in_flight
        self._persistent = pika.BasicProperties(delivery_mode=2)
        self._sent_at: dict[int, float] = {}
        self._oldest = 1
        self.published = 0

    def start(self, channel: "Channel") -> None:
        """Begin on a channel that has just opened."""
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._publish())

    def _publish(self) -> None:
        while len(self._sent_at) < self._in_flight and not self._meter.is_over():
            self.published += 1
            self._sent_at[self.published] = time.perf_counter()
            self._channel.basic_publish("", next(self._queues), self._body, self._persistent)

    def _on_confirm(self, frame: "Method") -> None:
        confirm = frame.method
        if confirm.NAME != "Basic.Ack":
            raise RuntimeError(f"RabbitMQ refused a publish: {confirm}")
        tag = confirm.delivery_tag
        for each in range(self._oldest, tag + 1) if confirm.multiple else (tag,):
            sent_at = self._sent_at.pop(each, None)
            if sent_at is not None:
                self._meter.on_ack(1, sent_at)
        while self._oldest <= self.published and self._oldest not in self._sent_at:
            self._oldest += 1
        self._publish()
        if not self._sent_at:
            self._channel.connection.ioloop.stop()


class _KeyedWindow(_Window):
    """Publishes numbered messages, in ascending order."""

    def _publish(self) -> None:
        while len(self._sent_at) < self._in_flight and not self._meter.is_over():
            self.published += 1
            self._sent_at[self.published] = time.perf_counter()
            _, (body,) = keyed(range(self.published, self.published + 1), len(self._body))
            queue = self._names[queue_of(self.published) % len(self._names)]
            self._channel.basic_publish("", queue, body, self._persistent)


@dataclass(slots=True)
class _Left:
    """Messages that a connection has still to read."""

    count: int


class _Reader:
    """Consumes until no messages are left, acknowledging in groups, then stops the loop."""

    def __init__(
        self,
        meter: Meter,
        left: _Left,
        prefetch: int,
        channel: "Channel",
        queues: Sequence[str] = (QUEUE,),
        order: KeyOrder | None = None,
    ) -> None:
        self._meter = meter
        self._order = order
        self._left = left
        self._group = prefetch // 4
        self._unacked = 0
        self._channel = channel
        meter.restart()
        channel.basic_qos(prefetch_count=prefetch, callback=lambda _: self._consume(iter(queues)))

    def _consume(self, queues: Iterator[str]) -> None:
        # One after the other: a channel awaits the answer to each.
        if (queue := next(queues, None)) is not None:
            self._channel.basic_consume(
                queue, self._on_message, callback=lambda _: self._consume(queues)
            )

    def _on_message(
        self, channel: "Channel", method: "Basic.Deliver", _: "BasicProperties", body: bytes
    ) -> None:
        if self._order is not None:
            self._order.check((body,))
        self._left.count -= 1
        self._unacked += 1
        if self._unacked < self._group and self._left.count:
            return
        channel.basic_ack(method.delivery_tag, multiple=True)
        self._meter.on_delivery(self._unacked)
        self._unacked = 0
        if self._left.count == 0 or self._meter.is_over():
            channel.connection.ioloop.stop()


class _Probing:
    """Opens a consumer of each queue, rests, then sends to one of them at a time."""

    _channel: "Channel"
    meter: Meter
    rest: Sequence[float]
    """Begin and end of the rest."""

    def __init__(self, queues: Sequence[str], body: bytes, probes: int) -> None:
        import pika

        self._queues = queues
        self._body = body
        self._probes = probes
        self._persistent = pika.BasicProperties(delivery_mode=2)

    def start(self, channel: "Channel") -> None:
        """Begin on a channel that has just opened."""
        self._channel = channel
        self._consume(iter(self._queues))

    def _consume(self, queues: Iterator[str]) -> None:
        # One after the other: a channel awaits the answer to each.
        if (queue := next(queues, None)) is not None:
            self._channel.basic_consume(
                queue, self._on_message, callback=lambda _: self._consume(queues)
            )
            return
        self._channel.connection.ioloop.call_later(SETTLE_SECONDS, self._rest)

    def _rest(self) -> None:
        began = time.perf_counter()

        def end() -> None:
            self.rest = (began, time.perf_counter())
            self.meter = Meter(
                size=len(self._body), seconds=PROBE_SECONDS_MAX, messages_max=self._probes
            )
            self._send()

        self._channel.connection.ioloop.call_later(REST_SECONDS, end)

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._channel.basic_publish("", random.choice(self._queues), self._body, self._persistent)

    def _on_message(
        self, channel: "Channel", method: "Basic.Deliver", _: "BasicProperties", body: bytes
    ) -> None:
        self.meter.on_ack(1, self._sent_at)
        channel.basic_ack(method.delivery_tag)
        if self.meter.is_over():
            channel.connection.ioloop.stop()
        else:
            self._send()


def _reading(size: int, seconds: float) -> Meter:
    return Meter(size=size, seconds=seconds, warm_up_seconds=0.0)


_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"


def _package_version() -> str:
    path = next(RABBITMQ_SCRIPTS.parent.glob("lib/rabbitmq_server-*"), None)
    return path.name.rpartition("-")[2] if path else first_line(["rabbitmqctl", "version"])
