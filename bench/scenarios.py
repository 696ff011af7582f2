"""The scenarios, the systems, which cells a run measures, and the scenarios of growth.

| operation | timed work |
|---|---|
| produce | acknowledged publishes with a window in flight |
| single | one publish at a time, awaited |
| consume | reading back the messages that produce stored, on the same cluster |
| pop | reading them back as consumers of a queue: each message leased and acknowledged |
| ordered | keyed messages, in order by key: two consumers, either of which may take a key |
| in_order | the same by queue: each queue belongs to one of two consumers, who commits offsets |
| waiting | a message to one of many consumers that wait, one at a time, from send to arrival |
| spread | acknowledged publishes, each batch to the next one of many queues |
| backlog | acknowledged publishes until all messages are stored, then reading from the first |

The last three grow: they want an amount (of consumers, queues, messages), and a row says the part
of it that the system reached within a limit of time.

A *cell* is one system in one scenario in one round, on a cluster of its own. A cell of consume
fills the log by the load of produce first, and gives the row of that produce as well: a run that
measures both has no cell of that produce.

Sends of a scenario last `times` the run's seconds: a log is read faster than it is filled, and a
read that is over in half a second measures how it begins.

A run leaves out cells that have no counterpart or would repeat another row:

| systems | left out | because |
|---|---|---|
| `-fsync` | operations that read | the setting decides when a write is on disk |
| `-own` | all rounds but the first, 10 kB | their rows tell whether our client was the limit |
| kafka, rocketmq | ordered | their order is by queue: `in_order` |
| `-own` | ordered, in_order | the tools have no such consumers |
| pysyncobj | all rounds but the first | no ratio of raftmq's refers to it |
| floor, pysyncobj, `-fsync`, `-own` | operations that grow | no queues, or the same servers again |
| all | operations that grow, in all rounds but the first | a cell takes up to two minutes |
"""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never, cast

from bench.counting.usage import cpu_seconds
from bench.floor import Floor
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.own_tools import NO_ORDER, KafkaOwn, NatsOwn, RabbitmqOwn
from bench.peers.pysyncobj import Pysyncobj
from bench.peers.rabbitmq import Rabbitmq
from bench.peers.rocketmq import Rocketmq
from bench.system import (
    CREATE_SECONDS_MAX,
    REST_SECONDS,
    SETTLE_SECONDS,
    Grows,
    Sample,
    System,
    rates_at_ends,
)

