"""What a consumer group is: how it is served, and what becomes of messages that fail."""

from enum import StrEnum

import msgspec

SCHEDULE_MS = tuple(
    1000 * seconds
    for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""RocketMQ's levels of delay for a message that failed once, twice, …"""
INVISIBLE_MS_MIN = 1000
"""The shortest lease that a policy or a consumer may ask for: shorter ones run out on their way to
the consumer."""
INVISIBLE_MS_MAX = 12 * 3600 * 1000
"""No lease runs longer from when it was opened or extended: as with Amazon SQS."""


class Mode(StrEnum):
    """How a consumer group is served."""

    POP = "pop"
    """Any consumer gets any message."""
    ORDERED = "ordered"
    """The same, but messages with one key go out one after the other."""
    BROADCAST = "broadcast"
    """Each instance gets each message."""
    PULL = "pull"
    """Consumers read by offset."""


class Order(StrEnum):
    """What an ordered group keeps in order."""

    KEY = "key"
    """Messages with equal keys; those without a key are free."""
    QUEUE = "queue"
    """All messages of a queue."""


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """How messages of a consumer group are handed out, and what becomes of those that fail."""

    schedule_ms: tuple[int, ...] = SCHEDULE_MS
    """How long a message waits after its first failure, the second, …; the last one repeats."""
    attempts_max: int = 17
    """A message that fails for so many times is a dead letter."""
    invisible_ms: int = 30_000
    """How long messages are a consumer's alone if it does not say."""
    order: Order = Order.KEY
    """For an ordered group."""
    is_blocking: bool = False
    """For an ordered group: True: a message that failed for the last time blocks what comes after
    it until somebody settles it; False: it is a dead letter, and the next one's turn comes."""

    def delay_ms(self, attempt: int) -> int:
        """How long a message waits that has failed `attempt` times."""
        return self.schedule_ms[min(attempt, len(self.schedule_ms)) - 1]
