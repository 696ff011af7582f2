"""The quotas of a node: whose requests are held, and for how long.

    PRODUCE ──> its bytes and messages are poured into the buckets of user and topic
                                                    │ too much before it: held (`lanes`)
    FETCH, POP, KEY ──> held while a bucket holds too much; the answer is poured in
    a wait longer than `HOLD_SECONDS_MAX` ──> refused as `busy`; the client comes again

Nothing is dropped, and each answer tells for how long its request was held (`throttle_ms`).
Each node counts for itself: a user, or a topic, has its rates at every node.

A read from disk takes its time, in which others would see the room that it uses up: until its
answer is made, what it may bring is in the buckets.

A request that reads is also cut to what its buckets have room for, so that one answer does not
bring minutes of debt: one batch at the least.

Invariants:
- Where no quota is set and nothing is held, a request costs one look at a flag.
- Nodes have no quotas: theirs are the connections on which consensus goes.
- A change of quotas holds at once, also for requests that are held, and changes no order.

Left out: one rate over all nodes, which would cost a message to another node for each request.

Sources: Kafka's throttle time (KIP-13, KIP-219).
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from math import ceil, inf
from typing import Any, NamedTuple

import trio

from raftmq.batch import MESSAGES_MAX, peek
from raftmq.batch.layout import LENGTH_BYTES
from raftmq.broker.host import Host, Room, Taken
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.errors import CorruptRecord
from raftmq.machine.catalog.quotas import Quota, Subject, SubjectKind
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.fetches import NO_SESSION, Fetch
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FindKey, FrameKind
from raftmq.wire.popping import Leave, Pop

from .buckets import BURST_SECONDS, READS, WRITES, Bucket, Meter, Reserved
from .lanes import Held, Lanes, size_of
from .shares import Shares
from .throttle_times import ThrottleTimes

HOLD_SECONDS_MAX = 3.0
"""The longest that a request is held. A client takes a POP for lost 5 s after its wait, and the
request needs time of its own."""
RETRY_SECONDS_MAX = 5.0
"""A client that would wait for longer is to ask again after this time: the quota, or the leader,
may be another one by then."""
HELD_DIVISOR = 4
"""Requests that are held take up to `limits.requests_bytes_max` divided by this: those that wait
for a quota must not fill the node."""
RESERVED_DIVISOR = 4
"""A read from disk counts as a second's worth divided by this at the least, until it is done: a few
at a time are under way where a quota is used up."""
METERS_MAX = 1000
"""Meters of users, or of topics, above which the empty ones are dropped."""
POP_MESSAGES_FIRST = 16
"""Messages of a first POP under a quota of bytes, whose size is not known yet."""
SHOWN_MAX = 10
"""Subjects that the node's status names."""

_USER, _TOPIC = SubjectKind.USER, SubjectKind.TOPIC
_UNBOUNDED = Room(inf, inf, inf)


class _Portion(NamedTuple):
    """A part of a request that a bucket measures."""

    meter: Meter
    name: str
    """The amount of the quota."""
    bucket: Bucket
    amount: int


