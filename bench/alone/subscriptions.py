"""The cost of thousands of filtered groups for a broker: `python -m bench.alone.subscriptions`.

    python -m bench.alone.subscriptions [--messages 1000000] [--groups 2000] [--readers 16]
                                        [--json FILE]

One node is a process of its own, with a real disk. Batches of 500 messages go to one topic; some of
the groups read the messages as they arrive. The CPU seconds of the node's process are compared,
each scenario on a new node:

| scenario | the node |
|---|---|
| no groups | takes the messages |
| index | takes them, matches each batch for all groups, and serves those that read |
| scan | the same, with each filter evaluated on each batch, as columns; equal parts are shared |

The filters are those of `bench.cores.filters`, 2 % of them without a message type. The scan gets a
share of the messages (`--scanned`), and its time is scaled up: the cost of a message does not
depend on the number of earlier messages.

Sources: Notify and ONS reported that such an index saved up to 32 % of their brokers' CPU.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import anyio
import numpy as np
from rich.console import Console
from rich.table import Table

from bench import processes
from bench.cores import filters
from bench.counting.usage import cpu_seconds
from bench.figures import write_json
from bench.machine import run_facts
from raftmq import connect
from raftmq.batch import Batch
from raftmq.broker.local_nodes import node_settings, toml_text
from raftmq.client import Client, Consumer
from raftmq.errors import RaftmqError
from raftmq.filters import Index
from raftmq.filters import compile as compile_filter
from raftmq.filters.masks import BatchView
from raftmq.testing import free_ports

BATCH_MESSAGES = 500
TOPIC = "orders"
SCENARIOS = ("no groups", "index", "scan")
LOADED_BATCHES = 40
"""Different batches; they are sent in turn."""
WARM_BATCHES = 2
"""Batches that are sent before the measurement."""


class Row(TypedDict):
    """One line of the result."""

    name: str
    """The scenario."""
    messages: int
    """Number of messages that were sent, without scaling."""
    cpu_seconds: float
    """CPU seconds of the node for a million messages."""
    received: int
    """Messages that the reading groups got, warm-up included: all that match."""


class Scan:
    """A scan of all filters with the interface of `Index`, as a broker without an index does."""

    def __init__(self) -> None:
        self._filters: dict[int, Any] = {}

    def add(self, number: int, text: str) -> None:
        """As `Index.add`."""
        self._filters[number] = compile_filter(text)

    def remove(self, number: int) -> bool:
        """As `Index.remove`."""
        return self._filters.pop(number, None) is not None

    def match_in_steps(self, batch: Batch) -> "Iterator[Scanned | None]":
        """As `Index.match_in_steps`."""
        view = BatchView(batch)
        masks: dict[int, np.ndarray] = {}
        for number, each in self._filters.items():
            masks[number] = view.mask(each.formula)
            yield None
        yield Scanned({number: mask for number, mask in masks.items() if mask.any()})


class Scanned:
    """As `raftmq.filters.Matches`."""

    def __init__(self, masks: dict[int, np.ndarray]) -> None:
        self.ids = frozenset(masks)
        self._masks = masks

    def cost(self, number: int) -> int:
        """As `Matches.cost`: the masks are there already."""
        return 0

    def mask(self, number: int) -> np.ndarray:
        """As `Matches.mask`."""
        return self._masks[number]


def serve(scenario: str, config: str) -> int:
    """Run the node, in its process; for the scenario `scan` without an index."""
    from raftmq.broker.deliver import matching
    from raftmq.cli.app import run

    if scenario == "scan":
        setattr(matching, "Index", Scan)  # noqa: B010  # what it does not export
    return run(["serve", "-c", config])


class Measured:
    """One scenario under way."""

    def __init__(self, scenario: str, messages: int, groups: int, readers: int) -> None:
        self._scenario = scenario
        self._count = messages // BATCH_MESSAGES
        given = filters.load(groups, LOADED_BATCHES * BATCH_MESSAGES, 0.02)
        self._texts = given.texts if scenario != "no groups" else []
        # The filters are shuffled: the first ones are a random sample of all kinds.
        self._readers = min(readers, len(self._texts))
        self._props = given.messages
        self._received = 0
        self._is_done = False

    async def run(self, url: str, pid: int) -> Row:
        """Subscribe, send and read; returns the CPU time that the node used for it."""
        async with connect(url, timeout=60) as mq:
            await mq.admin.create_topic(TOPIC, 1)
            expected = self._expected(WARM_BATCHES) + self._expected(self._count)
            async with anyio.create_task_group() as tasks:
                for first in range(4):
                    tasks.start_soon(self._subscribe, mq, first)
            async with anyio.create_task_group() as tasks:
                for number in range(self._readers):
                    tasks.start_soon(self._read, mq, f"group-{number}")
                await self._send(mq, WARM_BATCHES)
                await anyio.sleep(2)
                before = cpu_seconds(pid)
                await self._send(mq, self._count)
                self._is_done = True
                if not self._readers:
                    await anyio.sleep(1)
            used = cpu_seconds(pid) - before
        assert self._received == expected, f"{self._received} of {expected} were received"
        sent = self._count * BATCH_MESSAGES
        per_million = round(used * 1e6 / sent, 2)
        return Row(
            name=self._scenario, messages=sent, cpu_seconds=per_million, received=self._received
        )

    def _expected(self, batches: int) -> int:
        """Number of messages that the readers must get from the first `batches` batches."""
        index: Index[int] = Index()
        for number, text in enumerate(self._texts[: self._readers]):
            index.add(number, text)
        hits = [len(index.match(props)) for props in self._props]
        rounds, rest = divmod(batches, LOADED_BATCHES)
        return rounds * sum(hits) + sum(hits[: rest * BATCH_MESSAGES])

    async def _subscribe(self, mq: Client, first: int) -> None:
        for number in range(first, len(self._texts), 4):
            await mq.admin.subscribe(TOPIC, f"group-{number}", self._texts[number])

    async def _send(self, mq: Client, batches: int) -> None:
        async with mq.producer(TOPIC, batch_messages=BATCH_MESSAGES) as p:
            for at in range(batches):
                first = at % LOADED_BATCHES * BATCH_MESSAGES
                props: Sequence[Mapping[str, Any]] = self._props[first : first + BATCH_MESSAGES]
                await p.send_many(bodies=[bytes(100)] * BATCH_MESSAGES, props=props)

    async def _read(self, mq: Client, group: str) -> None:
        async with mq.consumer(TOPIC, group=group) as c:
            while not self._is_done:
                await self._take(c)
            (end,) = (await mq.admin.find_offsets(TOPIC, "latest")).values()
            while c.position[0] < end:
                await self._take(c)

    async def _take(self, c: Consumer) -> None:
        messages = await c.fetch(5000, wait=0.5)
        self._received += len(messages)


def measure(scenario: str, messages: int, groups: int, readers: int) -> Row:
    """Measure one scenario, on a new node."""
    with processes.Cluster("subscriptions") as cluster:
        (port,) = free_ports(1)
        config = cluster.folder / "node.toml"
        address, data = ("127.0.0.1", port), cluster.folder / "data"
        own = node_settings(1, address, cluster="bench", data=data, founders=1, others={1: address})
        config.write_text(toml_text({"node": own}))
        command = [
            sys.executable,
            "-m",
            "bench.alone.subscriptions",
            "--serve",
            scenario,
            str(config),
        ]
        node = cluster.start(command, name="node")
        url = f"raftmq://127.0.0.1:{port}"
        measured = Measured(scenario, messages, groups, readers)
        try:
            return anyio.run(measured.run, url, node.pid, backend="trio")
        except RaftmqError as error:
            log = (cluster.folder / "node.log").read_text()
            raise SystemExit(f"{error}; the node said:\n{log}") from error


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table for people."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("scenario", "messages sent", "CPU s a million", "above no groups", "received"):
        shown.add_column(heading, justify="left" if heading == "scenario" else "right")
    base = rows[0]["cpu_seconds"]
    for each in rows:
        above = each["cpu_seconds"] - base
        shown.add_row(
            each["name"],
            f"{each['messages']:,}",
            f"{each['cpu_seconds']:,.1f}",
            f"{above:,.1f}",
            f"{each['received']:,}",
        )
    return shown


def saved(rows: Sequence[Row]) -> float:
    """The share of the scanning broker's CPU that the index saves."""
    times = {each["name"]: each["cpu_seconds"] for each in rows}
    return 1 - times["index"] / times["scan"]


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.subscriptions")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--scanned", type=int, default=20_000, help="messages of the scan")
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--readers", type=int, default=16, help="groups that read meanwhile")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        return serve(*options.serve)
    facts = run_facts()
    rows = []
    for scenario in SCENARIOS:
        print(f"{scenario} ...", file=sys.stderr)
        messages = options.scanned if scenario == "scan" else options.messages
        rows.append(measure(scenario, messages, options.groups, options.readers))
    Console(width=120).print(table(rows))
    print(f"the index saves {saved(rows):.1%} of the scanning broker's CPU")
    if options.json:
        write_json(options.json, facts, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
