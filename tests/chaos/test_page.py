"""The pages say which campaigns CI plays, and with how many seeds: as the tests have it."""

import re
from pathlib import Path

from tests.chaos.core import test_campaign as core
from tests.chaos.sim import test_campaign as sim
from tests.chaos.sim import test_clocks as clocks
from tests.chaos.sim import test_flows as flows
from tests.chaos.sim import test_members as members
from tests.chaos.sim import test_pop_campaign as pop

DOCS = Path(__file__).parent.parent.parent / "docs"
PLAYED = {
    "core": (core.SEEDS, core.SECONDS),
    "sim": (len(sim.SEEDS), sim.SECONDS),
    "pop": (len(pop.SEEDS), pop.SECONDS),
    "pop-short": (len(pop.SHORT_SEEDS), pop.SHORT_SECONDS),
    "members": (len(members.SEEDS), members.SECONDS),
    "flows": (len(flows.SEEDS), flows.SECONDS),
    "clocks": (len(clocks.SEEDS) * len(clocks.WORKLOADS), clocks.SECONDS),
    "clocks-members": (len(clocks.MEMBER_SEEDS), clocks.MEMBER_SECONDS),
}
"""By campaign: how many seeds, and the simulated seconds of each."""


def test_page_of_chaos_names_each_campaign_with_its_seeds() -> None:
    text = (DOCS / "chaos" / "index.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| .* \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert {name: (int(seeds), float(seconds)) for name, seeds, seconds in rows} == PLAYED
    assert set(sim.WORKLOADS) == set(
        re.findall(r"`(\w+)`", text.split("| sim | ")[1].split("|")[0])
    )


def test_at_least_a_hundred_seeds_pop() -> None:
    assert len(pop.SEEDS) + len(pop.SHORT_SEEDS) >= 100


def test_page_of_guarantees_names_campaigns_with_their_seeds() -> None:
    text = (DOCS / "guarantees.md").read_text().split("## Which campaign plays what")[1]
    told = re.findall(r"([a-z-]+) \((\d+)\)", text.split("## What is not promised")[0])
    assert {(name, int(seeds)) for name, seeds in told} == {
        (name, seeds) for name, (seeds, _) in PLAYED.items()
    }
