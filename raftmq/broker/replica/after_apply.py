"""The work after records are applied: indexes, sealed segments, dropped segments, idle marks.

The machine says where each batch stands, and the group's index notes the place. Once all records of
a closed segment are applied, its index file is written on the disk thread. Where retention moved,
the store drops segments. A log that fell idle gets a mark that vouches for its last write.

Invariants:
- The event loop never waits for this work.
- A full disk puts the work off; any other fault stops the node.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from raftmq.broker.host import Host
from raftmq.broker.service import Service
from raftmq.broker.world import Worker
from raftmq.log.builder import Placement, SegmentBuilder
from raftmq.log.faults import DiskFull, Dropped
from raftmq.log.index_file import IndexDamaged, SegmentIndex
from raftmq.log.record import HEADER_BYTES, Kind, Record
from raftmq.log.segment import Link
from raftmq.log.store import LogStore
from raftmq.log.traces import MessageEvent
from raftmq.machine.machine import PartitionMachine
from raftmq.results import Appended, Result

from .disk import DiskLoop
from .group import Group, Machine
from .space import Space


class Noting(Protocol):
    """Takes notes of what the machine says of records: see `LogIndex`."""

    def place(self, placement: Placement, timestamp: int) -> None:
        """Note where a batch was placed."""

    def add_keys(self, index: int, key_hashes: bytes) -> None:
        """Note the hashes of a batch's message keys."""

    def add_events(self, index: int, number: int, events: Sequence[MessageEvent]) -> None:
        """Note acts of a record on messages of an attachment."""


def note(
    index: Noting, machine: Machine, records: Sequence[Record], results: Sequence[list[Result]]
) -> set[int]:
    """Index records that a machine has just applied; the queues that got batches."""
    touched = set()
    for record, result in zip(records, results, strict=True):
        if record.kind != Kind.BATCH:
            continue
        appended = result[0]
        # A repeat has no place of its own: its first attempt was indexed.
        if not isinstance(appended, Appended) or appended.duplicate:
            continue
        queue, base, count, _, _, hashes_at = appended
        index.place(Placement(queue, base, count, record.index), record.timestamp)
        touched.add(queue)
        if hashes_at:
            start = HEADER_BYTES + hashes_at
            index.add_keys(record.index, record.encoded[start : start + 4 * count])
    if isinstance(machine, PartitionMachine):
        for at, number, events in machine.pop_groups.take_traced():
            index.add_events(at, number, events)
    return touched


class AfterApply(Service):
    """Indexes, seals and trims the logs of one node after records were applied."""

    def __init__(self, node: Host, space: Space, worker: Worker, disk: DiskLoop) -> None:
        self._node = node
        self._space = space
        self._worker = worker
        self._disk = disk
        self._marked_passes = 0
        self._touched: set[int] = set()

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Index the records."""
        self._touched |= note(group.index, group.machine, records, results)
        self._seal(group)
        self._trim(group)

    def take_touched(self) -> set[int]:
        """The queues that got batches since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def mark_idle(self) -> None:
        """If nothing is being written, have the logs vouch for their last writes. Logs of groups
        that changed their members do so at once, and durably."""
        owing = [group.store for group in self._node.groups.values() if group.owes_mark]
        if owing:
            self._worker.submit(partial(_vouch, owing), self._marked)
        if not self._disk.is_idle or self._marked_passes == self._disk.passes:
            return
        self._marked_passes = self._disk.passes
        stores = [group.store for group in self._node.groups.values()]
        self._worker.submit(lambda: [store.mark_idle() for store in stores], self._marked)

    def _marked(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._node.fail(error)

    def check_space(self) -> None:
        """Measure the free space, which other programs change as well; share out the memory for
        recent records, and seal segments that could not be sealed before."""
        own = self._node.settings
        share = max(1, own.limits.cache_bytes_max // max(1, len(self._node.groups)))
        for group in self._node.groups.values():
            group.cache.resize(min(own.log.cache_bytes, share))
            self._seal(group)
        self._worker.submit(self._space.measure, self._checked)

    def _checked(self, free: int | None, error: BaseException | None) -> None:
        if free is not None:
            self._disk.note_space(free)
        else:
            assert error is not None
            self._node.fail(error)

    def _seal(self, group: Group) -> None:
        while (builder := group.index.sealable(group.machine.applied)) is not None:
            self._worker.submit(
                partial(group.store.seal, builder), partial(self._sealed, group, builder)
            )

    def _sealed(
        self,
        group: Group,
        builder: SegmentBuilder,
        sealed: SegmentIndex | None,
        error: BaseException | None,
    ) -> None:
        if sealed is not None:
            group.index.sealed(sealed)
        elif isinstance(error, DiskFull | IndexDamaged):
            group.index.seal_failed(builder)
        # A segment that has left the log meanwhile takes its builder along.
        elif not isinstance(error, Dropped):
            assert error is not None
            self._node.fail(error)

    def _trim(self, group: Group) -> None:
        """Drop the segments that retention has let go since the last call."""
        if group.machine.log_start <= group.trimmed:
            return
        group.trimmed = group.machine.log_start
        self._worker.submit(
            partial(group.store.drop_before, group.trimmed), partial(self._dropped, group)
        )

    def _dropped(self, group: Group, start: Link | None, error: BaseException | None) -> None:
        if start is not None:
            group.cache.drop_before(start)
            group.index.drop_before(start.index + 1)
        else:
            assert error is not None
            self._node.fail(error)


def _vouch(stores: Sequence[LogStore]) -> None:
    for store in stores:
        store.mark_idle()
        store.sync()
