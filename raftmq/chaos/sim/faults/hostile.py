"""Strangers at a node's port: they say Hello under any name, hold as much as they can, and answer
with bytes that no node can read, or with lies (`lies`).

A stranger needs no password, so all of this happens to a node on an open network. The network
measures the cost, outside the node's code: connections that the node holds open, bytes of
unfinished frames that the node took, and attempts to connect to addresses that a stranger named.

| name | limit |
|---|---|
| `B1` | bytes taken of unfinished frames: `requests_bytes_max`, a frame, and a read for each |
| `B2` | connections of strangers: half of the machine's descriptors |
| `B3` | no attempt to connect to a stranger's address a while after the last one left |

`run_state` checks, wherever a node breaks or gives up, that strangers end no node and that no word
of a stranger decides anything.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from raftmq.broker.settings import Limits
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.cluster import PORT
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.workloads.strangers import (
    FRAME_BYTES,
    MIB,
    anything,
    bombs,
    client_hello,
    endless_frame,
)
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.network import Stream
from raftmq.chaos.world.process import Machine, Process
from raftmq.errors import ProtocolError
from raftmq.machine.catalog.levels import LEVEL
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    Admin,
    ChangeNode,
    ErrorReply,
    FrameKind,
    Hello,
    Welcome,
)

from .lies import SAYS, lie

LIMITS = Limits(connection_bytes_max=2 * MIB, requests_bytes_max=8 * MIB)
"""Limits of nodes in runs with strangers: small, so that a few strangers reach them."""
DESCRIPTORS = 512
"""Most files and sockets of such a node."""
READ_BYTES = 512 * 1024
"""Bytes that a node may have read of a connection beyond its limits: one read, and the rest of an
earlier one."""
PAUSE_SECONDS = 0.15
"""Between two attacks of a stranger, on average."""
LOOK_SECONDS = 0.25
GUEST = 1000
"""Strangers who stay say that they are nodes with numbers from this one on."""
STAY_SECONDS = 30.0
"""Half of the strangers stay after their attacks, as guests of all nodes: for this time, or until
the heal. Nodes ask some questions less than three times a minute."""
LIE_SHARE = 0.7
"""Share of the answers that a node can read."""
GONE_SECONDS = 5.0
"""Time after a stranger's end from which on no node may try to connect to it."""

NO_HOSTS = ("a..b", "x" * 64, "é" * 70, "a\0b", "", "a b", "\ud7ff")
NO_PORTS = (-1, 0, 65_536, 2**31, 2**64 - 1)
SOMEWHERE = "nowhere"
"""A valid host name without a machine."""


