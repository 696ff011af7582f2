"""Subscriptions: reads and changes at the system group's leader."""

from typing import NamedTuple

from raftmq.client.routing.requests import ask_for_pages, change_catalog
from raftmq.client.routing.router import Router
from raftmq.filters import compile as compile_filter
from raftmq.machine.catalog.subscribers import Subscribe, Unsubscribe
from raftmq.wire.messages import FindSubscriptions, FoundSubscriptions


class Subscription(NamedTuple):
    """A consumer group's filter on a topic: the wire's `SubscriptionView` in the words of the
    calls, without the numbers of topic and version."""

    topic: str
    """Name of the topic."""
    group: str
    """Name of the consumer group."""
    filter: str
    """The filter: tags or SQL."""


async def subscribe(
    router: Router, topic: str, group: str, filter_: str, timeout: float | None = None
) -> int:
    """Set a consumer group's filter; returns the version of the subscriptions that has it.

    Raises:
        FilterSyntaxError: the filter cannot be read; nothing was sent.
    """
    # As SQL, which nodes of older software read too.
    sql = compile_filter(filter_).sql
    return int(await change_catalog(router, Subscribe(topic, group, sql), timeout))


async def unsubscribe(router: Router, topic: str, group: str, timeout: float | None = None) -> None:
    """Remove a consumer group's filter."""
    await change_catalog(router, Unsubscribe(topic, group), timeout)


async def find_subscriptions(
    router: Router, topic: str | None, group: str | None, timeout: float | None = None
) -> list[Subscription]:
    """Subscriptions to a topic (None: all) of a consumer group (None: all)."""
    question = FindSubscriptions(topic, group)
    pages = ask_for_pages(router, question, FoundSubscriptions, timeout=timeout)
    return [
        Subscription(view.topic, view.consumer_group, view.expression)
        async for page in pages
        for view in page.subscriptions
    ]
