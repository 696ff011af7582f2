"""The records of consensus that one pass of the disk writes."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftmq.broker.replica.effects import RestoreSnapshot
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.writes import Write
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.consensus import ConfState, Message, MessageKind, Snapshot, SnapshotMeta
from raftmq.log.cache import LogCache
from raftmq.log.faults import DiskFull
from raftmq.log.record import Record
from raftmq.log.segment import Link
from raftmq.log.store import LogStore
from tests.log.building import FOLDER, Chain, meta_at, open_store, read_all, receive, write

COVERED, LAST = 5, 8


def group_of(store: LogStore) -> Group:
    group: Group = SimpleNamespace(number=1, store=store)  # type: ignore[assignment]
    return group


def sent_by_leader(files: MemoryFiles, covered: int = COVERED) -> tuple[Message, list[Record]]:
    """A snapshot whose file is here already, and the records after it, as one storage message."""
    leader, _ = open_store(MemoryFiles())
    chain = Chain()
    write(leader, chain, LAST)
    meta = meta_at(leader, covered)
    files.make_folder(FOLDER)
    receive(files, meta, b"state")
    records = [chain.records[index] for index in range(covered + 1, LAST + 1)]
    snapshot = Snapshot(SnapshotMeta(meta.index, meta.term, ConfState((1,)), meta.crc))
    message = Message(
        MessageKind.STORAGE_APPEND,
        1,
        term=3,
        vote=2,
        commit=LAST - 1,
        entries=records,
        snapshot=snapshot,
    )
    return message, records


def test_records_that_come_with_a_snapshot_are_written_after_it() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    message, records = sent_by_leader(files)
    done = Write(group_of(store), [message])
    done.perform()
    store.sync()
    assert done.written == 1
    assert read_all(store) == records
    assert store.hard_state == (3, 2, LAST - 1)
    files.power_loss()
    again, recovered = open_store(files)
    assert read_all(again) == records
    assert recovered.last_index == LAST
    assert recovered.hard_state.term == 3


def test_of_two_snapshots_in_one_pass_the_later_one_takes_the_place_of_the_machine() -> None:
    """Seed 844 of the core simulator: a follower whose disk had stalled opened the earlier one,
    which the later one had replaced."""
    files = MemoryFiles()
    store, new = open_store(files)
    first, records = sent_by_leader(files)
    later, rest = sent_by_leader(files, covered=COVERED + 2)
    first = msgspec.structs.replace(first, entries=records[:1], commit=COVERED)
    messages = [first, later]
    done = Write(group_of(store), messages)
    done.perform()
    assert done.written == 2
    restored: list[bytes] = []

    def restore(snapshot: Snapshot) -> None:
        restored.append(store.open_snapshot(snapshot.meta.index).state())
        meta = snapshot.meta
        group.cache.restore(Link(meta.index, meta.term, meta.crc, meta.timestamp))

    group: Any = SimpleNamespace(
        store=store,
        cache=LogCache(start=new.start, last=new.end, terms=[], bytes_max=1024),
        _layout=store.layout,
        _mark=lambda _: None,
        _respond=lambda _: (),
    )
    for effect in Group.persisted(group, messages):
        assert isinstance(effect, RestoreSnapshot)
        restore(effect.snapshot)
    assert restored == [b"state"]
    assert group.cache.last_index() == LAST
    assert read_all(store) == rest


def test_snapshot_is_installed_once_though_its_records_meet_a_full_disk() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    message, records = sent_by_leader(files)
    done = Write(group_of(store), [message])
    install = store.install_snapshot

    def install_and_fill(index: int, hard_state: tuple[int, int, int]) -> object:
        found = install(index, hard_state)
        files.space = 0
        return found

    store.install_snapshot = install_and_fill  # type: ignore[method-assign, assignment]
    with pytest.raises(DiskFull):
        done.perform()
    assert done.written == 0
    assert store.last_index == COVERED
    files.space = None
    done.perform()
    assert done.written == 1
    assert read_all(store) == records
