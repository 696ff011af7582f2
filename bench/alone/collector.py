"""Pauses of Python's garbage collector in a node with much state.

    python -m bench.alone.collector [--filters 10000] [--leases 1000000] [--queues 20000]
                                    [--scale 1.0]

One node is a process of its own, which holds the state and then takes traffic: batches of 500
messages that the filters match, batches to all queues in turn, and single messages that are sent,
popped and acknowledged. Each case has a new node:

| case | full collections |
|---|---|
| Python | by Python's thresholds, nothing frozen |
| node | as `raftmq.broker.collector` makes them |

The leases stand in a bare state machine within the node's process, as in `popping`: a million of
them by a client take a quarter of an hour. A pause is the processor time of the thread during a
collection, which other programs do not make longer.
"""

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio
from rich.console import Console
from rich.table import Table

from bench import processes
from bench.alone.popping import leased
from bench.cores import filters
from bench.counting.usage import cpu_seconds, memory
from raftmq import Client, Producer, connect
from raftmq.broker.local_nodes import node_settings, toml_text
from raftmq.client import PendingMany
from raftmq.testing import free_ports

CASES = ("Python", "node")
IN_FLIGHT = 64
AT_REST_SECONDS = 0.2
"""Processor time of a node at rest in two seconds, at most."""
GENERATIONS = ("young", "middle", "full")


class State(NamedTuple):
    """How much the node holds."""

    filters: int
    leases: int
    queues: int


