"""Traces of all messages, in bulk: the rows of a range of the log as columns.

    EVENTS ─> a linearizable read ─> the segments from a record on ─> read on the reading thread

One question gets one page. Nothing is kept between pages: `next` and `skip` say where the next page
begins, and any replica goes on from there.

Invariants:
- A page holds only acts of applied records; they never change, whichever node leads.
- A page holds at most `BYTES_MAX` of rows and as much of bits, and looks into `SEGMENTS_MAX`
  segments; only the bits of one row may be longer.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from raftmq.batch.layout import PRODUCER_AT, PRODUCER_BYTES
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.broker.world import Worker
from raftmq.log.events import Page, Part, page_of
from raftmq.log.reading import Stamps
from raftmq.log.store import LogStore
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.traces import FindEvents, FoundEvents

from .answers import Answer, OpenRequest, WithBody
from .dispatcher import data_group, group_route

SEGMENTS_MAX = 64
"""Segments that one page looks into."""
BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the rows of a page, and as many of their bits."""
ROW_BYTES = 79
"""Bytes of a row on the wire."""


class _Read(NamedTuple):
    """The rows that the reading thread found, and the stamps of their records."""

    page: Page
    stamps: Stamps


class EventRequests(Service):
    """The handler of EVENTS."""

    def __init__(self, node: Host, reader: Worker) -> None:
        self._node = node
        self._reader = reader
        self.routes = {
            FrameKind.EVENTS: group_route(FindEvents, data_group(node), self._find),
        }

    def _find(self, request: FindEvents, group: Group, asked: OpenRequest) -> Answer:
        # Before the wait for the read: else one step would take requests without a bound.
        asked.connection.expect(asked.correlation, min(request.bytes_max, BYTES_MAX))
        return asked.read(group, lambda: self._look(request, group, asked))

    def _look(self, request: FindEvents, group: Group, asked: OpenRequest) -> Answer:
        first, end = group.index.first, group.machine.applied + 1
        if request.bytes_max <= 0:
            return FoundEvents(0, 0, request.start, request.skip, first, end)
        refusal = _refusal(request, first, end)
        if refusal is not None:
            return refusal
        bytes_max = min(request.bytes_max, BYTES_MAX)
        rows_max = max(1, bytes_max // ROW_BYTES)
        wanted = request.skip + rows_max + 1
        parts, following = group.index.parts(request.start, rows=wanted, limit=SEGMENTS_MAX)
        stop = min(each for each in (request.stop, following, end) if each > 0)
        return asked.run_on(
            self._reader,
            partial(_read, group.store, parts, request, stop, rows_max, bytes_max),
            lambda read: _answer(read, first, end),
            partial(self._node.index_failed, group),
        )


def _refusal(request: FindEvents, first: int, end: int) -> ErrorReply | None:
    if first <= request.start <= end and request.skip >= 0:
        return None
    message = (
        f"the log of partition group {request.partition_group} holds records {first} to "
        f"{end - 1}, and {request.start} was asked for"
    )
    return ErrorReply("offset_out_of_range", message, earliest=first, end=end)


def _read(
    store: LogStore,
    parts: list[Part],
    request: FindEvents,
    stop: int,
    rows_max: int,
    bits_max: int,
) -> _Read:
    """On the reading thread: a page of rows, with the producers of batches filled in."""
    page = page_of(
        parts,
        request.start,
        max(stop, request.start),
        skip=request.skip,
        rows_max=rows_max,
        bits_max=bits_max,
    )
    rows = page.rows
    # Indexes do not hold the producer of a batch, but the log does.
    placed = np.flatnonzero(rows["kind"] == 0)
    producers = store.heads(rows["index"][placed], PRODUCER_AT, PRODUCER_BYTES)
    rows["consumer"][placed] = producers.view("<u8")[:, 0]
    return _Read(page, store.stamps(rows["index"]))


def _answer(read: _Read, first: int, end: int) -> WithBody:
    page, stamps = read
    rows = page.rows
    names = ("queue", "base", "consumer", "token", "detail", "width", "number", "bits_at")
    columns = [rows["index"], *stamps, *(rows[name] for name in (*names, "attempt", "kind"))]
    body = [*(column.tobytes() for column in columns), page.bits]
    reply = FoundEvents(len(rows), len(page.bits), page.next, page.skip, first, end)
    return WithBody(reply, body)
