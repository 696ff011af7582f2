"""`raftmq.open`: a durable queue in the application's own process.

    async with raftmq.open("data/") as mq:
        await mq.admin.create_topic("orders")
        async with mq.producer("orders") as p:
            await p.send(b"...")

| part | where it runs |
|---|---|
| the node: one replica of everything, its log in the folder | a thread with an event loop |
| its disk | another thread, for writes that are not small |
| the client: the same as `raftmq.connect` gives | the application's event loop |

Acknowledged messages are fsynced, as on a server. A killed process loses none of them.

Invariants:
- A folder is open in one place at a time; opening it a second time fails and names the holder.
- Two embedded queues of a process share nothing; there are no globals.
- After the block the folder is free, and no thread of the queue is left.

Left out: more than one node (`raftmq.testing` has clusters), and turning a server's folder into an
embedded one: each names the cluster that it belongs to.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from raftmq.broker.cluster.identity import NoFolder, WrongFolder
from raftmq.broker.settings import Settings
from raftmq.client.address import Address
from raftmq.client.arguments import Unentered
from raftmq.client.client import Client
from raftmq.client.connecting import Connecting
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import Supervisor
from raftmq.client.world import ClientWorld
from raftmq.errors import RaftmqError, Reason, Rejected, Unavailable
from raftmq.inprocess import ClientWorld as LocalWorld
from raftmq.inprocess import NodeThread, NodeWorld, Switchboard
from raftmq.log.faults import FolderLocked

if TYPE_CHECKING:
    from raftmq.client.checked.verdict import Checked

    from .checked import Check

CLUSTER = "embedded"
"""The cluster's id in the folder."""
LOOK_SECONDS = 0.005
ADDRESS = Address("embedded", 7400)
"""The node's address on the switchboard; no other process can reach it."""

Tables = Mapping[str, Mapping[str, int | str]]
"""Tables of settings: `{"log": {"retention_ms": 0}}`."""


class Embedded(Client):
    """An embedded queue, with all methods of `Client`. Made by `open`."""

    def __init__(
        self,
        router: Router,
        supervisor: Supervisor,
        world: ClientWorld,
        *,
        node: NodeThread,
        is_checked: bool,
    ) -> None:
        super().__init__(router, supervisor, world)
        self._node = node
        self._check: Check | None = None
        if is_checked:
            # Loading the checkers' modules takes time, which an unchecked queue must not pay.
            from . import checked

            self._check = checked.Check(router, supervisor, world, node.settings.log)
            self._observe(self._check)
            self._claimed_producer_class = self._check.claimed_producer
            self.admin = self._check.admin
        tasks = supervisor.task_scope(lambda _: None)
        tasks.start(self._watch)

    async def settle(self, handles: Sequence[str], *arguments: Any, **options: Any) -> list[bool]:
        """See `Client.settle`."""
        if self._check is not None:
            # Noted before the call, which may take effect and raise all the same.
            await self._check.settled(handles)
        return await super().settle(handles, *arguments, **options)

    async def check(self) -> "Checked":
        """Judge all calls since the queue was opened with `check=True`.

        Every queue is read back and judged: about five seconds for 30,000 messages that were sent,
        popped and acknowledged. From a million messages sent, handed out and settled on, only what
        the client itself saw is judged, as by `Client.check`, and `counts` says so. The application
        may go on meanwhile. Cancelling leaves a thread that ends by itself.

        Raises:
            Inconsistent: a promise was broken: the text explains which, and how that is known.
            Rejected: `BAD_ARGUMENT`, the queue was not opened with `check=True`.
            Unavailable: the node has stopped.
        """
        return await super().check()

    async def _watch(self) -> None:
        """When the node ends, end all waiting calls at once rather than at their deadlines."""
        await self._node.wait_ended()
        self._supervisor.end(Unavailable(_stopped(self._node)))


