"""Fetches of a fake node, with their sessions: see `raftmq.broker.serve.fetch_sessions`."""

from typing import TYPE_CHECKING

import anyio

from raftmq.batch import peek
from raftmq.errors import Reason
from raftmq.log.record import Record
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import NO_SESSION, UNKNOWN_SESSION, Fetch, Fetched, FetchedQueue
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    ErrorReply,
)

from .pipe import Pipe

if TYPE_CHECKING:
    from .fake_cluster import FakeNode


class FakeSession:
    """Where one consumer reads."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.offsets: dict[int, int] = {}


class FakeFetching:
    """All fetches of one node."""

    def __init__(self, node: "FakeNode") -> None:
        self._node = node
        self._waiting: dict[tuple[Pipe, int], anyio.CancelScope] = {}
        self._recalled: set[tuple[Pipe, int]] = set()
        self.sessions: dict[tuple[Pipe, int], FakeSession] = {}
        self.asked: list[Fetch] = []
        self.keeps_sessions = True

    def recall(self, pipe: Pipe, correlation: int) -> None:
        """Answer a fetch now."""
        scope = self._waiting.get((pipe, correlation))
        if scope is not None:
            scope.cancel()
        else:
            # Its task may not have begun.
            self._recalled.add((pipe, correlation))

    def forget_sessions(self) -> None:
        """Forget all sessions."""
        self.sessions.clear()

    async def fetch(self, pipe: Pipe, frame: Frame) -> None:
        """Answer a fetch when there is something, or its time is over."""
        request = unpack(Fetch, frame.header)
        self.asked.append(request)
        if request.session and request.epoch == NO_SESSION:
            self.sessions.pop((pipe, request.session), None)
            await self._node.send(pipe, frame, (pack(Fetched([])), []))
            return
        session = self._session(pipe, frame, request)
        if isinstance(session, ErrorReply):
            await self._node.send(pipe, frame, session)
            return
        for queue in request.forgotten:
            session.offsets.pop(queue, None)
        session.offsets.update({item.queue: item.offset for item in request.queues})
        queues: list[FetchedQueue] = []
        body: list[bytes] = []
        wait_ms = 0 if (pipe, frame.correlation) in self._recalled else request.wait_ms
        with anyio.move_on_after(wait_ms / 1000) as scope:
            self._waiting[pipe, frame.correlation] = scope
            while not queues:
                changed = self._node.cluster.changed
                queues, body = self._read(session, request.bytes_max)
                if not queues and wait_ms:
                    await changed.wait()
                elif not queues:
                    break
        del self._waiting[pipe, frame.correlation]
        session.epoch += 1
        await self._node.send(pipe, frame, (pack(Fetched(queues, session.number)), body))

    def _session(self, pipe: Pipe, frame: Frame, request: Fetch) -> FakeSession | ErrorReply:
        if not request.session:
            is_kept = request.epoch == 0 and self.keeps_sessions
            session = FakeSession(frame.correlation if is_kept else 0)
            if is_kept:
                self.sessions[pipe, session.number] = session
            return session
        known = self.sessions.get((pipe, request.session))
        if known is None or known.epoch != request.epoch:
            return ErrorReply(UNKNOWN_SESSION, "scripted")
        return known

    def _read(self, session: FakeSession, bytes_max: int) -> tuple[list[FetchedQueue], list[bytes]]:
        queues: list[FetchedQueue] = []
        body: list[bytes] = []
        for queue, offset in list(session.offsets.items()):
            error = self._node.wrong_place(queue) or self._range_error(queue, offset)
            if error is not None:
                queues.append(FetchedQueue(queue, -1, -1, b"", b"", b"", error))
                del session.offsets[queue]
                continue
            log = self._node.cluster.log_of(queue)
            found = [
                (base, record)
                for base, record in log.batches.get(queue, [])
                if base + peek(record.payload).count > offset
            ]
            taken: list[tuple[int, Record]] = []
            while found and sum(map(len, body)) < bytes_max:
                taken.append(found.pop(0))
                body.append(bytes(taken[-1][1].payload))
            if taken:
                queues.append(log.describe(queue, taken))
                base, record = taken[-1]
                session.offsets[queue] = base + peek(record.payload).count
        return queues, body

    def _range_error(self, queue: int, offset: int) -> ErrorReply | None:
        log = self._node.cluster.log_of(queue)
        earliest, end = log.earliest.get(queue, 0), log.machine.ends.get(queue, 0)
        if earliest <= offset <= end:
            return None
        code = Reason.OFFSET_OUT_OF_RANGE.value
        return ErrorReply(code, f"not within {earliest}..{end}", earliest=earliest, end=end)
