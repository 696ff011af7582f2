"""Runs whose nodes have bounds so small that work stops at each of them.

A node parts long work: a turn of the loop ends by the clock, a look, an answer and a list have a
bound, and work that is too long is left to a task. No load of a simulated run is that long, and
simulated time stands still within a step. So one in `SMALL_EVERY` runs has bounds of a batch, a
message or a comparison, in all nodes: whatever may come between two parts of a work, comes there.
"""

from contextlib import ExitStack
from types import ModuleType
from unittest import mock

from raftmq.broker import loop_budget
from raftmq.broker.deliver import matching, popping, wide_topics
from raftmq.broker.quotas import pace
from raftmq.broker.serve import fetches, pages

SMALL_EVERY = 10
_TURN = 8
"""The one of `SMALL_EVERY` seeds in a row that has small bounds."""
SMALL: dict[tuple[ModuleType, str], float] = {
    (loop_budget, "TURN_SECONDS"): 0.0,
    (loop_budget, "MASKS_WORK_MAX"): 1,
    (matching, "STEP_BYTES"): 0,
    (matching, "RECENT_MAX"): 0,
    (popping, "CLOSED_MAX"): 1,
    (popping, "OPENING_QUEUES_MAX"): 0,
    (wide_topics, "WIDE_QUEUES"): 3,
    (pace, "WORK_MAX"): 1,
    (fetches, "BATCHES_MAX"): 4,
    (pages, "LOOKS_MAX"): 1,
}
"""Module and name of each bound, and its value in such a run."""


def small_bounds(seed: int) -> ExitStack:
    """A context in which the nodes have small bounds, if it is this seed's turn."""
    stack = ExitStack()
    if seed % SMALL_EVERY == _TURN:
        for (module, name), value in SMALL.items():
            stack.enter_context(mock.patch.object(module, name, value))
    return stack
