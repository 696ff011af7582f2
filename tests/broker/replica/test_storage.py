"""Consensus reads a group's log: from the cache, and from records fetched from disk."""

import pytest

from raftmq.broker.replica.storage import GroupStorage
from raftmq.consensus import ConfState, HardState, NotInMemory, Snapshot
from raftmq.log.cache import LogCache
from raftmq.log.record import Kind, Record, encode
from raftmq.log.segment import Link


def chain(after: Record | None, count: int, *, term: int, size: int = 1000) -> list[Record]:
    records = []
    for _ in range(count):
        index, crc = (after.index + 1, after.crc) if after else (1, 0)
        after = encode(bytes(size), index=index, term=term, kind=Kind.BATCH, timestamp=0, chain=crc)
        records.append(after)
    return records


def storage_over(cache: LogCache) -> GroupStorage:
    return GroupStorage(cache, HardState(), ConfState(), Snapshot)


def small_cache() -> LogCache:
    return LogCache(start=Link(), last=Link(), terms=[], bytes_max=3000)


def test_lent_records_are_served() -> None:
    cache = small_cache()
    records = chain(None, 8, term=1)
    cache.append(records)
    storage = storage_over(cache)
    with pytest.raises(NotInMemory):
        storage.entries(2, 9, 10**6)
    storage.lend(2, records[1:])
    assert storage.entries(2, 9, 10**6) == records[1:]


def test_seed_70_lent_records_that_were_superseded_are_not_served() -> None:
    """Core simulator, seed 70: a deposed leader applied what it had once fetched for a follower."""
    cache = small_cache()
    old = chain(None, 4, term=1)
    cache.append(old)
    storage = storage_over(cache)
    storage.lend(2, old)
    # A new leader's records take the place of those from 3 on, and fill the cache.
    cache.append(chain(old[1], 8, term=2))
    with pytest.raises(NotInMemory):
        storage.entries(3, 11, 10**6)
    storage.lend(2, old)
    # Records that are not superseded may still be read.
    assert storage.entries(1, 11, 10**6) == old[:2]
