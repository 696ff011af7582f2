"""The `history` of a test: a recorder that knows how a call ended, and what the test expects.

    with history.call(0, "send", key="orders", value=7, failed=(Refused,)) as call:
        call.ok(offset=queue.put(7))

A call that ends without a word is `ok`. One of the exceptions in `failed` says that it did not
happen, one of those in `unknown` that nobody knows; both are swallowed, since a test under faults
goes on. Any other exception is recorded as unknown and goes on its way.

Sources: Jepsen's `with-errors`, which maps exceptions to :fail and :info in one place.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from raftmq.checkers import Report, judge

from .history import History, Recorder, Value

Check = Callable[[History], Report]
Errors = tuple[type[BaseException], ...]


class Call:
    """An operation under way."""

    def __init__(self, recorder: Recorder, operation: int) -> None:
        self._recorder = recorder
        self._operation = operation
        self.is_over = False

    def ok(self, *, value: Value = None, offset: int | None = None) -> None:
        """It happened; `value` is what was read, by default what was written."""
        self._end()
        self._recorder.ok(self._operation, value=value, offset=offset)

    def ok_many(self, messages: Iterable[tuple[str | None, Value, int | None]]) -> None:
        """It happened, to these messages: (key, value, offset), in the order they came."""
        self._end()
        self._recorder.ok_many(self._operation, messages)

    def fail(self) -> None:
        """It did not happen and never will."""
        self._end()
        self._recorder.fail(self._operation)

    def unknown(self) -> None:
        """It may have happened, or may still."""
        self._end()
        self._recorder.unknown(self._operation)

    def _end(self) -> None:
        assert not self.is_over, "an operation ends once"
        self.is_over = True


class Journal(Recorder):
    """What the fixture `history` gives a test; may be used from any number of threads."""

    def __init__(self) -> None:
        """Time counts from now on."""
        begin = time.monotonic_ns()
        self.clock: Callable[[], int] = lambda: time.monotonic_ns() - begin
        """Nanoseconds; a simulated world puts its own clock here."""
        self.checks: tuple[Check, ...] | None = None
        """What judges it at the end; None: all that fit."""
        super().__init__(lambda: self.clock())

    def expect(self, *checks: Check) -> None:
        """At the end judge by these instead of by all that fit; none: do not judge."""
        self.checks = checks

    def reports(self) -> list[Report]:
        """Judge what was recorded until now; empty if nothing was, or nothing shall be judged."""
        history = self.history()
        if not len(history) or self.checks == ():
            return []
        if self.checks is None:
            return judge(history)
        return [check(history) for check in self.checks]

    @contextmanager
    def call(
        self,
        process: int,
        function: str,
        *,
        key: str | None = None,
        value: Value = None,
        failed: Errors = (),
        unknown: Errors = (),
    ) -> Iterator[Call]:
        """Record an operation around a call of the system under test.

        Args:
            process: who calls; one operation of a process at a time.
            function: such as `send`, `poll`, `read`, `write`.
            key: queue, ordering key or register.
            value: what is written; unique.
            failed: exceptions that say it did not happen and never will; swallowed.
            unknown: exceptions that say nobody knows; swallowed.
        """
        call = Call(self, self.invoke(process, function, key, value))
        try:
            yield call
        except failed:
            if not call.is_over:
                call.fail()
        except unknown:
            if not call.is_over:
                call.unknown()
        except BaseException:
            if not call.is_over:
                call.unknown()
            raise
        else:
            if not call.is_over:
                call.ok()
