"""Transactions of a producer, and the check-back for those whose producer died.

    async with p.transaction(group="shop", note="order 17") as t:
        await t.send(b"paid", key="order-17")
        database.commit(...)                    # the local work

Leaving the block commits, an exception rolls back. If the process dies in between, the transaction
stays open; some other process of the producer group `shop`, which runs `Client.check_back`, is
asked how it ended, and looks into the database.

All messages of a transaction stand in one partition group, that of the first one. A key whose queue
lies in another one is refused: give related messages one key, or the topic queues in one group.

Invariants:
- A transaction of which a message may be lost is not committed from here.
- What `commit` returns without an exception is delivered, each message once.

Left out: sending several batches of a transaction at once; each waits for its answer.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import NamedTuple, Self

import anyio

from raftmq.batch import BATCH_BYTES_DEFAULT, Limits, Sealed, Value, encode
from raftmq.errors import RaftmqError, Reason, Rejected
from raftmq.wire.codec import unpack
from raftmq.wire.messages import FrameKind
from raftmq.wire.transacting import (
    BeginTransaction,
    EndTransaction,
    FindTransactions,
    FoundTransactions,
    TransactionEnded,
)

from .message import QUEUE_BITS
from .queues import Queues
from .receipts import Outgoing
from .router import SYSTEM_GROUP, Router
from .world import ClientWorld

NEVER_MS = 2**62 - 1
"""The delivery time of messages whose transaction is open."""
_ROLLBACK_SECONDS_MAX = 5.0
"""For rolling back when the block is left by an exception; then it is left to the check-back."""


class OpenTransaction(NamedTuple):
    """A transaction that nobody has ended."""

    id: str
    """What names it, for `Client.end_transaction`."""
    group: str
    """The producer group."""
    note: str
    """What it is about."""
    opened_ms: int
    """Since when, milliseconds since 1970 by the leader's clock."""
    messages: int
    """How many it has."""


Check = Callable[[OpenTransaction], bool | Awaitable[bool | None] | None]
"""Says how a transaction ended: True, commit it; False, roll it back; None: not known yet."""


