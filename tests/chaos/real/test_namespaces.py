"""Nodes in namespaces: the kernel's own TCP between them, and the rules for its packets."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from raftmq.chaos.campaign import CannotPlay, Plan
from raftmq.chaos.faults import Event, Schedule, World
from raftmq.chaos.faults.arena import CLIENTS
from raftmq.chaos.faults.partitions import between
from raftmq.chaos.real import run
from raftmq.chaos.real.network import namespaces
from raftmq.chaos.real.network.namespaces import Switch, why_no_namespaces
from raftmq.chaos.real.network.rules import Kind, Rules
from raftmq.checkers import Verdict

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces()),
]

PORT = 7000
QUICK, SLOW = 0.5, 15.0
ECHO = """
import socket, sys, threading
def serve(one):
    while data := one.recv(65536):
        one.sendall(data)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""


class Net:
    """Node 1 echoes in its namespace."""

    def __init__(self) -> None:
        self.rules = Rules()
        self.switch = Switch(self.rules, Random(1))
        self.streams: list[trio.SocketStream] = []
        self.echo: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.switch.place(1):
            self.echo = subprocess.Popen(
                [sys.executable, "-c", ECHO, self.switch.host(1), str(PORT)],
                stdout=subprocess.PIPE,
            )
        assert self.echo.stdout is not None
        assert self.echo.stdout.readline() == b"listens\n"

    def stop(self) -> None:
        if self.echo is not None:
            self.echo.kill()
            self.echo.communicate()

    async def call(self, own: str = "") -> trio.SocketStream:
        with trio.fail_after(SLOW):
            stream = await trio.open_tcp_stream(
                self.switch.host(1), PORT, local_address=own or self.client
            )
        self.streams.append(stream)
        await self.echoed(stream, b"hello")
        return stream

    @property
    def client(self) -> str:
        return self.switch.host(namespaces.CLIENT)

    async def echoed(self, stream: trio.SocketStream, data: bytes, seconds: float = SLOW) -> None:
        with trio.fail_after(seconds):
            await stream.send_all(data)
            heard = b""
            while len(heard) < len(data):
                more = bytes(await stream.receive_some(65_536))
                if not more:
                    raise trio.BrokenResourceError
                heard += more
        assert heard == data

    @property
    def struck(self) -> dict[str, int]:
        return self.switch.counts


@asynccontextmanager
async def net() -> AsyncIterator[Net]:
    made = Net()
    try:
        async with trio.open_nursery() as nursery:
            made.switch.add(1, public=PORT, private=PORT)
            await nursery.start(made.switch.run)
            made.start()
            yield made
            nursery.cancel_scope.cancel()
    finally:
        for stream in made.streams:
            stream.socket.close()
        made.stop()
        made.switch.shut()


FORTH, BACK = (CLIENTS, 1), (1, CLIENTS)


@pytest.mark.anyio
async def test_lost_packets_are_sent_again_and_nothing_is_missing() -> None:
    async with net() as made:
        stream = await made.call()
        made.rules.add(Kind.LOSS, None, 0.1)
        for _ in range(10):
            await made.echoed(stream, b"x" * 50_000)
        assert made.struck["packets: loss"] > 0
        assert made.struck["packets sent again by kernels"] > 0


@pytest.mark.anyio
async def test_cut_connection_stays_open_on_both_ends_and_goes_on_by_itself() -> None:
    async with net() as made:
        stream = await made.call()
        rule = made.rules.add(Kind.BLOCK, {BACK})
        with pytest.raises(trio.TooSlowError):
            await made.echoed(stream, b"half", QUICK)
        made.rules.remove(rule)
        with trio.fail_after(SLOW):
            assert bytes(await stream.receive_some()) == b"half"
        assert made.struck["timers of TCP that ran out"] > 0


@pytest.mark.anyio
async def test_tries_of_tcp_come_ever_later() -> None:
    async with net() as made:
        stream = await made.call()
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Until the last acknowledgement is through: the other end has nothing to repeat then.
        await trio.sleep(QUICK)
        rule = made.rules.add(Kind.BLOCK, {FORTH})
        await stream.send_all(b"late")
        await trio.sleep(4.0)
        # At once, a probe, and after 0.2, 0.6, 1.4 and 3 seconds; a busy machine is later.
        assert 3 <= rule.struck <= 8
        made.rules.remove(rule)
        with pytest.raises(trio.TooSlowError):
            await _heard(stream, QUICK)
        assert await _heard(stream, SLOW) == b"late"


