"""Themes: settings and faults that belong together, for some of the seeds.

A seed draws each setting and each kind of fault by itself. A bug that needs five of them at once
then shows in one seed of thousands. A seed with a *theme* draws its settings from fewer choices,
and its faults from the kinds that go with these settings.

    seed % 16 in 3, 14    deposed   leaders that stay in office alone, with writes and reads
    seed % 16 in 13, 15   borders   small segments that are superseded, damaged indexes
    seed % 16 in 5        votes     elections that fail without pre-votes, late answers
    seed % 16 in 12       stalled   disks that stall while snapshots arrive

Invariants:
- The seeds without a theme, ten of sixteen, draw as if there were no themes.
- A theme draws from a generator of its own; the seed draws all that the theme leaves open.

Sources: swarm testing (Groce et al., ISSTA 2012): a run with fewer features uses each of them more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from raftmq.chaos.faults import FAULTS, Fault, Schedule, draw

KIB = 1024

EVERY = 16
"""A seed's number modulo this decides its theme."""

NODES_MIN = 3
"""Nodes of the smallest cluster with a theme; smaller ones, which only a plan asks for, draw from
all kinds of faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Settings and faults that belong together."""

    choices: Mapping[str, Sequence[Any]]
    """By name of a setting: the values it is drawn from."""
    kinds: frozenset[str]
    """Names of the faults to draw from."""
    longer: int = 1
    """Faults last this many times as long as drawn."""
    is_strongest: bool = False
    """Faults have the highest level of their kind, not a drawn one."""


VOTES = Theme(
    choices={
        "nodes": (3, 4, 5, 5),
        "pre_vote": (False,),
        "heartbeat_ticks": (1,),
        "election_ticks": (4, 6),
        "delay_ms": (50.0, 150.0, 300.0),
        "duplication": (0.3,),
        "reordering": (0.0, 0.3),
    },
    kinds=frozenset(
        (
            "split-majority", "split-minority-third", "split-halves", "isolate-leader",
            "constrained-election", "kill-leader", "pause-leader",
        )
    ),
)  # fmt: skip
"""Elections that fail, and answers that come late or twice."""

DEPOSED = Theme(
    choices={
        "nodes": (5, 5, 5, 3, 7),
        "check_quorum": (False,),
        "heartbeat_ticks": (1,),
        "election_ticks": (4, 6),
        "message_bytes_max": (0, 0, 200),
        "delay_ms": (0.0, 50.0, 100.0),
        "proposals_per_second": (5.0, 10.0),
        "reads_per_second": (4.0, 10.0),
        "newest_share": (0.1, 0.3),
    },
    kinds=frozenset(
        (
            "isolate-leader", "split-majority", "split-minority-third", "split-halves",
            "pause-leader", "kill-leader",
        )
    ),
    longer=4,
)  # fmt: skip
"""Leaders that go on alone, and whose long logs are superseded record by record."""

BORDERS = Theme(
    choices={
        "nodes": (3, 3, 5),
        "check_quorum": (False,),
        "heartbeat_ticks": (1,),
        "election_ticks": (4, 6),
        "segment_bytes": (KIB,),
        "segments_kept": (32, 1000),
        "cache_bytes": (2 * KIB,),
        "newest_share": (0.1, 0.3),
        "index_damage_share": (0.9,),
        "index_loss_share": (0.0, 0.3),
    },
    kinds=frozenset(("isolate-leader", "split-majority", "bit-flip", "kill-all")),
    longer=4,
)
"""Superseded segments, and indexes that are read by and damaged."""

STALLED = Theme(
    choices={
        "nodes": (3, 3, 5),
        "heartbeat_ticks": (1,),
        "message_bytes_max": (1024 * KIB,),
        "segment_bytes": (KIB,),
        "segments_kept": (1,),
        "proposals_per_second": (10.0,),
        "delay_ms": (50.0, 100.0),
        "duplication": (0.3,),
        "reordering": (0.3,),
        "stall_share": (0.15, 0.3),
        "jobs_first": (True,),
    },
    kinds=frozenset(("slow-disk", "isolate-node")),
    longer=4,
    is_strongest=True,
)
"""Followers that need snapshots all the time, and whose disks stall while the next one arrives."""

THEMES: Mapping[int, Theme] = {
    3: DEPOSED,
    5: VOTES,
    12: STALLED,
    13: BORDERS,
    14: DEPOSED,
    15: BORDERS,
}
"""By seed modulo `EVERY`. A theme leaves kinds of faults out, so most seeds have no theme."""


def theme_of(seed: int) -> Theme | None:
    """The theme of a seed, if it has one."""
    return THEMES.get(seed % EVERY)


def chosen_settings(seed: int) -> dict[str, Any]:
    """The settings that the theme of a seed chooses; empty: the seed has no theme."""
    theme = theme_of(seed)
    if theme is None:
        return {}
    random = Random(f"theme {seed}")
    return {name: random.choice(values) for name, values in theme.choices.items()}


def draw_themed(seed: int, kinds: Sequence[Fault], *, nodes: int, seconds: float) -> Schedule:
    """The schedule of a seed, by its theme if it has one; arguments as for `draw`."""
    theme = theme_of(seed)
    # Fewer nodes can hardly be split, and most faults of a theme would miss.
    if theme is None or nodes < NODES_MIN:
        return draw(seed, kinds, nodes=nodes, seconds=seconds)
    chosen = [fault for fault in kinds if fault.name in theme.kinds]
    schedule = draw(seed, chosen, nodes=nodes, seconds=seconds)
    heal_ms, longer = schedule.heal_ms, theme.longer
    events = [
        event._replace(lasts_ms=min(event.lasts_ms * longer, heal_ms - event.at_ms))
        for event in schedule.events
    ]
    if theme.is_strongest:
        events = [
            event._replace(level=max(FAULTS[event.fault].levels, default=event.level))
            for event in events
        ]
    return schedule._replace(events=tuple(events))
