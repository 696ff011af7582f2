"""Property tests: whatever the network and the disks do, Raft's promises hold at every step.

The simulation is `raftmq.chaos.core`; here it plays both modes of storage writes.
"""

from collections import Counter
from dataclasses import replace

import pytest

from raftmq.chaos.core import draw_schedule, draw_settings, run
from raftmq.chaos.faults import FAULTS
from raftmq.chaos.outcome import Outcome

SECONDS = 16.0
SEEDS = range(100, 110)
KINDS = [
    FAULTS[name]
    for name in ("isolate-leader", "split-halves", "power-loss", "pause-leader", "replace-node",
                 "loss", "kill-majority")
]  # fmt: skip


def play(seed: int, *, is_async: bool) -> Outcome:
    settings = replace(draw_settings(seed), is_async=is_async)
    return run(draw_schedule(seed, seconds=SECONDS, kinds=KINDS), settings)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_promises_hold_at_every_step(is_async: bool) -> None:
    total: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = play(seed, is_async=is_async)
        assert outcome.is_good, str(outcome)
        total.update(outcome.counts)
    assert total["elections"] > 2 * len(SEEDS)
    assert total["committed"] > 50 * len(SEEDS)
    # Never vacuous: what is rare happened too.
    happened = ["crashes", "starts", "messages lost", "snapshots taken", "snapshots installed",
                "fetched", "memberships applied", "reads", "CONFLICT_FOUND", "APPEND_REJECTED",
                "VOTE_REJECTED", "SNAPSHOT_SENT"]  # fmt: skip
    assert [name for name in happened if total[name] < 3] == []


def test_same_seed_gives_the_same_run() -> None:
    first, second = play(107, is_async=True), play(107, is_async=True)
    assert first.trace_hash == second.trace_hash
    assert first.counts == second.counts
