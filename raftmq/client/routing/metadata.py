"""Questions for the routing table, and their answers, in parts and pages that fit into a frame.

| | bound |
|---|---|
| a question names topics | `NAMES_MAX` of them: a broker refuses headers over 1 MiB |
| an answer lists topics | a page of them; `ClusterView.next` asks for the next one |
"""

from collections.abc import Awaitable, Callable

import msgspec

from raftmq.errors import Unavailable
from raftmq.wire.codec import unpack
from raftmq.wire.messages import ClusterView, Metadata, TopicView

from .connection import Answer, Lost
from .pages import Pages
from .refusals import exception_of, refusal_of

NAMES_MAX = 5_000
"""Topics that one question names; a name has up to 127 bytes."""

Ask = Callable[[Metadata], Awaitable[ClusterView]]
"""Asks a node one question."""


async def ask_in_parts(
    ask: Ask, topics: list[str] | None, *, is_latest: bool = False
) -> ClusterView:
    """The routing table with these topics (None: all).

    Raises:
        Whatever `ask` raises.
    """
    if topics is None:
        return await _all_pages(ask, Metadata(None, is_latest=is_latest))
    view = await _all_pages(ask, Metadata(topics[:NAMES_MAX], is_latest=is_latest))
    found: list[TopicView] = list(view.topics)
    for start in range(NAMES_MAX, len(topics), NAMES_MAX):
        part = topics[start : start + NAMES_MAX]
        found += (await _all_pages(ask, Metadata(part, is_latest=is_latest))).topics
    return msgspec.structs.replace(view, topics=found)


async def _all_pages(ask: Ask, question: Metadata) -> ClusterView:
    """The routing table with the topics of all pages."""
    pages = [page async for page in Pages(ask, question)]
    topics = [topic for page in pages for topic in page.topics]
    return msgspec.structs.replace(pages[0], topics=topics, next=0)


def view_in(answer: Answer) -> ClusterView:
    """The routing table in an answer.

    Raises:
        Unavailable: the connection broke.
        RaftmqError: the node refused.
    """
    if isinstance(answer, Lost):
        raise Unavailable(answer.why)
    refusal = refusal_of(answer)
    if refusal is not None:
        raise exception_of(refusal)
    return unpack(ClusterView, answer.header)
