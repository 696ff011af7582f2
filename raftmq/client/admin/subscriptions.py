"""Subscriptions: reads and changes at the system group's leader."""

from typing import NamedTuple

from raftmq.client.consume.offsets import seconds_left
from raftmq.client.routing.catalog import change_catalog
from raftmq.client.routing.router import SYSTEM_GROUP, Router
from raftmq.machine.catalog.subscribers import Subscribe, Unsubscribe
from raftmq.wire.codec import unpack
from raftmq.wire.messages import (
    FindSubscriptions,
    FoundSubscriptions,
    FrameKind,
)


class Subscription(NamedTuple):
    """A consumer group's filter on a topic."""

    topic: str
    """The topic."""
    group: str
    """The consumer group."""
    filter: str
    """The filter: tags or SQL."""


async def subscribe(
    router: Router, topic: str, group: str, filter_: str, timeout: float | None = None
) -> int:
    """Set a consumer group's filter; returns the version of the subscriptions that has it."""
    return int(await change_catalog(router, Subscribe(topic, group, filter_), timeout))


async def unsubscribe(router: Router, topic: str, group: str, timeout: float | None = None) -> int:
    """Remove a consumer group's filter; returns the version of the subscriptions without it."""
    return int(await change_catalog(router, Unsubscribe(topic, group), timeout))


async def find_subscriptions(
    router: Router, topic: str | None, group: str | None, timeout: float | None = None
) -> list[Subscription]:
    """Subscriptions to a topic (None: all) of a consumer group (None: all).

    Long answers come in pages, all within the timeout.
    """
    left = seconds_left(router, timeout)
    found: list[Subscription] = []
    question = FindSubscriptions(topic, group)
    while True:
        frame = await router.call_leader(
            SYSTEM_GROUP, FrameKind.SUBSCRIBED, question, timeout=left()
        )
        page = unpack(FoundSubscriptions, frame.header)
        found += [Subscription(v.topic, v.consumer_group, v.expression) for v in page.subscriptions]
        if not page.is_cut:
            return found
        last = page.subscriptions[-1]
        question = FindSubscriptions(topic, group, last.topic_id, last.consumer_group)
