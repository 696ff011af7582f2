"""Recorders: observers of the calls of producers and consumers, and of the answers.

`Producer`, `Transaction`, `Consumer` and `PopConsumer` take a recorder, by default none, and tell
the recorder what they do. The recorders of `raftmq.client.checked` tell a witness; those of
`raftmq.embedded` also keep a history.

A method that begins a call returns the function that takes the answer. A call that raises leaves
that function uncalled: the outcome is unknown.

Invariants:
- A recorder is called in the task that makes the call, before the request leaves and after the
  answer came; the recorder does not wait, and raises nothing.
- Without a recorder a call costs one comparison with None.

Left out: `Admin`, whose recorder overrides its public methods.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from raftmq.pop.actions import Action

    from .pop.leases import Part
    from .pop.prefetch_buffer import Taken
    from .pop.tally import Settlement
    from .produce.producer_batch import Entry
    from .produce.receipts import Outgoing
    from .slices import Slice


class ProducerRecorder(Protocol):
    """Observes a producer."""

    def sent(self, entry: "Entry") -> None:
        """Messages take their place in line for a queue; the entry will have their outcome."""

    def transaction(self) -> "TransactionRecorder":
        """The recorder of a new transaction of this producer."""


class TransactionRecorder(Protocol):
    """Observes a transaction."""

    def storing(self, queue_number: int, rows: Sequence["Outgoing"]) -> None:
        """Messages are about to be stored in a queue; they show if the transaction commits."""

    def ending(
        self, inputs: "Sequence[tuple[PopRecorder, Sequence[Part]]]", *, is_commit: bool
    ) -> AbstractContextManager[None]:
        """Around a commit, which acknowledges the inputs, or around a rollback.

        Args:
            inputs: by the recorder of each consumer that popped some, its messages.
            is_commit: False for a rollback.
        """


class ConsumerRecorder(Protocol):
    """Observes a consumer that reads by offset."""

    def read(self, slices: Sequence["Slice"]) -> None:
        """Messages go to the application."""

    def moved(self) -> None:
        """The consumer may go on from elsewhere: `seek`."""


class PopRecorder(Protocol):
    """Observes a consumer that pops, and the settlements of its messages."""

    def popping(self) -> Callable[[Sequence["Taken"]], None]:
        """A call asks for messages; the function takes the messages, perhaps none."""

    def settling(
        self, parts: Sequence["Part"], action: "Action", argument: int | str = -1
    ) -> Callable[["Settlement"], None]:
        """A call settles messages, or extends their leases; the function takes the result.

        Args:
            parts: the messages.
            action: what the call asks for.
            argument: the words of a rejection; else milliseconds, -1 if the call names none.
        """
