"""Frames that strangers send to a node's port, in both worlds that have ports.

Start reading at `raftmq.chaos.sim.faults.hostile`, which has the bounds on their cost.
"""

from functools import cache
from random import Random

from raftmq.batch import encode
from raftmq.batch.compression import Compression
from raftmq.machine.producers import RESERVED
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello

MIB = 1 << 20
FRAME_BYTES = 3 * MIB
"""Size of the content of a frame that never ends."""


def client_hello() -> bytes:
    """A Hello as any client says it."""
    hello = Hello(PROTOCOL, "", 0, "", "stranger")
    return b"".join(encode_frame(FrameKind.HELLO, 0, pack(hello)))


@cache
def endless_frame() -> bytes:
    """A large frame without its last byte."""
    return b"".join(encode_frame(FrameKind.PRODUCE, 1, b"", [bytes(FRAME_BYTES)]))[:-1]


@cache
def bombs(queue: int) -> bytes:
    """Small frames with large contents, under a producer id that no client may use."""
    sealed = encode([bytes(4 * MIB)], compression=Compression.ZSTD)
    batch = sealed.to_bytes(queue=queue, producer=RESERVED, first_sequence=0)
    frames = (encode_frame(FrameKind.PRODUCE, number, b"", [batch]) for number in range(1, 4))
    return b"".join(part for frame in frames for part in frame)


def anything(random: Random) -> bytes:
    """Bytes that may or may not look like a frame."""
    words = random.randbytes(random.randint(1, 300))
    if random.random() < 0.5:
        kind = random.randrange(128)
        words = b"".join(encode_frame(kind, 1, random.randbytes(20)))
    return words
