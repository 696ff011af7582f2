"""One machine, on which a pysyncobj process runs until it is killed: ticks, messages, restarts.

pysyncobj runs unchanged, through its own interfaces: a `Transport` that hands messages to
`Streams`, and `doTick`, called every 50 ms and after each arrival, as pysyncobj's own thread does.
Its clock and its randomness are replaced in its module (`Edition.arrange`), and it has no sockets.
Its journal is a real file, which a killed process leaves unchanged.

Invariants:
- Every exception that pysyncobj raises is noted, and the process goes on, as with its own thread.

Sources: `pysyncobj.syncobj._autoTickThread` for the order of the steps.
"""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.known_bugs.cluster import Cluster

TICK_US = 50_000
"""pysyncobj's `autoTickPeriod`."""

WAKE_US = 2_000
"""Longest time from the arrival of a message to the tick that acts on it."""

RESTART_US, RESTART_SPREAD_US = 200_000, 1_500_000
"""Delay of a restart: the first, plus a random part of the second."""

Call = Callable[..., None]


class Edition:
    """An installed version of pysyncobj, with another clock and random source and no sockets."""

    def __init__(self, package: ModuleType) -> None:
        from pysyncobj import syncobj, transport

        self.version = str(package.version.VERSION)
        self._module = syncobj
        self.transport_type = _transport_type(transport.Transport)
        self.store_type = _store_type(package)
        self.node_type = syncobj.Node
        self.conf_type = package.SyncObjConf

    def arrange(self, now: Callable[[], float], random: Random) -> None:
        """Replace the clock and the random source of all instances from now on."""
        module: Any = self._module
        module.monotonicTime = now
        module.random = random
        module.createPoller = lambda _: _Poller()
        module.PIPE_NOTIFIER_ENABLED = False


class _Poller:
    """A poller without sockets."""

    def poll(self, timeout: float) -> None:
        """Return at once."""


def _transport_type(base: Any) -> Any:
    class Simulated(base):  # type: ignore[misc]
        """pysyncobj's transport, which sends through the member."""

        def __init__(self, member: "Member") -> None:
            super().__init__(None, None, ())
            self._member = member

        def send(self, node: Any, message: object) -> bool:
            return self._member.send(node.id, message)

    return Simulated


def _store_type(package: Any) -> Any:
    class Store(package.SyncObj):  # type: ignore[misc]
        """The replicated object: it reports each applied value, and returns the value."""

        def __init__(self, member: "Member", others: Any, conf: Any, transport: Any) -> None:
            self._tell = member.applied
            super().__init__(member.node, others, conf, transport=transport)

        @package.replicated  # type: ignore[untyped-decorator]
        def put(self, value: int) -> int:
            self._tell(self.raftLastApplied + 1, value)
            return value

    return Store


