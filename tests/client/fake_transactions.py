"""Transactions at a node of the fake cluster; `raftmq.machine` decides how each one ends.

Nothing releases the messages of a transaction that was committed; `ended` says how many it had.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from raftmq.machine.transactions import Begin, End, Input, Outcome
from raftmq.results import Changed, Refused
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import Done, ErrorReply, FrameKind
from raftmq.wire.producing import BeginTransaction, EndTransaction, TransactionEnded

if TYPE_CHECKING:
    from .fake_cluster import FakeNode

Answer = tuple[bytes, list[bytes]]


class FakeTransactions:
    """The transactions' side of one node."""

    def __init__(self, node: "FakeNode") -> None:
        self._node = node
        self.handlers: dict[FrameKind, Callable[[Frame], Answer | ErrorReply]] = {
            FrameKind.BEGIN: self._begin,
            FrameKind.END: self._end,
        }

    def _begin(self, frame: Frame) -> Answer | ErrorReply:
        request = unpack(BeginTransaction, frame.header)
        inputs = [Input(x.number, x.consumer, x.token, x.base, x.bits) for x in request.inputs]
        command = Begin(request.transaction, request.producer_group, request.note, inputs)
        result = self._run(request.partition_group, command)
        return result if isinstance(result, ErrorReply) else (pack(Done()), [])

    def _end(self, frame: Frame) -> Answer | ErrorReply:
        request = unpack(EndTransaction, frame.header)
        wanted = Outcome.COMMITTED if request.is_commit else Outcome.ROLLED_BACK
        result = self._run(request.partition_group, End(request.transaction, wanted))
        if isinstance(result, ErrorReply):
            return result
        outcome, messages, is_first = result.value
        is_committed = outcome == Outcome.COMMITTED
        if is_first:
            self._node.cluster.ended.append((is_committed, messages))
        is_fenced = outcome == Outcome.FENCED
        return pack(TransactionEnded(is_committed, messages, is_first, is_fenced)), []

    def _run(self, partition_group: int, command: Begin | End) -> Changed | ErrorReply:
        error = self._node.not_leader(partition_group)
        if error is not None:
            return error
        log = self._node.cluster.logs[partition_group]
        now_ms = self._node.popping.now_ms()
        result = log.add(Kind.COMMANDS, encode_commands([command]), now_ms)
        self._node.cluster.tell()
        if isinstance(result, Refused):
            return ErrorReply(result.reason.value, result.message, last=result.last)
        assert isinstance(result, Changed)
        return result