Operation = Literal[
    "produce", "single", "consume", "pop", "ordered", "in_order", "waiting", "spread", "backlog"
]
READS: frozenset[Operation] = frozenset({"consume", "pop", "ordered", "in_order"})
GROWING: frozenset[Operation] = frozenset({"waiting", "spread", "backlog"})
FILL_SECONDS_MAX = 90.0
"""Time in which a backlog is stored, at most."""
READ_BACK_SECONDS_MAX = 5.0
"""Time in which a backlog is read from its beginning, at most."""
PROBES = 300
"""Messages sent to consumers that wait."""
AT_REST, AT_REST_STEP_SECONDS, AT_REST_SECONDS_MAX = 0.5, 1.0, 30.0
"""Share of a processor below which servers are at rest in a step; time to get there, at most."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of work."""

    name: str
    """Name in result rows and for `--only`."""
    title: str
    """Title for people."""
    operation: Operation
    size: int
    """Bytes of a message's body."""
    batch: int = 1
    """Messages in one batch, for systems that have batches."""
    window: int = 1
    """Batches in flight."""
    fill: str = ""
    """Name of the scenario whose load fills the log, and whose row the same cell gives."""
    times: int = 1
    """Times of the run's seconds for which a load of sends runs, also one that fills a log."""
    amount: int = 0
    """Consumers, queues or messages that a growing operation wants."""
    expected_seconds: float = 0.0
    """Of a growing operation: its time beside the system's own, the mean of all systems."""

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the scenarios whose rows a cell gives, in the order of their measurement."""
        return (self.fill, self.name) if self.fill else (self.name,)

    @property
    def rounds_max(self) -> int:
        """Number of rounds, from the first on, that measure the scenario."""
        return 1 if self.operation in GROWING else 100

    def run(self, system: System, seconds: float, scale: float = 1.0) -> Iterator[Sample]:
        """Measure on a system that has just started: yields the sample of each of `rows`. `scale`
        shrinks the amount for a trial."""
        size, batch, window = self.size, self.batch, self.window
        sending = self.times * seconds
        match self.operation:
            case "produce":
                yield system.produce(size=size, batch=batch, window=window, seconds=sending)
            case "single":
                yield system.single(size=size, seconds=seconds)
            case "consume":
                yield system.produce(size=size, batch=batch, window=window, seconds=sending)
                yield system.consume(size=size, batch=batch, window=window, seconds=seconds)
            case "pop":
                system.produce(size=size, batch=batch, window=window, seconds=sending)
                yield system.pop(size=size, batch=batch, window=window, seconds=seconds)
            case "ordered":
                yield system.ordered(
                    size=size, batch=batch, window=window, fill_seconds=sending, seconds=seconds
                )
            case "in_order":
                yield system.in_order(
                    size=size, batch=batch, window=window, fill_seconds=sending, seconds=seconds
                )
            case "waiting" | "spread" | "backlog":
                # A cast: mypy cannot see which systems take part (`Entrant.scenarios`).
                yield self._grow(cast("Grows", system), seconds, max(1, int(self.amount * scale)))
            case _:
                assert_never(self.operation)

    def _grow(self, system: Grows, seconds: float, amount: int) -> Sample:
        size, batch, window = self.size, self.batch, self.window
        if self.operation == "waiting":
            waiting = system.waiting(consumers=amount, size=size, probes=PROBES)
            return _with_note(waiting, "consumers", amount)
        if self.operation == "spread":
            spread = system.spread(
                queues=amount, size=size, batch=batch, window=window, seconds=seconds
            )
            busy = wait_until_at_rest(system.server_pids)
            rest_began = time.perf_counter()
            time.sleep(REST_SECONDS)
            rested = replace(spread, rest=(rest_began, time.perf_counter()))
            noted = _with_note(rested, "queues", amount)
            return replace(noted, note="; ".join(filter(None, (noted.note, busy))))
        stored = system.fill(
            size=size, batch=batch, window=window, messages=amount, seconds=FILL_SECONDS_MAX
        )
        read = system.consume(size=size, batch=batch, window=window, seconds=READ_BACK_SECONDS_MAX)
        first, last = rates_at_ends(stored.counts)
        figures = {
            "messages": min(stored.messages, amount),
            "messages/s at first": first,
            "messages/s at last": last,
            "messages/s read": round(read.messages_per_s, 1),
        }
        missing = stored.messages < amount
        note = f"{FILL_SECONDS_MAX:g} s were over before the rest was stored" if missing else ""
        return replace(stored, figures=figures, note=note)


def wait_until_at_rest(
    pids: Sequence[int],
    *,
    cpu_seconds: Callable[[int], float] = cpu_seconds,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until the processes take less than `AT_REST` of a processor, for `AT_REST_SECONDS_MAX`
    at most; returns a note if they did not."""
    sleep(SETTLE_SECONDS)
    used = sum(map(cpu_seconds, pids))
    for _ in range(round(AT_REST_SECONDS_MAX / AT_REST_STEP_SECONDS)):
        sleep(AT_REST_STEP_SECONDS)
        before, used = used, sum(map(cpu_seconds, pids))
        if used - before < AT_REST * AT_REST_STEP_SECONDS:
            return ""
    return (
        f"not at rest: {AT_REST_SECONDS_MAX:g} s after the last message the servers still took "
        f"more than {100 * AT_REST:g} % of a processor"
    )


