"""Who carries which partition group: pure functions from the catalog to new members.

Copies of data groups are spread evenly, and as few as possible are moved: a node that joins takes
over from those that carry most, what a leaving node carries goes to those that carry least. Every
node is a member of the system group, as each needs the catalog.

Invariants:
- A data group keeps its number of members, unless there are no more nodes to carry it.
- The first member, which should lead, stays first unless it leaves. Then the member that is first
  in the fewest groups takes its place.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from raftmq.pop.catalog import SYSTEM_GROUP, Group


def with_node(groups: Iterable[Group], node: int) -> list[Group]:
    """The groups that change when a node joins.

    >>> three = [Group(1, [1, 2, 3]), Group(2, [2, 3, 1]), Group(3, [3, 1, 2])]
    >>> [(group.id, group.members) for group in with_node(three, 4)]
    [(1, [1, 2, 4]), (2, [2, 3, 4])]
    """
    changed = []
    data = {group.id: list(group.members) for group in groups if group.id != SYSTEM_GROUP}
    load = Counter(member for members in data.values() for member in members)
    load.setdefault(node, load[node])
    share = sum(load.values()) // len(load)
    for group in groups:
        if group.id == SYSTEM_GROUP:
            if node not in group.members:
                changed.append(_with(group, [*group.members, node]))
            continue
        members = data[group.id]
        if node in members or load[node] >= share:
            continue
        # Not the first one: the leadership need not move.
        giver = max(members[1:], key=lambda member: (load[member], member), default=None)
        if giver is None or load[giver] <= load[node]:
            continue
        members[members.index(giver)] = node
        load[giver] -= 1
        load[node] += 1
        changed.append(_with(group, members))
    return changed


def without_node(groups: Iterable[Group], node: int, nodes: Iterable[int]) -> list[Group]:
    """The groups that change when a node leaves; `nodes` are all of the cluster.

    >>> [(g.id, g.members) for g in without_node([Group(1, [1, 2, 3])], 2, [1, 2, 3, 4])]
    [(1, [1, 4, 3])]
    >>> [(g.id, g.members) for g in without_node([Group(1, [1, 2, 3])], 2, [1, 2, 3])]
    [(1, [1, 3])]
    >>> [(g.id, g.members) for g in without_node(
    ...     [Group(1, [1, 2, 4]), Group(2, [2, 3, 4]), Group(3, [3, 1, 2])], 1, [1, 2, 3, 4])]
    [(1, [4, 3, 2]), (3, [3, 4, 2])]
    """
    groups = list(groups)
    changed = []
    load = Counter(
        member for group in groups if group.id != SYSTEM_GROUP for member in group.members
    )
    led = Counter(g.members[0] for g in groups if g.id != SYSTEM_GROUP and g.members)
    staying = [other for other in sorted(nodes) if other != node]
    for group in groups:
        if node not in group.members:
            continue
        members = list(group.members)
        free = [other for other in staying if other not in members]
        if group.id == SYSTEM_GROUP or not free:
            members.remove(node)
        else:
            taker = min(free, key=lambda other: (load[other], other))
            members[members.index(node)] = taker
            load[taker] += 1
        if group.id != SYSTEM_GROUP and group.members[0] == node and members:
            first = min(members, key=lambda member: (led[member], member))
            members.remove(first)
            members.insert(0, first)
            led[first] += 1
        changed.append(_with(group, members))
    return changed


def with_replacement(groups: Iterable[Group], old: int, new: int) -> list[Group]:
    """The groups that change when one node takes the place of another.

    >>> [(g.id, g.members) for g in with_replacement([Group(1, [1, 2, 3])], 1, 9)]
    [(1, [9, 2, 3])]
    """
    return [
        _with(group, [new if member == old else member for member in group.members])
        for group in groups
        if old in group.members
    ]


def _with(group: Group, members: list[int]) -> Group:
    return msgspec.structs.replace(group, members=members)
