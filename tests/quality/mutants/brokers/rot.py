"""Mutants of rot outside the records, hunted on whole brokers.

Each of them was a bug: a bit of a snapshot cost a log, a bad sector of an index the node.

Sources: our own; Protocol-Aware Recovery (FAST '18) for the kinds of damage.
"""

from functools import partial

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.log import index_file, recovery
from raftmq.log.files import FileSystem
from raftmq.log.index_file import SegmentIndex
from raftmq.log.segment import Header, Link


def stands_or_falls_with_its_oldest_snapshot(patch: Patch) -> None:
    """276"""

    def refuse(_: Header, __: object, ___: object, fault: Exception) -> Link:
        raise fault

    patch.set(recovery, "_start_without_snapshot", refuse)


def checks_indexes_by_their_maps(patch: Patch) -> None:
    """277"""

    def open_mapped(files: FileSystem, path: str, *, keys: bool) -> SegmentIndex:
        file = files.open(path)
        pages = file.map()
        file.close()
        index = SegmentIndex(pages, lambda size, offset: bytes(pages[offset : offset + size]))
        index.verify(keys=keys)
        return index

    for module in (index_file, recovery):
        patch.set(module, "open_index", open_mapped)


_mutant = partial(
    Mutant,
    workload="log",
    kinds=("bit-flip", "bad-sector", "unreadable-sector"),
    why_hinted="runs of a minute draw faults that last, and damage to a file is none of them",
)

MUTANTS = (
    _mutant(
        number=276,
        name="snapshot-is-all",
        what="A log whose oldest snapshot is damaged is cut to nothing.",
        killers=("L2",),
        plant=stands_or_falls_with_its_oldest_snapshot,
        kinds=("bit-flip",),
        seconds=30.0,
        why_hinted="it takes damage to one of many files: one seed in ten of flipped bits alone, "
        "and none of 130 that draw bad sectors too",
    ),
    _mutant(
        number=277,
        name="index-by-map",
        what="An index is checked by its map, which no read error comes from.",
        killers=("L2", "bug"),
        plant=checks_indexes_by_their_maps,
    ),
)
