"""The campaign of CI: five minutes of faults on real processes, 100,000 messages, nothing lost.
And one short run in which something must be lost, or nothing of this means anything.

Four runs, each with a schedule of its own seed; the seeds are fixed, so that a failure is one that
can be had again. `raftmq chaos run --world real` plays others. On a slow machine fewer messages get
through in that time, and more faults come too late to be made: then further seeds are played until
both are enough. What a run promises is demanded of each, however slow the machine is.
"""

from pathlib import Path

import pytest
import trio

from raftmq.chaos.checkers import Verdict
from raftmq.chaos.faults import Event, Schedule, World, draw, of_world
from raftmq.chaos.real import play, run, why_no_overlay
from raftmq.chaos.real.handlers import ONCE
from raftmq.chaos.real.stage import Stage

SEEDS = (101, 102, 103, 104)
SPARE_SEEDS = (105, 106, 107, 108)
SECONDS = 75.0
MESSAGES_MIN = 100_000
KINDS_MIN = 25
DRAWS = 2
"""A schedule is laid together from so many, so that more kinds meet than a seed draws."""


def dense(seed: int) -> Schedule:
    """The events of several seeds in one run."""
    kinds = of_world(World.REAL)
    drawn = [draw(seed * 1000 + n, kinds, nodes=3, seconds=SECONDS) for n in range(DRAWS)]
    events: list[Event] = sorted(event for one in drawn for event in one.events)
    return Schedule(seed, SECONDS, tuple(events))


@pytest.mark.process
@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_five_minutes_of_faults_lose_none_of_100_000_messages(tmp_path: Path) -> None:
    acked = 0
    struck: set[str] = set()
    for seed in (*SEEDS, *SPARE_SEEDS):
        if seed in SPARE_SEEDS and acked >= MESSAGES_MIN and len(struck) >= KINDS_MIN:
            break
        outcome = run(dense(seed), folder=tmp_path / str(seed), is_liveness=seed % 2 == 0)
        assert outcome.verdict is Verdict.VALID, str(outcome)
        acked += outcome.counts["total-queue: acknowledged"]
        struck |= {name for name in outcome.counts if name.startswith("fault ")}
    assert acked >= MESSAGES_MIN
    assert len(struck) >= KINDS_MIN, sorted(struck)


@pytest.mark.process
@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(why_no_overlay()), reason=why_no_overlay())
def test_disks_that_ignore_syncs_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_power = ONCE["power-loss-all"]

    async def spoil_first(stage: Stage, event: Event) -> None:
        for node in stage.nodes_of(event):
            await stage.nodes.disks.set(node, ignores_syncs=True)
        await trio.sleep(3.0)
        await lose_power(stage, event)

    monkeypatch.setitem(ONCE, "power-loss-all", spoil_first)
    # What is lost does not come back, however long one waits.
    monkeypatch.setattr(play, "RECOVERY_SECONDS_MAX", 8.0)
    monkeypatch.setattr(play, "DRAIN_SECONDS_MAX", 8.0)
    everyone = Event(500, "power-loss-all", (1, 2, 3))
    outcome = run(Schedule(1, 8.0, (everyone,)), folder=tmp_path)
    assert outcome.verdict is Verdict.INVALID, dict(outcome.counts)