async def _heard(stream: trio.SocketStream, seconds: float) -> bytes:
    with trio.fail_after(seconds):
        return bytes(await stream.receive_some())


@pytest.mark.anyio
async def test_broken_connection_breaks_on_both_ends_while_nothing_passes() -> None:
    async with net() as made:
        stream = await made.call()
        other = await made.call()
        made.rules.add(Kind.BLOCK, between([CLIENTS], [1]))
        assert made.switch.break_connections(set(between([CLIENTS], [1]))) == 2
        for one in (stream, other):
            with pytest.raises(trio.BrokenResourceError), trio.fail_after(SLOW):
                await one.receive_some()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Kind.DELAY, Kind.REORDER, Kind.DUPLICATE, Kind.RATE])
async def test_stream_is_whole_however_packets_come(kind: Kind) -> None:
    levels = {Kind.DELAY: 20.0, Kind.RATE: 500_000.0}
    async with net() as made:
        stream = await made.call()
        made.rules.add(kind, None, levels.get(kind, 0.3))
        sent = bytes(range(256)) * 1_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.echoed, stream, sent)
        assert made.struck.get("packets: late") or made.struck.get("packets: duplicate")


@pytest.mark.anyio
async def test_changed_bit_arrives_and_a_cut_leaves_the_beginning() -> None:
    async with net() as made:
        stream = await made.call()
        made.rules.add(Kind.CORRUPT, {FORTH})
        with pytest.raises(AssertionError):
            await made.echoed(stream, b"y" * 100)
        made.rules.add(Kind.CUT, {FORTH})
        with pytest.raises(trio.BrokenResourceError):
            await made.echoed(stream, b"z" * 100)
        assert (made.struck["packets: corrupt"], made.struck["packets: cut"]) == (1, 1)


@pytest.mark.anyio
async def test_machine_without_power_says_no_word_and_forgets_its_connections() -> None:
    async with net() as made:
        stream = await made.call()
        made.switch.unplug(1)
        made.stop()
        with pytest.raises(trio.TooSlowError):
            await made.echoed(stream, b"still there?", QUICK)
        made.start()
        await made.switch.open(1)
        # Its new kernel knows nothing of the connection, and says so at the next try.
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(SLOW):
            await stream.receive_some()
        await made.call()


@pytest.mark.anyio
async def test_observer_is_heard_whatever_rules_hold() -> None:
    async with net() as made:
        made.rules.add(Kind.BLOCK, None)
        await made.call(made.switch.observer)


def test_nothing_is_left_behind() -> None:
    before = set(Path("/sys/class/net").iterdir())
    switch = Switch(Rules(), Random(1))
    switch.add(1, public=1, private=1)
    assert set(Path("/sys/class/net").iterdir()) > before
    switch.shut()
    assert set(Path("/sys/class/net").iterdir()) == before


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_run_in_namespaces_is_valid_and_kernels_had_to_send_again(tmp_path: Path) -> None:
    kinds: Sequence[tuple[int, str, tuple[int, ...], int, float]] = (
        (500, "isolate-leader", (), 6500, 0),
        (1000, "delay", (1, 2, 3), 2000, 50),
        (7500, "loss", (1, 2, 3), 1500, 0.1),
        (9000, "mute", (2,), 1000, 0),
        (10_500, "kill", (3,), 0, 0),
    )
    schedule = Schedule(1, 16.0, tuple(Event(*event) for event in kinds))
    outcome = run(schedule, folder=tmp_path, is_overlay_wanted=False, network="namespaces")
    assert outcome.verdict is Verdict.VALID, str(outcome)
    counts = outcome.counts
    assert len(outcome.struck) == len(kinds)
    for name in ("packets: block", "packets: loss", "packets: late"):
        assert counts[name] > 0, dict(counts)
    assert counts["packets sent again by kernels"] > 10
    # Links wait five seconds for a peer that says nothing.
    assert counts["connections that kernels gave up"] > 0


def test_network_that_is_not_there_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "DEVICE", Path("/dev/net/none"))
    with pytest.raises(ValueError, match="load the module tun"):
        run(Schedule(1, 1.0, ()), network="namespaces")
    with pytest.raises(CannotPlay, match="load the module tun"):
        Plan(World.REAL, network="namespaces").play(Schedule(1, 1.0, ()))
    with pytest.raises(CannotPlay, match="only real processes"):
        Plan(World.SIM, network="namespaces").play(Schedule(1, 1.0, ()))


@pytest.fixture
def anyio_backend() -> str:
    return "trio"
