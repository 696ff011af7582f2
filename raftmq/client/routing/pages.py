"""Long answers, page by page."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

import msgspec

from raftmq.wire.access import FoundAudit, FoundQuotas, FoundRules, FoundUsers
from raftmq.wire.assignment import CommittedOffsets, FoundMembers
from raftmq.wire.consumer_groups import FoundConsumerGroups
from raftmq.wire.directory import FoundClients
from raftmq.wire.messages import ClusterView, FoundSubscriptions, NodeStatus
from raftmq.wire.popping import FoundBacklogs, FoundDead
from raftmq.wire.producing import FoundTransactions
from raftmq.wire.settings import FoundSettingsHistory
from raftmq.wire.traces import FoundTrace

P = TypeVar("P", bound=msgspec.Struct)
Q = TypeVar("Q", bound=msgspec.Struct)


class Pages(Generic[Q, P]):
    """Iterates over the pages of an answer; each page is asked for when the one before was used.

    Not an async generator: a loop that ends early would leave one for the event loop to close.
    """

    def __init__(self, ask: Callable[[Q], Awaitable[P]], question: Q) -> None:
        self._ask = ask
        self._question: Q | None = question

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> P:
        if self._question is None:
            raise StopAsyncIteration
        page = await self._ask(self._question)
        after = _after(page)
        self._question = msgspec.structs.replace(self._question, **after) if after else None
        return page


def _after(page: msgspec.Struct) -> dict[str, Any]:
    """The fields of the request for the next page that differ from the request for this page;
    empty: this page is the last."""
    match page:
        case ClusterView(next=after) | FoundTrace(after=after) if after:
            return {"after": after}
        case FoundClients(clients=[*_, last], is_cut=True):
            return {"after": last.id}
        case FoundSettingsHistory(changes=[*_, last], is_cut=True):
            return {"after": last.version}
        case NodeStatus(status={"next": after}):
            return {"after": after}
        case FoundDead(letters=[*_, last], is_cut=True):
            return {"after": last.letter}
        case FoundTransactions(transactions=[*_, last], is_cut=True):
            return {"after": last.transaction}
        case FoundBacklogs(backlogs=[*_, last], is_cut=True):
            return {"after_number": last.number, "after_queue": last.queue}
        case CommittedOffsets(offsets=[*_, last], is_cut=True):
            return {"after_group": last.consumer_group, "after_queue": last.queue}
        case FoundSubscriptions(subscriptions=[*_, last], is_cut=True):
            return {"after_topic": last.topic_id, "after_group": last.consumer_group}
        case FoundConsumerGroups(groups=[*_, last], is_cut=True):
            topic = last.attachments[-1].topic_id if last.attachments else 0
            return {"after_group": last.name, "after_topic": topic}
        case FoundUsers(users=[*_, last], is_cut=True):
            return {"after": last.name}
        case FoundRules(rules=[*_, last], is_cut=True):
            return {"after_user": last.user, "after_text": last.text}
        case FoundAudit(entries=[*_, last], is_cut=True):
            return {"before": last.number}
        case FoundQuotas(quotas=[*_, last], is_cut=True):
            return {"after_kind": last.kind, "after_name": last.name}
        case FoundMembers(members=[*_, last], is_cut=True):
            return {
                "after_group": last.consumer_group,
                "after_topic": last.topic_id,
                "after_member": last.member,
            }
    return {}
