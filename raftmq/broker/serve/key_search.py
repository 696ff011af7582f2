"""Search by key: the newest batches of a topic that may hold messages of a key.

    KEY ─> a linearizable read ─> the segments, newest first ─> read on the reading thread

All topics of a partition group share its index of keys, and keys may share a hash, so a search
reads more records than it returns. The reading thread goes from the newest segment to the oldest,
a few records at a time, and stops when the answer is full.

Invariants:
- The event loop does work in proportion to the answer, whatever the length of the log.
- The limits count the bytes that a search may bring from the moment in which its frame is taken.
- A search whose client has left reads nothing further.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice

from raftmq.batch import key_hash, peek
from raftmq.broker.host import Host, Room, Taken
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.broker.world import Worker
from raftmq.log.index import find_key
from raftmq.log.index_file import SegmentIndex
from raftmq.log.record import Record
from raftmq.log.store import LogStore
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.messages import FindKey, FoundBatch, FoundKey, FrameKind

from .answers import CLIENT_LEFT, Answer, OpenRequest, WithBody
from .dispatcher import data_group, group_route

KEY_BATCHES_MAX = 1000
"""Batches in the answer to one search for a key, at most."""

KEY_RECORDS_MAX = 100_000
"""Records that one search reads, at most: all topics of a group share its key index."""

KEY_CHUNK = 64
"""Records that a search reads in one go. All reads of the node's disk share the reading thread, and
a search through 100,000 records of 4 KiB takes 1.1 s, out of the page cache."""


class KeySearch(Service):
    """The handler of these searches."""

    def __init__(self, node: Host, reader: Worker, *, bytes_max: int) -> None:
        self._node = node
        self._reader = reader
        self._bytes_max = bytes_max
        self.routes = {FrameKind.KEY: group_route(FindKey, data_group(node), self._find)}

    def _find(self, request: FindKey, group: Group, asked: OpenRequest) -> Answer:
        queues = [request.topic << QUEUE_BITS]
        room = self._node.quotas.room(asked.connection, queues)
        budget = int(min(self._bytes_max, room.size))
        # Before the wait for the read: else one step would take requests without a bound.
        self._node.quotas.expect(asked.connection, asked.correlation, budget, queues)
        room = room._replace(size=budget)
        return asked.read(group, lambda: self._look(request, group, asked, room))

    def _look(self, request: FindKey, group: Group, asked: OpenRequest, room: Room) -> Answer:
        sources = group.index.key_sources(key_hash(request.key))
        search = _Search(group.store, sources, request, room)
        failed = partial(self._node.index_failed, group)

        def look_on() -> Answer:
            if asked.connection.is_closed:
                # Nothing counts what is found for it.
                return CLIENT_LEFT
            return asked.run_on(self._reader, search.look_on, looked, failed)

        def looked(is_over: bool) -> Answer:
            if not is_over:
                return look_on()
            self._node.quotas.charge(asked.connection, map(_taken, search.found))
            return _described(group, search.found, asked.throttle_ms)

        return look_on()


class _Search:
    """One search, as far as it has come."""

    def __init__(
        self,
        store: LogStore,
        sources: Sequence[SegmentIndex | list[int]],
        request: FindKey,
        room: Room,
    ) -> None:
        self.found: list[Record] = []
        """Records of the topic that may hold the key, newest first."""
        self._store = store
        self._request = request
        self._limit = max(1, min(request.limit, KEY_BATCHES_MAX))
        self._indexes = islice(find_key(sources, key_hash(request.key)), KEY_RECORDS_MAX)
        self._budget = int(room.size)
        self._messages = room.messages

    def look_on(self) -> bool:
        """On the reading thread: look into `KEY_CHUNK` records more; True: the search is over."""
        chunk = list(islice(self._indexes, KEY_CHUNK))
        for index in chunk:
            (record,) = self._store.read_at([index], self._budget)
            if record.timestamp < self._request.since:
                return True
            head = peek(record.payload)
            if head.queue >> QUEUE_BITS == self._request.topic:
                self.found.append(record)
                self._budget -= len(record.encoded)
                self._messages -= head.count
            if len(self.found) == self._limit or self._budget <= 0 or self._messages <= 0:
                return True
        return len(chunk) < KEY_CHUNK


def _taken(record: Record) -> Taken:
    head = peek(record.payload)
    return Taken(head.queue, len(record.payload), head.count)


def _described(group: Group, records: list[Record], throttle_ms: int) -> WithBody:
    batches: list[FoundBatch] = []
    body: list[memoryview] = []
    for record in records:
        payload = record.payload
        queue = peek(payload).queue
        placement = group.index.placement_of(queue, record.index)
        if placement is not None:
            batches.append(FoundBatch(queue, placement.base_offset, record.timestamp, len(payload)))
            body.append(payload)
    return WithBody(FoundKey(batches, throttle_ms), body)
