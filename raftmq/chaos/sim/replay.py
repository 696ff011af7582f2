"""Frames on the wire: recorded and sent again, or left out by kind.

TCP neither repeats nor loses a part of a stream. But a request whose connection broke is sent again
on another one, by clients and by peers; what arrives twice so is made here by playing the beginning
of a recorded connection on a new one. And a peer may leave out any message to another, as Raft
allows it; so frames of one kind are taken out of the stream between two nodes.

Left out: commits of offsets are not sent again. One that arrives twice sets a later one back, and
no more is promised of them (`docs/guarantees.md`).
"""

import struct
from collections.abc import Callable, Iterator

import trio

from raftmq.chaos.faults.schedule import Event
from raftmq.chaos.sim.cluster import PORT
from raftmq.chaos.sim.stage import Stage
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.network import Connection
from raftmq.chaos.world.process import Machine, Process
from raftmq.consensus import MessageKind
from raftmq.wire.codec import unpack
from raftmq.wire.frame import FIXED_BYTES
from raftmq.wire.messages import FrameKind
from raftmq.wire.raft import RaftHeader

FRAMES_MAX = 200
"""Frames that one replay sends."""

DROPPED: dict[int, frozenset[int]] = {
    1: frozenset({
        MessageKind.VOTE, MessageKind.VOTE_RESPONSE,
        MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_RESPONSE,
    }),
    2: frozenset({MessageKind.APPEND_RESPONSE}),
    3: frozenset({MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_RESPONSE}),
    4: frozenset({MessageKind.SNAPSHOT}),
}  # fmt: skip
"""By level of `drop-kind`: the messages that are lost."""

_LENGTH = struct.Struct("<I")


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
    stage: Stage, wanted: Callable[[str, str], bool], *, is_elsewhere: bool = False
) -> None:
    """Send what some connection sent earlier once more, on a connection of its own."""
    known = [c for c in stage.recorded if wanted(*c.ends) and c.out.record]
    if not known:
        return
    connection = stage.random.choice(known)
    frames = list(frames_of(bytes(connection.out.record)))
    frames = [frame for frame in frames if frame[9] != FrameKind.COMMIT]
    if len(frames) < 2:
        return
    start = stage.random.randrange(1, len(frames))
    chosen = [frames[0], *frames[start : start + FRAMES_MAX]]
    targets = [connection.ends[1]]
    targets += [stage.host(n) for n in stage.members()] if is_elsewhere else []
    stage.counts["frames sent again"] += len(chosen) - 1
    stage.spawn(_play, stage, connection.ends[0], stage.random.choice(targets), chosen)


async def _play(stage: Stage, source: str, target: str, frames: list[bytes]) -> None:
    machine = Machine(source, stage.agenda, MemoryFiles())
    process = Process(machine, stage.agenda, seed=stage.random.getrandbits(32))
    network = stage.cluster.network
    with trio.move_on_after(2.0):
        try:
            stream = await network.connect(process, target, PORT)
            async with stream:
                for frame in frames:
                    await stream.send_all(frame)
                while await stream.receive_some(65536):
                    pass
        except (OSError, trio.BrokenResourceError):
            stage.counts["replays cut short"] += 1
    process.die()
    network.process_ended(process)


def stale_replay(stage: Stage, event: Event) -> None:
    """What a node sent to another some time ago arrives once more."""
    hosts = {stage.host(node) for node in stage.members()}
    play_again(stage, lambda source, target: source in hosts and target in hosts)


def duplicate(stage: Stage, event: Event) -> Callable[[], None]:
    """Again and again, something that was sent arrives once more."""
    is_over = False

    def again() -> None:
        if not is_over:
            play_again(stage, lambda _source, _target: True)
            stage.agenda.call_after(0.2 / event.level * stage.random.random(), again)

    def undo() -> None:
        nonlocal is_over
        is_over = True

    again()
    return undo


class FrameFilter:
    """Takes frames of some kinds out of the stream from one node to another."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._rest = b""

    def __call__(self, data: bytes) -> bytes:
        """What is to travel; a frame travels when it is whole."""
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
        kinds = self._stage.dropped_kinds
        if not kinds or frame[9] != FrameKind.RAFT:
            return False
        length = _LENGTH.unpack_from(frame, 12)[0]
        header = unpack(RaftHeader, frame[FIXED_BYTES : FIXED_BYTES + length])
        is_dropped = header.kind in kinds
        self._stage.counts["messages dropped"] += is_dropped
        return is_dropped


def watch_connections(stage: Stage, faults: set[str]) -> None:
    """From now on, record connections and filter frames as far as these faults need it."""
    network = stage.cluster.network
    network.is_recording = bool(faults & {"duplicate", "stale-replay", "client-resend"})
    is_filtering = "drop-kind" in faults

    def opened(connection: Connection) -> None:
        stage.recorded.append(connection)
        if is_filtering and all(end.startswith("node") for end in connection.ends):
            connection.out.tap = FrameFilter(stage)

    if network.is_recording or is_filtering:
        network.on_open = opened


def drop_kind(stage: Stage, event: Event) -> Callable[[], None]:
    """One kind of message between nodes is lost."""
    kinds = DROPPED[int(event.level)]
    stage.dropped_kinds = stage.dropped_kinds | kinds

    def undo() -> None:
        stage.dropped_kinds = stage.dropped_kinds - kinds

    return undo
