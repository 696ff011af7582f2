"""Writes a golden log folder: `python -m tests.log.make_golden FOLDER`.

Run once for each format version; the files are committed, and every later version must read them.
The log holds all that a log can hold: a dropped start, sealed segments with index files, a
superseded suffix across segments, two terms, a vote, keys, snapshots, and a closing mark.
"""

import json
import sys
from pathlib import Path

from raftmq.log.builder import Placement
from raftmq.log.files import LOCK_NAME, RealFiles
from raftmq.log.index import LogIndex
from raftmq.log.record import Record
from raftmq.log.segment import HardState
from raftmq.log.store import LogSettings, LogStore

from .building import IDENTITY, Chain, meta_at

QUEUES = 3


def fact(record: Record) -> tuple[Placement, bytes]:
    """The machine's placement of a record: queue by index, two messages, one key."""
    queue, turn = record.index % QUEUES, record.index // QUEUES
    turn -= 1 if queue == 0 else 0
    return Placement(queue, 2 * turn, 2, record.index), record.index.to_bytes(4, "little")


def make(folder: Path) -> None:
    """Write the folder and `expected.json` beside it."""
    store, _ = LogStore.open(RealFiles(), str(folder), LogSettings(segment_bytes=1024), IDENTITY)
    chain = Chain()
    for _ in range(18):
        size = 40 + 13 * (chain.last % 7)
        store.append(chain.make([bytes([65 + chain.last % 26]) * size]), HardState(1, 1, 0))
    index = LogIndex((), store.layout, applied=0)
    store.append(chain.make([b"superseded"] * 3, term=2), HardState(2, 3, 8))
    store.append(chain.make([b"final %d" % i for i in range(25)], term=3, first=9))
    store.append(chain.make([b"in the last segment"], term=3), HardState(3, 2, 33))
    store.sync()
    index.arrange(store.layout)
    for record in store.read(1, 34, 2**30):
        placement, keys = fact(record)
        index.place(placement, record.timestamp)
        index.add_keys(record.index, keys)
    while builder := index.sealable(33):
        index.sealed(store.seal(builder))
    borders = [size.base - 1 for size in store.segments()[1:]]
    for border in sorted({*borders}):
        store.save_snapshot(meta_at(store, border), b"state after %d" % border)
    store.drop_before(borders[0] + 1)
    store.close()
    (folder / LOCK_NAME).unlink()
    expected = {
        "first_index": borders[0] + 1,
        "last_index": 34,
        "hard_state": [3, 2, 33],
        "snapshots": sorted({*borders}),
        "records": [record.encoded.hex() for record in chain.upto(34)[borders[0] :]],
    }
    folder.with_suffix(".json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
