"""The operator: asks for membership changes, repeats a request for a while, replaces broken nodes.

A request is a function from the present membership to a change, or to None if the request is
fulfilled or makes no sense. The change is proposed to the leader, a few times if need be.

Invariants:
- No change is proposed that would leave too few intact voters: see `atlas`.
"""

from collections.abc import Callable

from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.faults import atlas
from raftmq.chaos.core.faults.effects import ASKED
from raftmq.chaos.core.node import Node
from raftmq.chaos.core.replica.replica import Replica
from raftmq.chaos.core.roster import Roster
from raftmq.consensus import (
    Change,
    ChangeKind,
    ConfState,
    MembershipChange,
    ProposalDropped,
    Transition,
)

TRIES_MAX = 20
PATIENCE_US = 400_000
"""Time between two tries."""

VOTERS_MAX = 7
"""Most voters that a change may lead to, unless the cluster was founded with more."""

INCARNATION = 1 << 32
"""Difference of the ids of successive nodes at a place: `raftmq.broker.replica.group.node_of`."""

Request = Callable[[ConfState], MembershipChange | None]


class Operator:
    """The operator of the cluster. It is state."""

    def __init__(
        self, environment: Environment, roster: Roster, add_node: Callable[[int], Node]
    ) -> None:
        """`add_node` makes the node of an id, with an empty disk, and enters it in the roster."""
        self._environment = environment
        self._roster = roster
        self._add_node = add_node
        self.is_active = True
        """False: requests are dropped, and no change is proposed."""

    def ask(self, request: Request, tries: int = TRIES_MAX) -> None:
        """Bring a request to the leader; again after a while if there is none, or if it refuses."""
        if not self.is_active:
            return
        if tries <= 0:
            self._environment.counts["requests given up"] += 1
            return
        leader = self._roster.leader()
        if leader is None or leader.node.is_paused:
            self._again(request, tries)
        else:
            leader.turn(self._propose, leader, request, tries)

    def _again(self, request: Request, tries: int) -> None:
        self._environment.loop.after(PATIENCE_US, self.ask, request, tries - 1)

    def _propose(self, leader: Replica, request: Request, tries: int) -> None:
        counts = self._environment.counts
        change = request(leader.conf_state)
        if change is None:
            return
        after = becomes(leader.conf_state, change)
        voters_max = max(VOTERS_MAX, self._environment.settings.nodes)
        if not atlas.may_become(self._roster, after) or not 1 <= len(after.voters) <= voters_max:
            counts["changes that would break the cluster"] += 1
            return
        try:
            leader.raft.propose_membership(change, now=leader.node.now_ms())
            counts["changes proposed"] += 1
            self._environment.loop.effects[ASKED] += 1
        except ProposalDropped:
            counts["changes refused"] += 1
            self._again(request, tries)

    # Nodes

    def spare(self) -> Node:
        """A started machine that never was a member; a new one if there is none."""
        roster = self._roster
        members = roster.members()
        for node in roster.at_place.values():
            if node not in members and node.applied == 0 and not node.refusal:
                node.start()
                return node
        node = self._add_node(max(roster.at_place) + 1)
        node.start()
        return node

    def successor(self, node: Node) -> Node:
        """The started machine that follows another at its place, under a new incarnation."""
        roster = self._roster
        present = roster.at_place[node.place]
        if present is not node:
            present.start()
            return present
        new = self._add_node(node.id + INCARNATION)
        new.start()
        return new

    def replace_broken(self) -> None:
        """Replace one member that will not come back; to be called again and again."""
        roster = self._roster
        leader = roster.leader()
        # One change at a time: consensus refuses a change while another one is under way.
        if leader is None or leader.conf_state.voters_outgoing:
            return
        conf = leader.conf_state
        for number in (*conf.voters, *conf.learners):
            node = roster.nodes[number]
            # A node that abstains catches up, and counts again without a successor.
            returns = node.replica is not None and node.replica.abstains
            if (node.is_damaged and not returns) or node.refusal:
                self._environment.counts["replaced"] += 1
                self.ask(replacing(number, self.successor(node).id), tries=1)
                return


def adding(number: int, kind: ChangeKind = ChangeKind.ADD_VOTER) -> Request:
    """Add a voter or a learner."""

    def request(conf: ConfState) -> MembershipChange | None:
        if number in conf.voters or (kind is ChangeKind.ADD_LEARNER and number in conf.learners):
            return None
        return MembershipChange((Change(kind, number),))

    return request


def removing(number: int) -> Request:
    """Remove a member; the last two voters stay."""

    def request(conf: ConfState) -> MembershipChange | None:
        is_voter = number in conf.voters
        if (is_voter and len(conf.voters) < 3) or not (is_voter or number in conf.learners):
            return None
        return MembershipChange((Change(ChangeKind.REMOVE, number),))

    return request


def replacing(old: int, new: int) -> Request:
    """Put node `new` in the place of node `old`, by a joint membership."""

    def request(conf: ConfState) -> MembershipChange | None:
        if old not in {*conf.voters, *conf.learners}:
            return None
        kind = ChangeKind.ADD_VOTER if old in conf.voters else ChangeKind.ADD_LEARNER
        changes = (Change(kind, new), Change(ChangeKind.REMOVE, old))
        return MembershipChange(changes, Transition.JOINT_IMPLICIT)

    return request


def becomes(conf: ConfState, change: MembershipChange) -> ConfState:
    """The members that a change leads to in the end."""
    voters, learners = set(conf.voters), set(conf.learners)
    for kind, number in change.changes:
        voters.discard(number)
        learners.discard(number)
        if kind is ChangeKind.ADD_VOTER:
            voters.add(number)
        elif kind is ChangeKind.ADD_LEARNER:
            learners.add(number)
    return ConfState(tuple(sorted(voters)), tuple(sorted(learners)))
