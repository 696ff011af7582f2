"""The network of a simulated world: streams of bytes between machines, and faults of these streams.

A connection is two *pipes*, one for each direction. A pipe follows a *link*; each ordered pair of
machines has one link, which says how bytes travel there now:

| state of a link | what happens |
|---|---|
| (as built) | bytes arrive in order, after about a quarter of a millisecond |
| blocked | bytes wait for the first retransmission after its end; connections are not opened |
| delay, heavy tail | everything takes longer, as drawn for each piece |
| lag | a share of the pieces, on some pipe, is held up, so that other connections overtake |
| loss | a share of the pieces is sent again after a while, or breaks the connection |
| rate | a piece takes its size divided by the rate |
| swallows | everything is taken and nothing arrives; broken at the end of it |

So the promise of TCP holds: bytes come in order, each once, or the connection breaks. A process
that dies closes its connections; a machine that loses power falls silent, and answers with a reset
when it is back and gets bytes of the old connection. An attempt to connect to a machine without a
listener is refused at once; one to a machine that is dead or out of reach never gets an answer.

The network promises no more than TCP (`retransmission`): after an outage of D seconds the next
retransmission may be D seconds away, 120 at most; and an end whose bytes are not acknowledged gives
up after the *user timeout* that its socket was given, or after a quarter of an hour. That end gives
up alone: the other end of such a half-open connection gets a reset when it sends.

Names are resolved as the system does: some texts raise errors that are no `OSError`.

Invariants:
- A pipe holds at most its window of bytes that its reader has not taken; then the sender waits.

Left out: datagrams; the acknowledgements' own bytes.

Sources: the partitions of Jepsen and VOPR; RFC 6298 (retransmission), RFC 5482 (user timeout).
"""

import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

import trio

from raftmq.chaos.world.agenda import Agenda
from raftmq.chaos.world.link import BASE_SECONDS, RESEND_SECONDS, Link, resolve, retransmission
from raftmq.chaos.world.listener import Address, Listener
from raftmq.chaos.world.pipe import WINDOW_BYTES, Connection, Pipe
from raftmq.chaos.world.process import Process
from raftmq.tls.names import CertificateName

SYN_SECONDS = 1.0
"""Opening a connection is tried again after this long, then after twice as long, and so on."""
RECORD_BYTES_MAX = 1 << 20
"""Bytes of a connection's direction that are kept for a replay."""

_TRACE = struct.Struct("<dII")


class Stream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, network: "Network", process: Process, out: Pipe, back: Pipe) -> None:
        self._network = network
        self._process = process
        self._out = out
        self._back = back
        self._connection = out.connection
        self._is_closed = False

    def give_up_after(self, seconds: float) -> None:
        """Set the socket's user timeout, with a keep-alive: see `raftmq.broker.world.Lasting`."""
        self._out.timeout = seconds
        self._network.expect(self._out)

    @property
    def is_open(self) -> bool:
        """Neither end closed the connection, and it did not break."""
        return not (self._is_closed or self._is_broken or self._back.is_ended)

    @property
    def is_held(self) -> bool:
        """For the end that opened the connection: the other end took it out of the backlog, and did
        not close it."""
        return self._connection.is_accepted and not self._out.is_shut

    @property
    def is_orphan(self) -> bool:
        """The process at the other end has ended, though this one may not know yet."""
        connection = self._connection
        other = connection.far if self._process is connection.near else connection.near
        return other is not None and other.is_dead

    @property
    def taken_bytes(self) -> int:
        """Bytes sent that the other end has taken."""
        return self._out.sent - self._out.size

    @property
    def _is_broken(self) -> bool:
        return self._connection.is_broken or self._out.has_given_up

    def send_nowait(self, data: bytes) -> int:
        """Send the bytes that fit without waiting, and return their number."""
        if self._is_closed or self._is_broken or self._process.is_dead:
            return 0
        piece = data[: self._out.window - self._out.size]
        if piece:
            self._network.send(self._out, piece)
        return len(piece)

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._is_broken:
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
        while pipe.size >= pipe.window and not self._is_broken:
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
            if self._is_broken:
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
        """As trio says; bytes that were sent still arrive."""
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