def _with_note(sample: Sample, unit: str, amount: int) -> Sample:
    """The sample with the usual reason why less was reached, unless it has another one."""
    missing = sample.figures[unit] < amount
    late = f"{CREATE_SECONDS_MAX:g} s were over before the rest was there" if missing else ""
    return replace(sample, note=sample.note or late)


SCENARIOS = {
    each.name: each
    for each in (
        Scenario(
            "produce-100B", "Produce, 100 B, batches of 100", "produce", 100, 100, 256, times=4
        ),
        Scenario("single-200B", "One awaited send at a time, 200 B", "single", 200),
        Scenario("produce-10kB", "Produce, 10 kB messages", "produce", 10_000, 1, 256),
        Scenario("produce-1MiB", "Produce, 1 MiB messages", "produce", 1 << 20, 1, 16),
        Scenario(
            "consume-100B", "Consume, 100 B", "consume", 100, 100, 256, "produce-100B", times=4
        ),
        Scenario(
            "consume-10kB", "Consume, 10 kB messages", "consume", 10_000, 1, 256, "produce-10kB"
        ),
        Scenario(
            "consume-1MiB", "Consume, 1 MiB messages", "consume", 1 << 20, 1, 16, "produce-1MiB"
        ),
        Scenario("pop-100B", "Pop and acknowledge, 100 B", "pop", 100, 100, 256),
        Scenario(
            "ordered-100B",
            "Ordered by key, any consumer may take a key, 100 B",
            "ordered",
            100,
            100,
            16,
            times=2,
        ),
        Scenario(
            "in-order-100B",
            "In order by queue, each owned by one of two consumers, offsets committed, 100 B",
            "in_order",
            100,
            100,
            64,
            times=4,
        ),
        Scenario(
            "waiting-1000",
            "A message to one of 1,000 consumers that wait",
            "waiting",
            200,
            amount=1000,
            expected_seconds=12.0,
        ),
        Scenario(
            "queues-20000",
            "Produce to 20,000 queues, 100 B, batches of 100",
            "spread",
            100,
            100,
            256,
            amount=20_000,
            expected_seconds=45.0,
        ),
        Scenario(
            "backlog-20M",
            "Produce until 20 million messages are stored, 100 B, batches of 100",
            "backlog",
            100,
            100,
            256,
            amount=20_000_000,
            expected_seconds=75.0,
        ),
    )
}


GROWTH = {
    "backlog": "A backlog of 20 million messages",
    "queues": "20,000 queues",
    "restart": "Restart with a log of 2 GiB",
    "slow": "Slow and dead followers and readers",
}
"""Name → title of the scenarios that only raftmq runs (`bench.growth`)."""
GROWTH_SECONDS = 90.0
"""Expected time of a scenario of growth."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A system, and how it takes part in a run."""

    make: Callable[[], System]
    """Makes the system; cheap."""
    beside_seconds: float
    """Expected time of a cell beside what it measures and fills: start, warm-up of sends, stop."""
    read_seconds: float = 0.0
    """The same of a cell that reads, beside `beside_seconds`: warm-up of reads, joining a group."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The scenarios that a run does not measure → the reason."""
    rounds_max: int = 100
    """Number of rounds, from the first on, that measure the system."""
    synced: int = 0
    """Disks that a message is on when it is acknowledged: 2 are a majority, 0 is the page cache."""

    @property
    def scenarios(self) -> frozenset[str]:
        """The scenarios that a run measures."""
        return frozenset(SCENARIOS) - set(self.left_out)


@dataclass(frozen=True, slots=True)
class Cell:
    """One system in one scenario in one round."""

    round: int
    """From 0."""
    scenario: str
    system: str

    def expected_seconds(self, seconds: float) -> float:
        """Expected time if `seconds` are measured for each row; filling a log takes as long."""
        scenario, entrant = SCENARIOS[self.scenario], SYSTEMS[self.system]
        is_read = scenario.operation in READS
        beside = entrant.beside_seconds + is_read * entrant.read_seconds + scenario.expected_seconds
        return beside + (scenario.times + is_read) * seconds


