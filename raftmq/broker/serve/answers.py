"""Answers to requests: at once, or by an `OpenRequest` that waits for a record, a read or a job.

A handler returns its answer. One that cannot answer yet returns `LATER`, which the methods of its
open request give back:

    return Done()                                            at once
    return ErrorReply("unavailable", …)                      a refusal, at once
    return asked.propose(group, [command], answer)           when the command is applied
    return asked.read(group, lambda: look(group.machine))    when the machine is as new as now
    return asked.read_page(group, request, page)             the same, a page of a long list
    return asked.run_on(reader, job, answer, failed)         when the job is done

Invariants:
- A request is answered once: an answer after the first has no effect.
- An open request keeps nothing of its frame: the frame's bytes are free while a batch waits.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from raftmq.broker.loop_budget import Turns
from raftmq.broker.replica.group import Group
from raftmq.broker.world import Worker
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.catalog.consumer_groups import ConsumerGroups
from raftmq.machine.commands import encode_commands
from raftmq.results import Changed, Refused, Result
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame, FramePart
from raftmq.wire.messages import ErrorReply

from .connection import Connection

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class Later(Enum):
    """The type of `LATER`."""

    LATER = 0


LATER: Final = Later.LATER
"""The handler sees to the answer, or the frame is one that gets none."""


class WithBody(NamedTuple):
    """A reply with bulk bytes."""

    reply: msgspec.Struct
    """The header."""
    body: Sequence[FramePart]
    """The bulk bytes, in parts."""


CLIENT_LEFT = ErrorReply("unavailable", "the client has left")
"""The refusal of a request whose turn comes after its connection has ended."""

Answer = msgspec.Struct | WithBody | Later
"""The result of a handler: a reply, a refusal (`ErrorReply`), or `LATER`."""


class OpenRequest:
    """A request without an answer yet. It is the ticket of the record that decides the answer."""

    __slots__ = (
        "_on_answer",
        "_reply",
        "connection",
        "correlation",
        "kind",
        "throttle_ms",
        "turns",
    )

    def __init__(self, connection: Connection, frame: Frame, turns: Turns) -> None:
        self.turns = turns
        """The node's, in which reads are answered."""
        self.connection = connection
        """The connection that the request came on."""
        self.kind = frame.kind
        """The request's `FrameKind`."""
        self.correlation = frame.correlation
        """Ties the answer to the request."""
        self._on_answer: Callable[[ErrorReply | None], None] | None = None
        self.throttle_ms = 0
        """Milliseconds for which a quota held the request."""

    def answer(self, answer: Answer) -> None:
        """Answer the request, unless the answer comes later."""
        if answer is LATER:
            return
        body: Sequence[FramePart] = ()
        if isinstance(answer, WithBody):
            answer, body = answer
        if isinstance(answer, ErrorReply):
            self.failed(answer)
        else:
            self._carried_out(answer, body)

    def when_answered(self, call: Callable[[ErrorReply | None], None]) -> None:
        """Call `call` once, with the refusal or None: the request was carried out; before what was
        to be called until now. Also if the client has left."""
        before = self._on_answer

        def all_of_them(refusal: ErrorReply | None) -> None:
            call(refusal)
            if before is not None:
                before(refusal)

        self._on_answer = all_of_them

    def propose(
        self,
        group: Group,
        commands: Sequence[msgspec.Struct],
        reply: Callable[[Any], msgspec.Struct],
        *,
        is_upkeep: bool = False,
    ) -> Later:
        """Propose commands, and answer by their results: see `ticket` and `Group.propose`."""
        payload = encode_commands(commands)
        group.propose(Kind.COMMANDS, payload, self.ticket(reply), is_upkeep=is_upkeep)
        return LATER

    def ticket(self, reply: Callable[[Any], msgspec.Struct]) -> "OpenRequest":
        """This request as the ticket of a record. It is answered with the first refusal, or else
        with `reply` of the first result: of a command's value, or of the result of a batch."""
        self._reply = reply
        return self

    def done(self, results: list[Result]) -> None:
        """The record is applied: see `ticket`."""
        for result in results:
            if isinstance(result, Refused):
                self.failed(refusal(result))
                return
        first = results[0]
        self.answer(self._reply(first.value if isinstance(first, Changed) else first))

    def failed(self, error: ErrorReply) -> None:
        """Refuse the request, for instance as the proposal of its record failed."""
        self.connection.refuse(self.correlation, error)
        self._tell(error)

    def _carried_out(self, reply: msgspec.Struct, body: Sequence[FramePart]) -> None:
        self.connection.reply(self.kind, self.correlation, pack(reply), body)
        self._tell(None)

    def _tell(self, refusal: ErrorReply | None) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(refusal)

    def read(self, group: Group, then: Callable[[], Answer]) -> Later:
        """Answer with `then()` once the group's machine is as new as this moment: what `then` reads
        in the machine is linearizable. One heartbeat round may grant thousands of reads at once:
        they are answered in turns."""

        def ready(error: ErrorReply | None) -> None:
            # This answer may be a long page.
            error = error or unread(self.connection)
            self.answer(then() if error is None else error)

        group.read(lambda error: self.turns.make(self.connection, partial(ready, error)))
        return LATER

    def read_page(self, group: Group, request: R, page: Callable[[R], msgspec.Struct]) -> Later:
        """Answer with a page of a list, as `read` does. If `page` returns a request of the same
        type, the page is made by that one, in another turn of the event loop."""

        def then() -> Answer:
            found = page(request)
            if isinstance(found, type(request)):
                return self.read_page(group, found, page)
            return found

        return self.read(group, then)

    def run_on(
        self,
        worker: Worker,
        job: Callable[[], T],
        then: Callable[[T], Answer],
        failed: Callable[[BaseException], ErrorReply],
    ) -> Later:
        """Run a job beside the event loop, and answer with `then` of its result, or with `failed`
        of its exception."""

        def done(result: T | None, error: BaseException | None) -> None:
            self.answer(then(cast("T", result)) if error is None else failed(error))

        worker.submit(job, done)
        return LATER


