"""Requests about transactions: begin and end one, and list the open ones."""

from raftmq.access.rules import Resource
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.errors import Reason
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.transactions import MESSAGES_MAX, Begin, End, Input, Outcome
from raftmq.wire.messages import Done, ErrorReply, FrameKind
from raftmq.wire.transactions import (
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
from .pages import Sees

PAGE_MAX = 1000
"""Transactions of one answer: a note has up to 4 KB."""


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
        # Each holds a message at least. Refused before a command is made of a million of them.
        if len(request.inputs) > MESSAGES_MAX:
            message = f"a transaction acknowledges {MESSAGES_MAX} messages at the most"
            return ErrorReply(Reason.TOO_LARGE.value, message)
        inputs = [Input(x.number, x.consumer, x.token, x.base, x.bits) for x in request.inputs]
        command = Begin(request.transaction, request.producer_group, request.note, inputs)
        return asked.propose(group, [command], lambda _: Done())

    def _end(self, request: EndTransaction, group: Group, asked: OpenRequest) -> Answer:
        outcome = Outcome.COMMITTED if request.is_commit else Outcome.ROLLED_BACK
        return asked.propose(group, [End(request.transaction, outcome)], _ended)

    def _find(self, request: FindTransactions, group: Group, asked: OpenRequest) -> Answer:
        def page() -> Answer:
            assert isinstance(group.machine, PartitionMachine)
            # By the log's time, in which they were opened: our clock may be behind it.
            latest = group.now_ms() - request.age_ms_min
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return _page(group.machine, request, latest, sees)

        return asked.read(group, page)


def _page(
    machine: PartitionMachine, request: FindTransactions, latest: int, sees: Sees
) -> FoundTransactions:
    views: list[TransactionView] = []
    # Go on after the last transaction of the page before. If that one has ended, begin at the
    # start again: some come twice then, but none is left out.
    is_passing = request.after in machine.transactions.open
    for number, transaction in machine.transactions.open.items():
        if is_passing:
            is_passing = number != request.after
            continue
        if transaction.opened_ms > latest:
            break
        is_wanted = request.producer_group in ("", transaction.producer_group)
        if is_wanted and sees(transaction.producer_group):
            if len(views) == PAGE_MAX:
                return FoundTransactions(views, is_cut=True)
            views.append(
                TransactionView(
                    number,
                    transaction.producer_group,
                    transaction.note,
                    transaction.opened_ms,
                    transaction.count,
                    transaction.input_count,
                )
            )
    return FoundTransactions(views)


def _ended(value: tuple[int, int, bool]) -> TransactionEnded:
    outcome, messages, is_first = value
    is_fenced = outcome == Outcome.FENCED
    return TransactionEnded(outcome == Outcome.COMMITTED, messages, is_first, is_fenced)
