"""The peers' own load tools as systems: a second row, in which our Python clients play no part.

| name | tool | servers and settings of |
|---|---|---|
| `kafka-own` | ProducerPerformance, ConsumerPerformance, ShareConsumerPerformance | `kafka` |
| `nats-own` | `nats bench js` | `nats` |
| `rabbitmq-own` | PerfTest | `rabbitmq` |

Rates and latencies are what the tools print. Those of Kafka and NATS send a given number of
messages: uncounted runs tell how many take the wanted time, for Kafka on a topic of its own, until
the brokers are warm (`bench.warm_up`). A tool sends for `OWN_SECONDS` at least, as it is a new
process, which is slow at first, and reads what that stored. PerfTest prints a rate each second;
its first seconds do not count, since its JVM is slow then.

Processor time is that of the last part of a run, as long as the tool says its measurement took; of
PerfTest's reads, that of the seconds before the queue ran empty.
"""

import asyncio
import math
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from bench.peers import install
from bench.peers.kafka import BATCH_BYTES, LINGER_MS, TOPIC, WARM, Kafka, server_version
from bench.peers.kafka_reads import read_share_from_start
from bench.peers.nats import STREAM, SUBJECT, Nats
from bench.peers.rabbitmq import IN_FLIGHT_MAX, PREFETCH, QUEUE, Rabbitmq
from bench.processes import output_of
from bench.system import Sample, Unsupported
from bench.warm_up import SENDS, described, until_steady

TOOL_SECONDS_MAX = 180.0
PROBE_BYTES = 4 << 20
"""Bytes that the first run of a tool of Kafka sends."""
OWN_SECONDS = 10.0
"""Time for which a tool sends, at least."""
PROBE_SECONDS = 2.0
"""Time of the second run of `nats bench`, by the rate of its first."""
NO_ORDER = "the tool has no two consumers in order that begin at the same time"
PERF_TEST_SKIPPED = 5
"""Seconds at the beginning of PerfTest that do not count."""
_FIGURES = (
    r"^(\d+) [^,]*records sent, ([\d.]+) records/sec .* ([\d.]+) ms 50th,.* ([\d.]+) ms 99th,"
)
_CONSUMER = ["max.poll.records=10000", "max.partition.fetch.bytes=4194304"]


class _OwnTool:
    """Operations that no tool has."""

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported(NO_ORDER)

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported(NO_ORDER)


