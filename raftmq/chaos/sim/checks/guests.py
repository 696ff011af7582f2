"""Guests: processes of a user that is known by tokens, which end after some seconds.

A guest connects to a node that is drawn, logs in, asks something from time to time, and stays. When
it is refused, it asks no more and waits for the end of its connection: that is for the node to see
to, and `rights` judges whether it does. An administrator gives out new tokens all the time.

Invariants:
- Guests draw from a generator of their own.
"""

from contextlib import suppress
from random import Random

import trio

from raftmq.access.tokens import ID_BYTES, SECRET_BYTES, digest_of, draw_token, parts_of
from raftmq.chaos.sim.clients import GUEST
from raftmq.chaos.sim.raw_client import raw_client
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.process import Machine, Process
from raftmq.client import Client
from raftmq.client.routing.requests import change_catalog
from raftmq.errors import ProtocolError, Rejected
from raftmq.machine.catalog.access import PutToken
from raftmq.wire.access import TOKEN, LogIn
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind, Metadata

GUESTS = 2
"""Processes."""
TOKENS_MAX = 4
"""Tokens that guests may still show; the oldest goes first."""
RENEW_SECONDS = 1.0
"""Between two new tokens."""
LIFETIMES_MS = (1000, 3000, 10_000, 60_000)
"""For how long a token is valid."""
PAUSE_SECONDS = 0.2
"""Between two questions of a guest, on average."""
STAY_SECONDS = (1.0, 15.0)
"""Shortest and longest stay on one connection."""


class Guests:
    """The guests of one run."""

    def __init__(self, state: RunState, seed: int) -> None:
        self._state = state
        self._random = Random(f"guests {seed}")
        self._tokens: list[str] = []

    def begin(self) -> None:
        """Come from now on, until the heal."""
        self._state.spawn(self._renew)
        for number in range(GUESTS):
            self._state.spawn(self._come, f"guest-{number + 1}")

    async def _renew(self) -> None:
        while not self._state.is_healing:
            draw = self._random.randbytes
            token = draw_token(draw(ID_BYTES), draw(SECRET_BYTES))
            until_ms = self._state.clients.now_ms() + self._random.choice(LIFETIMES_MS)
            id_, secret = parts_of(token)
            command = PutToken(GUEST, id_, digest_of(secret), until_ms)

            async def change(mq: Client, command: PutToken = command) -> None:
                # The user is gone for a while, or an earlier attempt was not in vain.
                with suppress(Rejected):
                    await change_catalog(mq._router, command)

            await self._state.clients.surely(change)
            self._tokens = [*self._tokens, token][-TOKENS_MAX:]
            await trio.sleep(RENEW_SECONDS)

    async def _come(self, name: str) -> None:
        state = self._state
        machine = Machine(name, state.agenda, MemoryFiles())
        while not state.is_healing:
            await trio.sleep(self._random.expovariate(1 / PAUSE_SECONDS))
            if not self._tokens:
                continue
            process = Process(machine, state.agenda, seed=self._random.getrandbits(32))
            host = state.host(self._random.choice(state.members()))
            token = self._random.choice(self._tokens)
            with (
                suppress(OSError, trio.BrokenResourceError, ProtocolError),
                trio.move_on_after(self._random.uniform(*STAY_SECONDS)),
            ):
                await self._stay(process, host, token)
            process.die()
            state.cluster.network.process_ended(process)

    async def _stay(self, process: Process, host: str, token: str) -> None:
        async with raw_client(self._state.cluster.network, process, host, "guest") as client:
            await client.send(FrameKind.LOG_IN, 1, LogIn(TOKEN, token))
            number = 1
            while (frames := await client.receive()) is not None:
                for frame in frames:
                    if _is_granted(frame, number):
                        await trio.sleep(self._random.expovariate(1 / PAUSE_SECONDS))
                        number += 1
                        await client.send(FrameKind.METADATA, number, Metadata(None))


def _is_granted(frame: Frame, number: int) -> bool:
    return frame.correlation == number and frame.kind != FrameKind.ERROR
