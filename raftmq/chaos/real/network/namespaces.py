"""The network between real processes, below TCP: each node in a network namespace of its own.

Every namespace has one TUN device. The switch holds the other ends of the devices and carries
packets between them as `rules` say. The kernels retransmit lost packets, with growing pauses. A
connection stays open on both ends while its packets are lost; when a machine loses its power, the
other machines keep their ends of its connections until they send something.

    node 1: 198.18.7.1   ─┐
    node 2: 198.18.7.2   ─┤ Switch ├─ the harness: clients 198.18.7.254,
    node 3: 198.18.7.3   ─┘           the observer, which no rule covers, 198.18.7.253

| rule | here |
|---|---|
| block, swallow, loss | packets are gone |
| delay, rate | packets come later, in order; `rate` drops packets that would be over 1 s late |
| reorder, duplicate | packets overtake each other; packets come twice |
| corrupt | a bit of the stream changes, and the checksums do not show it |
| cut | a packet loses its end, and both ends get a reset of the connection |
| drop | nothing: packets have no kinds |

Needs Linux, root and /dev/net/tun. Devices and namespaces end with the descriptors that the harness
holds, so a harness that was killed leaves nothing behind.

Left out: faults that need frames: `drop-kind`, and repeated frames.

Sources: Mininet, for namespaces as machines.
"""

import ctypes
import errno
import fcntl
import heapq
import math
import os
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TypeVar

import trio

from raftmq.chaos.faults.arena import CLIENTS

from .packets import ACK, FIN, RST, SYN, Ends, Segment, cut_short, parse, reset, with_bit_flipped
from .rules import Flow, Kind, Rules
from .trust import Trust

DEVICE = Path("/dev/net/tun")
CLONE_NEWNET = 0x4000_0000
TUNSETIFF, SIOCSIFADDR, SIOCSIFNETMASK = 0x4004_54CA, 0x8916, 0x891C
SIOCSIFFLAGS, SIOCSIFMTU, SIOCSIFTXQLEN = 0x8914, 0x8922, 0x8943
IFF_TUN, IFF_NO_PI, IFF_UP = 1, 0x1000, 1
PACKET_BYTES_MAX = 9_000
WAITING_PACKETS_MAX = 5_000
"""Packets that a kernel queues until we read them."""
PACKETS_AT_ONCE = 64
LATE_SECONDS_MAX = 1.0
"""Longest delay on a slow link, which drops packets that would come later."""
CLIENT, OBSERVER = 254, 253
"""Last byte of the addresses of the harness."""
MASK = "255.255.255.0"
KERNEL_COUNTS = {
    "RetransSegs": "packets sent again by kernels",
    "TCPTimeouts": "timers of TCP that ran out",
    "TCPAbortOnTimeout": "connections that kernels gave up",
}
T = TypeVar("T")


def why_no_namespaces() -> str:
    """Why nodes cannot have namespaces on this machine, and a remedy; empty: they can."""
    if sys.platform != "linux":
        return "network namespaces are of Linux"
    if not DEVICE.exists():
        return f"there is no {DEVICE}: load the module tun, or run the container with --device"
    try:
        os.close(_in_new_namespace(lambda: _device("chaos", "198.18.0.1")[0]))
    except OSError as error:
        return f"a network namespace cannot be made ({error.strerror}): it takes root"
    return ""


