"""The resequencer for plain code; see `client`. A `Sequencer` does not wait, and has no face."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, overload

from raftmq.client.message import Message
from raftmq.client.order.resequencer import Resequencer
from raftmq.client.pop.popped import PoppedMessage
from raftmq.errors import MissingMessages, WrongType

from .client import BlockingConsumer
from .face import Face, calls, waits
from .popping import BlockingPopConsumer, BlockingPoppedMessage

M = TypeVar("M", bound=Message)


class BlockingResequencer(Face[Resequencer[Any]], Generic[M]):
    """See `raftmq.Resequencer`; iterate with `for`. `on_gap` is called in the thread that iterates.

    Args:
        consumer: a consumer in its `with` block.
        on_gap: see `Resequencer`.
        settings: the other settings of `Resequencer`, by name.
    """

    @overload
    def __init__(
        self: "BlockingResequencer[Message]",
        consumer: BlockingConsumer,
        *,
        on_gap: Callable[[MissingMessages], object] | None = None,
        **settings: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: "BlockingResequencer[BlockingPoppedMessage]",
        consumer: BlockingPopConsumer,
        *,
        on_gap: Callable[[MissingMessages], object] | None = None,
        **settings: Any,
    ) -> None: ...

    def __init__(
        self,
        consumer: BlockingConsumer | BlockingPopConsumer,
        *,
        on_gap: Callable[[MissingMessages], object] | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(consumer, BlockingConsumer | BlockingPopConsumer):
            raise WrongType(f"consumer is one of raftmq.blocking, not {consumer!r:.80}")
        inner: Any = consumer._inner
        super().__init__(consumer._loop, Resequencer(inner, **settings))
        self._on_gap = on_gap

    def __iter__(self) -> Iterator[M]:
        """Messages one by one, without an end: `break` when you have enough. After
        `MissingMessages` a new `for` goes on."""
        resequencer = self._inner
        while True:
            try:
                message = self._loop.wait(resequencer.__anext__, resequencer._put_back)
            except MissingMessages as gap:
                if self._on_gap is None:
                    raise
                self._on_gap(gap)
            else:
                yield self._face_of(message)

    def _face_of(self, message: Any) -> Any:
        if not isinstance(message, PoppedMessage):
            return message
        batch, position, grip = message._batch, message._position, message._grip
        settlements = message.settlements
        return BlockingPoppedMessage(batch, position, grip, message.topic, settlements, self._loop)

    @property
    def numbers(self) -> dict[str, int]:
        """See `Resequencer.numbers`."""
        return self._loop.call(lambda: self._inner.numbers)

    commit = waits(Resequencer.commit)
    statistics = calls(Resequencer.statistics)
