"""The fixture `history` of a test: a recorder that maps exceptions to outcomes, with its checks.

    with history.call(0, "send", key="orders", value=7, failed=(Refused,)) as call:
        call.ok(offset=queue.put(7))

A block that ends without a call of `ok`, `fail` or `unknown` is `ok`. An exception of `failed`
means that the call did not happen, an exception of `unknown` that its outcome is unknown; both are
swallowed, since a test under faults goes on. Any other exception is recorded as unknown and raised
again.

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
        """Record that it happened; `value` is the value read, by default the value written."""
        self._end()
        self._recorder.ok(self._operation, value=value, offset=offset)

    def ok_many(self, messages: Iterable[tuple[str | None, Value, int | None]]) -> None:
        """Record that it happened, to these messages: (key, value, offset), in order."""
        self._end()
        self._recorder.ok_many(self._operation, messages)

    def fail(self) -> None:
        """Record that it did not happen and never will."""
        self._end()
        self._recorder.fail(self._operation)

    def unknown(self) -> None:
        """Record that it may have happened, or may still."""
        self._end()
        self._recorder.unknown(self._operation)

    def _end(self) -> None:
        assert not self.is_over, "an operation ends once"
        self.is_over = True


class Journal(Recorder):
    """The value of the fixture `history`; may be used from any number of threads."""

    def __init__(self) -> None:
        """The recorder's clock starts at 0 now."""
        begin = time.monotonic_ns()
        self.clock: Callable[[], int] = lambda: time.monotonic_ns() - begin
        """Returns nanoseconds; a simulated world puts its own clock here."""
        self.checks: tuple[Check, ...] | None = None
        """The checks at the end of the test; None: all checkers that fit."""
        super().__init__(lambda: self.clock())

    def expect(self, *checks: Check) -> None:
        """Judge by these checks at the end instead of by all that fit; without any: not at all."""
        self.checks = checks

    def reports(self) -> list[Report]:
        """Judge the history until now; empty if nothing was recorded, or `expect` had no checks."""
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
            process: the caller; one operation of a process at a time.
            function: such as `send`, `poll`, `read`, `write`.
            key: queue, ordering key or register.
            value: the value written; unique.
            failed: exceptions after which it did not happen and never will; swallowed.
            unknown: exceptions after which the outcome is unknown; swallowed.
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
