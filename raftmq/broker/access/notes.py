"""Acts of administration that logs beside the catalog's carry out, noted in the audit log.

    RESET ──> BeginAct in the catalog ──> the handler ──> its answer ──> EndAct in the catalog
                    │ not possible
                    └──> refused as `unavailable`: nothing was done

| the node ends | the entry | the act |
|---|---|---|
| before `BeginAct` is committed | there is none, or `begun` | did not happen |
| before the act is proposed | `begun` | did not happen |
| before `EndAct` is committed | `begun` | happened, or did not |

So no such act is without an entry, and an entry that stays `begun` says that the outcome is
unknown. A client that sends the request again, as it got no answer, makes another entry.

A request for a partition group that this node does not lead is not noted: the handler refuses it in
the same step, and the client asks the leader.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from raftmq.broker.cluster.catalog_changes import change_catalog
from raftmq.broker.host import Host
from raftmq.broker.serve.answers import CLIENT_LEFT, LATER, Answer, OpenRequest
from raftmq.broker.tickets import retry_seconds
from raftmq.machine.catalog.audit import DONE, AdminAct, BeginAct, EndAct
from raftmq.wire.messages import ErrorReply

from .acts import NOTED_KINDS, Noted, act_of, group_of, of_request

NOTE_SECONDS_MAX = 3.0
"""The longest wait for the catalog's leader, before the act is refused."""
NOTES_MAX = 1000
"""Notes that wait for the catalog's leader."""
END_ATTEMPTS = 20
"""Attempts to note an outcome: an election or a hand-over of the system group may be under way."""


class Notes:
    """The notes of one node about the acts that it is asked for."""

    kinds = NOTED_KINDS
    """The kinds of the requests that may be such acts."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._waiting = 0

    def carry_out(self, asked: OpenRequest, message: Noted, act: Callable[[], Answer]) -> Answer:
        """Carry a request out by `act`, and note it if it is an act of administration."""
        number = group_of(self._node, message)
        group = self._node.group(number) if number is not None else None
        if group is None or not group.is_leader or asked.connection.from_node:
            return act()
        if self._waiting >= NOTES_MAX:
            text = f"{NOTES_MAX} acts wait for the catalog's leader to note them"
            return ErrorReply("busy", text, retry_ms=1000)
        noted = act_of(asked.connection, of_request(self._node, message))
        self._node.start_soon(self._note, noted, asked, act)
        return LATER

    async def _note(self, noted: AdminAct, asked: OpenRequest, act: Callable[[], Answer]) -> None:
        begun = await self._change(BeginAct(noted))
        if isinstance(begun, ErrorReply):
            why = f"the audit log can't note this, so it was not done: {begun.message}"
            milliseconds = round(1000 * retry_seconds(begun))
            asked.answer(ErrorReply("unavailable", why, retry_ms=milliseconds))
            return
        asked.when_answered(partial(self._answered, begun))
        if asked.connection.is_closed:
            # Perhaps it was ended as its user may no longer do this.
            asked.answer(CLIENT_LEFT)
        else:
            asked.connection.run_in_step(lambda: asked.answer(act()))

    def _answered(self, number: int, refusal: ErrorReply | None) -> None:
        if refusal is None:
            self._node.start_soon(self._end, EndAct(number, DONE))
        elif refusal.code != "outcome_unknown":
            self._node.start_soon(self._end, EndAct(number, refusal.code))

    async def _end(self, ended: EndAct) -> None:
        for _ in range(END_ATTEMPTS):
            refusal = await self._change(ended)
            if not isinstance(refusal, ErrorReply):
                return
            await trio.sleep(retry_seconds(refusal))

    async def _change(self, command: BeginAct | EndAct) -> Any:
        if self._waiting >= NOTES_MAX:
            return ErrorReply("busy", "too many notes wait for the catalog's leader")
        self._waiting += 1
        try:
            with trio.move_on_after(NOTE_SECONDS_MAX):
                return await change_catalog(self._node, command)
        finally:
            self._waiting -= 1
        return ErrorReply("unavailable", "the catalog's leader does not answer")
