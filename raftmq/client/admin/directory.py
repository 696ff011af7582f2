"""The calls about the directory: who is connected, what is sent, and leases.

    async with mq.directory.lease("nightly report") as lease:
        while lease.is_held: ...                  one client at a time, if all goes well

A lease is kept by short questions to the node that gave it. The client counts on it for
`HOLD_SECONDS` from the time at which it sent the newest question that was confirmed.

Invariants:
- After `is_held` was False it stays False: a lease that was lost is taken again by another `lease`.
"""

from contextlib import suppress
from math import inf
from types import TracebackType
from typing import Literal, NamedTuple, Self

import anyio

from raftmq.client.arguments import require, require_seconds, require_text, typed
from raftmq.client.routing.connection import Connection, Lost
from raftmq.client.routing.refusals import RETRIED, exception_of, refusal_of
from raftmq.client.routing.requests import ask_for_pages, ask_leader
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import Supervisor, TaskScope
from raftmq.errors import RaftmqError, Unavailable
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.wire.codec import pack, unpack
from raftmq.wire.directory import (
    HOLD_SECONDS,
    LEASE_CHARACTERS_MAX,
    AskLease,
    ClientView,
    FindClients,
    FindDirectoryNodes,
    FoundClients,
    FoundDirectoryNodes,
    LeaseAnswer,
)
from raftmq.wire.messages import FrameKind

KEEP_MS = 1_000
"""How long a node waits for the loss of a lease before it answers that there is none."""
TAKE_MS = 20_000
"""How long a node waits for a lease before it answers that it has none."""
Act = Literal["take", "keep", "release"]
_LATE_SECONDS = 5.0
"""Seconds beyond `TAKE_MS` after which an answer is given up: the node may hang."""


class Clients(NamedTuple):
    """The clients of a cluster, as one node knows them."""

    clients: list[ClientView]
    """By id."""
    whole_ms: int
    """For how long the directory has been whole at that node, in milliseconds; 0: it is being built
    again, and clients are missing."""


@typed()
class Directory:
    """Who is connected where, the rates of the last minute, and leases. Made by
    `Client.directory`.

    All of it is soft state: a node that restarts empties it, and it fills again within seconds. No
    guarantee rests on it. `docs/directory.md` says what it holds.
    """

    def __init__(self, router: Router, supervisor: Supervisor) -> None:
        self._router = router
        self._supervisor = supervisor
        # Names of the leases that this client has or wants.
        self._leases: set[str] = set()

    async def clients(
        self, *, topic: str | None = None, group: str | None = None, timeout: float | None = None
    ) -> Clients:
        """The clients that have producers or consumers.

        Args:
            topic: only clients that do something with this topic.
            group: only clients that consume as members of this group.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`, the cluster keeps no directory.
            Unavailable: no node answered in time.
        """
        found: list[ClientView] = []
        whole_ms = 0
        async for page in ask_for_pages(self._router, FindClients(), FoundClients, timeout=timeout):
            whole_ms = page.whole_ms
            found += [each for each in page.clients if _does(each, topic, group)]
        return Clients(found, whole_ms)

    async def nodes(self, *, timeout: float | None = None) -> FoundDirectoryNodes:
        """The nodes that keep the directory, each with the rates of the topics whose queues it
        leads. Raises as `clients`."""
        return await ask_leader(
            self._router, FindDirectoryNodes(), FoundDirectoryNodes, timeout=timeout
        )

    def lease(self, name: str, *, timeout: float | None = None) -> "Lease":
        """A lease, to be used as `async with`: for a job that one process does at a time.

        Args:
            name: the lease's name, up to 200 characters.
            timeout: seconds to wait for it when the block is entered; None: as long as it takes.
        """
        require_text(name, "name")
        require(0 < len(name) <= LEASE_CHARACTERS_MAX, "a lease's name has 1 to 200 characters")
        if timeout is not None:
            require_seconds(timeout, "timeout")
        return Lease(name, timeout, self._router, self._supervisor, self._leases)


def _does(client: ClientView, topic: str | None, group: str | None) -> bool:
    return any(
        (topic is None or use.topic == topic) and (group is None or use.group == group)
        for use in client.uses
    )


