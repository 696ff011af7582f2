"""Answers that are lost or late: the server has acted, and the client does not know.

Before some calls of a client, all bytes from the leader to the client's machine are held up for a
while: the answer comes late, or the connection breaks and the answer never comes. The client asks
again meanwhile, or gives up. A change must happen once, also if other clients change the same name
in between.

    plant_lost_answers(mq, cluster, host="operator-1", share=0.3, random=Random(7))

The calls are drawn from all of `Router.call_leader`: administrative calls and their
questions, commits of offsets, resets, cancellations, changes of dead letters.
"""

from functools import partial
from random import Random
from typing import Any

from raftmq.chaos.sim.cluster import Cluster
from raftmq.client import Client

BREAKS_SHARE = 0.7
"""Share of these answers that never come, as the connection breaks; the others come late."""
BREAK_SECONDS = (0.05, 2.0)
"""Until a connection breaks: the change is made long before, and other clients act meanwhile."""
LATE_SECONDS = (0.5, 6.0)
"""Delay of a late answer; some are longer than the client waits before it asks again."""
EFFECT = "answers lost or late"


def plant_lost_answers(
    mq: Client, cluster: Cluster, *, host: str, share: float, random: Random
) -> None:
    """Lose or delay a share of the answers to a client's calls.

    Args:
        mq: the client.
        cluster: the nodes that answer.
        host: the client's machine.
        share: the share of the client's calls.
        random: draws the calls, and the kind and time of the fault.
    """
    router = mq._router
    call_leader = router.call_leader

    async def call(group: int, *arguments: Any, **options: Any) -> Any:
        view = router.groups.get(group)
        leader = 0 if view is None else view.leader
        if leader and random.random() < share:
            _hold_up(cluster, f"node{leader}", host, random)
        return await call_leader(group, *arguments, **options)

    router.call_leader = call  # type: ignore[method-assign]


def _hold_up(cluster: Cluster, node: str, host: str, random: Random) -> None:
    network = cluster.network
    cluster.agenda.effects[EFFECT] += 1
    if random.random() < BREAKS_SHARE:
        network.swallow(node, host)
        after, end = random.uniform(*BREAK_SECONDS), network.spit
    else:
        network.block(node, host)
        after, end = random.uniform(*LATE_SECONDS), network.unblock
    cluster.agenda.call_after(after, partial(end, node, host))
