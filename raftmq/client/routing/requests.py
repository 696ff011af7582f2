"""Requests to the leaders of partition groups: one reply, or all pages of it, and several requests
within one timeout.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec

from raftmq.errors import OutcomeUnknown, RaftmqError, Unavailable
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.wire.access import FindAudit, FindQuotas, FindRules, FindUsers, JudgeAct
from raftmq.wire.assignment import CommitOffsets, Committed, FindMembers, Heartbeat
from raftmq.wire.codec import unpack
from raftmq.wire.consumer_groups import FindConsumerGroups, ForgetGroup
from raftmq.wire.directory import FindClients, FindDirectoryNodes
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    Admin,
    AdminDone,
    ChangeNode,
    ClusterView,
    ErrorReply,
    FindOffsets,
    FindSubscriptions,
    FrameKind,
    TopicView,
    Transfer,
)
from raftmq.wire.popping import ChangeDead, Claim, FindBacklogs, FindDead, ResetGroup, Settle
from raftmq.wire.producing import (
    BeginTransaction,
    CancelDelayed,
    ClaimSessions,
    EndTransaction,
    FindTransactions,
)
from raftmq.wire.settings import FindSettings, FindSettingsHistory
from raftmq.wire.traces import FindLog, FindTrace

from .pages import Pages
from .router import Router

if TYPE_CHECKING:
    from raftmq.machine.catalog.catalog import Command

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

_QUESTIONS: dict[type[msgspec.Struct], FrameKind] = {
    Committed: FrameKind.COMMITTED,
    FindAudit: FrameKind.AUDIT,
    FindBacklogs: FrameKind.BACKLOGS,
    FindClients: FrameKind.CLIENTS,
    FindConsumerGroups: FrameKind.GROUPS,
    FindDead: FrameKind.DEAD,
    FindLog: FrameKind.LOG,
    FindMembers: FrameKind.MEMBERS,
    FindQuotas: FrameKind.QUOTAS,
    FindDirectoryNodes: FrameKind.DIRECTORY_NODES,
    FindSettings: FrameKind.SETTINGS,
    FindSettingsHistory: FrameKind.SETTINGS_HISTORY,
    FindRules: FrameKind.RULES,
    FindOffsets: FrameKind.OFFSETS,
    FindSubscriptions: FrameKind.SUBSCRIBED,
    FindTrace: FrameKind.WHY,
    FindTransactions: FrameKind.TRANSACTIONS,
    FindUsers: FrameKind.USERS,
    # A heartbeat without an answer is sent again: no caller needs to know whether it was counted.
    Heartbeat: FrameKind.HEARTBEAT,
    JudgeAct: FrameKind.JUDGE,
}
"""Requests that may be given up without a trace: without an answer they raise `Unavailable`."""
_CHANGES: dict[type[msgspec.Struct], FrameKind] = {
    Admin: FrameKind.ADMIN,
    BeginTransaction: FrameKind.BEGIN,
    CancelDelayed: FrameKind.CANCEL,
    ChangeDead: FrameKind.CHANGE_DEAD,
    ChangeNode: FrameKind.CHANGE_NODE,
    Claim: FrameKind.CLAIM,
    ClaimSessions: FrameKind.SESSIONS,
    CommitOffsets: FrameKind.COMMIT,
    EndTransaction: FrameKind.END,
    ForgetGroup: FrameKind.FORGET_GROUP,
    ResetGroup: FrameKind.RESET,
    Settle: FrameKind.SETTLE,
    Transfer: FrameKind.TRANSFER,
}
"""Requests that may have taken effect: sent and not answered, they raise `OutcomeUnknown`."""


async def ask_leader(
    router: Router,
    request: msgspec.Struct,
    reply: type[R],
    *,
    group: int | None = None,
    timeout: float | None = None,
    refusal_in: Callable[[Frame], ErrorReply | None] = lambda _: None,
    queue_number: int | None = None,
) -> R:
    """The reply of a leader to an idempotent request, asked repeatedly until an answer comes.

    Args:
        router: finds the leader.
        request: the request; its type says whether it may change something.
        reply: the type of the reply.
        group: the partition group; None: the one that the request names, else the system group.
        timeout: see `Router.call_leader`, as `refusal_in`, `queue_number` and the errors.
        refusal_in: as above.
        queue_number: as above.
    """
    if group is None:
        group = getattr(request, "partition_group", SYSTEM_GROUP)
    is_change = type(request) in _CHANGES
    frame = await router.call_leader(
        group,
        (_CHANGES if is_change else _QUESTIONS)[type(request)],
        request,
        timeout=timeout,
        is_change=is_change,
        refusal_in=refusal_in,
        queue_number=queue_number,
    )
    return unpack(reply, frame.header)


def ask_for_pages(
    router: Router,
    question: Q,
    reply: type[R],
    *,
    timeout: float | None = None,
    queue_number: int | None = None,
) -> Pages[Q, R]:
    """The pages of a long reply, each as `ask_leader` gets it; `timeout` is for all of them."""
    left = seconds_left(router, timeout)

    async def ask(question: Q) -> R:
        return await ask_leader(router, question, reply, timeout=left(), queue_number=queue_number)

    return Pages(ask, question)


async def change_catalog(router: Router, command: "Command", timeout: float | None = None) -> Any:
    """Change the catalog once, with any number of attempts; returns the command's result.

    Raises:
        Rejected: the change was refused.
        Unavailable: no leader was found in time; nothing was changed.
        OutcomeUnknown: the change was sent and not answered.
    """
    request = Admin.of(command, router.draw_request())
    return (await ask_leader(router, request, AdminDone, timeout=timeout)).result


async def find_topic(router: Router, name: str, timeout: float | None = None) -> TopicView:
    """A topic as the leader of the system group knows it now.

    Raises:
        Rejected: `UNKNOWN_TOPIC`.
        Unavailable: no leader was found in time.
    """
    looking = router.topic(name, is_fresh=True)
    return await router.within(timeout, looking, f"looking up topic {name!r}")


async def read_table(
    router: Router, topics: list[str] | None = None, timeout: float | None = None
) -> ClusterView:
    """The routing table as the leader of the system group knows it now, with these topics (None:
    all).

    Raises:
        Unavailable: no leader was found in time.
    """
    asking = router.ask_system_leader(topics)
    return await router.within(timeout, asking, "reading the routing table")


def seconds_left(router: Router, timeout: float | None) -> Callable[[], float]:
    """The seconds left of a timeout that begins now, for calls that ask several leaders."""
    deadline = anyio.current_time() + (router.seconds_max if timeout is None else timeout)
    return lambda: max(deadline - anyio.current_time(), 0.0)


@contextmanager
def after(done: Collection[int | str], what: str) -> Iterator[None]:
    """For a call in several parts: turn `Unavailable` into `OutcomeUnknown` once a part is done.

    Raises:
        OutcomeUnknown: the body raised `Unavailable`, or the client was closed under it, and a part
            was done; the text names the parts done.
    """
    try:
        yield
    except RaftmqError as error:
        # The bare class: the client was closed.
        if not done or type(error) not in {RaftmqError, Unavailable}:
            raise
        raise OutcomeUnknown(f"{error}; done before: {what} {sorted(done)}") from error
