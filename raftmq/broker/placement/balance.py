"""Evening out a cluster: which replicas and leaderships shall move, and why.

A plan is a pure function of what nodes and groups hold. It has three goals, in this order:

1. *apart*: the members of a group on different machines and in different zones, as far as there
   are such;
2. *load*: from the nodes with most to those with least, until no node is more than a tenth off the
   mean, or no replica is small enough to help. A replica counts with what it holds and with what
   is written to it, each as a share of the cluster's;
3. *leaders*: what is written to the groups that each node leads is evened out in the same way.
   Only the order of members changes, so nothing is copied. A node without capacity first hands one
   of its own groups on, so that a chain of groups changes.

Each group that changed is one move. What is good enough is left alone, so a plan made right after
another one was carried out is empty or nearly so, unless loads have changed.

Invariants:
- A move takes as many members in as out. One of `balance` never makes a group's members stand
  closer together; one of `vacate` does so only if no other node is free.
- A drained node receives no replica and no leadership.
- A node keeps a tenth of its free space.

Sources: Kafka's Cruise Control, whose goals have an order; Redpanda's partition balancer.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from raftmq.machine.catalog.state import Place

from .places import NO_PLACE, crowding, crowding_min

TOLERANCE = 0.1
"""A node within this share of the mean is good enough."""
ROOM_SHARE_MAX = 0.9
"""Share of a node's free space that a plan uses: the node is written to while replicas move."""
LEAST_BYTES = 1 << 20
"""Bytes that a group counts as at least, so that empty ones are spread as well."""
LEAST_RATE = 1 << 10
"""Bytes per second that a group counts as at least."""


class NodeRoom(NamedTuple):
    """A node that stays: where it stands, and what it may receive."""

    id: int
    place: Place = Place()
    is_drained: bool = False
    """True: it gets no replica and no leadership."""
    free_bytes: int | None = None
    """Free space of its disk beyond the reserve and beyond what it is about to get; None: not
    known, so it gets no replica."""


class GroupLoad(NamedTuple):
    """A data group."""

    id: int
    members: Sequence[int]
    """Its nodes; the first shall lead."""
    bytes: int
    """Bytes of one replica."""
    rate: float
    """Bytes per second that were written lately."""


class Move(NamedTuple):
    """A group that shall have other members, or another first one."""

    group: int
    before: list[int]
    members: list[int]
    """The nodes from then on; the first shall lead."""
    bytes: int
    """Bytes to be copied: of a replica for each node that comes."""
    reasons: list[str]


def balance(nodes: Iterable[NodeRoom], groups: Iterable[GroupLoad]) -> list[Move]:
    """The moves that even out a cluster; those that set members apart come first, those of leaders
    alone last.

    Args:
        nodes: all that stay in the cluster.
        groups: all data groups. Members that do not stay are left alone.

    >>> nodes = [NodeRoom(n, free_bytes=1 << 40) for n in (1, 2, 3, 4)]
    >>> groups = [GroupLoad(g, [1, 2, 3], 1 << 30, 0.0) for g in (1, 2, 3, 4)]
    >>> for move in balance(nodes, groups):
    ...     print(move.group, move.members, move.reasons)
    1 [3, 1, 4] ['load: from node 2 to node 4', 'leaders: from node 1 to node 3']
    2 [2, 1, 4] ['load: from node 3 to node 4', 'leaders: from node 1 to node 2']
    3 [4, 2, 3] ['load: from node 1 to node 4']
    """
    plan = _Plan(nodes, groups)
    plan.set_apart()
    plan.even_load()
    plan.even_leaders(TOLERANCE)
    return plan.moves()


def added(
    nodes: Iterable[NodeRoom], groups: Iterable[GroupLoad], count: int, *, copies: int
) -> list[list[int]]:
    """The members of new groups, the one that shall lead first: apart, and on the nodes with the
    least load. A new group counts as a mean one, as queues will come to it.

    Args: as for `balance`.
        count: of new groups.
        copies: members of each, or all nodes if these are fewer.

    >>> nodes = [NodeRoom(n, free_bytes=1 << 40) for n in (1, 2, 3, 4)]
    >>> groups = [GroupLoad(g, [1, 2, 3], 1 << 30, 0.0) for g in (1, 2, 3)]
    >>> added(nodes, groups, 2, copies=3)
    [[4, 2, 1], [3, 4, 1]]
    """
    plan = _Plan(nodes, groups)
    return [plan.add(copies) for _ in range(count)]


