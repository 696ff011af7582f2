"""The nodes of each partition group: pure functions from the catalog to new members.

Copies of data groups are spread evenly, and as few as possible are moved: a node that joins takes
over from those that carry most, what a leaving node carries goes to those that carry least. Every
node is a member of the system group, as each needs the catalog.

Invariants:
- A data group has as many members as it was founded with, or all nodes that stay if these are
  fewer. A removal may leave a group with fewer; every later change of nodes fills the group up.
- The first member, which should lead, stays first unless it leaves. Then the member that is first
  in the fewest groups takes its place.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Group


def copies(group: Group) -> int:
    """How many members a data group shall have: as many as founded it. `Group.members` cannot tell,
    as a removal without a free node takes one away."""
    # Snapshots of the first state versions name no founders.
    return len(group.founders) or len(group.members)


def with_node(groups: Iterable[Group], node: int, nodes: Iterable[int]) -> list[Group]:
    """The groups that change when a node joins; `nodes` are all that stay.

    >>> three = [Group(1, [1, 2, 3]), Group(2, [2, 3, 1]), Group(3, [3, 1, 2])]
    >>> [(group.id, group.members) for group in with_node(three, 4, [1, 2, 3])]
    [(1, [1, 2, 4]), (2, [2, 3, 4])]
    >>> one = [Group(1, [1, 2], founders=[1, 2, 3])]
    >>> [(group.id, group.members) for group in with_node(one, 4, [1, 2])]
    [(1, [1, 2, 4])]
    """
    before = list(groups)
    after = filled(before, {node, *nodes})
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
        # Not the first one: the leadership need not move.
        giver = max(members[1:], key=lambda member: (load[member], member), default=None)
        if giver is None or load[giver] <= load[node]:
            continue
        members[members.index(giver)] = node
        load[giver] -= 1
        load[node] += 1
        after[at] = _with(group, members)
    return _changed(before, after)


def without_node(groups: Iterable[Group], node: int, nodes: Iterable[int]) -> list[Group]:
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
            taker = min(free, key=lambda other: (load[other], other))
            members[members.index(node)] = taker
            load[taker] += 1
        if group.id != SYSTEM_GROUP and group.members[0] == node and members:
            first = min(members, key=lambda member: (led[member], member))
            members.remove(first)
            members.insert(0, first)
            led[first] += 1
        after[at] = _with(group, members)
    return _changed(before, filled(after, staying))


def with_replacement(
    groups: Iterable[Group], old: int, new: int, nodes: Iterable[int]
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
    return _changed(before, filled(after, {new, *nodes} - {old}))


def filled(groups: Iterable[Group], nodes: Iterable[int]) -> list[Group]:
    """All groups. A data group with fewer members than `copies` says gets further ones: the nodes
    that carry least, as far as there are any.

    >>> groups = [Group(1, [2], founders=[1, 2]), Group(2, [2, 3], founders=[2, 3])]
    >>> [(group.id, group.members) for group in filled(groups, [2, 3, 4])]
    [(1, [2, 4]), (2, [2, 3])]
    """
    after = list(groups)
    load = _load(after)
    for at, group in enumerate(after):
        free = [] if group.id == SYSTEM_GROUP else sorted(set(nodes).difference(group.members))
        free.sort(key=lambda node: load[node])
        takers = free[: max(0, copies(group) - len(group.members))]
        load.update(takers)
        after[at] = _with(group, [*group.members, *takers])
    return after


def _load(groups: Iterable[Group]) -> Counter[int]:
    """How many data groups each node carries."""
    data = (group for group in groups if group.id != SYSTEM_GROUP)
    return Counter(member for group in data for member in group.members)


def _changed(before: list[Group], after: list[Group]) -> list[Group]:
    return [new for old, new in zip(before, after, strict=True) if new != old]


def _with(group: Group, members: list[int]) -> Group:
    return msgspec.structs.replace(group, members=members)
