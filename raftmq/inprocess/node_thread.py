"""A node in a thread of this process, with an event loop of its own.

The node is that of `raftmq serve`: same code, same disk, same fsyncs. Connections differ
(`wiring`), and a fault ends a thread instead of a process, which the owner of the thread learns:

    thread = NodeThread(settings, world)
    thread.start()
    await thread.wait_serving()         # raises the fault that kept it from serving
    await thread.wait_ended()           # `thread.fault` says why

The thread reports through a socket pair: a byte when the node serves, the end of the stream when
the node has ended. That wakes an event loop of any kind, and costs nothing in between.

Invariants:
- Once `wait_ended` returns, the data folder's lock is free and no thread of the node is left.
- The interpreter's switch interval belongs to the application and is not changed here.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import anyio
import trio

from raftmq.broker.cluster.first_election import hasten
from raftmq.broker.node import Node, NodeStopped
from raftmq.broker.settings import Settings
from raftmq.client.socket_stream import SocketStream
from raftmq.errors import RaftmqError

from .wiring import NodeWorld


class NodeThread:
    """One node. Started once; `stop` or `kill` may be called from any thread."""

    def __init__(self, settings: Settings, world: NodeWorld) -> None:
        self.settings = settings
        """The node's settings."""
        self._node = Node(settings, world)
        self._world = world
        self._telling, heard = socket.socketpair()
        self._heard = SocketStream(heard)
        self._thread = threading.Thread(
            target=self._run, name=f"raftmq-node-{settings.node.id}", daemon=True
        )
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._is_wanted = True
        self._has_ended = False
        self.fault: BaseException | None = None
        """The fault that ended the node; None: the node runs, or ended as asked."""

    @property
    def is_running(self) -> bool:
        """True from `start` until the node has ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; the node serves some time later."""
        self._thread.start()

    def stop(self) -> None:
        """Have the node hand over the groups that it leads, and end."""
        self._call(self._stop_serving)

    def kill(self) -> None:
        """End the node at once, as a crash does: acknowledged messages are on the disk."""
        self._call(self._scope.cancel)

    async def wait_serving(self) -> None:
        """Wait until the node serves; to be called once. Cancelling leaves the node starting.

        Raises:
            BaseException: the reason why it does not serve: a `LogFault`, an `OSError`, a bug.
        """
        try:
            await self._heard.receive(1)
        except anyio.EndOfStream:
            await self._join()
            raise self.fault or RaftmqError("the node was stopped before it served") from None

    async def wait_ended(self) -> None:
        """Wait until the node has ended. Cancelling changes nothing."""
        while not self._has_ended:
            try:
                await self._heard.receive(1)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                await self._join()

    async def _join(self) -> None:
        # The thread closes its end of the pair as its last act.
        self._thread.join()
        self._has_ended = True
        await self._heard.aclose()

    def _call(self, what: Callable[[], None]) -> None:
        """Call a function on the node's loop, or keep the node from starting."""
        with self._lock:
            self._is_wanted = False
            if self._token is None:
                return
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(what)

    def _stop_serving(self) -> None:
        if self._node.is_serving:
            self._node.stop()
        else:
            # The node waits for others, or reads its log, and leads no group yet.
            self._scope.cancel()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            # Every error must reach the tasks that wait for the node.
            self.fault = _reason(error)
        finally:
            self._world.release()
            with suppress(OSError):
                # Closing does not end the stream while a forked child holds the descriptor, too.
                self._telling.shutdown(socket.SHUT_RDWR)
            self._telling.close()

    async def _main(self) -> None:
        with self._lock:
            if not self._is_wanted:
                return
            self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._node.run)
                self._node.start_soon(hasten, self._node)
                self._telling.send(b"s")


def _reason(error: BaseException) -> BaseException:
    """The error that ended a node, without the groups around it."""
    while isinstance(error, BaseExceptionGroup):
        exceptions: tuple[BaseException, ...] = error.exceptions
        error = exceptions[0]
    if isinstance(error, NodeStopped) and error.__cause__ is not None:
        return _reason(error.__cause__)
    return error
