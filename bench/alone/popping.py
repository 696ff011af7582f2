"""Memory and delays of consumer groups that pop: `python -m bench.alone.popping`.

    python -m bench.alone.popping [--leases 1000000] [--seconds 10] [--only leases,late,latency]

| scenario | measured |
|---|---|
| leases | memory of many leases of one message; the longest step in which they run out |
| late | delay of repeated messages, while 50,000 messages/s flow through three nodes |
| latency | from send to hand-out at 10,000 messages/s; the p50 of single awaited sends beside it |

`leases` runs a bare state machine in this process, the others run three nodes.
The measured consumer pops and acknowledges the flow of `late` and `latency`.
Lateness counts from the moment at which a message may come again, as the consumer computes it: the
answer to its nack plus the delay. The nodes count from before that answer, so a message may come
early; its lateness is 0.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import trio
from rich.console import Console

import raftmq
from bench.figures import Figure, table, write
from bench.machine import run_facts
from bench.raftmq_system import TOPIC, RaftmqSystem
from bench.system import percentile
from raftmq.batch import encode
from raftmq.client import Client
from raftmq.log.record import Kind
from raftmq.log.record import encode as encode_record
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.calls import Ask, OpenGroup, Tick
from raftmq.pop.policy import Mode, Policy

SCENARIOS = ("leases", "late", "latency")
QUEUE = 1 << 16
BATCH_MESSAGES = 10_000
LATE_RATE, LATE_BATCH = 50_000, 500
LATENCY_RATE, LATENCY_BATCH = 10_000, 10
NACK_EVERY = 500
"""One message in this many fails."""
NACK_SECONDS = 1.0
SINGLES = 300


class MachineLog:
    """A state machine and the log that feeds it."""

    def __init__(self) -> None:
        self.machine = PartitionMachine()
        self._chain = 0

    def add(self, kind: Kind, payload: bytes, now: int) -> None:
        """Append and apply a record."""
        record = encode_record(
            payload,
            index=self.machine.applied + 1,
            term=1,
            kind=kind,
            timestamp=now,
            chain=self._chain,
            version=1,
        )
        self._chain = record.crc
        self.machine.apply(record)
        # The shell does the same after each record.
        self.machine.pop_groups.take_handed()
        self.machine.pop_groups.take_traced()


def leased(count: int) -> tuple[MachineLog, int]:
    """A log with `count` leases of one message each, which all run out at the same time, and the
    memory of the leases in KiB."""
    log = MachineLog()
    policy = Policy(schedule_ms=(60_000,))
    opened = OpenGroup(1, 1, "bench", 1, Mode.POP, policy, [], [])
    log.add(Kind.COMMANDS, encode_commands([opened]), 0)
    sealed = encode([b"x"] * BATCH_MESSAGES)
    for first in range(0, count, BATCH_MESSAGES):
        payload = sealed.to_bytes(queue=QUEUE, producer=1, epoch=0, first_sequence=first)
        log.add(Kind.BATCH, payload, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    requests = [Ask(1, consumer, 1, 1000, 1000) for consumer in range(1, 1001)]
    payload = encode_commands(requests)
    for _ in range(0, count, len(requests)):
        log.add(Kind.COMMANDS, payload, 0)
    return log, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def leases(count: int) -> list[Figure]:
    """Make `count` leases, and let them run out."""
    log, grown = leased(count)
    group = log.machine.pop_groups.attached[1].group
    assert group.counts(QUEUE).leased == count
    steps: list[float] = []
    tick = encode_commands([Tick()])
    while group.counts(QUEUE).leased:
        begun = time.perf_counter()
        log.add(Kind.COMMANDS, tick, 1000)
        steps.append(time.perf_counter() - begun)
    memory, longest = grown / 1024, 1000 * max(steps)
    return [
        Figure(f"{count:,} leases: memory", memory, "MiB", 300.0, is_limit=True),
        Figure(f"{count:,} leases run out: longest step", longest, "ms", 100.0, is_limit=True),
        Figure("the same: steps", len(steps)),
    ]


class _Flow:
    """Messages sent at an even rate, and popped by one consumer."""

    def __init__(self, mq: Client, rate: int, batch: int, seconds: float) -> None:
        self._mq = mq
        self._rate = rate
        self._batch = batch
        self._until = time.perf_counter() + seconds
        self.sent = 0
        self.latencies: list[float] = []
        self.late: list[float] = []

    async def run(self, *, with_failures: bool) -> None:
        """Send and pop until the time is over and no message is left."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            nursery.start_soon(self._pop, with_failures)

    async def _send(self) -> None:
        due = time.perf_counter()
        async with self._mq.producer(TOPIC) as producer:
            while due < self._until:
                body = b"%.9f" % time.perf_counter()
                producer.send_many_nowait(bodies=[body.ljust(100)] * self._batch)
                self.sent += self._batch
                due += self._batch / self._rate
                await trio.sleep(max(0.0, due - time.perf_counter()))
            await producer.flush()

    async def _pop(self, with_failures: bool) -> None:
        settled, popped = 0, 0
        again: dict[str, float] = {}
        group = f"bench-{self._rate}"
        async with self._mq.consumer(TOPIC, group=group, mode="pop", start="latest") as consumer:
            while time.perf_counter() < self._until or settled < self.sent:
                messages = await consumer.pop(1000, wait=0.5)
                now = time.perf_counter()
                popped += len(messages)
                attempts = messages.attempts
                if max(attempts, default=1) > 1:
                    # An answer may have first and repeated deliveries; only the latter count.
                    for message, attempt in zip(messages, attempts, strict=True):
                        if attempt > 1:
                            self.late.append(max(0.0, now - again.pop(message.id)))
                elif messages:
                    self.latencies += [now - float(body) for body in messages.bodies]
                    if with_failures and popped >= NACK_EVERY:
                        popped -= NACK_EVERY
                        failed = messages[0]
                        await failed.nack(delay=NACK_SECONDS)
                        again[failed.id] = time.perf_counter() + NACK_SECONDS
                settled += len(messages)
                messages.ack_nowait()
                if with_failures and again and time.perf_counter() > self._until:
                    settled = min(settled, self.sent - 1)
                elif not again and time.perf_counter() > self._until and not messages:
                    break
            await consumer.flush()