def even_leaders(
    nodes: Iterable[NodeRoom], groups: Iterable[GroupLoad], *, tolerance: float = TOLERANCE
) -> list[Move]:
    """The moves that even out what nodes lead, and copy nothing.

    Args: as for `balance`.
        tolerance: nothing changes while each node is within this share of the mean.

    >>> nodes = [NodeRoom(n) for n in (1, 2)]
    >>> groups = [GroupLoad(g, [1, 2], 0, rate) for g, rate in ((1, 6e6), (2, 4e6), (3, 1e6))]
    >>> [(move.group, move.members) for move in even_leaders(nodes, groups)]
    [(1, [2, 1])]
    >>> even_leaders(nodes, groups, tolerance=1.0)
    []
    """
    plan = _Plan(nodes, groups)
    plan.even_leaders(tolerance)
    return plan.moves()


def vacate(
    nodes: Iterable[NodeRoom],
    groups: Iterable[GroupLoad],
    node: int,
    *,
    moves_max: int | None = None,
) -> list[Move]:
    """The moves that take all replicas from a node, as far as other nodes have room for them.

    Args: as for `balance`; the node is one of `nodes`, and should be drained: else it may lead
        groups until they have moved.
        moves_max: plan no more than these.

    >>> nodes = [NodeRoom(n, is_drained=n == 3, free_bytes=1 << 40) for n in (1, 2, 3, 4)]
    >>> groups = [GroupLoad(1, [1, 2, 3], 1 << 30, 0.0), GroupLoad(2, [2, 1], 1 << 30, 0.0)]
    >>> [(move.group, move.members, move.reasons) for move in vacate(nodes, groups, 3)]
    [(1, [1, 2, 4], ['away: from node 3 to node 4'])]
    """
    plan = _Plan(nodes, groups)
    plan.vacate(node, moves_max)
    return plan.moves()


