"""Do rights hold on each node, as long as its catalog gives them, and no longer?

Each request of a user is looked at twice: when the node acts on it, and when the node answers. This
module finds the needs of a request itself, without the node's table.

| the node's catalog | the answer must be |
|---|---|
| allows all that the request needs, at both times | no denial |
| does not allow it, and has not changed in between | a refusal |
| has changed in between | either |

A connection whose login has ended, or which has used a right that is gone, must end within a second
in which the node's process runs. A login that ends by the node's clock alone may take as long as
the node looks away from its clock.

So these hold under each fault:

- a user that may no longer pop a topic still settles what it has in hand (`SETTLED`);
- a user that may no longer read a group settles nothing in it (`WITHHELD`), and the messages come
  to another user of the group (`TAKEN_OVER`);
- the connections of a user that was deleted end (`ENDED`);
- a token is not accepted after its end by the node's own clock.

Invariants:
- Observing changes nothing: no call here has an effect on a node.
- A node is judged by its own catalog: one that is cut off may go on by an old one.

Left out: requests other than sends, fetches, pops and settlements; passwords.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raftmq.access.rules import Act, Operation, Resource
from raftmq.access.tokens import parts_of
from raftmq.batch import peek
from raftmq.broker.access.gate import RECHECK_SECONDS_MAX
from raftmq.broker.serve.connection import Connection
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.cluster import CLUSTER
from raftmq.chaos.sim.observed import ObservedNode
from raftmq.chaos.sim.run_state import RunState
from raftmq.errors import CorruptRecord, Reason
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.spans import offsets_of
from raftmq.tls.local_cluster import ADMIN
from raftmq.tls.names import USER
from raftmq.wire.access import LoggedIn, LogIn
from raftmq.wire.codec import unpack
from raftmq.wire.fetches import Fetch
from raftmq.wire.frame import Frame, FramePart
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.popping import Pop, Popped, Settle

JUDGED = "requests judged by rights"
"""Name of a comparison."""
LOGINS = "logins judged by clocks"
"""Name of a comparison, in runs with clients that log in."""
SETTLED = "settled without the topic"
WITHHELD = "settlements refused without the group"
TAKEN_OVER = "messages taken over without the group"
ENDED = "connections ended with their rights"
"""Names of counts."""

LOOK_SECONDS = 0.1
"""Between two looks at the open connections."""
HELD_SECONDS_MAX = 1.0 + LOOK_SECONDS
"""From the end of a right to the end of a connection."""
EXPIRED_SECONDS_MAX = RECHECK_SECONDS_MAX + HELD_SECONDS_MAX
"""From the end of a token by the node's clock, which may jump, to the end of its connections."""
_DENIALS = frozenset((Reason.DENIED.value, Reason.UNAUTHENTICATED.value))


class _Asked(NamedTuple):
    """A request that a node acts on."""

    kind: int
    needs: Sequence[Act]
    version: int
    """The version of the node's users and rules at that time."""
    pops: Sequence[Act]
    """For a settlement: the right to pop the topic, which it does not need."""
    token: str
    """The public part of the token that the request shows; empty: it is no login by token."""


@dataclass(slots=True)
class _Seen:
    """A connection of a user."""

    node: ObservedNode
    user: str
    """Empty: the client has not logged in."""
    token: str = ""
    """The public part of the token by which the user is known; empty: by a certificate."""
    used: dict[Act, None] = field(default_factory=dict)
    """Rights that the connection has used, in order."""
    asked: dict[int, _Asked] = field(default_factory=dict)
    """Requests without an answer, by correlation."""
    lost_at: float | None = None
    """Since when a right, or the login, is gone; None: all are there."""
    thaws: int = 0
    """How often the node's process had gone on by then."""


