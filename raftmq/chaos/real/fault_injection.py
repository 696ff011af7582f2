"""Fault injection in a node's own process: failpoints, wrong clocks, a held-up loop.

`raftmq serve` calls `with_faults` only if one of these variables is set; otherwise this module is
not loaded, and a node runs unchanged.

| variable | meaning |
|---|---|
| `RAFTMQ_FAILPOINT` | `NAME:COUNT`: end like `kill -9` at the COUNT-th pass of this failpoint |
| `RAFTMQ_CHAOS` | a file of `Orders` as JSON, read again whenever it was replaced |
| `RAFTMQ_MUTANT` | name of a mutant of whole brokers, planted until the process ends |

With `RAFTMQ_CHAOS` the longest hold of the node's loop is written beside that file (`holds`).

The file may appear later, and change while the node runs:

    {"failpoint": "before-send:3", "clocks": [["drift", 0.1, 1700000000000]], "stall": [7, 300]}

Invariants:
- Orders are read where the node asks for the time, and at each failpoint: a paused node obeys when
  it goes on.
- The passes of a failpoint are counted from the first reading of the order; a file with the same
  text does not start a new count.
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

from raftmq.broker.world import Worker, World, address_of, give_up_after, secure
from raftmq.chaos.real.faults.clocks import ClockEffect, offset_ms
from raftmq.log.files import FileSystem
from raftmq.tls.names import CertificateName

from .failpoints import FAILPOINTS, FailpointFiles
from .holds import Holds

FAILPOINT_VARIABLE = "RAFTMQ_FAILPOINT"
ORDERS_VARIABLE = "RAFTMQ_CHAOS"
MUTANT_VARIABLE = "RAFTMQ_MUTANT"

LOOK_SECONDS = 0.01
"""The shortest time between two looks at the file."""


class Orders(msgspec.Struct, frozen=True):
    """The faults that a node's process makes to itself."""

    failpoint: str = ""
    """`NAME:COUNT` of the pass that ends the process; empty: none does."""
    clocks: list[ClockEffect] = []
    """Faults of the node's clock; their offsets add up."""
    stall: tuple[int, int] = (0, 0)
    """(number of the order, milliseconds): block the event loop once for each new number."""


def parse_failpoint(text: str) -> tuple[str, int]:
    """The failpoint's name, and the number of the pass that ends the process.

    >>> parse_failpoint("after-send:3"), parse_failpoint("after-send")
    (('after-send', 3), ('after-send', 1))

    Raises:
        ValueError: there is no such failpoint, or the count is no positive number.
    """
    name, _, count = text.partition(":")
    if name not in FAILPOINTS:
        raise ValueError(f"there is no failpoint {name!r}; there are: {', '.join(FAILPOINTS)}")
    if count and not (count.isdigit() and int(count)):
        raise ValueError(f"{text!r}: after the colon comes how many times, 1 or more")
    return name, int(count or 1)


class Injector:
    """The current orders, and the passes left until the process ends at a failpoint."""

    def __init__(self, failpoint: str = "", orders: Path | None = None) -> None:
        self._path = orders
        self._stamp = 0
        self._looked = -1.0
        self._lock = threading.Lock()
        self._text = failpoint
        self._point, self._left = parse_failpoint(failpoint) if failpoint else ("", 0)
        self._stalled = 0
        self.orders = Orders(failpoint=failpoint)
        """The orders that were read last."""

    def __call__(self, name: str) -> None:
        """A failpoint is reached: end the process if this pass was ordered."""
        self.look()
        if name == self._point:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    def wants(self, name: str) -> bool:
        """Is the process to end at this failpoint? The count may need further passes."""
        self.look()
        return name == self._point

    def look(self) -> None:
        """Read the file if it was replaced, and block the event loop if a stall is ordered."""
        self._read()
        number, milliseconds = self.orders.stall
        # Failpoints are passed in threads too; only the main thread runs the event loop.
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
        if orders.failpoint != self._text:
            self._text = orders.failpoint
            self._point, self._left = parse_failpoint(orders.failpoint) if self._text else ("", 0)
        self.orders = orders


class FailpointStream(trio.abc.Stream):
    """A stream with failpoints; keeps `send_nowait`, with which the broker avoids `send_all`."""

    def __init__(self, stream: trio.abc.Stream, reached: Injector) -> None:
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

    async def secure(self) -> frozenset[CertificateName] | None:
        """As the stream."""
        return await secure(self._stream)

    @property
    def address(self) -> str:
        """As the stream."""
        return address_of(self._stream)

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


class FailpointListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts connections with failpoints."""

    def __init__(self, listener: trio.abc.Listener[trio.abc.Stream], reached: Injector) -> None:
        self._listener = listener
        self._reached = reached

    async def accept(self) -> trio.abc.Stream:
        """As the listener."""
        return FailpointStream(await self._listener.accept(), self._reached)

    async def aclose(self) -> None:
        """As the listener."""
        await self._listener.aclose()


class FaultyWorld:
    """A `World` that adds failpoints, clock faults and stalls to another world."""

    def __init__(self, world: World, injector: Injector) -> None:
        self._world = world
        self._injector = injector
        self.files: FileSystem = FailpointFiles(world.files, injector)
        self.random: Random = world.random
        self.descriptors_max = world.descriptors_max
        self.is_under_tls = world.is_under_tls

    @property
    def process_id(self) -> int:
        """See `World`."""
        return self._world.process_id

    @property
    def certificate_ends_ms(self) -> int:
        """See `World`."""
        return self._world.certificate_ends_ms

    def now_ms(self) -> int:
        """The time of the node's clock, which may be wrong, in ms since the epoch."""
        self._injector.look()
        true_ms = self._world.now_ms()
        return max(true_ms + offset_ms(self._injector.orders.clocks, true_ms), 0)

    def worker(self, name: str, nursery: trio.Nursery) -> Worker:
        """As the world."""
        return self._world.worker(name, nursery)

    async def listen(self, host: str, port: int) -> trio.abc.Listener[trio.abc.Stream]:
        """As the world."""
        return FailpointListener(await self._world.listen(host, port), self._injector)

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """As the world."""
        stream = await self._world.connect(host, port)
        self._injector("after-connect")
        return FailpointStream(stream, self._injector)


def with_faults(world: World, environment: Mapping[str, str]) -> World:
    """The world of a node whose environment asks for faults.

    Raises:
        ValueError: `RAFTMQ_FAILPOINT` names no failpoint.
    """
    mutant = environment.get(MUTANT_VARIABLE, "")
    if mutant:
        _plant(mutant)
    text = environment.get(ORDERS_VARIABLE, "")
    path = Path(text) if text else None
    if path is not None and trio.lowlevel.in_trio_run():
        trio.lowlevel.add_instrument(Holds(holds_file(path)))
    return FaultyWorld(world, Injector(environment.get(FAILPOINT_VARIABLE, ""), path))


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
