"""Frames on the wire: recorded and sent again, or left out by kind.

TCP neither repeats nor loses a part of a stream. But clients and peers send a request again on
another connection if the first connection broke. A replay makes such repeats: it plays a part of a
recorded connection on a new one. Refused requests are left out: their client knows that nothing
happened, and may have given up. Changes of nodes are left out, too, as they have no number: an
`add_node` that comes again after a `remove_node` adds the node again.

A peer may leave out any message to another, as Raft allows; so a filter takes frames of some kinds
out of the stream between two nodes.

All connections are tapped when they are opened, from before the cluster is founded: links between
nodes stand for the whole run if nothing breaks them.
"""

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from raftmq.chaos.sim.cluster import PORT
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.network import Network
from raftmq.chaos.world.pipe import Connection
from raftmq.chaos.world.process import Machine, Process
from raftmq.wire.codec import unpack
from raftmq.wire.frame import FIXED_BYTES
from raftmq.wire.messages import FrameKind
from raftmq.wire.raft import RaftHeader

FRAMES_MAX = 200
"""Most frames that one replay sends, after the greeting."""

if TYPE_CHECKING:
    from raftmq.chaos.sim.run_state import RunState

_LENGTH = struct.Struct("<I")
_CORRELATION = struct.Struct("<Q")


def frames_of(data: bytes) -> Iterator[bytes]:
    """The whole frames that a stream begins with."""
    at = 0
    while at + FIXED_BYTES <= len(data):
        size = _LENGTH.unpack_from(data, at)[0] + 4
        if at + size > len(data):
            return
        yield data[at : at + size]
        at += size


def play_again(
    state: "RunState", wanted: Callable[[str, str], bool], *, is_elsewhere: bool = False
) -> None:
    """Send a part of a recorded connection again, on a connection of its own."""
    known = [c for c in state.taps.recorded if wanted(*c.ends) and c.out.record]
    while known:
        connection = state.random.choice(known)
        frames = _repeatable(connection)
        if len(frames) > 1:
            break
        known.remove(connection)
    else:
        return
    start = state.random.randrange(1, len(frames))
    chosen = [frames[0], *frames[start : start + FRAMES_MAX]]
    targets = [connection.ends[1]]
    targets += [state.host(n) for n in state.members()] if is_elsewhere else []
    state.agenda.effects["frames sent again"] += len(chosen) - 1
    state.spawn(_play, state, connection.ends[0], state.random.choice(targets), chosen)


def _repeatable(connection: Connection) -> list[bytes]:
    """The recorded greeting of a connection, and its requests that may come again."""
    refused = set(_refused(bytes(connection.back.record)))
    frames = list(frames_of(bytes(connection.out.record)))
    return frames[:1] + [
        frame
        for frame in frames[1:]
        if frame[9] != FrameKind.CHANGE_NODE and _correlation(frame) not in refused
    ]


def _refused(answers: bytes) -> Iterator[int]:
    """Correlations of the requests that were refused on a connection."""
    for frame in frames_of(answers):
        if frame[9] == FrameKind.ERROR and _correlation(frame):
            yield _correlation(frame)


def _correlation(frame: bytes) -> int:
    (correlation,) = _CORRELATION.unpack_from(frame, 16)
    return int(correlation)


def _header(frame: bytes) -> bytes:
    length = _LENGTH.unpack_from(frame, 12)[0]
    return frame[FIXED_BYTES : FIXED_BYTES + length]


async def _play(state: "RunState", source: str, target: str, frames: list[bytes]) -> None:
    machine = Machine(source, state.agenda, MemoryFiles())
    process = Process(machine, state.agenda, seed=state.random.getrandbits(32))
    network = state.cluster.network
    with trio.move_on_after(2.0):
        try:
            stream = await network.connect(process, target, PORT)
            async with stream:
                for frame in frames:
                    await stream.send_all(frame)
                while await stream.receive_some(65536):
                    pass
        except (OSError, trio.BrokenResourceError):
            state.counts["replays cut short"] += 1
    process.die()
    network.process_ended(process)


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