class Collections(list[tuple[int, float, int]]):
    """The collections of this process: generation, seconds, objects found to be garbage."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """As an entry of `gc.callbacks`."""
        if phase == "start":
            self._begun = time.thread_time()
        else:
            seconds = time.thread_time() - self._begun
            self.append((info["generation"], seconds, info["collected"]))


class PythonsOwn:
    """Leaves the full collections to Python, with the interface of `Collector`."""

    async def run(self, disk_passes: Callable[[], int]) -> None:
        """Do nothing."""
        await trio.sleep_forever()


def serve(case: str, leases: int, config: str, report: Path) -> int:
    """Run the node, in its process. SIGUSR1 writes the collections since the last one, and then the
    seconds of a full collection, into the file."""
    from raftmq.broker import collector
    from raftmq.cli.app import run

    collections = Collections()

    def tell(*_: object) -> None:
        found = list(collections)
        gc.collect()
        row = {
            "collections": found,
            "full": collections[-1][1],
            "objects": len(gc.get_objects()),
            "blocks": sys.getallocatedblocks(),
        }
        collections.clear()
        unfinished = report.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(row))
        os.replace(unfinished, report)

    own = PythonsOwn if case == "Python" else collector.Collector

    class Laden(own):  # type: ignore[valid-type, misc]  # one of two
        """Holds the leases, which come after the start as those of consumers do."""

        def __init__(self) -> None:
            super().__init__()
            self.held = leased(leases) if leases else None
            gc.callbacks.append(collections)

    setattr(collector, "Collector", Laden)  # noqa: B010  # of another type
    signal.signal(signal.SIGUSR1, tell)
    return run(["serve", "-c", config])


class Measured:
    """One case under way."""

    def __init__(self, state: State, scale: float, ask: Callable[[], Awaitable[Any]]) -> None:
        self._state = state
        self._scale = scale
        self._ask = ask
        self._given = filters.load(state.filters, 5_000, 0.02)

    async def run(self, url: str, pid: int) -> dict[str, Any]:
        """Build the state and send the traffic; what the node reports of the two."""
        async with connect(url, timeout=60) as mq:
            await self._build(mq)
            async with mq.consumer("orders", group="group-0") as reader:
                # The index of the filters is made for the first reader, of the first messages.
                await self._orders(mq, 20)
                await reader.fetch(5_000, wait=5)
                await _wait_at_rest(pid)
                built = await self._ask()
                used, begun = cpu_seconds(pid), time.perf_counter()
                await self._orders(mq, int(200 * self._scale))
                await self._wide(mq, int(60_000 * self._scale))
                await self._singles(mq, int(1_000 * self._scale))
            used, seconds = cpu_seconds(pid) - used, time.perf_counter() - begun
            traffic = await self._ask()
        held = memory(pid).anonymous
        return {"build": built, "traffic": traffic, "cpu": used, "seconds": seconds, "MiB": held}

    async def _build(self, mq: Client) -> None:
        await mq.admin.create_topic("orders", 1)
        await mq.admin.create_topic("wide", self._state.queues)
        await mq.admin.create_topic("work", 1)
        await self._wide(mq, self._state.queues)
        async with trio.open_nursery() as nursery:
            for first in range(16):
                nursery.start_soon(self._subscribe, mq, first)

    async def _subscribe(self, mq: Client, first: int) -> None:
        for number in range(first, self._state.filters, 16):
            await mq.admin.subscribe("orders", f"group-{number}", self._given.texts[number])

    async def _orders(self, mq: Client, batches: int) -> None:
        async with mq.producer("orders", batch_messages=500) as producer:

            def send(number: int) -> PendingMany:
                first = number % 10 * 500
                props = self._given.messages[first : first + 500]
                return producer.send_many_nowait(bodies=[bytes(100)] * 500, props=props)

            await _flow(send, batches, in_flight=8)

    async def _wide(self, mq: Client, batches: int) -> None:
        async with mq.producer("wide", batch_messages=100) as producer:
            await _flow(partial(_send_to, producer, self._state.queues), batches)

    async def _singles(self, mq: Client, count: int) -> None:
        async with (
            mq.producer("work") as producer,
            mq.consumer("work", group="workers", mode="pop") as consumer,
        ):
            for _ in range(count):
                await producer.send(b"x" * 100)
                for message in await consumer.pop(1, wait=5):
                    await message.ack()


async def _wait_at_rest(pid: int) -> None:
    used = float("-inf")
    while cpu_seconds(pid) - used > AT_REST_SECONDS:
        used = cpu_seconds(pid)
        await trio.sleep(2)


def _send_to(producer: Producer, queues: int, number: int) -> PendingMany:
    return producer.send_many_nowait(bodies=[b"x" * 100] * 10, queue=number % queues)


async def _flow(
    send: Callable[[int], PendingMany], batches: int, *, in_flight: int = IN_FLIGHT
) -> None:
    pending: list[PendingMany] = []
    for number in range(batches):
        pending.append(send(number))
        if len(pending) >= in_flight:
            await pending.pop(0).wait()
    for each in pending:
        await each.wait()


def measure(case: str, state: State, scale: float) -> dict[str, Any]:
    """Measure one case, on a new node."""
    with processes.Cluster("collector") as cluster:
        (port,) = free_ports(1)
        config, report = cluster.folder / "node.toml", cluster.folder / "report.json"
        address, data = ("127.0.0.1", port), cluster.folder / "data"
        own = node_settings(1, address, cluster="bench", data=data, founders=1, others={1: address})
        config.write_text(toml_text({"node": own}))
        command = [
            sys.executable,
            "-m",
            "bench.alone.collector",
            "--serve",
            case,
            str(state.leases),
        ]
        node = cluster.start([*command, str(config), str(report)], name="node")

        async def ask() -> Any:
            report.unlink(missing_ok=True)
            node.send_signal(signal.SIGUSR1)
            while not report.exists():  # noqa: ASYNC110  # another process writes it
                await trio.sleep(0.05)
            return json.loads(report.read_text())

        processes.wait_for_port(port, cluster, seconds_max=120)
        return trio.run(Measured(state, scale, ask).run, f"raftmq://127.0.0.1:{port}", node.pid)


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """The cases beside one another, for people."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("figure")
    lines: dict[str, list[str]] = {}

    def add(name: str, value: str) -> None:
        lines.setdefault(name, []).append(value)

    for case, row in rows.items():
        shown.add_column(case, justify="right")
        add("objects that a full collection visits", f"{row['traffic']['objects']:,}")
        add("memory blocks in use", f"{row['traffic']['blocks']:,}")
        add("a full collection, ms", f"{1000 * row['traffic']['full']:.1f}")
        for phase in ("build", "traffic"):
            found = row[phase]["collections"]
            for number, name in enumerate(GENERATIONS):
                pauses = [1000 * each[1] for each in found if each[0] == number]
                longest = f"longest {max(pauses, default=0):.1f}, together {sum(pauses):.0f} ms"
                add(f"{phase}: {name} collections", f"{len(pauses):,}; {longest}")
            add(f"{phase}: objects in cycles", f"{sum(each[2] for each in found):,}")
        add("traffic: processor seconds of the node", f"{row['cpu']:.2f}")
        add("traffic: seconds", f"{row['seconds']:.1f}")
        add("memory without mapped files, MiB", f"{row['MiB']:.0f}")
    for name, values in lines.items():
        shown.add_row(name, *values)
    return shown


def main(arguments: list[str]) -> int:
    """Measure both cases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.collector")
    parser.add_argument("--filters", type=int, default=10_000)
    parser.add_argument("--leases", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--scale", type=float, default=1.0, help="of the traffic, for a trial")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        case, leases, config, report = options.serve
        return serve(case, int(leases), config, Path(report))
    state = State(options.filters, options.leases, options.queues)
    rows = {}
    for case in CASES:
        print(f"{case} ...", file=sys.stderr)
        rows[case] = measure(case, state, options.scale)
    Console(width=140).print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
