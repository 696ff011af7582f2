"""The leader of each partition group: the routing table, and one connection a node.

Any node can answer with the table (`METADATA`). The router asks when an entry is missing or turned
out wrong, and every `REFRESH_SECONDS`. Of two answers about a partition group the one with the
higher term wins; a node that refuses as "not leader" names the leader if it knows the leader, and
is believed first.

| what happened | what is done |
|---|---|
| refused as not leader, with a hint | go to the hinted node at once |
| refused, no hint; or the connection broke | ask any node, in turn; wait a little; again |
| a node is silent | the others are asked; if one leads in its place, the silent node is left |
| a node cannot be reached, or was left | it is *suspect* for a second: others are asked instead |
| a node does not know the leader, or names the one that failed | the others are asked, too |
| no known node can be reached | the addresses of the URL in turn |

Invariants:
- Only one question for the table is under way at a time, and one attempt to connect to a node;
  all callers that need the answer wait for it.
- Waiting grows with the attempts, up to half a second, and is random, so that the clients of a
  failed leader do not return all at once.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import anyio
import msgspec

from raftmq.client.address import Address
from raftmq.client.login import Source
from raftmq.client.supervisor import TaskScope
from raftmq.client.world import ClientWorld
from raftmq.errors import OutcomeUnknown, ProtocolError, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK, SYSTEM_GROUP
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    ClusterView,
    ErrorReply,
    FrameKind,
    GroupView,
    Metadata,
    NodeView,
    TopicView,
)

from .calls import LeaderCall, reply_in
from .connection import Attempt, Connection, open_connection
from .metadata import ask_in_parts, is_newer
from .pushed_settings import PushedSettings
from .refusals import SURE, header_of, is_refused
from .weights import Weights

T = TypeVar("T")

SUSPECT_SECONDS = 1.0
"""A node that could not be reached is not tried again for this time."""
METADATA_SECONDS_MAX = 2.0
"""Limit for an answer with the table; after it another node is asked."""
REFRESH_SECONDS = 30.0
"""Time between two regular questions for the table: topics may get more queues."""


class Router:
    """The routing table of one client, and its connections."""

    def __init__(
        self, world: ClientWorld, addresses: list[Address], *, cluster: str, seconds_max: float
    ) -> None:
        self._world = world
        self.draw_request = partial(world.random.randrange, 1, 1 << 63)
        """Draws a number that names a request, so that the broker recognizes a repeat."""
        self.bootstrap = list(addresses)
        """The addresses of the URL."""
        self.login: Source | None = None
        """Gives the login for each connection; None: there is none."""
        self._attempts: dict[Address, Attempt] = {}
        self._suspect_until: dict[int, float] = {}
        # Partition group → the node that refused last, as not being its leader.
        self._refused_by: dict[int, int] = {}
        # Address → the node found there; the table may have another address for the node.
        self._node_at: dict[Address, int] = {}
        self._refreshing: anyio.Event | None = None
        self._turn = 0
        self._tasks: TaskScope | None = None
        self._watchers: list[Callable[[], None]] = []
        self.cluster = cluster
        """The cluster's id; empty until the first answer, unless the caller named the cluster."""
        self.seconds_max = seconds_max
        """The default timeout of calls, in seconds."""
        self.nodes: dict[int, NodeView] = {}
        """All nodes, by number."""
        self.groups: dict[int, GroupView] = {}
        """All partition groups, by number."""
        self.topics: dict[str, TopicView] = {}
        """The topics in use, by name."""
        self.connections: dict[int, Connection] = {}
        """Node → its connection, open or not."""
        self.last_error = "no answer came"
        """The text of the last failure, for error texts."""
        self.throttled = 0.0
        """Seconds for which quotas held requests, as the nodes told."""
        self.weights = Weights()
        """The speed of the nodes, for messages without a key."""
        self.pushed = PushedSettings(self, world.random, self.weights.avoided)
        """The settings that operators push to this client."""

    def start(self, tasks: TaskScope) -> None:
        """Begin to refresh the table; connections and refreshes run in `tasks`."""
        self._tasks = tasks
        tasks.start(self._refresh_sometimes)
        self.pushed.start(tasks)

    def check(self) -> None:
        """Raise the error that ended the client, if it has ended."""
        if self._tasks is None:
            raise RaftmqError("the client is not open: use it inside `async with connect(...)`")
        self._tasks.check()

    def close(self) -> None:
        """Close all connections, for ever."""
        if self._tasks is not None and not self._tasks.is_closed:
            self._tasks.cancel()
        for connection in self.connections.values():
            connection.close("the client was closed")

    def watch(self, call: Callable[[], None]) -> None:
        """Call `call` after each answer with the table."""
        self._watchers.append(call)

    def unwatch(self, call: Callable[[], None]) -> None:
        """The reverse of `watch`."""
        self._watchers.remove(call)

    def note_throttled(self, throttle_ms: int) -> None:
        """A quota held a request for this time, as its answer told."""
        self.throttled += throttle_ms / 1000

    def delay(self, attempt: int) -> float:
        """Seconds to wait before the nth attempt, from 0: random, and growing up to 0.5."""
        longest: float = min(0.5, 0.01 * 2.0 ** min(attempt, 10))
        return longest * self._world.random.uniform(0.5, 1.0)

    async def _refresh_sometimes(self) -> None:
        while True:
            await anyio.sleep(REFRESH_SECONDS)
            await self.refresh()

    # -- connections -----------------------------------------------------------------------------

    def open_leader(self, group: int) -> Connection | None:
        """The connection to the group's leader, if the leader is known and the connection open."""
        view = self.groups.get(group)
        connection = self.connections.get(view.leader) if view is not None else None
        return connection if connection is not None and connection.is_open else None

    async def leader(self, group: int) -> Connection:
        """An open connection to the group's leader, without a limit; the caller sets a deadline.

        Cancelling leaves only a newer table and newer connections behind.
        """
        attempt = 0
        while True:
            self.check()
            connection = self.open_leader(group)
            if connection is None:
                connection = await self._connect_leader(group)
            if connection is not None:
                return connection
            before = self.leader_of(group)
            known = self.groups.get(group)
            await self.refresh(
                prefer=known.voters if known is not None else (),
                is_enough=partial(self._has_other_leader, group, before),
            )
            if group not in self.groups:
                # The table lacks the group: any node will refuse the request and name the leader.
                connection = self.any_open()
                if connection is not None:
                    return connection
            if not self._has_other_leader(group, before):
                await anyio.sleep(self.delay(attempt))
                attempt += 1

    async def node(self, node: int) -> Connection:
        """An open connection to this node.

        Raises:
            Rejected: `UNKNOWN_NODE`.
            Unavailable: the node cannot be reached.
        """
        connection = self.connections.get(node)
        if connection is not None and connection.is_open:
            return connection
        if node not in self.nodes:
            await self.refresh()
        view = self.nodes.get(node)
        if view is None:
            message = f"node {node} does not belong to the cluster, which has {sorted(self.nodes)}"
            raise Rejected(Reason.UNKNOWN_NODE, message)
        return await self._open(Address(view.host, view.port), node)

    def not_leader(self, group: int, node: int, hint: int) -> None:
        """`node` has refused as not being the leader of `group`; `hint`: the leader, or 0."""
        # A node that refuses and names itself would only be asked again.
        leader = hint if hint != node else 0
        self._refused_by[group] = node
        view = self.groups.get(group)
        if view is None:
            self.groups[group] = GroupView(group, leader, 0, [], [])
        elif view.leader == node or leader:
            # A late refusal without a hint leaves a leader that was found meanwhile.
            self.groups[group] = msgspec.structs.replace(view, leader=leader)

    def leader_of(self, group: int) -> int:
        """The node that leads the group, as far as known; 0: not known."""
        view = self.groups.get(group)
        return view.leader if view is not None else 0

    def any_open(self, turn: int | None = None) -> Connection | None:
        """An open connection, in turn; None: by the router's own turn."""
        opened = [c for _, c in sorted(self.connections.items()) if c.is_open]
        return opened[(self._turn if turn is None else turn) % len(opened)] if opened else None

    def _has_other_leader(self, group: int, before: int) -> bool:
        """Is a leader known, not `before`, not the last to refuse, and not suspect?"""
        leader = self.leader_of(group)
        return (
            bool(leader)
            and leader not in (before, self._refused_by.get(group))
            and not self._is_suspect(leader)
        )

    def _is_suspect(self, node: int) -> bool:
        connection = self.connections.get(node)
        if connection is not None and not connection.is_open and connection.was_silent:
            # The connection's watch found the silence: the time runs from the first look here.
            connection.was_silent = False
            self._suspect_until[node] = anyio.current_time() + SUSPECT_SECONDS
        return anyio.current_time() < self._suspect_until.get(node, 0.0)

    async def _connect_leader(self, group: int) -> Connection | None:
        leader = self.leader_of(group)
        view = self.nodes.get(leader)
        if view is None or self._is_suspect(leader):
            return None
        try:
            return await self._open(Address(view.host, view.port), leader)
        except RaftmqError as error:
            self.last_error = str(error)
            return None

    async def _open(self, address: Address, node: int = 0) -> Connection:
        """Connect once for all callers. Cancelling a caller does not stop the attempt.

        Raises:
            Unavailable: the attempt failed.
            Rejected: `WRONG_CLUSTER`, `TLS` or `UNAUTHENTICATED`.
        """
        attempt = self._attempts.get(address)
        if attempt is None:
            self.check()
            assert self._tasks is not None
            attempt = self._attempts[address] = Attempt()
            self._tasks.start(lambda: self._run_connection(address, node, attempt))
        await attempt.done.wait()
        if attempt.connection is not None:
            return attempt.connection
        if isinstance(attempt.error, Rejected):
            raise attempt.error
        reason = str(attempt.error) or "no answer in time"
        raise Unavailable(f"{address} cannot be reached: {reason}") from attempt.error

    async def _run_connection(self, address: Address, node: int, attempt: Attempt) -> None:
        try:
            connection = await open_connection(
                self._world, address, cluster=self.cluster, login=self.login
            )
        except (OSError, RaftmqError) as error:  # a TimeoutError is an OSError
            attempt.error = error
            if isinstance(error, Rejected) and error.reason is Reason.UNAUTHENTICATED:
                # A node says so by the newest users: other nodes would say the same, for ever.
                assert self._tasks is not None
                self._tasks.end_client(error)
            if node:
                self._suspect_until[node] = anyio.current_time() + SUSPECT_SECONDS
                self.weights.failed(node, anyio.current_time())
            return
        finally:
            del self._attempts[address]
            if attempt.error is not None:
                attempt.done.set()
        # Another node answers at the address of this one, so the table is old.
        if node and connection.node != node:
            self._suspect_until[node] = anyio.current_time() + SUSPECT_SECONDS
        self.cluster = self.cluster or connection.welcome.cluster
        self._node_at[address] = connection.node
        before = self.connections.get(connection.node)
        self.connections[connection.node] = connection
        self._suspect_until.pop(connection.node, None)
        connection.when_silent = lambda: self._doubt(connection)
        attempt.connection = connection
        attempt.done.set()
        if before is not None:
            before.close("a newer connection to the same node took its place")
        await connection.run()
        if self.connections.get(connection.node) is connection:
            self.weights.failed(connection.node, anyio.current_time())

    def _doubt(self, connection: Connection) -> None:
        """A node is silent: ask the others, and close the connection if one of them leads now."""
        assert self._tasks is not None
        node = connection.node
        led = [group for group, view in self.groups.items() if view.leader == node]

        async def ask() -> None:
            await self.refresh()
            successors = [leader for group in led if (leader := self.leader_of(group))]
            if connection.is_silent and any(leader != node for leader in successors):
                connection.was_silent = True
                connection.close(f"node {node} was silent and others lead its groups")

        self._tasks.start(ask)

    # -- the table -------------------------------------------------------------------------------

    async def contact(self) -> bool | None:
        """Try each address of the URL once: True, a node has answered; None, every address refused
        the connection; False, neither.

        Raises:
            Rejected: `WRONG_CLUSTER` or `TLS`, from a node at each address; `UNAUTHENTICATED`.
        """
        self.check()
        refused = wrong = 0
        for address in self.bootstrap:
            try:
                await self._open(address)
            except Unavailable as error:
                self.last_error = str(error)
                refused += is_refused(error.__cause__)
            except Rejected as error:
                # A node of another cluster may have got the address of a node that is gone.
                self.last_error = str(error)
                wrong += 1
                if wrong == len(self.bootstrap) or error.reason is Reason.UNAUTHENTICATED:
                    raise
            else:
                if await self.refresh():
                    return True
        return None if refused == len(self.bootstrap) else False

    async def refresh(
        self, *, prefer: Sequence[int] = (), is_enough: Callable[[], bool] = lambda: True
    ) -> bool:
        """Ask for the table, or wait for a question under way. False: no node answered.

        Nodes in `prefer` are asked first: the members of a group know its leader. Until `is_enough`
        returns True, more nodes are asked: a node that is cut off from the others answers with an
        old table. Cancelling keeps the answers so far.
        """
        if self._refreshing is not None:
            await self._refreshing.wait()
            return True
        done = self._refreshing = anyio.Event()
        try:
            is_answered = False
            for candidate in self._candidates(prefer):
                if await self._ask(candidate, list(self.topics)) is not None:
                    is_answered = True
                    if is_enough():
                        break
            return is_answered
        finally:
            self._refreshing = None
            done.set()

    async def topic(self, name: str, *, is_fresh: bool = False) -> TopicView:
        """A topic. With `is_fresh`, as the leader of the system group knows it now.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        if is_fresh:
            return await self._topic_of_leader(name)
        return self.topics.get(name) or await self.look_up(name)

    async def look_up(self, name: str) -> TopicView:
        """A topic as one node knows it now; no leader is needed if that node knows the topic.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        if await self._ask_anybody(name):
            return self.topics[name]
        return await self._topic_of_leader(name)

    async def _topic_of_leader(self, name: str) -> TopicView:
        view = await self.ask_system_leader([name])
        for topic in view.topics:
            if topic.name == name:
                return topic
        self.topics.pop(name, None)
        raise Rejected(Reason.UNKNOWN_TOPIC, f"there is no topic {name!r}: create it first")

    async def topic_of(self, queue_number: int) -> TopicView:
        """The topic of a queue.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, the topic is gone or never existed.
        """
        number, queue = queue_number >> QUEUE_BITS, queue_number & QUEUE_MASK
        for topic in self.topics.values():
            # The topic may have got the queue since the table was read.
            if topic.id == number and queue < len(topic.groups):
                return topic
        for topic in (await self.ask_system_leader(None)).topics:
            if topic.id == number:
                return topic
        raise Rejected(Reason.UNKNOWN_TOPIC, f"there is no topic with queue {queue_number:x}")

    async def has_queue(self, queue_number: int) -> bool:
        """True if a topic has such a queue, as the leader of the system group knows."""
        number, queue = queue_number >> QUEUE_BITS, queue_number & QUEUE_MASK
        topics = (await self.ask_system_leader(None)).topics
        return any(topic.id == number and queue < len(topic.groups) for topic in topics)

    async def ask_system_leader(self, topics: list[str] | None) -> ClusterView:
        """The table with all decisions before the call, without a limit; set a deadline.

        Raises:
            Rejected: `DENIED`, the user may not see one of these topics.
        """

        async def ask(question: Metadata) -> ClusterView:
            header = header_of(question)
            call = LeaderCall(self, SYSTEM_GROUP, FrameKind.METADATA, header, lambda _: None, None)
            return reply_in(await call.run(), ClusterView)

        user = next((each.user for each in self.connections.values() if each.user), "")
        view = await ask_in_parts(ask, topics, user=user, is_latest=True)
        self._take_in(view, keep_topics=topics is not None)
        return view

    async def ask_any_node(self) -> ClusterView:
        """The table without topics, as the first node that answers knows it; no leader is needed.

        Raises:
            Unavailable: no node answers.
        """
        for candidate in self._candidates(()):
            view = await self._ask(candidate, [])
            if view is not None:
                return view
        raise Unavailable(f"no node answers: {self.last_error}")

    async def _ask_anybody(self, name: str) -> bool:
        """Ask one node for a topic; False if the node does not know it. No leader is needed. If no
        node answers, the present table counts."""
        for candidate in self._candidates(()):
            view = await self._ask(candidate, [name])
            if view is not None:
                return any(topic.name == name for topic in view.topics)
        return name in self.topics

    def _candidates(self, prefer: Sequence[int]) -> Iterator[Connection | Address]:
        """Nodes to ask: open connections, then known nodes, then the URL's addresses, in turn."""
        self._turn += 1
        # A node that was reached by the URL may not be in the table yet.
        nodes = sorted({*self.nodes, *self.connections})
        turn = self._turn % len(nodes) if nodes else 0
        nodes = nodes[turn:] + nodes[:turn]
        nodes.sort(key=lambda node: node not in prefer)
        for node in nodes:
            connection = self.connections.get(node)
            if connection is not None and connection.is_open and not connection.is_silent:
                yield connection
        for node in nodes:
            connection = self.connections.get(node)
            if (connection is None or not connection.is_open) and not self._is_suspect(node):
                view = self.nodes.get(node)
                if view is not None:
                    yield Address(view.host, view.port)
        turn = self._turn % len(self.bootstrap)
        for address in self.bootstrap[turn:] + self.bootstrap[:turn]:
            # A second connection to a node would end the first one with its open requests.
            connection = self.connections.get(self._node_at.get(address, 0))
            if connection is None or not connection.is_open:
                yield address

    async def _ask(
        self, candidate: Connection | Address, topics: list[str] | None
    ) -> ClusterView | None:
        """Ask one node and take in its answer; None if the node does not answer."""
        try:
            if isinstance(candidate, Address):
                candidate = await self._open(candidate)
            with anyio.move_on_after(METADATA_SECONDS_MAX):
                connection = candidate

                async def ask(question: Metadata) -> ClusterView:
                    answer = await connection.call(FrameKind.METADATA, header_of(question))
                    return reply_in(answer, ClusterView)

                view = await ask_in_parts(ask, topics)
                self._take_in(view, keep_topics=topics is not None)
                return view
        except (Unavailable, Rejected, ProtocolError) as error:
            self.last_error = str(error)
            return None
        self.last_error = f"node {candidate.node} at {candidate.address} did not answer in time"
        return None

    def _take_in(self, view: ClusterView, *, keep_topics: bool) -> None:
        # A node that has not applied the catalog yet lists no nodes.
        self.nodes = {node.id: node for node in view.nodes} or self.nodes
        self.weights.zones = {node.id: node.zone for node in self.nodes.values()}
        for group in view.groups:
            known = self.groups.get(group.id)
            if known is None or is_newer(group, known):
                self.groups[group.id] = group
        for topic in view.topics:
            cached = self.topics.get(topic.name)
            # A node that lags must not replace a known topic by an older one, or by fewer queues.
            wanted = keep_topics or cached is not None
            if wanted and (
                cached is None
                or topic.id > cached.id
                or (topic.id == cached.id and len(topic.groups) >= len(cached.groups))
            ):
                self.topics[topic.name] = topic
        for call in list(self._watchers):
            call()

    # -- calls -----------------------------------------------------------------------------------

    async def call_leader(
        self,
        group: int,
        kind: FrameKind,
        message: msgspec.Struct | None,
        *,
        body: Sequence[bytes] = (),
        timeout: float | None = None,
        is_change: bool = False,
        refusal_in: Callable[[Frame], ErrorReply | None] = lambda _: None,
        queue_number: int | None = None,
    ) -> Frame:
        """Send an idempotent request to the leader of a group, repeatedly until an answer comes.

        Cancelling leaves the request done or not done.

        Args:
            group: the partition group.
            kind: the kind of the request.
            message: the header; None: the request has none.
            body: the bytes after the header.
            timeout: seconds; None: the default.
            is_change: True if the request may change something.
            refusal_in: finds a refusal inside an answer, for requests that answer for parts.
            queue_number: a queue of the request: if the leader does not know the queue, the system
                group's leader is asked before the refusal counts.

        Raises:
            Rejected: the request was refused.
            Unavailable: the time ran out; nothing was changed.
            OutcomeUnknown: a change was sent and not answered, and then the time ran out, or a
                repeat of the change was refused.
        """
        header = b"" if message is None else header_of(message)
        asked = f"partition group {group}" if group != SYSTEM_GROUP else "the catalog"
        what = f"no leader of {asked} answered in time ({kind.name.lower().replace('_', ' ')})"
        if timeout is not None and timeout <= 0:
            raise Unavailable(f"{what}: there was none, timeout={timeout:g}; nothing was sent")
        call = LeaderCall(self, group, kind, header, refusal_in, queue_number, body)
        with anyio.move_on_after(self.seconds_max if timeout is None else timeout):
            try:
                return await call.run()
            except RaftmqError as error:
                # A node refused, or the client was closed under the call.
                is_sure = isinstance(error, Rejected) and error.reason in SURE
                if not is_change or not call.is_doubtful or is_sure:
                    raise
                # The refusal may be due to an unanswered attempt that took effect.
                text = f"{error}; an earlier attempt of {kind.name} may have been done"
                raise OutcomeUnknown(text) from error
        if is_change and call.is_doubtful:
            raise OutcomeUnknown(f"{what}; it may have been done: {call.why or 'no answer came'}")
        raise Unavailable(f"{what}: {call.why or self.last_error}")

    async def within(self, timeout: float | None, work: Awaitable[T], what: str) -> T:
        """The result of `work`, which changes nothing.

        Raises:
            Unavailable: the work took longer than `timeout` seconds (None: the default).
        """
        with anyio.move_on_after(self.seconds_max if timeout is None else timeout):
            return await work
        raise Unavailable(f"{what} was not possible in time: {self.last_error}")
