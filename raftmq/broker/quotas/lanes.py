"""Requests that quotas hold, each in the lane of those that it must not overtake.

    a batch of a topic          behind the batches of the topic that came on its connection before
    a POP of a consumer         behind its POPs from before
    a FETCH, a search by key    in a lane of its own

A request that is held is open: it counts in the limits of its connection and of the node, so a
client that sends on and on is stopped by TCP. Requests of other lanes pass. When the turn of a
request comes, the connection acts on its frame from the beginning: the rules of access, and the
leader of its group, are those of that moment.

    timer ──> `_turns`: the request is `lane.due` ──> the connection acts on its frame, gate first
          ──> `Quotas.hold` ──> `take_turn`: it is the one that is due, and passes
    the gate pauses the connection ──> it stays due, and the gate acts on its frame again
    refused before `hold`, or the connection closes ──> its amounts are taken back

A read pours nothing in before its answer is made, so reads that are held stand in the *line* of a
bucket, and the first one alone has the turn: what it brings is in the bucket when the next one
looks. A read that finds another bucket too full goes to the end of that line.

    bucket ──> line: lane of A, lane of B, ...    A has the turn once the bucket allows it

Invariants:
- Requests of a lane take their turns in the order in which they came.
- No request takes its turn before each of its buckets allows it.
- No read passes the line of a bucket, and none is held for longer than its time.
- A lane takes no turn while its connection is paused: the request that paused it comes first.
- A connection that is gone leaves no lane and no timer.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from math import ceil

import trio

from raftmq.broker.serve.answers import OpenRequest
from raftmq.broker.serve.connection import STEP_SECONDS_MAX, Connection
from raftmq.broker.timers import Timer, Timers
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FrameKind

from .buckets import Bucket, Meter
from .throttle_times import ThrottleTimes

TICK_SECONDS = 0.005
"""The shortest time to the next turn of a lane: small requests that are due together share it."""


LOOK_SHARE = 0.2
"""Share of the loop's time that looks at all lanes may take."""

HELD_BYTES = 1024
"""Memory of a held request beside its frame, in bytes."""


class Held:
    """A request that waits for its turn."""

    __slots__ = ("asked", "frame", "meter", "recall", "since", "turns")

    def __init__(
        self,
        asked: OpenRequest,
        frame: Frame,
        turns: list[tuple[Bucket, int, int]],
        meter: Meter | None,
    ) -> None:
        self.asked = asked
        self.frame = frame
        self.turns = turns
        """Buckets, with the request's position and amount in each."""
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

    @property
    def is_read(self) -> bool:
        """True: its amounts are poured in when its answer is made."""
        return self.asked.kind != FrameKind.PRODUCE

    def wait_seconds(self, now: float) -> float:
        """Seconds until its buckets allow it."""
        if self.is_read:
            bucket = self.fullest(now)
            return 0.0 if bucket is None else bucket.wait_of_next(now)
        return max((bucket.wait_seconds(at, now) for bucket, at, _ in self.turns), default=0.0)

    def fullest(self, now: float) -> Bucket | None:
        """Of a read, the bucket that holds it for longest now; None: it has none."""
        buckets = (bucket for bucket, _, _ in self.turns)
        return max(buckets, key=lambda each: each.wait_of_next(now), default=None)


def size_of(frame: Frame) -> int:
    """Memory of a held request, in bytes, about."""
    return HELD_BYTES + len(frame.header) + len(frame.body)


class Lane:
    """The requests of one connection that keep their order."""

    __slots__ = ("bucket", "connection", "due", "held", "key", "timer")

    def __init__(self, connection: Connection, key: Hashable) -> None:
        self.connection = connection
        self.key = key
        self.bucket: Bucket | None = None
        """The bucket in whose line it stands; None: in none."""
        self.held: deque[Held] = deque()
        self.due: Held | None = None
        """The request whose turn it is, until its handler has it."""
        self.timer: Timer | None = None

    def wait_seconds(self, now: float) -> float:
        """Seconds until the last request may take its turn, about. The first may wait for buckets
        of which the last takes nothing."""
        return max(self.held[at].wait_seconds(now) for at in (0, -1)) if self.held else 0.0


