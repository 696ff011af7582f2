"""The network of a made-up world: streams of bytes between machines, and what can befall them.

A connection is two *pipes*, one a direction; each follows a *link*, one for each ordered pair of
machines, which says how bytes travel there now:

| state of a link | what happens |
|---|---|
| (as built) | bytes arrive in order, after about a quarter of a millisecond |
| blocked | bytes wait and arrive some time after the end of it; connections are not opened |
| delay, heavy tail | everything takes longer, as drawn for each piece |
| lag | a share of the pieces, on some pipe, is held up, so that other connections overtake |
| loss | a share of the pieces is sent again after a while, or breaks the connection |
| rate | a piece takes its size divided by the rate |
| swallows | everything is taken and nothing arrives; broken at the end of it |

So what TCP promises holds: bytes come in order, each once, or the connection breaks. A process that
dies closes its connections; a machine that loses power falls silent, and answers with a reset when
it is back. Who connects to a machine without a listener is refused at once, to one that is dead or
out of reach never gets an answer.

Invariants:
- A pipe holds at most its window of bytes that its reader has not taken; then the sender waits.

Left out: names and their resolution; datagrams.

Sources: the partitions of Jepsen and VOPR; retransmission as in RFC 6298, in shape only.
"""

import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

import trio

from raftmq.chaos.world.agenda import Agenda
from raftmq.chaos.world.process import Process

Address = tuple[str, int]

WINDOW_BYTES = 256 * 1024
"""What the buffers of both ends hold together."""
BASE_SECONDS = 0.0002
"""What a piece takes at least."""
RESEND_SECONDS = 0.2
"""A lost piece is sent again after this long, then after twice as long."""
LOSSES_MAX = 4
"""A piece that is lost so often in a row breaks its connection."""
CONNECT_POLL_SECONDS = 0.25
"""How often opening a connection is tried while nothing answers."""
BACKLOG = 1024
"""Connections that wait to be accepted, at most."""
RECORD_BYTES_MAX = 1 << 20
"""How much of a connection is kept for playing it again."""

_TRACE = struct.Struct("<dII")


class Link:
    """How bytes travel from one machine to another."""

    __slots__ = (
        "blocks", "delay_seconds", "is_heavy", "lag_share", "loss_share", "pieces", "rate",
        "source", "strikes", "swallows", "target",
    )  # fmt: skip

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        """From which machine."""
        self.target = target
        """To which."""
        self.blocks = 0
        """How many faults block it."""
        self.swallows = 0
        """How many faults let everything vanish in it."""
        self.delay_seconds = 0.0
        """Mean of an exponential delay."""
        self.is_heavy = False
        """One delay in twenty is ten times as long."""
        self.lag_share = 0.0
        """Of the pieces: held up for up to a fifth of a second."""
        self.loss_share = 0.0
        """Of the pieces: lost."""
        self.rate = 0.0
        """Bytes per second; 0: no bound."""
        self.strikes: deque[Callable[[Pipe, bytes], bytes | None]] = deque()
        """What is done to the next pieces: each changes one, or breaks its connection (None)."""
        self.pieces = 0
        """Sent along it so far."""

    @property
    def is_plain(self) -> bool:
        """True if nothing is wrong with it."""
        return not (
            self.blocks or self.swallows or self.delay_seconds or self.lag_share
            or self.loss_share or self.rate or self.strikes
        )  # fmt: skip

    def heal(self) -> None:
        """Nothing is wrong with it any more, save for what blocks and swallows it."""
        self.delay_seconds = self.lag_share = self.loss_share = self.rate = 0.0
        self.is_heavy = False
        self.strikes.clear()


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "arrives", "connection", "held", "inbox", "is_ended", "is_shut", "link", "reader",
        "record", "room", "serial", "size", "swallowed", "tap", "window",
    )  # fmt: skip

    def __init__(self, connection: "Connection", link: Link, serial: int) -> None:
        self.connection = connection
        """Whose."""
        self.link = link
        """How it travels."""
        self.serial = serial
        """Number of the pipe, for the trace."""
        self.inbox: deque[bytes] = deque()
        """Arrived and not taken."""
        self.held: deque[bytes | None] = deque()
        """Sent while the link was blocked; None: the end."""
        self.size = 0
        """Bytes sent and not taken."""
        self.window = WINDOW_BYTES
        """The most that `size` may be."""
        self.is_ended = False
        """The end has arrived."""
        self.is_shut = False
        """Its reader takes nothing more."""
        self.arrives = 0.0
        """When the last piece so far arrives."""
        self.reader: trio.lowlevel.Task | None = None
        """Who waits for bytes."""
        self.room = trio.Event()
        """Set when there is room again."""
        self.swallowed = False
        """Bytes have vanished: it can only break."""
        self.record = bytearray()
        """The first bytes that were sent, if the network records."""
        self.tap: Callable[[bytes], bytes] | None = None
        """Sees all bytes that are sent and says which of them are to travel."""

    def wake(self) -> None:
        """Somebody may be waiting for bytes, or for room."""
        reader, self.reader = self.reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)
        self.room.set()


