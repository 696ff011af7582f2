"""Two recorders of one call: the tape's, for the checkers of histories, and the witness's.

The tape has an end (`ROWS_MAX`); the witness, which judges less, has none.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from raftmq.client.pop.leases import Part
from raftmq.client.pop.prefetch_buffer import Taken
from raftmq.client.pop.tally import Settlement
from raftmq.client.produce.producer_batch import Entry
from raftmq.client.produce.receipts import Outgoing
from raftmq.client.recorders import (
    ConsumerRecorder,
    PopRecorder,
    ProducerRecorder,
    TransactionRecorder,
)
from raftmq.client.slices import Slice
from raftmq.pop.actions import Action


class ProducerPair:
    """See `ProducerRecorder`."""

    def __init__(self, *both: ProducerRecorder) -> None:
        self._both = both

    def sent(self, entry: Entry) -> None:
        """See `ProducerRecorder.sent`."""
        for each in self._both:
            each.sent(entry)

    def transaction(self) -> "TransactionPair":
        """See `ProducerRecorder.transaction`."""
        return TransactionPair(*[each.transaction() for each in self._both])


class TransactionPair:
    """See `TransactionRecorder`."""

    def __init__(self, *both: TransactionRecorder) -> None:
        self._both = both

    def storing(self, queue_number: int, rows: Sequence[Outgoing]) -> None:
        """See `TransactionRecorder.storing`."""
        for each in self._both:
            each.storing(queue_number, rows)

    @contextmanager
    def ending(
        self, inputs: Sequence[tuple[PopRecorder, Sequence[Part]]], *, is_commit: bool
    ) -> Iterator[None]:
        """See `TransactionRecorder.ending`. The recorders of the inputs are pairs themselves, so
        only the first recorder is given them."""
        first, *others = self._both
        with ExitStack() as stack:
            stack.enter_context(first.ending(inputs, is_commit=is_commit))
            for each in others:
                stack.enter_context(each.ending([], is_commit=is_commit))
            yield


class ConsumerPair:
    """See `ConsumerRecorder`."""

    def __init__(self, *both: ConsumerRecorder) -> None:
        self._both = both

    def read(self, slices: Sequence[Slice]) -> None:
        """See `ConsumerRecorder.read`."""
        for each in self._both:
            each.read(slices)

    def moved(self) -> None:
        """See `ConsumerRecorder.moved`."""
        for each in self._both:
            each.moved()


class PopPair:
    """See `PopRecorder`."""

    def __init__(self, *both: PopRecorder) -> None:
        self._both = both

    def popping(self) -> Callable[[Sequence[Taken]], None]:
        """See `PopRecorder.popping`."""
        told = [each.popping() for each in self._both]

        def tell(taken: Sequence[Taken]) -> None:
            for each in told:
                each(taken)

        return tell

    def settling(
        self, parts: Sequence[Part], action: Action, argument: int | str = -1
    ) -> Callable[[Settlement], None]:
        """See `PopRecorder.settling`."""
        told = [each.settling(parts, action, argument) for each in self._both]

        def tell(settlement: Settlement) -> None:
            for each in told:
                each(settlement)

        return tell
