"""Changes of a cluster's members under other faults.

A change is asked for, as an operator would, and may be refused, or go unanswered. Each world spares
the changes that the product does not promise to survive there.

Sources: thesis §4.
"""

from collections.abc import Mapping

from .arena import Arena, Make, Steps, at_once, while_lasts
from .partitions import isolate
from .schedule import Event

CUT_SECONDS = (1.0, 4.0)
"""Shortest and longest partition during which a change is asked for."""


def two_changes(arena: Arena, event: Event) -> Steps:
    """Two changes are asked for at once."""
    arena.add_member()
    arena.remove_member(event.nodes[0])
    yield from ()


def change_when_cut(arena: Arena, event: Event) -> Steps:
    """One node is cut off; meanwhile another is removed or replaced, or a node is added."""
    node, other = event.nodes[:2]
    with arena.cut(isolate([node], arena.members())):
        dice = arena.random.random()
        if dice < 0.4:
            arena.remove_member(other)
        elif dice < 0.7:
            arena.replace_member(other)
        else:
            arena.add_member()
        yield arena.random.uniform(*CUT_SECONDS)


MEMBERS: Mapping[str, Make] = {
    "add-voter": at_once(lambda arena, event: arena.add_member()),
    "remove-voter": at_once(lambda arena, event: arena.remove_member(event.nodes[0])),
    "promote-learner": at_once(lambda arena, event: arena.promote_learner()),
    "replace-node": at_once(lambda arena, event: arena.replace_member(event.nodes[0])),
    "remove-leader": at_once(lambda arena, event: arena.remove_member(event.nodes[0])),
    "two-changes": two_changes,
    "change-when-cut": change_when_cut,
    "drain": while_lasts(lambda arena, event: arena.drain(event.nodes[0])),
    "balance": at_once(lambda arena, event: arena.even_out()),
    "rejoin": at_once(lambda arena, event: arena.bring_back(event.nodes[0])),
}
"""By name of the fault."""
