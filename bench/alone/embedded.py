"""The embedded queue: how soon it is ready, and what it takes, on trio and asyncio.

    python -m bench.alone.embedded [--folder DIR] [--json FILE]

The application and the node share the interpreter. So each figure is taken twice: with Python's
switch interval of 5 ms, which `raftmq.open` leaves alone, and with the 0.2 ms that a node sets in a
process of its own; and again in checked mode.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import anyio

import raftmq
from bench.figures import write_json
from bench.machine import run_facts

INTERVALS = (0.005, 0.0002)
SENDS = 400
BATCHES = 1_000
BATCH_MESSAGES = 100
BODY = b"x" * 100
WINDOW = 64

Report = Callable[[str, float], None]
Figures = dict[str, list[float]]
"""By name, which ends with the unit: a figure for each run."""


async def start_seconds(folder: Path) -> float:
    """Seconds from `open` to the first receipt."""
    began = time.perf_counter()
    async with raftmq.open(folder) as mq:
        await mq.admin.create_topic("orders", queues=4)
        async with mq.producer("orders") as producer:
            await producer.send(BODY)
            return time.perf_counter() - began


async def awaited(mq: raftmq.Client, report: Report) -> None:
    """Send one message at a time, awaiting each."""
    async with mq.producer("orders") as producer:
        seconds = []
        for _ in range(SENDS):
            began = time.perf_counter()
            await producer.send(BODY)
            seconds.append(time.perf_counter() - began)
    report("awaited send, p50, ms", median(seconds) * 1e3)
    report("awaited send, p99, ms", quantiles(seconds, n=100)[-1] * 1e3)


async def batched(mq: raftmq.Client, report: Report) -> None:
    """Send batches of 100 messages, with up to `WINDOW` batches under way."""
    bodies = [BODY] * BATCH_MESSAGES
    async with mq.producer("orders") as producer:
        began = time.perf_counter()
        pending = []
        for _ in range(BATCHES):
            pending.append(producer.send_many_nowait(bodies=bodies))
            if len(pending) >= WINDOW:
                await pending.pop(0).wait()
        for each in pending:
            await each.wait()
        rate = BATCHES / (time.perf_counter() - began)
    report("batches of 100, 1/s", rate)


async def popped(mq: raftmq.Client, report: Report) -> None:
    """Pop and acknowledge all messages that were sent, a hundred at a time."""
    count = 0
    async with mq.consumer("orders", group="bench", mode="pop") as consumer:
        began = time.perf_counter()
        while batch := await consumer.pop(BATCH_MESSAGES, wait=0.5):
            batch.ack_nowait()
            count += len(batch)
            ended = time.perf_counter()
        await consumer.flush()
    report("popped and acked, messages/s", count / (ended - began))


async def measure(folder: Path) -> Figures:
    """All figures of the event loop that runs: by switch interval, and last in checked mode."""
    blank = [await start_seconds(folder / f"blank-{n}") for n in range(3)]
    again = [await start_seconds(folder / "blank-0") for _ in range(3)]
    figures: Figures = {
        "ready, blank folder, ms": [median(blank) * 1e3],
        "ready, opened again, ms": [median(again) * 1e3],
    }
    runs = [(interval, False) for interval in INTERVALS] + [(INTERVALS[0], True)]
    for number, (interval, check) in enumerate(runs):
        sys.setswitchinterval(interval)
        async with raftmq.open(folder / f"run-{number}", check=check) as mq:
            await mq.admin.create_topic("orders", queues=4)

            def report(name: str, figure: float) -> None:
                figures.setdefault(name, []).append(figure)

            for part in (awaited, batched, popped):
                await part(mq, report)
            if check:
                began = time.perf_counter()
                verdict = (await mq.check()).verdict
                figures[f"check(), {verdict}, s"] = [time.perf_counter() - began]
    return figures


def table(backend: str, figures: Figures) -> str:
    """The figures of an event loop as text."""
    lines = [f"{backend:<32}{'5 ms':>12}{'0.2 ms':>12}{'5 ms, checked':>16}"]
    for name, row in figures.items():
        cells = [f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}" for figure in row]
        lines.append(f"{name:<32}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    """Measure on trio and on asyncio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a disk to measure on")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    facts = run_facts()
    found: dict[str, Figures] = {}
    for backend in ("trio", "asyncio"):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found[backend] = anyio.run(measure, Path(folder), backend=backend)
        print(f"\n{table(backend, found[backend])}")
    if options.json:
        runs = ["switch interval 5 ms", "0.2 ms", "5 ms, checked"]
        write_json(options.json, facts, runs=runs, figures=found)


if __name__ == "__main__":
    main()
