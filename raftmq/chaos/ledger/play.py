"""One run of a random log, with an outcome as the worlds give it."""

from random import Random

from raftmq.chaos.faults import Schedule, World
from raftmq.chaos.ledger.random_log import RandomLog
from raftmq.chaos.outcome import Outcome, Violation
from raftmq.checkers import Verdict
from raftmq.pop.policy import RUN_MAX, Mode, Order, Policy

STEPS = 300
"""Random steps of a run, which give about as many records."""
PLAIN = (
    (Mode.POP, Policy(schedule_ms=(10, 50), attempts_max=3, invisible_ms=40)),
    (Mode.POP, Policy(schedule_ms=(25,), attempts_max=2)),
)
"""Groups without order."""


def _ordered(run: int) -> tuple[tuple[Mode, Policy], ...]:
    """One group of each kind of order."""
    return tuple(
        (Mode.ORDERED, Policy((10, 50), 3, 40, order, is_blocking, length))
        for order, length in ((Order.KEY, run), (Order.QUEUE, 1))
        for is_blocking in (False, True)
    )


ORDERED, RUNS = _ordered(1), _ordered(RUN_MAX)
"""Ordered groups whose leases have one message of a key, and any number of them."""
CROWDS = (0, 0, 0, 100, 0, 0, 120, 30)
"""By seed: consumers that wait for messages, mostly in vain."""


def play(seed: int) -> Outcome:
    """Write a random log and judge it; the seed decides whether groups are ordered and crowded."""
    modes = (PLAIN, ORDERED, PLAIN, RUNS, PLAIN, RUNS, PLAIN, ORDERED)[seed % 8]
    log = RandomLog(Random(f"log {seed}"), modes, CROWDS[seed % len(CROWDS)])
    violations = []
    try:
        ledger = log.play(STEPS)
        violations = [Violation(one.number, log.now, str(one)) for one in ledger.breaches]
    except AssertionError as error:
        violations = [Violation("assert", log.now, f"assert: {error}")]
    except (IndexError, KeyError, ValueError) as error:
        violations = [Violation("error", log.now, f"{type(error).__name__}: {error}")]
    return Outcome(
        World.CORE,
        Schedule(seed, log.now / 1000, ()),
        Verdict.INVALID if violations else Verdict.VALID,
        tuple(violations),
        counts={
            "records": log.ledger.records,
            "handed out": len(log.ledger.handed),
            "twins compared": log.twin.compared,
            "commits and deletions": log.ledger.committed.commands,
            "feeds that crossed a change of filter": log.filters.late,
        },
        simulated_seconds=log.now / 1000,
    )
