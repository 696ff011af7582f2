"""Background tasks: all live in the client's one task group, and none may bring it down.

`Supervisor._run` is the one place where any exception is caught. Such an exception is a bug of this
client. It does not end the application's task group: it makes the client unusable, and every
waiting or later call raises it.
"""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from raftmq.errors import RaftmqError

Job = Callable[[], Awaitable[object]]


class Supervisor:
    """Starts the background tasks of a client."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._parts: list[TaskScope] = []
        self.failure: RaftmqError | None = None
        """Why the client is no longer usable: it was closed, or has a bug; None: it is usable."""

    def task_scope(self, on_failure: Callable[[RaftmqError], None]) -> "TaskScope":
        """A set of tasks that end together. `on_failure` is called at most once, when the client
        becomes unusable; it must not raise."""
        part = TaskScope(self, on_failure)
        self._parts.append(part)
        return part

    def check(self) -> None:
        """Raise the error that ended the client, if it has ended."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Close the client: waiting calls end with the error."""
        self.end(RaftmqError("the client was closed"))

    def end(self, failure: RaftmqError) -> None:
        """Make the client unusable: waiting and later calls end with the error.

        Instead of `Unavailable`, a call that waits for a change which may have been done raises
        `OutcomeUnknown`.
        """
        if self.failure is None:
            self.failure = failure
            for part in list(self._parts):
                part.on_failure(failure)

    def _start(self, job: Job, part: "TaskScope") -> anyio.CancelScope:
        scope = anyio.CancelScope()
        self._tasks.start_soon(self._run, job, scope, part)
        return scope

    async def _run(self, job: Job, scope: anyio.CancelScope, part: "TaskScope") -> None:
        try:
            with scope:
                await job()
        except Exception as error:
            self._fail(error)
        finally:
            part.scopes.pop(scope, None)

    def _fail(self, error: Exception) -> None:
        failure = RaftmqError(f"the client failed inside, which is a bug: {error!r}")
        failure.__cause__ = error
        self.end(failure)

    def _close(self, part: "TaskScope") -> None:
        if part in self._parts:
            self._parts.remove(part)


class TaskScope:
    """The background tasks of one producer, consumer or router."""

    def __init__(self, supervisor: Supervisor, on_failure: Callable[[RaftmqError], None]) -> None:
        self._supervisor = supervisor
        self.on_failure = on_failure
        # A dict and not a set: the order of cancelling must not depend on addresses.
        self.scopes: dict[anyio.CancelScope, None] = {}
        self.is_closed = False
        """True once `cancel` was called; nothing starts after it."""

    def start(self, job: Job) -> anyio.CancelScope:
        """Run `job` in the background; cancel the scope to end it."""
        assert not self.is_closed
        scope = self._supervisor._start(job, self)
        self.scopes[scope] = None
        return scope

    def check(self) -> None:
        """Raise the error that ended the client, if it has ended."""
        self._supervisor.check()
        if self.is_closed:
            raise RaftmqError("the client, or this part of it, is closed")

    def end_client(self, failure: RaftmqError) -> None:
        """Make the whole client unusable: see `Supervisor.end`."""
        self._supervisor.end(failure)

    def cancel(self) -> None:
        """End all tasks of this scope, for ever."""
        self.is_closed = True
        self._supervisor._close(self)
        for scope in list(self.scopes):
            scope.cancel()
