"""Founders agree on what they found, and tell a founding from a cluster that runs.

A blank founder takes "never seen" for the word of a node that is about to be founded as well. Two
other answers look like that one. Both would end in two clusters of one name, or in a membership
that depends on which node was elected first:

| the node that answers | its answer carries | the blank founder |
|---|---|---|
| is in a cluster that others founded | the numbers of those founders | waits, names `cluster add` |
| is in one that was founded otherwise | founders, groups and replicas | waits, says what differs |
| would found something else | its `peers`, `groups` and `replicas` | the same |
| has a folder, and no log open yet | nothing: it does not answer | asks again |
| is of older software | neither | founds, as it did then |

A node that has been added since is no founder either: a cluster remembers its founders.

Invariants:
- A node founds with no node that is in a cluster founded without it or otherwise, and with none
  that would found otherwise.
- `peers`, `groups` and `replicas` of a node that was founded have no effect: answers of such a node
  carry what its catalog says, or nothing.
- An address that changed after the founding keeps no founder waiting.
"""

import msgspec

from raftmq.broker.host import Host
from raftmq.broker.replica.group import node_of
from raftmq.broker.settings import WILDCARDS, NodeSettings
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.wire.messages import FoundingView, NodeView, ProbeReply

from .peers import PeerLink


def founding_of(own: NodeSettings) -> FoundingView | None:
    """The cluster that a node's settings would found; None: they found none."""
    if not own.peers:
        return None
    nodes = [NodeView(peer.id, peer.host, peer.port) for peer in own.peers]
    replicas = min(own.replicas, len(nodes))
    return FoundingView(sorted(nodes, key=lambda node: node.id), own.groups, replicas)


def founding_around(node: Host) -> FoundingView | None:
    """The cluster as it was founded, with addresses of today, if a node is in one; else as the
    node's settings would found it. None: not known, or none."""
    catalog, founders = node.catalog, founders_of(node)
    if not founders or not catalog.is_bootstrapped:
        # Until the catalog is there the leader may still found what its settings say.
        return founding_of(node.settings.node)
    data = [group for group in catalog.groups.values() if group.id != SYSTEM_GROUP]
    known = {**catalog.left, **catalog.nodes}
    # Snapshots of the first state versions name no founders.
    if not data or not all(group.founders for group in data) or not known.keys() >= set(founders):
        return None
    nodes = [NodeView(number, known[number].host, known[number].port) for number in founders]
    return FoundingView(nodes, len(data), len(data[0].founders))


def founders_of(node: Host) -> list[int]:
    """The founders of the cluster that a node is in; empty: it knows of no cluster.

    Before the catalog is applied, the members of the system group stand in for them: at a founding
    they are the founders.
    """
    catalog = node.catalog
    if catalog.is_bootstrapped:
        return catalog.groups[SYSTEM_GROUP].founders or sorted(catalog.nodes)
    system = node.groups.get(SYSTEM_GROUP)
    if system is None:
        return []
    conf = system.conf_state
    return sorted(set(map(node_of, (*conf.voters, *conf.voters_outgoing, *conf.learners))))


def is_opening(node: Host) -> bool:
    """True if a node's folder has a place in a cluster, and its log cannot say in which yet."""
    return node.links.is_admitted and SYSTEM_GROUP not in node.groups


def why_apart(own: NodeSettings, peer: int, reply: ProbeReply) -> str:
    """Why a blank founder must not found with the node that gave this answer; empty: it may."""
    if reply.founders and own.id not in reply.founders:
        return (
            f"node {peer} is in a cluster that was founded without node {own.id}: "
            f"{addition_of(own)} there and `join` in place of `peers` here make node {own.id} a "
            "member of it"
        )
    theirs, ours = reply.founding, founding_of(own)
    if reply.founders and theirs is not None and ours is not None:
        here = {each.id: each for each in ours.nodes}
        # A founder may have moved since, and no catalog keeps its address of the founding.
        nodes = [here.get(each.id, each) for each in theirs.nodes]
        theirs = msgspec.structs.replace(theirs, nodes=nodes)
    if theirs is None or ours is None or theirs == ours:
        return ""
    return (
        f"founder node {peer} has other settings: {_difference(theirs, ours)}. Founders need the "
        "same `peers`, `groups` and `replicas`"
    )


def _difference(theirs: FoundingView, ours: FoundingView) -> str:
    found = [
        f"`{name}` is {there} there and {here} here"
        for name, there, here in (
            ("groups", theirs.groups, ours.groups),
            ("replicas", theirs.replicas, ours.replicas),
        )
        if there != here
    ]
    at_theirs, at_ours = _addresses(theirs), _addresses(ours)
    for number in sorted(at_theirs.keys() | at_ours.keys()):
        there, here = at_theirs.get(number, ""), at_ours.get(number, "")
        if there != here:
            sides = f"at {there} there and {here or 'not'} here"
            sides = sides if there else f"at {here} here and not there"
            found.append(f"`peers` has node {number} {sides}")
    # Lists that differ in this way alone name a node twice.
    return ", ".join(found) or "`peers` differs"


def _addresses(founding: FoundingView) -> dict[int, str]:
    return {node.id: f"{node.host}:{node.port}" for node in founding.nodes}


def why_silent(link: PeerLink) -> str:
    """The address of a node that is waited for, and why it gives no answer, as far as known."""
    reason = link.last_error or ("no answer yet" if link.is_connected else "not reached yet")
    return f"node {link.peer.id} at {link.peer.host}:{link.peer.port}: {reason}"


def settings_not_followed(node: Host) -> str:
    """Why `peers` in a node's settings has no effect, and the remedy; empty: nothing to say.

    In a cluster that grew or shrank, the settings of founders still name the founders: that needs
    no warning. `peers` that were edited do, as the edit has no effect.
    """
    named = {peer.id: peer for peer in node.settings.node.peers}
    catalog = node.catalog
    if not named or not catalog.is_bootstrapped:
        return ""
    missing = [n for n in named if n not in catalog.nodes and n not in catalog.left]
    left_out = [n for n in founders_of(node) if n in catalog.nodes and n not in named]
    if not missing and not left_out:
        return ""
    commands = [_add(n, named[n].host, named[n].port) for n in sorted(missing)]
    commands += [f"`raftmq cluster remove {n}`" for n in sorted(left_out)]
    return (
        f"`peers` names nodes {sorted(named)}, and the cluster has {sorted(catalog.nodes)}: "
        "`peers` is read only when the cluster is founded. Its members are changed by "
        f"{', '.join(commands)}"
    )


def addition_of(own: NodeSettings) -> str:
    """The command that adds a node to a cluster, by its own settings, with its zone and machine."""
    row = next((peer for peer in own.peers if peer.id == own.id), own)
    # The cluster places groups by these before the node has said where it stands.
    places = [
        f" --{name} {value}"
        for name, value in (("zone", own.zone), ("machine", own.machine))
        if value
    ]
    return _add(own.id, row.host, row.port, "".join(places))


def _add(number: int, host: str, port: int, options: str = "") -> str:
    if host in WILDCARDS:
        command = f"`raftmq cluster add {number} HOST:{port}{options}`"
        return f"{command} (HOST: its address as the other nodes reach it)"
    return f"`raftmq cluster add {number} {host}:{port}{options}`"
