"""A topic's queues as one producer sees them: the queue of each message, and the queue's sender.

| a message | goes to |
|---|---|
| with `queue=` | that one |
| with a key | the one of the key's hash |
| else | the queue whose turn it is |

The turn stays with a queue while a batch is on its way there, until `TURN_BYTES` went out: messages
sent meanwhile share a batch. So under a steady flow one queue is busy at a time: small batches to
all queues at once cost every node a log entry each, and each batch takes longer than all in one.
Messages sent one by one go to each queue in turn. The queues of a slow leader have fewer turns, and
those that wait for a leader are passed over (`turns`).

Sources: Kafka's sticky partitioner (KIP-480); bytes as the measure of a turn, and why the
partitioner must pass over stuck queues (KIP-794).
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, Self

import anyio

from raftmq.batch import Sealed, queue_of
from raftmq.client.arguments import require_whole
from raftmq.client.routing.router import Router
from raftmq.errors import RaftmqError, Reason, Rejected, WrongType
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.pushed import PushedProducer
from raftmq.wire.messages import TopicView

from .columns import Positions
from .producer_batch import PendingPart
from .queue_sender import MESSAGE_BYTES, QueueSender
from .turns import Turns

ASK_SECONDS = 1.0
"""Minimum time between two questions whether the topic got more queues, and their timeout."""


class Routed(NamedTuple):
    """A call's messages for one batch, and the sender that takes them."""

    sender: QueueSender
    """The sender."""
    part: PendingPart
    """The messages."""
    positions: Positions
    """The positions of these messages in the call."""

    @classmethod
    def of(cls, sender: QueueSender, sealed: Sealed, deadline: float) -> Self:
        """An encoded batch; its positions count from 0."""
        part = PendingPart(
            queue_number=sender.queue_number,
            size=sealed.size + MESSAGE_BYTES,
            deadline=deadline,
            content=sealed,
        )
        return cls(sender, part, range(sealed.count))


class Queues:
    """The queues of a topic, for one producer."""

    def __init__(
        self,
        view: TopicView,
        first: int,
        make_sender: Callable[[int, int], QueueSender],
        ask: Callable[[], Awaitable[object]],
        router: Router,
    ) -> None:
        self.view = view
        """The topic as known now; it may get more queues."""
        self.senders: dict[int, QueueSender] = {}
        """The senders in use, by queue."""
        self.is_shared = False
        """True if the batch that went out last had messages of several calls."""
        self.is_paused = False
        """True: operators have paused the producer."""
        self._turns = Turns(first, self.senders, router.weights, router.leader_of)
        # Called with a queue's cluster-wide number and its partition group.
        self._make_sender = make_sender
        # Fetches the topic from the leader of the system group, which replaces `view`.
        self._ask = ask
        self._ask_again_at = 0.0
        self._asking: anyio.Event | None = None

    def __len__(self) -> int:
        """How many queues the topic has."""
        return len(self.view.groups)

    async def learn(self, queue: int | None, deadline: float) -> None:
        """If no such queue is known, ask whether the topic got more; then `pick` decides.

        The routing table is fetched only twice a minute, and another client may have added the
        queue since. Calls at the same time share one question. Cancelling keeps the known queues.
        """
        now = anyio.current_time()
        if not isinstance(queue, int) or queue < len(self):
            return
        if self._asking is None and now < self._ask_again_at:
            return
        with anyio.move_on_after(min(ASK_SECONDS, deadline - now)):
            if self._asking is not None:
                await self._asking.wait()
                return
            self._asking, self._ask_again_at = anyio.Event(), now + ASK_SECONDS
            try:
                with suppress(RaftmqError):
                    await self._ask()
            finally:
                self._asking.set()
                self._asking = None

    def pick(self, key: str | bytes | None, queue: int | None) -> int:
        """The queue for a message.

        Raises:
            Rejected: there is no such queue, or `key` is no key.
        """
        if queue is not None:
            require_whole(queue, "queue")
            if not 0 <= queue < len(self):
                message = f"topic {self.view.name!r} has queues 0 to {len(self) - 1}, no {queue}"
                raise Rejected(Reason.BAD_ARGUMENT, message)
            return queue
        if key is None:
            return self.current()
        try:
            return queue_of(key, len(self))
        except TypeError:
            raise WrongType(f"key is a text (str), bytes or None, not {key!r:.80}") from None
        except UnicodeEncodeError as error:
            raise Rejected(Reason.BAD_ARGUMENT, f"a key is text or bytes: {error}") from None

    def current(self, n: int = 0) -> int:
        """The queue whose turn it is; for the n-th more batch of a call, the n-th after it."""
        return self._turns.queue(self.view.groups, anyio.current_time(), n)

    def weights(self) -> dict[int, float]:
        """The weights of the nodes that lead the queues."""
        return self._turns.weights(self.view.groups, anyio.current_time())

    def obey(self, pushed: PushedProducer) -> None:
        """Obey what operators push."""
        self._turns.pushed_weights, self.is_paused = pushed.node_weights(), pushed.is_paused

    def note_full(self, sender: QueueSender) -> None:
        """A sender's batch is full: pass the turn on, if the sender's queue has it."""
        self._turns.note_full(sender.queue_number & QUEUE_MASK)

    def note_sealed(self, sender: QueueSender, size: int, calls: int) -> None:
        """A sender's batch goes out: pass the turn on after `TURN_BYTES`."""
        self.is_shared = calls > 1
        self._turns.note_sent(sender.queue_number & QUEUE_MASK, size)

    def sender(self, queue: int) -> QueueSender:
        """The sender to a queue."""
        sender = self.senders.get(queue)
        if sender is None:
            number = self.view.id << QUEUE_BITS | queue
            sender = self.senders[queue] = self._make_sender(number, self.view.groups[queue])
        return sender