class Transaction:
    """Made by `Producer.transaction`; use it as `async with`."""

    def __init__(
        self,
        router: Router,
        world: ClientWorld,
        queues: Queues | None,
        group: str,
        note: str,
        timeout: float | None,
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
        self._number = world.random.getrandbits(63) or 1
        self._partition_group = -1
        self._unkeyed = -1
        self._sequences: dict[int, int] = {}
        self._is_ended = False
        self._is_broken = False

    @property
    def id(self) -> str | None:
        """What names it; None before its first message."""
        if self._partition_group < 0:
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
        """Store one message; it is seen if the transaction commits. Arguments as `Producer.send`.

        Raises:
            Rejected: as `Producer.send`; `BAD_ARGUMENT`, its queue lies in another partition group
                than those before; `TRANSACTION_ENDED`, somebody has ended the transaction.
            Unavailable, OutcomeUnknown: it is not known to be stored; the transaction can only be
                rolled back.
        """
        await self._send([Outgoing(body, key, tag, props)], queue)

    async def send_many(
        self, messages: Iterable[bytes | Outgoing], *, queue: int | None = None
    ) -> None:
        """As `send`, for several messages; those of one queue keep their order."""
        rows = [Outgoing(row) if isinstance(row, bytes) else row for row in messages]
        await self._send(rows, queue)

    async def _send(self, rows: list[Outgoing], queue: int | None) -> None:
        self._check_open()
        queues = self._queues
        by_queue: dict[int, list[Outgoing]] = {}
        for row in rows:
            by_queue.setdefault(self._pick(row.key, queue), []).append(row)
        groups = {queues.view.groups[at] for at in by_queue} - {-1}
        home = self._partition_group if self._partition_group >= 0 else min(groups, default=-1)
        if groups - {home}:
            message = (
                f"the messages of a transaction stand in one partition group, here {home}; queues "
                f"of {sorted(groups - {home})} lie elsewhere: give them the same key, or queue="
            )
            raise Rejected(Reason.BAD_ARGUMENT, message)
        batches = [(at, self._encode(part)) for at, part in by_queue.items()]
        if self._partition_group < 0 and batches:
            await self._begin(home)
        for at, sealed in batches:
            number = queues.view.id << QUEUE_BITS | at
            first = self._sequences.get(number, 0)
            body = sealed.stamp(queue=number, producer=self._number, first_sequence=first)
            self._is_broken = True
            await self._router.call_leader(
                home,
                FrameKind.PRODUCE,
                None,
                body=body,
                timeout=self._timeout,
                is_change=True,
                queue_number=number,
            )
            self._is_broken = False
            self._sequences[number] = first + sealed.count

    def _pick(self, key: str | bytes | None, queue: int | None) -> int:
        if key is None and queue is None:
            if self._unkeyed < 0:
                self._unkeyed = self._at_home()
            return self._unkeyed
        return self._queues.pick(key, queue)

    def _at_home(self) -> int:
        """A queue for messages without a key, in the partition group of the others."""
        queues = self._queues
        home, turn = self._partition_group, queues.gathering()
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

    async def _begin(self, partition_group: int) -> None:
        request = BeginTransaction(partition_group, self._number, self._group, self._note)
        await self._router.call_leader(
            partition_group, FrameKind.BEGIN, request, timeout=self._timeout, is_change=True
        )
        self._partition_group = partition_group

    async def commit(self) -> None:
        """Let its messages be delivered. Leaving the block does it, if nobody did.

        Raises:
            Rejected: `TRANSACTION_ENDED`, it was rolled back before, from elsewhere;
                `BAD_ARGUMENT`, one of its messages may be lost.
            OutcomeUnknown: no answer came; the check-back, or this call again, finds out.
        """
        self._check_open()
        if self._is_broken:
            message = "a message of this transaction may not be stored: it can only be rolled back"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        await self._end(is_commit=True)

    async def rollback(self) -> None:
        """Throw its messages away.

        Raises:
            Rejected: `TRANSACTION_ENDED`, it was committed before, from elsewhere.
            OutcomeUnknown: no answer came.
        """
        self._check_open()
        await self._end(is_commit=False)

    async def _end(self, *, is_commit: bool) -> None:
        if self.id is not None:
            router, timeout = self._router, self._timeout
            await end_transaction(router, self.id, is_commit=is_commit, timeout=timeout)
        self._is_ended = True

    def _check_open(self) -> None:
        if self._is_ended:
            raise Rejected(Reason.TRANSACTION_ENDED, "this transaction has ended")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or after an exception roll back; if that fails, the check-back does it later."""
        if self._is_ended:
            return
        if error is None and not self._is_broken:
            await self.commit()
            return
        try:
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
    router: Router, transaction_id: str, *, is_commit: bool, timeout: float | None
) -> int:
    """See `Client.end_transaction`."""
    partition_group, number = parse_transaction_id(transaction_id)
    request = EndTransaction(partition_group, number, is_commit)
    frame = await router.call_leader(
        partition_group, FrameKind.END, request, timeout=timeout, is_change=True
    )
    ended = unpack(TransactionEnded, frame.header)
    if ended.is_committed is not is_commit:
        how = "committed" if ended.is_committed else "rolled back"
        message = f"transaction {transaction_id} was {how} before"
        raise Rejected(Reason.TRANSACTION_ENDED, message)
    return ended.messages


async def open_transactions(
    router: Router, group: str = "", *, age_ms_min: int = 0, timeout: float | None = None
) -> list[OpenTransaction]:
    """See `Client.open_transactions`."""
    found: dict[str, OpenTransaction] = {}
    for partition_group in sorted(set(router.groups) - {SYSTEM_GROUP}):
        after = 0
        while True:
            request = FindTransactions(partition_group, group, age_ms_min, after)
            frame = await router.call_leader(
                partition_group, FrameKind.TRANSACTIONS, request, timeout=timeout
            )
            page = unpack(FoundTransactions, frame.header)
            for view in page.transactions:
                name = format_transaction_id(partition_group, view.transaction)
                found[name] = OpenTransaction(
                    name, view.producer_group, view.note, view.opened_ms, view.messages
                )
            if not page.is_cut:
                break
            after = page.transactions[-1].transaction
    return sorted(found.values(), key=lambda each: each.opened_ms)


@asynccontextmanager
async def check_back(
    router: Router, group: str, check: Check, *, after: float, every: float
) -> AsyncIterator[None]:
    """See `Client.check_back`."""
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            while True:
                await anyio.sleep(every)
                try:
                    await _check_all(router, group, check, after)
                except RaftmqError:
                    # A leader is being elected, or somebody was faster: the next round sees.
                    continue

        tasks.start_soon(run)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _check_all(router: Router, group: str, check: Check, after: float) -> None:
    for transaction in await open_transactions(router, group, age_ms_min=round(after * 1000)):
        outcome = check(transaction)
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome is not None:
            await end_transaction(router, transaction.id, is_commit=bool(outcome), timeout=None)
