"""A session: one partition group as a consumer that pops sees it, with its requests and leases.

A request is a `POP` at the group's leader, one at a time: a number of messages, and a time to wait.
The leader answers when it has handed out messages. The first request on a connection, or after a
`LEAVE`, is *resumed*: the leader lists all messages that the consumer has in hand, in one or more
answers.

| the answer lists | the client |
|---|---|
| a token that it does not know | has a new lease: an answer was lost |
| a token that it knows | has no new messages by it, but for those that it never saw |
| a token no more | counts that lease as lost |
| that token again, later | has it in hand again, unless the application heard that it is lost |

Invariants:
- A lease is forgotten only when a request is sent and no message of the lease was left before: no
  answer to a later request can list the lease as if it were new.
- An unlisted message counts as lost only at the end of a whole list, and only if no settlement of
  the message is under way.

Left out: messages that cannot be read; they come again, and are dead letters in the end. In a lease
that keeps an order the messages behind them are given back.

Sources: MQTT 5 §4.4 (delivery again when a session is resumed).
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import anyio

from raftmq.batch import Batch
from raftmq.client.consume.read_ahead import StoredBatch, batches_in
from raftmq.client.message import decode
from raftmq.client.routing.calls import ATTEMPT_SECONDS_MAX, wait_leader
from raftmq.client.routing.connection import Answer, Connection, Lost, Request
from raftmq.client.routing.refusals import ASKED_AGAIN, NOT_LEADER, exception_of, refusal_of
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import TaskScope
from raftmq.errors import ProtocolError, RaftmqError, UnreadableBatch
from raftmq.pop.actions import Action
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import (
    REPLY,
    ErrorReply,
    FrameKind,
)
from raftmq.wire.popping import Lease, Leave, Pop, Popped

from .leases import HeldLease
from .prefetch_buffer import PrefetchBuffer
from .settlements import Settlements
from .tally import Waiter

POP_BYTES = 2 * 1024 * 1024
"""Limit of an answer: two full batches of the default size, so that it is worth its round trip."""
GRACE_SECONDS = 60.0
"""A lease is forgotten this long after its end, also if some of its messages are unsettled."""

_POPPED = FrameKind.POP | REPLY


class _PopRequest:
    __slots__ = (
        "connection",
        "count",
        "invisible_ms",
        "is_kept",
        "posted_at",
        "sent",
        "wait_ms",
    )

    def __init__(
        self, connection: Connection, count: int, wait_ms: int, invisible_ms: int, *, is_kept: bool
    ) -> None:
        self.connection = connection
        self.count = count
        self.wait_ms = wait_ms
        self.invisible_ms = invisible_ms
        self.is_kept = is_kept
        self.posted_at = anyio.current_time()
        self.sent: Request | None = None


class _Stored(NamedTuple):
    """A batch in an answer."""

    base: int
    batch: Batch
    size: int


class PopSession:
    """One partition group."""

    def __init__(
        self,
        router: Router,
        tasks: TaskScope,
        settlements: Settlements,
        group: int,
        buffer: PrefetchBuffer,
        on_news: Callable[[], None],
    ) -> None:
        """`buffer` takes the messages that come; `on_news` is called when some came or something
        changed."""
        self._router = router
        self._tasks = tasks
        self._settlements = settlements
        self._holder = settlements.holder
        self._buffer = buffer
        self._on_news = on_news
        self._request: _PopRequest | None = None
        # The connection on which our leases were listed, or are being listed.
        self._told_on: Connection | None = None
        # Token → messages, while a list goes on.
        self._listed: dict[int, int] | None = None
        self._has_asked = False
        # Messages that the leader may still hand out to the last request, and until when.
        self._credit = 0
        self._credit_until = 0.0
        # The leader may still serve the last request: its answer listed messages in hand only.
        self._may_stand = False
        self._failures = 0
        self._prune_at = 16
        self.group = group
        """The partition group."""
        self.leases: dict[int, HeldLease] = {}
        """Token → lease, for all leases that an answer may still list."""
        self.lost_since: float | None = None
        """Since when the leader is looked for, by the event loop's clock; None: it is not."""
        self.error: RaftmqError | None = None
        """The final refusal of a request; None: none came."""
        self.is_due = False
        """True: `Prefetcher.ask_again` wants an answer that lists messages, and none has come
        since."""
        self.why = ""
        """The text of the last refusal; empty: the last answer was no refusal."""
        self.unreadable: RaftmqError | None = None
        """Why messages that were handed out could not be read."""
        self.is_more = False
        """True if more messages were handed out than fitted into the last answer."""
        self.filled_at: float | None = None
        """When the last answer came, if it was full; else None."""
        self.is_short = False
        """True if the application took all of a full answer and waited for the next one."""
        self.depth = 0
        """Number of messages asked for ahead."""

    @property
    def is_asking(self) -> bool:
        """True while a request is under way."""
        return self._request is not None

    @property
    def is_unheard(self) -> bool:
        """True if this consumer may have messages that no answer has listed: a request is or may
        be under way, or ended without an answer, and no whole list has come since."""
        is_asking = self._request is not None or self.credit > 0 or self._may_stand
        return is_asking or (self._has_asked and self._told_on is None)

    @property
    def is_idle(self) -> bool:
        """True if the session may be asked."""
        return self._request is None and self.error is None and self.lost_since is None

    @property
    def credit(self) -> int:
        """Messages that the last request may still bring. They are asked for at once: without a
        request the leader sends none."""
        return self._credit if anyio.current_time() < self._credit_until else 0

    def is_waiting_since(self, before: float) -> bool:
        """True if the standing request was sent before this time."""
        return self._request is not None and self._request.posted_at < before

    def ask_rest(self, *, invisible_ms: int) -> None:
        """Ask for the rest of the credit, in the rest of its time; only if the session is idle."""
        wait_ms = round((self._credit_until - anyio.current_time()) * 1000)
        self.ask(self._credit, wait_ms=max(wait_ms, 1), invisible_ms=invisible_ms, is_kept=True)

    def ask(self, count: int, *, wait_ms: int, invisible_ms: int, is_kept: bool = False) -> None:
        """Ask for messages; only if the session is idle. A kept request may leave credit."""
        assert self.is_idle
        connection = self._router.open_leader(self.group)
        if connection is None:
            self._find_leader()
            return
        self._forget_leases()
        self._has_asked = True
        # Answers can be lost with the former connection or leader: only a whole list tells which
        # messages are in hand.
        is_resumed = connection is not self._told_on
        if is_resumed:
            self._told_on, self._listed = connection, {}
        holder = self._holder
        self._credit = 0
        # A list of messages in hand answers a resumed request, but does not use it up. A kept one
        # counts as credit instead.
        self._may_stand = is_resumed and count > 0 and not is_kept
        request = _PopRequest(connection, count, wait_ms, invisible_ms, is_kept=is_kept)
        self._request = request
        message = Pop(
            partition_group=self.group,
            number=holder.number,
            consumer=holder.consumer,
            count=count,
            wait_ms=wait_ms,
            invisible_ms=invisible_ms,
            bytes_max=POP_BYTES,
            is_resumed=is_resumed,
            subscribed=holder.subscribed,
            is_kept=is_kept,
        )
        answered = partial(self._answered, request)
        request.sent = connection.post(FrameKind.POP, pack(message), (), answered)

    def leave(self, *, at_end: bool = False) -> None:
        """End the request. The next answer lists the messages that were handed out meanwhile.

        A request whose answer listed only messages in hand may stand until the next request takes
        its place. With `at_end` there is no next request, and a message given back must not come
        here again.
        """
        request, self._request = self._request, None
        connection = self._told_on if self.credit or (at_end and self._may_stand) else None
        self._credit = 0
        if request is not None and request.sent is not None:
            request.connection.forget(request.sent)
            connection = request.connection
        if connection is None:
            return
        self._may_stand = False
        self._told_on = self._listed = None
        if connection.is_open:
            holder = self._holder
            message = Leave(self.group, holder.number, holder.consumer)
            connection.post(FrameKind.LEAVE, pack(message), (), lambda _: None)

    def depart(self) -> None:
        """Free the consumer's place on the leader: it ends, and no request is under way."""
        connection = self._told_on
        if self._request is None and connection is not None and connection.is_open:
            self._told_on = self._listed = None
            holder = self._holder
            message = Leave(self.group, holder.number, holder.consumer, is_idle=True)
            connection.post(FrameKind.LEAVE, pack(message), (), lambda _: None)

    def check_time(self, now: float) -> None:
        """Give up a request whose answer is overdue."""
        request = self._request
        if request is None or request.sent is None:
            return
        if now >= request.posted_at + request.wait_ms / 1000 + ATTEMPT_SECONDS_MAX:
            request.connection.forget(request.sent)
            self._request = None
            self._start_again()

    def renew(self, seconds: float, now: float) -> None:
        """Extend leases in the application's hands with less than half of `seconds` left."""
        for lease in list(self.leases.values()):
            if not lease.grips or lease.deadline >= now + seconds / 2:
                continue
            is_under_way = any(item.action is Action.EXTEND for item in lease.items)
            if not is_under_way and lease.in_hand():
                self._settlements.sender(self.group).extend(lease, round(seconds * 1000), None)

    def forgive(self) -> None:
        """Count the time of a lost leader from now."""
        if self.lost_since is not None:
            self.lost_since = anyio.current_time()

    # -- answers ---------------------------------------------------------------------------------

    def _answered(self, request: _PopRequest, answer: Answer) -> None:
        if self._request is not request:
            return  # `leave` or `check_time` gave it up: a later list has its messages
        self._request = None
        connection = request.connection
        self.is_more = False
        if isinstance(answer, Lost):
            self._start_again()
        else:
            try:
                self._take_answer(request, answer)
            except ProtocolError as error:
                connection.close_for(error)
                self._start_again()
        self._on_news()

    def _take_answer(self, request: _PopRequest, answer: Answer) -> None:
        assert not isinstance(answer, Lost)
        refusal = refusal_of(answer)
        if refusal is not None:
            self._refused(request.connection, refusal)
            return
        if answer.kind != _POPPED:
            raise ProtocolError(f"a POP was answered by a frame of kind {answer.kind}")
        popped = unpack(Popped, answer.header)
        self._router.note_throttled(popped.throttle_ms)
        # Even an empty answer is what `ask_again` wants: the leader had no messages for us.
        self.is_due, self.why = False, ""
        buffered = self._read(request, popped, answer.body)
        # A full answer soon followed by the next request lets `Prefetcher.ask` double `depth`.
        is_filled = buffered >= request.count > 0 or popped.is_more
        self.filled_at = anyio.current_time() if is_filled else None
        self.is_more = popped.is_more
        if request.is_kept:
            # The leader goes on handing out against the rest, until the time asked for is over.
            self._credit = max(request.count - buffered, 0)
            self._credit_until = request.posted_at + request.wait_ms / 1000
        if not popped.is_more:
            # Before the last answer of a list, a message not listed may still come.
            self._end_list()
        seconds = anyio.current_time() - request.posted_at
        is_early = seconds < request.wait_ms / 2000
        if not buffered and (self.unreadable is not None or is_early):
            # A new request at once would end alike, in a loop without a pause.
            self.is_more = False
            self._find_leader()
        else:
            self._failures = 0

    def _read(self, request: _PopRequest, popped: Popped, body: bytes) -> int:
        """Buffer the messages of an answer; returns the number of new ones."""
        stored: dict[int, list[_Stored]] = {}
        for queue, batches in batches_in(popped.queues, body):
            stored[queue.queue] = self._decoded(queue.queue, batches)
        now = anyio.current_time()
        before = self._buffer.counts.get(self.group, 0)
        for entry in popped.leases:
            self._take_lease(request, entry, stored.get(entry.queue, []), now, popped)
        return self._buffer.counts.get(self.group, 0) - before

    def _decoded(self, queue: int, batches: list[StoredBatch]) -> list[_Stored]:
        found: list[_Stored] = []
        for base, timestamp, payload in batches:
            try:
                batch = decode(payload, base, timestamp, queue, self._holder.topic)
            except UnreadableBatch as error:
                # The other batches are handed on first: see `Prefetcher.check`.
                self.unreadable = error
                continue
            if batch.head.queue != queue:
                message = f"a batch of queue {batch.head.queue} came as one of {queue}"
                raise ProtocolError(message)
            found.append(_Stored(base, batch, len(payload)))
        found.sort(key=lambda each: each.base)
        return found

    def _take_lease(
        self,
        request: _PopRequest,
        entry: Lease,
        batches: list[_Stored],
        now: float,
        popped: Popped,
    ) -> None:
        bits = int.from_bytes(entry.bits, "little")
        if not bits or entry.token <= 0 or entry.base < 0:
            raise ProtocolError(f"lease {entry.token} holds no messages")
        lease = self.leases.get(entry.token)
        if lease is None:
            lease = self.leases[entry.token] = HeldLease(
                group=self.group,
                token=entry.token,
                queue_number=entry.queue,
                attempt=entry.attempt,
                base=entry.base,
                is_serial=popped.is_serial,
                has_runs=popped.has_runs,
            )
            lease.invisible_ms = request.invisible_ms
        elif lease.queue_number != entry.queue:
            raise ProtocolError(f"lease {entry.token} is of two queues")
        lease.told(
            asked_at=request.posted_at,
            now=now,
            remaining_ms=entry.remaining_ms,
            deadline_ms=entry.deadline_ms,
        )
        # A lease that is listed again must not look fresh: its buffered messages keep their time.
        if not lease.seen:
            lease.set_stale(now)
        bits = lease.place(entry.base, bits)
        lease.relist(bits)
        if self._listed is not None:
            self._listed[entry.token] = self._listed.get(entry.token, 0) | bits
        stop = lease.base + bits.bit_length()
        first = bisect_right(batches, entry.base, key=lambda each: each.base) - 1
        for base, batch, size in batches[max(first, 0) :]:
            if base >= stop:
                break
            start, end = max(base, lease.base), min(base + len(batch), stop)
            new = lease.mark_buffered(bits & lease.mask(start, end)) if start < end else 0
            if new:
                self._buffer.put(lease, batch, new, size)
                if lease.has_runs and batch.key_hashes is not None:
                    lease.keys.append((batch.base_offset, batch.key_hashes.copy()))
        lease.note_unread(bits)
        # An answer may bring messages that the leader listed before it heard of the stop, or some
        # behind a message that cannot be read.
        if lease.withheld:
            sender = self._settlements.sender(lease.group)
            sender.settle(lease, Action.GIVE_BACK, lease.withheld, Waiter())

    def _end_list(self) -> None:
        """The list is whole: messages that it did not name are lost."""
        listed, self._listed = self._listed, None
        if listed is None:
            return
        for token, lease in self.leases.items():
            lease.unlist(listed.get(token, 0))
        self._buffer.sweep()

    def _refused(self, connection: Connection, refusal: ErrorReply) -> None:
        code = refusal.code
        # The request was not carried out, so the leader listed nothing.
        self._told_on = self._listed = None
        self.why = refusal.message
        if code not in ASKED_AGAIN:
            self.error = exception_of(refusal)
            return
        if code == NOT_LEADER:
            self._router.not_leader(self.group, connection.node, refusal.leader)
        self._find_leader(refusal.retry_ms)

    def _start_again(self) -> None:
        """The request's answer will not come: the next request must be resumed."""
        self._told_on = self._listed = None
        self._find_leader()

    def _find_leader(self, retry_ms: int = 0) -> None:
        """Look for the leader in the background, later with each failure; then be idle again."""
        if self.lost_since is not None or self._tasks.is_closed:
            return
        # A leader that has told how long to wait is not lost before that.
        self.lost_since = anyio.current_time() + retry_ms / 1000
        self._failures += 1
        failures = self._failures

        async def find() -> None:
            await wait_leader(self._router, self.group, failures, retry_ms / 1000)
            self.lost_since = None
            self._on_news()

        self._tasks.start(find)

    # -- leases ----------------------------------------------------------------------------------

    def _forget_leases(self) -> None:
        """Forget leases without messages, before a request. See the module's invariants."""
        if len(self.leases) < self._prune_at:
            return
        before = anyio.current_time() - GRACE_SECONDS
        for token, lease in list(self.leases.items()):
            if lease.deadline < before and not lease.items:
                lease.lose(lease.held)
                lease.unlisted = 0
            # An answer on its way may bring more of a stopped lease, which must not look new.
            is_kept = lease.is_withholding and lease.deadline >= before
            if lease.is_over and not lease.items and not lease.unlisted and not is_kept:
                del self.leases[token]
        self._prune_at = max(16, 2 * len(self.leases))
