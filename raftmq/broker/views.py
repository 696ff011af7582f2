"""The routing table, as this node knows it and as the others do."""

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from raftmq.errors import Unavailable
from raftmq.pop.catalog import SYSTEM_GROUP
from raftmq.pop.machine import PartitionMachine
from raftmq.wire.messages import ClusterView, FrameKind, GroupView, Metadata, NodeView

from .group import node_of
from .pages import topics_page
from .peers import PeerLink
from .placement import copies

if TYPE_CHECKING:
    from .node import Node

ANSWER_SECONDS_MAX = 1.0
"""A node that does not answer within so long is left out."""


def view(node: "Node", topics: list[str] | None, *, after: int = 0) -> ClusterView:
    """A page of the routing table as a node knows it: see `Metadata`."""
    catalog, cluster = node.catalog, node.settings.node.cluster
    page, following = topics_page(catalog, topics, after)
    if after:
        return ClusterView(cluster, catalog.version, [], [], page, following)
    nodes = [
        NodeView(each.id, each.host, each.port, each.is_leaving) for each in catalog.nodes.values()
    ]
    groups = [_group_view(node, number) for number in sorted(catalog.groups)]
    return ClusterView(cluster, catalog.version, nodes, groups, page, following)


async def ask_all(node: "Node") -> dict[int, ClusterView]:
    """By node: the routing table as it knows it, of each member that answers in time. Cancelling
    leaves nothing behind."""
    views = {node.id: view(node, [])}

    async def ask(link: PeerLink) -> None:
        with trio.move_on_after(ANSWER_SECONDS_MAX), suppress(Unavailable):
            views[link.peer.id] = await link.ask(FrameKind.METADATA, Metadata([]), ClusterView)

    async with trio.open_nursery() as nursery:
        for link in node.links.members():
            nursery.start_soon(ask, link)
    return views


def _group_view(node: "Node", number: int) -> GroupView:
    group = node.groups.get(number)
    placed = node.catalog.groups[number]
    wanted = 0 if number == SYSTEM_GROUP else copies(placed)
    if group is None:
        return GroupView(number, 0, 0, placed.members, [], copies=wanted)
    conf = group.conf_state
    return GroupView(
        number,
        node_of(group.leader),
        group.raft.term,
        [node_of(member) for member in conf.voters],
        [node_of(member) for member in conf.learners],
        [node_of(member) for member in conf.voters_outgoing],
        sorted(group.members | group.parting),
        group.machine.offsets.forgotten if isinstance(group.machine, PartitionMachine) else 0,
        wanted,
    )
