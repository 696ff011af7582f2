"""Requests about transactions: begin and end one, and list the open ones."""

from collections.abc import Iterator

from msgspec.structs import replace

from raftmq.access.rules import Resource
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.transactions import Begin, End, Input, Outcome
from raftmq.wire.messages import Done, ErrorReply, FrameKind
from raftmq.wire.producing import (
    BeginTransaction,
    EndTransaction,
    FindTransactions,
    FoundTransactions,
    TransactionEnded,
    TransactionView,
)

from .answers import Answer, OpenRequest
from .dispatcher import data_group, group_route, route
from .names import misnamed_producers
from .pages import Sees, first_page

_NUMBERS_BYTES = 36
"""The numbers of one transaction in an answer."""


class TransactionRequests(Service):
    """The handlers of these requests."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._group_of = of = data_group(node)
        self.routes = {
            FrameKind.BEGIN: route(BeginTransaction, self._begin),
            FrameKind.END: group_route(EndTransaction, of, self._end),
            FrameKind.TRANSACTIONS: group_route(FindTransactions, of, self._find),
        }

    def _begin(self, request: BeginTransaction, asked: OpenRequest) -> Answer:
        # A bad name is final, so it is refused before a group is looked for, perhaps in vain.
        if (error := misnamed_producers(request.producer_group)) is not None:
            return error
        group = self._group_of(request)
        if isinstance(group, ErrorReply):
            return group
        inputs = [Input(x.number, x.consumer, x.token, x.base, x.bits) for x in request.inputs]
        command = Begin(request.transaction, request.producer_group, request.note, inputs)
        return asked.propose(group, [command], lambda _: Done())

    def _end(self, request: EndTransaction, group: Group, asked: OpenRequest) -> Answer:
        outcome = Outcome.COMMITTED if request.is_commit else Outcome.ROLLED_BACK
        return asked.propose(group, [End(request.transaction, outcome)], _ended)

    def _find(self, request: FindTransactions, group: Group, asked: OpenRequest) -> Answer:
        def page(request: FindTransactions) -> FoundTransactions | FindTransactions:
            assert isinstance(group.machine, PartitionMachine)
            # By the log's time, in which they were opened: our clock may be behind it.
            latest = group.now_ms() - request.age_ms_min
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return transactions_page(group.machine, request, latest, sees)

        return asked.read_page(group, request, page)


def transactions_page(
    machine: PartitionMachine,
    request: FindTransactions,
    latest: int,
    sees: Sees = lambda _: True,
) -> FoundTransactions | FindTransactions:
    """Open transactions that were opened at `latest` or before, after the one that the request
    names; `sees` shows producer groups."""
    views, last = first_page(_views(machine, request, latest, sees), _bytes)
    if last is None or views:
        return FoundTransactions(views, is_cut=last is not None)
    return replace(request, after=last)


def _views(
    machine: PartitionMachine, request: FindTransactions, latest: int, sees: Sees
) -> Iterator[tuple[int, TransactionView | None]]:
    # Go on after the last transaction of the page before. If that one has ended, begin at the
    # start again: some come twice then, but none is left out.
    is_passing = request.after in machine.transactions.open
    for number, each in machine.transactions.open.items():
        if is_passing:
            is_passing = number != request.after
            continue
        if each.opened_ms > latest:
            break
        name = each.producer_group
        if request.producer_group in ("", name):
            shown = (number, name, each.note, each.opened_ms, each.count, each.input_count)
            yield number, TransactionView(*shown) if sees(name) else None


def _bytes(view: TransactionView) -> int:
    texts = view.producer_group + view.note
    return _NUMBERS_BYTES + len(texts.encode("utf-8", "surrogatepass"))


def _ended(value: tuple[int, int, bool]) -> TransactionEnded:
    outcome, messages, is_first = value
    is_fenced = outcome == Outcome.FENCED
    return TransactionEnded(outcome == Outcome.COMMITTED, messages, is_first, is_fenced)
