"""Consumers that share a group's messages: each message goes to one of them, which acknowledges it.

One consumer of the group `gates` freezes in the middle of the stream, with messages in hand. When
their lease is over, the messages go to the others; when the consumer thaws, its acknowledgements
are refused.

| group | a message counts as seen | so that it shows |
|---|---|---|
| pop | when its acknowledgement was accepted | each is done once, whichever consumers had it |
| ordered | when it is handed out | those before it of its key are done, or in the same hand |
"""

from typing import Literal

import anyio

import raftmq
from raftmq.client import PoppedMessages
from raftmq.errors import OutcomeUnknown, Unavailable

from .checker import Witness
from .roles import QUIET_SECONDS_MAX, TOPIC

POP_MESSAGES = 500
POP_SECONDS = 0.25
LEASE_SECONDS = 8.0
FROZEN_SECONDS = 10.0
"""Longer than a lease runs."""
ORDERED_LEASE_SECONDS = 60.0


class Sharing:
    """One consumer group and its consumers."""

    def __init__(
        self, witness: Witness, *, mode: Literal["pop", "ordered"], consumers: int
    ) -> None:
        self.witness = witness
        """Takes in the messages of all consumers."""
        self.seconds = 0.0
        """Time from the first message to the last."""
        self.trouble = ""
        """Why the group ended before all messages were seen; empty: all were seen."""
        self.frozen_with = 0
        """Messages that the frozen consumer had in hand."""
        self.refused = 0
        """Acknowledgements that came too late."""
        self._mode = mode
        self._consumers = consumers
        self._is_frozen = False
        self._total: int | None = None
        self._first: float | None = None
        self._last = anyio.current_time()

    def freeze(self) -> None:
        """The first consumer stops, once it has messages in hand."""
        self._is_frozen = True

    def finish_at(self, ends: dict[int, int]) -> None:
        """Tell the ends, as no more is sent: queue → the offset after its last message."""
        self._total = sum(ends.values())

    async def run(self, mq: raftmq.Client) -> None:
        """Pop until all messages were seen."""
        async with anyio.create_task_group() as tasks:
            for number in range(self._consumers):
                tasks.start_soon(self._consume, mq, number)

    async def _consume(self, mq: raftmq.Client, number: int) -> None:
        lease = ORDERED_LEASE_SECONDS if self._mode == "ordered" else LEASE_SECONDS
        async with mq.consumer(
            TOPIC, group=self.witness.name, mode=self._mode, invisible=lease
        ) as consumer:
            while not self._is_over():
                messages = await consumer.pop(POP_MESSAGES, wait=POP_SECONDS)
                if not messages:
                    continue
                if self._is_frozen and number == 0 and not self.frozen_with:
                    self.frozen_with = len(messages)
                    await anyio.sleep(FROZEN_SECONDS)
                if self._mode == "ordered":
                    self._see(messages, but=self._seen_before(messages))
                    await _ack(messages)
                else:
                    refused = await _ack(messages)
                    self.refused += len(refused)
                    self._see(messages, but=refused)

    def _is_over(self) -> bool:
        if self._total is None:
            return False
        if anyio.current_time() - self._last > QUIET_SECONDS_MAX:
            self.trouble = f"nothing came for {QUIET_SECONDS_MAX:g} s"
        return bool(self.trouble) or self.witness.read >= self._total

    def _see(self, messages: PoppedMessages, *, but: set[str]) -> None:
        now = self._last = anyio.current_time()
        self._first = self._first or now
        self.seconds = now - self._first
        for m in messages:
            if not but or m.id not in but:
                self.witness.see(m.body, m.key, m.tag, m.props, queue=m.queue, offset=m.offset)

    def _seen_before(self, messages: PoppedMessages) -> set[str]:
        """Rows that come again because their lease ran out, which is no fault."""
        return {
            m.id for m in messages if m.attempt > 1 and self.witness.has_read(m.props.get("row"))
        }


async def _ack(messages: PoppedMessages) -> set[str]:
    """Acknowledge, through a change of leader too; returns the ids of fenced messages."""
    while True:
        try:
            return {message.id for message in (await messages.ack()).fenced}
        except (Unavailable, OutcomeUnknown):
            # The same call again settles the rest, and repeats nothing.
            await anyio.sleep(0.1)
