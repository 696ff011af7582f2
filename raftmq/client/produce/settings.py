"""A producer's settings, statistics and id."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Self

from raftmq.batch import MESSAGES_MAX, Compression
from raftmq.client.arguments import require, require_fields
from raftmq.pushed import PushedProducer
from raftmq.wire.directory import Use

PAUSED = "operators have paused this producer (producer.is_paused, see `raftmq config get`)"
"""Error text of messages that were not sent while the producer was paused."""
CLOSED = "the producer was closed before it was sent"
"""Error text of messages that were not sent before the producer closed."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """See `Client.producer`."""

    linger: float | None = None
    batch_bytes: int = 1024 * 1024
    batch_messages: int = 10_000
    buffer_bytes: int = 32 * 1024 * 1024
    buffer_messages: int = 262_144
    compression: Compression = Compression.NONE
    is_paused: bool = False
    """True: operators have paused the producer."""

    def use(self, topic: str) -> Use:
        """What such a producer does, for the directory."""
        return Use("produce", topic)

    def obeying(self, pushed: PushedProducer) -> Self:
        """These settings, with those in their place that operators push."""
        return replace(
            self,
            linger=self.linger if pushed.linger_ms is None else pushed.linger_ms / 1000,
            batch_bytes=pushed.batch_bytes or self.batch_bytes,
            batch_messages=pushed.batch_messages or self.batch_messages,
            is_paused=pushed.is_paused,
        )

    def validate(self) -> Self:
        """This object, or `Rejected`."""
        require_fields(self)
        require(self.linger is None or self.linger >= 0, "linger must not be negative")
        require(self.batch_bytes > 0, "batch_bytes must be positive")
        require(
            0 < self.batch_messages <= MESSAGES_MAX, f"batch_messages must be 1 to {MESSAGES_MAX}"
        )
        require(not self.is_paused, "only operators pause a producer: `raftmq config set`")
        require(self.buffer_bytes > 0, "buffer_bytes must be positive")
        require(self.buffer_messages > 0, "buffer_messages must be positive")
        is_known = isinstance(self.compression, Compression)
        require(is_known, f"compression must be one of {', '.join(map(str, Compression))}")
        return self


class ProducerStatistics(NamedTuple):
    """A producer at this moment."""

    buffer_bytes: int
    """Bytes that wait for their answer."""
    buffer_messages: int
    """Messages that wait for their answer."""
    senders: int
    """Queues that the producer has sent to."""
    weights: Mapping[int, float]
    """Node → its weight for messages without a key, of the nodes that lead the topic's queues: 1
    if its queues have each of their turns, 0 if they have none now."""


def random_id(random: Random) -> int:
    """A producer's id: 63 random bits, never 0, which means none."""
    return random.getrandbits(63) or 1
