"""Changing the cluster's nodes while it serves: the wanted members, and each group's way there.

The catalog holds the wanted members of each group. The leader of each group brings its Raft
membership there, in steps that each leave a majority that has everything:

1. add the missing nodes as learners; they get a snapshot and then the log;
2. remove the learners that are not wanted;
3. when those that shall vote have caught up, one change, joint if it takes more than one member in
   or out, makes them voters, and learners of those that shall only learn, and removes those that
   are not wanted (Raft §6, thesis §4.3);
4. a leader that shall not vote itself first hands over.

All members of a data group shall vote. Of the system group, to which all nodes belong, few shall
(`Group.voters` of the catalog), and the others learn.

A node that leaves is marked in the catalog, the groups move, and once no group counts on the node,
the catalog forgets it. The node may be stopped then. Until then, an `add` with its address keeps
it. It leaves the system group last: as long as it leads another group, it must learn from the
catalog which nodes shall have that group.

A node that lost its data folder and re-enters with a blank one (`admission`), or whose log of one
group was deleted or lost (`replicas`), is wanted as another member from then on: `member_of`. Its
old self is no longer in the list, so the same steps bring the new member in and the old one out.

The leader makes sure that its catalog is new, and asks who is up, before each step
(`member_changes`).

A voter may live although a late request used up its id. As long as its node carries the voter, it
stands for the node: its log is whole, and the next member would have to copy it.

Invariants:
- The catalog refuses no part of a plan: a request happens as a whole or not at all.
- A voter of a data group stops voting only in the same step in which all that shall vote are
  voters. Of the system group as many stop as begin, and those above the wanted number.
- Voters change only if most of the voters from then on are up, vote, hold what the leader held a
  moment ago, and have answered its roll call.
- A node is unused only if no half of a joint membership has it: the outgoing one must still agree
  before the change is over.
"""

from collections.abc import Mapping, Set
from typing import NamedTuple

from raftmq.broker.placement.members import with_node, with_replacement, without_node
from raftmq.broker.replica.group import Group, node_of
from raftmq.consensus import Change, ChangeKind, ConfState, ProgressState
from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import (
    SYSTEM_GROUP,
    Catalog,
    Node,
    PutGroup,
    PutNode,
    Reconfigure,
)
from raftmq.machine.catalog.levels import PLACES_LEVEL
from raftmq.machine.catalog.nodes import PlaceNode
from raftmq.machine.catalog.state import NODES_MAX, Place
from raftmq.machine.names import why_no_place
from raftmq.results import Refused
from raftmq.wire.address import why_no_address
from raftmq.wire.messages import ChangeNode, ClusterView, GroupView

from .views import by_group, is_agreed

CAUGHT_UP_LAG_MAX = 256
"""Records that a learner may lack when it is made a voter, of those of the last seconds."""


class Wanted(NamedTuple):
    """The members that a group shall have, by their ids."""

    voters: list[int]
    learners: list[int]


def plan(change: ChangeNode, catalog: Catalog) -> Reconfigure | Refused:
    """The catalog command that a request amounts to. Repeating a request changes nothing.

    All of a request is judged here, as a part that the catalog refuses does not undo those before
    it.
    """
    nodes, groups = catalog.nodes, catalog.groups.values()
    refused = _refused(change, catalog)
    if refused is not None:
        return refused
    staying = [
        node.id for node in nodes.values() if not node.is_leaving and node.id not in catalog.absent
    ]
    if change.action == "remove":
        moved = without_node(groups, change.node, staying, catalog.places)
        return Reconfigure([_leaving(nodes[change.node]), *map(PutGroup, moved)])
    new = change.new or change.node
    entries: list[PutNode | PlaceNode | PutGroup] = [PutNode(Node(new, change.host, change.port))]
    places = catalog.places
    if change.zone or change.machine:
        # Once the node runs, its own word counts.
        entries.append(PlaceNode(new, change.zone, change.machine))
        places = places | {new: Place(change.zone, change.machine)}
    if change.action == "add":
        moved = with_node(groups, new, staying, places)
        return Reconfigure([*entries, *map(PutGroup, moved)])
    old = nodes[change.node]
    moved = with_replacement(groups, change.node, new, staying, places)
    if old.is_leaving and new not in nodes:
        # The old node's groups are promised to others already: the new node joins as any other.
        moved = with_node(groups, new, staying, places)
    return Reconfigure([*entries, _leaving(old), *map(PutGroup, moved)])


