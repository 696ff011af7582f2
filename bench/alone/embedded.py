"""The embedded queue: how soon it is ready, and what it takes, on trio and asyncio.

    python -m bench.alone.embedded [--folder DIR]

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

INTERVALS = (0.005, 0.0002)
SENDS = 400
BATCHES = 1_000
BATCH_MESSAGES = 100
BODY = b"x" * 100
WINDOW = 64

Report = Callable[[str, str], None]


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
    report("awaited send, p50", f"{median(seconds) * 1e3:.2f} ms")
    report("awaited send, p99", f"{quantiles(seconds, n=100)[-1] * 1e3:.2f} ms")


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
    report("batches of 100", f"{rate:,.0f}/s")


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
    report("popped and acked", f"{count / (ended - began):,.0f} messages/s")


async def measure(folder: Path, backend: str) -> None:
    """All figures of one event loop."""
    blank = [await start_seconds(folder / f"blank-{n}") for n in range(3)]
    again = [await start_seconds(folder / "blank-0") for _ in range(3)]
    rows: dict[str, list[str]] = {
        "ready, blank folder": [f"{median(blank) * 1e3:.0f} ms"],
        "ready, opened again": [f"{median(again) * 1e3:.0f} ms"],
    }
    runs = [(interval, False) for interval in INTERVALS] + [(INTERVALS[0], True)]
    for number, (interval, check) in enumerate(runs):
        sys.setswitchinterval(interval)
        async with raftmq.open(folder / f"run-{number}", check=check) as mq:
            await mq.admin.create_topic("orders", queues=4)

            def report(name: str, figure: str) -> None:
                rows.setdefault(name, []).append(figure)

            for part in (awaited, batched, popped):
                await part(mq, report)
            if check:
                began = time.perf_counter()
                checked = await mq.check()
                seconds = time.perf_counter() - began
                rows["check()"] = ["-", "-", f"{seconds:.1f} s, {checked.verdict}"]
    print(f"\n{backend:<22}{'5 ms':>20}{'0.2 ms':>20}{'5 ms, checked':>22}")
    for name, figures in rows.items():
        print(f"{name:<22}" + "".join(f"{figure:>20}" for figure in figures))


def main() -> None:
    """Measure on trio and on asyncio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a disk to measure on")
    place = parser.parse_args().folder
    for backend in ("trio", "asyncio"):
        with tempfile.TemporaryDirectory(dir=place) as folder:
            anyio.run(measure, Path(folder), backend, backend=backend)


if __name__ == "__main__":
    main()