class Quotas:
    """All quotas, as this node keeps them."""

    def __init__(self, node: Host, topics_of: Callable[[Connection, int], Iterable[int]]) -> None:
        """`topics_of` gives the topics of a connection's fetch session."""
        self._node = node
        self._topics_of_session = topics_of
        self._throttle_times = ThrottleTimes()
        self._lanes = Lanes(
            node.timers,
            self._throttle_times,
            hold_seconds_max=HOLD_SECONDS_MAX,
            busy=partial(_busy, None),
        )
        self._shares = Shares()
        self._meters: dict[SubjectKind, dict[str, Meter]] = {kind: {} for kind in SubjectKind}
        self._meters_max = METERS_MAX
        self._held_bytes_max = node.settings.limits.requests_bytes_max // HELD_DIVISOR
        self._version = 0
        self.is_on = False
        """False: there are no quotas, and nothing is held."""

    # Connections

    def why_no_connection(self, user: str) -> str:
        """Why a user may not have another connection; empty: it may."""
        quota = self._find(_USER, user)
        if quota is None or not quota.connections or self._shares.count(user) < quota.connections:
            return ""
        return (
            f"user {user!r} has all {quota.connections} connections of its quota to this node; an "
            f"administrator can raise it with `raftmq quota set user {user} --connections N` and "
            "all other amounts of the quota, which it replaces"
        )

    def join(self, connection: Connection, user: str) -> None:
        """The client at a connection is a user."""
        self._shares.join(connection, user, self._requests_max(user))

    def connections_of(self, user: str) -> list[Connection]:
        """The open connections of a user."""
        return self._shares.connections(user)

    def closed(self, connection: Connection) -> None:
        """The connection is gone: drop what is held of it."""
        self._shares.leave(connection)
        self._lanes.closed(connection)
        self._set_is_on()

    # Changes

    def follow(self) -> None:
        """The catalog may have changed: take up its quotas."""
        quotas = self._node.catalog.quotas
        if quotas.version == self._version:
            return
        self._version = quotas.version
        now = trio.current_time()
        for kind, meters in self._meters.items():
            for name, meter in list(meters.items()):
                quota = quotas.find(kind, name)
                if quota is None:
                    del meters[name]
                # A deleted meter, too: held requests wait for its buckets, and must go on now.
                if meter.quota != quota:
                    meter.change(
                        quota or Quota(), now, seconds_max=BURST_SECONDS + HOLD_SECONDS_MAX
                    )
        for user in self._shares.users():
            self._shares.bound(user, self._requests_max(user))
        self._lanes.look_again()
        self._set_is_on()

    def _requests_max(self, user: str) -> int:
        quota = self._find(_USER, user)
        return 0 if quota is None else quota.requests

    def _set_is_on(self) -> None:
        self.is_on = bool(len(self._node.catalog.quotas) or self._lanes.count)

    def _find(self, kind: SubjectKind, name: str) -> Quota | None:
        return self._node.catalog.quotas.find(kind, name)

    def _meter(self, kind: SubjectKind, name: str) -> Meter | None:
        """The meter of a user or topic; None: no quota holds for it."""
        meters = self._meters[kind]
        meter = meters.get(name)
        if meter is None and (quota := self._find(kind, name)) is not None:
            if len(meters) >= self._meters_max:
                self._prune(meters)
            meter = meters[name] = Meter(Subject(kind, name), quota)
        return meter

    def _prune(self, meters: dict[str, Meter]) -> None:
        now = trio.current_time()
        for name in [name for name, meter in meters.items() if meter.is_empty(now)]:
            del meters[name]
        self._meters_max = max(METERS_MAX, 2 * max(map(len, self._meters.values())))

    def _meters_of(self, connection: Connection, topics: Iterable[int]) -> list[Meter]:
        """The meters of a connection's user, and of these topics."""
        found: list[Meter] = []
        catalog = self._node.catalog
        if connection.user and (meter := self._meter(_USER, connection.user)) is not None:
            found.append(meter)
        if catalog.quotas.topics:
            for number in topics:
                topic = catalog.topic_of(number << QUEUE_BITS)
                if topic is not None and (meter := self._meter(_TOPIC, topic.name)) is not None:
                    found.append(meter)
        return found

    # Requests

    def hold(self, asked: OpenRequest, frame: Frame, message: Any) -> Answer | None:
        """The refusal of a request that would be held too long; `LATER`: it is held, and comes here
        again when its turn has come; None: it may go on."""
        if not self.is_on or asked.connection.from_node:
            return None
        match asked.kind:
            case FrameKind.PRODUCE:
                return self._hold_batch(asked, frame)
            case FrameKind.FETCH:
                assert isinstance(message, Fetch)
                if message.session and message.epoch == NO_SESSION:
                    return None  # The end of a session reads nothing.
                topics = self._topics_of(asked.connection, message)
                return self._hold_read(asked, frame, (FrameKind.FETCH, asked.correlation), topics)
            case FrameKind.POP:
                return self._hold_pop(asked, frame, message)
            case FrameKind.KEY:
                assert isinstance(message, FindKey)
                key = (FrameKind.KEY, asked.correlation)
                return self._hold_read(asked, frame, key, [message.topic])
            case FrameKind.FORGET:
                return self._recall(asked, frame)
            case FrameKind.LEAVE:
                assert isinstance(message, Leave)
                # Else the POP would hand out messages to a consumer that is gone.
                gone = ErrorReply("unavailable", "the consumer has left, or asks no longer")
                self._lanes.refuse(asked.connection, _lane_of(message), gone)
        return None

    def _hold_batch(self, asked: OpenRequest, frame: Frame) -> Answer | None:
        connection = asked.connection
        is_first = not self._lanes.holds(connection)
        has_topics = bool(self._node.catalog.quotas.topics)
        if is_first and not has_topics and not self._meters_of(connection, ()):
            return None
        try:
            head = peek(frame.body)
        except CorruptRecord:
            return None  # The handler refuses it.
        topic = head.queue >> QUEUE_BITS
        meters = self._meters_of(connection, (topic,))
        if is_first and not meters:
            return None
        number = self._node.catalog.group_of(head.queue)
        group = None if number is None else self._node.group(number)
        if group is None or not group.is_leader:
            return None  # The handler refuses it, and another node counts the batch.
        size, now = len(frame.body), trio.current_time()
        # The count is checked later. A few bytes that claim many messages must not use up a quota.
        messages = min(head.count, head.columns_bytes // LENGTH_BYTES)
        if is_first and _are_open([meter.writes for meter in meters], now):
            # Nearly all requests come this way.
            for of_bytes, of_messages in [meter.writes for meter in meters]:
                of_bytes.pour(size, now)
                of_messages.pour(messages, now)
            return None
        portions = [
            _Portion(meter, name, bucket, amount)
            for meter in meters
            for name, bucket, amount in zip(WRITES, meter.writes, (size, messages), strict=True)
            if bucket.rate
        ]
        return self._admit(asked, frame, (FrameKind.PRODUCE, topic), portions)

    def _hold_read(
        self, asked: OpenRequest, frame: Frame, key: Hashable, topics: Iterable[int]
    ) -> Answer | None:
        # The amounts are poured in when the answer is made.
        meters = self._meters_of(asked.connection, topics)
        if not self._lanes.holds(asked.connection) and self._may_read(meters):
            return None
        portions = [
            _Portion(meter, name, bucket, 0)
            for meter in meters
            for name, bucket in zip(READS, meter.reads, strict=True)
            if bucket.rate
        ]
        return self._admit(asked, frame, key, portions)

    def _may_read(self, meters: list[Meter]) -> bool:
        """Whether no read has to wait, and none waits."""
        pairs = [meter.reads for meter in meters]
        has_line = self._lanes.has_line(bucket for pair in pairs for bucket in pair)
        return not has_line and _are_open(pairs, trio.current_time())

    def _hold_pop(self, asked: OpenRequest, frame: Frame, request: Pop) -> Answer | None:
        attachment = self._node.catalog.consumer_groups.attachments.get(request.number)
        group = self._node.group(request.partition_group)
        if attachment is None or group is None or not group.is_leader:
            return None  # The handler refuses it.
        if not isinstance(group.machine, PartitionMachine):
            return None  # The handler refuses it.
        lane = _lane_of(request)
        if not request.count and self._lanes.get(asked.connection, lane) is None:
            attached = group.machine.pop_groups.attached.get(request.number)
            hand = attached and attached.group.in_flight_to(request.consumer, group.now_ms())[0]
            if not hand:
                return None  # It brings nothing: a consumer that ends need not wait.
        return self._hold_read(asked, frame, lane, [attachment.topic_id])

    def _topics_of(self, connection: Connection, request: Fetch) -> set[int]:
        """The numbers of the topics that a fetch reads."""
        if not self._node.catalog.quotas.topics:
            return set()
        topics = {each.queue >> QUEUE_BITS for each in request.queues}
        if request.session:
            # A fetch of a session names only the queues that are new.
            topics.update(self._topics_of_session(connection, request.session))
        return topics

    def _recall(self, asked: OpenRequest, frame: Frame) -> Answer | None:
        lane = self._lanes.get(asked.connection, (FrameKind.FETCH, asked.correlation))
        if lane is None or not lane.held:
            return None
        # The next fetch would be held for as long, so this one keeps its turn.
        lane.held[0].recall = frame
        return LATER

    def _admit(
        self, asked: OpenRequest, frame: Frame, key: Hashable, portions: list[_Portion]
    ) -> Answer | None:
        """Pour a request into its buckets, and hold it until they allow it."""
        lane = self._lanes.get(asked.connection, key)
        if lane is not None and self._lanes.take_turn(lane, asked):
            self._set_is_on()
            return None
        if lane is None and not portions:
            return None
        now = trio.current_time()
        waits = [portion.bucket.wait_of_next(now) for portion in portions]
        wait = max(waits, default=0.0)
        longest = portions[waits.index(wait)] if wait else None
        is_behind = self._lanes.has_line(portion.bucket for portion in portions)
        if lane is not None:
            wait = max(wait, lane.wait_seconds(now))
        size = self._lanes.size + size_of(frame)
        is_full = size > self._held_bytes_max
        if wait > HOLD_SECONDS_MAX or ((wait or is_behind) and is_full):
            self._throttle_times.refused += 1
            return _no_memory(wait) if is_full else _busy(longest, wait)
        turns = [
            (each.bucket, each.bucket.pour(each.amount, now), each.amount) for each in portions
        ]
        if not wait and not is_behind and (lane is None or not lane.held):
            return None
        meter = longest.meter if longest is not None else None
        self._lanes.put(key, Held(asked, frame, turns, meter))
        return LATER

    # Answers

    def room(self, connection: Connection, queues: Iterable[int]) -> Room:
        """How much an answer to a connection may bring of these queues."""
        if not self.is_on or connection.from_node:
            return _UNBOUNDED
        size = messages = count = inf
        now = trio.current_time()
        for meter in self._meters_of(connection, {queue >> QUEUE_BITS for queue in queues}):
            of_bytes, of_messages = meter.reads
            if of_messages.rate:
                messages = min(messages, of_messages.room(now))
            if of_bytes.rate:
                room = of_bytes.room(now)
                size = min(size, room)
                mean = meter.read_mean_bytes
                count = min(count, max(room // mean, 1) if mean else POP_MESSAGES_FIRST)
        return Room(size, messages, min(messages, count))

    def must_wait(self, connection: Connection, topics: Iterable[int]) -> bool:
        """Whether a request of a connection to read these topics would be held now."""
        if not self.is_on or connection.from_node:
            return False
        return not self._may_read(self._meters_of(connection, topics))

    def expect(
        self, connection: Connection, correlation: int, size: int, queues: Iterable[int]
    ) -> None:
        """Up to `size` bytes of these queues are being read from disk for an answer: count them in
        the limits and, until the request is closed, in the quotas."""
        connection.expect(correlation, size)
        if not self.is_on or connection.from_node:
            return
        now = trio.current_time()
        reserved = [
            # What is in one batch, the least that an answer brings, is not known.
            Reserved(bucket, max(min(most, bucket.room(now)), bucket.rate // RESERVED_DIVISOR), now)
            for meter in self._meters_of(connection, {queue >> QUEUE_BITS for queue in queues})
            for bucket, most in zip(meter.reads, (size, MESSAGES_MAX), strict=True)
            if bucket.rate
        ]
        if reserved:
            connection.when_closed(correlation, partial(self._give_back, reserved))

    def _give_back(self, reserved: list[Reserved]) -> None:
        now = trio.current_time()
        for each in reserved:
            each.give_back(now)
            self._lanes.look_at(each.bucket)

    def charge(self, connection: Connection, taken: Iterable[Taken]) -> None:
        """An answer to a connection brings these amounts."""
        if not self.is_on or connection.from_node:
            return
        now = trio.current_time()
        for queue, size, messages in taken:
            for meter in self._meters_of(connection, [queue >> QUEUE_BITS]):
                meter.pour_read(size, messages, now)

    # Messages in flight

    def in_flight_bounds(self, connection: Connection, topic: int) -> list[tuple[Subject, int]]:
        """The bounds on messages in flight that hold for a connection and a topic."""
        if not self.is_on or connection.from_node:
            return []
        meters = self._meters_of(connection, (topic,))
        return [(meter.subject, meter.quota.in_flight) for meter in meters if meter.quota.in_flight]

    def note_throttled(self, subject: Subject, seconds: float) -> None:
        """A request waited, as the quota of a subject is used up."""
        self._throttle_times.note(subject, seconds)

    # For people

    def status(self) -> dict[str, Any]:
        """The requests that are held now, and whose were held longest since the node started."""
        throttle_times = self._throttle_times
        return {
            "held": self._lanes.count,
            "held_bytes": self._lanes.size,
            "refused": throttle_times.refused,
            "throttled_requests": throttle_times.requests,
            "throttled_seconds": round(throttle_times.seconds, 3),
            "throttled_most": [
                {"kind": kind, "name": name, "seconds": round(seconds, 3)}
                for (kind, name), seconds in throttle_times.most(SHOWN_MAX)
            ],
        }


def _are_open(pairs: list[tuple[Bucket, Bucket]], now: float) -> bool:
    """Whether no bucket has the next request wait."""
    for of_bytes, of_messages in pairs:
        if not (of_bytes.is_open(now) and of_messages.is_open(now)):
            return False
    return True


def _lane_of(request: Pop | Leave) -> Hashable:
    return (FrameKind.POP, request.partition_group, request.number, request.consumer)


def _no_memory(wait: float) -> ErrorReply:
    """The refusal of a request that would have to wait, where there is no memory for another."""
    text = "this node holds as many requests for quotas as it has memory for"
    return ErrorReply("busy", text, retry_ms=_retry_ms(wait))


def _busy(portion: _Portion | None, wait: float) -> ErrorReply:
    """The refusal of a request that would wait for longer than it may be held."""
    if portion is None:
        text = f"a quota holds the requests before it, for {wait:.1f} s more"
        return ErrorReply("busy", text, retry_ms=_retry_ms(wait))
    kind, name = portion.meter.subject.kind, portion.meter.subject.name
    verb, _, unit = portion.name.partition("_")
    text = (
        f"{kind} {name!r} has a quota of {portion.bucket.rate} {unit} a second to {verb} at each "
        f"node, and has used it up: {wait:.1f} s more; an administrator can raise it with "
        f"`raftmq quota set {kind} {name}` and all amounts of the quota, which it replaces"
    )
    return ErrorReply("busy", text, retry_ms=_retry_ms(wait))


def _retry_ms(wait: float) -> int:
    return ceil(min(wait, RETRY_SECONDS_MAX) * 1000)
