"""Settling: acks and other settlements on their way to one partition group's leader, each once.

One request is under way at a time. Later settlements gather meanwhile, and equal ones are merged:
the acks of a lease are one item, from however many calls. Settlements that no call waits for gather
for `GATHER_SECONDS`, or until a call waits for one, since a request is an entry of the log; not in
groups that keep an order, where an ack lets the next message out.

    settle(lease, ACK, bits) ──> gathered: (token, action) → Item ──> flight: SETTLE, sequence 7
                                                                  <── Settled: which of each

A request is sent again under its sequence number, to each new leader, until it is answered. The
machine remembers the last sequence of each consumer with its results, so a repeat gets the answer
that was lost.

All messages of an item are settled or none, but for those that retention, a hand-off, or another
process by handle took. The answer says which are settled.

In a group that keeps the order of queues, a settlement other than an ack takes all later messages
of its lease along. Those that the application has not seen go back at once, by an item of their
own, as the first item may reach the leader late, or never.

A call that runs out of time takes back the items that never left (`Unavailable`: nothing
happened). Items that may have left stay under way (`OutcomeUnknown`); a repeat of the call joins
them, or finds their results.

Invariants:
- A message is in one item at most (`HeldLease.busy`), so several calls settle it once.
- The bytes of a request change only if no attempt of it can have left.
- Items leave in the order in which they were first put.

Sources: Kafka's share consumer (KIP-932), which merges acknowledgements into its next fetch.
"""

from dataclasses import dataclass
from functools import partial

import anyio

from raftmq.client.deferred_calls import DeferredCalls
from raftmq.client.routing.calls import ATTEMPT_SECONDS_MAX, wait_leader
from raftmq.client.routing.connection import Answer, Connection, Lost, Request
from raftmq.client.routing.refusals import (
    ASKED_AGAIN,
    IN_DOUBT,
    NOT_LEADER,
    exception_of,
    header_of,
    over_limit,
    refusal_of,
)
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import TaskScope
from raftmq.errors import ProtocolError, RaftmqError, Rejected
from raftmq.pop.actions import FENCED, OVER_LIMIT, Action
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import REPLY, ErrorReply, FrameKind
from raftmq.wire.popping import SETTLE_ITEMS_MAX, Settle, Settled

from .lease_bits import results_of, settled_of
from .leases import HeldLease, Holder, Item
from .tally import Gone, Tally, Waiter

HEADER_BYTES = 128 * 1024
"""Rough limit of a request's header; a broker refuses more than 256 KiB."""
ITEM_BYTES = 40
"""Size of an item in a request, besides its bits and its reason."""
GATHER_SECONDS = 0.01
"""How long acks without a waiting call gather: short beside a lease, long beside a hand-out."""
GONE_MAX = 10_000
"""Fenced parts of leases kept for a `flush`; the bound saves the memory if none comes."""

_SETTLED = FrameKind.SETTLE | REPLY


@dataclass(slots=True, eq=False)
class _Flight:
    """A request on its way, through any number of attempts."""

    sequence: int
    items: list[Item]
    header: bytes = b""
    connection: Connection | None = None
    request: Request | None = None
    posted_at: float = 0.0
    is_doubtful: bool = False
    is_recovering: bool = False
    failures: int = 0

    def may_have_left(self) -> bool:
        """May a node have got the request?"""
        return self.is_doubtful or (self.request is not None and self.request.is_written)


