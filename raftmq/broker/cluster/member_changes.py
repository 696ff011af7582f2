"""Changes of members: the node asks all nodes, then each group that it leads takes the next step.

As long as a group led here has other members than the catalog wants, a round is begun each second:

1. the catalog here becomes as new as the word of its leader: an old one could make a node a voter
   again that has left and may be off, or take a living voter for the former self of its node;
2. every node is asked which member it carries of each group, and each group calls the roll: a
   member may be up, and its answers may not arrive;
3. each group that called the roll takes the step that is due by these answers
   (`reconfiguration.next_step`).

Answers from before the round do not count. A node may have died, or lost a log, since; and a leader
whose process stood still would take old answers for new ones. A group whose place in the catalog
changes in the middle of a round waits for the next one.

Invariants:
- Answers older than `ROUND_SECONDS_MAX` lead to no step, and no wait lies between the look at their
  age and the proposals.
- A node speaks for its own members only.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Set

import trio
from msgspec import structs

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.tickets import Callback
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.levels import LEARNERS_LEVEL
from raftmq.machine.catalog.replicas import member_of
from raftmq.wire.messages import ClusterView

from .reconfiguration import Wanted, is_settled, next_step
from .views import ANSWER_SECONDS_MAX, ask_all, renew_catalog

ROUND_PAUSE_SECONDS = 0.5
"""The least time from the begin of a round to the begin of the next one."""

ROUND_SECONDS_MAX = 2 * ANSWER_SECONDS_MAX
"""Answers older than this are thrown away: the process stood still."""

ROLL_CALL_SECONDS = 0.1
"""Between two looks for the answers to the roll call. A member's answer takes its node's connection
and may wait there behind records, while the word of its node comes over the one of this node."""


class MemberChanges:
    """The changes of members of the groups that one node leads."""

    def __init__(
        self,
        node: Host,
        *,
        hand_over: Callable[[Group, Iterable[int]], bool],
        held_before: Callable[[Group], int],
        is_leaving: Callable[[int], bool],
    ) -> None:
        self._node = node
        self._hand_over = hand_over
        self._held_before = held_before
        self._is_leaving = is_leaving
        self._is_asking = False
        self._began_at = -math.inf
        self._proposed: set[int] = set()
        """Groups with a change under way."""
        self._called: dict[int, int] = {}
        """Groups that called the roll in the last round, each with its leader's term."""
        self._stepping: set[int] = set()
        """Groups that took a step in the last round."""

    def is_changing(self, group: Group) -> bool:
        """True if a group led here is on its way to other members."""
        is_under_way = group.number in self._proposed or group.conf_state.voters_outgoing
        return bool(is_under_way) or group.number in self._stepping

    def look(self, led: list[Group]) -> None:
        """Begin a round if one of the groups led here needs a step."""
        self._stepping &= {group.number for group in led}
        waiting = [group for group in led if self._wants_change(group)]
        self._stepping -= {group.number for group in led if group not in waiting}
        now = trio.current_time()
        # The leader tasks are looked at with each record of the catalog, too.
        if waiting and not self._is_asking and now - self._began_at >= ROUND_PAUSE_SECONDS:
            self._is_asking, self._began_at = True, now
            self._node.start_soon(self._round)

    def _wants_change(self, group: Group) -> bool:
        # Before the catalog knows the group, its founders stay.
        is_held_up = group.stopping or group.number in self._proposed
        if is_held_up or group.number not in self._node.catalog.groups:
            return False
        return not is_settled(group.conf_state, self._wanted(group))

    def _wanted(self, group: Group) -> Wanted:
        """The members that the catalog wants."""
        catalog, conf = self._node.catalog, group.conf_state
        placed = catalog.groups[group.number]
        if group.number == SYSTEM_GROUP:
            # A node that was added and never started holds up no other.
            members = [node for node in placed.members if self._is_named(node, group)]
            placed = structs.replace(placed, members=members)
        voting = catalog.voters(placed)
        learning = [node for node in placed.members if node not in voting]
        if group.number == SYSTEM_GROUP:
            staying = self._staying({*conf.voters, *conf.learners}, known=placed.members)
            if catalog.level < LEARNERS_LEVEL:
                voting = voting + staying
            else:
                learning = learning + staying
        ids = ([member_of(catalog, placed.id, n) for n in nodes] for nodes in (voting, learning))
        return Wanted(*ids)

    def _staying(self, members: Iterable[int], *, known: Container[int]) -> list[int]:
        """The nodes of those members that are to leave the system group, but not before all others.
        Without the catalog they would not hear who takes their groups over.

        One change must not name a member twice: nodes that are `known` are left out.
        """
        nodes = sorted({node_of(member) for member in members})
        return [node for node in nodes if self._is_leaving(node) and node not in known]

    async def _round(self) -> None:
        """Ask, then take the steps that are due by the answers."""
        try:
            if not await renew_catalog(self._node):
                return
            asked_at = trio.current_time()
            called = self._waiting()
            self._called = {group.number: group.raft.term for group in called}
            for group in called:
                group.call_roll()
            present = present_members(await ask_all(self._node))
            await self._hear(called, present, asked_at + ROUND_SECONDS_MAX - ROLL_CALL_SECONDS)
            if trio.current_time() - asked_at > ROUND_SECONDS_MAX:
                return
        finally:
            self._is_asking = False
        for group in self._waiting():
            if self._has_called(group):
                self._take_step(group, present.get(group.number, set()))

    async def _hear(
        self, called: list[Group], present: Mapping[int, Set[int]], until: float
    ) -> None:
        """Wait until the members that are up have answered the roll call, or that time has come."""
        is_heard = False
        while not is_heard and trio.current_time() < until:
            await trio.sleep(ROLL_CALL_SECONDS)
            is_heard = all(
                group.members & present.get(group.number, set()) <= group.raft.roll_call_answers
                for group in called
                if self._has_called(group)
            )

    def _has_called(self, group: Group) -> bool:
        """True if the group called the roll in this round, and its leader is in office since."""
        return group.is_leader and self._called.get(group.number) == group.raft.term

    def _waiting(self) -> list[Group]:
        groups = self._node.groups.values()
        return [group for group in groups if group.is_leader and self._wants_change(group)]

    def _take_step(self, group: Group, present: Set[int]) -> None:
        wanted, held = self._wanted(group), self._held_before(group)
        step = next_step(group, wanted, held, present)
        if isinstance(step, int):
            # The first of them may be one that must not lead: the others are asked as well.
            heard = present & group.raft.roll_call_answers
            heirs = (m for m in wanted.voters if m in group.conf_state.voters and m in heard)
            if self._hand_over(group, heirs):
                self._stepping.add(group.number)
                return
            step = next_step(group, wanted, held, present, hands_over=False)
        # A group must not count on a folder that the catalog would call unknown: see `admission`.
        if not step or not all(self._is_named(node_of(m), group) for m in wanted.voters):
            self._stepping.discard(group.number)
            return
        assert isinstance(step, list)
        self._stepping.add(group.number)
        self._proposed.add(group.number)

        def over(_: object) -> None:
            self._proposed.discard(group.number)

        group.change_members(step, Callback(over, over))

    def _is_named(self, node: int, group: Group) -> bool:
        """Whether it is known which data folder a node has, if it is to come."""
        catalog = self._node.catalog
        is_present = member_of(catalog, group.number, node) in group.members
        return is_present or bool(catalog.nodes[node].incarnation)


def present_members(views: Mapping[int, ClusterView]) -> dict[int, set[int]]:
    """The members of each group that nodes carry by their own word, by the group's number."""
    present: dict[int, set[int]] = {}
    for author, view in views.items():
        for group in view.groups:
            # Else one node's wrong answer could stand for another node, which may be dead.
            if node_of(group.member) == author:
                present.setdefault(group.id, set()).add(group.member)
    return present