class Connection:
    """Two pipes between two processes."""

    def __init__(self, network: "Network", near: Process, far: str, serial: int) -> None:
        self.near = near
        """Who opened it."""
        self.far: Process | None = None
        """Who accepted it."""
        source = near.machine.name
        self.ends = source, far
        """The machines."""
        self.out = Pipe(self, network.link(source, far), 2 * serial)
        """From who opened it."""
        self.back = Pipe(self, network.link(far, source), 2 * serial + 1)
        """To who opened it."""
        self.is_broken = False
        """Both ends know."""
        self.is_silent = False
        """One end lost power: nothing comes any more, and nobody says so."""
        self._network = network

    def reset(self) -> None:
        """Break it: both ends learn at once."""
        if not self.is_broken:
            self.is_broken = True
            self._network.connections.pop(self, None)
            self.out.wake()
            self.back.wake()


class Stream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, network: "Network", process: Process, out: Pipe, back: Pipe) -> None:
        self._network = network
        self._process = process
        self._out = out
        self._back = back
        self._connection = out.connection
        self._is_closed = False

    def send_nowait(self, data: bytes) -> int:
        """Send what goes without waiting; how many bytes that was."""
        if self._is_closed or self._connection.is_broken or self._process.is_dead:
            return 0
        piece = data[: self._out.window - self._out.size]
        if piece:
            self._network.send(self._out, piece)
        return len(piece)

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._connection.is_broken:
            raise trio.BrokenResourceError("the connection was reset")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio says."""
        await trio.lowlevel.checkpoint()
        rest = bytes(data)
        self._check()
        while rest := rest[self.send_nowait(rest) :]:
            self._check()
            await self.wait_send_all_might_not_block()
            self._check()

    async def wait_send_all_might_not_block(self) -> None:
        """As trio says."""
        pipe = self._out
        while pipe.size >= pipe.window and not self._connection.is_broken:
            pipe.room = trio.Event()
            await pipe.room.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As trio says."""
        pipe = self._back
        if self._is_closed:
            raise trio.ClosedResourceError("this stream was closed")
        if pipe.inbox:
            await trio.lowlevel.checkpoint()
        while not pipe.inbox:
            if self._is_closed:
                raise trio.ClosedResourceError("this stream was closed")
            if pipe.is_ended:
                return b""
            if self._connection.is_broken:
                raise trio.BrokenResourceError("the connection was reset")
            pipe.reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        return self._take(pipe, max_bytes)

    def _take(self, pipe: Pipe, max_bytes: int | None) -> bytes:
        data = pipe.inbox.popleft() if len(pipe.inbox) == 1 else b"".join(pipe.inbox)
        pipe.inbox.clear()
        if max_bytes is not None and len(data) > max_bytes:
            pipe.inbox.append(data[max_bytes:])
            data = data[:max_bytes]
        pipe.size -= len(data)
        pipe.room.set()
        return data

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._back.reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def aclose(self) -> None:
        """As trio says; what was sent still arrives."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close it without waiting."""
        if self._is_closed:
            return
        self._is_closed = self._back.is_shut = True
        self._back.wake()
        self._out.wake()
        if not self._process.is_dead:
            self._network.end(self._out, is_lossy=bool(self._back.size))


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Streams that somebody opened to one address."""

    def __init__(self, network: "Network", process: Process, address: Address) -> None:
        self._network = network
        self._address = address
        self.process = process
        """Who listens."""
        self.send, self._receive = trio.open_memory_channel[Stream](BACKLOG)

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        return await self._receive.receive()

    async def aclose(self) -> None:
        """Give up the address."""
        self._network.forget(self._address, self)
        await self._receive.aclose()


class Network:
    """All machines' connections."""

    def __init__(self, agenda: Agenda, random: Random) -> None:
        self._agenda = agenda
        self._random = random
        self._links: dict[tuple[str, str], Link] = {}
        self._serial = count()
        self.listeners: dict[Address, Listener] = {}
        """By address."""
        self.connections: dict[Connection, None] = {}
        """All that are open, oldest first."""
        self.dark: set[str] = set()
        """Machines without power: nothing answers there."""
        self.is_recording = False
        """True: the beginning of each connection is kept, to be played again."""
        self.on_open: Callable[[Connection], None] = lambda _: None
        """Told of each new connection."""
        self.bytes_sent = 0
        """On all connections."""

    def link(self, source: str, target: str) -> Link:
        """How bytes travel between two machines."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target)
        return link

    def links(self) -> list[Link]:
        """All that were ever used."""
        return list(self._links.values())

    # What worlds ask.

    async def listen(self, process: Process, port: int) -> Listener:
        """Take an address."""
        address = process.machine.name, port
        if address in self.listeners:
            raise OSError(f"{address[0]}:{port} is in use")
        listener = self.listeners[address] = Listener(self, process, address)
        self.dark.discard(process.machine.name)
        return listener

    def forget(self, address: Address, listener: Listener) -> None:
        """Nobody listens there any more."""
        if self.listeners.get(address) is listener:
            del self.listeners[address]

    async def connect(
        self, process: Process, host: str, port: int, *, window_bytes: int = WINDOW_BYTES
    ) -> trio.abc.Stream:
        """Open a connection; waits for ever if nothing answers."""
        source = process.machine.name
        there, back = self.link(source, host), self.link(host, source)
        await trio.sleep(2 * BASE_SECONDS * (0.5 + self._random.random()))
        # Opening is tried again and again, as TCP does; in made-up time that costs little.
        while there.blocks or back.blocks or host in self.dark:  # noqa: ASYNC110
            await trio.sleep(CONNECT_POLL_SECONDS * (0.5 + self._random.random()))
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        return self._open(process, listener, host, window_bytes)

    def _open(self, process: Process, listener: Listener, host: str, window: int) -> Stream:
        connection = Connection(self, process, host, next(self._serial))
        connection.far = listener.process
        connection.out.window = connection.back.window = window
        far = Stream(self, listener.process, connection.back, connection.out)
        try:
            listener.send.send_nowait(far)
        except trio.WouldBlock:
            raise ConnectionRefusedError(f"{host} accepts nothing") from None
        self.connections[connection] = None
        self.on_open(connection)
        return Stream(self, process, connection.out, connection.back)

    # What streams ask.

    def send(self, pipe: Pipe, data: bytes) -> None:
        """Bytes leave a process."""
        if self.is_recording and len(pipe.record) < RECORD_BYTES_MAX:
            pipe.record += data
        if pipe.tap is not None:
            data = pipe.tap(data)
            if not data:
                return
        pipe.size += len(data)
        self.bytes_sent += len(data)
        self._dispatch(pipe, data)

    def end(self, pipe: Pipe, *, is_lossy: bool) -> None:
        """One end was closed; if it had not read all, that breaks the connection."""
        connection = pipe.connection
        if connection.is_broken:
            return
        if is_lossy:
            self._agenda.call_after(BASE_SECONDS, connection.reset)
        else:
            self._dispatch(pipe, None)

    def _dispatch(self, pipe: Pipe, data: bytes | None) -> None:
        link, agenda = pipe.link, self._agenda
        link.pieces += 1
        when = agenda.now + BASE_SECONDS
        if pipe.held or not link.is_plain:
            changed = self._befall(pipe, link, data)
            if changed is None:
                return
            data, when = changed
        if when <= pipe.arrives:
            # It must not overtake, and may come along.
            when = pipe.arrives
        pipe.arrives = when
        agenda.call_at(when, lambda: self._arrive(pipe, data))

    def _befall(
        self, pipe: Pipe, link: Link, data: bytes | None
    ) -> tuple[bytes | None, float] | None:
        """What becomes of a piece on a link that is not well; None: it does not arrive now."""
        if pipe.connection.is_silent or link.swallows:
            pipe.swallowed = True
            return None
        if link.blocks or pipe.held:
            pipe.held.append(data)
            return None
        if data is not None and link.strikes:
            data = link.strikes.popleft()(pipe, data)
            if data is None:
                return None
        seconds = self._delay(link, 0 if data is None else len(data))
        if seconds is None:
            self._agenda.call_after(RESEND_SECONDS, pipe.connection.reset)
            return None
        return data, max(self._agenda.now, pipe.arrives * bool(link.rate)) + seconds

    def _delay(self, link: Link, size: int) -> float | None:
        """How long a piece takes; None: it is lost for good."""
        random, seconds = self._random, BASE_SECONDS
        if link.delay_seconds:
            heavy = 10 if link.is_heavy and random.random() < 0.05 else 1
            seconds += random.expovariate(1 / link.delay_seconds) * heavy
        if random.random() < link.lag_share:
            seconds += random.random() * 0.2
        if link.rate:
            seconds += size / link.rate
        losses = 0
        while link.loss_share and random.random() < link.loss_share:
            seconds += RESEND_SECONDS * 2**losses
            losses += 1
            if losses == LOSSES_MAX:
                return None
        return seconds

    def _arrive(self, pipe: Pipe, data: bytes | None) -> None:
        connection = pipe.connection
        if connection.is_broken or connection.is_silent:
            return
        self._agenda.trace(_TRACE.pack(self._agenda.now, pipe.serial, len(data or b"")))
        if data is None:
            pipe.is_ended = True
            if connection.out.is_ended and connection.back.is_ended:
                self.connections.pop(connection, None)
        elif pipe.is_shut:
            self._agenda.call_after(BASE_SECONDS, connection.reset)
            return
        else:
            self._agenda.trace(data)
            pipe.inbox.append(data)
        pipe.wake()

    # What befalls them.

    def block(self, source: str, target: str) -> None:
        """Nothing travels from one machine to another, until as many calls of `unblock`."""
        self.link(source, target).blocks += 1

    def unblock(self, source: str, target: str) -> None:
        """One reason less for that; what waited is sent again after a while."""
        link = self.link(source, target)
        link.blocks -= 1
        assert link.blocks >= 0
        if link.blocks:
            return
        for pipe in self.pipes(source, target):
            if pipe.held:
                pause = RESEND_SECONDS * self._random.random()
                self._agenda.call_after(pause, partial(self._release, pipe))

    def _release(self, pipe: Pipe) -> None:
        if pipe.link.blocks:
            return
        held = list(pipe.held)
        pipe.held.clear()
        for data in held:
            self._dispatch(pipe, data)

    def swallow(self, source: str, target: str) -> None:
        """Everything that is sent vanishes, until as many calls of `spit`."""
        self.link(source, target).swallows += 1

    def spit(self, source: str, target: str) -> None:
        """One reason less for that; connections that lost something break."""
        link = self.link(source, target)
        link.swallows -= 1
        for pipe in self.pipes(source, target):
            if pipe.swallowed and not link.swallows:
                pipe.connection.reset()

    def pipes(self, source: str, target: str) -> list[Pipe]:
        """The open pipes from one machine to another, oldest first."""
        link = self.link(source, target)
        found = []
        for connection in self.connections:
            if connection.out.link is link:
                found.append(connection.out)
            elif connection.back.link is link:
                found.append(connection.back)
        return found

    def process_ended(self, process: Process) -> None:
        """A process is gone: the system closes what it had open."""
        self._close_listeners(process)
        for connection in self._connections_of(process):
            pipe, other = connection.out, connection.back
            if connection.near is not process:
                pipe, other = other, pipe
            other.is_shut = True
            self.end(pipe, is_lossy=bool(other.size) and not pipe.link.blocks)

    def machine_went_dark(self, process: Process) -> None:
        """A process is gone with its machine: nobody tells the others."""
        self._close_listeners(process)
        self.dark.add(process.machine.name)
        for connection in self._connections_of(process):
            connection.is_silent = True
            connection.out.swallowed = connection.back.swallowed = True

    def machine_came_back(self, name: str) -> None:
        """A machine runs again and knows nothing of its old connections."""
        self.dark.discard(name)
        for connection in list(self.connections):
            if connection.is_silent and name in connection.ends:
                self._agenda.call_after(BASE_SECONDS, connection.reset)

    def _close_listeners(self, process: Process) -> None:
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]

    def _connections_of(self, process: Process) -> list[Connection]:
        return [c for c in self.connections if process in (c.near, c.far)]
