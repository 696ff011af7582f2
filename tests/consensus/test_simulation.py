"""Property tests: whatever the network and the disks do, Raft's promises hold at every step.

The simulation is `raftmq.chaos.core`, which runs the broker's own loop over simulated disks.
"""

from collections import Counter

from raftmq.chaos.core import draw_schedule, run
from raftmq.chaos.faults import FAULTS
from raftmq.chaos.outcome import Outcome

SECONDS = 16.0
SEEDS = range(100, 120)
KINDS = [
    FAULTS[name]
    for name in ("isolate-leader", "split-halves", "power-loss", "pause-leader", "replace-node",
                 "loss", "kill-majority")
]  # fmt: skip


def play(seed: int) -> Outcome:
    return run(draw_schedule(seed, seconds=SECONDS, kinds=KINDS))


def test_promises_hold_at_every_step() -> None:
    total: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = play(seed)
        assert outcome.is_good, str(outcome)
        total.update(outcome.counts)
    assert total["elections"] > 2 * len(SEEDS)
    assert total["committed"] > 50 * len(SEEDS)
    # Never vacuous: rare events happened, too.
    happened = ["crashes", "starts", "messages lost", "snapshots taken", "snapshots installed",
                "fetched", "memberships applied", "reads", "CONFLICT_FOUND", "APPEND_REJECTED",
                "VOTE_REJECTED", "SNAPSHOT_SENT"]  # fmt: skip
    assert [name for name in happened if total[name] < 3] == []


def test_same_seed_gives_the_same_run() -> None:
    first, second = play(107), play(107)
    assert first.trace_hash == second.trace_hash
    assert first.counts == second.counts