class Switch:
    """The network of a run: a `raftmq.chaos.real.network.protocol.Network`."""

    is_proxy = False

    def __init__(self, rules: Rules, random: Random) -> None:
        self.rules = rules
        self.frames = 0
        self.broken = 0
        self.trust: Trust | None = None
        self._random = random
        self._prefix = _free_prefix()
        self._net = bytes(map(int, self._prefix.split(".")))
        self._devices: dict[int, int] = {}
        self._namespaces: dict[int, int] = {}
        self._unplugged: set[int] = set()
        self._connections: dict[Ends, int] = {}  # Number that each direction's target waits for.
        self._over: set[Ends] = set()
        self._due: dict[Flow, float] = {}
        self._later: list[tuple[float, int, int, bytes]] = []
        self._sooner = trio.Event()
        self._struck: Counter[str] = Counter()
        self._nursery: trio.Nursery | None = None
        self._outside, name = _device("", self._address(CLIENT))
        # A device gets a second address through an alias.
        _configure(f"{name}:1", self._address(OBSERVER))

    @property
    def observer(self) -> str:
        """The address of connections that no rule covers."""
        return self._address(OBSERVER)

    @property
    def counts(self) -> dict[str, int]:
        """Effects of the rules on packets, and the kernels' counts of TCP."""
        told: Counter[str] = Counter()
        for namespace in self._namespaces.values():
            told.update(_in_namespace(namespace, _kernel_counts))
        return {f"packets: {name}": count for name, count in sorted(self._struck.items())} | told

    def host(self, node: int) -> str:
        """A node's address."""
        return self._address(node)

    def add(self, node: int, *, public: int, private: int) -> None:
        """Add a node, with a namespace of its own; its public port is its private one."""
        assert public == private, "nothing stands between them here"
        if node not in self._namespaces:
            self._plug_in(node)

    @contextmanager
    def place(self, node: int) -> Iterator[None]:
        """Processes that this thread starts in this context are in the node's namespace."""
        home = _own_namespace()
        try:
            _enter(self._namespaces[node])
            yield
        finally:
            _enter(home)
            os.close(home)

    async def open(self, node: int) -> None:
        """A node's process runs: its machine is on."""
        self._unplugged.discard(node)

    def close(self, node: int) -> None:
        """Nothing: the kernel of an ended process closes its connections."""

    def unplug(self, node: int) -> None:
        """Turn a node's machine off until `open`: its kernel forgets all connections, and sends
        nothing."""
        self._unplugged.add(node)
        device = self._devices.pop(node)
        # Before the close: the number of a closed descriptor may be reused at once.
        trio.lowlevel.notify_closing(device)
        for descriptor in (device, self._namespaces.pop(node)):
            os.close(descriptor)
        self._plug_in(node)

    def break_connections(self, flows: set[Flow]) -> int:
        """Reset the open connections of these flows at both ends; returns their number."""
        hit = [ends for ends in self._connections if self._flow(ends) in flows]
        broken = {frozenset((ends, ends.back)) for ends in hit}
        for ends, _ in broken:
            self._end(ends)
        return len(broken)

    def repeat_old(self, flow: Flow, count: int) -> int:
        """0: the switch does not see frames."""
        return 0

    def resend(self, to: int) -> bool:
        """False: the switch does not see frames."""
        return False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry packets until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for node, device in self._devices.items():
                self._nursery.start_soon(self._carry, node, device)
            self._nursery.start_soon(self._carry, CLIENTS, self._outside)
            self._nursery.start_soon(self._deliver_late)
            task_status.started()

    def shut(self) -> None:
        """Close all devices and namespaces, and with them all connections."""
        for descriptor in (self._outside, *self._devices.values(), *self._namespaces.values()):
            os.close(descriptor)

    # -- inside ----------------------------------------------------------------------------------

    def _address(self, last: int) -> str:
        assert 0 < last <= CLIENT, f"there is no address for {last}"
        return f"{self._prefix}.{last}"

    def _plug_in(self, node: int) -> None:
        def make() -> tuple[int, int]:
            _configure("lo", "127.0.0.1")
            return _device("wire", self.host(node))[0], _own_namespace()

        self._devices[node], self._namespaces[node] = _in_new_namespace(make)
        if self._nursery is not None:
            self._nursery.start_soon(self._carry, node, self._devices[node])

    async def _carry(self, party: int, device: int) -> None:
        """Route every packet that one party sends."""
        with suppress(trio.ClosedResourceError):
            while True:
                await trio.lowlevel.wait_readable(device)
                for _ in range(PACKETS_AT_ONCE):
                    try:
                        packet = os.read(device, PACKET_BYTES_MAX)
                    except BlockingIOError:
                        break
                    # Kernels also send IPv6 and multicast packets, which belong to no flow.
                    if packet[0] >> 4 == 4 and packet[16:19] == self._net:
                        self._route(party, packet)

    def _route(self, party: int, packet: bytes) -> None:
        source, target = packet[15], packet[19]
        to = CLIENTS if target in (CLIENT, OBSERVER) else target
        self.frames += 1
        if party in self._unplugged or to in self._unplugged:
            self._struck["of a machine that is off"] += 1
        elif OBSERVER in (source, target):
            self._write(to, packet)
        else:
            segment = parse(packet)
            if segment is None or self._is_open(party, segment):
                self._judge((party, to), packet, segment)

    def _judge(self, flow: Flow, packet: bytes, segment: Segment | None) -> None:
        """Apply the rules to a packet: drop, change, delay or deliver it."""
        if not self.rules.rules:
            self._deliver(flow, 0.0, packet)
            return
        if self._is_lost(flow):
            return
        if segment is not None and segment.body_bytes:
            if self.rules.strikes_once(Kind.CORRUPT, flow):
                self._struck["corrupt"] += 1
                at = self._random.randrange(segment.body_at, len(packet))
                packet = with_bit_flipped(packet, at, self._random.randrange(8))
            elif self.rules.strikes_once(Kind.CUT, flow):
                self._struck["cut"] += 1
                length = segment.body_at + self._random.randrange(segment.body_bytes)
                self._write(flow[1], cut_short(packet, length))
                # The target waits for the byte after the piece, and ignores a reset of another.
                kept = segment.number + length - segment.body_at
                self._connections[segment.ends] = kept & 0xFFFF_FFFF
                self._end(segment.ends)
                return
        late = self._late_seconds(flow, len(packet))
        if late > LATE_SECONDS_MAX and any(self.rules.of(Kind.RATE, flow)):
            self._struck["rate"] += 1
            return
        self._deliver(flow, late, packet)
        if self.rules.strikes(Kind.DUPLICATE, flow, self._random):
            self._struck["duplicate"] += 1
            self._deliver(flow, late, packet)

    def _is_lost(self, flow: Flow) -> bool:
        for kind in (Kind.BLOCK, Kind.SWALLOW):
            for rule in self.rules.of(kind, flow):
                rule.struck += 1
                self._struck[kind.value] += 1
                return True
        is_lost = self.rules.strikes(Kind.LOSS, flow, self._random)
        self._struck["loss"] += is_lost
        return is_lost

    def _late_seconds(self, flow: Flow, size: int) -> float:
        now = trio.current_time()
        late = self.rules.delay_seconds(flow, self._random)
        if any(self.rules.of(Kind.REORDER, flow)):
            return late
        rate = self.rules.rate_bytes(flow)
        due = max(now + late, self._due.get(flow, 0.0)) + (size / rate if rate else 0.0)
        # A dropped packet takes no time of the link.
        if not rate or due - now <= LATE_SECONDS_MAX:
            self._due[flow] = due
        return due - now

    def _deliver(self, flow: Flow, late: float, packet: bytes) -> None:
        if late <= 0.0:
            self._write(flow[1], packet)
            return
        self._struck["late"] += 1
        heapq.heappush(self._later, (trio.current_time() + late, self.frames, flow[1], packet))
        self._sooner.set()

    async def _deliver_late(self) -> None:
        while True:
            self._sooner = trio.Event()
            now = trio.current_time()
            while self._later and self._later[0][0] <= now:
                _, _, to, packet = heapq.heappop(self._later)
                if to not in self._unplugged:
                    self._write(to, packet)
            with trio.move_on_at(self._later[0][0] if self._later else math.inf):
                await self._sooner.wait()

    def _write(self, to: int, packet: bytes) -> None:
        device = self._outside if to == CLIENTS else self._devices.get(to, -1)
        # A machine that is gone gets no packet, as on a wire.
        with suppress(OSError):
            os.write(device, packet)

    # Connections: as much of TCP's state as a reset needs

    def _is_open(self, party: int, segment: Segment) -> bool:
        """Note which byte the speaker waits for. False: the connection was reset before, and the
        speaker gets another reset."""
        ends, flags = segment.ends, segment.flags
        if ends in self._over:
            # The ports are in use for a new connection.
            if flags & SYN:
                self._over -= {ends, ends.back}
            else:
                if not flags & RST:
                    self._write(party, reset(ends.back, segment.wanted))
                return False
        if flags & (RST | FIN):
            self._connections.pop(ends, None)
            self._connections.pop(ends.back, None)
        elif flags & ACK:
            self._connections[ends.back] = segment.wanted
        return True

    def _end(self, one: Ends) -> None:
        """Reset a connection at both ends, each with the number that the end waits for. An end that
        still speaks gets another reset from `_is_open`."""
        for ends in (one, one.back):
            number = self._connections.pop(ends, None)
            if number is not None:
                self._write(self._party(ends.target), reset(ends, number))
            self._over.add(ends)
        self.broken += 1

    def _party(self, address: bytes) -> int:
        return CLIENTS if address[3] in (CLIENT, OBSERVER) else address[3]

    def _flow(self, ends: Ends) -> Flow:
        return self._party(ends.source), self._party(ends.target)


