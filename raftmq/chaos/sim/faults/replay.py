"""Recorded frames are sent again.

TCP neither repeats nor loses a part of a stream. But clients and peers send a request again on
another connection if the first connection broke. A replay makes such repeats: it plays a part of a
recorded connection on a new one. Refused requests are left out: their client knows that nothing
happened, and may have given up. Changes of nodes are left out, too, as they have no number: an
`add_node` that comes again after a `remove_node` adds the node again.
"""

import struct
from collections.abc import Callable, Iterator

import trio

from raftmq.chaos.sim.cluster import PORT
from raftmq.chaos.sim.faults.taps import frames_of
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.pipe import Connection
from raftmq.chaos.world.process import Machine, Process
from raftmq.wire.messages import FrameKind

FRAMES_MAX = 200
"""Most frames that one replay sends, after the greeting."""

_CORRELATION = struct.Struct("<Q")


def play_again(
    state: RunState, wanted: Callable[[str, str], bool], *, is_elsewhere: bool = False
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


async def _play(state: RunState, source: str, target: str, frames: list[bytes]) -> None:
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
