"""A node in a thread of this process, with an event loop of its own.

It is the node that `raftmq serve` runs: same code, same disk, same fsyncs. The differences: clients
reach it through `wiring`, and a fault ends a thread, not a process, so `wait_ended` reports it:

    thread = NodeThread(settings, world)
    thread.start()
    await thread.wait_serving()         # raises what kept it from serving
    await thread.wait_ended()           # `thread.fault` says why

The thread tells through a socket pair of its own: a byte when the node serves, the end of the
stream when it is gone. That wakes an event loop of any kind, and costs nothing in between.

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

from raftmq.broker.node import Node, NodeStopped
from raftmq.broker.settings import Settings
from raftmq.errors import RaftmqError

from .wiring import End, NodeWorld


class NodeThread:
    """One node. Started once; `stop` or `kill` may be called from any thread."""

    def __init__(self, settings: Settings, world: NodeWorld) -> None:
        self.settings = settings
        """The node's."""
        self._node = Node(settings, world)
        self._world = world
        self._telling, heard = socket.socketpair()
        self._heard = End(heard)
        self._thread = threading.Thread(
            target=self._run, name=f"raftmq-node-{settings.node.id}", daemon=True
        )
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._is_wanted = True
        self._has_ended = False
        self.fault: BaseException | None = None
        """What ended the node that should not have; None: nothing did."""

    @property
    def is_running(self) -> bool:
        """True from `start` until the node is gone."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; it serves some time later."""
        self._thread.start()

    def stop(self) -> None:
        """Have the node hand over what it leads and end."""
        self._call(self._stop_serving)

    def kill(self) -> None:
        """End the node at once, as a crash does: what was acknowledged is on the disk."""
        self._call(self._scope.cancel)

    async def wait_serving(self) -> None:
        """Wait until clients are served; to be called once. Cancelling leaves it starting.

        Raises:
            BaseException: what kept it from serving: a `LogFault`, an `OSError`, a bug.
        """
        try:
            await self._heard.receive(1)
        except anyio.EndOfStream:
            await self._join()
            raise self.fault or RaftmqError("the node was stopped before it served") from None

    async def wait_ended(self) -> None:
        """Wait until the node is gone. Cancelling changes nothing."""
        while not self._has_ended:
            try:
                await self._heard.receive(1)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                await self._join()

    async def _join(self) -> None:
        # It has closed its end of the pair as the last thing it did.
        self._thread.join()
        self._has_ended = True
        await self._heard.aclose()

    def _call(self, what: Callable[[], None]) -> None:
        """Do something on the node's loop, or see that the node does not start."""
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
            # It waits for others, or reads its log, and leads nothing yet.
            self._scope.cancel()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            # Whatever it is, it must reach those who wait for the node.
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
                self._telling.send(b"s")


def _reason(error: BaseException) -> BaseException:
    """What a node ended with, without what wraps it."""
    while isinstance(error, BaseExceptionGroup):
        exceptions: tuple[BaseException, ...] = error.exceptions
        error = exceptions[0]
    if isinstance(error, NodeStopped) and error.__cause__ is not None:
        return _reason(error.__cause__)
    return error
