"""The nodes of each partition group: pure functions from the catalog to new members.

Copies of data groups are spread evenly, and as few as possible are moved: a node that joins takes
over from those that carry most, what a leaving node carries goes to those that carry least, and to
those that stand apart from a group's other members first. Every node is a member of the system
group, as each needs the catalog.

These functions go by the number of replicas; `balance` goes by what they hold.

Invariants:
- A data group has as many members as it was founded with, or all nodes that stay if these are
  fewer. A removal may leave a group with fewer; every later change of nodes fills the group up.
- A node that joins or leaves puts the members of a group no closer together than they must be. A
  replacement takes the old node's place in each group, wherever it stands.
- The first member, which should lead, stays first unless it leaves. Then the member that is first
  in the fewest groups takes its place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Group
from raftmq.machine.catalog.state import Place

from .places import crowding

NOWHERE: Mapping[int, Place] = MappingProxyType({})
"""The places of nodes that say nothing of them."""


def copies(group: Group) -> int:
    """How many members a data group shall have: as many as founded it. `Group.members` cannot tell,
    as a removal without a free node takes one away."""
    # Snapshots of the first state versions name no founders.
    return len(group.founders) or len(group.members)


def with_node(
    groups: Iterable[Group],
    node: int,
    nodes: Iterable[int],
    places: Mapping[int, Place] = NOWHERE,
) -> list[Group]:
    """The groups that change when a node joins; `nodes` are all that stay.

    >>> three = [Group(1, [1, 2, 3]), Group(2, [2, 3, 1]), Group(3, [3, 1, 2])]
    >>> [(group.id, group.members) for group in with_node(three, 4, [1, 2, 3])]
    [(1, [1, 2, 4]), (2, [2, 3, 4])]
    >>> one = [Group(1, [1, 2], founders=[1, 2, 3])]
    >>> [(group.id, group.members) for group in with_node(one, 4, [1, 2])]
    [(1, [1, 2, 4])]
    >>> places = {1: Place("a"), 2: Place("a"), 3: Place("b"), 4: Place("c")}
    >>> [(group.id, group.members) for group in with_node(three, 4, [1, 2, 3], places)]
    [(1, [1, 4, 3]), (2, [2, 3, 4])]
    """
    before = list(groups)
    after = filled(before, {node, *nodes}, places)
    load = _load(after)
    load.setdefault(node, 0)
    share = sum(load.values()) // len(load)
    for at, group in enumerate(after):
        members = list(group.members)
        if group.id == SYSTEM_GROUP:
            if node not in members:
                after[at] = _with(group, [*members, node])
            continue
        if node in members or load[node] >= share:
            continue
        now = crowding(members, places)
        # Not the first one: the leadership need not move.
        givers = {
            giver: crowd
            for giver in members[1:]
            if load[giver] > load[node]
            and (crowd := crowding([m for m in members if m != giver] + [node], places)) <= now
        }
        if not givers:
            continue
        giver = min(givers, key=lambda member: (givers[member], -load[member], -member))
        members[members.index(giver)] = node
        load[giver] -= 1
        load[node] += 1
        after[at] = _with(group, members)
    return _changed(before, after)


def without_node(
    groups: Iterable[Group],
    node: int,
    nodes: Iterable[int],
    places: Mapping[int, Place] = NOWHERE,
) -> list[Group]:
    """The groups that change when a node leaves; `nodes` are all that stay.

    >>> [(g.id, g.members) for g in without_node([Group(1, [1, 2, 3])], 2, [1, 2, 3, 4])]
    [(1, [1, 4, 3])]
    >>> [(g.id, g.members) for g in without_node([Group(1, [1, 2, 3])], 2, [1, 2, 3])]
    [(1, [1, 3])]
    >>> [(g.id, g.members) for g in without_node(
    ...     [Group(1, [1, 2, 4]), Group(2, [2, 3, 4]), Group(3, [3, 1, 2])], 1, [1, 2, 3, 4])]
    [(1, [4, 3, 2]), (3, [3, 4, 2])]
    """
    before = list(groups)
    after = list(before)
    load = _load(before)
    led = Counter(g.members[0] for g in before if g.id != SYSTEM_GROUP and g.members)
    staying = [other for other in sorted(nodes) if other != node]
    for at, group in enumerate(before):
        if node not in group.members:
            continue
        members = list(group.members)
        free = [other for other in staying if other not in members]
        if group.id == SYSTEM_GROUP or not free:
            members.remove(node)
        else:
            rest = [member for member in members if member != node]
            taker = min(
                free, key=lambda other: (crowding([*rest, other], places), load[other], other)
            )
            members[members.index(node)] = taker
            load[taker] += 1
        if group.id != SYSTEM_GROUP and group.members[0] == node and members:
            first = min(members, key=lambda member: (led[member], member))
            members.remove(first)
            members.insert(0, first)
            led[first] += 1
        after[at] = _with(group, members)
    return _changed(before, filled(after, staying, places))


def with_replacement(
    groups: Iterable[Group],
    old: int,
    new: int,
    nodes: Iterable[int],
    places: Mapping[int, Place] = NOWHERE,
) -> list[Group]:
    """The groups that change when one node takes the place of another; `nodes` are all that stay.

    >>> [(g.id, g.members) for g in with_replacement([Group(1, [1, 2, 3])], 1, 9, [2, 3])]
    [(1, [9, 2, 3])]
    """
    before = list(groups)
    after = [
        _with(group, [new if member == old else member for member in group.members])
        for group in before
    ]
    return _changed(before, filled(after, {new, *nodes} - {old}, places))


def filled(
    groups: Iterable[Group], nodes: Iterable[int], places: Mapping[int, Place] = NOWHERE
) -> list[Group]:
    """All groups. A data group with fewer members than `copies` says gets further ones, as far as
    there are any: those that stand apart from the others, then those that carry least.

    >>> groups = [Group(1, [2], founders=[1, 2]), Group(2, [2, 3], founders=[2, 3])]
    >>> [(group.id, group.members) for group in filled(groups, [2, 3, 4])]
    [(1, [2, 4]), (2, [2, 3])]
    """
    after = list(groups)
    load = _load(after)
    for at, group in enumerate(after):
        members = list(group.members)
        free = set() if group.id == SYSTEM_GROUP else set(nodes).difference(members)
        while free and len(members) < copies(group):
            taker = min(free, key=lambda n: (crowding([*members, n], places), load[n], n))
            free.discard(taker)
            members.append(taker)
            load[taker] += 1
        after[at] = _with(group, members)
    return after


def _load(groups: Iterable[Group]) -> Counter[int]:
    """How many data groups each node carries."""
    data = (group for group in groups if group.id != SYSTEM_GROUP)
    return Counter(member for group in data for member in group.members)


def _changed(before: list[Group], after: list[Group]) -> list[Group]:
    return [new for old, new in zip(before, after, strict=True) if new != old]


def _with(group: Group, members: list[int]) -> Group:
    return msgspec.structs.replace(group, members=members)
