"""Producers for plain code; see `client`."""

from collections.abc import Mapping

from raftmq.client.produce.claimed import ClaimedProducer, StoredMessages
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.producer_batch import PendingMany, PendingSend

from .face import Entered, Face, calls, gives, waits
from .loop import Loop
from .transactions import BlockingTransaction


class BlockingPending(Face[PendingSend]):
    """A message that `send_nowait` took."""

    @property
    def is_done(self) -> bool:
        """True once the outcome of the message is known."""
        return self._inner.is_done

    wait = waits(PendingSend.wait)


class BlockingPendingMany(Face[PendingMany]):
    """Messages that `send_many_nowait` took."""

    @property
    def is_done(self) -> bool:
        """True once the outcome of each message is known."""
        return self._inner.is_done

    wait = waits(PendingMany.wait)


class BlockingProducer(Entered[Producer]):
    """See `raftmq.Producer`; use it as `with`."""

    send = waits(Producer.send)
    send_nowait = gives(Producer.send_nowait, BlockingPending)
    send_many = waits(Producer.send_many)
    send_many_nowait = gives(Producer.send_many_nowait, BlockingPendingMany)
    put_arrow = waits(Producer.put_arrow)
    transaction = gives(Producer.transaction, BlockingTransaction)
    cancel = waits(Producer.cancel)
    flush = waits(Producer.flush)
    statistics = calls(Producer.statistics)


class BlockingClaimedProducer(BlockingProducer):
    """See `raftmq.client.ClaimedProducer`; use it as `with`."""

    def __init__(self, loop: Loop, producer: ClaimedProducer) -> None:
        super().__init__(loop, producer)
        self._claimed = producer
        self.id = producer.id
        """See `ClaimedProducer.id`."""

    @property
    def stored(self) -> Mapping[int, StoredMessages]:
        """See `ClaimedProducer.stored`."""
        return self._claimed.stored

    @property
    def queues(self) -> int:
        """See `ClaimedProducer.queues`."""
        return self._claimed.queues
