"""The leader of each partition group of a test cluster, from the nodes' own status."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from raftmq.errors import Unavailable

Statuses = Mapping[int, Mapping[str, Any]]
"""The status of each node; see `raftmq.broker.status`."""


def leaders_of(statuses: Statuses) -> dict[int, int]:
    """Partition group → the node that leads it, by the highest term."""
    terms: dict[int, tuple[int, int]] = {}
    for node, status in statuses.items():
        for group in status["groups"]:
            if group["group"] in status["leads"]:
                known = terms.get(group["group"], (0, 0))
                terms[group["group"]] = max(known, (group["term"], node))
    return {group: node for group, (_, node) in terms.items()}


def are_led(statuses: Statuses) -> bool:
    """Whether there are data groups, and each partition group has a leader."""
    known = {group["group"] for status in statuses.values() for group in status["groups"]}
    # Group 0 makes the others; until then there are no data groups to speak of.
    return len(known) > 1 and known == set(leaders_of(statuses))


async def wait_leader(
    statuses: Callable[[], Awaitable[Statuses]], group: int, *, timeout: float, pace: float
) -> int:
    """Wait for a leader of a partition group, and return its node.

    Args:
        statuses: asks all running nodes.
        group: the partition group; 0: the system group.
        timeout: seconds.
        pace: seconds between two looks.

    Raises:
        Unavailable: no node leads it in time.
    """
    with anyio.move_on_after(timeout):
        while True:
            leaders = leaders_of(await statuses())
            if group in leaders:
                return leaders[group]
            await anyio.sleep(pace)
    raise Unavailable(f"no node leads group {group} for {timeout:g} s")
