"""How long topics keep their messages, by a catalog that is known to be new.

    raftmq config set topic orders log.retention_ms=30d    -> times() is {7: 2_592_000_000}

A node that starts, or is cut off from the system group, has a catalog of some time ago: a longer
time may have been set since. So messages are dropped by age only soon after this catalog was
compared with its leader's.

Left out: waiting for the comparison. The caller asks again later, and the log stays meanwhile.
"""

import math
from collections.abc import Mapping

import trio

from raftmq.broker.cluster.views import renew_catalog
from raftmq.broker.host import Host

from .known import TOPIC_RETENTION

FRESH_SECONDS = 10.0
"""For this time after a comparison the catalog counts as new."""
RENEW_SECONDS = FRESH_SECONDS / 2
"""After this time a question begins the next comparison."""


class TopicRetention:
    """The topics' own times, as one node knows them."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._renewed_at = -math.inf
        self._is_renewing = False
        self._times: Mapping[int, int] = {}
        # What they were made of: the catalog, and the versions of its topics and settings.
        self._made_of: tuple[object, int, int] = (None, 0, 0)

    def times(self) -> Mapping[int, int]:
        """Topic id → milliseconds, 0 for ever; of the topics that have a time of their own."""
        catalog = self._node.catalog
        made_of = (catalog, catalog.version, catalog.settings.version)
        if self._made_of != made_of:
            times = catalog.settings.numbers_of_topics(TOPIC_RETENTION)
            topics = catalog.topics
            self._times = {topics[name].id: ms for name, ms in times.items() if name in topics}
            self._made_of = made_of
        return self._times

    def is_fresh(self) -> bool:
        """Whether no time that was set before the last seconds is unknown here. False: ask again
        in a moment."""
        age = trio.current_time() - self._renewed_at
        if age > RENEW_SECONDS and not self._is_renewing:
            self._is_renewing = True
            self._node.start_soon(self._renew)
        return age <= FRESH_SECONDS

    async def _renew(self) -> None:
        began = trio.current_time()
        try:
            if await renew_catalog(self._node):
                self._renewed_at = began
        finally:
            self._is_renewing = False
