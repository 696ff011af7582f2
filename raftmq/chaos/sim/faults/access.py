"""Rights that are taken away under load, and given back at the end of the fault.

| fault | taken away |
|---|---|
| `drop-user` | all users of clients, with their tokens and rules |
| `deny-pop` | the right of `APPLICATION` to pop topics: it still settles what it has in hand |
| `deny-group` | its right to read groups: what it has in hand comes to `COLLEAGUE`'s consumers |

`raftmq.chaos.sim.checks.rights` judges what the nodes let pass meanwhile; the checkers of the
workload judge that nothing is lost.

Invariants:
- Each change is asked for until it is made: what was taken away is given back, after the heal if it
  could not be done before.
"""

from collections.abc import Mapping

import trio

from raftmq.access.rules import EVERYBODY
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped, Steps
from raftmq.chaos.sim.arena import Make, SimArena
from raftmq.chaos.sim.clients import APPLICATION, COLLEAGUE, GUEST, Change
from raftmq.client import Client
from raftmq.wire.access import RuleView


def _barring(take: Change, give_back: Change | None = None) -> Make:
    """The fault that takes rights away as long as it lasts. Without `give_back` users get their
    rights as at the start."""

    def fault(arena: SimArena, event: Event) -> Steps:
        state = arena.state
        if not state.cluster.network.is_under_tls:
            raise Skipped("the nodes do not know their users")
        clients, over = state.clients, trio.Event()
        state.spawn(clients.barring, take, give_back or clients.give_rights, over)
        try:
            yield None
        finally:
            over.set()

    return fault


async def _drop_users(mq: Client) -> None:
    for user in (APPLICATION, COLLEAGUE, GUEST):
        await mq.access.drop_user(user)


def _denying(operation: str, resource: str) -> Make:
    rule = RuleView(APPLICATION, False, operation, resource, "", True, "")

    async def take(mq: Client) -> None:
        await mq.access.deny(APPLICATION, operation, resource, EVERYBODY)

    async def give_back(mq: Client) -> None:
        await mq.access.drop_rule(rule)

    return _barring(take, give_back)


OWN: Mapping[str, Make] = {
    "drop-user": _barring(_drop_users),
    "deny-pop": _denying("pop", "topic"),
    "deny-group": _denying("read", "group"),
}
"""By name of the fault."""