class Stranger:
    """One process on a machine of its own, against one node."""

    def __init__(self, state: RunState, node: int) -> None:
        self._state = state
        self._random = state.random
        self._target = state.host(node)
        self._number = state.counts["strangers sent"]
        state.counts["strangers sent"] += 1
        self._host = f"stranger{self._number}"
        machine = Machine(self._host, state.agenda, MemoryFiles())
        self._process = Process(machine, state.agenda, seed=self._number)
        self._scope = trio.CancelScope()
        self._attacking = trio.CancelScope()
        self._streams: list[Stream] = []
        self._endless: list[Stream] = []

    def leave(self) -> None:
        """End the attacks: the stranger closes all connections and goes, or stays as a guest."""
        self._attacking.cancel()

    async def run(self) -> None:
        """Attack until `leave`, then stay as a guest in half of the cases."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, nursery)
                nursery.start_soon(self._look)
                with self._attacking:
                    await self._attack()
                if self._random.random() < 0.5:
                    await self._stay()
                self._scope.cancel()
        self._process.die()
        self._state.cluster.network.process_ended(self._process)
        self._state.agenda.call_after(GONE_SECONDS, self._look_for_attempts)

    async def _attack(self) -> None:
        attacks: tuple[Callable[[], Awaitable[None]], ...] = (
            self._greet, self._greet, self._leave_half, self._say_nothing, self._inflate,
            self._babble, self._mistype,
        )  # fmt: skip
        while True:
            with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(1):
                await self._random.choice(attacks)()
            await trio.sleep(self._random.expovariate(1 / PAUSE_SECONDS))

    async def _stay(self) -> None:
        """Be a guest of all nodes and nothing else, until the heal at the latest."""
        until, state = trio.current_time() + STAY_SECONDS, self._state
        for stream in self._streams:
            await stream.aclose()
        hello = Hello(
            PROTOCOL, "test", GUEST + self._number, "", "stranger", self._host, PORT, level=LEVEL
        )
        greeting = b"".join(encode_frame(FrameKind.HELLO, 0, pack(hello)))
        visits: dict[str, Stream] = {}
        while trio.current_time() < until and not state.is_healing:
            for host in map(state.host, state.members()):
                if host not in visits or not visits[host].is_open:
                    with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(0.1):
                        visits[host] = await self._open(greeting, to=host)
            await trio.sleep(LOOK_SECONDS)

    async def _open(self, *parts: bytes, to: str = "") -> Stream:
        network = self._state.cluster.network
        stream = await network.connect(self._process, to or self._target, PORT)
        assert isinstance(stream, Stream)
        self._streams.append(stream)
        self._state.agenda.effects["strangers that came"] += 1
        if parts:
            await stream.send_all(b"".join(parts))
        return stream

    def _hello(self) -> bytes:
        random = self._random
        hello = Hello(
            PROTOCOL,
            random.choice(("", "test", "test", "test", "other")),
            random.choice((1, 2, 3, 77, 78, 2**31, random.randrange(1, 10_000), -1)),
            f"{random.getrandbits(64):016x}",
            "stranger",
            random.choice((self._host, self._host, SOMEWHERE, *NO_HOSTS)),
            random.choice((PORT, PORT, PORT, *NO_PORTS)),
            level=LEVEL,
        )
        return b"".join(encode_frame(FrameKind.HELLO, 0, pack(hello)))

    async def _greet(self) -> None:
        """Say Hello as any node at any address."""
        await self._open(self._hello())

    async def _leave_half(self) -> None:
        """Begin a large frame on some connections, and end none."""
        for _ in range(self._random.randint(1, 4)):
            stream = await self._open(client_hello())
            self._endless.append(stream)
            with trio.move_on_after(0.2):
                await stream.send_all(endless_frame())

    async def _say_nothing(self) -> None:
        """Open many connections, and say nothing on them."""
        for _ in range(self._random.randint(30, 150)):
            await self._open()

    async def _inflate(self) -> None:
        """Send small frames with large contents, for queues that exist and that do not."""
        queue = self._random.choice((7, 1 << 16, 2 << 16))
        await self._open(client_hello(), bombs(queue))

    async def _babble(self) -> None:
        """Send random bytes."""
        is_greeted = self._random.random() < 0.7
        await self._open(client_hello() if is_greeted else b"", anything(self._random))

    async def _mistype(self) -> None:
        """Ask for a node at an invalid address."""
        host, port = self._random.choice([(host, PORT) for host in NO_HOSTS] + [("ok", 2**64 - 1)])
        change = pack(ChangeNode("add", 60, host, port))
        parts = encode_frame(FrameKind.CHANGE_NODE, 1, change)
        parts += encode_frame(FrameKind.ADMIN, 2, pack(Admin(["put_node", [60, host, port]])))
        await self._open(client_hello(), *parts)

    async def _listen(self, nursery: trio.Nursery) -> None:
        """Answer nodes that connect back."""
        listener = await self._state.cluster.network.listen(self._process, PORT)
        while True:
            nursery.start_soon(self._answer, await listener.accept())

    async def _answer(self, stream: trio.abc.Stream) -> None:
        """Answer each frame."""
        parser = FrameParser(64 * MIB)
        with suppress(OSError, trio.BrokenResourceError, ProtocolError):
            while data := await stream.receive_some():
                parser.feed(bytes(data))
                for frame in parser.frames():
                    await stream.send_all(b"".join(self._reply(frame)))

    def _reply(self, frame: Frame) -> list[bytes]:
        """Welcome to a Hello, and a lie to a question, or what no node can read."""
        random = self._random
        if frame.kind == FrameKind.HELLO:
            folder = random.choice(("", "x", SAYS))
            welcome = Welcome(PROTOCOL, "test", 77, folder, "stranger", MIB, MIB, level=LEVEL)
            parts = encode_frame(FrameKind.HELLO | REPLY, 0, pack(welcome))
            if random.random() < 0.3:
                go_away = pack(ErrorReply("superseded", "go away"))
                parts += encode_frame(FrameKind.ERROR, 0, go_away)
            return parts
        told = lie(random, frame, host=self._host) if random.random() < LIE_SHARE else None
        if told is not None:
            header, body = told
            return encode_frame(frame.kind | REPLY, frame.correlation, header, [body])
        header = random.choice((b"", b"\xff", b"\x81\x01", random.randbytes(9)))
        kind = random.choice((frame.kind | REPLY, FrameKind.ERROR, 99))
        return encode_frame(kind, frame.correlation, header)

    async def _look(self) -> None:
        """Measure what the node holds, from outside."""
        state, seen = self._state, set[str]()
        while True:
            # A machine without power holds nothing, though its connections look open. A paused
            # process accepts nothing, while its operating system still completes connections.
            held = [each for each in self._streams if each.is_open and not each.is_orphan]
            held = [each for each in held if each.is_held]
            endless = [stream for stream in held if stream in self._endless]
            taken = sum(stream.taken_bytes for stream in endless)
            bound = LIMITS.requests_bytes_max + FRAME_BYTES + READ_BYTES * len(endless)
            for name, is_broken, text in (
                ("B1", taken > bound, f"{taken} bytes of unfinished frames; the limit is {bound}"),
                ("B2", len(held) > DESCRIPTORS // 2, f"{len(held)} connections of one stranger"),
            ):
                if is_broken and name not in seen:
                    seen.add(name)
                    text = f"{self._target} holds {text}"
                    state.violations.append(Violation(name, state.watch.now_ms, text))
            await trio.sleep(LOOK_SECONDS)

    def _look_for_attempts(self) -> None:
        """From now on, no node may look for this stranger."""
        if any(process.is_frozen for process in self._state.cluster.processes.values()):
            # A paused node hears only later that the stranger has gone.
            self._state.agenda.call_after(GONE_SECONDS, self._look_for_attempts)
            return
        self._state.cluster.network.must_not_be_sought.add(self._host)
