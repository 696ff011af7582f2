"""The settings that operators push to this client: one request at a node waits for the next change.

    followed: topics orders, bills     SETTINGS [client *, client NAME, topic orders, topic bills]
    changed                            each follower whose settings are others is called

Of a setting that several scopes have, the client's own value counts, then the topic's, then that of
`client *`. The first answer may come after the first messages: a client starts without waiting.

The request also tells the node what this client does: `raftmq directory clients` shows it.

Invariants:
- One request is under way at most, and none while no topic is followed, but one that says so.
- A node that lags never brings back older settings: answers with an older version are passed over.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import anyio

from raftmq.client.supervisor import TaskScope
from raftmq.errors import RaftmqError
from raftmq.machine.catalog.settings import EVERY
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.pushed import Pushed, in_force
from raftmq.wire.codec import pack, unpack
from raftmq.wire.directory import USES_MAX, AvoidedNode, Doing, Use
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from raftmq.wire.settings import SCOPES_MAX, FindSettings, FoundSettings, SettingScope

from .connection import Connection, Lost
from .refusals import RETRIED, refusal_of

WAIT_MS = 30_000
"""How long a node waits for a change, in milliseconds, before it answers that there is none."""
LATE_SECONDS_MAX = 10.0
"""Seconds beyond `WAIT_MS` after which an answer is given up: the node may hang."""
REFUSED_SECONDS = 30.0
"""Time until the next request after a refusal, as by a node of older software."""

Follower = Callable[[Pushed], None]


class Nodes(Protocol):
    """The router, as this module needs it."""

    def any_open(self, turn: int | None = None) -> Connection | None:
        """An open connection, in turn."""

    async def leader(self, group: int) -> Connection:
        """An open connection to the group's leader, without a limit."""

    def delay(self, attempt: int) -> float:
        """Seconds to wait before the nth attempt, from 0."""


class PushedSettings:
    """What operators push to one client."""

    def __init__(
        self, nodes: Nodes, random: Random, avoided: Callable[[float], list[AvoidedNode]]
    ) -> None:
        """`avoided`: see `Weights.avoided`."""
        self._nodes = nodes
        # The client's name in the directory.
        self._client = f"{random.getrandbits(64):016x}"
        self._avoided = avoided
        self._tasks: TaskScope | None = None
        self._is_running = False
        self._turn = 0
        # Topic → its followers with what they do, and the settings that they were told.
        self._followers: dict[str, list[tuple[Use, Follower]]] = {}
        self._told: dict[str, Pushed] = {}
        # Scope and its name → values by name, as of the version.
        self._values: dict[tuple[str, str], dict[str, Any]] = {}
        self._version = 0
        # The version to ask from: 0 if the scopes are others than those of the values.
        self._after = 0
        # Changes of what this client does.
        self._changes = 0
        self._avoided_told: list[AvoidedNode] = []
        # Whether a node lists this client, with what it did.
        self._is_listed = False
        self._asking: anyio.CancelScope | None = None
        self._wanted: anyio.Event | None = None
        self.name = ""
        """The client's name; empty: it has none."""

    def start(self, tasks: TaskScope) -> None:
        """Ask in these tasks, once a topic is followed."""
        self._tasks = tasks

    def follow(self, use: Use, follower: Follower) -> None:
        """Call `follower` with the settings for the topic of `use`, now if any are known, and when
        they change."""
        followers = self._followers.setdefault(use.topic, [])
        is_new = use not in (each for each, _ in followers)
        followers.append((use, follower))
        # What every client obeys is known before the topic's own settings are.
        known = self._told.setdefault(use.topic, self._settings(use.topic))
        if known != Pushed():
            follower(known)
        if is_new:
            self._ask_again()
        if not self._is_running and self._tasks is not None:
            self._is_running = True
            self._tasks.start(self._run)

    def unfollow(self, use: Use, follower: Follower) -> None:
        """The reverse of `follow`."""
        followers = self._followers[use.topic]
        followers.remove((use, follower))
        if not followers:
            del self._followers[use.topic]
            self._told.pop(use.topic, None)
        if use not in (each for each, _ in followers):
            self._ask_again()

    def _ask_again(self) -> None:
        """Ask for all scopes again, as they or what this client does are others now."""
        self._after = 0
        self._changes += 1
        if self._wanted is not None:
            self._wanted.set()
        if self._asking is not None:
            self._asking.cancel()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wanted, pause = anyio.Event(), 0.0
            if not self._followers and not self._is_listed:
                await self._wanted.wait()
                continue
            with anyio.CancelScope() as self._asking:
                pause = await self._ask(failures)
            failures = failures + 1 if pause else 0
            if pause:
                with anyio.move_on_after(pause):
                    await self._wanted.wait()

    async def _ask(self, failures: int) -> float:
        """Ask for a change after the known version; returns seconds until the next request."""
        scopes = [("client", EVERY), *([("client", self.name)] if self.name else [])]
        topics = sorted(self._followers)[: SCOPES_MAX - len(scopes)]
        scopes += [("topic", topic) for topic in topics]
        named = [SettingScope(*each) for each in scopes]
        doing = self._doing()
        request = FindSettings(named, self._after, WAIT_MS if doing.uses else 0, doing)
        answer: Frame | Lost | None = None
        wanted = self._wanted
        try:
            with anyio.move_on_after(WAIT_MS / 1000 + LATE_SECONDS_MAX):
                connection = self._nodes.any_open(self._turn)
                # Another node each time: one that is cut off from the others hears of no change.
                self._turn += 1
                connection = connection or await self._nodes.leader(SYSTEM_GROUP)
                kind = FrameKind.SETTINGS
                answer = await connection.call(kind, pack(request), is_patient=True)
            if answer is None or isinstance(answer, Lost):
                return self._nodes.delay(failures)
            refusal = refusal_of(answer)
            if refusal is not None:
                is_soon = refusal.code in RETRIED
                return self._nodes.delay(failures) if is_soon else REFUSED_SECONDS
            found = unpack(FoundSettings, answer.header)
        except RaftmqError:
            return REFUSED_SECONDS
        self._is_listed = bool(doing.uses)
        if found.version < self._version:
            # The node lags: its settings are older than those obeyed here.
            return self._nodes.delay(failures)
        if wanted is not None and wanted.is_set():
            return 0.0  # Other topics are followed by now.
        self._take(found)
        return 0.0

    def _doing(self) -> Doing:
        uses = dict.fromkeys(use for each in self._followers.values() for use, _ in each)
        avoided = self._avoided(anyio.current_time())[:USES_MAX]
        if avoided != self._avoided_told:
            self._avoided_told = avoided
            self._changes += 1
        return Doing(self._client, self.name, self._changes, list(uses)[:USES_MAX], avoided)

    def _take(self, found: FoundSettings) -> None:
        self._version = self._after = found.version
        values: dict[tuple[str, str], dict[str, Any]] = {}
        for each in found.settings:
            values.setdefault((each.scope, each.of), {})[each.name] = each.value
        self._values = values
        for topic, followers in list(self._followers.items()):
            settings = self._settings(topic)
            if settings != self._told.get(topic, Pushed()):
                self._told[topic] = settings
                for _, follower in list(followers):
                    follower(settings)

    def _settings(self, topic: str) -> Pushed:
        order = (("client", EVERY), ("topic", topic), ("client", self.name))
        return in_force(*(self._values.get(place, {}) for place in order))
