"""The scenarios that are measured on every system, the systems, and the scenarios of growth.

| operation | timed work |
|---|---|
| produce | acknowledged publishes with a window in flight |
| single | one publish at a time, awaited |
| consume | reading back the messages of an untimed produce |
| ordered | the same in order by key: keyed messages, two consumers |
| pop | reading them back as consumers of a queue: each message leased and acknowledged |
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, assert_never

from bench.floor import Floor
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.own_tools import KafkaOwn, NatsOwn, RabbitmqOwn
from bench.peers.pysyncobj import Pysyncobj
from bench.peers.rabbitmq import Rabbitmq
from bench.peers.rocketmq import Rocketmq
from bench.system import Sample, System


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of work."""

    name: str
    """Name in result rows and for `--only`."""
    title: str
    """Title for people."""
    operation: Literal["produce", "single", "consume", "pop", "ordered"]
    size: int
    """Bytes of a message's body."""
    batch: int = 1
    """Messages in one batch, for systems that have batches."""
    window: int = 1
    """Batches in flight."""

    def run(self, system: System, seconds: float) -> Sample:
        """Measure the scenario on a running system."""
        size, batch, window = self.size, self.batch, self.window
        match self.operation:
            case "produce":
                return system.produce(size=size, batch=batch, window=window, seconds=seconds)
            case "single":
                return system.single(size=size, seconds=seconds)
            case "consume":
                return system.consume(size=size, batch=batch, window=window, seconds=seconds)
            case "pop":
                return system.pop(size=size, batch=batch, window=window, seconds=seconds)
            case "ordered":
                return system.ordered(size=size, batch=batch, window=window, seconds=seconds)
            case _:
                assert_never(self.operation)


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("produce-100B", "Produce, 100 B, batches of 100", "produce", 100, 100, 256),
        Scenario("single-200B", "One awaited send at a time, 200 B", "single", 200),
        Scenario("produce-10kB", "Produce, 10 kB messages", "produce", 10_000, 1, 256),
        Scenario("produce-1MiB", "Produce, 1 MiB messages", "produce", 1 << 20, 1, 16),
        Scenario("consume-100B", "Consume, 100 B", "consume", 100, 100, 256),
        Scenario("consume-10kB", "Consume, 10 kB messages", "consume", 10_000, 1, 256),
        Scenario("consume-1MiB", "Consume, 1 MiB messages", "consume", 1 << 20, 1, 16),
        Scenario("pop-100B", "Pop and acknowledge, 100 B, batches of 100", "pop", 100, 100, 256),
        Scenario("ordered-100B", "Ordered by key, 4,000 keys, 100 B", "ordered", 100, 100, 16),
    )
}


GROWTH = {
    "backlog": "A backlog of 20 million messages",
    "queues": "20,000 queues",
    "restart": "Restart with a log of 2 GiB",
    "slow": "Slow and dead followers and readers",
}
"""Name → title of the scenarios that only raftmq runs (`bench.growth`)."""


def _raftmq() -> System:
    # The benchmarks of other systems must work without raftmq's client, which this file imports.
    module = importlib.import_module("bench.raftmq_system")
    system: System = module.RaftmqSystem()
    return system


SYSTEMS: dict[str, Callable[[], System]] = {
    "floor": Floor,
    "raftmq": _raftmq,
    "kafka": Kafka,
    "kafka-fsync": lambda: Kafka(is_synced=True),
    "kafka-own": KafkaOwn,
    "rocketmq": Rocketmq,
    "rocketmq-fsync": lambda: Rocketmq(is_synced=True),
    "nats": Nats,
    "nats-fsync": lambda: Nats(is_synced=True),
    "nats-own": NatsOwn,
    "rabbitmq": Rabbitmq,
    "rabbitmq-own": RabbitmqOwn,
    "pysyncobj": Pysyncobj,
}


def why_unavailable(name: str) -> str | None:
    """None if the system can run here, else one line that says how to install it."""
    if name == "raftmq" and importlib.util.find_spec("bench.raftmq_system") is None:
        return "bench/raftmq_system.py is not there yet"
    return SYSTEMS[name]().available()
