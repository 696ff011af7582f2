"""Facts about minutes, from a batch of events of one partition group.

A `Flow` counts what happened in a minute: flows of several batches and partition groups add up. A
`Level` is a group's state at a minute's end, or at the end of the batch if that came before: the
last level of each partition group counts, and these add up over partition groups.

Topics themselves have rows with an empty group.
"""

import msgspec

from . import durations

MINUTE_MS = 60_000

Key = tuple[str, str]
"""Topic and consumer group; group empty: the topic itself."""


class Flow(msgspec.Struct):
    """Counts of events on messages of a topic in a minute, in one consumer group or in all."""

    stored: int = 0
    """Messages that came; of the topic itself only, while all other counts are of groups."""
    handed_out: int = 0
    """Hand-outs: a message that came again counts again."""
    acked: int = 0
    """Messages that were acked."""
    retries: int = 0
    """Failed, or their lease ran out, and they come again."""
    dead: int = 0
    """Became dead letters."""
    given_back: int = 0
    """Given back unbegun."""
    redriven: int = 0
    """Dead letters that are handed out again."""
    purged: int = 0
    """Dead letters thrown away."""
    passed: int = 0
    """Passed over by the filter."""
    lost: int = 0
    """Taken by retention before they were settled."""
    skipped: int = 0
    """Passed over by a reset before they were settled."""
    waits: dict[int, int] = {}
    """From stored to first handed out: buckets of `durations`, a message each."""
    services: dict[int, int] = {}
    """From handed out to acked: buckets of `durations`, a message each."""
    producers: set[int] = set()
    """Producers of the messages that came; of the topic itself only."""
    consumers: set[int] = set()
    """Consumers that were handed messages or settled some."""

    def add(self, other: "Flow") -> None:
        """Add another flow to this one."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        durations.add(self.waits, other.waits)
        durations.add(self.services, other.services)
        self.producers |= other.producers
        self.consumers |= other.consumers


COUNTS = tuple(field.name for field in msgspec.structs.fields(Flow) if field.type is int)
"""The fields of `Flow` that are numbers of messages."""


class Level(msgspec.Struct, frozen=True):
    """The state of a consumer group in a topic, in one partition group or in all."""

    lag: int
    """Messages that it has not settled, dead letters apart."""
    fresh: int
    """Unsettled messages that were never handed out."""
    oldest: int
    """When the oldest unsettled message was stored, milliseconds since 1970; 0: no such message, or
    the time is not known."""

    def plus(self, other: "Level") -> "Level":
        """The sum of both, with the older `oldest`."""
        known = [each.oldest for each in (self, other) if each.oldest]
        oldest = min(known, default=0)
        return Level(self.lag + other.lag, self.fresh + other.fresh, oldest)


class Facts(msgspec.Struct):
    """All facts of a batch. Minutes are milliseconds since 1970, at their beginning."""

    flows: dict[tuple[int, str, str], Flow] = {}
    """(minute, topic, group) → the flow."""
    levels: dict[tuple[int, str, str], Level] = {}
    """(minute, topic, group) → the level, of minutes in which something changed."""
    is_cut: bool = False
    """Whether the log no longer holds all messages of a queue before those that were met."""
    last: int = 0
    """The time of the last event, milliseconds since 1970; 0: there was none."""

    def flow(self, minute: int, topic: str, group: str) -> Flow:
        """The flow to count in."""
        return self.flows.setdefault((minute, topic, group), Flow())

    def pack(self) -> bytes:
        """As bytes: msgpack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> "Facts":
        """The reverse of `pack`."""
        return msgspec.msgpack.decode(data, type=cls)