class Lanes:
    """All lanes of a node."""

    def __init__(
        self,
        timers: Timers,
        throttle_times: ThrottleTimes,
        *,
        hold_seconds_max: float,
        busy: Callable[[float], ErrorReply],
    ) -> None:
        """`throttle_times` notes whose requests were held, and for how long. A read that was held
        for `hold_seconds_max` is refused with `busy` of the seconds that it would have to wait."""
        self._timers = timers
        self._busy = busy
        self._hold_seconds_max = hold_seconds_max
        # Those of a line in the order in which they came to it.
        self._lines: dict[Bucket, dict[Lane, None]] = {}
        self._throttle_times = throttle_times
        self._of: dict[Connection, dict[Hashable, Lane]] = {}
        self.count = 0
        """Requests that are held."""
        self.size = 0
        """Bytes that they take, about."""
        # What ended before its turn: by bucket the positions and amounts.
        self._ended: dict[Bucket, list[tuple[int, int]]] = {}
        # The lanes that the look which is under way has still to set; None: none is under way.
        self._to_arm: deque[Lane] | None = None
        self._is_look_due = False

    def holds(self, connection: Connection) -> bool:
        """True if a connection has lanes: requests are held, or one has its turn now."""
        return connection in self._of

    def get(self, connection: Connection, key: Hashable) -> Lane | None:
        """The lane of a key, if requests are in it."""
        lanes = self._of.get(connection)
        return None if lanes is None else lanes.get(key)

    def has_line(self, buckets: Iterable[Bucket]) -> bool:
        """True if reads stand in the line of one of these buckets."""
        return bool(self._lines) and not self._lines.keys().isdisjoint(buckets)

    def put(self, key: Hashable, held: Held) -> None:
        """Hold a request behind those of its lane."""
        lanes = self._of.setdefault(held.asked.connection, {})
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = Lane(held.asked.connection, key)
        lane.held.append(held)
        self.count += 1
        self.size += held.size
        if len(lane.held) == 1:
            self._arm(lane)

    def take_turn(self, lane: Lane, asked: OpenRequest) -> bool:
        """Take a request out of its lane if it has the turn; True: it had."""
        due = lane.due
        if due is None or due.asked.correlation != asked.correlation:
            return False
        lane.due = None
        seconds = trio.current_time() - due.since
        asked.throttle_ms = ceil(seconds * 1000)
        if due.meter is not None:
            self._throttle_times.note(due.meter.subject, seconds)
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
        gone: list[Held] = []
        for lane in self._of.pop(connection, {}).values():
            self._forget(lane)
            gone += lane.held if lane.due is None else (lane.due, *lane.held)
        self._take_back(gone)

    def look_at(self, bucket: Bucket) -> None:
        """A bucket has more room: the first read of its line may have its turn sooner."""
        if bucket in self._lines:
            self._arm(next(iter(self._lines[bucket])))

    def look_again(self) -> None:
        """Quotas or buckets have changed: set each lane's next turn again, in steps."""
        if self._to_arm is not None:
            self._is_look_due = True
            return
        self._to_arm = deque(lane for lanes in self._of.values() for lane in lanes.values())
        self._arm_some()

    def _arm_some(self) -> None:
        assert self._to_arm is not None
        begun = trio.current_time()
        took = 0.0
        while self._to_arm and took < STEP_SECONDS_MAX:
            lane = self._to_arm.popleft()
            if self.get(lane.connection, lane.key) is lane:
                self._arm(lane)
            took = trio.current_time() - begun
        if self._to_arm or self._is_look_due:
            pause = max(took / LOOK_SHARE, TICK_SECONDS)
            self._timers.call_after(pause, self._arm_some if self._to_arm else self._look_once_more)
        else:
            self._to_arm = None

    def _look_once_more(self) -> None:
        self._to_arm, self._is_look_due = None, False
        self.look_again()

    def _take_back(self, ended: list[Held]) -> None:
        """Requests have ended before they started: soon their buckets have room for others."""
        # Many connections may close at once, and many lanes be refused: one look is for all.
        is_first = not self._ended
        for held in ended:
            for bucket, position, amount in held.turns:
                if amount:
                    self._ended.setdefault(bucket, []).append((position, amount))
        if is_first and self._ended:
            self._timers.call_after(TICK_SECONDS, self._take_all_back)

    def _take_all_back(self) -> None:
        ended, self._ended, now = self._ended, {}, trio.current_time()
        for bucket, requests in ended.items():
            bucket.take_back(requests, now)
        self.look_again()

    def _forget(self, lane: Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
        self._leave_line(lane)
        self.count -= len(lane.held)
        self.size -= sum(held.size for held in lane.held)

    def _arm(self, lane: Lane) -> None:
        now = trio.current_time()
        if not lane.held:
            wait = 0.0
        elif lane.held[0].is_read:
            wait = self._stand_in_line(lane, lane.held[0], now)
        else:
            wait = lane.held[0].wait_seconds(now)
        self._call_after(wait, lane)

    def _call_after(self, wait: float, lane: Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
        lane.timer = self._timers.call_after(
            max(wait, TICK_SECONDS), partial(self._take_turns, lane)
        )

    def _stand_in_line(self, lane: Lane, held: Held, now: float) -> float:
        """Seconds until a read has the turn, or is refused."""
        wait, fullest = held.wait_seconds(now), held.fullest(now)
        if wait and self._is_first(lane) and not self._wait_of_line(lane, now):
            self._leave_line(lane)
        if lane.bucket is None:
            lined = (bucket for bucket, _, _ in held.turns if bucket in self._lines)
            lane.bucket = fullest if wait else next(lined, None)
            if lane.bucket is None:
                return 0.0
            self._lines.setdefault(lane.bucket, {})[lane] = None
        left = held.since + self._hold_seconds_max - now
        return min(wait, left) if self._is_first(lane) else left

    def _is_first(self, lane: Lane) -> bool:
        return lane.bucket is not None and next(iter(self._lines[lane.bucket])) is lane

    def _wait_of_line(self, lane: Lane, now: float) -> float:
        return 0.0 if lane.bucket is None else lane.bucket.wait_of_next(now)

    def _leave_line(self, lane: Lane) -> None:
        bucket, is_first = lane.bucket, self._is_first(lane)
        if bucket is None:
            return
        line, lane.bucket = self._lines[bucket], None
        del line[lane]
        if not line:
            del self._lines[bucket]
        elif is_first:
            # Not `_arm`: those of a long line might all go to another one, each from within the
            # call for the one before.
            self._call_after(0.0, next(iter(line)))

    def _take_turns(self, lane: Lane) -> None:
        """It may be a lane's turn; others of its line have theirs in the same step."""
        until, bucket = trio.current_time() + STEP_SECONDS_MAX, lane.bucket
        has_taken = self._take_turns_of(lane)
        while has_taken and bucket in self._lines:
            now, lane = trio.current_time(), next(iter(self._lines[bucket]))
            if now >= until or lane.held[0].wait_seconds(now):
                # Its timer goes by the bucket as it was.
                self._arm(lane)
                return
            has_taken = self._take_turns_of(lane)

    def _take_turns_of(self, lane: Lane) -> bool:
        """Have the connection act on the requests whose turn it is; True: there was one."""
        connection, before = lane.connection, len(lane.held)
        if lane.timer is not None:
            lane.timer.cancel()
        connection.act_again(self._turns(lane))
        has_taken = len(lane.held) < before
        if connection.is_closed or connection not in self._of:
            return has_taken
        self._end_turn(lane)
        if lane.held or lane.due is not None:
            if not has_taken:
                # Its connection is paused: others go on, and it stands behind them.
                self._leave_line_if_due(lane)
            self._arm(lane)
            return has_taken
        lanes = self._of[connection]
        del lanes[lane.key]
        if not lanes:
            del self._of[connection]
        return has_taken

    def _leave_line_if_due(self, lane: Lane) -> None:
        if lane.held and not lane.held[0].wait_seconds(trio.current_time()):
            self._leave_line(lane)

    def _turns(self, lane: Lane) -> Iterator[Frame]:
        """The frames whose turn it is, each once the connection has acted on the one before."""
        connection, until = lane.connection, trio.current_time() + STEP_SECONDS_MAX
        while lane.held and not connection.is_paused and not connection.is_closed:
            now = trio.current_time()
            held, wait = lane.held[0], lane.held[0].wait_seconds(now)
            is_late = held.is_read and now >= held.since + self._hold_seconds_max
            # All may be due at once, after a change of the quota: others have their turn, too.
            if now >= until or (wait and not is_late):
                return
            if lane.bucket is not None and not (self._is_first(lane) or is_late):
                return
            self._leave_line(lane)
            lane.held.popleft()
            self.count -= 1
            self.size -= held.size
            if wait:
                self._throttle_times.refused += 1
                held.asked.answer(self._busy(wait))
                continue
            lane.due = held
            yield held.frame
            self._end_turn(lane)
            if held.recall is not None:
                yield held.recall
            if held.is_read:
                return  # The next one stands in line.

    def _end_turn(self, lane: Lane) -> None:
        """The connection has acted on the request whose turn it was."""
        due = lane.due
        if due is not None and not lane.connection.is_paused:
            # It was refused before its handler had it: another node may lead the group now.
            lane.due = None
            self._take_back([due])
