"""The inputs of a transaction: messages in hand that its commit acknowledges.

The inputs of a transaction are of one partition group, the transaction's. `Inputs` keeps the
application's objects, so that renewed leases go on while the transaction is open.
"""

from collections.abc import Iterable

from raftmq.client.arguments import require
from raftmq.client.pop.lease_bits import packed
from raftmq.client.pop.leases import HeldLease, Part
from raftmq.client.pop.popped import LeasedMessage, LeasedMessages
from raftmq.client.pop.settlements import Settlements
from raftmq.client.recorders import PopRecorder
from raftmq.errors import Reason, Rejected
from raftmq.pop.actions import Action
from raftmq.wire.producing import TransactionInput


class Inputs:
    """Messages that a transaction acknowledges."""

    def __init__(self, messages: Iterable[LeasedMessage]) -> None:
        """Take messages, of any consumers, that lie in one partition group.

        Raises:
            Rejected: `BAD_ARGUMENT`, there are no messages, or some were not popped, or they lie
                in several partition groups.
        """
        self._kept = messages if isinstance(messages, LeasedMessages) else list(messages)
        # By each consumer's settlements, the leases and messages.
        self._by_consumer = _by_consumer(self._kept)
        parts = [
            (settlements, *part) for settlements, some in self._by_consumer.items() for part in some
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
        """The partition group of the inputs, and so of the transaction's messages."""
        # A lease's base may move down later; the bits count from the base of now.
        self._held = [(lease, lease.base, bits) for _, lease, bits in parts]
        self._wire = [
            TransactionInput(
                settlements.holder.number,
                settlements.holder.consumer,
                lease.token,
                *packed(lease.base, bits),
            )
            for settlements, lease, bits in parts
        ]

    def wire(self) -> list[TransactionInput]:
        """The inputs as `BeginTransaction` carries them."""
        return self._wire

    def recorded(self) -> list[tuple[PopRecorder, list[Part]]]:
        """The inputs of each consumer that has a recorder."""
        by_consumer = self._by_consumer.items()
        return [(each.recorder, some) for each, some in by_consumer if each.recorder is not None]

    def acked(self) -> None:
        """Mark the inputs acknowledged: the transaction has committed."""
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