def _leaving(node: Node) -> PutNode:
    return PutNode(Node(node.id, node.host, node.port, is_leaving=True))


def _refused(change: ChangeNode, catalog: Catalog) -> Refused | None:
    """Why a request is refused; None: it is granted."""
    nodes = catalog.nodes
    if change.action not in ("add", "remove", "replace"):
        message = f"{change.action!r} is not add, remove or replace"
        return Refused(Reason.BAD_ARGUMENT, message)
    problem = "" if change.action == "remove" else why_no_address(change.host, change.port)
    if problem:
        return Refused(Reason.BAD_ARGUMENT, f"a node that comes needs a host and a port: {problem}")
    if change.action != "add" and change.node not in nodes:
        has_left = change.node in catalog.left
        what = f"node {change.node} has left" if has_left else f"there is no node {change.node}"
        members = ", ".join(map(str, sorted(nodes)))
        return Refused(Reason.UNKNOWN_NODE, f"{what}; the members are nodes {members}")
    at = (change.host, change.port)
    comes = {"add": change.node, "replace": change.new}.get(change.action, 0)
    if change.action == "replace" and (comes < 1 or comes == change.node):
        return Refused(Reason.BAD_ARGUMENT, "the new node needs a number of its own")
    known = nodes.get(comes)
    if known is not None and not _is_repeat(change, known, nodes):
        message = f"node {comes} is a member, at {known.host}:{known.port}: give another number"
        return Refused(Reason.BAD_ARGUMENT, message)
    # A node that is replaced may leave its address to the one that comes.
    others = [node for node in nodes.values() if node.id not in (comes, change.node)]
    if taken := [node.id for node in others if (node.host, node.port) == at]:
        message = f"{at[0]}:{at[1]} is the address of node {taken[0]}: give the new node's own"
        return Refused(Reason.BAD_ARGUMENT, message)
    if known is None and change.action != "remove" and len(nodes) >= NODES_MAX:
        return Refused(Reason.BAD_ARGUMENT, f"a cluster has at most {NODES_MAX} nodes")
    zones = sorted({place.zone for place in catalog.places.values()} - {""})
    if zones and not change.zone and change.action != "remove" and known is None:
        message = f"the nodes have zones ({', '.join(zones)}): name that of node {comes}"
        return Refused(Reason.BAD_ARGUMENT, message)
    if problem := why_no_place(change.zone) or why_no_place(change.machine):
        return Refused(Reason.BAD_ARGUMENT, problem)
    if (change.zone or change.machine) and catalog.level < PLACES_LEVEL:
        message = f"zones and machines need feature level {PLACES_LEVEL}, not {catalog.level}"
        return Refused(Reason.OLD_SOFTWARE, message)
    staying = {node.id for node in nodes.values() if not node.is_leaving}
    if change.action != "add" and not staying - {change.node}:
        last = f"node {change.node} is the last one that is not leaving"
        message = f"{last}: it cannot be removed; add one first"
        return Refused(Reason.BAD_ARGUMENT, message)
    return None


def _is_repeat(change: ChangeNode, known: Node, nodes: Mapping[int, Node]) -> bool:
    """True if a node that shall come is a member because of an earlier request like this one. An
    `add` of a node that is leaving lets the node stay."""
    if (known.host, known.port) != (change.host, change.port):
        return False
    return change.action == "add" or (nodes[change.node].is_leaving and not known.is_leaving)


def is_settled(conf: ConfState, wanted: Wanted) -> bool:
    """True if no step is due towards the wanted members, or none can be: a change is under way."""
    is_there = set(conf.voters) == {*wanted.voters} and set(conf.learners) == {*wanted.learners}
    # The change under way must be over before the next one (Raft §6).
    return bool(conf.voters_outgoing) or is_there