_libc = ctypes.CDLL(None, use_errno=True)


def _called(result: int) -> None:
    """Raises `OSError` if a call of C failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter(namespace: int) -> None:
    """Move this thread, and the processes that it starts, into a namespace."""
    _called(_libc.setns(namespace, CLONE_NEWNET))


def _own_namespace() -> int:
    """A descriptor of this thread's namespace."""
    return os.open(
        f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC
    )


def _in_thread(action: Callable[[], T]) -> T:
    """Run an action in a new thread, which may change its namespace."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(action).result()


def _in_new_namespace(action: Callable[[], T]) -> T:
    """Run an action in a new namespace, which has no devices but `lo`."""

    def act() -> T:
        _called(_libc.unshare(CLONE_NEWNET))
        return action()

    return _in_thread(act)


def _in_namespace(namespace: int, action: Callable[[], T]) -> T:
    """Run an action in a namespace."""

    def act() -> T:
        _enter(namespace)
        return action()

    return _in_thread(act)


def _device(name: str, address: str) -> tuple[int, str]:
    """A new device of this thread's namespace, with an address: (our end's descriptor, name)."""
    device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        wanted = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
        made = fcntl.ioctl(device, TUNSETIFF, wanted)[:16].rstrip(b"\0").decode()
        _configure(made, address)
    except OSError:
        os.close(device)
        raise
    return device, made


def _configure(name: str, address: str) -> None:
    """Give a device an address, and set it up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:

        def order(number: int, argument: bytes) -> None:
            fcntl.ioctl(asked, number, struct.pack("16s24s", name.encode(), argument))

        def address_of(text: str) -> bytes:
            return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(text))

        order(SIOCSIFADDR, address_of(address))
        order(SIOCSIFNETMASK, address_of(MASK))
        if ":" not in name and name != "lo":
            order(SIOCSIFMTU, struct.pack("=i", PACKET_BYTES_MAX))
            order(SIOCSIFTXQLEN, struct.pack("=i", WAITING_PACKETS_MAX))
        order(SIOCSIFFLAGS, struct.pack("=H", IFF_UP))


def _free_prefix() -> str:
    """The first three bytes of addresses that are unused on this machine, from the range reserved
    for benchmarks (RFC 2544). Raises `OSError` if all are taken."""
    for turn in range(512):
        number = (os.getpid() + turn) % 512
        prefix = f"198.{18 + number // 256}.{number % 256}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                asked.connect((f"{prefix}.1", 9))
            except OSError:
                return prefix  # The machine has no route to the address.
            if not asked.getsockname()[0].startswith(f"{prefix}."):
                return prefix
    raise OSError(errno.EADDRINUSE, "all networks from 198.18.0.0 to 198.19.255.0 are taken")


def _kernel_counts() -> dict[str, int]:
    """TCP's counts of retransmissions and timeouts, in this thread's namespace."""
    found: dict[str, str] = {}
    place = f"/proc/self/task/{threading.get_native_id()}/net"
    for file in ("snmp", "netstat"):
        lines = Path(place, file).read_text().splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            found |= dict(zip(names.split(), values.split(), strict=True))
    return {told: int(found[name]) for name, told in KERNEL_COUNTS.items()}
