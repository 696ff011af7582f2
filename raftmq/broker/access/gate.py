"""The gate of a node: who is at the other end of a connection, and whether a request may pass.

    greet ──> the certificate names a user, or there is none yet
    LOG_IN ──> a password or a token is checked: the connection has a user
    each request ──> its acts (`needs`) ──> allowed before on this connection? else the rules judge
    the catalog's users or rules change ──> each connection is judged again

A connection remembers the acts that it was allowed, so a request costs one look into a set. If one
of them is no longer allowed, or the login has ended, the node ends the connection: a fetch or a
consumer's credit that waits on it would go on without another request. The client connects again
and gets the refusal.

Invariants:
- A client without a user gets nothing but the answers to HELLO and LOG_IN.
- Nodes are known by their certificates, and may ask everything.
- A request is denied by the rules only after the catalog's leader has confirmed the catalog here
  within `FRESH_SECONDS`; so is each message of a login when it arrives. What is allowed, and
  numbers that are not known, are judged by the catalog as it is here: a node that is cut off from
  the leader of the system group goes on by its old copy.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any

import trio

from raftmq.access.rules import Act, Operation, Resource, Verdict
from raftmq.access.scram import BadLogin
from raftmq.access.tokens import parts_of
from raftmq.broker.cluster.views import renew_catalog
from raftmq.broker.host import Host
from raftmq.broker.loop_budget import Turn
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest, of_nodes
from raftmq.broker.serve.connection import Connection, Refusal
from raftmq.broker.serve.pages import Sees
from raftmq.broker.timers import Timer
from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.access import SCRAM, TOKEN, LoggedIn, LogIn
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FrameKind, Hello

from .agreement import Agreement
from .logins import (
    DELAY_SECONDS_MAX,
    Exchange,
    Failures,
    Identity,
    identity_by_token,
    is_valid,
)
from .needs import ADMIN_CLUSTER, NEEDS, NODE_KINDS, RefusedEarly, is_by_name, user_changed_by

LOGIN_CHARACTERS_MAX = 1024
"""The longest message of a login."""
ACTS_MAX = 4096
"""Acts that a connection remembers. A connection that was allowed more is ended at each change of
users or rules, unless its user is an administrator."""
ACTS_MIN = 32
"""Acts that a connection remembers in any case: more than most clients have."""
ACTS_SHARED_MAX = 131_072
"""Acts beyond these that all connections remember together: about 45 MB, and 0.8 s of verdicts at
each change of users or rules. A connection for whose acts there is no room has more than it may."""
NONCE_BYTES = 18
"""Random bytes of a node's nonce."""
FRESH_SECONDS = 1.0
"""Seconds after the leader's answer for which the catalog here counts as fresh."""
RENEW_SECONDS_MAX = 3.0
"""The longest wait for that answer."""
RECHECK_SECONDS_MAX = 10.0
"""The longest time between two checks of a login that expires: the wall clock may jump."""
JUDGED_TURNS = 3
"""Length of a turn in which connections are judged again, in turns of `loop_budget`: about as long
as a busy connection has, which many may have before it comes round again."""

_UNAUTHENTICATED = ErrorReply(
    Reason.UNAUTHENTICATED.value,
    "this cluster requires a login: give `login`, or a certificate that names a user",
)
_BAD_LOGIN = ErrorReply(Reason.UNAUTHENTICATED.value, "the login is not valid")


class _Client:
    """The client at one connection, as the gate knows it."""

    __slots__ = ("allowed", "exchange", "has_more_acts", "identity", "timer", "waiting")

    def __init__(self, identity: Identity | None) -> None:
        self.identity = identity
        """None: the client has not logged in yet."""
        self.exchange: Exchange | None = None
        """A login that has begun."""
        self.allowed: set[Act] = set()
        """Acts that were allowed."""
        self.has_more_acts = False
        """True: the connection was allowed more acts than it may remember."""
        self.timer: Timer | None = None
        """The end of the login."""
        self.waiting: Timer | None = None
        """The turn of an attempt that waits."""