class SecuredStream(Stream):
    """One end of a connection that is under TLS: it knows who is at the other end. The bytes are
    those that the two ends write, as nothing in this world could read others."""

    async def secure(self) -> frozenset[CertificateName]:
        """See `raftmq.broker.world.Secured`."""
        await trio.lowlevel.checkpoint()
        connection = self._connection
        other = connection.far if self._process is connection.near else connection.near
        return frozenset() if other is None else other.names


class Network:
    """All machines' connections."""

    def __init__(self, agenda: Agenda, random: Random) -> None:
        self._agenda = agenda
        self.effects = agenda.effects
        """By kind: effects of faults on the world so far."""
        self._random = random
        self._links: dict[tuple[str, str], Link] = {}
        self._serial = count()
        self.listeners: dict[Address, Listener] = {}
        """By address."""
        self.connections: dict[Connection, None] = {}
        """All open connections, oldest first."""
        self.dark: set[str] = set()
        """Machines without power: nothing answers there."""
        self.lost_names: Counter[str] = Counter()
        """By name that cannot be looked up: the number of faults; "": no name can be."""
        self.must_not_be_sought: set[str] = set()
        """Machines that are gone, and to which no process has a reason to connect."""
        self.sought: Counter[str] = Counter()
        """By machine of `must_not_be_sought`: attempts to connect to it."""
        self.is_under_tls = False
        """True: connections are under TLS, by the names of the processes."""
        self.is_recording = False
        """True: the beginning of each connection is kept, to be played again."""
        self.on_open: Callable[[Connection], None] = lambda _: None
        """Called with each new connection."""
        self.bytes_sent = 0
        """Bytes sent on all connections."""

    def link(self, source: str, target: str) -> Link:
        """How bytes travel between two machines."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target)
        return link

    def links(self) -> list[Link]:
        """All links that were ever used."""
        return list(self._links.values())

    # Calls of worlds.

    async def listen(self, process: Process, port: int) -> Listener:
        """Take an address."""
        address = process.machine.name, port
        if address in self.listeners:
            raise OSError(f"{address[0]}:{port} is in use")
        listener = self.listeners[address] = Listener(process, partial(self.forget, address))
        self.dark.discard(process.machine.name)
        return listener

    def forget(self, address: Address, listener: Listener) -> None:
        """A listener gives up its address."""
        if self.listeners.get(address) is listener:
            del self.listeners[address]

    async def connect(
        self, process: Process, host: str, port: int, *, window_bytes: int = WINDOW_BYTES
    ) -> trio.abc.Stream:
        """Open a connection; waits for ever if nothing answers. Raises as the system's resolver."""
        source = process.machine.name
        if host in self.must_not_be_sought:
            self.sought[host] += 1
        await trio.sleep(2 * BASE_SECONDS * (0.5 + self._random.random()))
        resolve(host, port)
        if self.lost_names[host] or self.lost_names[""]:
            self.effects["names without an address"] += 1
            raise OSError(f"[Errno -3] Temporary failure in name resolution: {host}")
        there, back = self.link(source, host), self.link(host, source)
        pause = SYN_SECONDS
        while there.blocks or back.blocks or host in self.dark:
            self.effects["pieces held"] += bool(there.blocks or back.blocks)
            await trio.sleep(pause)
            pause *= 2
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        return self._open(process, listener, host, window_bytes)

    def _open(self, process: Process, listener: Listener, host: str, window: int) -> Stream:
        source = process.machine.name
        connection = Connection(
            process, host, next(self._serial),
            there=self.link(source, host), home=self.link(host, source), forget=self._broke,
        )  # fmt: skip
        connection.far = listener.process
        connection.out.window = connection.back.window = window
        kind = SecuredStream if self.is_under_tls else Stream
        far = kind(self, listener.process, connection.back, connection.out)
        try:
            listener.send.send_nowait((connection, far))
        except trio.WouldBlock:
            raise ConnectionRefusedError(f"{host} accepts nothing") from None
        self.connections[connection] = None
        self.on_open(connection)
        return kind(self, process, connection.out, connection.back)

    def _broke(self, connection: Connection) -> None:
        self.effects["connections reset"] += 1
        self.connections.pop(connection, None)

    # Calls of streams.

    def send(self, pipe: Pipe, data: bytes) -> None:
        """Bytes leave a process."""
        if self.is_recording and len(pipe.record) < RECORD_BYTES_MAX:
            pipe.record += data
        if pipe.tap is not None:
            data = pipe.tap(data)
            if not data:
                return
        pipe.size += len(data)
        pipe.sent += len(data)
        self.bytes_sent += len(data)
        self._dispatch(pipe, data)

    def expect(self, pipe: Pipe) -> None:
        """If the bytes of an end are not heard, have the end give up when its timeout is over."""
        if pipe.is_heard or pipe.connection.is_broken or pipe.has_given_up:
            return
        since = self._agenda.now if pipe.unheard_since is None else pipe.unheard_since
        self._agenda.call_at(since + pipe.timeout, partial(self._expire, pipe, since))

    def _expire(self, pipe: Pipe, since: float) -> None:
        unheard = pipe.unheard_since
        if pipe.is_heard and pipe.back.has_given_up:
            pipe.connection.reset()  # a keep-alive met a machine that knows nothing of it
        elif not pipe.is_heard or (unheard is not None and unheard <= since):
            self._give_up(pipe)

    def _give_up(self, pipe: Pipe) -> None:
        """The sending end learns that the connection broke; the other end does not."""
        if pipe.connection.is_broken or pipe.has_given_up:
            return
        if pipe.back.has_given_up:
            pipe.connection.reset()
            return
        pipe.has_given_up = True
        pipe.held.clear()
        pipe.wake()
        pipe.back.wake()

    def end(self, pipe: Pipe, *, is_lossy: bool) -> None:
        """One end was closed; if it had unread bytes, the connection breaks."""
        connection = pipe.connection
        if connection.is_broken or pipe.has_given_up:
            return
        if is_lossy:
            self._agenda.call_after(BASE_SECONDS, connection.reset)
        else:
            self._dispatch(pipe, None)

    def _dispatch(self, pipe: Pipe, data: bytes | None) -> None:
        link, agenda = pipe.link, self._agenda
        link.pieces += 1
        if pipe.unheard_since is None and not pipe.is_heard:
            pipe.unheard_since = agenda.now
            self.expect(pipe)
        when = agenda.now + BASE_SECONDS
        if pipe.held or not link.is_plain:
            changed = self._befall(pipe, link, data)
            if changed is None:
                return
            data, when = changed
        if when <= pipe.arrives:
            # A piece must not overtake an earlier piece of its pipe, and may arrive with it.
            when = pipe.arrives
        pipe.arrives = when
        agenda.call_at(when, lambda: self._arrive(pipe, data))

    def _befall(
        self, pipe: Pipe, link: Link, data: bytes | None
    ) -> tuple[bytes | None, float] | None:
        """A piece on a link with faults, and when it arrives; None: it does not arrive now."""
        if pipe.connection.is_silent or link.swallows:
            pipe.swallowed = True
            self.effects["pieces swallowed"] += bool(link.swallows)
            return None
        if link.blocks or pipe.held:
            self.effects["pieces held"] += 1
            pipe.held.append(data)
            return None
        if data is not None and link.strikes:
            self.effects["pieces struck"] += 1
            data = link.strikes.popleft()(data, pipe.connection.reset)
        self.effects.update(link.burdens)
        seconds = link.delay(self._random, 0 if data is None else len(data))
        if seconds is None:
            self._agenda.call_after(RESEND_SECONDS, pipe.connection.reset)
            return None
        return data, max(self._agenda.now, pipe.arrives * bool(link.rate)) + seconds

    def _arrive(self, pipe: Pipe, data: bytes | None) -> None:
        connection = pipe.connection
        if connection.is_broken or connection.is_silent:
            return
        if pipe.back.has_given_up:
            # That end does not know the connection: it answers with a reset, if that gets through.
            if pipe.is_heard:
                self._agenda.call_after(BASE_SECONDS, connection.reset)
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

    # Faults.

    def block(self, source: str, target: str) -> None:
        """Let no bytes travel from `source` to `target` until `unblock` was called as often."""
        self.link(source, target).blocks += 1
        self._expect_between(source, target)

    def unblock(self, source: str, target: str) -> None:
        """Undo one `block`; pieces that waited are sent with the next retransmission."""
        link = self.link(source, target)
        link.blocks -= 1
        assert link.blocks >= 0
        if not link.blocks:
            self._send_again(source, target)

    def age(self, source: str, target: str, seconds: float) -> None:
        """Let a blocked link seem blocked for this long already to the systems of both ends: pieces
        that wait are far into their back-off."""
        for pipe in (*self.pipes(source, target), *self.pipes(target, source)):
            now = self._agenda.now if pipe.unheard_since is None else pipe.unheard_since
            pipe.unheard_since = min(now, self._agenda.now - seconds)
            self.expect(pipe)

    def _expect_between(self, source: str, target: str) -> None:
        for pipe in (*self.pipes(source, target), *self.pipes(target, source)):
            self.expect(pipe)

    def _send_again(self, source: str, target: str) -> None:
        """Bytes may be heard again: plan the next retransmission, which shows whether they are."""
        for pipe in (*self.pipes(source, target), *self.pipes(target, source)):
            if pipe.unheard_since is not None and pipe.is_heard:
                when = retransmission(pipe.unheard_since, self._agenda.now)
                self._agenda.call_at(when, partial(self._retransmit, pipe))

    def _retransmit(self, pipe: Pipe) -> None:
        if not pipe.is_heard or pipe.has_given_up or pipe.connection.is_broken:
            return
        pipe.unheard_since = None
        # The other end gave up, or bytes are missing: TCP can only reset the connection.
        if pipe.back.has_given_up or pipe.swallowed:
            self._agenda.call_after(BASE_SECONDS, pipe.connection.reset)
        held = list(pipe.held)
        pipe.held.clear()
        for data in held:
            self._dispatch(pipe, data)

    def swallow(self, source: str, target: str) -> None:
        """Let all bytes from `source` to `target` vanish until `spit` was called as often."""
        self.link(source, target).swallows += 1
        self._expect_between(source, target)

    def spit(self, source: str, target: str) -> None:
        """Undo one `swallow`; connections that lost bytes break."""
        link = self.link(source, target)
        link.swallows -= 1
        for pipe in self.pipes(source, target):
            if pipe.swallowed and not link.swallows:
                pipe.connection.reset()
        if not link.swallows:
            self._send_again(source, target)

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
            # A reset would not pass a blocked link: there the end of the stream waits instead.
            self.end(pipe, is_lossy=bool(other.size) and not pipe.link.blocks)

    def machine_went_dark(self, process: Process) -> None:
        """A process is gone with its machine: the other ends of its connections do not learn it."""
        self._close_listeners(process)
        self.dark.add(process.machine.name)
        for connection in self._connections_of(process):
            connection.is_silent = True
            connection.out.swallowed = connection.back.swallowed = True
            self.expect(connection.out)
            self.expect(connection.back)

    def machine_came_back(self, name: str) -> None:
        """A machine runs again and does not know its old connections: it answers bytes that arrive
        on them with a reset."""
        self.dark.discard(name)
        links: dict[tuple[str, str], None] = {}
        for connection in list(self.connections):
            if connection.is_silent and name in connection.ends:
                # The end that lost power is gone; the other end may not know for a long time.
                lost = connection.back if connection.ends[1] == name else connection.out
                connection.is_silent = False
                lost.has_given_up = True
                links[connection.ends] = None
        # Once for a link: once for each of 150 connections between two machines is 22,500 calls.
        for ends in links:
            self._send_again(*ends)

    def _close_listeners(self, process: Process) -> None:
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]

    def _connections_of(self, process: Process) -> list[Connection]:
        return [c for c in self.connections if process in (c.near, c.far)]
