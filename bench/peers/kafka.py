"""Apache Kafka: three nodes in KRaft, a topic of three replicas, confluent-kafka (librdkafka).

Two systems come out of this file:

| name | when a publish is acknowledged (`acks=all`, `min.insync.replicas=2`) |
|---|---|
| `kafka` | the default: all replicas in sync have it in their page caches |
| `kafka-fsync` | they have it on disk: `log.flush.interval.messages=1` syncs each append |

A batch of messages goes to one partition by one call, and only its last message has a callback. The
producer is idempotent, so a partition takes messages in order and without gaps: the last one's
acknowledgement is that of all before it.

A JVM is slow at first. Each measurement follows a warm-up: the same work on a topic of its own,
until its rate rises no more (`bench.warm_up`). Reading counts from the first delivery on, because
joining a group takes seconds that a consumer pays once.

Sources: kafka.apache.org, "Configuration"; Kafka's bin/kafka-server-start.sh and
bin/kafka-run-class.sh (options of the JVM); KIP-932 (share groups).
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.keys import KeyOrder, keyed
from bench.peers import install
from bench.peers.kafka_reads import (
    FETCH,
    PARTITIONS,
    START_SECONDS_MAX,
    own_queues,
    read,
    share,
)
from bench.processes import Clustered, files_max, free_ports, out_of_files, wait_for_port
from bench.system import (
    CREATE_SECONDS_MAX,
    PROBE_SECONDS_MAX,
    REST_SECONDS,
    SETTLE_SECONDS,
    Meter,
    Sample,
    Unsupported,
)
from bench.warm_up import READS, SENDS, SINGLES, described, until_steady

TOPIC, WARM, MANY = "bench", "warm", "many"
BATCH_BYTES = 1 << 20
"""Most bytes of a producer batch; with the 16 KiB of Java's default, bulk is far slower. The load
stays with a partition for as many bytes, as the client's own partitioner does until a batch leaves:
with a partition for each call in turn, the rate was half of that."""
LINGER_MS = 5.0
SHARE_LOCKS = 4000
"""Messages of a partition that a share group has out, at most; the default is 2,000. With six
partitions nearly as many as raftmq's consumer prefetches."""
IN_FLIGHT_KEYED_MAX = 50_000
CREATE_PARTITIONS = 1000
"""Partitions that are created at once, as a topic; the time left is looked at in between."""
WAIT_MS = 20_000
"""Time for which a consumer that waits asks; by default 500 ms."""
_CLUSTER_ID = "cmFmdG1xLWJlbmNoLTAwMQ"
_JVM = [
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
]


