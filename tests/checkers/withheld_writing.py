"""Short ways to write down histories of delayed messages and transactions."""

from raftmq.checkers import History, Recorder
from raftmq.checkers.history import Value
from raftmq.checkers.pop.withheld_calls import Cancelling, begin_found

from .pop_writing import Time

QUEUE = "t/0"
EPOCH = 1_000_000
"""Leaders' clocks, in milliseconds, when the recorder's clock begins."""


class WithheldScript:
    """A recorder of operations that are over as soon as they begin, a millisecond each."""

    def __init__(self) -> None:
        self.time = Time()
        self.recorder = Recorder(self.time)

    def delayed(self, value: Value, delay: int = 100, *, offset: int | None = None) -> None:
        due = EPOCH + self.time.now + delay
        operation = self.recorder.invoke(1, "delay", QUEUE, (value, due, delay))
        self.recorder.ok(operation, offset=offset)
        self.time.now += 1

    def cancelled(self, value: Value, result: int | None = Cancelling.TAKEN_BACK) -> None:
        operation = self.recorder.invoke(2, "cancel", QUEUE, value)
        if result is None:
            self.recorder.unknown(operation)
        else:
            self.recorder.ok(operation, value=(value, result))
        self.time.now += 1

    def half(self, value: Value, transaction: Value = "x") -> None:
        operation = self.recorder.invoke(3, "half", QUEUE, (value, transaction))
        self.recorder.ok(operation)
        self.time.now += 1

    def ended(
        self, transaction: Value = "x", *, commit: bool = True, outcome: bool | None = None
    ) -> None:
        """Answered with the requested outcome, unless `outcome` names another."""
        told = int(commit if outcome is None else outcome)
        operation = self.ending(transaction, commit=commit)
        self.recorder.ok(operation, value=(transaction, told))
        self.time.now += 1

    def ending(self, transaction: Value = "x", *, commit: bool = True) -> int:
        return self.recorder.invoke(4, "commit" if commit else "rollback", None, transaction)

    def popped(self, value: Value, offset: int) -> None:
        operation = self.recorder.invoke(5, "pop", "g")
        self.recorder.ok_many(operation, [(f"g {QUEUE}", (value, 1 << 20, 1, 1000), offset)])
        self.time.now += 1

    def opened(self, *transactions: Value) -> None:
        operation = self.recorder.invoke(6, "open")
        self.recorder.ok_many(operation, [(None, one, None) for one in transactions])

    def found(self, *rows: tuple[Value, int, int]) -> None:
        """Each a message, its offset, and its leader's stamp by the recorder's clock."""
        self.time.now = max([self.time.now, *(stamp for _, _, stamp in rows)])
        operation = begin_found(self.recorder, 7)
        self.recorder.ok_many(
            operation, [(QUEUE, (value, EPOCH + stamp), offset) for value, offset, stamp in rows]
        )

    def history(self) -> History:
        return self.recorder.history()