class Gate:
    """Users and permissions of a node's connections."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._settings = node.settings.access
        self._admins = frozenset(self._settings.admins)
        self._clients: dict[Connection, _Client] = {}
        self._version = 0
        self._acts_shared = 0
        """How many of `ACTS_SHARED_MAX` are taken."""
        self._is_following = False
        self._fresh_until = -inf
        self._key = b""
        self._nonces = 0
        self.is_on = self._settings.is_on
        """False: everybody may do everything, unless other nodes do not agree."""
        self._agreement = Agreement(self._settings)
        # Why no client is served, as other nodes do not agree; None: clients are.
        self._refusal: ErrorReply | None = None
        self.failures = Failures(trio.current_time)
        """Failed logins."""
        self.denied = 0
        """Requests that the rules have denied, since the node started."""
        self.last_denied = ""
        """The user, address and kind of the last one, for people; empty: there was none."""

    @property
    def failed(self) -> int:
        """Logins whose proof or token was checked and refused, since the node started."""
        return self.failures.count

    # Who is there

    def greet(self, connection: Connection, hello: Hello) -> None:
        """Take the user from the certificate of a client that connects.

        Raises:
            Refusal: the certificate names several users, or one with all connections of its quota.
        """
        if hello.node:
            # Without TLS a stranger could claim to be a node, and have this one refuse all clients.
            if connection.names is not None:
                self._agreement.note(hello.node, hello.access)
                self._agree()
            return
        if not self.is_on:
            self._agree()
            return
        users = users_in(connection.names or (), self._node.settings.node.cluster)
        if len(users) > 1:
            found = ", ".join(users)
            message = f"the certificate names several users: {found}; use one of a single user"
            raise Refusal(ErrorReply(Reason.UNAUTHENTICATED.value, message))
        if users and (why := self._why_no_connection(users[0])):
            raise Refusal(ErrorReply("busy", why, retry_ms=1000))
        self._clients[connection] = _Client(Identity(users[0]) if users else None)
        if users:
            self._node.quotas.join(connection, users[0])
        connection.needs_login = not users

    def _why_no_connection(self, user: str) -> str:
        """Why a user may not have another connection; empty: it may."""
        # Whoever could raise the quota must get in.
        return "" if user in self._admins else self._node.quotas.why_no_connection(user)

    def log_in(self, frame: Frame, asked: OpenRequest) -> Answer:
        """Check a login."""
        request = unpack(LogIn, frame.header)
        client, catalog = self._clients.get(asked.connection), self._node.catalog
        if client is None:
            return LoggedIn("")  # Without access control every login is taken.
        # For every login alike: one that waits only for users who are not known here would tell
        # who they are.
        if not self._is_fresh:
            return self._when_fresh(asked, frame)
        if client.allowed or client.has_more_acts:
            message = "a login comes before the first request that needs a right"
            return ErrorReply(Reason.BAD_ARGUMENT.value, message)
        data = request.data
        if len(data) > LOGIN_CHARACTERS_MAX:
            return _BAD_LOGIN
        if request.mechanism == TOKEN:
            return self._attempt(asked, parts_of(data)[0], lambda: (self._by_token(data), ""))
        if request.mechanism != SCRAM:
            message = f"{request.mechanism[:40]!r} is no mechanism of logins: {SCRAM}, {TOKEN}"
            return ErrorReply(Reason.BAD_ARGUMENT.value, message)
        exchange, client.exchange = client.exchange, None
        if exchange is not None:
            return self._attempt(asked, exchange.user, partial(exchange.verify, data))
        try:
            client.exchange = Exchange(
                data, catalog.access, nonce=self._nonce(), now_ms=self._node.world.now_ms()
            )
        except BadLogin:
            return _BAD_LOGIN
        return LoggedIn(client.exchange.challenge)

    def _attempt(
        self, asked: OpenRequest, name: str, check: Callable[[], tuple[Identity, str]]
    ) -> Answer:
        """Check a login now, or in its turn after failures."""
        connection = asked.connection
        seconds = self.failures.take_turn(connection.address, name)
        if seconds <= 0:
            return self._checked(connection, name, check)
        if seconds > DELAY_SECONDS_MAX:
            message = f"logins of {name!r} from this address failed, and others wait in line"
            return ErrorReply("busy", message, retry_ms=1000)
        # One attempt at a time: more of them would be held here, and counted by no limit.
        connection.pause()
        client = self._clients[connection]
        client.waiting = self._node.timers.call_after(
            seconds, partial(self._has_turn, asked, name, check)
        )
        return LATER

    def _has_turn(
        self, asked: OpenRequest, name: str, check: Callable[[], tuple[Identity, str]]
    ) -> None:
        asked.connection.resume()
        asked.answer(self._checked(asked.connection, name, check))

    def _checked(
        self, connection: Connection, name: str, check: Callable[[], tuple[Identity, str]]
    ) -> Answer:
        client = self._clients.get(connection)
        if client is None:
            return LATER  # The client went away while it waited.
        try:
            identity, last = check()
            # Much may have changed since the exchange began, or while it waited for its turn.
            if not self._is_valid(identity):
                raise BadLogin("it has ended")
        except BadLogin:
            self.failures.failed(connection.address, name)
            return _BAD_LOGIN
        why = self._node.load.why_no_client(connection) if connection.needs_login else ""
        if identity.user != connection.user:
            why = why or self._why_no_connection(identity.user)
        if why:
            return ErrorReply("busy", why, retry_ms=1000)
        self.failures.succeeded(connection.address, name)
        client.identity = identity
        self._node.quotas.join(connection, identity.user)
        connection.lift_limits()
        self._watch(connection, client)
        return LoggedIn(last, identity.user)

    def _by_token(self, text: str) -> Identity:
        return identity_by_token(text, self._node.catalog.access, self._node.world.now_ms())

    def _nonce(self) -> str:
        # Drawn when it is first needed: a simulated node without users makes the draws it made.
        self._key = self._key or self._node.world.random.randbytes(32)
        self._nonces += 1
        digest = hmac.digest(self._key, self._nonces.to_bytes(8, "little"), "sha256")
        return urlsafe_b64encode(digest[:NONCE_BYTES]).decode()

    def closed(self, connection: Connection) -> None:
        """The connection is gone."""
        client = self._clients.pop(connection, None)
        if client is None:
            return
        self._forget(client)
        for timer in (client.timer, client.waiting):
            if timer is not None:
                timer.cancel()

    # What may pass

    def admit(self, asked: OpenRequest) -> ErrorReply | None:
        """The refusal of a request whose kind the other end may not send; None: it may. The node
        asks before it decodes the header: strangers cost no such work."""
        connection = asked.connection
        if connection.from_node:
            return None
        if asked.kind in NODE_KINDS and connection.names is not None:
            return of_nodes()
        if not self.is_on or asked.kind == FrameKind.LOG_IN:
            return self._refusal
        client = self._clients.get(connection)
        return _UNAUTHENTICATED if client is None or client.identity is None else None

    def check(self, asked: OpenRequest, frame: Frame, message: Any) -> Answer | None:
        """The refusal of an admitted request that may not pass; None: it may. `LATER`: the request
        is acted on again, once the catalog here is new enough to refuse by."""
        connection = asked.connection
        if connection.from_node or not self.is_on or asked.kind == FrameKind.LOG_IN:
            return None
        client = self._clients[connection]
        assert client.identity is not None, "a request of a stranger was admitted"
        # Until all connections are judged again, earlier verdicts do not count.
        is_old = self._node.catalog.access.version != self._version
        if is_old and not self._is_valid(client.identity):
            return _BAD_LOGIN
        try:
            for act in NEEDS[asked.kind](self._node, message):
                is_known = act in client.allowed and not is_old
                if not is_known and not self._allow(client, client.identity, act):
                    if not self._is_fresh:
                        return self._when_fresh(asked, frame)
                    is_named = is_by_name(asked.kind, message)
                    why = self._why_denied(client.identity.user, act, is_named=is_named)
                    return self._denied(asked, why)
            if asked.kind == FrameKind.ADMIN and client.identity.user not in self._admins:
                changed = user_changed_by(self._node, message)
                if changed in self._admins:
                    why = f"only an administrator changes the logins of {changed!r}, who is one"
                    return self._denied(asked, why)
        except RefusedEarly as early:
            return early.reply
        return None

    def sees(self, connection: Connection, resource: Resource) -> Sees:
        """Which resources of a kind the other end may see in lists."""
        if not self.is_on or connection.from_node:
            return lambda _: True
        client = self._clients.get(connection)
        if client is None or client.identity is None:
            return lambda _: False
        user = client.identity.user
        return lambda name: self.judge(user, Act(Operation.DESCRIBE, resource, name)).is_allowed

    def judge(self, user: str, act: Act) -> Verdict:
        """The verdict on an act of a user."""
        if not self.is_on or user in self._admins:
            return Verdict(True, None)
        rules = self._node.catalog.access.rules
        # The open default leaves out the cluster: its administrators can give themselves any right.
        is_open = self._settings.is_open and act.resource is not Resource.CLUSTER
        return rules.judge(user, act, is_open=is_open)

    def why(self, user: str, act: Act) -> str:
        """The verdict on an act of a user, with its reason, for people."""
        if not self.is_on:
            return "allowed: access control is off (access.is_on)"
        if user in self._admins:
            return f"allowed: {user} is an administrator by the settings of node {self._node.id}"
        return str(self.judge(user, act))

    def _allow(self, client: _Client, identity: Identity, act: Act) -> bool:
        if not self.judge(identity.user, act).is_allowed:
            return False
        if act not in client.allowed:
            self._remember(client, act)
        return True

    def _remember(self, client: _Client, act: Act) -> None:
        count = len(client.allowed)
        is_shared = count >= ACTS_MIN
        if count >= ACTS_MAX or (is_shared and self._acts_shared >= ACTS_SHARED_MAX):
            client.has_more_acts = True
        else:
            self._acts_shared += is_shared
            client.allowed.add(act)

    def _forget(self, client: _Client) -> None:
        self._acts_shared -= max(len(client.allowed) - ACTS_MIN, 0)
        assert self._acts_shared >= 0, "more acts were given back than were taken"
        client.allowed.clear()

    def _denied(self, asked: OpenRequest, why: str) -> ErrorReply:
        """Count a denial. It gets no entry in the audit log: else a user without rights could push
        the entries out."""
        connection = asked.connection
        self.denied += 1
        where = connection.address or "this machine"
        kind = FrameKind(asked.kind).name.lower()
        self.last_denied = f"{kind} of {connection.user!r} from {where}"
        return ErrorReply(Reason.DENIED.value, why)

    def _why_denied(self, user: str, act: Act, *, is_named: bool) -> str:
        if not is_named and not self.judge(user, _seeing(act)).is_allowed:
            # The request named a number, and whoever may not see the resource learns no name.
            return f"user {user!r} may not {act.operation.value} this {act.resource.value}"
        verb = "administer" if act.operation is Operation.ADMIN else act.operation.value
        what = f"user {user!r} may not {verb} {act.resource.value} {act.name}".rstrip()
        if self.judge(user, act).rule is not None:
            why = f"a rule denies it; `raftmq acl check {user} {act}` says which one"
        elif act == ADMIN_CLUSTER:
            # A user with this right can give itself all others.
            why = (
                "no rule allows it. Administrators are named in `access.admins` of all nodes, and "
                f"made with `raftmq acl allow {user} {act}`"
            )
        else:
            why = f"no rule allows it; an administrator does with `raftmq acl allow {user} {act}`"
        return f"{what}: {why}"

    # Freshness

    @property
    def _is_fresh(self) -> bool:
        """True if the leader has confirmed the catalog here within `FRESH_SECONDS`."""
        return trio.current_time() < self._fresh_until

    def _when_fresh(self, asked: OpenRequest, frame: Frame) -> Answer:
        """Bring the catalog here up to date, then act again. A node that was just started has an
        old one, and what was allowed a moment ago may not have come here yet."""
        # The requests that follow on this connection must not overtake this one.
        asked.connection.pause()
        self._node.start_soon(self._renew, asked, frame)
        return LATER

    async def _renew(self, asked: OpenRequest, frame: Frame) -> None:
        is_new = False
        # A node carries no catalog after it has left the cluster.
        if self._node.group(SYSTEM_GROUP) is not None:
            with trio.move_on_after(RENEW_SECONDS_MAX):
                is_new = await renew_catalog(self._node)
        asked.connection.resume()
        if is_new:
            self._fresh_until = trio.current_time() + FRESH_SECONDS
            asked.connection.act_again([frame])
        else:
            message = "the leader of the catalog does not answer, and users may have changed"
            asked.answer(ErrorReply("unavailable", message, group=SYSTEM_GROUP, retry_ms=100))

    # Changes

    @property
    def differences(self) -> list[str]:
        """How the access of other nodes is set otherwise, for people."""
        return self._agreement.differences(self._node.catalog.nodes)

    def _agree(self) -> None:
        """Serve clients, or none, as members of the cluster agree on whether access is on."""
        catalog = self._node.catalog
        why = self._agreement.why_no_clients(catalog.nodes, was_on=catalog.access.version > 0)
        has_served, self._refusal = self._refusal is None, None
        if why:
            self._refusal = ErrorReply("unavailable", f"node {self._node.id}: {why}", retry_ms=1000)
        if why and has_served:
            for connection in list(self._node.load.secured):
                if connection.is_of_client:
                    connection.end()

    def follow(self) -> None:
        """The catalog may have changed: end connections that are allowed less than before."""
        if not self.is_on:
            self._agree()
        is_old = self.is_on and self._node.catalog.access.version != self._version
        if is_old and not self._is_following:
            self._is_following = True
            self._node.start_soon(self._follow)

    async def _follow(self) -> None:
        """Judge all connections again, in turns of the loop: some have thousands of acts."""
        while (version := self._node.catalog.access.version) != self._version:
            await trio.lowlevel.checkpoint()
            turn = Turn(JUDGED_TURNS)
            # A request that waits may bring a message at any moment. And a connection of thousands
            # of acts must not keep the others' rights alive.
            for connection, client in sorted(self._clients.items(), key=_urgency):
                identity = client.identity
                is_allowed = identity is None or await self._is_still_allowed(
                    client, identity, turn
                )
                if is_allowed:
                    self._watch(connection, client)
                else:
                    self._end(connection, client)
                await turn.pause_if_over()
            # Only now: until then requests are judged without what was allowed before.
            self._version = version
        self._is_following = False

    def _end(self, connection: Connection, client: _Client) -> None:
        # Its task may have read more already, and acts on it before it ends.
        self._forget(client)
        if client.identity is not None and not self._is_valid(client.identity):
            client.identity = None
        connection.end()

    async def _is_still_allowed(self, client: _Client, identity: Identity, turn: Turn) -> bool:
        if not self._is_valid(identity):
            return False
        if identity.user in self._admins:
            return True
        if client.has_more_acts:
            return False
        # A copy: requests in a pause may add acts, which are judged as they come.
        for act in tuple(client.allowed):
            if not self.judge(identity.user, act).is_allowed:
                return False
            await turn.pause_if_over()
        return True

    def _is_valid(self, identity: Identity) -> bool:
        return is_valid(identity, self._node.catalog.access, self._node.world.now_ms())

    def _watch(self, connection: Connection, client: _Client) -> None:
        """See to it that a connection ends with its login."""
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None
        until_ms = client.identity.until_ms(self._node.catalog.access) if client.identity else 0
        if until_ms is None:
            self._end(connection, client)
        elif until_ms:
            seconds = (until_ms - self._node.world.now_ms()) / 1000
            client.timer = self._node.timers.call_after(
                min(max(seconds, 0.0), RECHECK_SECONDS_MAX), partial(self._look_again, connection)
            )

    def _look_again(self, connection: Connection) -> None:
        client = self._clients.get(connection)
        if client is None or client.identity is None:
            return
        if self._is_valid(client.identity):
            self._watch(connection, client)
        else:
            self._end(connection, client)


def _urgency(known: tuple[Connection, _Client]) -> tuple[bool, int]:
    """The order in which connections are judged again."""
    connection, client = known
    return not connection.open_requests, len(client.allowed)


def _seeing(act: Act) -> Act:
    return act._replace(operation=Operation.DESCRIBE)


def users_in(names: Iterable[CertificateName], cluster: str) -> list[str]:
    """The users of a cluster among the names in a certificate."""
    return sorted(each.name for each in names if each[:2] == (cluster, USER))
