"""Traces of a message: which records touched it, from the rows that the segments keep.

    WHY ─> a linearizable read ─> the segments since its batch ─> searched on the reading thread

Nothing is kept for traces but the rows that `raftmq.log.traces` derives; a question costs a search
through the rows of its queue in each segment.

Invariants:
- A page has all events of its last record; the next page goes on strictly after that record.
- A question looks into `SEGMENTS_MAX` segments at the most, and is answered with `EVENTS_MAX`
  events and those of one record more.

Left out: the leader of a term from before this node was started: the log does not name it.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.broker.world import Worker
from raftmq.log.faults import Dropped
from raftmq.log.index import TraceSources, look
from raftmq.log.index_file import IndexDamaged
from raftmq.log.store import LogStore
from raftmq.log.traces import EventRow
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.message_events import EventKind
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.traces import FindTrace, FoundTrace, MessageEventView

from .answers import Answer, OpenRequest, unread
from .dispatcher import data_group, group_route

SEGMENTS_MAX = 64
"""Segments that one question looks into."""
EVENTS_MAX = 2000
"""Events of one answer."""
REASON_CHARACTERS_MAX = 200
"""Characters of a dead letter's reason in an event; the letter has all of them."""
EVENT_BYTES = 60
"""Bytes of an event in the answer, about."""


class _Page(NamedTuple):
    """The events that the reading thread found."""

    rows: list[EventRow]
    stamps: list[tuple[int, int]]
    """Term and time of each row's record."""
    reached: int
    is_whole: bool
    damaged: list[IndexDamaged]
    """Indexes that were passed over."""


class TraceRequests(Service):
    """The handler of questions about traces."""

    def __init__(self, node: Host, reader: Worker) -> None:
        self._node = node
        self._reader = reader
        self.routes = {
            FrameKind.WHY: group_route(FindTrace, data_group(node), self._find),
        }

    def _find(self, request: FindTrace, group: Group, asked: OpenRequest) -> Answer:
        # Before the wait for the read: else one step would take requests without a bound.
        asked.connection.expect(asked.correlation, EVENTS_MAX * EVENT_BYTES)
        return asked.read(group, lambda: self._look(request, group, asked))

    def _look(self, request: FindTrace, group: Group, asked: OpenRequest) -> Answer:
        machine, (queue, offset, after) = group.machine, msgspec.structs.astuple(request)[1:]
        assert isinstance(machine, PartitionMachine)
        end = machine.ends.get(queue, 0)
        if not 0 <= offset < end or after < 0:
            message = f"the queue holds no message at offset {offset} yet: it ends at {end}"
            return ErrorReply("offset_out_of_range", message, earliest=0, end=end)
        sources = group.index.trace_sources(queue, offset, after=after, limit=SEGMENTS_MAX)

        def found(page: _Page) -> Answer:
            # Dead letters have reasons, whose bytes were not expected.
            if (refused := unread(asked.connection)) is not None:
                return refused
            for damaged in page.damaged:
                self._node.index_failed(group, damaged)
            assert isinstance(group.machine, PartitionMachine)
            views = [
                _view(row, term=term, at=at, leaders=group.leaders, machine=group.machine)
                for row, (term, at) in zip(page.rows, page.stamps, strict=True)
            ]
            return FoundTrace(views, page.reached, page.is_whole)

        job = partial(_read, group.store, sources, request)
        return asked.run_on(self._reader, job, found, partial(self._node.index_failed, group))


def _read(store: LogStore, found: TraceSources, request: FindTrace) -> _Page:
    """On the reading thread: a page of events, from the record of the message's batch on."""
    queue, offset, after = request.queue, request.offset, request.after
    rows: list[EventRow] = []
    damages: list[IndexDamaged] = []
    reached, placement = found.reached, found.placement
    is_whole = placement is not None
    if placement is not None and placement.index > after:
        rows.append(EventRow(placement.index, 0, EventKind.STORED, 0, 0, 0, 0))
    for source in found.sources:
        try:
            rows += look(found._replace(sources=[source]), queue, offset, after=after)
        except IndexDamaged as damaged:
            damages.append(damaged)
            is_whole = False
        if len(rows) > EVENTS_MAX:
            # A page must not end within a record: the next one goes on after the record `last`.
            last = rows[EVENTS_MAX - 1].index
            if rows[-1].index > last or source is not found.sources[-1]:
                reached = last
            rows = [row for row in rows if row.index <= last]
            break
    try:
        return _Page(rows, [store.stamp(row.index) for row in rows], reached, is_whole, damages)
    except Dropped as dropped:
        kept = [row for row in rows if row.index >= dropped.first_index]
        return _Page(kept, [store.stamp(row.index) for row in kept], reached, False, damages)


def _view(
    row: EventRow, *, term: int, at: int, leaders: Mapping[int, int], machine: PartitionMachine
) -> MessageEventView:
    reason = ""
    attached = machine.pop_groups.attached.get(row.number)
    if row.kind == EventKind.DEAD and attached is not None:
        letter = attached.group.dead.get(row.detail)
        reason = "" if letter is None else letter.reason[:REASON_CHARACTERS_MAX]
    return MessageEventView(
        kind=row.kind,
        at_ms=at,
        index=row.index,
        term=term,
        node=leaders.get(term, 0),
        number=row.number,
        attempt=row.attempt,
        consumer=row.consumer,
        token=row.token,
        detail=row.detail,
        reason=reason,
    )
