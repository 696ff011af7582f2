"""The consumer that pops: it gets messages of any queue, and settles them. It owns no queue.

    brokers <──POP──> sessions ──> buffer ──pop──> application ──ack──> senders ──> brokers

The consumer asks ahead, with one request at each leader of the topic's queues, while the
application comes for more: at first for few messages, and for more each time that the application
takes them at once or has none before the next answer. Messages that stay in the buffer for two
thirds of their lease are given back, since the application needs time for a message.

Invariants:
- A message is handed to the application at most once under one token.
- Leaving the consumer gives back messages that the application has not seen. A message that it has
  seen and not settled stays leased until its time runs out: the application may have begun the
  work, so the attempt counts.
- No request is made unless the application waits or comes for messages; the rest of a request is
  asked for at once, until its time is over.

Sources: Amazon SQS (receive, visibility timeout); RocketMQ's POP consumer; TCP's slow start, for
the number of messages asked ahead.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from weakref import ref

import anyio
import anyio.lowlevel

from raftmq.client.admin.consumer_groups import attach
from raftmq.client.admin.resets import begin
from raftmq.client.admin.subscriptions import subscribe
from raftmq.client.arguments import Popping, require, typed
from raftmq.client.consume.offsets import queues_of
from raftmq.client.recorders import PopRecorder
from raftmq.client.routing.requests import after, find_topic, seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import Supervisor, TaskScope
from raftmq.client.world import ClientWorld
from raftmq.errors import RaftmqError, Reason, Rejected
from raftmq.pop.actions import Action
from raftmq.pop.policy import Mode

from .claims import HeldClaim, claim
from .leases import Grip, HeldLease, Holder, Part
from .popped import (
    LeasedMessage,
    LeasedMessages,
    PoppedMessage,
    PoppedMessages,
    delay_ms,
)
from .prefetch_buffer import Taken
from .prefetcher import COUNT_MAX, PopSettings, Prefetcher, invisible_ms
from .settlements import Settlements
from .tally import Settlement

CLOSE_SECONDS = 2.0
"""Time to give back messages that were popped ahead, after the body raised or without an answer."""

_ASK_MESSAGES = 16
"""`async for` asks for more, and lets other tasks run, after this many messages."""


@typed()
class PopConsumer(Popping):
    """Takes messages of a topic for a consumer group. Made by `Client.consumer`; use it as
    `async with`.

    Any number of consumers of a group share its messages: a message is one consumer's alone while
    its lease runs. In a group of mode `ordered` the messages of a key come in order.
    """

    def __init__(
        self,
        topic: str,
        settings: PopSettings,
        *,
        router: Router,
        supervisor: Supervisor,
        world: ClientWorld,
        recorder: PopRecorder | None = None,
    ) -> None:
        self._settings = settings.validate()
        self._router = router
        self._supervisor = supervisor
        self._world = world
        self._consumer = world.random.randrange(1, 1 << 63)
        self._recorder = recorder
        self._tasks: TaskScope | None = None
        self._prefetcher: Prefetcher | None = None
        self._until_ask = 0
        # Pops under way; those among them that name a time; and that time.
        self._pops = 0
        self._pops_for_time = 0
        self._time_ms = 0
        self.topic = topic
        """The topic's name."""
        self.group = settings.group
        """The consumer group."""

    async def __aenter__(self) -> Self:
        """Attach the group to the topic, and create the group if it does not exist. A consumer that
        was open is not opened again.

        With `start="latest"` a new group has begun in each partition group when this returns: all
        messages sent from then on come. Cancelling leaves nothing behind but the group, its
        attachment and its filter.

        Raises:
            Rejected: `UNKNOWN_TOPIC`; `GROUP_MODE`, the group has another mode; `BAD_NAME`.
            Unavailable: a leader was not found in time, and nothing is done; a repeat is safe.
            OutcomeUnknown: a leader was not found in time, and a part is or may be done; the text
                names the parts done.
            RaftmqError: this consumer was opened before.
        """
        if self._tasks is not None:
            # Settlements of a second entry would reuse the numbers of the first, and be answered as
            # repeats.
            raise RaftmqError("a consumer is used once: make another one by `consumer()`")
        settings, router, place = self._settings, self._router, (self.topic, self.group)
        left = seconds_left(router, None)
        subscribed = 0
        done: list[str] = []
        with after(done, "these parts"):
            if settings.filter is not None:
                subscribed = await subscribe(router, *place, settings.filter, left())
                done.append("filter")
            attachment = await attach(
                router, *place, settings.mode, is_latest=settings.is_latest, timeout=left()
            )
            done.append("attachment")
            # The newest view: queues missing from an older one would begin later than now.
            view = await find_topic(router, self.topic, left())
            if settings.is_latest:
                # A data group's log holds the place only after a command there named the group.
                await begin(router, attachment, queues_of(view), done, left())
        self._tasks = self._supervisor.task_scope(self._fail)
        is_ordered = settings.mode is Mode.ORDERED
        holder = Holder(self.topic, attachment, self._consumer, subscribed, is_ordered)
        settlements = Settlements(router, self._tasks, holder, self._recorder)
        prefetcher = self._prefetcher = Prefetcher(
            self._router, self._tasks, settings, view, settlements
        )
        router.watch(prefetcher.follow_topic)
        router.pushed.follow(settings.use(self.topic), prefetcher.obey)
        self._tasks.start(prefetcher.look_after_leases)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End: as `aclose`, but if the body raised, no other error is raised and the end takes at
        most two seconds."""
        if error is None:
            await self.aclose()
            return
        is_cancelled = not isinstance(error, Exception)
        # Shielded from a cancelled body: the messages go back now, not when their leases run out.
        try:
            with anyio.move_on_after(CLOSE_SECONDS, shield=is_cancelled):
                if self._prefetcher is not None:
                    await self._prefetcher.put_away()
        finally:
            self._end()

    def __aiter__(self) -> Self:
        """Messages one by one, without an end: `break` when you have enough."""
        return self

    async def __anext__(self) -> PoppedMessage:
        """The next message, however long it takes. Cancelling loses nothing.

        Raises:
            As `pop`.
        """
        (part, _, _), grip = await self._next_one()
        return PoppedMessage(part.batch, part.start, grip, self.topic, self._open_settlements())

    async def pop(
        self, count: int = 1, *, wait: float = 1.0, invisible: float | None = None
    ) -> PoppedMessages:
        """Up to `count` messages: those here, at once; else the first that come within `wait`.

        Cancelling loses nothing: messages not returned come by the next call, or go back.

        Args:
            count: the most to return, at least 1.
            wait: seconds; 0 asks the leaders for what they have and does not wait for more. A
                leader that says "try again" is asked again, up to the client's default timeout. In
                a group with a filter or ordered by key, a leader looks at messages before it hands
                them out: where it has still to do so, it takes up to half a second, and then
                answers with what it has found.
            invisible: seconds for which these messages, and those of later calls, are this
                consumer's alone, 1 s to 12 hours; None: as before, at first the value given to
                `consumer`, or else the group's policy. For messages popped ahead up to two thirds
                of the time may be over, unless `invisible` is given. Messages popped ahead for a
                shorter time get this one, by an extension of their lease: messages returned before
                of the same lease (`token`) get it, too. No lease gets shorter: messages popped
                ahead for a longer time are given back and asked for again.

        Returns:
            An empty `PoppedMessages` if the wait ran out.

        Raises:
            Rejected: an argument is out of its range, or another pop is under way for another
                `invisible`; or the group or topic is gone.
            UnreadableBatch: messages that were handed out cannot be read. They are handed out
                again, and are dead letters in the end; calling again goes on.
            Unavailable: no message is here and a leader was not found, or without a wait did not
                answer, for the client's default timeout. Calling again goes on.
            OutcomeUnknown: with `invisible`, a leader did not confirm the new time of messages
                popped ahead within the client's default timeout. Calling again goes on. No call
                takes longer than `wait` and that timeout together.
        """
        taken = await self._next_many(count, wait, invisible)
        grips = [self._grip(each) for each in taken]
        parts = [each.part for each in taken]
        return PoppedMessages(parts, grips, self.topic, self._open_settlements())

    async def ack(
        self,
        messages: Iterable[LeasedMessage],
        *,
        timeout: float | None = None,
    ) -> Settlement:
        """Acknowledge messages, also of several calls; see `PoppedMessages.ack`."""
        return await self._open_settlements().settle(
            _parts_of(messages), Action.ACK, timeout=timeout
        )

    async def nack(
        self,
        messages: Iterable[LeasedMessage],
        delay: float | None = None,
        *,
        timeout: float | None = None,
    ) -> Settlement:
        """Messages failed, also of several calls; see `PoppedMessages.nack`."""
        wait, parts = delay_ms(delay), _parts_of(messages)
        settlements = self._open_settlements()
        return await settlements.settle(parts, Action.NACK, delay_ms=wait, timeout=timeout)

    async def claim(
        self, key: str | bytes, *, ttl: float, timeout: float | None = None
    ) -> HeldClaim | None:
        """Claim a piece of work; None: another claim of it runs.

        No broker can rule out that a message comes twice. Code that claims a key of its work before
        it begins, and stops if it gets None, does the work once. Each call is a claimant of its
        own: the same consumer gets None the second time, too. Cancelling leaves the key claimed or
        not.

        Args:
            key: names the work, unique within the group and topic; up to 1024 bytes.
            ttl: seconds for which no other claim succeeds, up to 30 days.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: the key or time is out of its range, or the group is gone.
            Unavailable, OutcomeUnknown: the time ran out; the key may be claimed, without a holder.
        """
        prefetcher = self._opened()
        group, claimant = prefetcher.first_group, self._world.random.randrange(1, 1 << 63)
        number = prefetcher.settlements.holder.number
        return await claim(self._router, group, number, claimant, key, ttl, timeout)

    async def flush(self, *, timeout: float | None = None) -> Settlement:
        """Wait for all settlements made without waiting; returns their results since the last
        `flush`.

        Cancelling stops the waiting, not the settling.

        Raises:
            OutcomeUnknown: the time ran out; settling goes on in the background.
            Rejected: the group or topic is gone.
        """
        return await self._open_settlements().flush(timeout=timeout)

    async def aclose(self, *, timeout: float | None = None) -> None:
        """Finish the settlements under way, give back messages that the application has not seen,
        and end.

        A second call does nothing. Cancelling ends the consumer at once.

        Raises:
            As `flush`.
        """
        if self._prefetcher is None or self._tasks is None or self._tasks.is_closed:
            return
        left = seconds_left(self._router, timeout)
        try:
            with anyio.move_on_after(min(CLOSE_SECONDS, left() / 2)):
                await self._prefetcher.put_away()
            await self.flush(timeout=left())
        finally:
            self._end()

    # -- also for the blocking face --------------------------------------------------------------

    async def _next_one(self) -> tuple[Taken, Grip]:
        """Internal: the next message for `__anext__`, with the grip on its lease."""
        told = None if self._recorder is None else self._recorder.popping()
        while True:
            prefetcher = self._opened()
            self._until_ask -= 1
            if self._until_ask <= 0:
                self._until_ask = _ASK_MESSAGES
                # Let other tasks run, among them the one that gives back stale messages.
                await anyio.lowlevel.checkpoint()
                prefetcher = self._opened()
                prefetcher.ask(1)
            taken = prefetcher.take_one()
            if taken is not None:
                prefetcher.pass_on()
                if told is not None:
                    told([taken])
                return taken, self._grip(taken)
            prefetcher.check()
            prefetcher.ask(1)
            await prefetcher.wait(float("inf"), 1)

    async def _next_many(self, count: int, wait: float, invisible: float | None) -> list[Taken]:
        """Internal: the messages for `pop`."""
        told = None if self._recorder is None else self._recorder.popping()
        require(1 <= count <= COUNT_MAX, f"count is 1 to {COUNT_MAX}")
        require(wait >= 0, "wait must not be negative")
        asked = None if invisible is None else invisible_ms(invisible)
        await anyio.lowlevel.checkpoint()
        prefetcher = self._opened()
        self._pops += 1
        try:
            with self._for_time(asked):
                taken = await self._next_for(count, wait, asked)
            if told is not None:
                told(taken)
            return taken
        finally:
            self._pops -= 1
            prefetcher.pass_on()
            # Other pops need the standing requests, so only the last one ends them.
            if not self._settings.prefetch and not self._pops:
                prefetcher.leave()

    @contextmanager
    def _for_time(self, asked: int | None) -> Iterator[None]:
        """Around a pop for a lease time in milliseconds; None: for any time.

        Raises:
            Rejected: `BAD_ARGUMENT`, a pop for another time is under way. Each would take leases
                away from the other: this consumer has only one request at a leader.
        """
        if asked is None:
            yield
            return
        if self._pops_for_time and self._time_ms != asked:
            message = (
                f"a pop of this consumer for invisible={self._time_ms / 1000:g} is under way: pops "
                "for several times at once need a consumer each"
            )
            raise Rejected(Reason.BAD_ARGUMENT, message)
        self._time_ms = asked
        self._pops_for_time += 1
        try:
            yield
        finally:
            self._pops_for_time -= 1

    async def _next_for(self, count: int, wait: float, asked: int | None) -> list[Taken]:
        """Messages leased for a time in milliseconds; None: for any time."""
        prefetcher, begun = self._opened(), anyio.current_time()
        left = seconds_left(self._router, wait + self._router.seconds_max)
        if asked is not None:
            await self._make_invisible(asked, left())
        now = anyio.current_time()
        deadline = now + wait
        if not wait and not prefetcher.is_paused:
            # An empty result must be true: wait for each leader's answer, also after "try again".
            prefetcher.ask_again()
        while True:
            self._opened()
            taken = prefetcher.take(count, now)
            if taken:
                if self._settings.prefetch:
                    prefetcher.ask(count)
                return taken
            prefetcher.check()
            if not wait:
                if prefetcher.is_paused or not prefetcher.ask_due(count):
                    return []
                prefetcher.check_due(begun)
                await prefetcher.wait(begun + self._router.seconds_max)
            elif now >= deadline:
                return []
            else:
                prefetcher.ask(count, wait=deadline - now)
                await prefetcher.wait(deadline, count)
            if asked is not None:
                # The messages that came may be of a request for another time.
                await self._make_invisible(asked, left())
            now = anyio.current_time()

    async def _make_invisible(self, milliseconds: int, left: float) -> None:
        timeout = min(left, self._router.seconds_max)
        await self._opened().make_invisible(milliseconds, timeout)

    def _grip(self, taken: Taken) -> Grip:
        grip = Grip(taken.lease)
        if self._settings.renew is not None:
            taken.lease.grips.append((ref(grip), taken.bits))
        return grip

    def _opened(self) -> Prefetcher:
        if self._tasks is None or self._prefetcher is None:
            raise RaftmqError("the consumer is not open: enter it by `async with`, or `with`")
        self._tasks.check()
        return self._prefetcher

    def _open_settlements(self) -> Settlements:
        return self._opened().settlements

    def _fail(self, error: RaftmqError) -> None:
        """The client failed inside, or was closed: waiting calls end with the error."""
        if self._prefetcher is not None:
            self._prefetcher.settlements.fail(error)
            self._prefetcher.tell()

    def _end(self) -> None:
        if self._tasks is None or self._prefetcher is None or self._tasks.is_closed:
            return
        self._tasks.cancel()
        self._router.unwatch(self._prefetcher.follow_topic)
        self._router.pushed.unfollow(self._settings.use(self.topic), self._prefetcher.obey)
        self._fail(RaftmqError("the consumer was closed"))
        self._prefetcher.buffer.clear()


def _parts_of(messages: Iterable[LeasedMessage]) -> list[Part]:
    """Messages as bits of their leases."""
    if isinstance(messages, LeasedMessages):
        return messages.parts
    found: dict[HeldLease, int] = {}
    for message in messages:
        lease, bit = message.part
        found[lease] = found.get(lease, 0) | bit
    return list(found.items())
