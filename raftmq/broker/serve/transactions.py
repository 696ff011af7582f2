"""Requests about transactions: begin and end one, and list the open ones."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from raftmq.broker.replica.group import Group
from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.transactions import Begin, End, Input, Outcome
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import Done, ErrorReply, FrameKind
from raftmq.wire.transactions import (
    BeginTransaction,
    EndTransaction,
    FindTransactions,
    FoundTransactions,
    TransactionEnded,
    TransactionView,
)

from .answers import answering, elsewhere
from .connection import Connection
from .names import misnamed_producers

PAGE_MAX = 1000
"""Transactions of one answer: a note has up to 4 KB."""


class Service(Protocol):
    """The part of the node that the handlers use."""

    def group(self, number: int) -> Group | None:
        """This node's replica of a partition group."""


class TransactionRequests:
    """The handlers of these requests."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.handlers: dict[int, Callable[[Connection, Frame], None]] = {
            FrameKind.BEGIN: self._begin,
            FrameKind.END: self._end,
            FrameKind.TRANSACTIONS: self._find,
        }
        """By frame kind."""

    def _begin(self, connection: Connection, frame: Frame) -> None:
        request = unpack(BeginTransaction, frame.header)
        inputs = [Input(x.number, x.consumer, x.token, x.base, x.bits) for x in request.inputs]
        if (error := misnamed_producers(request.producer_group)) is not None:
            connection.refuse(frame.correlation, error)
            return
        command = Begin(request.transaction, request.producer_group, request.note, inputs)
        group = self._group(connection, frame, request.partition_group)
        if group is not None:
            _propose(connection, frame, group, command, lambda _: Done())

    def _end(self, connection: Connection, frame: Frame) -> None:
        request = unpack(EndTransaction, frame.header)
        outcome = Outcome.COMMITTED if request.is_commit else Outcome.ROLLED_BACK
        group = self._group(connection, frame, request.partition_group)
        if group is not None:
            _propose(connection, frame, group, End(request.transaction, outcome), _ended)

    def _find(self, connection: Connection, frame: Frame) -> None:
        request = unpack(FindTransactions, frame.header)
        group = self._group(connection, frame, request.partition_group)
        if group is None:
            return

        def ready(error: ErrorReply | None) -> None:
            if error is not None:
                connection.refuse(frame.correlation, error)
                return
            assert isinstance(group.machine, PartitionMachine)
            # By the log's time, in which they were opened: our clock may be behind it.
            latest = group.now_ms() - request.age_ms_min
            page = _page(group.machine, request, latest)
            connection.reply(frame.kind, frame.correlation, pack(page))

        group.read(ready)

    def _group(self, connection: Connection, frame: Frame, number: int) -> Group | None:
        group = self._service.group(number)
        if group is not None and isinstance(group.machine, PartitionMachine):
            return group
        connection.refuse(frame.correlation, elsewhere(number))
        return None


def _page(machine: PartitionMachine, request: FindTransactions, latest: int) -> FoundTransactions:
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
        if request.producer_group in ("", transaction.producer_group):
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


def _propose(
    connection: Connection,
    frame: Frame,
    group: Group,
    command: Begin | End,
    answer: Callable[[Any], msgspec.Struct],
) -> None:
    """Propose a command; the request is answered with the command's result."""
    ticket = answering(connection, frame, answer)
    group.propose(Kind.COMMANDS, encode_commands([command]), ticket)


def _ended(value: tuple[int, int, bool]) -> TransactionEnded:
    outcome, messages, is_first = value
    is_fenced = outcome == Outcome.FENCED
    return TransactionEnded(outcome == Outcome.COMMITTED, messages, is_first, is_fenced)
