"""The age of the oldest message that a live page shows: `python -m bench.pipeline.live`.

    python -m bench.pipeline.live [--rates 5000,20000,50000] [--seconds 60] [--warm 20]
                                  [--json FILE]

Three node processes, a process that sends at an even rate, and `raftmq pipeline live` as a process
of its own run on this machine together. This process reads the page's events as a browser does. For
each picture, the age of the oldest message in the picture's batch is the time at which the picture
arrives minus the time at which the message was made. Pictures of the warm-up, which begins with the
first picture that shows a message, are left out. At the end the windows, flushed by `--once`, are
compared with the messages that were sent: counts and sums must be equal.

| figure | meaning |
|---|---|
| `age_p50`, `age_p95`, `age_max` | age of the oldest message shown, seconds |
| `pictures` | number of measured pictures |
| `sent_rate` | messages a second that the sender reached |
| `is_exact` | true if counts and sums of the windows equal those of the messages sent |
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio.from_thread import start_blocking_portal
from pyarrow import compute, parquet

import raftmq
from bench.machine import run_facts, warning
from raftmq import testing

TOPIC = "trades"
QUEUES = 4
TAGS = ("books", "electronics", "garden", "groceries", "music", "shoes", "toys", "travel")
TICK_SECONDS = 0.02
"""Pause between two sends of the producer."""
BOARD = ["--by", "tag", "--json", "cents bigint, buyer string", "--sum", "json.cents as cents",
         "--distinct", "json.buyer as buyers", "--event", "created"]  # fmt: skip


def main() -> None:
    """Measure each rate and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", default="5000,20000,50000")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=20.0)
    parser.add_argument("--json", type=Path, help="write the result there, not to the terminal")
    parser.add_argument("--send", nargs=2, metavar=("URL", "RATE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send:
        url, rate = given.send
        print(json.dumps(anyio.run(send, url, int(rate), backend="trio")))
        return
    if (words := warning()) is not None:
        print(words, file=sys.stderr)
    facts = run_facts()
    found = [measure(int(rate), given.seconds, given.warm) for rate in given.rates.split(",")]
    text = json.dumps({**facts, "rates": found}, indent=2)
    if given.json is None:
        print(text)
    else:
        given.json.write_text(text + "\n")


async def send(url: str, rate: int) -> dict[str, int]:
    """Send at an even rate until SIGTERM; returns count, sum of cents, and rate."""
    chooser = random.Random(1)
    # Bodies are made in advance: the sender shares the cores with the processes under test.
    cents = [chooser.randrange(10_000) for _ in range(20_000)]
    bodies = [
        json.dumps({"cents": value, "buyer": str(chooser.randrange(50_000))}).encode()
        for value in cents
    ]
    tags = chooser.choices(TAGS, range(len(TAGS), 0, -1), k=len(bodies))
    count = total = 0
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    async with raftmq.connect(url) as mq, mq.producer(TOPIC) as producer:
        begun = time.monotonic()
        while not is_over.is_set():
            due = min(int((time.monotonic() - begun) * rate) - count, len(bodies))
            if due:
                at = count % (len(bodies) - due + 1)
                part = slice(at, at + due)
                await producer.send_many(bodies=bodies[part], tags=tags[part])
                count += due
                total += sum(cents[part])
            await anyio.sleep(TICK_SECONDS)
        took = time.monotonic() - begun
    return {"count": count, "cents": total, "rate": round(count / took)}


def measure(rate: int, seconds: float, warm: float) -> dict[str, object]:
    """Measure one rate, on a new cluster."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raftmq-live-")))
        portal = stack.enter_context(start_blocking_portal("trio"))
        nodes = stack.enter_context(portal.wrap_async_context_manager(testing.cluster(3)))
        with raftmq.blocking.connect(nodes.url) as mq:
            mq.admin.create_topic(TOPIC, queues=QUEUES)
        job, page = _start(nodes.url, folder)
        stack.callback(_stop, job)
        sender = subprocess.Popen(
            [sys.executable, "-m", "bench.pipeline.live",
             "--send", nodes.url, str(rate)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        stack.callback(sender.kill)
        ages = _watch(page, warm, seconds)
        sender.terminate()
        told, _ = sender.communicate(timeout=120)
        sent = json.loads(told)
        _stop(job)
        closed = _finish(nodes.url, folder)
    return {
        "rate": rate,
        "sent_rate": sent["rate"],
        "pictures": len(ages),
        "age_p50": round(ages[len(ages) // 2], 3),
        "age_p95": round(ages[len(ages) * 95 // 100], 3),
        "age_max": round(ages[-1], 3),
        "is_exact": closed == (sent["count"], sent["cents"]),
    }


def _command(url: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "raftmq", "pipeline", "live", TOPIC, "--url", url,
            "--out", str(folder / "live"), *BOARD]  # fmt: skip


def _start(url: str, folder: Path) -> tuple["subprocess.Popen[str]", str]:
    """Start the job; returns its process and the URL of its page."""
    job = subprocess.Popen([*_command(url, folder), "--page", "0"], stderr=subprocess.PIPE,
                           stdout=subprocess.DEVNULL, text=True)  # fmt: skip
    assert job.stderr is not None
    for line in job.stderr:
        if (found := re.search(r"http://\S+", line)) is not None:
            # The job goes on writing progress to stderr, and a full pipe would block it.
            threading.Thread(target=job.stderr.read, daemon=True).start()
            return job, found[0]
    raise SystemExit("the job ended before it served its page")


def _stop(job: "subprocess.Popen[str]") -> None:
    if job.poll() is None:
        job.send_signal(signal.SIGINT)
        job.wait(60)


def _watch(page: str, warm: float, seconds: float) -> list[float]:
    """The ages of the oldest message of each picture after the warm-up, ascending."""
    address = urlsplit(page)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", "/events")
    events = connection.getresponse()
    ages, begun = [], 0.0
    while not begun or time.time() < begun + warm + seconds:
        line = events.readline()
        if not line:
            raise SystemExit("the page ended: the job's own words are in its log")
        if line.startswith(b"data: {") and (created := json.loads(line[6:])["created"] / 1000):
            now = time.time()
            begun = begun or now
            if now > begun + warm:
                ages.append(now - created)
    connection.close()
    return sorted(ages)


def _finish(url: str, folder: Path) -> tuple[int, int]:
    """Count the remaining messages and close all windows; returns sums over all files."""
    subprocess.run([*_command(url, folder), "--once"], check=True, timeout=300,
                   env={**os.environ}, stdout=subprocess.DEVNULL)  # fmt: skip
    table = parquet.read_table(folder / "live" / "windows")
    return compute.sum(table["count"]).as_py(), compute.sum(table["cents"]).as_py()


if __name__ == "__main__":
    main()
