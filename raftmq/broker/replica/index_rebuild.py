"""Damaged indexes, built again while the node runs: a machine applies the segment's records again.

    snapshot 900 ──restore──> machine ──apply 901..1800──> what it says of 901..1800 ──> sections
                                                     the index file's header has their CRCs: equal

The content of an index follows from the machine, and the machine from a snapshot and the log. The
node's own machine is far ahead, so another machine is restored from the newest snapshot before the
segment, applies the records up to the segment's end, and is dropped.

Invariants:
- An index file is replaced only by one of the same bytes (`SegmentIndex.encoded_again`).
- A node builds one index at a time, and every damaged index that was met. An index that cannot be
  built is tried again when it is met again.

Left out: sections of positions, times and terms, which are built again at the next start; a segment
that starts with the log, if its snapshot is rotten.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from raftmq.broker.host import Host
from raftmq.broker.world import Worker, run_on
from raftmq.errors import CorruptRecord
from raftmq.log.builder import SegmentBuilder
from raftmq.log.faults import DiskFull, Dropped, LogFault, RotFound
from raftmq.log.index_file import IndexDamaged, SegmentIndex
from raftmq.log.segment import INDEX_SUFFIX, file_name
from raftmq.machine.machine import PartitionMachine

from .after_apply import note
from .group import Group, Machine
from .opener import restore_machine

PIECE_BYTES = 1024 * 1024
"""Bytes of records that are applied in one go."""


class IndexRebuild:
    """The damaged indexes of one node."""

    def __init__(
        self,
        node: Host,
        *,
        reader: Worker,
        disk: Worker,
        on_rot: Callable[[RotFound], object],
    ) -> None:
        self._node = node
        self._on_rot = on_rot
        self._reader = reader
        self._disk = disk
        self._found: dict[tuple[Group, int], tuple[str, str]] = {}
        """Replica and segment → the fault, and the state of the rebuild, for people."""
        self._wanted: dict[tuple[Group, int], None] = {}
        """Indexes to build; the first one is being built."""

    def status(self, number: int) -> list[dict[str, Any]]:
        """Damaged indexes of a group, as the node's status shows them."""
        return [
            {"file": file_name(name, INDEX_SUFFIX), "found": why, "state": state}
            for (group, name), (why, state) in self._found.items()
            if group.number == number and self._segment(group, name) is not None
        ]

    def found(self, group: Group, damaged: IndexDamaged) -> bool:
        """Have a damaged index built again; False: the damage is known."""
        # Entries are dropped once their segment or replica is gone.
        self._found = {key: each for key, each in self._found.items() if self._segment(*key)}
        key = (group, damaged.name)
        is_new = key not in self._found
        self._found.setdefault(key, (str(damaged), "is being built again"))
        is_building = bool(self._wanted)
        self._wanted[key] = None
        if not is_building:
            self._node.start_soon(self._build)
        return is_new

    def _segment(self, group: Group, name: int) -> SegmentIndex | None:
        """A sealed segment, if this node still has it."""
        if group.is_retired:
            return None
        return next((one for one in group.store.sealed if one.name == name), None)

    async def _build(self) -> None:
        """Build the wanted indexes, one after the other."""
        while self._wanted:
            key = next(iter(self._wanted))
            await self._try(*key)
            del self._wanted[key]

    async def _try(self, group: Group, name: int) -> None:
        try:
            segment = self._segment(group, name)
            if segment is not None:
                await self._build_again(group, segment)
            self._found.pop((group, name), None)
        except RotFound as fault:
            self._on_rot(fault)
            self._failed(group, name, fault)
        except (CorruptRecord, IndexDamaged, Dropped, DiskFull, OSError) as error:
            self._failed(group, name, error)
        except LogFault as error:
            if not group.is_retired:
                self._node.fail(error)

    def _failed(self, group: Group, name: int, error: Exception) -> None:
        known = self._found.get((group, name))
        if known is not None:
            self._found[group, name] = (known[0], f"cannot be built now: {error}")

    async def _build_again(self, group: Group, segment: SegmentIndex) -> None:
        machine = await self._machine_before(group, segment)
        builder = SegmentBuilder(segment.name)
        while machine.applied < segment.last:
            low = machine.applied + 1
            # No piece crosses the segment's beginning: only its own records are noted.
            stop = segment.base if low < segment.base else segment.last + 1
            records = await run_on(self._reader, partial(group.store.read, low, stop, PIECE_BYTES))
            results = [machine.apply(record) for record in records]
            note(builder if low >= segment.base else SegmentBuilder(0), machine, records, results)
            if isinstance(machine, PartitionMachine):
                machine.pop_groups.take_handed()  # sent when the records were applied first
        columns = builder.columns(base=segment.base, record_count=segment.count)
        again = await run_on(self._disk, partial(group.store.reindex, segment, columns))
        if again is not None:
            group.index.replaced(again)

    async def _machine_before(self, group: Group, segment: SegmentIndex) -> Machine:
        """A machine that has applied the records before a segment, or fewer."""
        failed: CorruptRecord | None = None
        for meta in reversed(group.store.snapshots):
            if meta.index >= segment.base:
                continue
            try:
                snapshot = group.store.open_snapshot(meta.index)
                return restore_machine(group.number, await run_on(self._reader, snapshot.state))
            except CorruptRecord as error:
                failed = error
        raise failed or CorruptRecord("no snapshot before the segment is kept", position=0)
