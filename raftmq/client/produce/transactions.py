"""Transactions of a producer, and the check-back for those whose producer died.

    async with p.transaction(group="shop", note="order 17") as t:
        await t.send(b"paid", key="order-17")
        database.commit(...)                    # the local work

Leaving the block commits, an exception rolls back. If the process dies in between, the transaction
stays open. `Client.check_back` of another process of the producer group `shop` then asks the
application how the transaction ended; the application looks into the database.

A *hand-off* sends messages made from popped messages and acknowledges the popped ones with them:

    async for m in consumer:
        async with p.transaction(acks=[m]) as t:
            await t.send(work(m.body))

If the process dies, or is too slow, the lease of `m` runs out: the transaction is rolled back, and
`m` is handed out again. So no other process is asked, and there is no producer group.

All messages of a transaction stand in one partition group: the group of the inputs, or of the first
message. A key whose queue lies in another group is refused: give related messages one key, or the
topic queues in one group.

Calls of one transaction, from any tasks or threads, run one after the other: of two batches sent at
once, the second would take the number of the first and be answered as a repeat.

Invariants:
- One call of a transaction is under way at a time; the others wait for it, within their timeouts.
- A transaction that may have lost a message is not committed from here.
- After `commit` returns without an exception, each message is delivered once.
- If `commit` raises `FENCED`, none of its messages is ever delivered.

Left out: sending several batches of a transaction at once; each waits for its answer.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from types import TracebackType
from typing import NamedTuple, Self

import anyio

from raftmq.batch import BATCH_BYTES_DEFAULT, Limits, Sealed, Value, encode
from raftmq.client.arguments import typed
from raftmq.client.recorders import TransactionRecorder
from raftmq.client.routing.requests import after, ask_for_pages, ask_leader, seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.world import ClientWorld
from raftmq.errors import RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.queue_numbers import QUEUE_BITS, SYSTEM_GROUP
from raftmq.wire.messages import Done, FrameKind
from raftmq.wire.producing import (
    BeginTransaction,
    EndTransaction,
    FindTransactions,
    FoundTransactions,
    TransactionEnded,
)

from .queues import Queues
from .receipts import Outgoing
from .settings import PAUSED
from .transaction_inputs import Inputs

NEVER_MS = 2**62 - 1
"""The delivery time of messages whose transaction is open."""
_ROLLBACK_SECONDS_MAX = 5.0
"""Limit of the rollback when an exception leaves the block; after it the check-back decides."""
_NAMED_MAX = 5
"""Queues that an error names."""


class OpenTransaction(NamedTuple):
    """An open transaction. Its id joins the partition group and the number that the wire's
    `TransactionView` has there."""

    id: str
    """The name of the transaction, for `Client.end_transaction`."""
    group: str
    """The producer group; empty for a transaction with inputs."""
    note: str
    """The purpose, as the producer gave it."""
    opened_ms: int
    """When the transaction began, milliseconds since 1970 by the leader's clock."""
    messages: int
    """Number of messages stored so far."""
    inputs: int = 0
    """Popped messages that the commit acknowledges; their leases end the transaction at last."""


Check = Callable[[OpenTransaction], bool | Awaitable[bool | None] | None]
"""Says how a transaction ended: True, commit it; False, roll it back; None: not known yet."""


