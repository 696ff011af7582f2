"""Names in a cluster, which a shell completes: topics, consumer groups and users.

    @click.argument("topic", type=TOPIC)

A completion asks the cluster of `--url` or `RAFTMQ_URL`. If the cluster does not answer, the
completion is empty: a shell waits for the answer, and has no place for an error.
"""

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from .exits import Failure
from .session import DEFAULT_URL, Session

if TYPE_CHECKING:
    from raftmq.client import Client

SECONDS_MAX = 2.0
"""The longest that a shell waits for names, over all requests."""


class _Name(click.types.StringParamType):
    """Text; a shell offers the existing names."""

    def __init__(self, names: "Callable[[Client], Awaitable[list[str]]]") -> None:
        self._names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        """The existing names that begin with `incomplete`."""
        url = ctx.params.get("url") or os.environ.get("RAFTMQ_URL") or DEFAULT_URL
        try:
            found = Session(url, SECONDS_MAX).run_alone(partial(self._ask, url))
        except (Failure, OSError):
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]

    async def _ask(self, url: str) -> list[str]:
        """The existing names. Raises `TimeoutError` after `SECONDS_MAX`."""
        import anyio

        import raftmq

        with anyio.fail_after(SECONDS_MAX):
            async with raftmq.connect(url, timeout=SECONDS_MAX, wait_refused=0.0) as mq:
                return await self._names(mq)


async def _topics(mq: "Client") -> list[str]:
    return [topic.name for topic in await mq.admin.list_topics()]


async def group_names(mq: "Client") -> list[str]:
    """All consumer groups: created ones, and those with committed offsets."""
    settled = {group.name for group in await mq.admin.consumer_groups()}
    return sorted(settled.union(group.name for group in await mq.admin.list_groups()))


async def _users(mq: "Client") -> list[str]:
    return [user.name for user in await mq.access.users()]


TOPIC = _Name(_topics)
"""A topic's name."""
GROUP = _Name(group_names)
"""A consumer group's name."""
USER = _Name(_users)
"""A user's name."""