async def _late(url: str, seconds: float) -> list[Figure]:
    async with raftmq.connect(url) as mq:
        flow = _Flow(mq, LATE_RATE, LATE_BATCH, seconds)
        await flow.run(with_failures=True)
    late = sorted(flow.late)
    assert len(late) > 20, f"{len(late)} messages failed"
    rate = flow.sent / seconds
    p50, p99 = percentile(late, 0.5) or 0, percentile(late, 0.99) or 0
    return [
        Figure("late: messages a second", rate),
        Figure("late: retries, p50", p50, "ms"),
        Figure("late: retries, p99", p99, "ms", 50.0, is_limit=True),
    ]


async def _latency(url: str, seconds: float) -> list[Figure]:
    async with raftmq.connect(url) as mq:
        singles = []
        async with mq.producer(TOPIC) as producer:
            for _ in range(SINGLES):
                begun = time.perf_counter()
                await producer.send(b"x" * 100)
                singles.append(time.perf_counter() - begun)
        flow = _Flow(mq, LATENCY_RATE, LATENCY_BATCH, seconds)
        await flow.run(with_failures=False)
    single = 1000 * statistics.median(singles)
    latencies = sorted(flow.latencies)
    p50, p99 = percentile(latencies, 0.5) or 0, percentile(latencies, 0.99) or 0
    return [
        Figure("latency: single awaited send, p50", single, "ms"),
        Figure("latency: send to hand-out, p50", p50, "ms"),
        Figure("latency: send to hand-out, p99", p99, "ms", 5 * single, is_limit=True),
    ]


def measure(names: Sequence[str], count: int, seconds: float) -> list[Figure]:
    """The figures of these scenarios."""
    figures: list[Figure] = []
    if "leases" in names:
        figures += leases(count)
    for name, scenario in (("late", _late), ("latency", _latency)):
        if name in names:
            with RaftmqSystem() as system:
                figures += trio.run(scenario, system.url, seconds)
    return figures


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.popping")
    parser.add_argument("--leases", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each flow")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, with commas")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    facts = run_facts()
    figures = measure(options.only.split(","), options.leases, options.seconds)
    Console(width=120).print(table(figures))
    if options.json:
        write(options.json, facts, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
