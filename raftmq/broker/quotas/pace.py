"""Commands that are small to send and long to apply: a few are under way at a time.

One client may send a thousand of them at once, and records that are committed together are applied
in one step of the event loop. So the leader proposes as many as take `WORK_MAX` together, and the
next ones once these are applied, in another turn of the loop.

Invariants:
- Commands of a connection have their turns in the order in which they came, and connections with
  commands that wait take turns.
- A command whose connection has ended before its turn is not carried out.

Left out: other nodes apply what they receive together in one step, as after a restart.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from raftmq.broker.host import Host
from raftmq.broker.loop_budget import Turn, in_another_turn
from raftmq.broker.serve.answers import CLIENT_LEFT, LATER, Answer, OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.wire.messages import ErrorReply

WORK_MAX = 65_536
"""Work of all commands that are under way, in queues whose owner is found: 20 to 50 ms."""


class _Waiting(NamedTuple):
    """A command that waits for its turn."""

    asked: OpenRequest
    work: Callable[[], int]
    propose: Callable[[], Answer]


class Pace:
    """The turns of such commands at one node."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._waiting: dict[Connection, deque[_Waiting]] = {}
        self._under_way = 0
        self._is_soon = False

    def propose(
        self, asked: OpenRequest, work: Callable[[], int], propose: Callable[[], Answer]
    ) -> Answer:
        """Propose a command now or in its turn, by `propose`; `work` tells its work at that time.
        A proposal that `propose` makes must end with the answer to the request."""
        each = _Waiting(asked, work, propose)
        # Not before others that wait: a stream of small commands would keep a large one waiting.
        if not self._waiting and self._has_time(each):
            return self._begin(each)
        self._waiting.setdefault(asked.connection, deque()).append(each)
        asked.connection.when_closed(asked.correlation, partial(self._closed, asked.connection))
        return LATER

    def _closed(self, connection: Connection) -> None:
        """A request of the connection is answered, or the connection is gone: no limit counts what
        waits of it then, and its right to this may have ended with it."""
        if connection.is_closed:
            for each in self._waiting.pop(connection, ()):
                each.asked.answer(CLIENT_LEFT)
            self._go_on_soon()

    def _has_time(self, each: _Waiting) -> bool:
        return not self._under_way or self._under_way + each.work() <= WORK_MAX

    def _begin(self, each: _Waiting) -> Answer:
        work = each.work()
        self._under_way += work

        def end(_: ErrorReply | None) -> None:
            self._under_way -= work
            self._go_on_soon()

        each.asked.when_answered(end)
        return each.propose()

    def _go_on_soon(self) -> None:
        if self._waiting and not self._is_soon:
            self._is_soon = True
            self._node.start_soon(in_another_turn, self._go_on)

    def _go_on(self) -> None:
        self._is_soon = False
        turn = Turn()
        while self._waiting:
            connection, waiting = next(iter(self._waiting.items()))
            if not self._has_time(waiting[0]):
                return
            each = waiting.popleft()
            del self._waiting[connection]
            if waiting:
                self._waiting[connection] = waiting
            each.asked.answer(self._begin(each))
            if turn.is_over:
                self._go_on_soon()
                return
