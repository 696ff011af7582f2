"""Apache Kafka: three nodes in KRaft, a topic of three replicas, confluent-kafka (librdkafka).

Two systems come out of this file:

| name | when a publish is acknowledged (`acks=all`, `min.insync.replicas=2`) |
|---|---|
| `kafka` | the default: all replicas in sync have it in their page caches |
| `kafka-fsync` | they have it on disk: `log.flush.interval.messages=1` syncs each append |

A batch of messages goes to one partition by one call, and only its last message has a callback. The
producer is idempotent, so a partition takes messages in order and without gaps: the last one's
acknowledgement is that of all before it.

A JVM is slow at first. Each measurement follows a warm-up: the same work on a topic of its own.
Reading counts from the first delivery on, because joining a group takes seconds that a consumer
pays once.

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
from bench.processes import Clustered, files_max, free_ports, out_of_files, wait_for_port
from bench.system import (
    CREATE_SECONDS_MAX,
    PROBE_SECONDS_MAX,
    REST_SECONDS,
    SETTLE_SECONDS,
    Meter,
    Sample,
)

PARTITIONS = 6
TOPIC, WARM, MANY = "bench", "warm", "many"
WARM_UP_SECONDS, WARM_UP_READ_SECONDS = 8.0, 5.0
"""Time of sending and of reading before a measurement. On two busy cores the rates of sending
doubled within 8 s, those of reading within 4 s, and then stayed."""
START_SECONDS_MAX = 120.0
BATCH_BYTES = 256 << 10
"""Most bytes of a producer batch; with the 16 KiB of Java's default, bulk is far slower."""
LINGER_MS = 5.0
FETCH = 10_000
POLL_SECONDS = 0.2
IN_FLIGHT_KEYED_MAX = 50_000
CREATE_PARTITIONS = 1000
"""Partitions that are created at once, as a topic; the time left is looked at in between."""
WAIT_MS = 20_000
"""Time for which a consumer that waits asks; by default 500 ms."""
EMPTY_POLLS_MAX = 10
"""Empty answers in a row after which a share group has nothing left to read."""
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
            f"heaps of 1 GiB, before it {WARM_UP_SECONDS:g} s of sends, and "
            f"{WARM_UP_READ_SECONDS:g} s of reads if it reads"
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
        self._publish(WARM, size, batch, window, WARM_UP_SECONDS)
        meter = self._publish(TOPIC, size, batch, window, seconds)
        return meter.sample(settings=f"batch.size {BATCH_BYTES}, linger.ms {LINGER_MS:g}")

    def fill(self, *, size: int, batch: int, window: int, messages: int, seconds: float) -> Sample:
        """As `produce`."""
        self._publish(WARM, size, batch, window, WARM_UP_SECONDS)
        meter = self._publish(TOPIC, size, batch, window, seconds, messages=messages)
        return meter.sample(settings=f"batch.size {BATCH_BYTES}, linger.ms {LINGER_MS:g}")

    def spread(self, *, queues: int, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Partitions of three replicas, in topics of `CREATE_PARTITIONS`."""
        began = time.perf_counter()
        made = self._create_many(queues)
        load = (size, batch, window)
        first = self._publish(
            MANY, *load, CREATE_SECONDS_MAX, messages=len(made) * batch, partitions=made
        )
        made = made[: first.sample().messages // batch]
        figures = {"queues": len(made), "s to create": round(time.perf_counter() - began, 2)}
        self._publish(MANY, *load, WARM_UP_SECONDS, partitions=made)
        meter = self._publish(MANY, *load, seconds, partitions=made)
        settings = f"partitions of 3 replicas, in topics of {CREATE_PARTITIONS}"
        return replace(
            meter.sample(settings=settings),
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
        self._publish(WARM, size, 100, 64, WARM_UP_SECONDS)
        self._send_one_by_one(WARM, size, WARM_UP_SECONDS / 5)
        return self._send_one_by_one(TOPIC, size, seconds).sample(settings="linger.ms 0")

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Read back by position; offsets are committed once a second."""
        self._read(WARM, size, WARM_UP_READ_SECONDS)
        meter = self._read(TOPIC, size, seconds)
        return meter.sample(until_last=True, settings="assigned partitions")

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """One member of a share group takes and acknowledges; the confirmed ones count."""
        self._share(WARM, size, WARM_UP_READ_SECONDS)
        meter = self._share(TOPIC, size, seconds)
        settings = (
            "share group, one consumer, implicit acknowledgement, commit_async each poll, "
            "group.share.heartbeat.interval.ms=1000"
        )
        return meter.sample(until_last=True, settings=settings)

    def ordered(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Two members of a group read the partitions that the keys went to, and commit offsets."""
        warm = self._fill_keyed(WARM, size, batch, WARM_UP_SECONDS)
        self._share_keys(WARM, warm, size, WARM_UP_READ_SECONDS)
        stored = self._fill_keyed(TOPIC, size, batch, seconds)
        meter = self._share_keys(TOPIC, stored, size, seconds)
        settings = "a group of 2 consumers, order by partition, offsets committed after each poll"
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
        messages: int | None = None,
        partitions: Sequence[tuple[str, int]] = (),
    ) -> Meter:
        """Publish for `seconds`, or until `messages`; a batch to each partition in turn, by default
        to those of `topic`."""
        producer = self._producer(linger_ms=LINGER_MS)
        producer.list_topics(timeout=30.0)
        turns = itertools.cycle(partitions or [(topic, number) for number in range(PARTITIONS)])
        meter = Meter(size=size, seconds=seconds, messages_max=messages)
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

    def _read(self, topic: str, size: int, seconds: float) -> Meter:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"reader-{topic}",
                "auto.commit.interval.ms": 1000,
                "queued.max.messages.kbytes": 128 << 10,
                "queued.min.messages": 1_000_000,
                "fetch.message.max.bytes": 4 << 20,
                "fetch.max.bytes": 64 << 20,
            }
        )
        parts = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(each, timeout=10.0)[1] for each in parts)
        consumer.assign(parts)
        fetch = max(1, min(FETCH, (4 << 20) // size))
        meter: Meter | None = None
        while left > 0 and not (meter and meter.is_over()):
            messages = consumer.consume(fetch, POLL_SECONDS)
            assert all(len(message.value()) == size for message in messages)
            left -= len(messages)
            if meter:
                meter.on_delivery(len(messages))
            elif messages:
                meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
        consumer.close()
        assert meter is not None
        return meter

    def _share(self, topic: str, size: int, seconds: float) -> Meter:
        from confluent_kafka import ShareConsumer

        group = f"share-{topic}"
        self._read_share_from_start(group)
        meter: Meter | None = None

        def on_commit(offsets: dict[Any, set[int]], error: Any) -> None:
            if error is not None:
                raise RuntimeError(f"an acknowledgement failed: {error}")
            if meter is not None:
                meter.on_delivery(sum(map(len, offsets.values())))

        consumer = ShareConsumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        consumer.set_acknowledgement_commit_callback(on_commit)
        consumer.subscribe([topic])
        empty, joining_until = 0, time.monotonic() + START_SECONDS_MAX
        while meter is None or (empty < EMPTY_POLLS_MAX and not meter.is_over()):
            messages = consumer.poll(POLL_SECONDS)
            empty = 0 if len(messages) else empty + 1
            if meter is None and len(messages):
                meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
            elif meter is None and time.monotonic() > joining_until:
                raise RuntimeError("the share group got nothing")
            assert all(len(message.value()) == size for message in messages)
            if len(messages):
                consumer.commit_async()
        consumer.commit_sync(10.0)
        consumer.close()
        return meter

    def _fill_keyed(self, topic: str, size: int, batch: int, seconds: float) -> int:
        """Send keyed messages for `seconds`; returns their number, when all are acknowledged."""
        producer = self._producer(linger_ms=LINGER_MS)
        sent = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            keys, bodies = keyed(range(sent, sent + batch), size)
            messages = [{"key": k, "value": v} for k, v in zip(keys, bodies, strict=True)]
            sent += producer.produce_batch(topic, messages)
            if len(producer) > IN_FLIGHT_KEYED_MAX:
                producer.poll(0.01)
        if producer.flush(30.0):
            raise RuntimeError("keyed messages were not acknowledged within 30 s")
        return sent

    def _share_keys(self, topic: str, stored: int, size: int, seconds: float) -> Meter:
        from confluent_kafka import Consumer

        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": f"ordered-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumers = [Consumer(settings), Consumer(settings)]
        for each in consumers:
            each.subscribe([topic])
        order, taken = KeyOrder(), 0
        meter: Meter | None = None
        joining_until = time.monotonic() + START_SECONDS_MAX
        while taken < stored and not (meter and meter.is_over()):
            for consumer in consumers:
                # One by one until both have partitions: else the first takes all that is stored.
                messages = consumer.consume(FETCH if meter else 1, POLL_SECONDS / 10)
                order.check(message.value() for message in messages)
                taken += len(messages)
                if messages:
                    consumer.commit(asynchronous=True)
                if meter:
                    meter.on_delivery(len(messages))
                elif all(each.assignment() for each in consumers):
                    meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
                elif time.monotonic() > joining_until:
                    raise RuntimeError("the two consumers did not share the partitions")
        for each in consumers:
            each.close()
        assert meter is not None
        return meter

    def _read_share_from_start(self, group: str) -> None:
        from confluent_kafka.admin import (
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
        admin = self._admin()
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()


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
