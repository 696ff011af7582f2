"""A bare connection to a node: it sends at once, never retries, and can refuse to read.

The client would hide two things that are measured here: the moment at which a node begins to
answer, and the effect on a node of a reader that never empties its socket.
"""

import contextlib
import socket
from typing import NamedTuple, Self

from raftmq.errors import ProtocolError
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    ClusterView,
    FrameKind,
    Hello,
    Metadata,
    NodeStatus,
    Status,
)

ANSWER_SECONDS_MAX = 5.0
_RECEIVE_BYTES = 256 * 1024
_FRAME_BYTES_MAX = 64 * 1024 * 1024


class Reading(NamedTuple):
    """A position from which a queue is read."""

    queue: int
    """The queue's cluster-wide number."""
    offset: int
    """Offset of the next message."""


class Probe:
    """One connection to one node, after its greeting. Blocking; close it by `with`."""

    def __init__(self, port: int) -> None:
        """Connect. Raises `OSError` or `ProtocolError` if no node answers at the port."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX)
        self._parser = FrameParser(_FRAME_BYTES_MAX)
        self._correlation = 0
        try:
            self.ask(FrameKind.HELLO, pack(Hello(PROTOCOL, "", 0, "", "raftmq bench")))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def post(self, kind: int, header: bytes) -> None:
        """Send a request, without reading the answer."""
        self._socket.sendall(b"".join(encode_frame(kind, self._correlation, header)))
        self._correlation += 1

    def ask(self, kind: int, header: bytes) -> Frame:
        """Send a request; returns its answer."""
        self.post(kind, header)
        while True:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise ProtocolError("the node closed the connection")
            self._parser.feed(data)
            if frames := list(self._parser.frames()):
                assert len(frames) == 1, "one question at a time"
                return frames[0]

    def post_fetches(self, readings: list[Reading], *, count: int, bytes_max: int) -> None:
        """Send `count` requests for the same messages, without reading the answers."""
        header = pack(Fetch([FetchFrom(*each) for each in readings], 0, bytes_max))
        self._socket.settimeout(0.0)
        frames = b"".join(
            part
            for number in range(count)
            for part in encode_frame(FrameKind.FETCH, self._correlation + number, header)
        )
        # A node that has enough requests rightly stops reading; the rest is not sent.
        with contextlib.suppress(BlockingIOError):
            self._socket.send(frames)
        self._correlation += count


def ask_table(port: int) -> ClusterView | None:
    """The node's routing table; None while it does not serve."""
    frame = _ask_once(port, FrameKind.METADATA, pack(Metadata([])))
    if frame is None or frame.kind == FrameKind.ERROR:
        return None
    return unpack(ClusterView, frame.header)


def served_queues(port: int, readings: list[Reading]) -> set[int]:
    """The queues of `readings` that the node serves without an error at present."""
    served: set[int] = set()
    try:
        with Probe(port) as probe:
            # A node may cut an answer after its first queue, so each request asks for one queue.
            for each in readings:
                header = pack(Fetch([FetchFrom(*each)], 0, 1))
                frame = probe.ask(FrameKind.FETCH, header)
                if frame.kind != FrameKind.ERROR:
                    queues = unpack(Fetched, frame.header).queues
                    served |= {found.queue for found in queues if found.error is None}
    except (OSError, ProtocolError):
        pass  # The node is not up yet: the queues that it served so far count.
    return served


def applied_indexes(port: int) -> dict[int, int]:
    """Partition group → the last record the node has applied; empty while it does not serve."""
    frame = _ask_once(port, FrameKind.STATUS, pack(Status()))
    if frame is None or frame.kind == FrameKind.ERROR:
        return {}
    status = unpack(NodeStatus, frame.header).status
    return {group["group"]: group["applied"] for group in status["groups"]}


def _ask_once(port: int, kind: int, header: bytes) -> Frame | None:
    try:
        with Probe(port) as probe:
            return probe.ask(kind, header)
    except (OSError, ProtocolError):
        return None