class SettlementSender:
    """The settlements of one consumer in one partition group."""

    def __init__(
        self,
        router: Router,
        tasks: TaskScope,
        holder: Holder,
        group: int,
        tally: Tally,
        deferred: DeferredCalls,
    ) -> None:
        """`tally` gets the results of settlements that no call waits for; `deferred` makes calls
        once other tasks have run."""
        self._router = router
        self._tasks = tasks
        self._holder = holder
        self._group = group
        self._tally = tally
        self._deferred = deferred
        self._gathered: dict[tuple[object, ...], Item] = {}
        self._flight: _Flight | None = None
        self._sequence = 0
        # True if the last answer ended several calls.
        self._is_shared = False
        # True if a call waits for gathered items; and if a task will send them anyway.
        self._is_urgent = False
        self._is_timed = False

    # -- for calls -------------------------------------------------------------------------------

    def settle(
        self,
        lease: HeldLease,
        action: Action,
        bits: int,
        waiter: Waiter | None,
        *,
        delay_ms: int = -1,
        reason: str = "",
    ) -> None:
        """Settle messages of a lease as soon as possible, unless they are settled already."""
        fresh = bits & lease.held
        if fresh:
            lease.start(fresh)
            item = self._item(lease, action, delay_ms, reason)
            item.bits |= fresh
            if waiter is not None:
                item.join(waiter, fresh)
                self._is_urgent = True
            else:
                item.quiet |= fresh
            if action is not Action.ACK and lease.keeps_order:
                self._stop(lease, fresh)
        if fresh != bits:
            self._settle_rest(lease, action, bits ^ fresh, waiter)
        self._pump_in_time()

    def extend(self, lease: HeldLease, milliseconds: int, waiter: Waiter | None) -> None:
        """Let a lease run for this time from the arrival; the last of gathered extensions wins."""
        item = self._item(lease, Action.EXTEND, milliseconds, "")
        item.delay_ms = milliseconds
        if waiter is not None:
            item.join(waiter, 0)
        else:
            item.is_kept = True
        self._is_urgent = True
        self._pump()

    def join_all(self, waiter: Waiter) -> None:
        """Wait for all items under way now that calls put without waiting."""
        items = list(self._gathered.values())
        if self._flight is not None:
            items += self._flight.items
        for item in items:
            if item.quiet:
                item.join(waiter, 0)
        self._is_urgent = True
        self._pump()

    def withdraw(self, waiter: Waiter, *, take_back: bool = True) -> bool:
        """A call stops waiting: take back messages that only it wanted, if they have not left.

        Returns:
            True if some of the call's messages may be settled nevertheless.
        """
        flight = self._flight
        is_doubtful = False
        if flight is not None and any(w is waiter for i in flight.items for w, _ in i.waiters):
            # Bytes in the outbox can still leave, and would name messages that are taken back.
            if take_back and not flight.may_have_left():
                self._unpost(flight)
            can_be = take_back and not flight.may_have_left()
            left = [item.leave(waiter, take_back=can_be) for item in flight.items]
            is_doubtful = any(left)
        for item in self._gathered.values():
            is_doubtful |= item.leave(waiter, take_back=take_back)
        if take_back:
            self._drop_empty()
        return is_doubtful

    def check_time(self, now: float) -> None:
        """Send the request again if its answer is overdue."""
        flight = self._flight
        if flight is None or flight.request is None or flight.connection is None:
            return
        if now >= flight.posted_at + ATTEMPT_SECONDS_MAX:
            flight.is_doubtful |= flight.request.is_written
            flight.connection.forget(flight.request)
            flight.request = None
            self._recover(flight)

    # -- inside ----------------------------------------------------------------------------------

    def _stop(self, lease: HeldLease, bits: int) -> None:
        """These messages of a lease were not acked: hand on none that may not come before them."""
        withheld = lease.stop(bits)
        if withheld:
            # No call waits for this item; the leader refuses it if the lease is gone already.
            self.settle(lease, Action.GIVE_BACK, withheld, Waiter())

    def _settle_rest(
        self, lease: HeldLease, action: Action, rest: int, waiter: Waiter | None
    ) -> None:
        """Answer for messages that are settled, busy, or gone."""
        known = rest & lease.done.get(action, 0)
        rest ^= known
        if known and waiter is not None:
            waiter.settled += known.bit_count()
        if rest & lease.busy:
            rest = _join_busy(lease, action, rest, waiter)
        if rest:
            lease.unlisted &= ~rest
            self._tell_gone(lease, rest, [(waiter, rest)] if waiter is not None else [])

    def _item(self, lease: HeldLease, action: Action, delay_ms: int, reason: str) -> Item:
        key: tuple[object, ...] = (
            (lease.token, action)
            if action in {Action.ACK, Action.EXTEND}
            else (lease.token, action, delay_ms, reason)
        )
        item = self._gathered.get(key)
        if item is None:
            item = self._gathered[key] = Item(lease, action, delay_ms, reason)
            lease.items.append(item)
        return item

    def _pump_in_time(self, *, is_after_answer: bool = False) -> None:
        """Send the gathered items: now if a call waits for one of them, else soon."""
        may_start = bool(self._gathered) and not self._tasks.is_closed
        if self._is_urgent or self._holder.is_ordered:
            if self._is_shared and may_start and self._flight is None:
                # The callers that the last answer woke settle their next messages at once, too.
                self._deferred.add(self._pump, is_after_answer=is_after_answer)
            else:
                self._pump()
        elif may_start and not self._is_timed:
            self._is_timed = True
            self._tasks.start(self._pump_soon)

    async def _pump_soon(self) -> None:
        await anyio.sleep(GATHER_SECONDS)
        self._is_timed = False
        self._pump()

    def _pump(self) -> None:
        """Send the gathered items, unless a request is under way."""
        if self._flight is not None or not self._gathered or self._tasks.is_closed:
            return
        items: list[Item] = []
        size = 0
        for key in list(self._gathered):
            item = self._gathered[key]
            size += ITEM_BYTES + item.bits.bit_length() // 8 + 4 * len(item.reason)
            if items and (size > HEADER_BYTES or len(items) == SETTLE_ITEMS_MAX):
                break
            items.append(item)
            del self._gathered[key]
        self._is_urgent = any(i.waiters or i.is_kept for i in self._gathered.values())
        self._sequence += 1
        self._flight = _Flight(self._sequence, items)
        self._send(self._flight)

    def _send(self, flight: _Flight) -> None:
        connection = self._router.open_leader(self._group)
        if connection is None:
            self._recover(flight)
            return
        # A node may know this number by the old bytes: only they may be sent under it.
        if not flight.is_doubtful:
            flight.header = self._packed(flight)
            if not flight.items:
                self._drop_flight()
                return
        answered = partial(self._answered, flight, connection)
        flight.connection, flight.posted_at = connection, anyio.current_time()
        flight.request = connection.post(FrameKind.SETTLE, flight.header, (), answered)

    def _packed(self, flight: _Flight) -> bytes:
        """The request's header. A settlement that cannot be packed fails alone."""
        head = (self._group, self._holder.number, self._holder.consumer, flight.sequence)
        try:
            return pack(Settle(*head, [item.wire() for item in flight.items]))
        except (TypeError, ValueError):
            # Else the flight would never end, and all later items would wait behind it.
            for item in list(flight.items):
                try:
                    header_of(item.wire())
                except Rejected as error:
                    flight.items.remove(item)
                    self._fail(item, error)
            return pack(Settle(*head, [item.wire() for item in flight.items]))

    def _unpost(self, flight: _Flight) -> None:
        """Take the request back from a connection that has not written it."""
        if flight.request is not None and flight.connection is not None:
            flight.connection.forget(flight.request)
            flight.request = None
            # Recovery packs the request again, of the items left.
            self._recover(flight)

    def _drop_empty(self) -> None:
        for key, item in list(self._gathered.items()):
            if item.is_empty:
                del self._gathered[key]
                item.lease.items.remove(item)
        flight = self._flight
        if flight is None or flight.may_have_left():
            return
        for item in [item for item in flight.items if item.is_empty]:
            flight.items.remove(item)
            item.lease.items.remove(item)
        if not flight.items:
            self._drop_flight()

    def _drop_flight(self) -> None:
        # No leader has seen the flight's number, so the next flight may have it.
        self._sequence -= 1
        self._flight = None
        self._pump()

    def _recover(self, flight: _Flight, retry_ms: int = 0) -> None:
        """Look for the leader in the background; then send the request again."""
        # One search at a time: the search that runs ends by sending the request.
        if flight.is_recovering or self._tasks.is_closed:
            return
        flight.is_recovering = True
        flight.failures += 1
        failures = flight.failures

        async def find() -> None:
            await wait_leader(self._router, self._group, failures, retry_ms / 1000)
            flight.is_recovering = False
            # Calls that ran out of time may have taken all its items back meanwhile.
            if self._flight is flight and flight.request is None:
                self._send(flight)

        self._tasks.start(find)

    def _answered(self, flight: _Flight, connection: Connection, answer: Answer) -> None:
        if self._flight is not flight:
            return
        flight.request = None
        if isinstance(answer, Lost):
            # Bytes that have left may be carried out although their answer is lost.
            flight.is_doubtful |= answer.was_written
            self._recover(flight)
            return
        try:
            refusal = refusal_of(answer)
            if refusal is not None:
                self._refused(flight, connection, refusal)
                return
            if answer.kind != _SETTLED:
                raise ProtocolError(f"a settlement was answered by a frame of kind {answer.kind}")
            results = results_of(unpack(Settled, answer.header), len(flight.items))
        except ProtocolError as error:
            # An answer that cannot be read may be to a request that was carried out.
            flight.is_doubtful = True
            connection.close_for(error)
            self._recover(flight)
            return
        self._flight = None
        self._is_shared = sum(len(item.waiters) for item in flight.items) > 1
        for item, (result, which) in zip(flight.items, results, strict=True):
            self._resolve(item, result, which)
        self._pump_in_time(is_after_answer=True)

    def _refused(self, flight: _Flight, connection: Connection, refusal: ErrorReply) -> None:
        code = refusal.code
        if code not in ASKED_AGAIN:
            # Every leader would refuse the request alike, for example as the group is deleted.
            self._flight = None
            for item in flight.items:
                self._fail(item, exception_of(refusal))
            self._pump_in_time()
            return
        # From a doubtful attempt on, only the same bytes may go under this number: see `_send`.
        flight.is_doubtful |= code in IN_DOUBT
        if code == NOT_LEADER:
            self._router.not_leader(self._group, connection.node, refusal.leader)
        self._recover(flight, refusal.retry_ms)

    def _resolve(self, item: Item, result: int, which: bytes) -> None:
        lease, bits = item.lease, item.bits
        if result == OVER_LIMIT:
            self._fail(item, over_limit(item.action, item.delay_ms))
            return
        lease.items.remove(item)
        if item.action is Action.EXTEND:
            self._extended(item, result)
            return
        lost = bits ^ settled_of(bits, result, which)
        lease.finish(item.action, bits ^ lost, lost)
        if lease.keeps_order:
            self._resolve_order(item, bits ^ lost)
        self._tally.settled += (item.quiet & ~lost).bit_count()
        for waiter, wanted in item.waiters:
            waiter.settled += (wanted & ~lost).bit_count()
        if lost:
            self._tell_gone(lease, lost, item.waiters)
        for waiter, _ in item.waiters:
            waiter.close_one()

    def _resolve_order(self, item: Item, settled: int) -> None:
        """In an ordered group: apply a result to the rest of the lease."""
        lease = item.lease
        lost = item.bits & ~settled
        if lost and (lease.has_runs or not settled):
            # The lease is over, or retention took the messages: the client cannot tell which.
            self._stop(lease, lost)
        if settled and item.action is not Action.ACK:
            lease.lose(lease.behind(settled))

    def _extended(self, item: Item, result: int) -> None:
        lease = item.lease
        gone = 0
        if result == FENCED:
            # A token that is fenced for an extension is over for all messages of the lease.
            gone = lease.held
            lease.lose(gone)
        else:
            lease.extended(anyio.current_time(), result)
        for waiter, _ in item.waiters:
            if result == FENCED:
                waiter.gone.append(Gone(lease.queue_number, lease.token, lease.base, gone))
            waiter.close_one()

    def _fail(self, item: Item, error: RaftmqError) -> None:
        if item in item.lease.items:
            item.lease.items.remove(item)
        item.lease.undo(item.bits)
        if item.quiet:
            self._tally.error = error
        for waiter, _ in item.waiters:
            waiter.error = error
            waiter.close_one()

    def _tell_gone(self, lease: HeldLease, lost: int, waiters: list[tuple[Waiter, int]]) -> None:
        untold = lost
        for waiter, wanted in waiters:
            if wanted & lost:
                waiter.gone.append(Gone(lease.queue_number, lease.token, lease.base, wanted & lost))
                untold &= ~wanted
        if untold and len(self._tally.gone) < GONE_MAX:
            self._tally.gone.append(Gone(lease.queue_number, lease.token, lease.base, untold))


def _join_busy(lease: HeldLease, action: Action, bits: int, waiter: Waiter | None) -> int:
    """Join the items under way with the same action; returns the bits that none of them has."""
    for item in lease.items:
        same = item.bits & bits
        if same and item.action is action:
            bits &= ~same
            if waiter is not None:
                item.join(waiter, same)
    return bits
