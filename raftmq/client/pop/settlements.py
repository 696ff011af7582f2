"""The settlements of a consumer: calls that settle popped messages, and wait for the results.

A call may settle messages of many leases and partition groups. The call hands each to the sender
of its partition group, and waits until each has its answer, or until its time is over.
"""

from collections.abc import Callable, Sequence

import anyio

from raftmq.client.arguments import milliseconds, require
from raftmq.client.deferred_calls import DeferredCalls
from raftmq.client.message import format_id
from raftmq.client.recorders import PopRecorder
from raftmq.client.routing.refusals import reason_of
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import TaskScope
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.catalog.consumer_groups import DELAY_MS_MAX
from raftmq.pop.actions import Action
from raftmq.pop.policy import INVISIBLE_MS_MAX
from raftmq.pop.spans import offsets_of

from .leases import HeldLease, Holder, Part
from .settlement_sender import SettlementSender
from .tally import Gone, Settlement, Tally, Waiter


class Settlements:
    """The settlements of one consumer."""

    def __init__(
        self,
        router: Router,
        tasks: TaskScope,
        holder: Holder,
        recorder: PopRecorder | None = None,
    ) -> None:
        self._router = router
        self._tasks = tasks
        self._waiters: dict[Waiter, None] = {}
        self._senders: dict[int, SettlementSender] = {}
        # Results of settlements that no call waits for.
        self._tally = Tally()
        self._deferred = DeferredCalls(start=tasks.start)
        # Each takes the result of a call of `settle_nowait` since the last flush, for the recorder.
        self._unheard: list[Callable[[Settlement], None]] = []
        self.holder = holder
        """The consumer."""
        self.recorder = recorder
        """Observes the settlements; None: they are not recorded."""

    def sender(self, group: int) -> SettlementSender:
        """The settlements on their way to a partition group."""
        found = self._senders.get(group)
        if found is None:
            shared = self._router, self._tasks, self.holder, group, self._tally, self._deferred
            found = SettlementSender(*shared)
            self._senders[group] = found
        return found

    async def settle(
        self,
        parts: Sequence[Part],
        action: Action,
        *,
        delay_ms: int = -1,
        reason: str = "",
        timeout: float | None = None,
    ) -> Settlement:
        """Settle messages. Cancelling leaves each done or not done.

        Raises:
            Rejected: a number is out of its range, the reason is no text (`BAD_ARGUMENT`), or the
                group or topic is gone.
            Unavailable: no answer came in time, and nothing happened.
            OutcomeUnknown: some are settled, or may be; a repeat of the call tells.
        """
        require(-1 <= delay_ms <= DELAY_MS_MAX, f"delay is 0 to {DELAY_MS_MAX // 1000} s")
        reason = reason_of(reason)
        self._tasks.check()
        told = None
        if self.recorder is not None:
            argument = reason if action is Action.REJECT else delay_ms
            told = self.recorder.settling(parts, action, argument)
        waiter = Waiter()
        for lease, bits in parts:
            sender = self.sender(lease.group)
            sender.settle(lease, action, bits, waiter, delay_ms=delay_ms, reason=reason)
        await self.finish(waiter, timeout)
        settlement = Settlement(waiter.settled, waiter.gone)
        if told is not None:
            told(settlement)
        return settlement

    async def settle_one(
        self,
        part: Part,
        action: Action,
        *,
        delay_ms: int = -1,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        """Settle one message.

        Raises:
            Rejected: `FENCED`, the message is no longer this consumer's; else as `settle`.
        """
        settlement = await self.settle(
            [part], action, delay_ms=delay_ms, reason=reason, timeout=timeout
        )
        if not settlement.is_complete:
            raise _fenced(part)

    def settle_nowait(self, parts: Sequence[Part], action: Action) -> None:
        """Settle messages without waiting; `flush` returns the results."""
        self._tasks.check()
        if self.recorder is not None:
            self._unheard.append(self.recorder.settling(parts, action))
        for lease, bits in parts:
            self.sender(lease.group).settle(lease, action, bits, None)

    def give_back(self, lease: HeldLease, waiter: Waiter) -> None:
        """Give back the buffered messages of a lease, for any consumer."""
        self.sender(lease.group).settle(lease, Action.GIVE_BACK, lease.buffered, waiter)

    def join_all(self, waiter: Waiter) -> None:
        """Wait for all settlements under way that calls made without waiting."""
        for sender in self._senders.values():
            sender.join_all(waiter)

    def check_time(self, now: float) -> None:
        """Send requests again whose answers are overdue."""
        for sender in self._senders.values():
            sender.check_time(now)

    async def flush(self, *, timeout: float | None) -> Settlement:
        """See `PopConsumer.flush`."""
        self._tasks.check()
        unheard, self._unheard = self._unheard, []
        waiter = Waiter()
        self.join_all(waiter)
        # The settlements are of other calls, and go on when the time of this one is over.
        await self.finish(waiter, timeout, take_back=False)
        tally = self._tally
        settled, gone, error = tally.settled, tally.gone, tally.error
        tally.settled, tally.gone, tally.error = 0, [], None
        if error is not None:
            raise error
        settlement = Settlement(settled, gone)
        for told in unheard:
            told(settlement)
        return settlement

    async def extend(
        self, parts: Sequence[Part], seconds: float, *, timeout: float | None = None
    ) -> Settlement:
        """Let the leases of messages run longer.

        Raises:
            As `settle`.
        """
        asked_ms = lease_ms(seconds, "seconds")
        self._tasks.check()
        told = None
        if self.recorder is not None:
            told = self.recorder.settling(parts, Action.EXTEND, asked_ms)
        waiter = Waiter()
        for lease, bits in parts:
            if lease.lost(bits) != bits:
                self.sender(lease.group).extend(lease, asked_ms, waiter)
        await self.finish(waiter, timeout)
        gone = []
        for lease, bits in parts:
            if lost := lease.lost(bits):
                lease.unlisted &= ~lost
                gone.append(Gone(lease.queue_number, lease.token, lease.base, lost))
        settlement = Settlement(0, gone)
        if told is not None:
            told(settlement)
        return settlement

    async def extend_one(self, part: Part, seconds: float, *, timeout: float | None = None) -> None:
        """Let the lease of a message run longer.

        Raises:
            Rejected: `FENCED`, the message is no longer this consumer's; else as `settle`.
        """
        settlement = await self.extend([part], seconds, timeout=timeout)
        if not settlement.is_complete:
            raise _fenced(part)

    def fail(self, error: RaftmqError) -> None:
        """The client failed inside, or was closed: waiting calls end with the error."""
        # `Unavailable` would say that nothing happened.
        if isinstance(error, Unavailable):
            error = OutcomeUnknown(f"{error}; the messages under way may be settled")
        for waiter in self._waiters:
            waiter.fail(error)

    async def finish(
        self, waiter: Waiter, timeout: float | None, *, take_back: bool = True
    ) -> None:
        """Wait until a call's settlements have their results, or its time is over; then, with
        `take_back`, those that have not left are taken back.

        Raises:
            As `settle`.
        """
        self._waiters[waiter] = None
        try:
            with anyio.move_on_after(self._router.seconds_max if timeout is None else timeout):
                await waiter.wait()
        finally:
            del self._waiters[waiter]
        if waiter.error is not None:
            raise waiter.error
        if not waiter.open:
            return
        senders = self._senders.values()
        is_doubtful = [sender.withdraw(waiter, take_back=take_back) for sender in senders]
        what = f"a settlement of messages of {self.holder.topic!r} was not answered in time"
        if any(is_doubtful):
            raise OutcomeUnknown(f"{what}; it may have been done: {self._router.last_error}")
        if waiter.done:
            told = f"{waiter.settled} of its messages are settled, the others are not"
            raise OutcomeUnknown(f"{what}; {told}: {self._router.last_error}")
        raise Unavailable(f"{what}: {self._router.last_error}")


def _fenced(part: Part) -> Rejected:
    lease, bit = part
    (offset,) = offsets_of(lease.base, bit)
    message = (
        f"message {format_id(lease.queue_number, offset)} is no longer yours: the time of lease "
        f"{lease.token} ran out, or it was settled in another way"
    )
    return Rejected(Reason.FENCED, message)


def lease_ms(seconds: float, name: str) -> int:
    """How long a lease is to run from now on, in milliseconds.

    Raises:
        Rejected: `BAD_ARGUMENT`, the time is out of its range.
    """
    asked = milliseconds(seconds, name)
    longest = INVISIBLE_MS_MAX // 1000
    require(0 < asked <= INVISIBLE_MS_MAX, f"{name} is more than 0 and up to {longest} s")
    return asked
