"""Requests that quotas hold, each in the lane of those that it must not overtake.

    a batch of a topic          behind the batches of the topic that came on its connection before
    a POP of a consumer         behind its POPs from before
    a FETCH, a search by key    in a lane of its own

A request that is held is open: it counts in the limits of its connection and of the node, so a
client that sends on and on is stopped by TCP. Requests of other lanes pass. When the turn of a
request comes, the connection acts on its frame from the beginning: the rules of access, and the
leader of its group, are those of that moment.

    timer ──> `_turns`: the request is `lane.due` ──> the connection acts on its frame, gate first
          ──> `Quotas.hold` ──> `takes_turn`: it is the one that is due, and passes
    the gate pauses the connection ──> it stays due, and the gate acts on its frame again
    refused before `hold` ──> `_take_turns` empties `due`

Invariants:
- Requests of a lane take their turns in the order in which they came.
- No request takes its turn before each of its buckets allows it.
- A lane takes no turn while its connection is paused: the request that paused it comes first.
- A connection that is gone leaves no lane and no timer.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from functools import partial
from math import ceil

import trio

from raftmq.broker.serve.answers import OpenRequest
from raftmq.broker.serve.connection import STEP_SECONDS_MAX, Connection
from raftmq.broker.timers import Timer, Timers
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply

from .buckets import Bucket, Meter
from .slowed import Slowed

TICK_SECONDS = 0.005
"""The shortest time to the next turn of a lane: small requests that are due together share it."""


HELD_BYTES = 1024
"""Bytes of the objects of a request that is held, beside its frame."""


class Held:
    """A request that waits for its turn."""

    __slots__ = ("asked", "frame", "meter", "recall", "since", "turns")

    def __init__(
        self, asked: OpenRequest, frame: Frame, turns: list[tuple[Bucket, int]], meter: Meter | None
    ) -> None:
        self.asked = asked
        self.frame = frame
        self.turns = turns
        """Buckets, and the request's position in each."""
        self.meter = meter
        """The meter that holds it for longest; None: the requests before it do."""
        self.since = trio.current_time()
        """When it came."""
        self.recall: Frame | None = None
        """A frame of the client that ends the wait of this request; it follows the request."""

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return size_of(self.frame)

    def wait(self, now: float) -> float:
        """Seconds until its buckets allow it."""
        return max((bucket.wait(at, now) for bucket, at in self.turns), default=0.0)


def size_of(frame: Frame) -> int:
    """Bytes that a request takes which is held, about."""
    return HELD_BYTES + len(frame.header) + len(frame.body)


class Lane:
    """The requests of one connection that keep their order."""

    __slots__ = ("due", "held", "timer")

    def __init__(self) -> None:
        self.held: deque[Held] = deque()
        self.due: Held | None = None
        """The request whose turn it is, until its handler has it."""
        self.timer: Timer | None = None

    def wait(self, now: float) -> float:
        """Seconds until the last request may take its turn, about. The first may wait for buckets
        of which the last takes nothing."""
        return max((self.held[at].wait(now) for at in (0, -1)), default=0.0) if self.held else 0.0


class Lanes:
    """All lanes of a node."""

    def __init__(self, timers: Timers, slowed: Slowed) -> None:
        """`slowed` notes whose requests were held, and for how long."""
        self._timers = timers
        self._slowed = slowed
        self._of: dict[Connection, dict[Hashable, Lane]] = {}
        self.count = 0
        """Requests that are held."""
        self.size = 0
        """Bytes that they take, about."""

    def holds(self, connection: Connection) -> bool:
        """True if a connection has lanes: requests are held, or one has its turn now."""
        return connection in self._of

    def get(self, connection: Connection, key: Hashable) -> Lane | None:
        """The lane of a key, if requests are in it."""
        lanes = self._of.get(connection)
        return None if lanes is None else lanes.get(key)

    def put(self, key: Hashable, held: Held) -> None:
        """Hold a request behind those of its lane."""
        lanes = self._of.setdefault(held.asked.connection, {})
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = Lane()
        lane.held.append(held)
        self.count += 1
        self.size += held.size
        if len(lane.held) == 1:
            self._arm(held.asked.connection, key, lane)

    def takes_turn(self, lane: Lane, asked: OpenRequest) -> bool:
        """Whether it is this request's turn; then the lane is rid of it."""
        due = lane.due
        if due is None or due.asked.correlation != asked.correlation:
            return False
        lane.due = None
        seconds = trio.current_time() - due.since
        asked.held_ms = ceil(seconds * 1000)
        if due.meter is not None:
            self._slowed.note(due.meter.subject, seconds)
        return True

    def refuse(self, connection: Connection, key: Hashable, reply: ErrorReply) -> None:
        """Refuse the requests of a lane, as their client gave them up."""
        lane = self._of.get(connection, {}).pop(key, None)
        if lane is None:
            return
        self._forget(lane)
        if not self._of[connection]:
            del self._of[connection]
        for held in lane.held:
            held.asked.answer(reply)

    def closed(self, connection: Connection) -> None:
        """The connection is gone: drop its requests and timers."""
        for lane in self._of.pop(connection, {}).values():
            self._forget(lane)

    def look_again(self) -> None:
        """Quotas have changed: set each lane's next turn again."""
        for connection, lanes in self._of.items():
            for key, lane in lanes.items():
                self._arm(connection, key, lane)

    def _forget(self, lane: Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
        self.count -= len(lane.held)
        self.size -= sum(held.size for held in lane.held)

    def _arm(self, connection: Connection, key: Hashable, lane: Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
        wait = lane.held[0].wait(trio.current_time()) if lane.held else 0.0
        lane.timer = self._timers.call_after(
            max(wait, TICK_SECONDS), partial(self._take_turns, connection, key, lane)
        )

    def _take_turns(self, connection: Connection, key: Hashable, lane: Lane) -> None:
        connection.act_again(self._turns(connection, lane))
        if connection.is_closed or connection not in self._of:
            return
        if not connection.is_paused:
            lane.due = None  # The request was refused before its handler had it.
        if lane.held or lane.due is not None:
            self._arm(connection, key, lane)
            return
        lanes = self._of[connection]
        del lanes[key]
        if not lanes:
            del self._of[connection]

    def _turns(self, connection: Connection, lane: Lane) -> Iterator[Frame]:
        """The frames whose turn it is, each once the connection has acted on the one before."""
        until = trio.current_time() + STEP_SECONDS_MAX
        while lane.held and not connection.is_paused and not connection.is_closed:
            now = trio.current_time()
            # All may be due at once, after a change of the quota: others have their turn, too.
            if now >= until or lane.held[0].wait(now):
                return
            held = lane.due = lane.held.popleft()
            self.count -= 1
            self.size -= held.size
            yield held.frame
            if held.recall is not None:
                yield held.recall