@typed()
class Transaction:
    """Made by `Producer.transaction`; use it as `async with`.

    Several tasks may send at once: their calls wait for each other, and so do a commit, a rollback
    and the end of the block. A send after a commit is refused.
    """

    def __init__(
        self,
        router: Router,
        world: ClientWorld,
        queues: Queues | None,
        group: str,
        note: str,
        timeout: float | None,
        inputs: Inputs | None = None,
        recorder: TransactionRecorder | None = None,
    ) -> None:
        assert queues is not None
        self._router = router
        self._world = world
        self._queues = queues
        sizes = [each.welcome.batch_bytes_max for each in router.connections.values()]
        self._limits = Limits(batch_bytes_max=min(sizes, default=BATCH_BYTES_DEFAULT))
        self._group = group
        self._note = note
        self._timeout = timeout
        self._inputs = inputs
        self._recorder = recorder
        self._number = world.random.getrandbits(63) or 1
        # The partition group of the messages; -1: not known yet.
        self._partition_group = -1 if inputs is None else inputs.partition_group
        self._unkeyed = -1
        self._sequences: dict[int, int] = {}
        # True once the BEGIN request may have left; and once the answer came.
        self._may_be_open = False
        self._is_begun = False
        self._is_ended = False
        # True while a message is being stored, and for ever if storing failed.
        self._is_storing = False
        # True once a send was cancelled or timed out: the caller may go on without the message.
        self._is_short = False
        # Held by the call under way.
        self._turn = anyio.Lock()

    @property
    def id(self) -> str | None:
        """The transaction's name; None until the transaction may have been opened."""
        if not self._may_be_open:
            return None
        return format_transaction_id(self._partition_group, self._number)

    async def send(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
    ) -> None:
        """Store one message, delivered if the transaction commits. Arguments as `Producer.send`.

        After a cancelled call the transaction can only be rolled back, as after `Unavailable`.

        Raises:
            Rejected: as `Producer.send`; `BAD_ARGUMENT`, its queue lies in another partition group
                than the inputs or the messages before; `TRANSACTION_ENDED`, another process or an
                operator has ended the transaction; `FENCED`, an input is no longer in hand.
            Unavailable, OutcomeUnknown: the message is not known to be stored; the transaction can
                only be rolled back, and refuses all later sends with `BAD_ARGUMENT`.
        """
        await self._send([Outgoing(body, key, tag, props)], queue)

    async def send_many(
        self, messages: Iterable[bytes | Outgoing], *, queue: int | None = None
    ) -> None:
        """As `send`, for several messages; those of one queue keep their order."""
        rows = [Outgoing(row) if isinstance(row, bytes) else row for row in messages]
        await self._send(rows, queue)

    async def _send(self, rows: list[Outgoing], queue: int | None) -> None:
        try:
            async with self._one_call() as left:
                self._check_whole()
                await self._store_all(rows, queue, left)
        except BaseException as error:
            # A cancelled send, too: else the block could commit without the message.
            self._is_short |= isinstance(error, Unavailable) or not isinstance(error, Exception)
            raise

    async def _store_all(
        self, rows: list[Outgoing], queue: int | None, left: Callable[[], float]
    ) -> None:
        queues = self._queues
        if queues.is_paused:
            raise Unavailable(f"nothing was stored: {PAUSED}")
        await queues.learn(queue, anyio.current_time() + left())
        by_queue: dict[int, list[Outgoing]] = {}
        for row in rows:
            by_queue.setdefault(self._pick(row.key, queue), []).append(row)
        groups = {queues.view.groups[at] for at in by_queue}
        home = self._partition_group if self._partition_group >= 0 else min(groups, default=-1)
        if groups - {home}:
            raise Rejected(Reason.BAD_ARGUMENT, self._elsewhere(home, sorted(groups - {home})))
        batches = [(at, part, self._encode(part)) for at, part in by_queue.items()]
        # Until all are stored a message may be lost, and the next would take its number.
        self._is_storing = bool(batches)
        if batches and not self._is_begun:
            await self._begin(home, left())
        for at, part, sealed in batches:
            await self._store(queues.view.id << QUEUE_BITS | at, part, sealed, left())
        self._is_storing = False

    @asynccontextmanager
    async def _one_call(self) -> AsyncIterator[Callable[[], float]]:
        """Wait until no other call is under way; yields the seconds left of this call's timeout.

        Raises:
            Unavailable: another call was under way until the timeout.
        """
        left = seconds_left(self._router, self._timeout)
        try:
            # Takes a free turn without a checkpoint, so a timeout of 0 works, too.
            self._turn.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(left()) as waiting:
                await self._turn.acquire()
            if waiting.cancelled_caught:
                message = "another call of this transaction was under way until the time ran out"
                raise Unavailable(f"{message}: this one did nothing") from None
        try:
            yield left
        finally:
            self._turn.release()

    def _elsewhere(self, home: int, others: list[int]) -> str:
        """Why the queues of the messages are refused, and which queues are possible."""
        view = self._queues.view
        near = [at for at, group in enumerate(view.groups) if group == home]
        what = "its inputs" if self._inputs is not None else "its first message"
        if not near:
            return (
                f"a transaction stands in the partition group of {what}, here {home}, and topic "
                f"{view.name!r} has no queue there: give it more queues, or create a topic that "
                "lies beside the one popped from (`beside=`)"
            )
        return (
            f"a transaction stands in the partition group of {what}, here {home}; partition group "
            f"{', '.join(map(str, others))} is another one: send without a key, or to queue="
            f"{' or '.join(map(str, near[:_NAMED_MAX]))}; topics with as many queues that were "
            "created beside each other (`beside=`) have the messages of a key in one"
        )

    async def _store(
        self, queue_number: int, rows: list[Outgoing], sealed: Sealed, timeout: float
    ) -> None:
        """Store messages in one queue; `sealed` has them as a batch."""
        if self._recorder is not None:
            # Before the request, which may store the messages and get no answer.
            self._recorder.storing(queue_number, rows)
        first = self._sequences.get(queue_number, 0)
        body = sealed.stamp(queue=queue_number, producer=self._number, first_sequence=first)
        await self._router.call_leader(
            self._partition_group,
            FrameKind.PRODUCE,
            None,
            body=body,
            timeout=timeout,
            is_change=True,
            queue_number=queue_number,
        )
        self._sequences[queue_number] = first + len(rows)

    def _pick(self, key: str | bytes | None, queue: int | None) -> int:
        if key is None and queue is None:
            if self._unkeyed < 0:
                self._unkeyed = self._at_home()
            return self._unkeyed
        return self._queues.pick(key, queue)

    def _at_home(self) -> int:
        """A queue for messages without a key, in the partition group of the others."""
        queues = self._queues
        home, turn = self._partition_group, queues.current()
        candidates = [turn, *range(len(queues))]
        here = (at for at in candidates if home in (-1, queues.view.groups[at]))
        return next(here, turn)

    def _encode(self, rows: list[Outgoing]) -> Sealed:
        return encode(
            [row.body for row in rows],
            keys=[row.key for row in rows],
            tags=[row.tag for row in rows],
            props=[row.props for row in rows] if any(row.props for row in rows) else None,
            deliver_at_ms=[NEVER_MS] * len(rows),
            base_ms=self._world.now_ms(),
            limits=self._limits,
        )

    async def _begin(self, partition_group: int, timeout: float) -> None:
        inputs = [] if self._inputs is None else self._inputs.wire()
        request = BeginTransaction(partition_group, self._number, self._group, self._note, inputs)
        was_doubtful, self._may_be_open = self._may_be_open, True
        self._partition_group = partition_group
        try:
            await ask_leader(self._router, request, Done, timeout=timeout)
        except (Rejected, Unavailable):
            # This attempt opened nothing for certain; an earlier one in doubt may have.
            self._may_be_open = was_doubtful
            raise
        self._is_begun = True

    async def commit(self) -> None:
        """Deliver the messages of the transaction. Leaving the block commits, unless that was done.

        Raises:
            Rejected: `FENCED`, an input was no longer in hand, so the transaction was rolled back;
                `TRANSACTION_ENDED`, it was rolled back before, from elsewhere; `BAD_ARGUMENT`, one
                of its messages may be lost.
            Unavailable: no leader was found in time; nothing changed, and a repeat is safe.
            OutcomeUnknown: no answer came; the check-back, or this call again, finds out.
        """
        async with self._one_call() as left:
            self._check_whole()
            await self._commit(left)

    async def _commit(self, left: Callable[[], float]) -> None:
        begun: list[str] = []
        if self._inputs is not None and not self._is_begun:
            # No message was sent, but the commit still acknowledges the inputs.
            await self._begin(self._partition_group, left())
            begun = [str(self.id)]
        with after(begun, "the beginning of transaction"):
            await self._end(left(), is_commit=True)
        if self._inputs is not None:
            self._inputs.acked()

    async def rollback(self) -> None:
        """Discard the messages. The inputs stay in hand: settle them in another way, or let their
        leases run out.

        Raises:
            Rejected: `TRANSACTION_ENDED`, it was committed before, from elsewhere.
            Unavailable: no leader was found in time; the transaction is still open.
            OutcomeUnknown: no answer came.
        """
        async with self._one_call() as left:
            self._check_open()
            await self._end(left(), is_commit=False)

    async def _end(self, timeout: float, *, is_commit: bool) -> None:
        recorder = self._recorder
        inputs = [] if self._inputs is None else self._inputs.recorded()
        with nullcontext() if recorder is None else recorder.ending(inputs, is_commit=is_commit):
            if self.id is not None:
                await end_transaction(
                    self._router,
                    self.id,
                    is_commit=is_commit,
                    timeout=timeout,
                    producer_group=self._group,
                )
            self._is_ended = True

    @property
    def _is_broken(self) -> bool:
        return self._is_storing or self._is_short

    def _check_open(self) -> None:
        if self._is_ended:
            raise Rejected(Reason.TRANSACTION_ENDED, "this transaction has ended")

    def _check_whole(self) -> None:
        self._check_open()
        if self._is_broken:
            message = "a message of this transaction may not be stored: it can only be rolled back"
            raise Rejected(Reason.BAD_ARGUMENT, message)

    async def _commit_whole(self) -> bool:
        """Commit, unless the transaction has ended; False: it can only be rolled back."""
        async with self._one_call() as left:
            if not self._is_ended and not self._is_broken:
                await self._commit(left)
            return self._is_ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or after an exception roll back; a failed rollback is left to the check-back."""
        if error is None and await self._commit_whole():
            return
        if self._is_ended:
            return
        try:
            # Shielded: a cancelled block still rolls back, else the transaction would stay open.
            with anyio.move_on_after(_ROLLBACK_SECONDS_MAX, shield=True):
                await self.rollback()
        except RaftmqError as failed:
            if error is not None:
                error.add_note(f"while the transaction was rolled back: {failed}")
        if error is None:
            message = "a message of this transaction may not be stored: it was rolled back"
            raise Rejected(Reason.BAD_ARGUMENT, message)


def format_transaction_id(partition_group: int, number: int) -> str:
    """The id of a transaction.

    >>> format_transaction_id(3, 255)
    't3-ff'
    """
    return f"t{partition_group:x}-{number:x}"


def parse_transaction_id(text: str) -> tuple[int, int]:
    """The partition group and the number that an id names.

    Raises:
        Rejected: `BAD_ARGUMENT`, the text is no id of a transaction.
    """
    group, _, number = text[1:].partition("-") if text.startswith("t") else ("", "", "")
    try:
        return int(group, 16), int(number, 16)
    except ValueError:
        message = f"{text[:80]!r} is no id of a transaction, as `t1-5f3a`"
        raise Rejected(Reason.BAD_ARGUMENT, message) from None


async def end_transaction(
    router: Router,
    transaction_id: str,
    *,
    is_commit: bool,
    timeout: float | None,
    producer_group: str = "",
) -> int:
    """See `Client.end_transaction`."""
    partition_group, number = parse_transaction_id(transaction_id)
    request = EndTransaction(partition_group, number, is_commit, producer_group)
    try:
        ended = await ask_leader(router, request, TransactionEnded, timeout=timeout)
    except Rejected as refusal:
        if refusal.reason is not Reason.UNKNOWN_TRANSACTION:
            raise
        # The broker's text has the number within its partition group; users know the id.
        message = f"no transaction {transaction_id} is open: it never was, or ended long ago"
        raise Rejected(refusal.reason, message) from refusal
    if is_commit and ended.is_fenced:
        message = (
            f"transaction {transaction_id} was rolled back: a message that it acknowledges is no "
            "longer in hand, and is handed out again unless it was settled"
        )
        raise Rejected(Reason.FENCED, message)
    if ended.is_committed is not is_commit:
        how = "committed" if ended.is_committed else "rolled back"
        message = f"transaction {transaction_id} was {how} before"
        raise Rejected(Reason.TRANSACTION_ENDED, message)
    return ended.messages


async def open_transactions(
    router: Router, group: str = "", *, age_ms_min: int = 0, timeout: float | None = None
) -> list[OpenTransaction]:
    """See `Client.open_transactions`."""
    left = seconds_left(router, timeout)
    found: list[OpenTransaction] = []
    for partition_group in _data_groups(router):
        found += await _open_in(router, partition_group, group, age_ms_min, left())
    return sorted(found, key=lambda each: each.opened_ms)


def _data_groups(router: Router) -> list[int]:
    return sorted(set(router.groups) - {SYSTEM_GROUP})


async def _open_in(
    router: Router, partition_group: int, group: str, age_ms_min: int, timeout: float | None
) -> list[OpenTransaction]:
    """The open transactions of one partition group, the oldest first."""
    found: dict[str, OpenTransaction] = {}
    question = FindTransactions(partition_group, group, age_ms_min)
    async for page in ask_for_pages(router, question, FoundTransactions, timeout=timeout):
        for view in page.transactions:
            name = format_transaction_id(partition_group, view.transaction)
            found[name] = OpenTransaction(
                id=name,
                group=view.producer_group,
                note=view.note,
                opened_ms=view.opened_ms,
                messages=view.messages,
                inputs=view.inputs,
            )
    return list(found.values())


@asynccontextmanager
async def check_back(
    router: Router, group: str, check: Check, *, after: float, every: float
) -> AsyncIterator[None]:
    """See `Client.check_back`."""
    asking: set[int] = set()
    one_at_a_time = anyio.Lock()

    async with anyio.create_task_group() as tasks:

        async def look(partition_group: int) -> None:
            try:
                await _check_group(router, partition_group, group, check, after, one_at_a_time)
            finally:
                asking.discard(partition_group)

        async def run() -> None:
            while True:
                await anyio.sleep(every)
                # One task a group: a group without a leader must not delay the others.
                for partition_group in sorted(set(_data_groups(router)) - asking):
                    asking.add(partition_group)
                    tasks.start_soon(look, partition_group)

        tasks.start_soon(run)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _check_group(
    router: Router,
    partition_group: int,
    group: str,
    check: Check,
    after: float,
    one_at_a_time: anyio.Lock,
) -> None:
    try:
        found = await _open_in(router, partition_group, group, round(after * 1000), None)
    except RaftmqError:
        # A leader is being elected: the next round asks again.
        return
    for transaction in sorted(found, key=lambda each: each.opened_ms):
        if transaction.inputs:
            # A hand-off has no producer group: its leases end it.
            continue
        async with one_at_a_time:
            outcome = check(transaction)
            if inspect.isawaitable(outcome):
                outcome = await outcome
        if outcome is None:
            continue
        with suppress(RaftmqError):  # Another process was faster, or the next round retries.
            await end_transaction(router, transaction.id, is_commit=bool(outcome), timeout=None)
