"""The inputs of a transaction: messages in hand that its commit acknowledges.

They are all of one partition group, as a transaction is. It keeps the application's objects, so
that leases which are renewed go on as long as the transaction is open.
"""

from collections.abc import Iterable

from raftmq.client.consume.start import require
from raftmq.client.pop.leases import HeldLease, packed
from raftmq.client.pop.popped import LeasedMessage, LeasedMessages, Part
from raftmq.client.pop.settlement import Settlements
from raftmq.errors import Reason, Rejected
from raftmq.wire.popping import Action
from raftmq.wire.transactions import TransactionInput


class Inputs:
    """Messages that a transaction acknowledges."""

    def __init__(self, messages: Iterable[LeasedMessage]) -> None:
        """Take messages, of any consumers, that lie in one partition group.

        Raises:
            Rejected: `BAD_ARGUMENT`, there are none, or they were not popped, or they lie in
                several partition groups.
        """
        self._kept = messages if isinstance(messages, LeasedMessages) else list(messages)
        self.by_consumer = _by_consumer(self._kept)
        """Internal: the leases and messages that each consumer's settlements take."""
        parts = [
            (settlements, *part) for settlements, some in self.by_consumer.items() for part in some
        ]
        groups = sorted({lease.group for _, lease, _ in parts})
        if len(groups) != 1:
            message = (
                f"acks= are messages of one partition group, not of {groups}: take those of each "
                "with `by_partition_group`, in a transaction of its own"
                if groups
                else "acks= has no messages: there is nothing to acknowledge"
            )
            raise Rejected(Reason.BAD_ARGUMENT, message)
        self.partition_group = groups[0]
        """Where they are, and where the messages of the transaction must be."""
        # A lease's base may move down; bits count from what it is now.
        self._held = [(lease, lease.base, bits) for _, lease, bits in parts]
        self._wire = [
            TransactionInput(*settlements.consumer, lease.token, *packed(lease.base, bits))
            for settlements, lease, bits in parts
        ]

    def wire(self) -> list[TransactionInput]:
        """As they are sent."""
        return self._wire

    def acked(self) -> None:
        """The transaction has committed: they are done with."""
        for lease, base, bits in self._held:
            lease.set_done(Action.ACK, lease.place(base, bits))


def _by_consumer(
    messages: "LeasedMessages[LeasedMessage] | list[LeasedMessage]",
) -> dict[Settlements, list[Part]]:
    if isinstance(messages, LeasedMessages):
        return {messages.settlements: messages.parts} if len(messages) else {}
    found: dict[Settlements, dict[HeldLease, int]] = {}
    for message in messages:
        require(isinstance(message, LeasedMessage), "acks= are messages of a consumer that pops")
        lease, bit = message.part
        leases = found.setdefault(message.settlements, {})
        leases[lease] = leases.get(lease, 0) | bit
    return {settlements: list(leases.items()) for settlements, leases in found.items()}
