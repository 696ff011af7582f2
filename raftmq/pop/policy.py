"""The settings of a consumer group: how it is served, and how failed messages are retried."""

from enum import StrEnum

import msgspec

from .pieces import WIDTH_MAX

SCHEDULE_MS = tuple(
    1000 * seconds
    for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""RocketMQ's levels of delay for a message that failed once, twice, …"""
INVISIBLE_MS_MIN = 1000
"""The shortest lease that a policy or a consumer may ask for: shorter ones run out on their way to
the consumer."""
INVISIBLE_MS_MAX = 12 * 3600 * 1000
"""The longest time that a lease runs after it was opened or extended, as with Amazon SQS."""

RUN_MAX = WIDTH_MAX
"""As many messages of a key as a lease may hold at all."""


class Mode(StrEnum):
    """How a consumer group is served."""

    POP = "pop"
    """Any consumer gets any message."""
    ORDERED = "ordered"
    """Any consumer gets any message, but in the group's `Order`: one key or queue in turn."""
    BROADCAST = "broadcast"
    """Each instance gets each message."""
    PULL = "pull"
    """Consumers read by offset."""


class Order(StrEnum):
    """Which messages an ordered group keeps in order."""

    KEY = "key"
    """Messages with equal keys; those without a key are free."""
    QUEUE = "queue"
    """All messages of a queue."""


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """How messages of a consumer group are handed out, and how failed ones are retried."""

    schedule_ms: tuple[int, ...] = SCHEDULE_MS
    """How long a message waits after its first failure, the second, …; the last one repeats."""
    attempts_max: int = 17
    """A message that has failed this number of times is a dead letter."""
    invisible_ms: int = 30_000
    """How long a lease runs if the consumer names no time."""
    order: Order = Order.KEY
    """For an ordered group: which messages go out one after the other."""
    is_blocking: bool = False
    """For an ordered group. True: a dead letter holds up the messages that follow it in order until
    an operator redrives or purges it; False: the next message's turn comes."""
    run: int = 1
    """For a group ordered by key: the number of messages of one key that a lease may hold, 1 to
    `RUN_MAX`; 1 in records of older software. 0, in a command alone: as the group has it, and
    `RUN_MAX` for a new group."""

    def delay_ms(self, attempt: int) -> int:
        """How long a message waits that has failed `attempt` times."""
        return self.schedule_ms[min(attempt, len(self.schedule_ms)) - 1]
