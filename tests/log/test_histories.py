"""Logs with histories that cross segments: superseded, sealed, dropped, killed, and opened again.

A model is the chain of live records. Each step is drawn from a seed; applied records are never
superseded, and segments are sealed one at a time, as their records are applied. A log that is
opened again may lack some of its index files, and must lose nothing by that.
"""

from random import Random

import pytest

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.builder import Placement
from raftmq.log.index import LogIndex
from raftmq.log.segment import HardState

from .building import FOLDER, Chain, meta_at, open_store, read_all


class History:
    """One log, and its expected content."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._files = MemoryFiles(Random(seed))
        self._chain = Chain()
        self._store, _ = open_store(self._files)
        self._index = LogIndex((), self._store.layout, applied=0)
        self._term = 1
        self._applied = 0

    def play(self, steps: int) -> None:
        """Take steps at random, and check the log each time that it is opened."""
        draws = (self._append, self._supersede, self._apply, self._seal, self._snapshot, self._drop)
        more = (self._supersede, self._seal, self._vouch, self._open_again)
        for _ in range(steps):
            self._random.choice((*draws, *more))()

    def _append(self, first: int = 0) -> None:
        sizes = [
            self._random.choice((40, 90, 300, 1100)) for _ in range(self._random.randint(1, 9))
        ]
        records = self._chain.make([bytes(size) for size in sizes], term=self._term, first=first)
        self._store.append(records, HardState(self._term, 1, self._applied))
        self._store.sync()

    def _supersede(self) -> None:
        if self._chain.last > self._applied:
            self._term += 1
            self._append(self._random.randint(self._applied + 1, self._chain.last))

    def _apply(self) -> None:
        before = self._applied
        self._applied = self._random.randint(before, self._chain.last)
        self._place(before + 1)

    def _place(self, first: int) -> None:
        self._index.arrange(self._store.layout)
        for record in self._store.read(first, self._applied + 1, 2**30):
            self._index.place(Placement(3, record.index * 2, 2, record.index), record.timestamp)

    def _vouch(self) -> None:
        self._store.append((), HardState(self._term, 1, self._applied))
        self._store.sync()
        assert self._store.proven_commit == self._applied

    def _seal(self) -> None:
        builder = self._index.sealable(self._applied)
        if builder is not None:
            self._index.sealed(self._store.seal(builder))

    def _snapshot(self) -> None:
        borders = [segment.base - 1 for segment in self._store.segments()]
        kept = [at for at in borders if self._store.first_index <= at <= self._applied]
        if kept:
            border = self._random.choice(kept)
            self._store.save_snapshot(meta_at(self._store, border), b"state")

    def _drop(self) -> None:
        self._store.drop_before(self._random.randint(1, self._applied + 1))
        self._index.drop_before(self._store.first_index)

    def _open_again(self) -> None:
        proven = self._store.proven_commit
        is_robbed = False
        self._random.choice((self._files.kill, self._files.power_loss))()
        for name in self._files.list(FOLDER):
            if name.endswith(".index") and self._random.random() < 0.2:
                self._files.unlink(f"{FOLDER}/{name}")
                is_robbed = True
        self._store, recovered = open_store(self._files)
        live = self._chain.upto(self._chain.last)
        assert read_all(self._store) == live[self._store.first_index - 1 :]
        assert recovered.hard_state[:2] == (self._term, 1) or not live
        # That a segment was sealed proves all its records to be committed.
        assert recovered.hard_state.commit >= proven or is_robbed
        layout = self._store.layout
        self._index = LogIndex(self._store.sealed, layout, applied=layout[0].base - 1)
        self._place(layout[0].base)


@pytest.mark.parametrize("seed", range(300))
def test_log_is_whole_after_any_history(seed: int) -> None:
    History(seed).play(60)
