"""A node among half-open connections: `python -m bench.alone.half_open`.

    python -m bench.alone.half_open [--connections 10000] [--reopened 200] [--rounds 5]

One node under TLS, and a client that sends one message after the other. The client's rate alone and
its rate among the strangers are taken in turn, on the same node; the ratio is the median over the
rounds of neighbours. A process of its own holds the strangers' connections: a third says nothing, a
third has sent the first bytes of a handshake, a third sends those at a byte a second. As many as
`--reopened` a second are opened again where the node ended them: that many newcomers a second push
out others, at a node that has fewer places than there are strangers.
"""

import argparse
import multiprocessing
import resource
import selectors
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import trio

import raftmq
from bench.figures import write_json
from bench.machine import run_facts
from raftmq import testing

BEGUN = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a TLS handshake: a record of 512 bytes that never comes."""
ADDRESSES = 250
"""Addresses of loopback from which the strangers come: each has ports for a part of them."""
TURN_SECONDS = 0.1
TURNS = 10
"""Turns until each slow writer has written a byte."""
SETTLE_SECONDS = 1.0
"""From the opening of all until the client is measured, and from their end."""
OPENED_SECONDS_MAX = 60.0


class Strangers:
    """Half-open connections to one port.

    Args:
        port: the node's port on loopback.
        count: how many connections.
        reopened: how many of those that the node ended are opened again in a second, at most.
    """

    def __init__(self, port: int, count: int, reopened: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.count = min(count, hard - 100)
        self._port = port
        self._reopened = max(1, round(reopened * TURN_SECONDS))
        self._sockets: dict[int, socket.socket] = {}
        self._ended = selectors.DefaultSelector()
        self._turns = 0
        self._written: dict[int, int] = {}
        self._numbers = iter(range(sys.maxsize))

    def open_all(self) -> None:
        """Open as many as wanted; the node ends the first ones meanwhile, if it has no places."""
        while len(self._sockets) < self.count:
            self._open()

    def turn(self) -> None:
        """Write a byte on a part of the slow ones, and replace some that were ended."""
        self._turns += 1
        for key, _ in self._ended.select(0):
            # The node has a word for those that it ends, or none.
            self._end(key.data)
        for number in self._sockets:
            if number % 3 == 2 and number // 3 % TURNS == self._turns % TURNS:
                self._write_on(number)
        for _ in range(min(self._reopened, self.count - len(self._sockets))):
            self._open()

    def close(self) -> None:
        """End all connections."""
        for number in list(self._sockets):
            self._end(number)
        self._ended.close()

    def _open(self) -> None:
        number = next(self._numbers)
        sock = socket.socket()
        sock.bind((f"127.0.1.{1 + number % ADDRESSES}", 0))
        sock.connect(("127.0.0.1", self._port))
        sock.setblocking(False)
        self._sockets[number], self._written[number] = sock, 0
        self._ended.register(sock, selectors.EVENT_READ, number)
        if number % 3 == 1:
            with suppress(OSError):
                sock.send(BEGUN)

    def _write_on(self, number: int) -> None:
        at = self._written[number]
        if at < len(BEGUN):
            with suppress(OSError):
                self._written[number] += self._sockets[number].send(BEGUN[at : at + 1])

    def _end(self, number: int) -> None:
        sock = self._sockets.pop(number)
        self._ended.unregister(sock)
        sock.close()


def _hold(port: int, count: int, reopened: int, are_open: Event, is_over: Event) -> None:
    strangers = Strangers(port, count, reopened)
    strangers.open_all()
    are_open.set()
    while not is_over.wait(TURN_SECONDS):
        strangers.turn()
    strangers.close()


@asynccontextmanager
async def strangers(port: int, count: int, reopened: int) -> AsyncIterator[None]:
    """Half-open connections for the length of the block, from a process of their own."""
    context = multiprocessing.get_context("spawn")
    are_open, is_over = context.Event(), context.Event()
    process = context.Process(
        target=_hold, args=(port, count, reopened, are_open, is_over), daemon=True
    )
    process.start()
    try:
        opened = await trio.to_thread.run_sync(are_open.wait, OPENED_SECONDS_MAX)
        assert opened, f"{count} connections could not be opened"
        yield
    finally:
        is_over.set()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.join, 10.0)
        process.kill()


async def rate(producer: raftmq.Producer, seconds: float) -> float:
    """Messages a second that are sent and awaited one by one."""
    sent, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        await producer.send(bytes(200))
        sent += 1
    return sent / (time.perf_counter() - begun)


async def measure(count: int, reopened: int, rounds: int, seconds: float) -> list[list[float]]:
    """For each round the rates alone and among strangers."""
    found: list[list[float]] = []
    async with testing.cluster(1, secure=True) as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic("t", 1)
        port = nodes.public_port(1)
        async with mq.producer("t") as producer:
            await rate(producer, seconds)
            for _ in range(rounds):
                alone = await rate(producer, seconds)
                async with strangers(port, count, reopened):
                    await trio.sleep(SETTLE_SECONDS)
                    among = await rate(producer, seconds)
                found.append([alone, among])
                print(f"alone {alone:,.0f}/s, among {count} {among:,.0f}/s", file=sys.stderr)
                await trio.sleep(SETTLE_SECONDS)
    return found


def main(arguments: list[str]) -> int:
    """Measure, print the ratio, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.half_open")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--reopened", type=int, default=200, help="a second, where they ended")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    facts = run_facts()
    found = trio.run(
        measure, options.connections, options.reopened, options.rounds, options.seconds
    )
    ratio = statistics.median(among / alone for alone, among in found)
    print(f"among {options.connections} half-open connections: {ratio:.2f} of the rate alone")
    if options.json:
        document: dict[str, Any] = {
            "connections": options.connections,
            "reopened": options.reopened,
            "seconds": options.seconds,
            "rounds": [[round(each, 1) for each in rates] for rates in found],
            "ratio": round(ratio, 3),
        }
        write_json(options.json, facts, **document)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