class _Opening(Unentered, AbstractAsyncContextManager[Embedded]):
    """The context manager that `open` returns."""

    def __init__(self, settings: Settings, timeout: float, *, is_checked: bool) -> None:
        self._settings = settings
        self._is_checked = is_checked
        self._timeout = timeout
        self._node: NodeThread | None = None
        self._connecting: Connecting[Embedded] | None = None

    async def __aenter__(self) -> Embedded:
        if self._node is not None:
            raise RaftmqError("an embedded queue is opened once: call open() again")
        switchboard = Switchboard()
        node = self._node = NodeThread(self._settings, NodeWorld(switchboard))
        node.start()
        try:
            await self._wait_serving(node)
            world = LocalWorld(switchboard)
            router = Router(world, [ADDRESS], cluster=CLUSTER, seconds_max=self._timeout)
            make = partial(Embedded, node=node, is_checked=self._is_checked)
            self._connecting = Connecting(router, world, make)
            return await self._begin(self._connecting)
        except BaseException:
            # A failed opening must free the folder, which the node may have locked.
            await _end(node)
            raise

    async def _begin(self, connecting: Connecting[Embedded]) -> Embedded:
        client = await connecting.__aenter__()
        try:
            with anyio.fail_after(self._timeout):
                await _wait_founded(client)
            if client._check is not None:
                await client._check.begin()
        except BaseException as error:
            await connecting.__aexit__(type(error), error, None)
            if isinstance(error, TimeoutError):
                message = f"the queue was not founded within {self._timeout:g} s"
                raise Unavailable(message) from error
            raise
        return client

    async def _wait_serving(self, node: NodeThread) -> None:
        folder = self._settings.node.data
        try:
            with anyio.move_on_after(self._timeout):
                await node.wait_serving()
                return
        except FolderLocked as error:
            message = f"{error}: leave its block there, end that process, or give another folder"
            raise Unavailable(message) from error
        except NoFolder as error:
            what = "let this user make it and write to it, or give open() another"
            message = f"the folder {folder} cannot be used: {error.why}: {what}"
            raise Unavailable(message) from error
        except WrongFolder as error:
            raise Rejected(Reason.WRONG_CLUSTER, str(error)) from error
        except Exception as error:
            raise Unavailable(_stopped(node)) from error
        raise Unavailable(f"the queue in {folder} was not ready within {self._timeout:g} s")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._node is not None
        assert self._connecting is not None
        try:
            await self._connecting.__aexit__(kind, error, traceback)
        finally:
            await _end(self._node)
        if self._node.fault is None:
            return
        if error is None:
            raise Unavailable(_stopped(self._node)) from self._node.fault
        error.add_note(_stopped(self._node))


def open(  # noqa: A001  # what users call it
    data: str | os.PathLike[str],
    *,
    timeout: float = 30.0,
    check: bool = False,
    settings: Tables | None = None,
) -> AbstractAsyncContextManager[Embedded]:
    """`async with open("data/") as mq:` opens a durable queue in this process; trio or asyncio.

    The queue has the methods of `connect`'s client. Acknowledged messages are on the disk. Leaving,
    or cancelling, ends the node and takes about a tenth of a second; leave producers and consumers
    before.

    If the node must stop on a fault of its disk, calls raise `Unavailable` with the reason, or
    `OutcomeUnknown` if a call may have taken effect. Leaving the block raises `Unavailable`, too.

    Args:
        data: the folder; made if there is none. One block at a time may have it open.
        timeout: seconds; the default of every call, and for opening.
        check: keep a history for `Embedded.check`: up to 300 bytes of memory for each message sent,
            handed out or settled, and at most a million of these. Leaving the block raises
            `Inconsistent` if a breach was found by then.
        settings: tables that replace defaults of `raftmq serve`, as `{"log": {"retention_ms": 0}}`;
            all but the table `node`.

    Raises:
        Unavailable: the folder is in use, or cannot be read or written; the message names the
            remedy.
        Rejected: a setting does not exist or is out of range, or the folder has no name
            (`BAD_ARGUMENT`), or the folder is a server's (`WRONG_CLUSTER`).
    """
    if not __debug__:
        raise RaftmqError("a node's assertions guard its data: start Python without -O")
    if not os.fspath(data):
        message = "data= is empty: name a folder, as 'data/'; '.' is the current one"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    wanted = _settings_of(os.path.abspath(data), settings or {})
    return _Opening(wanted, timeout, is_checked=check)


def _settings_of(folder: str, given: Tables) -> Settings:
    if "node" in given:
        message = "settings= has no table 'node': an embedded queue is one node, with one group"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    place = {"host": ADDRESS.host, "port": ADDRESS.port}
    one = {"groups": 1, "replicas": 1, "peers": [{"id": 1, **place}]}
    own = {"id": 1, "cluster": CLUSTER, "data": folder, **place, **one}
    try:
        return msgspec.convert({**given, "node": own}, Settings).validate()
    except ValueError as error:
        raise Rejected(Reason.BAD_ARGUMENT, f"settings=: {error}") from error


async def _wait_founded(client: Client) -> None:
    """Wait until topics can be made: in a blank folder the node founds a cluster first."""
    while True:
        groups = (await client.admin.cluster()).groups
        if len(groups) > 1 and all(group.leader for group in groups):
            return
        await anyio.sleep(LOOK_SECONDS)


async def _end(node: NodeThread) -> None:
    """End the node and wait until it has ended, even if the caller is cancelled."""
    node.stop()
    with anyio.CancelScope(shield=True):
        await node.wait_ended()


def _stopped(node: NodeThread) -> str:
    fault = node.fault
    why = "its owner stopped it" if fault is None else f"{type(fault).__name__}: {fault}"
    return f"the embedded node has stopped: {why}"
