"""This version reads logs and snapshots of earlier versions with the same meaning."""

import json
from pathlib import Path

import cbor2
import pytest

from raftmq.log.record import decode_many
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.machine import PartitionMachine

from . import make_golden_catalog
from .make_golden import play
from .test_machine import Log
from .test_producers import claimed

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.stem for path in GOLDEN.glob("*.json"))
CATALOGS = GOLDEN / "catalog"
"""Logs of the catalog, named by the version of their records."""
CATALOG_VERSIONS = sorted(path.stem for path in CATALOGS.glob("*.json"))


def test_there_is_a_golden_log() -> None:
    assert "v1" in VERSIONS
    assert {"v4", "v5"} <= set(CATALOG_VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_log_means_what_it_meant(version: str) -> None:
    expected = json.loads((GOLDEN / f"{version}.json").read_text())
    records = decode_many((GOLDEN / f"{version}.log").read_bytes())
    assert play(PartitionMachine(), records) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_snapshot_goes_on_as_the_log_does(version: str) -> None:
    expected = json.loads((GOLDEN / f"{version}.json").read_text())
    records = decode_many((GOLDEN / f"{version}.log").read_bytes())
    machine = PartitionMachine.restore((GOLDEN / f"{version}.snapshot").read_bytes())
    rest = records[machine.applied :]
    assert rest
    found = play(machine, rest)[-1]
    # The digest does not cover answers from before the snapshot.
    assert [found[0], *found[2:]] == [expected[-1][0], *expected[-1][2:]]


def test_claimed_session_of_state_8_knows_what_is_stored() -> None:
    # Written by the software of state version 8: 3 messages of another producer, a claim, 5 of its.
    state = (GOLDEN / "state-8.snapshot").read_bytes()
    assert cbor2.loads(state)[0] == 8
    session = claimed(Log(PartitionMachine.restore(state)), 4)
    assert (session.next_sequence, session.origin, session.part) == (5, 3, 0)


@pytest.mark.parametrize("version", CATALOG_VERSIONS)
def test_golden_log_of_the_catalog_means_what_it_meant(version: str) -> None:
    expected = json.loads((CATALOGS / f"{version}.json").read_text())
    records = decode_many((CATALOGS / f"{version}.log").read_bytes())
    assert {f"v{record.version}" for record in records} == {version}
    assert make_golden_catalog.play(Catalog(), records) == expected


@pytest.mark.parametrize("version", CATALOG_VERSIONS)
def test_golden_snapshot_of_the_catalog_goes_on_as_its_log_does(version: str) -> None:
    expected = json.loads((CATALOGS / f"{version}.json").read_text())
    records = decode_many((CATALOGS / f"{version}.log").read_bytes())
    catalog = Catalog.restore((CATALOGS / f"{version}.snapshot").read_bytes())
    rest = records[catalog.applied :]
    assert rest
    found = make_golden_catalog.play(catalog, rest)
    assert found == {**expected, "answers": expected["answers"][-len(rest) :]}
    assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()


def test_golden_log_of_catalog_version_4_leaves_no_entries_owners_and_quotas() -> None:
    catalog = Catalog()
    for record in decode_many((CATALOGS / "v4.log").read_bytes()):
        catalog.apply(record)
    assert not catalog.audit.entries
    assert not len(catalog.quotas)
    assert {topic.owner for topic in catalog.topics.values()} == {""}
    assert {group.owner for group in catalog.consumer_groups.groups.values()} == {""}
