"""The cost of one user to another: `python -m bench.alone.fairness`.

    python -m bench.alone.fairness [--rounds 7] [--seconds 4] [--quota 2000000] [--json FILE]

Clusters of three nodes that know their users. One user works alone, then beside another one that
sends 10 kB messages as fast as it can: under a quota of bytes at each node, and without one. The
order changes from round to round. The figures are medians over the rounds: messages a second and
the p50 of an acknowledgement, and their ratios to those of the same round alone.

The other user's program has a process of its own on the same machine, so its processor time counts
as well: on two machines the differences are smaller.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import trio
from rich.console import Console
from rich.table import Table

import raftmq
from bench.figures import write_json
from bench.machine import run_facts
from bench.raftmq_system import QUEUES, RaftmqSystem, Security
from bench.scenarios import SCENARIOS
from bench.system import Sample
from raftmq.errors import OutcomeUnknown, Unavailable

WORKS = ("produce-10kB", "single-200B")
"""Scenarios of `bench.scenarios`: the work of the user who is measured."""
NOISY, NOISY_TOPIC = "noisy", "bench-noisy"
"""The other user, and its topic."""
NOISY_TASKS, NOISY_BATCH, NOISY_BYTES = 16, 20, 10_000
"""Its load: calls at one time, messages of a call, bytes of a message."""
SETTLE_SECONDS = 2.0
"""From the start of the other user's load on: its burst is used up, and its program is loaded."""


class Beside(Enum):
    """The company of the user who is measured."""

    ALONE = "alone"
    QUOTA = "beside a user under a quota"
    FREE = "beside a user without one"


class Row(NamedTuple):
    """One work beside one company."""

    work: str
    beside: Beside
    messages_per_s: float
    p50_ms: float
    noisy_mb_per_s: float
    """Megabytes a second that the other user had acknowledged."""
    ratios: tuple[float, float]
    """Rate and p50, to those of the same round alone."""


Cell = tuple[Sample, float]
"""The sample of a work, and the megabytes a second that the other user had acknowledged."""


def admin_url(system: RaftmqSystem) -> str:
    """The URL of the administrator, whose certificate the login of the load takes the place of."""
    return system.url.rpartition("&login=")[0]


async def prepare(system: RaftmqSystem, folder: Path) -> str:
    """Make the other user with its topic; its URL."""
    url = admin_url(system)
    async with raftmq.connect(url) as mq:
        await mq.admin.create_topic(NOISY_TOPIC, queues=QUEUES)
        await mq.access.put_user(NOISY)
        await mq.access.allow(NOISY, "any", "topic", NOISY_TOPIC)
        token = await mq.access.make_token(NOISY)
    login = folder / "noisy.toml"
    login.write_text(f'token = "{token}"\n')
    return f"{url}&login={login}"


async def set_quota(system: RaftmqSystem, quota: int) -> None:
    """The other user's quota; 0: none."""
    async with raftmq.connect(admin_url(system)) as mq:
        if quota:
            await mq.access.put_quota("user", NOISY, write_bytes=quota)
        else:
            await mq.access.drop_quota("user", NOISY)


async def load(url: str) -> None:
    """The other user's load, until its process ends; each second a line with the messages that
    were acknowledged so far."""
    done = 0
    bodies = [b"x" * NOISY_BYTES] * NOISY_BATCH

    async def send(producer: Any) -> None:
        nonlocal done
        while True:
            # Under a quota a call may wait for longer than its time.
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await producer.send_many(bodies)
                done += NOISY_BATCH

    async with (
        raftmq.connect(url) as mq,
        mq.producer(NOISY_TOPIC) as producer,
        trio.open_nursery() as nursery,
    ):
        for _ in range(NOISY_TASKS):
            nursery.start_soon(send, producer)
        while True:
            await trio.sleep(0.5)
            print(done, flush=True)


