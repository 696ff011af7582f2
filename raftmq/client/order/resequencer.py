"""The resequencer: it hands on the messages of numbered streams in the order of their sender.

    consumer ──> stamp? ──> held back until the numbers before came ──> application
                  └─ none: handed on at once

A queue that is far ahead of the others would fill the bounds, as in a backlog that is read queue by
queue. So from half of a bound on, the queues that have messages held back are paused, as long as
there are other queues: those have the missing ones. A consumer that pops cannot choose its queues.

Left out: several consumers of a group. Each of them sees a part of a stream, and takes the rest for
missing. One consumer must read all queues that a stream uses.

Source: the Resequencer of Hohpe and Woolf, Enterprise Integration Patterns.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.lowlevel

from raftmq.client.arguments import require, require_whole, typed
from raftmq.client.consume.consumer import Consumer
from raftmq.client.message import Message
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.popped import LeasedMessage, PoppedMessage
from raftmq.errors import MissingMessages, Reason, Rejected, WrongType

from .held_back import HeldBack
from .sequencer import NUMBER_MAX, stamp_of

M = TypeVar("M", bound=Message)

_PAUSE_FILL = 0.5
"""From this part of the bounds on, queues that are ahead are paused."""
_RESUME_FILL = 0.25
"""Below this part of the bounds no queue is paused."""
_CHECKPOINT_MESSAGES = 64
"""`async for` lets other tasks run after this many messages."""


@dataclass(frozen=True, slots=True)
class ResequencerStatistics:
    """The messages that a resequencer holds."""

    messages: int
    """Messages held back."""
    bytes: int
    """Bytes of the received answers that these messages keep in memory."""
    streams: int
    """Streams whose next number is known, or that have messages held back."""
    dropped: int
    """Messages dropped since the beginning: repeats, and those that came after their gap was
    reported."""


@typed()
class Resequencer(Generic[M]):
    """Hands on the messages of an open consumer, those of each stream in the order of their
    `Sequencer`, each number once: `async for message in Resequencer(consumer)`.

    Messages without a stamp are handed on as they come. Streams do not wait for each other.

    *Gaps.* When messages have been held back for `gap_timeout`, the missing numbers are reported as
    `MissingMessages`, and the stream goes on after them. A bound that is reached reports the gap
    that has waited longest at once. A message that comes after its gap was reported is dropped.

    *The beginning.* A stream goes on at its number in `numbers`, else at 0. If 0 does not come
    within `gap_timeout`, the stream begins at the lowest number that came, and no gap is reported.
    The stored `numbers` of the receiver before make a restart exact, and without that wait. The
    next numbers of the 10,000 streams that were used last are remembered.

    *Reading by offset.* `commit` commits the messages that were handed on, and none that is held
    back: these come again after a restart. The consumer has no `auto_commit`, and is no member of a
    group: it must read all queues that the streams use.

    *Popping.* A message that is held back is not settled; its lease goes on by `renew=`, which the
    consumer must have. Repeats, and numbers below those of `numbers`, are acked and dropped. A
    message that was handed on here and comes again, as it was nacked, its lease ran out, or its ack
    was lost, is handed on at once, out of order. Two consumers of a group each take the
    other's messages for missing.

    Args:
        consumer: an open consumer that nothing else reads from.
        numbers: stream → its next number, as `numbers` of an earlier resequencer gave it.
        gap_timeout: seconds for which messages are held back; longer than a change of leader takes.
        on_gap: called with each gap in place of raising it.
        messages_max: the most messages to hold back.
        bytes_max: the most bytes of received answers, of up to 4 MiB each, that messages held back
            may keep in memory; one answer comes on top. The consumer's own buffer counts apart: for
            each queue that is ahead up to `prefetch_bytes` and one answer.

    Raises:
        Rejected: `BAD_ARGUMENT`, the consumer commits by itself, is a member of a group, or pops
            without `renew=`; or a number is out of its range.
    """

    def __init__(
        self,
        consumer: AsyncIterator[M],
        *,
        numbers: Mapping[str, int] | None = None,
        gap_timeout: float = 30.0,
        on_gap: Callable[[MissingMessages], object] | None = None,
        messages_max: int = 100_000,
        bytes_max: int = 64 * 1024 * 1024,
    ) -> None:
        _check_consumer(consumer)
        _check_numbers(numbers or {})
        require(gap_timeout > 0, "gap_timeout must be positive")
        require(messages_max > 0, "messages_max must be positive")
        require(bytes_max > 0, "bytes_max must be positive")
        self._consumer = consumer
        given: Any = consumer
        # None: the consumer pops.
        self._reader = given if isinstance(given, Consumer) else None
        self._on_gap = on_gap
        self._held = HeldBack[M](
            numbers or {}, gap_seconds=gap_timeout, messages_max=messages_max, bytes_max=bytes_max
        )
        self._given = dict(numbers or {})
        self._unhanded = deque[M]()
        # Queue number → its messages held back; and the queues that are paused meanwhile.
        self._ahead = Counter[int]()
        self._paused: set[int] = set()
        self._dropped = 0
        self._since_checkpoint = 0

    def __aiter__(self) -> Self:
        """Messages one by one, without an end: `break` when you have enough."""
        return self

    async def __anext__(self) -> M:
        """The next message, however long it takes. Cancelling loses nothing.

        Raises:
            MissingMessages: numbers of a stream did not come; not with `on_gap`. Calling again goes
                on after them.
            Others: as the consumer's `fetch` or `pop`. Calling again goes on.
        """
        self._since_checkpoint += 1
        if self._since_checkpoint >= _CHECKPOINT_MESSAGES:
            self._since_checkpoint = 0
            await anyio.lowlevel.checkpoint()
        if self._unhanded:
            return self._unhanded.popleft()
        while True:
            taken = self._held.take(anyio.current_time())
            if isinstance(taken, MissingMessages):
                if self._on_gap is None:
                    raise taken
                self._on_gap(taken)
            elif taken is not None:
                self._count(taken, -1)
                return taken
            else:
                self._choose_queues()
                came = await self._receive()
                if came is not None and self._is_due(came):
                    return came

    @property
    def numbers(self) -> dict[str, int]:
        """Stream → the number after the last message that was handed on, or reported missing. Store
        it along with the results of your work, and give it to the next resequencer."""
        return self._held.next

    async def commit(self, *, timeout: float | None = None) -> None:
        """Commit the offsets of a consumer that reads by offset: for each queue up to its first
        message that is held back. The message handed on last counts as done.

        Safe to repeat. Cancelling leaves some queues' offsets committed and others not.

        Raises:
            As `Consumer.commit`.
            Rejected: `BAD_ARGUMENT`, the consumer pops.
        """
        if self._reader is None:
            message = "popped messages have no offsets to commit: ack each message"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        offsets = self._reader.position
        for message in (*self._held, *self._unhanded):
            offsets[message.queue] = min(offsets[message.queue], message.offset)
        await self._reader.commit(offsets, timeout=timeout)

    def statistics(self) -> ResequencerStatistics:
        """The messages that are held back now."""
        held = self._held
        return ResequencerStatistics(len(held), held.byte_count, held.stream_count, self._dropped)

    # -- also for the blocking face --------------------------------------------------------------

    async def _put_back(self, message: M) -> None:
        """Internal: the application did not get the message; the next call returns it."""
        self._unhanded.append(message)

    # -- inside ----------------------------------------------------------------------------------

    async def _receive(self) -> M | None:
        """The consumer's next message; None: a gap has waited long enough."""
        deadline = self._held.deadline
        if deadline == inf:
            return await anext(self._consumer)
        with anyio.move_on_after(deadline - anyio.current_time()):
            return await anext(self._consumer)
        return None

    def _is_due(self, message: M) -> bool:
        """Hold a message back, or drop it; True: it is to be handed on at once."""
        stamp = stamp_of(message.props)
        if stamp is None:
            return True
        stream, number = stamp
        before = self._held.find(stream, number)
        if before is not None and before.id == message.id:
            # The lease of the message held back ran out: only the new one can be settled.
            self._held.replace(stream, number, message, message.answer)
            return False
        now = anyio.current_time()
        if self._held.put(message, stream=stream, number=number, answer=message.answer, now=now):
            self._count(message, 1)
            return False
        is_again = isinstance(message, LeasedMessage) and before is None and message.attempt > 1
        if is_again and number >= self._given.get(stream, 0):
            # Dropping it would lose a message that the application nacked.
            return True
        self._dropped += 1
        if isinstance(message, PoppedMessage):
            message.ack_nowait()
        return False

    def _count(self, message: M, change: int) -> None:
        number = message.queue_number
        self._ahead[number] += change
        if not self._ahead[number]:
            del self._ahead[number]

    def _choose_queues(self) -> None:
        """Pause the queues that are ahead while the bounds are half used up, unless all are."""
        fill = self._held.fill
        if self._reader is None or (fill < _PAUSE_FILL and not self._paused):
            return
        fetcher, paused = self._reader._opened(check=False), set(self._ahead)
        if fill < _PAUSE_FILL:
            # A queue whose messages were all handed on may have the missing ones.
            paused &= self._paused if fill >= _RESUME_FILL else set()
        if len(paused) == len(fetcher.cursors):
            paused = set()
        if paused != self._paused:
            self._paused = paused
            fetcher.pause(paused)


def _check_consumer(consumer: Any) -> None:
    if isinstance(consumer, PopConsumer):
        message = "give the consumer renew=: without it the leases of messages held back run out"
        require(consumer._settings.renew is not None, message)
    elif isinstance(consumer, Consumer):
        message = "a consumer with auto_commit= commits messages that are held back: leave it out"
        require(not consumer.commits_by_itself, message)
        message = "members of a group have a part of the queues each: leave out queues='assigned'"
        require(consumer._assigned is None, message)
    else:
        raise WrongType(f"consumer is a Consumer or a PopConsumer, not {consumer!r:.80}")


def _check_numbers(numbers: Mapping[str, int]) -> None:
    for stream, number in numbers.items():
        require_whole(number, f"the number of stream {stream!r}")
        require(0 <= number <= NUMBER_MAX + 1, f"stream {stream!r} cannot go on at {number}")