class _Plan:
    """A plan in the making."""

    def __init__(self, nodes: Iterable[NodeRoom], groups: Iterable[GroupLoad]) -> None:
        self._nodes = {node.id: node for node in nodes}
        self._groups = {group.id: group for group in groups}
        self._places = {node.id: node.place for node in self._nodes.values()}
        self._members = {group.id: list(group.members) for group in self._groups.values()}
        self._reasons: dict[int, list[str]] = {}
        """Groups that change, in the order in which they were found."""
        self._carried: dict[int, set[int]] = {node: set() for node in self._nodes}
        """Node → the groups of which it has a replica."""
        self._room = {n.id: (n.free_bytes or 0) * ROOM_SHARE_MAX for n in self._nodes.values()}
        self._rates = {g.id: max(LEAST_RATE, g.rate) for g in self._groups.values()}
        sizes = {g.id: max(LEAST_BYTES, g.bytes) for g in self._groups.values()}
        size, rate = sum(sizes.values()), sum(self._rates.values())
        self._weights = {g: sizes[g] / size + self._rates[g] / rate for g in self._groups}
        self._load = dict.fromkeys(self._nodes, 0.0)
        """Node → the weight of its replicas."""
        for number, members in self._members.items():
            for node in self._carried.keys() & set(members):
                self._carried[node].add(number)
                self._load[node] += self._weights[number]

    # New groups

    def add(self, copies: int) -> list[int]:
        """Place a new group; its members."""
        able = [node.id for node in self._nodes.values() if self._may_take(node)]
        members: list[int] = []
        while len(members) < min(copies, len(able)):
            ranks = {
                node: (crowding([*members, node], self._places), self._load[node], node)
                for node in able
                if node not in members
            }
            members.append(min(ranks, key=ranks.__getitem__))
        led = Counter(each[0] for each in self._members.values())
        members.sort(key=lambda node: led[node])
        number = max(self._members, default=0) + 1
        weights = self._weights.values()
        self._weights[number] = sum(weights) / len(weights) if weights else 1.0
        self._members[number] = members
        for node in members:
            self._load[node] += self._weights[number]
        return members

    # Replicas

    def vacate(self, node: int, moves_max: int | None) -> None:
        """Move replicas of a node to those that stand apart, then to those with least load."""
        for group in sorted(self._carried[node]):
            if moves_max is not None and len(self._reasons) >= moves_max:
                return
            members, size = self._members[group], self._groups[group].bytes
            rest = [member for member in members if member != node]
            ranks = {
                n: (crowding([*rest, n], self._places), self._load[n], n)
                for n, other in self._nodes.items()
                if n not in members and self._may_take(other) and size <= self._room[n]
            }
            if ranks:
                self._move(group, node, min(ranks, key=ranks.__getitem__), "away")

    def set_apart(self) -> None:
        """Move members that stand closer together than they must."""
        takers = [node for node in self._nodes.values() if self._may_take(node)]
        places = [node.place for node in takers]
        for group, members in self._members.items():
            least = crowding_min(len(members), places)
            while crowding(members, self._places) > least:
                found = self._apart(group, members, takers)
                if found is None:
                    break
                giver, taker = found
                self._move(group, giver, taker, "apart")

    def _apart(
        self, group: int, members: list[int], takers: list[NodeRoom]
    ) -> tuple[int, int] | None:
        """The best exchange of a member for another node; None: no exchange sets members apart."""
        best = crowding(members, self._places), False, 0.0, 0.0
        found = None
        for giver in members:
            if giver not in self._nodes:
                continue
            rest = [member for member in members if member != giver]
            for taker in takers:
                if taker.id in members or self._room[taker.id] < self._groups[group].bytes:
                    continue
                crowd = crowding([*rest, taker.id], self._places)
                # Rather not the one that leads.
                rank = crowd, giver == members[0], self._load[taker.id], -self._load[giver]
                if crowd < best[0] and (found is None or rank < best):
                    best, found = rank, (giver, taker.id)
        return found

    def even_load(self) -> None:
        """Move replicas from the nodes with the most load to those with the least."""
        takers = [node.id for node in self._nodes.values() if self._may_take(node)]
        givers, in_vain = list(self._load), set[tuple[int, int]]()
        mean = sum(self._load.values()) / max(1, len(self._load))
        while givers and takers:
            led = Counter(members[0] for members in self._members.values())
            # Of equals the one that leads less: a leadership has to change with its replica.
            giver = max(givers, key=lambda node: (self._load[node], -led[node], -node))
            takers.sort(key=lambda node: (self._load[node], node))
            is_high = self._load[giver] > mean * (1 + TOLERANCE)
            is_low = self._load[takers[0]] < mean * (1 - TOLERANCE)
            if not is_high and not is_low:
                return
            for taker in takers:
                if (giver, taker) not in in_vain and self._even(giver, taker):
                    break
                # Not tried again in this plan, which bounds the work. A later plan tries again.
                in_vain.add((giver, taker))
            else:
                givers.remove(giver)

    def _even(self, giver: int, taker: int) -> bool:
        """Move the replica that brings two nodes closest together; False: none does."""
        gap, room = self._load[giver] - self._load[taker], self._room[taker]
        candidates = [
            (abs(gap - 2 * weight), giver == self._members[group][0], group)
            for group in self._carried[giver] - self._carried[taker]
            # By more than rounding, or a group would go to and fro.
            if (weight := self._weights[group]) < gap * (1 - 1e-9)
            and self._groups[group].bytes <= room
        ]
        for _, _, group in sorted(candidates):
            if self._stands_apart(group, giver, taker):
                self._move(group, giver, taker, "load")
                return True
        return False

    def _stands_apart(self, group: int, giver: int, taker: int) -> bool:
        """True if an exchange brings the group's members no closer together."""
        old, new = self._places[giver], self._places[taker]
        if old == new:
            return True
        machines = zones = 0
        # As `crowding` before and after; this is asked millions of times.
        for member in self._members[group]:
            if member != giver:
                place = self._places.get(member, NO_PLACE)
                zones += (place.zone == new.zone) - (place.zone == old.zone)
                machines += place.machine == new.machine != ""
                machines -= place.machine == old.machine != ""
        return (machines, zones) <= (0, 0)

    def _may_take(self, node: NodeRoom) -> bool:
        return not node.is_drained and node.free_bytes is not None

    def _move(self, group: int, giver: int, taker: int, goal: str) -> None:
        members = self._members[group]
        members[members.index(giver)] = taker
        self._carried[giver].discard(group)
        self._carried[taker].add(group)
        self._load[giver] -= self._weights[group]
        self._load[taker] += self._weights[group]
        self._room[taker] -= self._groups[group].bytes
        self._note(group, giver, taker, goal)

    def _note(self, group: int, giver: int, taker: int, goal: str) -> None:
        reason = f"{goal}: from node {giver} to node {taker}"
        self._reasons.setdefault(group, []).append(reason)

    # Leaders

    def even_leaders(self, tolerance: float) -> None:
        """Change the order of members, until what nodes lead is even, if it is off by more than
        the tolerance."""
        able = [node.id for node in self._nodes.values() if not node.is_drained]
        if not able:
            return
        leads = _Leads(self._members, self._rates, able)
        if not leads.is_off(tolerance):
            return
        for group, leader in leads.spread():
            members, first = self._members[group], leads.first[group]
            members.remove(leader)
            members.insert(0, leader)
            self._note(group, first, leader, "leaders")

    def moves(self) -> list[Move]:
        """The groups that changed."""
        found = []
        for number, reasons in self._reasons.items():
            group, members = self._groups[number], self._members[number]
            if list(group.members) != members:
                coming = len(set(members).difference(group.members))
                size = coming * group.bytes
                found.append(Move(number, list(group.members), members, size, reasons))
        return found


