"""Changes of nodes that make no sense: each is refused, and nothing happens.

A node that is a member is named as the replacement of another, at an address where no node is.
The request takes several commands of the catalog, the first of which would move the member.

The request would be right if that member left before it arrived. Therefore one member is named in
all requests of a run: it was not asked to leave before, and is not asked until the last one ends.

Invariants, asserted here:
- Such a request is never granted.
- No node is ever at that address, whatever the request was answered.
"""

from collections import Counter
from collections.abc import Callable, Set
from random import Random

import trio

from raftmq.client import Client
from raftmq.errors import OutcomeUnknown, Rejected, Unavailable

HOST, PORT = "nowhere", 7613
"""No node of any run is here."""
PAUSE_SECONDS = 1.0
"""Mean time between two requests."""
CALL_SECONDS = 2.0


async def ask_for_misfits(
    mq: Client,
    random: Random,
    is_wanted: Callable[[], bool],
    counts: Counter[str],
    *,
    asked_to_leave: Set[int],
    must_stay: set[int],
) -> None:
    """Ask for replacements by members, and look at the nodes after each; a cancelled one leaves a
    request that may still be refused.

    Args:
        mq: connected.
        random: for what is asked, and when.
        is_wanted: False ends it.
        counts: gets what was answered.
        asked_to_leave: nodes that may leave soon, or have left.
        must_stay: the member named in requests, which must not be asked to leave; empty at the end.
    """
    while is_wanted():
        try:
            nodes = {node.id for node in (await mq.admin.cluster(timeout=CALL_SECONDS)).nodes}
            if not must_stay and (members := sorted(nodes - asked_to_leave)):
                must_stay.add(random.choice(members))
            for new in must_stay:
                if others := sorted(nodes - {new}):
                    await _ask(mq, counts, old=random.choice(others), new=new)
            at = {node.id: node.host for node in (await mq.admin.cluster()).nodes}
            assert HOST not in at.values(), f"a refused replacement has moved a node: {at}"
        except (Unavailable, OutcomeUnknown):
            counts["misfits in doubt"] += 1
        await trio.sleep(random.expovariate(1 / PAUSE_SECONDS))
    must_stay.clear()


async def _ask(mq: Client, counts: Counter[str], *, old: int, new: int) -> None:
    try:
        await mq.admin.replace_node(old, new, HOST, PORT, timeout=CALL_SECONDS)
    except Rejected:
        counts["misfits refused"] += 1
    else:
        raise AssertionError(f"node {new}, a member, was let in at {HOST} in the place of {old}")
