"""Transactions for plain code; see `client` and `raftmq.client.produce.transactions`."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from anyio import to_thread

from raftmq.batch import Value
from raftmq.client.client import Client
from raftmq.client.produce.receipts import Outgoing
from raftmq.client.produce.transactions import OpenTransaction, Transaction

from .loop import Entered, Loop


class BlockingTransaction(Entered):
    """See `raftmq.client.Transaction`; use it as `with`."""

    def __init__(self, loop: Loop, transaction: Transaction) -> None:
        super().__init__(loop, transaction)
        self._transaction = transaction

    @property
    def id(self) -> str | None:
        """See `Transaction.id`."""
        return self._transaction.id

    def send(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        queue: int | None = None,
    ) -> None:
        """See `Transaction.send`."""
        send = partial(self._transaction.send, key=key, tag=tag, props=props, queue=queue)
        self._loop.wait(partial(send, body))

    def send_many(self, messages: Iterable[bytes | Outgoing], *, queue: int | None = None) -> None:
        """See `Transaction.send_many`."""
        self._loop.wait(partial(self._transaction.send_many, messages, queue=queue))

    def commit(self) -> None:
        """See `Transaction.commit`."""
        self._loop.wait(self._transaction.commit)

    def rollback(self) -> None:
        """See `Transaction.rollback`."""
        self._loop.wait(self._transaction.rollback)


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
