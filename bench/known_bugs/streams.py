"""Connections between members as with TCP: in order, and without loss while a connection is open.

Each pair of members has at most one connection. The core simulator's network delays each message.
While the network is cut, bytes wait, as they do while TCP retransmits, and arrive after the heal.
If bytes wait too long, or a process ends, the connection breaks: both sides get a call, all bytes
under way are lost, and some time later the members connect again.

Invariants:
- Nothing is delivered over a connection that broke, nor out of order.

Left out: a connection that breaks at one end long before the other.
"""

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING

from raftmq.chaos.core.loop import Loop
from raftmq.chaos.core.network import Network

if TYPE_CHECKING:
    from bench.known_bugs.member import Member

SILENCE_US_MAX = 3_500_000
"""Bytes that wait longer break the connection: pysyncobj's `connectionTimeout`."""

RETRY_US, RETRY_SPREAD_US = 100_000, 900_000
"""Delay of a connect: the first, plus a random part of the second."""

LOOK_US = 20_000
"""Pause between two looks at a cut network, for waiting bytes."""

_KIND = 0
"""The kind of every message: the network does not tell messages apart."""


@dataclass(slots=True, eq=False)
class Stream:
    """One connection between processes of two members."""

    ends: "tuple[Member, Member]"
    lives: tuple[int, int]
    is_open: bool = True
    waiting: dict[int, deque[tuple[int, bytes]]] = field(default_factory=dict)
    """Sender → (time of arrival, bytes) of messages that wait because the network is cut."""

    def end(self, other: "Member") -> "Member":
        """The member at the other end."""
        return self.ends[1] if self.ends[0] is other else self.ends[0]


class Streams:
    """All connections of a cluster."""

    def __init__(self, loop: Loop, network: Network, random: Random) -> None:
        self._loop = loop
        self._network = network
        self._random = random.random
        self._streams: dict[tuple[int, int], Stream] = {}

    def begin(self, members: "list[Member]") -> None:
        """Connect all pairs of members soon, and again whenever a connection breaks."""
        for pair in combinations(members, 2):
            self._later(self._connect, *pair)

    def _later(self, call: "Callable[[Member, Member], None]", a: "Member", b: "Member") -> None:
        delay = RETRY_US + int(self._random() * RETRY_SPREAD_US)
        self._loop.after(delay, call, a, b)

    def _connect(self, a: "Member", b: "Member") -> None:
        is_cut = self._network.is_cut(a.id, b.id) or self._network.is_cut(b.id, a.id)
        if is_cut or not (a.is_up and b.is_up) or a.is_paused or b.is_paused:
            self._later(self._connect, a, b)
            return
        self._streams[a.id, b.id] = Stream((a, b), (a.lives, b.lives))
        a.connected(b.id)
        b.connected(a.id)

    def send(self, sender: "Member", to: int, message: object) -> bool:
        """Send over the connection; False if there is none."""
        stream = self._streams.get((min(sender.id, to), max(sender.id, to)))
        if stream is None:
            return False
        data = pickle.dumps(message)
        self._network.carry((sender.id, to), _KIND, self._arrive, stream, sender, data)
        return True

    def _arrive(self, stream: Stream, sender: "Member", data: bytes) -> None:
        if not stream.is_open:
            return
        receiver = stream.end(sender)
        queue = stream.waiting.get(sender.id)
        if queue is None and not self._network.is_cut(sender.id, receiver.id):
            receiver.received(sender.id, data)
        elif queue is None:
            # Later messages queue behind this one, so that the order holds after the heal.
            stream.waiting[sender.id] = deque([(self._loop.now_us, data)])
            self._loop.after(LOOK_US, self._look, stream, sender)
        else:
            queue.append((self._loop.now_us, data))

    def _look(self, stream: Stream, sender: "Member") -> None:
        if not stream.is_open:
            return
        receiver = stream.end(sender)
        if not self._network.is_cut(sender.id, receiver.id):
            for _, data in stream.waiting.pop(sender.id):
                receiver.received(sender.id, data)
        elif self._loop.now_us - stream.waiting[sender.id][0][0] > SILENCE_US_MAX:
            self._break(stream)
        else:
            self._loop.after(LOOK_US, self._look, stream, sender)

    def ended(self, member: "Member") -> None:
        """A process ended: break its connections."""
        for stream in list(self._streams.values()):
            if member in stream.ends:
                self._break(stream)

    def _break(self, stream: Stream) -> None:
        a, b = stream.ends
        stream.is_open = False
        stream.waiting.clear()
        del self._streams[a.id, b.id]
        for end, life, other in ((a, stream.lives[0], b), (b, stream.lives[1], a)):
            if end.lives == life:
                end.disconnected(other.id)
        self._later(self._connect, a, b)
