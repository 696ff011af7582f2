"""The weights of the nodes for messages without a key, by the round trips of batches lately.

| a node | has the weight |
|---|---|
| is as quick as the quickest, or its round trips are up to `BAND` times as long | 1 |
| is slower | less, by the square of its round trips: 1/25 at ten times; `WEIGHT_MIN` at least |
| failed: broke the connection, refused as busy or unavailable, cannot be reached | 0 |
| has let a batch wait for `STUCK_SECONDS` | 0 until the answer |
| failed, and `PROBE_SECONDS` are over, twice as many after each failure | one batch probes it |
| answers again | `WEIGHT_MIN`, and in `RAMP_SECONDS` step by step to 1 |
| was never measured | 1 |

The quickest of the leaders of the topic is the measure, so weights compare the nodes that lead, and
one of them has the weight 1. If all are 0, all are 1. A batch without an answer counts with its age
so far: a node that hangs loses its weight before it answers.

*Zones.* In a client with a zone, leaders of other zones have `WEIGHT_MIN` while a leader in the
zone is well: its round trips are at most `ZONE_BAND` times as long as the quickest anywhere. As the
best leader in the zone gets slower than that, or is restored after a failure, the others take over
what the zone lacks.

Invariants:
- Given the same calls and times, the weights are the same: no clock and no randomness is in here.
- A weight is 0 only of a node that failed or is stuck, and never of all nodes.

Sources: Finagle's peak EWMA (the age of what is open counts); Envoy's outlier ejection and slow
start; KIP-794 (adaptive partitioning).
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

import anyio

from raftmq.errors import ProtocolError
from raftmq.wire.directory import AvoidedNode
from raftmq.wire.messages import REPLY, FrameKind

from .connection import Answer, Connection, Lost, OnAnswer, Request
from .refusals import NOT_LEADER, NOTHING_HAPPENED, refusal_of

BAND = 2.0
"""Round trips that are up to this many times as long as the quickest node's count as equal: they
vary by chance, and equal nodes are to get equal numbers of messages."""
ZONE_BAND = 4.0
"""As `BAND`, for the best leader in the client's zone before other zones take a part."""
LATE_BAND = 4.0
"""A batch that waits for this many times as long as the quickest node's round trips ends a turn.
With fewer, batches that are late by chance would end turns, and batches would be smaller."""
SECONDS_MIN = 0.002
"""Shorter round trips count as this: differences below mean nothing."""
WEIGHT_MIN = 1 / 64
"""A node that works has this weight at least, so a change for the better is noticed."""
STUCK_SECONDS = 1.0
"""A node that lets a batch wait for this time gets no more until it answers."""
PROBE_SECONDS = 1.0
"""After a failure, time until a batch probes the node."""
PROBE_SECONDS_MAX = 10.0
"""Bound of this time after repeated failures."""
RAMP_SECONDS = 5.0
"""Time from a failed node's first answer to its full weight."""

_SAMPLE_SHARE = 1 / 8
"""Share of a round trip in the mean, if the one before came just now."""
_STALE_SECONDS = 10.0
"""After this time without an answer the next round trip replaces the mean; before, the share grows
with the time, so that a node with a small weight is found to be quick again at any pace."""


class Outcome(Enum):
    """What the end of a batch's request says about the node."""

    STORED = auto()
    FAILED = auto()
    UNTOLD = auto()
    """Nothing: another node leads, or the batch itself was refused."""


class _Node:
    """The state of one node."""

    def __init__(self) -> None:
        # Requests without an answer and the times at which they were sent, the oldest first.
        self._open: dict[object, float] = {}
        # Mean round trip; None: no batch was stored yet.
        self._seconds: float | None = None
        self._measured_at = 0.0
        # Failures in a row, since the node last had its full weight.
        self._failures = 0
        self._probe_at = 0.0
        # The first answer after the last failure.
        self._back_at: float | None = None

    @property
    def is_measured(self) -> bool:
        return self._seconds is not None

    def age(self, now: float) -> float:
        """Seconds for which the oldest open request waits; 0: none is open."""
        return now - next(iter(self._open.values())) if self._open else 0.0

    def cost(self, now: float) -> float:
        """Seconds of a round trip, as far as known."""
        return max(self._seconds or 0.0, self.age(now), SECONDS_MIN)

    def health(self, now: float) -> float:
        """1: well; 0: failed or stuck; between: after a failure."""
        if self.age(now) > STUCK_SECONDS:
            return 0.0
        if not self._failures:
            return 1.0
        if self._back_at is None:
            return WEIGHT_MIN if now >= self._probe_at and not self._open else 0.0
        return min(1.0, max(WEIGHT_MIN, (now - self._back_at) / RAMP_SECONDS))

    def is_late(self, late_seconds: float, now: float) -> bool:
        # Asked for each message: nothing is computed for a node that is well.
        if self._open and self.age(now) > late_seconds:
            return True
        return bool(self._failures) and not self.health(now)

    def began(self, request: object, now: float) -> None:
        self._open[request] = now

    def ended(self, request: object, now: float) -> float:
        """Seconds for which the request was open."""
        return now - self._open.pop(request, now)

    def stored(self, seconds: float, now: float) -> None:
        """A batch was stored after this time."""
        self.measure(seconds, now)
        if self._failures and self._back_at is None:
            self._back_at = now
        if self._back_at is not None and now - self._back_at >= RAMP_SECONDS:
            self._failures, self._back_at = 0, None

    def measure(self, seconds: float, now: float) -> None:
        """Take a round trip into the mean."""
        share = min(1.0, max(_SAMPLE_SHARE, (now - self._measured_at) / _STALE_SECONDS))
        before = seconds if self._seconds is None else self._seconds
        self._seconds = before + (seconds - before) * share
        self._measured_at = now

    def failed(self, now: float) -> None:
        """The node failed; failures before the next probe are one."""
        if self._failures and self._back_at is None and now < self._probe_at:
            return
        wait = min(PROBE_SECONDS * 2.0**self._failures, PROBE_SECONDS_MAX)
        # The bound keeps the power small; the wait has long been the longest.
        self._failures = min(self._failures + 1, 16)
        self._probe_at, self._back_at = now + wait, None


