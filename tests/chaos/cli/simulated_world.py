"""A world that decides by the schedule alone, so that commands can be tested without a cluster."""

import hashlib
from collections import Counter

from raftmq.chaos.faults import Schedule, World
from raftmq.chaos.outcome import Coverage, Outcome, Violation
from raftmq.checkers import Verdict
from tests.chaos.report.made_up import history


def play(schedule: Schedule, workload: str = "log") -> Outcome:
    """A `kill` loses a message; a fault in the first half of a second strikes no node."""
    kills = [event for event in schedule.events if event.fault == "kill"]
    found = [Violation("lost-middle", event.at_ms, f"{workload} lost one") for event in kills[:1]]
    return Outcome(
        World.SIM,
        schedule,
        Verdict.INVALID if found else Verdict.VALID,
        tuple(found),
        hashlib.sha256(schedule.to_json().encode()).hexdigest(),
        {"acked": 10, "elections": 1},
        {Coverage("leader", "same", "level", event.fault): 1 for event in schedule.events},
        schedule.seconds,
        history=history(lost=1 if found else 0, operations=80),
        struck=Counter(event.fault for event in schedule.events if event.at_ms >= 500),
    )
