"""Property tests: whatever the network and the disks do, Raft's promises hold at every step."""

from collections import Counter

import pytest

from tests.consensus.simulation import Simulation

STEPS = 5000
SEEDS = range(12)


def run(seed: int, *, is_async: bool) -> Simulation:
    simulation = Simulation(seed, is_async=is_async)
    for _ in range(STEPS):
        simulation.step()
    assert simulation.settle(), "the cluster did not agree though all went well"
    simulation.counts["leaders"] = len(simulation.safety.leaders)
    simulation.counts["committed"] = len(simulation.safety.committed)
    simulation.counts["reads granted"] = simulation.safety.reads_granted
    return simulation


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_promises_hold_at_every_step(is_async: bool) -> None:
    total: Counter[str] = Counter()
    for seed in SEEDS:
        counts = run(seed, is_async=is_async).counts
        total += counts
        # Never vacuous: each run elects, commits and loses something.
        assert counts["leaders"] >= 1, seed
        assert counts["committed"] >= 1, seed
        assert counts["lost"] > 10, seed
    assert total["leaders"] > 2 * len(SEEDS)
    assert total["committed"] > 50 * len(SEEDS)
    happened = ["crashes", "restarts", "doubled", "compactions", "snapshots installed", "fetched",
                "memberships applied", "reads granted", "CONFLICT_FOUND", "APPEND_REJECTED",
                "VOTE_REJECTED", "TRANSFER_STARTED", "SNAPSHOT_SENT"]  # fmt: skip
    assert [name for name in happened if total[name] < 3] == []


def test_same_seed_gives_the_same_run() -> None:
    first, second = run(7, is_async=True), run(7, is_async=True)
    assert first.counts == second.counts
    assert first.safety.committed == second.safety.committed