class KafkaOwn(_OwnTool, Kafka):
    """Kafka's brokers under Kafka's own tools."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "kafka-own"

    @property
    def version(self) -> str:
        """Version of the brokers and the tools."""
        return f"kafka {server_version()} and its tools"

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """ProducerPerformance, with the batches of the Python client."""
        rate = self._perform_produce(WARM, size, max(200, PROBE_BYTES // size)).messages_per_s

        def send(seconds: float, topic: str = WARM) -> Sample:
            # A third more than wanted: a quarter of all is the warm-up of the tool itself.
            return self._perform_produce(topic, size, max(200, int(rate * seconds * 4 / 3)))

        def warm(seconds: float) -> Sample:
            nonlocal rate
            # Twice as long, as the rate of a run that is short is mostly that of a young process.
            sample = send(2 * seconds)
            rate = sample.messages_per_s
            return sample

        self._warm_seconds = until_steady(warm, SENDS)
        stored = send(max(seconds, OWN_SECONDS), TOPIC)
        self._stored = replace(
            stored, settings=f"{stored.settings}, {described(self._warm_seconds)}"
        )
        return self._stored

    def single(self, *, size: int, seconds: float) -> Sample:
        """Unsupported."""
        raise Unsupported("ProducerPerformance does not await its messages one by one")

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """ConsumerPerformance reads as many messages as the produce counted."""
        return self._perform_consume("ConsumerPerformance", _CONSUMER)

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """ShareConsumerPerformance takes and acknowledges as many messages."""
        read_share_from_start(self.bootstrap, "ShareConsumerPerformance")
        sample = self._perform_consume("ShareConsumerPerformance", _CONSUMER[1:])
        # ConsumerPerformance prints the time of joining by itself; this tool does not.
        note = "the tool's time includes joining the group, a second or more"
        return replace(sample, settings=f"{sample.settings}; {note}")

    def _perform_produce(self, topic: str, size: int, messages: int) -> Sample:
        """Send `messages`; a quarter is the warm-up of the tool."""
        settings = [
            "acks=all",
            f"linger.ms={LINGER_MS:g}",
            f"batch.size={BATCH_BYTES}",
            "max.request.size=4194304",
        ]
        arguments = ["--throughput", "-1", "--record-size", str(size)]
        arguments += ["--num-records", str(messages), "--warmup-records", str(messages // 4)]
        output = self._perform(
            "ProducerPerformance", ["--topic", topic, *arguments, "--command-property", *settings]
        )
        # The last line of figures is that of the steady state, after the warm-up.
        figures = re.findall(_FIGURES, output, re.MULTILINE)
        if not figures:
            raise RuntimeError(f"ProducerPerformance printed no figures:\n{output[-1500:]}")
        sent, rate, p50, p99 = map(float, figures[-1])
        return _sample(sent, sent / rate, size, " ".join(settings), p50_ms=p50, p99_ms=p99)

    def _perform_consume(self, tool: str, settings: Sequence[str]) -> Sample:
        count = str(self._stored.messages)
        arguments = ["--topic", TOPIC, "--group", tool, "--num-records", count]
        # Joining a group may take longer than the 10 s for which the tool waits by itself.
        arguments += ["--timeout", "60000"]
        for each in settings:
            arguments += ["--command-property", each]
        output = self._perform(tool, arguments)
        row = _table_row(output)
        messages = float(row["data.consumed.in.nMsg"])
        seconds = float(row["fetch.time.ms"]) / 1000
        text = f"{' '.join(settings)}, {described(self._warm_seconds)}"
        return _sample(messages, seconds, self._stored.size, text)

    def _perform(self, tool: str, arguments: Sequence[str]) -> str:
        command = self._java("-Xmx1G", main=(f"org.apache.kafka.tools.{tool}", *arguments))
        command += ["--bootstrap-server", self.bootstrap]
        return output_of(command, seconds_max=TOOL_SECONDS_MAX)


class NatsOwn(_OwnTool, Nats):
    """NATS's servers under `nats bench`, which speaks the servers' batches."""

    _has_batches = True

    def __init__(self) -> None:
        super().__init__()
        self.name = "nats-own"

    @property
    def version(self) -> str:
        """Versions of the server and the tool."""
        tool = output_of([_nats(), "--version"]).strip()
        return f"{super().version.partition(',')[0]}, natscli {tool}"

    def available(self) -> str | None:
        """None, or what to install."""
        if install.program("nats") is None:
            return "nats is not installed: .venv/bin/python -m bench.peers.install nats"
        return super().available()

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """`pub fast`: batches that the server answers one by one, a number of them in flight."""
        shape = (100, 64) if batch > 1 else (16, 16)
        arguments = ["--batch", str(shape[0]), "--max-outstanding-acks", str(shape[1])]
        return self._run(size, seconds, "fast", *arguments)

    def single(self, *, size: int, seconds: float) -> Sample:
        """`pub sync`."""
        return self._run(size, seconds, "sync")

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """`ordered`: reads by position, without acknowledgements."""
        return self._bench(self._stored(), size, "ordered", "--batch", "5000")

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """`consume` with an acknowledgement of each message."""
        return self._bench(self._stored(), size, "consume", "--acks", "explicit", "--batch", "1000")

    def _run(self, size: int, seconds: float, kind: str, *arguments: str) -> Sample:
        """Three runs: one of a few messages, one of two seconds, whose rate tells how many take the
        wanted time, and that."""
        given = ["pub", kind, SUBJECT, "--size", str(size), *arguments]
        probe = self._bench(max(100, PROBE_BYTES // 4 // size), size, *given)
        probe = self._bench(max(100, int(probe.messages_per_s * PROBE_SECONDS)), size, *given)
        messages = int(probe.messages_per_s * max(seconds, OWN_SECONDS))
        return self._bench(max(100, messages), size, *given)

    def _stored(self) -> int:
        async def ask() -> int:
            client = await self._connect()
            info = await client.jetstream().stream_info(STREAM)
            await client.close()
            return int(info.state.messages)

        return asyncio.run(ask())

    def _bench(self, messages: int, size: int, *arguments: str) -> Sample:
        url = f"nats://127.0.0.1:{self._port}"
        command = [_nats(), "-s", url, "--timeout", "60s", "bench", "js", *arguments]
        command += ["--msgs", str(messages), "--stream", STREAM, "--no-progress"]
        output = output_of(command, seconds_max=TOOL_SECONDS_MAX)
        rate = re.search(r"([\d,]+) msgs/sec ~ ", output)
        if rate is None:
            raise RuntimeError(f"nats bench printed no rate:\n{output[-1500:]}")
        found = dict(re.findall(r"(P50|P99): ([\d.,]+)us", output))
        latencies = {name: float(text.replace(",", "")) / 1000 for name, text in found.items()}
        return _sample(
            messages,
            messages / float(rate[1].replace(",", "")),
            size,
            f"nats bench js {' '.join(arguments)}",
            p50_ms=latencies.get("P50"),
            p99_ms=latencies.get("P99"),
        )


class RabbitmqOwn(_OwnTool, Rabbitmq):
    """RabbitMQ's nodes under PerfTest."""

    name = "rabbitmq-own"

    @property
    def version(self) -> str:
        """Versions of the server and the tool."""
        tool = next((install.FOLDER / "perf-test" / "jars").glob("perf-test-*.jar"))
        server = super().version.partition(",")[0]
        return f"{server}, {tool.stem} (Java)"

    def available(self) -> str | None:
        """None, or what to install."""
        return super().available() or install.why_missing("perf-test")

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """One producer, with a bound of unconfirmed messages as the Python client has. It is
        measured for longer than `seconds`, as a reader of its messages runs for longer, too."""
        in_flight = min(window * batch, IN_FLIGHT_MAX)
        longer = max(seconds, OWN_SECONDS) + PERF_TEST_SKIPPED
        return self._perf_test(size, longer, "confirmed", "-x1", "-y0", f"-c{in_flight}")

    def single(self, *, size: int, seconds: float) -> Sample:
        """One producer, one unconfirmed message."""
        return self._perf_test(size, seconds, "confirmed", "-x1", "-y0", "-c1")

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Take and acknowledge the messages, 100 by one acknowledgement."""
        prefetch = max(4, min(PREFETCH, (32 << 20) // size))
        arguments = ("-x0", "-y1", f"-q{prefetch}", f"-A{max(1, prefetch // 20)}")
        return self._perf_test(size, seconds, "received", *arguments)

    def _perf_test(self, size: int, seconds: float, counted: str, *arguments: str) -> Sample:
        duration = math.ceil(max(seconds, OWN_SECONDS)) + PERF_TEST_SKIPPED
        command = ["java", "-Xmx1g", "-cp", install.class_path("perf-test")]
        command += ["com.rabbitmq.perf.PerfTest", "-h", f"amqp://127.0.0.1:{self._port}", "-p"]
        command += [
            "-u",
            QUEUE,
            "-f",
            "persistent",
            "-i",
            "1",
            "-s",
            str(size),
            "-z",
            str(duration),
        ]
        output = output_of([*command, *arguments], seconds_max=duration + TOOL_SECONDS_MAX)
        lines = [line for line in output.splitlines() if re.search(r"time \d", line)]
        rates = [int(each) for each in re.findall(rf"{counted}: (\d+) msg/s", "\n".join(lines))]
        if counted == "confirmed":
            rates = rates[PERF_TEST_SKIPPED:]
        idle = 0 if counted == "confirmed" else _idle_seconds(rates)
        rates = rates[: len(rates) - idle]
        if not rates:
            raise RuntimeError(f"PerfTest printed no rates:\n{output[-1500:]}")
        p50, p99 = _latencies(lines[PERF_TEST_SKIPPED:])
        settings = f"PerfTest {' '.join(arguments)}, {PERF_TEST_SKIPPED} s before"
        sample = _sample(sum(rates), len(rates), size, settings, p50_ms=p50, p99_ms=p99)
        return replace(sample, began=sample.began - idle)


def _idle_seconds(rates: Sequence[int]) -> int:
    """Seconds at the end of a reader's run after the queue ran empty.

    >>> _idle_seconds([60, 90, 80, 30, 0, 0])
    3
    """
    busy = [second for second, rate in enumerate(rates, 1) if rate >= max(rates) / 2]
    return len(rates) - max(busy, default=0)


def _latencies(lines: Sequence[str]) -> tuple[float | None, float | None]:
    """Median of the seconds' medians, and of the seconds' 99th percentiles, in milliseconds."""
    found = [
        [int(each) / (1000 if unit == "µs" else 1) for each in texts.split("/")]
        for line in lines
        for texts, unit in re.findall(r"confirm\D*latency\D*([\d/]+) (µs|ms)", line)
    ]
    if not found:
        return None, None
    return statistics.median(each[1] for each in found), statistics.median(
        each[-1] for each in found
    )


def _table_row(output: str) -> dict[str, str]:
    """The figures below the heading that the tools of consumers print."""
    lines = output.splitlines()
    at = next((i for i, line in enumerate(lines) if "data.consumed.in.nMsg" in line), -1)
    if not 0 <= at < len(lines) - 1:
        raise RuntimeError(f"the tool printed no figures:\n{output[-1500:]}")
    return dict(zip(lines[at].split(", "), lines[at + 1].split(", "), strict=True))


def _nats() -> str:
    path = install.program("nats")
    assert path is not None, "the system is available"
    return path


def _sample(
    messages: float,
    seconds: float,
    size: int,
    settings: str,
    *,
    p50_ms: float | None = None,
    p99_ms: float | None = None,
) -> Sample:
    """The figures of a tool that has just ended."""
    began = time.perf_counter() - seconds
    return Sample(int(messages), size, seconds, p50_ms, p99_ms, began, settings)
