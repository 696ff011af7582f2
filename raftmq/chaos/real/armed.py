"""The inside of a node's process under test: crash points, wrong clocks, a held-up loop.

`raftmq serve` calls `arm` only if one of these variables is set; otherwise this module is not
loaded, and a node runs unchanged.

| variable | meaning |
|---|---|
| `RAFTMQ_CRASH_AT` | `NAME:COUNT`: end like `kill -9` the COUNT-th time that point is reached |
| `RAFTMQ_CHAOS` | a file of `Orders` as JSON, read again whenever it was replaced |
| `RAFTMQ_MUTANT` | name of a mutant of whole brokers, planted until the process ends |

With `RAFTMQ_CHAOS` the longest hold of the node's loop is written beside that file (`holds`).

The file may appear later, and change while the node runs:

    {"crash": "before-send:3", "clocks": [["drift", 0.1, 1700000000000]], "stall": [7, 300]}

Invariants:
- Orders are read where the node asks for the time, and at each point: a paused node obeys when it
  goes on.
- A crash order is counted from its first reading; a file with the same text does not start a new
  count.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec
import trio

from raftmq.broker.world import Worker, World, give_up_after
from raftmq.chaos.real.faults.clocks import ClockEffect, offset_ms
from raftmq.log.files import FileSystem

from .holds import Holds
from .points import POINTS, PointFiles

CRASH_VARIABLE = "RAFTMQ_CRASH_AT"
ORDERS_VARIABLE = "RAFTMQ_CHAOS"
MUTANT_VARIABLE = "RAFTMQ_MUTANT"

LOOK_SECONDS = 0.01
"""The shortest time between two looks at the file."""


class Orders(msgspec.Struct, frozen=True):
    """The faults that a node's process makes to itself."""

    crash: str = ""
    """`NAME:COUNT`, counted from the reading of the order; empty: no crash."""
    clocks: list[ClockEffect] = []
    """Faults of the node's clock; their offsets add up."""
    stall: tuple[int, int] = (0, 0)
    """(number of the order, milliseconds): block the event loop once for each new number."""


def parse_crash(text: str) -> tuple[str, int]:
    """The point's name, and the number of the pass that ends the process.

    >>> parse_crash("after-send:3"), parse_crash("after-send")
    (('after-send', 3), ('after-send', 1))

    Raises:
        ValueError: there is no such point, or the count is no positive number.
    """
    name, _, count = text.partition(":")
    if name not in POINTS:
        raise ValueError(f"there is no crash point {name!r}; there are: {', '.join(POINTS)}")
    if count and not (count.isdigit() and int(count)):
        raise ValueError(f"{text!r}: after the colon comes how many times, 1 or more")
    return name, int(count or 1)


class Armament:
    """The current orders, and the passes left until the crash."""

    def __init__(self, crash: str = "", orders: Path | None = None) -> None:
        self._path = orders
        self._stamp = 0
        self._looked = -1.0
        self._lock = threading.Lock()
        self._crash_text = crash
        self._point, self._left = parse_crash(crash) if crash else ("", 0)
        self._stalled = 0
        self.orders = Orders(crash=crash)
        """The orders that were read last."""

    def __call__(self, name: str) -> None:
        """A crash point is reached: end the process if this pass was ordered."""
        self.look()
        if name == self._point:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    def wants(self, name: str) -> bool:
        """Is a crash ordered at this point? Its count may need further passes."""
        self.look()
        return name == self._point

    def look(self) -> None:
        """Read the file if it was replaced, and block the event loop if a stall is ordered."""
        self._read()
        number, milliseconds = self.orders.stall
        # Points are passed in threads too; only the main thread runs the event loop.
        if number != self._stalled and threading.current_thread() is threading.main_thread():
            self._stalled = number
            time.sleep(milliseconds / 1000)

    def _read(self) -> None:
        now = time.monotonic()
        if self._path is None or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp == self._stamp:
                return
            orders = msgspec.json.decode(self._path.read_bytes(), type=Orders)
        except FileNotFoundError:
            return
        self._stamp = stamp
        if orders.crash != self._crash_text:
            self._crash_text = orders.crash
            self._point, self._left = parse_crash(orders.crash) if orders.crash else ("", 0)
        self.orders = orders


