"""The input of a plan, from the routing table and the status of each node.

A status is a map for people (`raftmq.broker.status`). A node without a status did not answer: it
gets nothing, and its replicas are unknown.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from raftmq.machine.catalog.replicas import node_of
from raftmq.machine.catalog.state import Place
from raftmq.wire.messages import ClusterView, GroupView, NodeView

from .balance import GroupLoad, NodeRoom


class Loads(NamedTuple):
    """The cluster at one moment."""

    nodes: list[NodeRoom]
    """All nodes that answer and stay."""
    groups: list[GroupLoad]
    """All data groups with a leader."""
    leaderless: list[int]
    """Those without one, as far as is known."""
    under_way: list[int]
    """Groups that are not yet carried by just the nodes that shall carry them."""
    copied: int
    """Bytes that members which come have copied so far, of the groups under way."""
    led_elsewhere: list[int]
    """Groups that another member leads than shall."""


def loads(view: ClusterView, statuses: Mapping[int, Mapping[str, Any]]) -> Loads:
    """The loads of a cluster.

    Args:
        view: the routing table, of nodes that name the `wanted` members of groups.
        statuses: by node, for those that answered.
    """
    leading = _leading(statuses)
    data = [group for group in view.groups if group.id]
    groups = [group for group in data if group.id in leading]
    moving = [group for group in groups if _is_under_way(group, leading[group.id])]
    coming = _coming(moving, leading)
    drained = {node.id for node in view.nodes if node.is_drained or node.is_absent}
    return Loads(
        nodes=[
            _room(node, statuses[node.id], coming[node.id])
            for node in view.nodes
            if node.id in statuses and not node.is_leaving
        ],
        groups=[_load(group, leading[group.id]) for group in groups],
        leaderless=[group.id for group in data if group.id not in leading],
        under_way=[group.id for group in moving],
        copied=sum(_copied(leading[group.id]) for group in moving),
        led_elsewhere=[
            group.id
            for group in groups
            if _first(group, drained) not in (0, leading[group.id]["leader"])
        ],
    )


def _leading(statuses: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Group → its leader's status of its replica; of two replicas that say they lead, that of the
    higher term."""
    by_term = sorted(
        (replica for status in statuses.values() for replica in status["groups"]),
        key=lambda replica: int(replica["term"]),
    )
    return {replica["group"]: replica for replica in by_term if replica["role"] == "leader"}


def _coming(moving: Sequence[GroupView], leading: Mapping[int, Mapping[str, Any]]) -> Counter[int]:
    """Bytes that each node is about to get, of groups that are under way."""
    coming: Counter[int] = Counter()
    for group in moving:
        voters = set(map(node_of, leading[group.id]["voters"]))
        for node in set(group.wanted) - voters:
            coming[node] += leading[group.id]["log_bytes"]
    return coming


def _room(node: NodeView, status: Mapping[str, Any], coming: int) -> NodeRoom:
    free = status["free_bytes"]
    room = None if free is None else max(0, free - coming)
    # A node whose disk is low declines to lead.
    is_drained = node.is_drained or node.is_absent or free == 0
    return NodeRoom(node.id, Place(node.zone, node.machine), is_drained, room)


def _load(group: GroupView, leading: Mapping[str, Any]) -> GroupLoad:
    return GroupLoad(group.id, group.wanted, leading["log_bytes"], leading["write_rate"])


def _is_under_way(group: GroupView, leading: Mapping[str, Any]) -> bool:
    has_rest = leading["voters_outgoing"] or leading["learners"]
    return bool(has_rest) or set(map(node_of, leading["voters"])) != set(group.wanted)


def _copied(leading: Mapping[str, Any]) -> int:
    """Bytes that members which come have of a group, as far as records are of equal size."""
    progress, last = leading["progress"], max(1, leading["last_index"])
    matches = [progress[str(m)]["match"] for m in leading["learners"] if str(m) in progress]
    size: int = leading["log_bytes"]
    return sum(size * match // last for match in matches)


def _first(group: GroupView, drained: Container[int]) -> int:
    """The node that shall lead a group; 0: all of its nodes are drained."""
    return next((node for node in group.wanted if node not in drained), 0)