class Lease:
    """One lease, in its `async with`. Made by `Directory.lease`.

    Two clients have it at once only if the clocks of nodes differ by more than 5 s, or if the
    directory loses state without noticing, which pysyncobj cannot exclude. A job that must not be
    done twice uses a claim (`Client.consumer(mode="pop")`, `claim`) or checks its own work.
    """

    def __init__(
        self,
        name: str,
        timeout: float | None,
        router: Router,
        supervisor: Supervisor,
        leases: set[str],
    ) -> None:
        """`leases` has the names of those that the client has or wants."""
        self._leases = leases
        self._router = router
        self._supervisor = supervisor
        self._timeout = timeout
        self._tasks: TaskScope | None = None
        self._connection: Connection | None = None
        self._until = -inf
        self._lost = anyio.Event()
        self.name = name
        """The lease's name."""

    async def __aenter__(self) -> Self:
        """Wait for the lease. Cancelling gives up.

        Raises:
            Unavailable: others had it for all of the timeout, or no node answered.
            Rejected: `DENIED`: leases are for users with `admin` on the cluster; `BAD_ARGUMENT`:
                the cluster keeps no directory, or this client has or wants the lease already.
        """
        if self._tasks is not None:
            raise RaftmqError("a lease is used once: make another one by `lease()`")
        # The node knows connections, and takes two blocks of one client for one holder.
        is_new = self.name not in self._leases
        require(is_new, f"this client has or wants the lease {self.name!r} already: use one block")
        self._leases.add(self.name)
        self._tasks = self._supervisor.task_scope(self._end)
        try:
            with anyio.fail_after(self._timeout):
                await self._take()
        except TimeoutError:
            await self._release()
            text = (
                f"the lease {self.name!r} did not come within {self._timeout:g} s: another client"
            )
            why = "holds it, a node has just started, or the nodes have no majority"
            raise Unavailable(f"{text} {why}") from None
        except BaseException:
            await self._release()
            raise
        self._tasks.start(self._keep)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._release()

    @property
    def is_held(self) -> bool:
        """Whether the client has the lease now."""
        return not self._lost.is_set() and anyio.current_time() < self._until

    async def wait_lost(self) -> None:
        """Wait until the lease is lost."""
        await self._lost.wait()

    # Requests

    async def _take(self) -> None:
        attempt = turn = 0
        while True:
            connection = self._router.any_open(turn)
            # Another node each time: one that is cut off from the others gets no leases.
            turn += 1
            self._connection = connection or await self._router.leader(SYSTEM_GROUP)
            answer: LeaseAnswer | None = None
            with anyio.move_on_after(TAKE_MS / 1000 + _LATE_SECONDS):
                answer = await self._ask("take", TAKE_MS)
            # The answer may be old: the lease counts from a question that is answered at once.
            if answer is not None and answer.is_held and await self._confirm(0):
                return
            if answer is None:
                await anyio.sleep(self._router.delay(attempt))
                attempt += 1

    async def _keep(self) -> None:
        failures = 0
        # A right that was taken away ends the lease, not the client.
        with suppress(RaftmqError):
            while self.is_held:
                # A broken connection cannot keep the lease, which counts until its time is over.
                with anyio.move_on_after(self._until - anyio.current_time()):
                    failures = 0 if await self._confirm(KEEP_MS) else failures + 1
                    if failures:
                        await anyio.sleep(self._router.delay(failures))
        self._end(RaftmqError("the lease was lost"))

    async def _confirm(self, wait_ms: int) -> bool:
        """Ask whether the lease is held; False: there was no answer, or it is not."""
        sent = anyio.current_time()
        answer = await self._ask("keep", wait_ms)
        if answer is None:
            return False
        self._until = sent + HOLD_SECONDS if answer.is_held else -inf
        return answer.is_held

    async def _ask(self, act: Act, wait_ms: int) -> LeaseAnswer | None:
        """The answer of the node; None: none came."""
        assert self._connection is not None
        request = pack(AskLease(self.name, act, wait_ms))
        answer = await self._connection.call(FrameKind.LEASE, request, is_patient=True)
        if isinstance(answer, Lost):
            return None
        refusal = refusal_of(answer)
        if refusal is None:
            return unpack(LeaseAnswer, answer.header)
        if refusal.code in RETRIED:
            return None
        raise exception_of(refusal)

    def _end(self, _error: RaftmqError) -> None:
        self._until = -inf
        self._lost.set()

    async def _release(self) -> None:
        self._end(RaftmqError("the lease was released"))
        if self._tasks is not None:
            self._tasks.cancel()
        if self._connection is not None and self._connection.is_open:
            # A node that does not hear it frees the lease when the connection has been silent.
            with anyio.move_on_after(1.0, shield=True), suppress(RaftmqError):
                await self._ask("release", 0)
        self._leases.discard(self.name)
