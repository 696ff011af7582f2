"""The campaign of CI: five minutes of faults on real processes, 100,000 messages, nothing lost.
And one short run in which something must be lost, or nothing of this means anything.

Four runs, each with a schedule of its own seed; the seeds are fixed, so that a failure is one that
can be had again. `raftmq chaos run --world real` plays others. On a slow machine fewer messages get
through in that time, and more faults come too late to be made: then further seeds are played until
both are enough. Each run must keep all its promises, however slow the machine is.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import trio

from raftmq.chaos.faults import FAULTS, Event, Schedule, World, draw, of_world
from raftmq.chaos.real import play, run, why_no_overlay
from raftmq.chaos.real.arena import RealArena
from raftmq.chaos.real.faults.nemesis import OVERLAY_ONLY
from raftmq.checkers import Verdict

SEEDS = (101, 102, 103, 104)
SPARE_SEEDS = (105, 106, 107, 108)
SECURE_SEEDS = (102, 103)
"""Runs in which all connections are under TLS."""
CERTIFICATES = (Event(8_000, "certificate-expiry", (2,)), Event(30_000, "ca-rotation"))
"""Faults of those runs, beside the ones that the others have."""
SECONDS = 75.0
MESSAGES_MIN = 100_000
KINDS_SHARE_MIN = 0.75
"""Of the kinds that this machine can make: on a busy one some find nothing to strike."""
NODES = 3
LASTS_MS = 2000
CHANGES = (
    "change-when-cut", "remove-voter", "replace-node", "add-voter", "remove-voter", "rejoin",
    "two-changes",
)  # fmt: skip
"""Changes of members, in an order in which each finds the members that it needs: in one run."""
KINDS = [fault for fault in of_world(World.REAL) if fault.nodes_min <= NODES]
"""Faults that three nodes can have: all but `majorities-ring`."""
CAN = [fault.name for fault in KINDS if not (why_no_overlay() and fault.name in OVERLAY_ONLY)]
"""Names of faults that this machine can make."""


def dealt(seed: int) -> list[Event]:
    """Each kind falls to one seed in four, which plays it once, spread over the time of faults.

    Drawn events alone would leave out more than half of the kinds.
    """
    place = seed % len(SEEDS)
    others = [fault.name for fault in KINDS if fault.name not in CHANGES]
    mine = others[place :: len(SEEDS)]
    Random(seed).shuffle(mine)
    heal_ms = Schedule(seed, SECONDS, ()).heal_ms
    events = []
    for names in (mine, CHANGES if place == 0 else ()):
        step = (heal_ms - 6000) // max(len(names), 1)
        for number, name in enumerate(names):
            (event, *_) = draw(seed, [FAULTS[name]], nodes=NODES, seconds=SECONDS).events
            lasts_ms = LASTS_MS if event.lasts_ms else 0
            events.append(event._replace(at_ms=2000 + number * step, lasts_ms=lasts_ms))
    return events


def dense(seed: int) -> Schedule:
    """The seed's drawn events and those dealt to it."""
    drawn = draw(seed * 1000, of_world(World.REAL), nodes=NODES, seconds=SECONDS)
    return drawn._replace(seed=seed, events=tuple(sorted((*drawn.events, *dealt(seed)))))


def test_each_kind_that_three_nodes_can_have_is_due_in_the_four_runs() -> None:
    due = {event.fault for seed in SEEDS for event in dense(seed).events}
    assert due == {fault.name for fault in KINDS}
    assert {fault.name for fault in of_world(World.REAL)} - due == {"majorities-ring"}


@pytest.mark.process
@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_five_minutes_of_faults_lose_none_of_100_000_messages(tmp_path: Path) -> None:
    acked, kinds_min = 0, KINDS_SHARE_MIN * len(CAN)
    struck: set[str] = set()
    for seed in (*SEEDS, *SPARE_SEEDS):
        if seed in SPARE_SEEDS and acked >= MESSAGES_MIN and len(struck) >= kinds_min:
            break
        is_secure = seed in SECURE_SEEDS
        added = CERTIFICATES if is_secure else ()
        schedule = dense(seed)
        outcome = run(
            schedule._replace(events=tuple(sorted((*schedule.events, *added)))),
            folder=tmp_path / str(seed),
            is_liveness=seed % 2 == 0,
            is_secure=is_secure,
        )
        assert outcome.verdict is Verdict.VALID, str(outcome)
        acked += outcome.counts["total-queue: acknowledged"]
        struck |= set(outcome.struck)
    assert acked >= MESSAGES_MIN
    assert len(struck) >= kinds_min, f"never struck: {sorted(set(CAN) - struck)}"


@pytest.mark.process
@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(why_no_overlay()), reason=why_no_overlay())
def test_disks_that_ignore_syncs_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power_off = RealArena._power_off

    async def spoil_first(arena: RealArena, nodes: Sequence[int]) -> None:
        for node in nodes:
            await arena.state.nodes.disks.set(node, ignores_syncs=True)
        await trio.sleep(3.0)
        await power_off(arena, nodes)

    monkeypatch.setattr(RealArena, "_power_off", spoil_first)
    # Lost messages never come back: waiting longer is of no use.
    monkeypatch.setattr(play, "RECOVERY_SECONDS_MAX", 8.0)
    monkeypatch.setattr(play, "DRAIN_SECONDS_MAX", 8.0)
    everyone = Event(500, "power-loss-all", (1, 2, 3))
    outcome = run(Schedule(1, 8.0, (everyone,)), folder=tmp_path)
    assert outcome.verdict is Verdict.INVALID, dict(outcome.counts)