class Shares(NamedTuple):
    """The weights of some nodes at a moment."""

    weights: dict[int, float]
    """Node → its weight, 0 to 1; one node has 1 at least."""
    late_seconds: float
    """A node with a batch that waits for longer is late."""


class Weights:
    """What a client knows about the speed of its nodes, from all of its producers."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self.zone = ""
        """The client's zone; empty: it has none."""
        self.zones: Mapping[int, str] = {}
        """The zones of the nodes, by number."""

    def began(self, node: int, request: object, now: float) -> None:
        """A request with a batch goes to a node."""
        self._node(node).began(request, now)

    def ended(self, node: int, request: object, outcome: Outcome, now: float) -> None:
        """A request that began was answered, or its connection is gone."""
        state = self._node(node)
        seconds = state.ended(request, now)
        if outcome is Outcome.FAILED:
            state.failed(now)
        elif outcome is Outcome.STORED:
            state.stored(seconds, now)

    def gave_up(self, node: int, request: object, now: float) -> None:
        """No caller waits for the answer to a request any longer."""
        state = self._node(node)
        seconds = state.ended(request, now)
        if seconds > STUCK_SECONDS:
            state.failed(now)
        elif seconds > state.cost(now):
            # The answer would have taken this time at least.
            state.measure(seconds, now)

    def failed(self, node: int, now: float) -> None:
        """A node cannot be reached."""
        self._node(node).failed(now)

    def is_late(self, node: int, late_seconds: float, now: float) -> bool:
        """Has the node failed, or does a batch wait there for longer than these seconds?"""
        state = self._nodes.get(node)
        return state is not None and state.is_late(late_seconds, now)

    def among(self, nodes: Collection[int], now: float) -> Shares:
        """The weights of these nodes, the leaders of a topic."""
        states = {node: self._node(node) for node in sorted(nodes)}
        health = {node: state.health(now) for node, state in states.items()}
        costs = {node: state.cost(now) for node, state in states.items()}
        known = [costs[node] for node in states if health[node] and states[node].is_measured]
        best = min(known, default=None)

        def weight(node: int, band: float) -> float:
            speed = 1.0 if best is None else min(1.0, (band * best / costs[node]) ** 2)
            return health[node] * max(speed, WEIGHT_MIN)

        weights = {node: weight(node, BAND) for node in states}
        near = [node for node in states if self.zone and self.zones.get(node) == self.zone]
        if near:
            lack = 1.0 - max(weight(node, ZONE_BAND) for node in near)
            for node in weights.keys() - set(near):
                weights[node] *= max(lack, WEIGHT_MIN)
        highest = max(weights.values(), default=0.0)
        if not highest:
            weights, highest = dict.fromkeys(states, 1.0), 1.0
        late_seconds = STUCK_SECONDS if best is None else LATE_BAND * best
        return Shares({node: each / highest for node, each in weights.items()}, late_seconds)

    def avoided(self, now: float) -> list[AvoidedNode]:
        """Nodes that failed or are stuck, or were a moment ago."""
        found = ((node, state.health(now)) for node, state in sorted(self._nodes.items()))
        return [AvoidedNode(node, round(health, 3)) for node, health in found if health < 1]

    def _node(self, node: int) -> _Node:
        state = self._nodes.get(node)
        if state is None:
            state = self._nodes[node] = _Node()
        return state


def post_batch(
    weights: Weights, connection: Connection, body: Sequence[bytes], on_answer: OnAnswer
) -> Request:
    """Send a batch as `Connection.post` does, and measure its round trip."""
    node = connection.node

    def answered(answer: Answer) -> None:
        weights.ended(node, request, _outcome_of(answer), anyio.current_time())
        on_answer(answer)

    request = connection.post(FrameKind.PRODUCE, b"", body, answered)
    weights.began(node, request, anyio.current_time())
    return request


def forget_batch(weights: Weights, connection: Connection, request: Request) -> bool:
    """Drop a batch that `post_batch` sent and whose time is over, as `Connection.forget` does."""
    weights.gave_up(connection.node, request, anyio.current_time())
    return connection.forget(request)


def _outcome_of(answer: Answer) -> Outcome:
    if isinstance(answer, Lost):
        return Outcome.FAILED
    if answer.kind == FrameKind.PRODUCE | REPLY:
        return Outcome.STORED
    try:
        refusal = refusal_of(answer)
    except ProtocolError:
        return Outcome.FAILED
    # A refusal takes no time of the disk: as a round trip it would make a bad node look quick.
    if refusal is None or refusal.code == NOT_LEADER or refusal.code not in NOTHING_HAPPENED:
        return Outcome.UNTOLD
    return Outcome.FAILED
