"""Taps on the connections of a run: they record frames, or leave frames of some kinds out.

A peer may leave out any message to another, as Raft allows; so a filter takes frames of some kinds
out of the stream between two nodes.

All connections are tapped when they are opened, from before the cluster is founded: links between
nodes stand for the whole run if nothing breaks them.
"""

import struct
from collections.abc import Iterator

from raftmq.chaos.world.network import Network
from raftmq.chaos.world.pipe import Connection
from raftmq.wire.codec import unpack
from raftmq.wire.frame import FIXED_BYTES
from raftmq.wire.messages import FrameKind
from raftmq.wire.raft import RaftHeader

_LENGTH = struct.Struct("<I")


class Taps:
    """Taps on all connections of a run; made before the first connection is opened."""

    def __init__(self, network: Network, faults: set[str]) -> None:
        self.recorded: list[Connection] = []
        """Connections in the order in which they were opened, if a fault needs them."""
        self.dropped_kinds: frozenset[int] = frozenset()
        """Kinds of consensus messages that are lost between nodes now."""
        self.effects = network.effects
        """Effects of faults on the simulated world, by name."""
        self._is_filtering = "drop-kind" in faults
        network.is_recording = bool(faults & {"duplicate", "stale-replay", "client-resend"})
        if network.is_recording or self._is_filtering:
            network.on_open = self._opened

    def _opened(self, connection: Connection) -> None:
        self.recorded.append(connection)
        if self._is_filtering and all(end.startswith("node") for end in connection.ends):
            connection.out.tap = FrameFilter(self)


class FrameFilter:
    """Takes frames of some kinds out of the stream from one node to another."""

    def __init__(self, taps: Taps) -> None:
        self._taps = taps
        self._rest = b""

    def __call__(self, data: bytes) -> bytes:
        """The bytes that travel on: frames that are whole by now, without the dropped kinds."""
        data = self._rest + data
        kept = []
        size = 0
        for frame in frames_of(data):
            size += len(frame)
            if not self._is_dropped(frame):
                kept.append(frame)
        self._rest = data[size:]
        return b"".join(kept)

    def _is_dropped(self, frame: bytes) -> bool:
        kinds = self._taps.dropped_kinds
        if not kinds or frame[9] != FrameKind.RAFT:
            return False
        is_dropped = unpack(RaftHeader, _header(frame)).kind in kinds
        self._taps.effects["messages dropped"] += is_dropped
        return is_dropped


def frames_of(data: bytes) -> Iterator[bytes]:
    """The whole frames that a stream begins with."""
    at = 0
    while at + FIXED_BYTES <= len(data):
        size = _LENGTH.unpack_from(data, at)[0] + 4
        if at + size > len(data):
            return
        yield data[at : at + size]
        at += size


def _header(frame: bytes) -> bytes:
    length = _LENGTH.unpack_from(frame, 12)[0]
    return frame[FIXED_BYTES : FIXED_BYTES + length]
