"""The cost of quotas to a request at its node: `python -m bench.cores.quotas`.

    python -m bench.cores.quotas [--requests 20000] [--rounds 5] [--json FILE]

| row | what |
|---|---|
| hold | nanoseconds of `Quotas.hold` for a PRODUCE |
| charge | nanoseconds of `Quotas.charge` for the answer to a fetch |

Each without quotas, with those of others, with one of the user, and with those of user and topic.
The quotas are so large that no request waits. CPU time of this process counts, and the best of
several rounds. A table goes to stdout, and JSON to the file.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio
from rich.console import Console

from bench.cores.filters import best_us
from bench.figures import Figure, table, write
from bench.machine import run_facts
from raftmq.batch import encode
from raftmq.broker.host import Host, Taken
from raftmq.broker.loop_budget import Turns
from raftmq.broker.quotas.quotas import Quotas
from raftmq.broker.serve.answers import OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.broker.settings import Limits
from raftmq.broker.timers import Timers
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node
from raftmq.machine.catalog.quotas import PutQuota, Quota, Subject, SubjectKind
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind

QUEUE = 1 << 16
AMOUNT = 1 << 50
QUOTA = Quota(AMOUNT, AMOUNT, AMOUNT, AMOUNT)
SUBJECTS = {
    "without quotas": (),
    "of others": (Subject(SubjectKind.USER, "bob"), Subject(SubjectKind.TOPIC, "bills")),
    "of the user": (Subject(SubjectKind.USER, "alice"),),
    "of user and topic": (Subject(SubjectKind.USER, "alice"), Subject(SubjectKind.TOPIC, "orders")),
}


class _Client:
    """A connection, as quotas see it."""

    user = "alice"
    from_node = 0


def made(subjects: Sequence[Subject]) -> Quotas:
    """Quotas of a node that leads a topic, `orders`."""
    catalog = Catalog()
    catalog._run_one(Bootstrap([Node(1, "a", 1)], groups=1, replicas=1), 0)
    catalog._run_one(CreateTopic("orders", 1), 0)
    for subject in subjects:
        catalog.quotas.apply(PutQuota(subject, QUOTA), index=1)
    node = SimpleNamespace(
        catalog=catalog,
        timers=Timers(),
        settings=SimpleNamespace(limits=Limits()),
        group=lambda _: SimpleNamespace(is_leader=True),
    )
    quotas = Quotas(cast("Host", node), lambda *_: ())
    quotas.follow()
    return quotas


def ns(call: Callable[[], object], requests: int, rounds: int) -> float:
    """CPU nanoseconds of one call, without those of the loop around it."""

    def work() -> None:
        for _ in range(requests):
            call()

    def nothing() -> None:
        for _ in range(requests):
            pass

    return (best_us(work, rounds, 1) - best_us(nothing, rounds, 1)) / requests * 1000


async def measure(requests: int, rounds: int) -> list[Figure]:
    """All rows."""
    connection = cast("Connection", _Client())
    body = bytes(encode([bytes(100)] * 100).to_bytes(queue=QUEUE))
    frame = Frame(FrameKind.PRODUCE, 1, b"", body)
    asked = OpenRequest(connection, frame, Turns(lambda *_: None))
    found: list[Figure] = []
    for kind, subjects in SUBJECTS.items():
        quotas = made(subjects)
        assert quotas.is_on is bool(subjects)
        call: Callable[[], Any] = lambda: quotas.hold(asked, frame, None)  # noqa: B023, E731
        assert call() is None
        found.append(Figure(f"hold: {kind}", ns(call, requests, rounds), "ns"))
    taken = [Taken(QUEUE, 10_000, 100)]
    for kind, subjects in SUBJECTS.items():
        quotas = made(subjects)
        call = lambda: quotas.charge(connection, taken)  # noqa: B023, E731
        found.append(Figure(f"charge: {kind}", ns(call, requests, rounds), "ns"))
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.cores.quotas")
    parser.add_argument("--requests", type=int, default=20_000, help="in a round")
    parser.add_argument("--rounds", type=int, default=5, help="the best one counts")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args(arguments)
    facts = run_facts()
    figures = trio.run(measure, options.requests, options.rounds)
    Console(width=140).print(table(figures))
    if options.json:
        write(options.json, facts, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
