"""Tests of the tests: each invariant that evidence decides, broken on purpose, is named."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import raftmq.chaos
from raftmq.checkers import (
    ANOMALIES,
    INVARIANTS,
    Acknowledged,
    Derived,
    Entry,
    Evidence,
    Moment,
    NodeLog,
    ProgressAt,
    Recovery,
    Served,
    SyncFailed,
    Verdict,
    check_evidence,
)
from tests.quality.mutants import MUTANTS


def log_of(*terms: int) -> tuple[Entry, ...]:
    """Entries of these terms; the checksum tells index and term."""
    entries, chain = [], 0
    for index, term in enumerate(terms, 1):
        crc = index * 100 + term
        entries.append(Entry(index, term, crc, chain))
        chain = crc
    return tuple(entries)


LOG = log_of(1, 1, 2, 2)


def moment(time: int, node: int, role: str = "follower", **changes: int) -> Moment:
    """Term 2, all four entries there and committed."""
    one = Moment(time, node, 1, role, 2, 1, 4, 4, 4, LOG[-1].crc)
    return one._replace(**changes)  # type: ignore[arg-type]


HEALTHY = Evidence(
    nodes=(
        NodeLog(1, LOG, commit=4, applied=4, digests={4: 77}),
        NodeLog(2, LOG, commit=4, applied=4, digests={4: 77}),
        NodeLog(3, LOG[2:], base=LOG[1], commit=3, applied=3, digests={3: 55}),
    ),
    timeline=(
        moment(1, 3, "leader", term=1, vote=3, commit=1, applied=1, last=2, last_crc=LOG[1].crc),
        moment(2, 1, "leader", commit=1, applied=1, last=3, last_crc=LOG[2].crc),
        moment(3, 2, vote=1, commit=2, applied=1, last=3, last_crc=LOG[2].crc),
        moment(4, 1, "leader", commit=3, applied=3),
        # A restart may forget what was committed, not the term nor the vote.
        moment(5, 2, incarnation=2, commit=0, applied=0),
        moment(6, 1, "leader"),
    ),
    progress=(ProgressAt(4, 1, 2, 2, 3, 4), ProgressAt(6, 1, 2, 2, 4, 5)),
    acknowledged=(Acknowledged(6, 1, 1, LOG[3]),),
    recoveries=(Recovery(2, 3, 4, 9, 9),),
    served=(Served(1, 3, LOG[2].crc),),
    sync_failures=(SyncFailed(9, 2, 1),),
    derived=(Derived(1, "queue index", 5, 5),),
)

OTHER = Entry(4, 3, 999, LOG[2].crc)


def with_node(place: int, **changes: object) -> Evidence:
    nodes = list(HEALTHY.nodes)
    nodes[place] = replace(nodes[place], **changes)  # type: ignore[arg-type]
    return replace(HEALTHY, nodes=tuple(nodes))


def then(*moments: Moment) -> Evidence:
    return replace(HEALTHY, timeline=(*HEALTHY.timeline, *moments))


BREACHES: dict[str, Callable[[], Evidence]] = {
    "R1": lambda: then(moment(7, 2, "leader", incarnation=2)),
    "R2": lambda: then(moment(7, 1, "leader", last_crc=4711)),
    "R3": lambda: with_node(1, entries=(*LOG[:3], Entry(4, 2, 999, LOG[2].crc)), commit=3),
    "R4": lambda: then(moment(7, 3, "leader", term=3, vote=3, commit=2, applied=2, last=2)),
    "R5": lambda: with_node(1, entries=(*LOG[:3], OTHER)),
    "R6": lambda: then(moment(7, 2, incarnation=3, term=1)),
    "R7": lambda: then(moment(7, 1, "leader", commit=3, applied=3)),
    "R8": lambda: then(moment(7, 1, "leader", applied=3)),
    "R9": lambda: replace(HEALTHY, progress=(*HEALTHY.progress, ProgressAt(7, 1, 2, 2, 3, 5))),
    "R10": lambda: replace(HEALTHY, progress=(ProgressAt(7, 1, 2, 2, 3, 3),)),
    "R11": lambda: then(moment(7, 2, incarnation=3, vote=2)),
    "R12": lambda: replace(
        HEALTHY,
        timeline=(
            moment(1, 1, "leader", commit=1, applied=1),
            moment(2, 1, "leader", commit=2, applied=2),
        ),
    ),
    "R13": lambda: replace(
        HEALTHY,
        nodes=(
            HEALTHY.nodes[0],
            *(NodeLog(node, LOG[:3], commit=3, digests={3: 55}) for node in (2, 3)),
        ),
    ),
    "R15": lambda: with_node(0, entries=LOG[:3], commit=3),
    "R16": lambda: then(moment(7, 1, "leader", commit=5)),
    "R18": lambda: then(moment(7, 3, "leader", term=3, is_voter=False)),
    "R19": lambda: with_node(2, base=Entry(2, 1, 999, 0)),
    "R21": lambda: with_node(1, digests={4: 78}),
    "R23": lambda: replace(
        HEALTHY,
        nodes=(
            *HEALTHY.nodes[:2],
            NodeLog(3, (*LOG[:3], OTHER), commit=3, digests={3: 55}),
        ),
    ),
    "L1": lambda: replace(HEALTHY, recoveries=(Recovery(2, 3, 4, 9, 8),)),
    "L2": lambda: replace(HEALTHY, recoveries=(Recovery(2, 5, 4, 9, 9),)),
    "L4": lambda: replace(HEALTHY, served=(Served(1, 3, 4711),)),
    "L5": lambda: replace(HEALTHY, sync_failures=(SyncFailed(5, 1, 1),)),
    "L6": lambda: replace(HEALTHY, derived=(Derived(1, "queue index", 5, 6),)),
    "L7": lambda: with_node(1, entries=(LOG[0], LOG[1]._replace(chain=4), *LOG[2:])),
    "L8": lambda: replace(HEALTHY, acknowledged=(Acknowledged(6, 1, 1, Entry(5, 2, 1, 2)),)),
}

DECIDED = {number for number, one in INVARIANTS.items() if one.decided_by == "evidence"}


def found(evidence: Evidence) -> dict[str, Verdict]:
    return {report.checker.split()[0]: report.verdict for report in check_evidence(evidence)}


def test_healthy_evidence_breaks_nothing_and_leaves_nothing_open() -> None:
    assert found(HEALTHY) == dict.fromkeys(DECIDED, Verdict.VALID)


def test_every_invariant_that_evidence_decides_is_broken_here() -> None:
    assert set(BREACHES) == DECIDED
    assert len(INVARIANTS) == 24 + 8 + 21 + 12 + 7 + 15
    assert {one.decided_by for one in INVARIANTS.values()} == {
        "evidence",
        "history",
        "log",
        "run",
        "simulator",
    }


def test_every_killer_of_a_mutant_has_a_meaning() -> None:
    killers = {killer for mutant in MUTANTS for killer in mutant.killers}
    assert killers <= set(INVARIANTS) | set(ANOMALIES)


def test_every_violation_that_a_run_reports_has_a_meaning() -> None:
    sources = [path.read_text() for path in Path(raftmq.chaos.__path__[0]).rglob("*.py")]
    names = {name for text in sources for name in re.findall(r'Violation\(\s*"([^"]+)"', text)}
    assert "audit-log" in names
    assert names <= set(INVARIANTS) | set(ANOMALIES)


@pytest.mark.parametrize("number", sorted(DECIDED))
def test_breach_is_named(number: str) -> None:
    evidence = BREACHES[number]()
    assert found(evidence)[number] is Verdict.INVALID
    (report,) = (one for one in check_evidence(evidence) if one.checker.split()[0] == number)
    assert report.names() == {number}
    assert report.counts[number] >= 1


def test_missing_evidence_is_vacuous_never_valid() -> None:
    reports = check_evidence(Evidence())
    assert {report.verdict for report in reports} == {Verdict.UNKNOWN}
    assert all(report.reason.startswith("vacuous: there is no ") for report in reports)


def test_breach_shows_the_copies_of_the_entry() -> None:
    (report,) = (one for one in check_evidence(BREACHES["R5"]()) if one.checker.startswith("R5"))
    nodes = [(copy.node, copy.entry.crc) for copy in report.anomalies[0].entries]
    assert nodes == [(1, LOG[3].crc), (2, OTHER.crc)]