def cells(scenarios: Sequence[str], systems: Sequence[str], rounds: int) -> list[Cell]:
    """The cells of a run, in their order: a scenario's systems follow one another."""
    return [
        Cell(number, scenario, system)
        for number in range(rounds)
        for scenario in scenarios
        for system in (systems if number % 2 == 0 else reversed(systems))
        if number < min(SYSTEMS[system].rounds_max, SCENARIOS[scenario].rounds_max)
        and scenario in SYSTEMS[system].scenarios
    ]


def without_fills(wanted: Sequence[Cell]) -> list[Cell]:
    """The cells that give the rows of all wanted ones: without each produce that a wanted consume
    begins with."""
    fills = {replace(cell, scenario=SCENARIOS[cell.scenario].fill) for cell in wanted}
    return [cell for cell in wanted if cell not in fills]


def _raftmq() -> System:
    # The benchmarks of other systems must work without raftmq's client, which that file imports.
    module = importlib.import_module("bench.raftmq_system")
    system: System = module.RaftmqSystem()
    return system


def _left_out(reason: str, is_left_out: Callable[[Scenario], bool]) -> dict[str, str]:
    return {name: reason for name, each in SCENARIOS.items() if is_left_out(each)}


_NO_QUEUES = _left_out("left out: it has no queues", lambda each: each.operation in GROWING)
_NOT_WRITES = _left_out(
    "left out: the setting decides when a write is on disk",
    lambda each: each.operation in READS | GROWING,
)
_NOT_ENDS = _left_out(
    "left out: the others tell whether our client was the limit",
    lambda each: each.operation in GROWING or each.size == 10_000,
)
_NO_ORDER = _left_out(NO_ORDER, lambda each: each.operation in ("ordered", "in_order"))
_BY_QUEUE = _left_out(
    "it keeps the order of a queue, not of a key: in-order-100B",
    lambda each: each.operation == "ordered",
)
_OWN = _NOT_ENDS | _NO_ORDER
_NO_SINGLES = _left_out(
    "ProducerPerformance does not await its messages one by one",
    lambda each: each.operation == "single",
)

SYSTEMS = {
    "floor": Entrant(Floor, 3.0, left_out=_NO_QUEUES, synced=2),
    "raftmq": Entrant(_raftmq, 4.0, synced=2),
    "kafka": Entrant(Kafka, 28.0, 10.0, _BY_QUEUE),
    "kafka-fsync": Entrant(lambda: Kafka(is_synced=True), 26.0, left_out=_NOT_WRITES, synced=2),
    "kafka-own": Entrant(KafkaOwn, 55.0, 12.0, left_out=_OWN | _NO_SINGLES, rounds_max=1),
    "rocketmq": Entrant(Rocketmq, 36.0, 14.0, _BY_QUEUE),
    "rocketmq-fsync": Entrant(
        lambda: Rocketmq(is_synced=True), 32.0, left_out=_NOT_WRITES, synced=1
    ),
    "nats": Entrant(Nats, 4.0),
    "nats-fsync": Entrant(lambda: Nats(is_synced=True), 4.0, left_out=_NOT_WRITES, synced=2),
    "nats-own": Entrant(NatsOwn, 15.0, left_out=_OWN, rounds_max=1),
    "rabbitmq": Entrant(Rabbitmq, 12.0, synced=2),
    "rabbitmq-own": Entrant(RabbitmqOwn, 38.0, left_out=_OWN, rounds_max=1, synced=2),
    "pysyncobj": Entrant(Pysyncobj, 5.0, left_out=_NO_QUEUES, rounds_max=1),
}
"""By name, in the order of a run."""


def why_unavailable(name: str) -> str | None:
    """None if the system can run here, else one line that says how to install it."""
    return SYSTEMS[name].make().available()
