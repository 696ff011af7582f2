"""Members of a directory on one machine without sockets: a made-up clock, links that lose."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

import pysyncobj.syncobj
import pytest

from raftmq.directory.directory import TICK_SECONDS, Directory
from raftmq.wire import directory as wire
from raftmq.wire.codec import pack, unpack

DELAY_SECONDS_MAX = 0.05


class World:
    """Some members, which start at once."""

    def __init__(self, seed: int, members: int, patch: pytest.MonkeyPatch) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self.up: dict[int, Directory] = {}
        self.parts: dict[int, int] = {}
        """Member → the part of a cut network that it is in; members of one part hear each other."""
        self.skews: dict[int, float] = {}
        """Seconds by which a member's wall clock is ahead."""
        self.lost_share = 0.0
        self.is_lost: Callable[[int, wire.DirectoryMessage], bool] = lambda sender, message: False
        """Whether a message of a member is lost."""
        self._numbers = range(1, members + 1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._last: dict[tuple[int, int], float] = {}
        patch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: self.now)
        patch.setattr(pysyncobj.syncobj, "random", Random(f"directory {seed}"))
        for member in self._numbers:
            self.start(member)

    def start(self, member: int) -> None:
        """Start a member, unless it is up."""
        if member in self.up:
            return
        directory = Directory(
            member,
            boot=int(self.now * 1000) + self.random.randrange(50),
            now=lambda: self.now,
            wall=lambda: self.now + self.skews.get(member, 0.0),
            send=lambda to, message: self._send(member, to, message),
            is_connected=lambda other: self.is_linked(member, other),
        )
        directory.follow(list(self._numbers))
        self.up[member] = directory
        self._later(self.random.random() * TICK_SECONDS, lambda: self._tick(member, directory))

    def kill(self, member: int) -> None:
        """End a member's process."""
        self.up.pop(member).close()

    def is_linked(self, one: int, other: int) -> bool:
        return other in self.up and self.parts.get(one, 0) == self.parts.get(other, 0)

    def cut(self, members: Iterable[int]) -> None:
        """Set these members apart from the others."""
        self.parts = dict.fromkeys(members, 1)

    def disturb(self, draw: Random) -> None:
        """One fault, or the end of some."""
        match draw.randrange(5):
            case 0 if len(self.up) > 1:
                self.kill(draw.choice(list(self.up)))
            case 1:
                self.start_all()
            case 2:
                self.cut(draw.sample(self._numbers, len(self._numbers) // 2))
            case 3:
                self.cut([])
            case 4:
                self.lost_share = draw.choice((0.0, 0.2, 0.8))

    def heal(self) -> None:
        """End all faults."""
        self.lost_share = 0.0
        self.cut([])
        self.start_all()

    def start_all(self) -> None:
        """Start the members that are down."""
        for member in self._numbers:
            self.start(member)

    def run(self, seconds: float, *, look: Callable[[], None] = lambda: None) -> None:
        """Let time pass; `look` is called after each event."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heappop(self._events)
            act()
            look()
        self.now = end

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._order), act))

    def _tick(self, member: int, directory: Directory) -> None:
        if self.up.get(member) is directory:
            directory.tick()
            self._later(TICK_SECONDS, lambda: self._tick(member, directory))

    def _send(self, sender: int, to: int, message: wire.DirectoryMessage) -> bool:
        if not self.is_linked(sender, to) or self.is_lost(sender, message):
            return False
        header = pack(message)

        def arrive() -> None:
            if self.is_linked(sender, to) and self.random.random() >= self.lost_share:
                self.up[to].receive(sender, unpack(wire.DirectoryMessage, header))

        # Links keep the order.
        at = max(
            self.now + self.random.random() * DELAY_SECONDS_MAX, self._last.get((sender, to), 0)
        )
        self._last[sender, to] = at
        self._later(at - self.now, arrive)
        return True


def rows(directory: Directory) -> dict[tuple[int, str], Any]:
    """All rows that a member shows."""
    return {(row.member, row.key): row.value for row in directory.rows()}