def unread(connection: Connection) -> ErrorReply | None:
    """The refusal of a long answer to a client that does not take its answers; None: it does."""
    if not connection.is_unread:
        return None
    text = "this connection holds as many bytes of answers as it may: read them first"
    return ErrorReply("busy", text, retry_ms=100)


def of_nodes() -> ErrorReply:
    """The refusal of a client that sends what nodes send."""
    return ErrorReply(Reason.DENIED.value, "only nodes may ask this")


def unknown_attachment(
    groups: ConsumerGroups, number: int, *, group: int = -1
) -> ErrorReply | None:
    """The refusal of an attachment that this node does not know; None: it knows it."""
    if number > groups.number_last:
        # The client may have heard of the attachment from a node whose catalog is newer.
        message = f"attachment {number} is not known here yet"
        return ErrorReply("unavailable", message, group=group, retry_ms=20)
    if number not in groups.attachments:
        message = f"there is no attachment {number} of a consumer group: it was deleted"
        return ErrorReply(Reason.UNKNOWN_GROUP.value, message)
    return None


def number_of_another(request: int) -> ErrorReply:
    """The refusal of a request whose number was that of a request of another kind: a repeat gets
    the first one's result, which is none of this kind."""
    message = f"request number {request} was used for another kind of request: draw it at random"
    return ErrorReply(Reason.BAD_ARGUMENT.value, message)


def refusal(result: Refused) -> ErrorReply:
    """The answer to a client whose command a machine refused."""
    return ErrorReply(result.reason.value, result.message, last=result.last)


def elsewhere(number: int) -> ErrorReply:
    """The refusal for a partition group that has no replica with messages on this node."""
    message = f"this node carries no replica of partition group {number}"
    return ErrorReply("not_leader", message, group=number)


def taking_over(number: int) -> ErrorReply:
    """The refusal of a new leader that has not yet applied what its predecessors committed."""
    message = f"the new leader of partition group {number} is still taking over"
    return ErrorReply("unavailable", message, group=number, retry_ms=20)


def unknown_queue(queue: int) -> ErrorReply:
    """The refusal for a queue that the catalog does not know."""
    return ErrorReply(Reason.UNKNOWN_TOPIC.value, f"queue {queue} belongs to no topic")


def out_of_range(offset: int, earliest: int, end: int) -> ErrorReply | None:
    """The refusal of an offset that a queue does not have; None: the queue has it."""
    if earliest <= offset <= end:
        return None
    held = f"holds {earliest}..{end - 1}" if earliest < end else f"is empty, and goes on at {end}"
    message = f"there is no offset {offset}: the queue {held}"
    return ErrorReply("offset_out_of_range", message, earliest=earliest, end=end)
