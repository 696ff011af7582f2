"""Strangers at the port of a real node: half frames, silence, small frames that become large.

A stranger connects to the node's private port, which no rule covers, again and again while the
fault lasts. The cost to the node is measured with the node's other resources (`gauges`), under
settings that bound connections and held bytes (`nodes.SETTINGS`). The operator finds a node that
ended.

Left out: strangers that say Hello as a node, and answer nodes that connect back: see the simulated
world.

Invariants:
- When the fault is over, all its connections are closed.
"""

import resource
from collections import deque
from random import Random

import trio

from raftmq.chaos.real.run_state import RunState
from raftmq.chaos.workloads.strangers import anything, bombs, client_hello, endless_frame

CONNECTIONS_MAX = 2_000
"""Connections that one stranger keeps open; the oldest is closed for a new one."""
SILENT = (200, 600)
"""Least and most connections of one silent attack, opened one after the other."""
AT_ONCE = "most connections of a stranger at once"
"""Name of the count: the largest number of connections that one stranger had open."""
ATTACK_SECONDS_MAX = 2.0
PAUSE_SECONDS = 0.15
"""Mean pause between two attacks."""


class Stranger:
    """A stranger that attacks one node."""

    def __init__(self, state: RunState, node: int) -> None:
        self._state = state
        self._address = state.nodes.host(node), state.nodes.private_port(node)
        self._own = state.network.observer
        self._random = Random(state.random.getrandbits(64))
        self._open: deque[trio.SocketStream] = deque()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Proxies and clients of the harness share this process's descriptors.
        self._most = CONNECTIONS_MAX if files < 0 else min(CONNECTIONS_MAX, files // 4)

    async def run(self) -> None:
        """Attack until cancelled, then close all connections."""
        try:
            await self._attack()
        finally:
            while self._open:
                self._open.popleft().socket.close()

    async def _attack(self) -> None:
        attacks = (self._say_nothing, self._leave_half, self._inflate, self._babble)
        while True:
            with trio.move_on_after(ATTACK_SECONDS_MAX):
                try:
                    await self._random.choice(attacks)()
                except (OSError, trio.BrokenResourceError):
                    # The node is down, or rightly closed the connection.
                    self._state.counts["strangers that were turned away"] += 1
            await trio.sleep(self._random.expovariate(1 / PAUSE_SECONDS))

    async def _connect(self) -> trio.SocketStream:
        stream = await trio.open_tcp_stream(*self._address, local_address=self._own)
        self._open.append(stream)
        self._state.counts["connections of strangers"] += 1
        if len(self._open) > self._most:
            self._open.popleft().socket.close()
        counts = self._state.counts
        counts[AT_ONCE] = max(counts[AT_ONCE], len(self._open))
        return stream

    async def _say_nothing(self) -> None:
        for _ in range(self._random.randint(*SILENT)):
            await self._connect()

    async def _leave_half(self) -> None:
        for _ in range(self._random.randint(1, 8)):
            stream = await self._connect()
            await stream.send_all(client_hello())
            # A node at its limit of held bytes stops reading, and this send would never end.
            with trio.move_on_after(0.3):
                await stream.send_all(endless_frame())

    async def _inflate(self) -> None:
        stream = await self._connect()
        queue = self._random.choice((7, 1 << 16, 2 << 16))
        await stream.send_all(client_hello() + bombs(queue))

    async def _babble(self) -> None:
        stream = await self._connect()
        is_greeted = self._random.random() < 0.7
        await stream.send_all((client_hello() if is_greeted else b"") + anything(self._random))
