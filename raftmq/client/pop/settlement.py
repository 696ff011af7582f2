"""The settlements of a consumer: calls that settle popped messages, and wait for the results.

A call may settle messages of many leases and partition groups. The call waits until each has its
answer, or until its time is over.
"""

from collections.abc import Sequence

import anyio

from raftmq.client.consume.start import require
from raftmq.client.message import format_id
from raftmq.client.routing.refusals import reason_of
from raftmq.client.routing.requests import seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import TaskScope
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.catalog.consumer_groups import DELAY_MS_MAX
from raftmq.wire.popping import Action

from .leases import offsets_of
from .popped import Part, Settlement
from .prefetcher import Prefetcher, lease_ms
from .settlement_sender import Gone, Waiter


class Settlements:
    """The settlements of one consumer."""

    def __init__(
        self, router: Router, tasks: TaskScope, prefetcher: Prefetcher, topic: str
    ) -> None:
        self._router = router
        self._tasks = tasks
        self._prefetcher = prefetcher
        self._topic = topic
        self._waiters: dict[Waiter, None] = {}

    @property
    def consumer(self) -> tuple[int, int]:
        """The attachment's number, and the consumer's."""
        holder = self._prefetcher.holder
        return holder.number, holder.consumer

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
        waiter = Waiter()
        for lease, bits in parts:
            settler = self._prefetcher.sessions[lease.group].settler
            settler.settle(lease, action, bits, waiter, delay_ms=delay_ms, reason=reason)
        await self._finish(waiter, timeout)
        return Settlement(waiter.settled, waiter.gone)

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
        for lease, bits in parts:
            self._prefetcher.sessions[lease.group].settler.settle(lease, action, bits, None)

    async def flush(self, *, timeout: float | None) -> Settlement:
        """See `PopConsumer.flush`."""
        self._tasks.check()
        waiter = Waiter()
        for session in self._prefetcher.sessions.values():
            session.settler.join_all(waiter)
        await self._finish(waiter, timeout, take_back=False)
        tally = self._prefetcher.tally
        settled, gone, error = tally.settled, tally.gone, tally.error
        tally.settled, tally.gone, tally.error = 0, [], None
        if error is not None:
            raise error
        return Settlement(settled, gone)

    async def extend(
        self, parts: Sequence[Part], seconds: float, *, timeout: float | None = None
    ) -> Settlement:
        """Let the leases of messages run longer.

        Raises:
            As `settle`.
        """
        milliseconds = lease_ms(seconds, "seconds")
        self._tasks.check()
        waiter = Waiter()
        for lease, bits in parts:
            if lease.lost(bits) != bits:
                self._prefetcher.sessions[lease.group].settler.extend(lease, milliseconds, waiter)
        await self._finish(waiter, timeout)
        gone = []
        for lease, bits in parts:
            if lost := lease.lost(bits):
                lease.unlisted &= ~lost
                gone.append(Gone(lease.queue_number, lease.token, lease.base, lost))
        return Settlement(0, gone)

    async def extend_one(self, part: Part, seconds: float, *, timeout: float | None = None) -> None:
        """Let the lease of a message run longer.

        Raises:
            Rejected: `FENCED`, the message is no longer this consumer's; else as `settle`.
        """
        settlement = await self.extend([part], seconds, timeout=timeout)
        if not settlement.is_complete:
            raise _fenced(part)

    async def make_invisible(self, milliseconds: int, timeout: float) -> None:
        """Set the length of the leases of later pops, and of those on the buffer. No lease gets
        shorter: the shelved messages of longer leases go back.

        Raises:
            As `settle`.
        """
        left = seconds_left(self._router, timeout)
        waiter = Waiter()
        extended = self._prefetcher.make_invisible(milliseconds, waiter)
        while waiter.open:
            await self._finish(waiter, left())
            for lease in extended:
                lease.invisible_ms = milliseconds
                lease.set_stale(anyio.current_time())
            # Messages of a wish with the old length may have come meanwhile.
            waiter = Waiter()
            extended = self._prefetcher.make_invisible(milliseconds, waiter, is_again=True)

    def fail(self, error: RaftmqError) -> None:
        """The client failed inside, or was closed: waiting calls end with the error."""
        if isinstance(error, Unavailable):
            error = OutcomeUnknown(f"{error}; what was being settled may be settled")
        for waiter in self._waiters:
            waiter.fail(error)

    async def _finish(
        self, waiter: Waiter, timeout: float | None, *, take_back: bool = True
    ) -> None:
        """Wait until a call's settlements have their results, or its time is over."""
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
        sessions = self._prefetcher.sessions.values()
        is_doubtful = [s.settler.withdraw(waiter, take_back=take_back) for s in sessions]
        what = f"a settlement of messages of {self._topic!r} was not answered in time"
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
        f"message {format_id(lease.queue_number, offset)} is not yours any more: the time of lease "
        f"{lease.token} ran out, or it was settled in another way"
    )
    return Rejected(Reason.FENCED, message)