class _Leads:
    """The leaderships of groups, as they are evened out."""

    def __init__(
        self, members: Mapping[int, Sequence[int]], rates: Mapping[int, float], able: Sequence[int]
    ) -> None:
        self._rates = rates
        known = set(able)
        self._heirs = {g: [n for n in nodes if n in known] for g, nodes in members.items()}
        """Group → its members that may lead."""
        self.first = {group: heirs[0] for group, heirs in self._heirs.items() if heirs}
        """Group → the node that shall lead it now."""
        self._leader = dict(self.first)
        self._load = dict.fromkeys(able, 0.0)
        self._led: dict[int, set[int]] = {node: set() for node in able}
        for group, node in self._leader.items():
            self._load[node] += rates[group]
            self._led[node].add(group)

    def is_off(self, tolerance: float) -> bool:
        """True if a node leads that much more or less than the mean."""
        loads = self._load.values()
        mean = sum(loads) / len(loads)
        return max(loads) > mean * (1 + tolerance) or min(loads) < mean * (1 - tolerance)

    def spread(self) -> list[tuple[int, int]]:
        """The groups whose leader changes, each with its new leader."""
        while self.is_off(TOLERANCE):
            order = sorted(self._load, key=lambda node: (-self._load[node], node))
            if not any(self._give(node) for node in order) and not any(
                self._give_on(node) for node in order
            ):
                break
        return [(g, node) for g, node in self._leader.items() if node != self.first[g]]

    def _give(self, giver: int) -> bool:
        """Hand over the group that evens the loads most; False: none does."""
        best, group, taker = 0.0, 0, 0
        for each in sorted(self._led[giver]):
            for heir in self._heirs[each]:
                rate = self._rates[each]
                gain = rate * (self._load[giver] - self._load[heir] - rate)
                if heir != giver and gain > best:
                    best, group, taker = gain, each, heir
        return bool(taker) and self._hand_on(giver, taker, {taker: (giver, group)})

    def _give_on(self, giver: int) -> bool:
        """Hand over a group to a node that hands on one of its own, and so on; False: no such chain
        evens the loads."""
        # Breadth first: as few leaderships change as can be.
        came: dict[int, tuple[int, int]] = {giver: (0, 0)}
        due = deque([giver])
        while due:
            node = due.popleft()
            for group in sorted(self._led[node], key=lambda each: (self._rates[each], each)):
                for heir in self._heirs[group]:
                    if heir in came:
                        continue
                    came[heir] = (node, group)
                    due.append(heir)
                    if self._hand_on(giver, heir, came):
                        return True
        return False

    def _hand_on(self, giver: int, taker: int, came: Mapping[int, tuple[int, int]]) -> bool:
        """Carry out the chain that ends with `taker`, if the loads are evener after it."""
        chain, node = [], taker
        while node != giver:
            before, group = came[node]
            chain.append((group, before, node))
            node = before
        after = {node: self._load[node] for node in (giver, *(to for _, _, to in chain))}
        squares = sum(load**2 for load in after.values())
        for group, source, to in chain:
            after[source] -= self._rates[group]
            after[to] += self._rates[group]
        # By more than rounding, or the steps would not end.
        if sum(load**2 for load in after.values()) >= squares * (1 - 1e-9):
            return False
        self._load |= after
        for group, source, to in chain:
            self._led[source].discard(group)
            self._led[to].add(group)
            self._leader[group] = to
        return True