class Kafka(Clustered):
    """`System` of three brokers; with `is_synced` it is `kafka-fsync`."""

    def __init__(self, *, is_synced: bool = False) -> None:
        self._is_synced = is_synced
        self.name = "kafka-fsync" if is_synced else "kafka"
        self._bootstrap = ""
        self._warm_seconds = 0.0
        """Seconds of sends before the measurement."""

    @property
    def version(self) -> str:
        """Versions of the brokers and the client."""
        import confluent_kafka

        client, library = confluent_kafka.__version__, confluent_kafka.libversion()[0]
        return f"kafka {server_version()}, confluent-kafka {client}, librdkafka {library}"

    @property
    def settings(self) -> str:
        """Replication and durability."""
        sync = "log.flush.interval.messages=1" if self._is_synced else "default flush (page cache)"
        return (
            f"KRaft, {PARTITIONS} partitions, 3 replicas, acks=all, min.insync.replicas=2, {sync}, "
            "heaps of 1 GiB"
        )

    def available(self) -> str | None:
        """None, or what to install."""
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            return "confluent-kafka is not installed: uv sync --locked --group bench"
        return install.why_missing("kafka")

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """`window` batches of `batch` messages in flight."""
        self._warm_up_sends(size, batch, window)
        meter = self._publish(TOPIC, size, batch, window, seconds)
        return meter.sample(settings=self._sending())

    def fill(self, *, size: int, batch: int, window: int, messages: int, seconds: float) -> Sample:
        """As `produce`."""
        self._warm_up_sends(size, batch, window)
        meter = self._publish(TOPIC, size, batch, window, seconds, messages=messages)
        return meter.sample(settings=self._sending())

    def _warm_up_sends(self, size: int, batch: int, window: int) -> None:
        self._warm_seconds = until_steady(
            lambda seconds: self._publish(WARM, size, batch, window, seconds).sample(), SENDS
        )

    def _sending(self) -> str:
        settings = f"batch.size {BATCH_BYTES}, linger.ms {LINGER_MS:g}"
        return f"{settings}, {described(self._warm_seconds)}"

    def spread(self, *, queues: int, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Partitions of three replicas, in topics of `CREATE_PARTITIONS`."""
        began = time.perf_counter()
        made = self._create_many(queues)
        load = (size, batch, window)
        first = self._publish(
            MANY, *load, CREATE_SECONDS_MAX, messages=len(made) * batch, partitions=made
        )
        stored = first.sample().messages // batch
        figures = {"queues": len(made), "s to create": round(time.perf_counter() - began, 2)}
        # One producer for all: a new one needs seconds until its first message to
        # thousands of partitions is acknowledged.
        warmed = SENDS.most
        meter = self._publish(MANY, *load, seconds, warm_up_seconds=warmed, partitions=made)
        settings = f"partitions of 3 replicas, in topics of {CREATE_PARTITIONS}"
        if stored < len(made):
            settings += f", {stored} of them with a batch after {CREATE_SECONDS_MAX:g} s"
        return replace(
            meter.sample(settings=f"{settings}, {described(warmed)}"),
            figures=figures,
            note=out_of_files() if len(made) == files_max() < queues else "",
        )

    def waiting(self, *, consumers: int, size: int, probes: int) -> Sample:
        """One consumer of many partitions: 1,000 consumers of librdkafka are 7,000 threads."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        partitions = self._create_many(consumers)
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": "waiting",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": WAIT_MS,
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in partitions])
        producer = self._producer(linger_ms=0.0)
        # A message to each, so that all are known to wait, and the brokers' code is compiled.
        for topic, number in partitions:
            producer.produce(topic, bytes(size), partition=number)
        greeted = {self._next(consumer) for _ in partitions}
        assert greeted == set(partitions), greeted ^ set(partitions)
        time.sleep(SETTLE_SECONDS)
        rest_began = time.perf_counter()
        time.sleep(REST_SECONDS)
        rest = (rest_began, time.perf_counter())
        meter = Meter(size=size, seconds=PROBE_SECONDS_MAX, messages_max=probes)
        while not meter.is_over():
            topic, number = random.choice(partitions)
            sent_at = time.perf_counter()
            producer.produce(topic, bytes(size), partition=number)
            assert self._next(consumer) == (topic, number)
            meter.on_ack(1, sent_at)
            producer.poll(0)
        producer.flush(START_SECONDS_MAX)
        consumer.close()
        text = f"one consumer of all partitions, fetch.wait.max.ms={WAIT_MS}"
        return replace(
            meter.sample(settings=text),
            figures={"consumers": len(partitions)},
            rest=rest,
        )

    def _next(self, consumer: Any) -> tuple[str, int]:
        """The partition of the next message."""
        message = consumer.poll(START_SECONDS_MAX)
        if message is None or message.error() is not None:
            raise RuntimeError(f"no message came: {message and message.error()}")
        return message.topic(), message.partition()

    def single(self, *, size: int, seconds: float) -> Sample:
        """One message in flight, sent at once."""
        # One message after the other calls the brokers' code too rarely to have it compiled.
        self._warm_up_sends(size, 100, 64)
        self._warm_seconds += until_steady(
            lambda slice_: self._send_one_by_one(WARM, size, slice_).sample(), SINGLES
        )
        settings = f"linger.ms 0, {described(self._warm_seconds)}"
        return self._send_one_by_one(TOPIC, size, seconds).sample(settings=settings)

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Read back by position; offsets are committed once a second."""
        warmed = _warm_up_reads(lambda slice_: read(self._bootstrap, WARM, size, slice_))
        meter = read(self._bootstrap, TOPIC, size, seconds)
        settings = f"assigned partitions, {described(self._warm_seconds, warmed)}"
        return meter.sample(until_last=True, settings=settings)

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """One member of a share group takes and acknowledges; the confirmed ones count."""
        warmed = _warm_up_reads(lambda slice_: share(self._bootstrap, WARM, size, slice_))
        meter = share(self._bootstrap, TOPIC, size, seconds)
        settings = (
            "share group, one consumer, implicit acknowledgement, commit_async each poll, "
            f"group.share.partition.max.record.locks={SHARE_LOCKS}, "
            "group.share.heartbeat.interval.ms=1000, "
            f"{described(self._warm_seconds, warmed)}"
        )
        return meter.sample(until_last=True, settings=settings)

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported("share groups keep no order; consumers of partitions: in-order-100B")

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Two members of a group read the partitions that the keys went to, and commit offsets."""
        filled: list[Sample] = []

        def fill(slice_: float) -> Sample:
            filled.append(self._fill_keyed(WARM, size, batch, slice_))
            return filled[-1]

        # The numbers of a key begin again with each slice: the warm-up is not checked.
        self._warm_seconds = until_steady(fill, SENDS)
        warm = sum(each.messages for each in filled)
        warmed = _warm_up_reads(
            lambda slice_: own_queues(self._bootstrap, WARM, warm, size, slice_, None)
        )
        stored = self._fill_keyed(TOPIC, size, batch, fill_seconds).messages
        meter = own_queues(self._bootstrap, TOPIC, stored, size, seconds, KeyOrder())
        settings = (
            "a group of 2 consumers, order by partition, offsets committed after each fetch of "
            f"{FETCH:,} at most, {described(self._warm_seconds, warmed)}"
        )
        return meter.sample(until_last=True, settings=settings)

    def leader_pid(self) -> int:
        """The broker that leads partition 0."""
        admin = self._admin()
        found = admin.list_topics(TOPIC, timeout=10.0).topics[TOPIC].partitions[0]
        return self.server_pids[int(found.leader) - 1]

    def send_steadily(self, on_ack: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Send to partition 0; the client repeats by itself, and looks for leaders each second."""
        producer = self._producer(linger_ms=0.0, topic_metadata_refresh_interval_ms=1000)
        answers: list[Any] = []
        while not is_over():
            producer.produce(
                TOPIC, bytes(200), partition=0, on_delivery=lambda error, _: answers.append(error)
            )
            while not answers and not is_over():
                producer.poll(0.05)
            if answers and answers.pop() is None:
                on_ack()

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers, as clients take them."""
        return self._bootstrap

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self._bootstrap})

    def _start(self) -> None:
        ports = free_ports(6)
        self._bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
        folder = self._cluster.folder
        (folder / "log4j2.properties").write_text(_LOG4J)
        nodes = [self._write_config(number, ports[:3], ports[3:]) for number in (1, 2, 3)]
        # A storage folder takes a cluster's id before a broker opens it.
        tool = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c")
        commands = [self._java(*install.SMALL_JVM, main=(*tool, str(each))) for each in nodes]
        children = [self._cluster.start(each, name="format", is_server=False) for each in commands]
        for child in children:
            if child.wait(START_SECONDS_MAX):
                raise RuntimeError(self._cluster.log_tail("format"))
        for number, config in enumerate(nodes, 1):
            command = self._java(*_JVM, main=("kafka.Kafka", str(config)))
            self._cluster.start(command, name=f"node{number}")
        for port in ports[:3]:
            wait_for_port(port, self._cluster, seconds_max=START_SECONDS_MAX)
        self._create_topics()

    def _java(self, *options: str, main: tuple[str, ...]) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._cluster.folder / 'log4j2.properties'}"
        return ["java", *options, log4j, "-cp", install.class_path("kafka"), *main]

    def _write_config(self, number: int, ports: list[int], controllers: list[int]) -> Path:
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        plain = f"PLAINTEXT://127.0.0.1:{ports[number - 1]}"
        path = self._cluster.folder / f"node{number}.properties"
        path.write_text(
            _CONFIG.format(
                number=number,
                voters=voters,
                plain=plain,
                controller=f"CONTROLLER://127.0.0.1:{controllers[number - 1]}",
                folder=self._cluster.folder / f"data{number}",
                locks=SHARE_LOCKS,
            )
            + ("log.flush.interval.messages=1\n" if self._is_synced else "")
        )
        return path

    def _create_topics(self) -> None:
        """Create both topics; return when three brokers are members and all replicas in sync."""
        from confluent_kafka.admin import NewTopic

        admin = self._admin()
        deadline = time.monotonic() + START_SECONDS_MAX
        is_created = False
        while True:
            found = admin.list_topics(timeout=START_SECONDS_MAX)
            if len(found.brokers) == 3 and not is_created:
                made = admin.create_topics([NewTopic(n, PARTITIONS, 3) for n in (TOPIC, WARM)])
                for future in made.values():
                    future.result()
                is_created = True
            topics = {
                name: found.topics[name].partitions
                for name in (TOPIC, WARM)
                if name in found.topics
            }
            members = [len(part.isrs) for parts in topics.values() for part in parts.values()]
            if members == [3] * (2 * PARTITIONS):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(found.brokers)} brokers, replicas in sync: {members}")
            time.sleep(0.2)

    def _create_many(self, count: int) -> list[tuple[str, int]]:
        """Create partitions, in topics named after `MANY`, until there are `count` or the time is
        over; returns them when all replicas are in sync. Each is an open file of each broker, and a
        broker that may not open one more ends."""
        from confluent_kafka.admin import NewTopic

        admin = self._admin()
        until = time.monotonic() + CREATE_SECONDS_MAX
        made: list[tuple[str, int]] = []
        reachable = min(count, files_max())
        while len(made) < reachable and time.monotonic() < until:
            topic = f"{MANY}{len(made)}"
            partitions = min(CREATE_PARTITIONS, reachable - len(made))
            for future in admin.create_topics([NewTopic(topic, partitions, 3)]).values():
                future.result()
            while True:
                found = admin.list_topics(topic, timeout=START_SECONDS_MAX).topics[topic].partitions
                if [len(each.isrs) for each in found.values()] == [3] * partitions:
                    break
                time.sleep(0.1)
            made += [(topic, number) for number in range(partitions)]
        return made

    def _producer(self, *, linger_ms: float, **more: float) -> Any:
        from confluent_kafka import Producer

        return Producer(
            {
                **{name.replace("_", "."): value for name, value in more.items()},
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "batch.size": BATCH_BYTES,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "message.max.bytes": 4 << 20,
            }
        )

    def _publish(
        self,
        topic: str,
        size: int,
        batch: int,
        window: int,
        seconds: float,
        *,
        warm_up_seconds: float | None = None,
        messages: int | None = None,
        partitions: Sequence[tuple[str, int]] = (),
    ) -> Meter:
        """Publish for `seconds`, or until `messages`; a batch to each of `partitions` in turn, by
        default `BATCH_BYTES` to each of `topic`."""
        producer = self._producer(linger_ms=LINGER_MS)
        producer.list_topics(timeout=30.0)
        stay = max(1, BATCH_BYTES // (batch * size))
        own = [(topic, number) for number in range(PARTITIONS) for _ in range(stay)]
        turns = itertools.cycle(partitions or own)
        meter = Meter(
            size=size, seconds=seconds, warm_up_seconds=warm_up_seconds, messages_max=messages
        )
        body = os.urandom(size)
        plain: dict[str, Any] = {"value": body}
        in_flight = 0

        def callback(sent_at: float) -> Callable[[Any, Any], None]:
            def on_delivery(error: Any, _: Any) -> None:
                nonlocal in_flight
                if error is not None:
                    raise RuntimeError(str(error))
                in_flight -= 1
                meter.on_ack(batch, sent_at)

            return on_delivery

        while not meter.is_over():
            while in_flight < window:
                made = [plain] * (batch - 1)
                made.append({"value": body, "callback": callback(time.perf_counter())})
                topic, partition = next(turns)
                taken = producer.produce_batch(topic, made, partition=partition)
                if taken != batch:
                    raise RuntimeError(f"the client took {taken} of {batch} messages")
                in_flight += 1
            producer.poll(0.1)
        producer.flush(30.0)
        return meter

    def _send_one_by_one(self, topic: str, size: int, seconds: float) -> Meter:
        producer = self._producer(linger_ms=0.0)
        body = os.urandom(size)
        meter = Meter(size=size, seconds=seconds)
        answers: list[Any] = []
        while not meter.is_over():
            sent_at = time.perf_counter()
            producer.produce(topic, body, on_delivery=lambda error, _: answers.append(error))
            while not answers:
                producer.poll(1.0)
            if (error := answers.pop()) is not None:
                raise RuntimeError(str(error))
            meter.on_ack(1, sent_at)
        return meter

    def _fill_keyed(self, topic: str, size: int, batch: int, seconds: float) -> Sample:
        """Send keyed messages for `seconds`; returns when all are acknowledged."""
        producer = self._producer(linger_ms=LINGER_MS)
        sent = 0
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            keys, bodies = keyed(range(sent, sent + batch), size)
            messages = [{"key": k, "value": v} for k, v in zip(keys, bodies, strict=True)]
            sent += producer.produce_batch(topic, messages)
            if len(producer) > IN_FLIGHT_KEYED_MAX:
                producer.poll(0.01)
        if producer.flush(30.0):
            raise RuntimeError("keyed messages were not acknowledged within 30 s")
        return Sample(sent, size, time.perf_counter() - began, None, None, began)


def _warm_up_reads(read: Callable[[float], Meter]) -> float:
    return until_steady(lambda seconds: read(seconds).sample(until_last=True), READS)


def server_version() -> str:
    """Version of the brokers' jar."""
    path = next((install.FOLDER / "kafka" / "jars").glob("kafka_2.13-*.jar"))
    return path.stem.rpartition("-")[2]


_CONFIG = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners={plain},{controller}
advertised.listeners={plain}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}
auto.create.topics.enable=false
default.replication.factor=3
min.insync.replicas=2
# Messages of 1 MiB are above the default.
message.max.bytes=4194304
replica.fetch.max.bytes=4194304
offsets.topic.replication.factor=3
offsets.topic.num.partitions=6
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
share.coordinator.state.topic.num.partitions=6
group.initial.rebalance.delay.ms=0
# A member of a share group hears of its partitions by its second heartbeat, by default after 5 s.
group.share.min.heartbeat.interval.ms=1000
group.share.heartbeat.interval.ms=1000
group.share.partition.max.record.locks={locks}
"""

_LOG4J = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1} %m%n
"""
