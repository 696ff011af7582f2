"""Transactions for plain code; see `client` and `raftmq.client.produce.transactions`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from anyio import to_thread

from raftmq.client.client import Client
from raftmq.client.produce.transactions import OpenTransaction, Transaction

from .face import Entered, waits
from .loop import Loop


class BlockingTransaction(Entered[Transaction]):
    """See `raftmq.client.Transaction`; use it as `with`."""

    @property
    def id(self) -> str | None:
        """See `Transaction.id`."""
        return self._inner.id

    send = waits(Transaction.send)
    send_many = waits(Transaction.send_many)
    commit = waits(Transaction.commit)
    rollback = waits(Transaction.rollback)


def check_back(
    loop: Loop,
    client: Client,
    group: str,
    check: Callable[[OpenTransaction], bool | None],
    *,
    after: float,
    every: float,
) -> AbstractContextManager[object]:
    """See `Client.check_back`; `check` is called in threads of its own, one at a time."""

    async def ask(transaction: OpenTransaction) -> bool | None:
        return await to_thread.run_sync(check, transaction)

    checking = loop.call(partial(client.check_back, group, ask, after=after, every=every))
    return Entered(loop, checking)