class Rights:
    """All connections of users in one run."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._seen: dict[Connection, _Seen] = {}
        # Group, queue and offset of a message → the user that had it last.
        self._holders: dict[tuple[str, int, int], str] = {}
        self._is_over = False
        self.violations: list[Violation] = []
        """Rights that did not hold, or held too long."""
        self.compared: Counter[str] = Counter()
        """Answers that were judged, by check."""

    def begin(self) -> None:
        """Look from now on, where nodes know their users."""
        if self._state.cluster.network.is_under_tls:
            self.compared[JUDGED] = 0
            self._state.cluster.request_listeners.append(self._received)
            self._look_on()

    def end(self) -> None:
        """Nothing is judged from now on: the nodes are about to end."""
        self._is_over = True

    def _look_on(self) -> None:
        if not self._is_over:
            self.look()
            self._state.agenda.call_after(LOOK_SECONDS, self._look_on)

    # Requests and answers

    def _received(self, node: ObservedNode, connection: Connection, frame: Frame) -> None:
        if connection.from_node or connection.names is None or self._is_over:
            return
        seen = self._seen.get(connection)
        if seen is None:
            users = [name.name for name in connection.names if name[:2] == (CLUSTER, USER)]
            if users == [ADMIN]:
                return
            seen = self._seen[connection] = _Seen(node, users[0] if users else "")
            self._follow(connection, seen)
        token = ""
        if frame.kind == FrameKind.LOG_IN:
            token = parts_of(unpack(LogIn, frame.header).data)[0]
        elif not seen.user:
            return
        catalog = node.catalog
        needs = needs_of(catalog, frame)
        if needs or token:
            pops = _popped(catalog, unpack(Settle, frame.header)) if _settles(frame.kind) else ()
            version = catalog.access.version
            seen.asked[frame.correlation] = _Asked(frame.kind, needs, version, pops, token)

    def _follow(self, connection: Connection, seen: _Seen) -> None:
        """See the answers on a connection."""
        reply, refuse = connection.reply, connection.refuse

        def replied(
            kind: int, correlation: int, header: bytes, body: Sequence[FramePart] = ()
        ) -> None:
            if not connection.is_closed:
                self._answered(seen, correlation, None, header)
            reply(kind, correlation, header, body)

        def refused(correlation: int, error: ErrorReply) -> None:
            if not connection.is_closed:
                self._answered(seen, correlation, error, b"")
            refuse(correlation, error)

        connection.reply = replied  # type: ignore[method-assign]
        connection.refuse = refused  # type: ignore[method-assign]

    def _answered(
        self, seen: _Seen, correlation: int, error: ErrorReply | None, header: bytes
    ) -> None:
        asked = seen.asked.pop(correlation, None)
        if asked is None or self._is_over or SYSTEM_GROUP not in seen.node.groups:
            return
        if asked.token:
            if error is None:
                self._judge_login(seen, asked.token, unpack(LoggedIn, header).user)
            return
        lacking = self._lacking(seen, asked.needs)
        is_same = asked.version == seen.node.catalog.access.version
        if error is None:
            seen.used |= dict.fromkeys(asked.needs)
            self.compared[JUDGED] += 1
            if lacking and is_same:
                self._complain(seen, f"answered {_name(asked.kind)}, and may not {lacking[0]}")
            if is_same and self._lacking(seen, asked.pops):
                self._state.counts[SETTLED] += 1
            if asked.kind == FrameKind.POP:
                self._note_leases(seen, asked.needs[-1], unpack(Popped, header))
        elif error.code in _DENIALS:
            self.compared[JUDGED] += 1
            if not lacking and is_same:
                self._complain(seen, f"refused {_name(asked.kind)}, and may do all it needs")
            # An intruder may do neither.
            if lacking and asked.pops and not self._lacking(seen, asked.pops):
                self._state.counts[WITHHELD] += 1

    def _note_leases(self, seen: _Seen, group: Act, popped: Popped) -> None:
        """Note who has messages in hand now, and whether that takes them over."""
        rules = seen.node.catalog.access.rules
        for lease in popped.leases:
            bits = int.from_bytes(lease.bits, "little")
            for offset in offsets_of(lease.base, bits):
                key = group.name, lease.queue, offset
                before, self._holders[key] = self._holders.get(key, seen.user), seen.user
                if before != seen.user and not rules.judge(before, group).is_allowed:
                    self._state.counts[TAKEN_OVER] += 1

    def _judge_login(self, seen: _Seen, token: str, user: str) -> None:
        seen.user, seen.token = user, token
        self.compared[LOGINS] += 1
        if not (self._is_known(seen) and self._is_in_time(seen)):
            self._complain(seen, "accepted its token, which had ended")

    # Open connections

    def look(self) -> None:
        """Look which open connections have outlived their rights."""
        now = self._state.agenda.now
        for connection, seen in list(self._seen.items()):
            process = seen.node.process
            if connection.is_closed or process.is_dead:
                is_lost = seen.lost_at is not None or self._seconds_max(seen) is not None
                self._state.counts[ENDED] += is_lost
                del self._seen[connection]
                continue
            seconds_max = self._seconds_max(seen)
            if seconds_max is None:
                seen.lost_at = None
            elif seen.lost_at is None or process.is_frozen or process.thaws != seen.thaws:
                # A node has its time from when it goes on.
                seen.lost_at, seen.thaws = now, process.thaws
            elif now - seen.lost_at > seconds_max:
                seconds = now - seen.lost_at
                self._complain(seen, f"has a connection {seconds:.1f} s after its rights have gone")
                del self._seen[connection]

    def _seconds_max(self, seen: _Seen) -> float | None:
        """For how long the connection may stay now; None: for ever."""
        if not seen.user or SYSTEM_GROUP not in seen.node.groups:
            return None
        if not self._is_known(seen) or self._lacking(seen, seen.used):
            return HELD_SECONDS_MAX
        return None if self._is_in_time(seen) else EXPIRED_SECONDS_MAX

    # The catalog

    def _lacking(self, seen: _Seen, acts: Sequence[Act] | dict[Act, None]) -> list[Act]:
        rules = seen.node.catalog.access.rules
        return [act for act in acts if not rules.judge(seen.user, act).is_allowed]

    def _is_known(self, seen: _Seen) -> bool:
        return not seen.token or seen.token in seen.node.catalog.access.tokens

    def _is_in_time(self, seen: _Seen) -> bool:
        token = seen.node.catalog.access.tokens.get(seen.token)
        now_ms = seen.node.process.machine.clock.observed_ms
        return token is None or not token.until_ms or now_ms() < token.until_ms

    def _complain(self, seen: _Seen, what: str) -> None:
        text = f"node {seen.node.id}, user {seen.user!r}: {what}"
        self.violations.append(Violation("rights", self._state.watch.now_ms, text))


def needs_of(catalog: Catalog, frame: Frame) -> list[Act]:
    """The rights that a request needs; none: it is not judged here."""
    find = _NEEDS.get(frame.kind)
    return [] if find is None else find(catalog, frame)


def _of_produce(catalog: Catalog, frame: Frame) -> list[Act]:
    try:
        queue = peek(frame.body).queue
    except CorruptRecord:
        return []
    return _of_topics(catalog, Operation.WRITE, [queue])


def _of_fetch(catalog: Catalog, frame: Frame) -> list[Act]:
    fetch = unpack(Fetch, frame.header)
    acts = _of_topics(catalog, Operation.READ, [each.queue for each in fetch.queues])
    return acts + ([_of_group(fetch.consumer_group)] if fetch.consumer_group else [])


def _of_pop(catalog: Catalog, frame: Frame) -> list[Act]:
    pop = unpack(Pop, frame.header)
    topics = _popped(catalog, pop)
    return topics + _taken_part(catalog, pop) if topics else []


def _of_settle(catalog: Catalog, frame: Frame) -> list[Act]:
    return _taken_part(catalog, unpack(Settle, frame.header))


def _popped(catalog: Catalog, request: Pop | Settle) -> list[Act]:
    attachment = catalog.consumer_groups.attachments.get(request.number)
    queues = [] if attachment is None else [attachment.topic_id << QUEUE_BITS]
    return _of_topics(catalog, Operation.POP, queues)


def _taken_part(catalog: Catalog, request: Pop | Settle) -> list[Act]:
    attachment = catalog.consumer_groups.attachments.get(request.number)
    return [] if attachment is None else [_of_group(attachment.consumer_group)]


def _of_topics(catalog: Catalog, operation: Operation, queues: Sequence[int]) -> list[Act]:
    found = [catalog.topic_of(queue) for queue in queues]
    names = dict.fromkeys(topic.name for topic in found if topic is not None)
    return [Act(operation, Resource.TOPIC, name) for name in names]


def _of_group(name: str) -> Act:
    return Act(Operation.READ, Resource.GROUP, name.partition("@")[0])


_NEEDS: dict[int, Callable[[Catalog, Frame], list[Act]]] = {
    FrameKind.PRODUCE: _of_produce,
    FrameKind.FETCH: _of_fetch,
    FrameKind.POP: _of_pop,
    FrameKind.SETTLE: _of_settle,
}


def _settles(kind: int) -> bool:
    return kind == FrameKind.SETTLE


def _name(kind: int) -> str:
    return FrameKind(kind).name
