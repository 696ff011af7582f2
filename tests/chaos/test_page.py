"""The pages say which campaigns CI plays, and with how many seeds: as the tests have it."""

import re
from pathlib import Path

import pytest

from raftmq.chaos.faults import VISITS
from raftmq.checkers import total_queue
from raftmq.checkers.log import anomalies
from tests.chaos.core import test_campaign as core
from tests.chaos.ledger import test_pop_log as logs
from tests.chaos.real import test_campaign as real
from tests.chaos.sim import test_admin as admin
from tests.chaos.sim import test_availability as service
from tests.chaos.sim import test_campaign as sim
from tests.chaos.sim import test_clocks as clocks
from tests.chaos.sim import test_flows as flows
from tests.chaos.sim import test_members as members
from tests.chaos.sim import test_pop_campaign as pop
from tests.chaos.sim import test_returning as returning
from tests.chaos.sim import test_users as users

DOCS = Path(__file__).parent.parent.parent / "docs"
PLAYED = {
    "core": (core.SEEDS, core.SECONDS),
    "sim": (len(sim.SEEDS), sim.SECONDS),
    "pop": (len(pop.SEEDS), pop.SECONDS),
    "pop-short": (len(pop.SHORT_SEEDS), pop.SHORT_SECONDS),
    "members": (len(members.SEEDS), members.SECONDS),
    "flows": (len(flows.SEEDS), flows.SECONDS),
    "service": (len(service.SEEDS), service.SECONDS),
    "admin": (len(admin.SEEDS), admin.SECONDS),
    "clocks": (len(clocks.SEEDS) * len(clocks.WORKLOADS), clocks.SECONDS),
    "clocks-members": (len(clocks.MEMBER_SEEDS), clocks.MEMBER_SECONDS),
    "returning": (len(returning.SEEDS), returning.SECONDS),
    "users": (len(users.SEEDS) * len(users.WORKLOADS), users.SECONDS),
    "real": (len(real.SEEDS), real.SECONDS),
    "random-logs": (logs.SEEDS * len(logs.MODES), logs.RECORDS),
}
"""By campaign: how many seeds, and the seconds of each in its world; of random logs, the records.
"""

JUDGED_BY = {"2. Stored once": total_queue.CHECKER, "3. Order per key": anomalies.CHECKER}
"""Promises that only some workloads of the campaign `sim` can break, and the checker of each."""

SCHEDULES = {
    "sim": map(sim.schedule_of, sim.SEEDS),
    "pop": map(pop.schedule_of, pop.SEEDS),
    "pop-short": map(pop.SHORT_PLAN.schedule, pop.SHORT_SEEDS),
    "members": map(members.schedule_of, members.SEEDS),
    "flows": map(flows.PLAN.schedule, flows.SEEDS),
    "admin": map(admin.PLAN.schedule, admin.SEEDS),
    "returning": map(returning.schedule_of, returning.SEEDS),
    **{
        f"clocks {workload}": map(clocks.plan_of(workload).schedule, clocks.SEEDS)
        for workload in clocks.WORKLOADS
    },
    "clocks-members": map(clocks.plan_of("members").schedule, clocks.MEMBER_SEEDS),
}
"""Schedules that the campaigns of whole brokers play."""


@pytest.mark.parametrize("campaign", SCHEDULES)
def test_strangers_repeats_and_outages_are_drawn_in_each_campaign(campaign: str) -> None:
    schedules = list(SCHEDULES[campaign])
    assert set(VISITS) <= {event.fault for one in schedules for event in one.events}


def test_page_of_chaos_names_each_campaign_with_its_seeds() -> None:
    text = (DOCS / "chaos" / "index.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| .* \| (\d+) \| (\d+)(?: records)? \|$", text, re.MULTILINE)
    assert {name: (int(seeds), float(seconds)) for name, seeds, seconds in rows} == PLAYED
    assert set(sim.WORKLOADS) == set(
        re.findall(r"`(\w+)`", text.split("\n| sim | ")[1].split("|")[0])
    )


def test_at_least_a_hundred_seeds_pop() -> None:
    assert len(pop.SEEDS) + len(pop.SHORT_SEEDS) >= 100


def test_page_of_guarantees_names_campaigns_with_their_seeds() -> None:
    text = (DOCS / "guarantees.md").read_text().split("## Which campaign plays what")[1]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", text.split("## What is not")[0], re.MULTILINE)
    named = set()
    for promise, campaigns in rows:
        for name, seeds in re.findall(r"([a-z-]+) \((\d+)\)", campaigns):
            judged = JUDGED_BY.get(promise) if name == "sim" else None
            played = PLAYED[name][0] if judged is None else len(seeds_with(judged))
            assert int(seeds) == played, (promise, name)
            named.add(name)
    assert named == set(PLAYED)


def seeds_with(checker: str) -> list[int]:
    """The seeds of the campaign `sim` whose workload has this checker."""
    return [seed for seed in sim.SEEDS if checker in sim.CHECKERS[sim.workload_of(seed)]]


def test_each_promise_has_its_row_of_campaigns() -> None:
    promises, _, rows = (DOCS / "guarantees.md").read_text().partition("## Which campaign plays")
    headings = re.findall(r"^### (.*)\n\n> ", promises, re.MULTILINE)
    assert headings == re.findall(r"^### (.*)$", promises, re.MULTILINE)
    assert headings == re.findall(r"^\| (?!promise|-)(.*?) \| ", rows, re.MULTILINE)


def test_each_bug_of_the_track_record_has_one_row() -> None:
    table = (DOCS / "chaos" / "track-record.md").read_text().split("## Clean seeds")[0]
    bugs = re.findall(r"^\| (.*?) \| ", table, re.MULTILINE)
    assert len(bugs) > 200
    assert [bug for bug in set(bugs) if bugs.count(bug) > 1] == []