def next_step(
    group: Group, wanted: Wanted, held: int, present: Set[int], *, hands_over: bool = True
) -> list[Change] | int:
    """The next step of a group's leader towards the wanted members.

    Args:
        group: led here, not settled; it has called the roll.
        wanted: at least one voter.
        held: the last record that the leader held a moment ago, one to two seconds as a rule.
        present: members that are up by the word of their nodes, asked just now.
        hands_over: False: the other wanted voters declined to lead, so a leader that leaves makes
            the change itself and steps down after it.
    Returns:
        Changes to propose; a member to hand over to first; or an empty list: nothing to do now.
    """
    conf = group.conf_state
    present = present | {group.raft.id}
    voters, learners = ([_standing(m, conf, present) for m in members] for members in wanted)
    known = {*conf.voters, *conf.learners}
    missing = [member for member in voters + learners if member not in known]
    if missing:
        return [Change(ChangeKind.ADD_LEARNER, member) for member in missing]
    # The quorum stays as it is. A voter may wait for this: of two members of a node only one is
    # sent a snapshot.
    if idle := [member for member in conf.learners if member not in voters + learners]:
        return [Change(ChangeKind.REMOVE, member) for member in idle]
    heard = known & present & group.raft.roll_call_answers
    able = {member for member in heard if _keeps_up(group, member, held)}
    to_rise = [member for member in voters if member in conf.learners]
    rising = [member for member in to_rise if member in able and _is_caught_up(group, member)]
    surplus = [member for member in sorted(conf.voters) if member not in voters]
    if rising != to_rise:
        if group.number != SYSTEM_GROUP:
            return []
        # A learner that is down must not keep dead voters: as many go as come, these first.
        room = len(rising) + max(0, len(conf.voters) - len(voters))
        surplus = sorted(surplus, key=lambda member: (member in able, member))[:room]
        if not surplus and not rising:
            return []
    if group.raft.id in surplus and hands_over:
        heirs = [member for member in voters if member in conf.voters and member in heard]
        if heirs:
            return heirs[0]
        # Those that come may reach this leader and not each other: one of them must lead, and call
        # the roll, before this leader goes.
        if rising:
            surplus = []
    staying = set(conf.voters).difference(surplus) | set(rising)
    if 2 * len(staying & able) <= len(staying):
        # The voters from then on could elect no leader.
        return []
    changes = [Change(ChangeKind.ADD_VOTER, member) for member in rising]
    falling = ((m, ChangeKind.ADD_LEARNER if m in learners else ChangeKind.REMOVE) for m in surplus)
    return changes + [Change(kind, member) for member, kind in falling]


def _standing(member: int, conf: ConfState, present: Set[int]) -> int:
    """The member that a wanted node is to the group: a voter of before, if the node carries that
    one still."""
    if member in conf.voters or member in present:
        return member
    voters = [voter for voter in conf.voters if node_of(voter) == node_of(member)]
    return max((voter for voter in voters if voter in present), default=member)


def _keeps_up(group: Group, member: int, held: int) -> bool:
    """True if a member holds what the leader held a moment ago. Few records may be megabytes, which
    a slow link needs longer for than an election takes."""
    if member == group.raft.id:
        # Its own disk may have no room for records, though it leads.
        return not group.is_starved
    progress = group.raft.status().progress.get(member)
    return (
        progress is not None
        and progress.state is ProgressState.REPLICATE
        and progress.match >= held
    )


def _is_caught_up(group: Group, member: int) -> bool:
    """True if a member's last round of catching up was a short one (thesis §4.2.1)."""
    status = group.raft.status()
    return status.progress[member].match + CAUGHT_UP_LAG_MAX >= status.last_index


def is_unused(node: int, views: Mapping[int, ClusterView], *, is_data: bool = False) -> bool:
    """True if each group says that the node is no member of it (see `is_agreed`).

    Args:
        node: the node that shall be unused.
        views: the routing table of each node, by node.
        is_data: True if only data groups matter.
    """

    def holds(group: GroupView) -> bool:
        return node not in map(node_of, group.members)

    said = by_group(views)
    wanted = said.keys() - ({SYSTEM_GROUP} if is_data else set())
    return all(is_agreed(said[number], holds) for number in wanted)