class ArmedStream(trio.abc.Stream):
    """A connection with points; keeps `send_nowait`, with which the broker avoids `send_all`."""

    def __init__(self, stream: trio.abc.Stream, reached: Armament) -> None:
        self._stream = stream
        self._reached = reached

    def send_nowait(self, data: bytes) -> int:
        """As the stream; 0 bytes if the stream has no `send_nowait`."""
        self._reached("before-send")
        send_nowait = getattr(self._stream, "send_nowait", None)
        sent = 0 if send_nowait is None else int(send_nowait(data))
        self._reached("after-send")
        return sent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As the stream."""
        self._reached("before-send")
        await self._stream.send_all(data)
        self._reached("after-send")

    def give_up_after(self, seconds: float) -> None:
        """As the stream."""
        give_up_after(self._stream, seconds)

    async def wait_send_all_might_not_block(self) -> None:
        """As the stream."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As the stream."""
        data = await self._stream.receive_some(max_bytes)
        self._reached("after-receive")
        return data

    async def aclose(self) -> None:
        """As the stream."""
        await self._stream.aclose()


class ArmedListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts connections with points."""

    def __init__(self, listener: trio.abc.Listener[trio.abc.Stream], reached: Armament) -> None:
        self._listener = listener
        self._reached = reached

    async def accept(self) -> trio.abc.Stream:
        """As the listener."""
        return ArmedStream(await self._listener.accept(), self._reached)

    async def aclose(self) -> None:
        """As the listener."""
        await self._listener.aclose()


class ArmedWorld:
    """A `World` that adds points, clock faults and stalls to another world."""

    def __init__(self, world: World, armament: Armament) -> None:
        self._world = world
        self._armament = armament
        self.files: FileSystem = PointFiles(world.files, armament)
        self.random: Random = world.random
        self.descriptors_max = world.descriptors_max

    def now_ms(self) -> int:
        """The time of the node's clock, which may be wrong, in ms since the epoch."""
        self._armament.look()
        true_ms = self._world.now_ms()
        return max(true_ms + offset_ms(self._armament.orders.clocks, true_ms), 0)

    def worker(self, name: str, nursery: trio.Nursery) -> Worker:
        """As the world."""
        return self._world.worker(name, nursery)

    async def listen(self, host: str, port: int) -> trio.abc.Listener[trio.abc.Stream]:
        """As the world."""
        return ArmedListener(await self._world.listen(host, port), self._armament)

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """As the world."""
        stream = await self._world.connect(host, port)
        self._armament("after-connect")
        return ArmedStream(stream, self._armament)


def arm(world: World, environment: Mapping[str, str]) -> World:
    """The world of a node whose environment asks for faults.

    Raises:
        ValueError: `RAFTMQ_CRASH_AT` names no point.
    """
    mutant = environment.get(MUTANT_VARIABLE, "")
    if mutant:
        _plant(mutant)
    text = environment.get(ORDERS_VARIABLE, "")
    path = Path(text) if text else None
    if path is not None and trio.lowlevel.in_trio_run():
        trio.lowlevel.add_instrument(Holds(holds_file(path)))
    return ArmedWorld(world, Armament(environment.get(CRASH_VARIABLE, ""), path))


def _plant(name: str) -> None:
    """Plant a known bug in this process until the process ends."""
    from raftmq.chaos.mutant import known_mutants, planted

    (mutant,) = (one for one in known_mutants() if one.name == name)
    _bugs.enter_context(planted(mutant))


_bugs = ExitStack()
"""Holds the planted mutant; never closed."""


def holds_file(orders: Path) -> Path:
    """The file in which a process with this file of orders writes its loop's longest hold."""
    return orders.with_suffix(".holds")


def write_orders(path: Path, orders: Orders) -> None:
    """Replace a node's file of orders as a whole: the node never reads half a file."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(msgspec.json.encode(orders))
    new.replace(path)