@contextlib.contextmanager
def noise(url: str) -> Iterator["subprocess.Popen[str]"]:
    """A process with the other user's load."""
    command = [sys.executable, "-m", "bench.alone.fairness", "--load", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(SETTLE_SECONDS)
        yield process
    finally:
        process.kill()
        process.wait()


def measure(
    system: RaftmqSystem, work: str, beside: Beside, url: str, *, quota: int, seconds: float
) -> Cell:
    """The sample, and the other user's megabytes a second."""
    scenario = SCENARIOS[work]
    if beside is Beside.ALONE:
        return next(scenario.run(system, seconds)), 0.0
    trio.run(set_quota, system, quota if beside is Beside.QUOTA else 0)
    with noise(url) as process:
        began = time.perf_counter()
        sample = next(scenario.run(system, seconds))
        took = time.perf_counter() - began + SETTLE_SECONDS
        process.kill()
        assert process.stdout is not None
        counts = [int(line) for line in process.stdout if line.strip().isdecimal()]
    return sample, (counts or [0])[-1] * NOISY_BYTES / took / 1e6


def rows(rounds: int, seconds: float, quota: int) -> list[Row]:
    """All cells, each round on a cluster of its own."""
    found: dict[tuple[str, Beside], list[Cell]] = {}
    for number in range(rounds):
        with TemporaryDirectory() as folder, RaftmqSystem(Security.USERS) as system:
            url = trio.run(prepare, system, Path(folder))
            for work in WORKS:
                for beside in list(Beside)[:: 1 if number % 2 == 0 else -1]:
                    cell = measure(system, work, beside, url, quota=quota, seconds=seconds)
                    found.setdefault((work, beside), []).append(cell)
                    print(
                        f"round {number + 1}, {work}, {beside.value}: "
                        f"{cell[0].messages_per_s:,.0f}/s",
                        file=sys.stderr,
                    )
    return [
        summarize(work, beside, found[work, beside], found[work, Beside.ALONE])
        for work in WORKS
        for beside in Beside
    ]


def summarize(work: str, beside: Beside, cells: Sequence[Cell], alone: Sequence[Cell]) -> Row:
    """Medians over the rounds."""
    pairs = [(sample, other) for (sample, _), (other, _) in zip(cells, alone, strict=True)]
    return Row(
        work,
        beside,
        statistics.median(sample.messages_per_s for sample, _ in cells),
        statistics.median(sample.p50_ms or 0.0 for sample, _ in cells),
        statistics.median(noisy for _, noisy in cells),
        (
            statistics.median(one.messages_per_s / other.messages_per_s for one, other in pairs),
            statistics.median((one.p50_ms or 0.0) / (other.p50_ms or 1.0) for one, other in pairs),
        ),
    )


def document(found: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    """The result for programs."""
    return {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "quota_bytes": options.quota,
        "rows": [
            {
                **row._asdict(),
                "beside": row.beside.value,
                "ratios": [round(ratio, 3) for ratio in row.ratios],
            }
            for row in found
        ],
    }


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.fairness")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quota", type=int, default=2_000_000, help="bytes a second at each node")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--load", metavar="URL", help="be the other user (the program itself does)")
    options = parser.parse_args(arguments)
    if options.load:
        trio.run(load, options.load)
    facts = run_facts()
    found = rows(options.rounds, options.seconds, options.quota)
    table = Table("work", "beside", box=None, pad_edge=False)
    for heading in ("messages/s", "ratio", "p50 ms", "ratio", "other MB/s"):
        table.add_column(heading, justify="right")
    for row in found:
        rate, p50 = row.ratios
        figures = (row.messages_per_s, rate, row.p50_ms, p50, row.noisy_mb_per_s)
        title = SCENARIOS[row.work].title
        table.add_row(title, row.beside.value, *(f"{figure:,.2f}" for figure in figures))
    Console(width=120).print(table)
    if options.json:
        write_json(options.json, facts, **document(found, options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
