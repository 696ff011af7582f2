"""Questions for the routing table, and their answers, in parts and pages that fit into a frame.

| | bound |
|---|---|
| a question names topics | `NAMES_MAX` of them: a broker refuses headers over 256 KiB |
| an answer lists topics | a page of them; `ClusterView.next` asks for the next one |
"""

from collections.abc import Awaitable, Callable

import msgspec

from raftmq.errors import Reason, Rejected
from raftmq.wire.messages import ClusterView, GroupView, Metadata

from .pages import Pages

NAMES_MAX = 1_000
"""Topics that one question names; a name has up to 127 bytes."""

Ask = Callable[[Metadata], Awaitable[ClusterView]]
"""Asks a node one question."""


async def ask_in_parts(
    ask: Ask, topics: list[str] | None, *, user: str = "", is_latest: bool = False
) -> ClusterView:
    """The routing table with these topics (None: all); `user` is the user's name, if it is known.

    Raises:
        Rejected: `DENIED`, with `is_latest`: the user may not see one of these topics. Whatever
            `ask` raises.
    """
    if topics is None:
        return await _all_pages(ask, Metadata(None, is_latest=is_latest))
    view = await _all_pages(ask, Metadata(topics[:NAMES_MAX], is_latest=is_latest))
    found, denied = list(view.topics), list(view.denied)
    for start in range(NAMES_MAX, len(topics), NAMES_MAX):
        part = topics[start : start + NAMES_MAX]
        more = await _all_pages(ask, Metadata(part, is_latest=is_latest))
        found += more.topics
        denied += more.denied
    view = msgspec.structs.replace(view, topics=found, denied=denied)
    if is_latest and view.denied:
        name = view.denied[0]
        who = f"user {user!r}" if user else "this user"
        message = (
            f"{who} may not see topic {name!r}: no rule allows an operation on it, such as `write` "
            "to send, `read` or `pop` to consume, or `describe`"
        )
        raise Rejected(Reason.DENIED, message)
    return view


async def _all_pages(ask: Ask, question: Metadata) -> ClusterView:
    """The routing table with the topics of all pages."""
    pages = [page async for page in Pages(ask, question)]
    topics = [topic for page in pages for topic in page.topics]
    return msgspec.structs.replace(pages[0], topics=topics, next=0)


def is_newer(group: GroupView, known: GroupView) -> bool:
    """Whether a view of a partition group's leader takes the place of the one that is known."""
    # A node that leads nothing and hears no leader may be ahead of the leader's term.
    return group.leader != 0 and (group.term >= known.term or not known.leader)
