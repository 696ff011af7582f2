"""The first bytes of payloads, many at once: as whole records have them, wherever they stand."""

from random import Random

import numpy as np
import pytest

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.faults import Dropped, RotFound
from raftmq.log.segment import HardState
from raftmq.log.store import LogSettings, LogStore

from .building import FOLDER, Chain, open_store, segment_names
from .test_index import Group


def filled(draw: Random, *, records: int, largest: int, segment_bytes: int) -> LogStore:
    store, _ = open_store(MemoryFiles(), LogSettings(segment_bytes=segment_bytes))
    chain = Chain()
    for _ in range(records):
        (record,) = chain.make([draw.randbytes(draw.randint(24, largest))])
        store.append([record], HardState(1, 1, record.index - 1))
    store.sync()
    return store


@pytest.mark.parametrize("seed", range(6))
def test_heads_are_those_of_the_records(seed: int) -> None:
    draw = Random(seed)
    # Records close to each other and far apart, in one segment and in many, the last one unsealed.
    largest = draw.choice([60, 2000, 50_000])
    store = filled(draw, records=80, largest=largest, segment_bytes=draw.choice([4096, 1 << 22]))
    chosen = sorted(draw.sample(range(1, 81), draw.choice([1, 30, 80])))
    found = store.heads(np.array(chosen, np.uint64), 16, 8)
    payloads = [bytes(store.read(index, index + 1, 1)[0].payload) for index in chosen]
    assert [bytes(row) for row in found] == [payload[16:24] for payload in payloads]


def test_heads_of_no_records_are_none() -> None:
    store = filled(Random(1), records=2, largest=30, segment_bytes=4096)
    assert store.heads(np.array([], np.uint64), 16, 8).shape == (0, 8)


def test_records_that_are_gone_are_refused() -> None:
    group = Group(seed=1)
    while len(group.store.segments()) < 4:
        group.add()
    group.drop()
    assert group.store.first_index > 1
    with pytest.raises(Dropped):
        group.store.heads(np.array([1], np.uint64), 0, 1)


def test_file_that_ends_early_is_told() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    chain = Chain()
    for _ in range(30):
        store.append(chain.make([bytes(100)]), HardState(1, 1, chain.last - 1))
        store.sync()
    files.open(f"{FOLDER}/{segment_names(files)[0]}").truncate(150)
    with pytest.raises(RotFound, match="the file ends within records that were durable"):
        store.heads(np.array([1, 2, 3], np.uint64), 16, 8)
