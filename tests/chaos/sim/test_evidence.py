"""Evidence gathered from the servers decides the disk's invariants, and shows them broken."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.checks.handed import Handed
from raftmq.chaos.sim.run import run
from raftmq.checkers import Evidence, NodeLog, Verdict, check_evidence
from raftmq.checkers.servers.evidence import Entry
from raftmq.consensus import Message, MessageKind
from raftmq.log.index_file import encode_index
from raftmq.log.record import Kind, Record, encode
from raftmq.log.writer import LogWriter

DISKS_REFUSE = (
    Event(2_000, "full-disk", (1,), 2_000, 1000.0),
    Event(6_000, "sync-error", (2,)),
    Event(10_000, "kill", (3,)),
    Event(20_000, "power-loss-all", (1, 2, 3)),
    Event(24_000, "sync-error", (3,)),
    Event(28_000, "sync-error", (1,)),
)


def names(outcome: Outcome) -> set[str]:
    return {violation.name for violation in outcome.violations}


@pytest.mark.campaign
def test_refused_writes_and_restarts_leave_no_invariant_of_the_disk_undecided() -> None:
    outcome = run(Schedule(7, 50, DISKS_REFUSE))
    assert outcome.is_good, str(outcome)
    vacuous = {name.removeprefix("vacuous ") for name in outcome.counts if "vacuous" in name}
    assert not vacuous


def test_node_that_syncs_again_after_a_refused_sync_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sync_until_it_works(log: LogWriter) -> None:
        if log._is_dirty:
            with suppress(OSError):
                log._active.file.datasync()
            log._active.file.datasync()
            log._synced, log._is_dirty = log._active.end, False

    monkeypatch.setattr(LogWriter, "sync", sync_until_it_works)
    refusals = tuple(Event(at, "sync-error", (1, 2, 3)[at % 3 :]) for at in range(2000, 6000, 500))
    assert "L5" in names(run(Schedule(5, 8, refusals)))


@pytest.mark.campaign
def test_index_that_is_written_otherwise_the_second_time_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = count(1)

    def counting(columns: dict[str, bytes], **fields: Any) -> list[bytes]:
        stamps = bytearray(columns["timestamps"])
        stamps[0] = next(numbers) % 256
        return encode_index(columns | {"timestamps": bytes(stamps)}, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr("raftmq.log.store.encode_index", counting)
    assert "L6" in names(run(Schedule(5, 50, ())))


def verdicts(evidence: Evidence) -> Mapping[str, Verdict]:
    return {report.checker.split()[0]: report.verdict for report in check_evidence(evidence)}


def test_rotten_bytes_that_leave_for_a_peer_are_taken_down_as_they_are() -> None:
    cluster = SimpleNamespace(observers=[], sync_listeners=[], incarnations={1: 1})
    handed = Handed(cluster, SimpleNamespace(now_ms=0))  # type: ignore[arg-type]
    group: Any = SimpleNamespace(number=3, raft=SimpleNamespace(commit=1))
    sound = encode(b"payload", index=1, term=1, timestamp=0, kind=Kind.BATCH, chain=0)
    log = (Entry(1, 1, sound.crc, 0),)

    def seen(record: Record) -> Verdict:
        handed.sent(1, group, Message(MessageKind.APPEND, 2, entries=(record,)))
        served = tuple(handed.served[3])
        return verdicts(Evidence(nodes=(NodeLog(1, log, commit=1),), served=served))["L4"]

    assert seen(sound) is Verdict.VALID
    bad = bytearray(sound.encoded)
    bad[-1] ^= 1
    assert seen(sound._replace(encoded=bytes(bad))) is Verdict.INVALID
