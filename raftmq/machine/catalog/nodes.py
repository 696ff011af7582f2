"""Notes of the catalog on nodes: their data folders, drains, places and absences, and the groups
that they carry.

A drained node keeps its replicas and votes, and leads nothing:

    DrainNode(2)          -> other nodes take over what node 2 leads
    restart of node 2     -> no leader was lost, no client waited for an election
    DrainNode(2, False)   -> node 2 leads its share again

A node's *place* is its machine and its zone, which are lost together: replicas of a group are put
into different ones. Each node has its place in its settings; the leader of the system group notes
it, so that it is known while the node is down.

A node is *absent* once it has not answered the system group's leader for a long time (setting
`balance.absent_ms`), and until it answers again. It stays a member, gets no replica and has no vote
in the system group as long as there are others; its replicas move to other nodes, if there are any.

A group is moved from the members that its mover saw, so no plan undoes a change that came between.
A group that is added has the next number, for the same reason (`replicas.add_group`).

Invariants:
- A drain leaves each partition group a member that may lead. A later change of the members can
  break this; the group's leader then stays, drained or not.
- The catalog has no place of a node that is no member.
"""

from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import Reason
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.results import Changed, Refused, Result

if TYPE_CHECKING:
    # Clients import the commands, and no catalog.
    from .state import CatalogState


class NameNode(msgspec.Struct, frozen=True, array_like=True, tag="name_node"):
    """Note the name of a node's data folder; refused if it has another one."""

    id: int
    """Its number."""
    incarnation: str
    """The random name of its data folder."""


class DrainNode(msgspec.Struct, frozen=True, array_like=True, tag="drain_node"):
    """Have a node lead nothing, or take its share of the leaderships again."""

    node: int
    """Its number."""
    is_on: bool = True
    """False: the node may lead again."""


class PlaceNode(msgspec.Struct, frozen=True, array_like=True, tag="place_node"):
    """Note where a node stands. Only the system group's leader proposes it."""

    node: int
    """Its number."""
    zone: str
    """Its zone, by its own word; empty: not said."""
    machine: str
    """Its machine, if several nodes run there."""


class NoteAbsence(msgspec.Struct, frozen=True, array_like=True, tag="note_absence"):
    """Note that a node has been silent for long. Only the system group's leader proposes it."""

    node: int
    """Its number."""
    is_absent: bool = True
    """False: it answers again."""


class MoveGroup(msgspec.Struct, frozen=True, array_like=True, tag="move_group"):
    """Have a data group carried by other nodes, or by the same with another first one."""

    group: int
    """Its number."""
    members: list[int]
    """The nodes from then on; the first shall lead."""
    before: list[int]
    """The nodes until then, in this order; refused if they are others by now."""


class AddGroup(msgspec.Struct, frozen=True, array_like=True, tag="add_group"):
    """Found another data group, in which new queues find room."""

    group: int
    """Its number: the one after the last group's; refused if that is another by now."""
    members: list[int]
    """The nodes that carry it; the first shall lead."""


NodeCommand = NameNode | DrainNode | PlaceNode | NoteAbsence | MoveGroup


def note_on_nodes(catalog: "CatalogState", command: NodeCommand) -> Result:
    """Apply one of these commands."""
    match command:
        case NameNode():
            return _name_node(catalog, command)
        case DrainNode():
            return _drain_node(catalog, command)
        case PlaceNode():
            return _place_node(catalog, command)
        case NoteAbsence():
            return _note_absence(catalog, command)
        case MoveGroup():
            return _move_group(catalog, command)


def _name_node(catalog: "CatalogState", command: NameNode) -> Result:
    node = catalog.nodes.get(command.id)
    if node is None:
        return no_node(catalog, command.id)
    if node.incarnation not in ("", command.incarnation):
        message = f"node {node.id} is {node.incarnation}, not {command.incarnation}"
        return Refused(Reason.BAD_ARGUMENT, message)
    catalog.nodes[node.id] = msgspec.structs.replace(node, incarnation=command.incarnation)
    return Changed()


def _drain_node(catalog: "CatalogState", command: DrainNode) -> Result:
    node, drained = command.node, catalog.drained
    if node not in catalog.nodes:
        return no_node(catalog, node)
    if command.is_on is (node in drained):
        return Changed(False)
    if not command.is_on:
        drained.discard(node)
        return Changed(True)
    alone = [
        group.id
        for group in catalog.groups.values()
        if catalog.idle.union([node]) >= {*catalog.voters(group)}
    ]
    if alone:
        message = f"partition groups {alone} would have no node that may lead"
        if drained:
            message += f": undrain {', '.join(f'node {each}' for each in sorted(drained))} first"
        return Refused(Reason.BAD_ARGUMENT, message)
    drained.add(node)
    return Changed(True)


def _place_node(catalog: "CatalogState", command: PlaceNode) -> Result:
    if command.node not in catalog.nodes:
        return no_node(catalog, command.node)
    catalog.put_place(command.node, command.zone, command.machine)
    return Changed()


def _note_absence(catalog: "CatalogState", command: NoteAbsence) -> Result:
    node, was_absent = command.node, command.node in catalog.absent
    if node not in catalog.nodes:
        return no_node(catalog, node)
    if command.is_absent:
        catalog.absent.add(node)
    else:
        catalog.absent.discard(node)
    return Changed(command.is_absent is not was_absent)


def _move_group(catalog: "CatalogState", command: MoveGroup) -> Result:
    group, members = catalog.groups.get(command.group), command.members
    if group is None or group.id == SYSTEM_GROUP:
        known = ", ".join(
            str(number) for number in sorted(catalog.groups) if number != SYSTEM_GROUP
        )
        message = f"there is no data group {command.group}; there are {known}"
        return Refused(Reason.BAD_ARGUMENT, message)
    if members == group.members:
        return Changed(False)
    if command.before != group.members:
        message = f"group {group.id} is on nodes {group.members} by now, not {command.before}"
        return Refused(Reason.BAD_ARGUMENT, message)
    copies = len(group.founders) or len(group.members)
    if len(set(members)) != len(members) or len(members) not in (copies, len(group.members)):
        message = f"group {group.id} has {copies} copies: name as many nodes, each once"
        return Refused(Reason.BAD_ARGUMENT, message)
    for member in members:
        node = catalog.nodes.get(member)
        if node is None:
            return no_node(catalog, member)
        if node.is_leaving and member not in group.members:
            return Refused(Reason.BAD_ARGUMENT, f"node {member} is leaving the cluster")
        if member in catalog.absent and member not in group.members:
            return Refused(Reason.BAD_ARGUMENT, f"node {member} has been silent for long")
    if catalog.idle >= {*members}:
        message = f"nodes {members} are drained or absent: none would lead group {group.id}"
        return Refused(Reason.BAD_ARGUMENT, message)
    catalog.groups[group.id] = msgspec.structs.replace(group, members=members)
    return Changed(True)


def no_node(catalog: "CatalogState", node: int) -> Refused:
    """The refusal of a command that names an unknown node."""
    members = ", ".join(map(str, sorted(catalog.nodes)))
    return Refused(Reason.UNKNOWN_NODE, f"there is no node {node}; the members are {members}")
