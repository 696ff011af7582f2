"""Producers for plain code; see `client`."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from raftmq.batch import Value
from raftmq.client.message import Message
from raftmq.client.pop.popped import LeasedMessage
from raftmq.client.produce.claimed import ClaimedProducer, StoredMessages
from raftmq.client.produce.delays import Delay
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.producer_batch import PendingSend
from raftmq.client.produce.receipts import Outgoing, PendingMany, Receipt, SentMany

from .loop import Entered, Loop
from .transactions import BlockingTransaction

if TYPE_CHECKING:
    import pyarrow as pa


class BlockingPending:
    """A message that `send_nowait` took."""

    def __init__(self, loop: Loop, pending: PendingSend) -> None:
        self._loop = loop
        self._pending = pending

    @property
    def is_done(self) -> bool:
        """True once the outcome of the message is known."""
        return self._pending.is_done

    def wait(self, timeout: float | None = None) -> Receipt:
        """See `PendingSend.wait`."""
        return self._loop.wait(partial(self._pending.wait, timeout))


class BlockingPendingMany:
    """Messages that `send_many_nowait` took."""

    def __init__(self, loop: Loop, pending: PendingMany) -> None:
        self._loop = loop
        self._pending = pending

    @property
    def is_done(self) -> bool:
        """True once the outcome of each message is known."""
        return self._pending.is_done

    def wait(self, *, check: bool = True) -> SentMany:
        """See `PendingMany.wait`."""
        return self._loop.wait(partial(self._pending.wait, check=check))


class BlockingProducer(Entered):
    """See `raftmq.Producer`; use it as `with`."""

    def __init__(self, loop: Loop, producer: Producer) -> None:
        super().__init__(loop, producer)
        self._producer = producer

    def send(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        delay: Delay | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """See `Producer.send`."""
        send = partial(self._producer.send, key=key, tag=tag, props=props, delay=delay)
        return self._loop.wait(partial(send, body, queue=queue, timeout=timeout))

    def send_nowait(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
        delay: Delay | None = None,
        timeout: float | None = None,
    ) -> BlockingPending:
        """See `Producer.send_nowait`."""
        send = partial(self._producer.send_nowait, key=key, tag=tag, props=props, delay=delay)
        pending = self._loop.call(partial(send, body, queue=queue, timeout=timeout))
        return BlockingPending(self._loop, pending)

    def transaction(
        self,
        *,
        acks: Iterable[LeasedMessage] | None = None,
        group: str = "",
        note: str = "",
        timeout: float | None = None,
    ) -> BlockingTransaction:
        """See `Producer.transaction`."""
        make = partial(
            self._producer.transaction, acks=acks, group=group, note=note, timeout=timeout
        )
        return BlockingTransaction(self._loop, self._loop.call(make))

    def cancel(self, message_id: str, *, timeout: float | None = None) -> bool:
        """See `Client.cancel`."""
        return self._loop.wait(partial(self._producer.cancel, message_id, timeout=timeout))

    def flush(self, *, timeout: float | None = None) -> None:
        """See `Producer.flush`."""
        self._loop.wait(partial(self._producer.flush, timeout=timeout))

    def send_many(
        self,
        messages: Iterable[bytes | Outgoing | Message] = (),
        *,
        bodies: Sequence[bytes] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        props: Sequence[Mapping[str, Value | None] | None] | None = None,
        queue: int | None = None,
        delay: Delay | Sequence[Delay | None] | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> SentMany:
        """See `Producer.send_many`."""
        send = partial(self._producer.send_many, bodies=bodies, keys=keys, tags=tags, props=props)
        send = partial(send, messages, queue=queue, delay=delay)
        return self._loop.wait(partial(send, check=check, timeout=timeout))

    def put_arrow(
        self,
        rows: "pa.RecordBatch",
        *,
        unkeyed: int | None = None,
        skip: Mapping[int, int] | None = None,
        timeout: float | None = None,
    ) -> int:
        """See `Producer.put_arrow`."""
        put = partial(self._producer.put_arrow, rows, unkeyed=unkeyed, skip=skip)
        return self._loop.wait(partial(put, timeout=timeout))

    def send_many_nowait(
        self,
        messages: Iterable[bytes | Outgoing | Message] = (),
        *,
        bodies: Sequence[bytes] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        props: Sequence[Mapping[str, Value | None] | None] | None = None,
        queue: int | None = None,
        delay: Delay | Sequence[Delay | None] | None = None,
        timeout: float | None = None,
    ) -> BlockingPendingMany:
        """See `Producer.send_many_nowait`."""
        send = partial(
            self._producer.send_many_nowait, bodies=bodies, keys=keys, tags=tags, props=props
        )
        send = partial(send, messages, queue=queue, delay=delay)
        pending = self._loop.call(partial(send, timeout=timeout))
        return BlockingPendingMany(self._loop, pending)


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