class Member:
    """One machine and its process."""

    def __init__(self, number: int, cluster: "Cluster", journal: Path) -> None:
        self.id = self.place = number
        self._cluster = cluster
        self._journal = journal
        self._random = Random(f"member {number} {cluster.seed}")
        self.node = cluster.edition.node_type(number)
        self.store: Any = None
        """pysyncobj's object; None while the process is down."""
        self.lives = 0
        self.is_paused = False
        self._stash: list[tuple[Call, tuple[object, ...]]] = []
        self._transport: Any = None
        self._next_tick_us = 0

    @property
    def is_up(self) -> bool:
        """Does the process exist? It may be paused."""
        return self.store is not None

    def inside(self, name: str) -> Any:
        """A private field of pysyncobj's object."""
        return getattr(self.store, f"_SyncObj__{name}")

    # Life

    def start(self) -> None:
        """Start the process, unless it is up."""
        if self.is_up:
            return
        cluster = self._cluster
        self.lives += 1
        others = [one.node for one in cluster.at_place.values() if one is not self]
        conf = cluster.edition.conf_type(
            autoTick=False,
            journalFile=str(self._journal),
            appendEntriesUseBatch=cluster.uses_batches,
        )
        self._transport = cluster.edition.transport_type(self)
        self.store = cluster.edition.store_type(self, others, conf, self._transport)
        cluster.watch.started(self)
        self._tick_after(int(cluster.random.random() * TICK_US))

    def start_later(self, delay_us: int = 0) -> None:
        """Start the process after a while, as a supervisor does."""
        spread = int(self._cluster.random.random() * RESTART_SPREAD_US)
        self._cluster.loop.after(delay_us or RESTART_US + spread, self.start)

    def end(self, *, power: bool) -> None:
        """Kill the process; the journal keeps all that the process had written."""
        assert not power, "pysyncobj promises nothing after a power loss"
        if self.store is None:
            return
        self.inside("raftLog")._destroy()
        self.store = None
        self.is_paused = False
        self._stash.clear()
        self._cluster.counts["crashes"] += 1
        self._cluster.streams.ended(self)

    def pause(self) -> None:
        """Pause the process: its calls are kept until `resume`."""
        self.is_paused = self.is_up

    def resume(self) -> None:
        """Resume the process, and make the calls that were kept."""
        self.is_paused = False
        stash, self._stash = self._stash, []
        for call, args in stash:
            self._turn(call, *args)

    # Calls into pysyncobj

    def _turn(self, call: Call, *args: object) -> None:
        if self.store is None:
            return
        if self.is_paused:
            self._stash.append((call, args))
            return
        try:
            call(*args)
        # pysyncobj's own thread logs an exception and goes on.
        except Exception as error:
            self._cluster.counts["errors"] += 1
            self._cluster.errors.setdefault(f"{type(error).__name__}: {error}", self._cluster.seed)
        self._cluster.watch.look(self)

    def _tick_after(self, delay_us: int) -> None:
        loop = self._cluster.loop
        self._next_tick_us = loop.now_us + delay_us
        loop.after(delay_us, self._tick, self.lives, self._next_tick_us)

    def _tick(self, life: int, at_us: int) -> None:
        # This tick was brought forward, or is one of an earlier process.
        if life == self.lives and at_us == self._next_tick_us and self.is_up:
            if not self.is_paused:
                self._turn(self.store.doTick)
            self._tick_after(TICK_US)

    def received(self, sender: int, data: bytes) -> None:
        """A message has arrived."""
        self._cluster.trace.note(self._cluster.loop.now_us, sender, self.id, len(data))
        node = self._cluster.at_place[sender].node
        self._turn(self._receive, node, pickle.loads(data))
        wake_us = int(self._random.random() * WAKE_US)
        if self.is_up and self._next_tick_us > self._cluster.loop.now_us + wake_us:
            self._tick_after(wake_us)

    def _receive(self, node: object, message: object) -> None:
        self._transport._onMessageReceived(node, message)

    def connected(self, other: int) -> None:
        """A connection was made."""
        node = self._cluster.at_place[other].node
        self._turn(lambda: self._transport._onNodeConnected(node))

    def disconnected(self, other: int) -> None:
        """A connection broke."""
        node = self._cluster.at_place[other].node
        self._turn(lambda: self._transport._onNodeDisconnected(node))

    # Calls from pysyncobj and clients

    def send(self, to: int, message: object) -> bool:
        """pysyncobj sends something."""
        return self._cluster.streams.send(self, to, message)

    def applied(self, index: int, value: int) -> None:
        """pysyncobj applies a value."""
        self._cluster.watch.applied(self, index, value)

    def propose(self, value: int) -> None:
        """A client asks this member to replicate a value."""
        self._turn(self._put, value)

    def _put(self, value: int) -> None:
        self.store.put(value, callback=partial(self._answered, value))

    def _answered(self, value: int, result: object, error: int) -> None:
        if not error:
            self._cluster.watch.acknowledged(self, value, result)
