"""The routing table, as this node knows it and as the others do."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import trio

from raftmq.broker.host import Host
from raftmq.broker.placement.members import copies
from raftmq.broker.replica.group import node_of
from raftmq.broker.serve.pages import Sees, topics_page
from raftmq.errors import Unavailable
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.state import Node, Place
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.messages import (
    ClusterView,
    ErrorReply,
    FrameKind,
    GroupView,
    Metadata,
    NodeStatus,
    NodeView,
    Status,
)

from .peers import PeerLink

T = TypeVar("T")

ANSWER_SECONDS_MAX = 1.0
"""A node that does not answer within this time is left out."""


CATALOG_SECONDS_MAX = 10.0
"""How long the catalog here may take to become as new as its leader's, on a slow disk."""


async def renew_catalog(node: Host) -> bool:
    """Wait until the catalog here is as new as the call; False: its leader did not answer."""
    answers: list[bool] = []
    answered = trio.Event()

    def ready(error: ErrorReply | None) -> None:
        answers.append(error is None)
        answered.set()

    node.groups[SYSTEM_GROUP].read_behind_leader(ready)
    with trio.move_on_after(CATALOG_SECONDS_MAX) as scope:
        await answered.wait()
    # An answer that lay here while the process stood still is old.
    return answers == [True] and not scope.cancelled_caught


def view(
    node: Host, topics: list[str] | None, *, after: int = 0, sees: Sees = lambda _: True
) -> ClusterView:
    """A page of the routing table as a node knows it, with the topics that `sees` shows: see
    `Metadata`."""
    catalog, cluster = node.catalog, node.settings.node.cluster
    page, following = topics_page(catalog, topics, after, sees)
    if after:
        return ClusterView(cluster, catalog.version, [], [], page, following)
    denied = [name for name in topics or () if not sees(name)]
    nodes = [_node_view(node, each) for each in catalog.nodes.values()]
    groups = [_group_view(node, number) for number in sorted(catalog.groups)]
    return ClusterView(cluster, catalog.version, nodes, groups, page, following, denied)


async def ask_all(node: Host) -> dict[int, ClusterView]:
    """By node: the routing table of this node, and of each member that answers in time. Cancelling
    leaves nothing behind."""

    async def ask(link: PeerLink) -> ClusterView:
        return await link.ask(FrameKind.METADATA, Metadata([]), ClusterView)

    return {node.id: view(node, [])} | await _ask_members(node, ask)


async def ask_statuses(node: Host) -> dict[int, dict[str, Any]]:
    """By node: its status (`raftmq.broker.status`). Otherwise as `ask_all`."""

    async def own(question: Status) -> NodeStatus:
        return NodeStatus(node.status(after=question.after))

    async def ask(link: PeerLink) -> dict[str, Any]:
        return await _all_pages(partial(link.ask, FrameKind.STATUS, answer=NodeStatus))

    return {node.id: await _all_pages(own)} | await _ask_members(node, ask)


async def _ask_members(node: Host, ask: Callable[[PeerLink], Awaitable[T]]) -> dict[int, T]:
    answers: dict[int, T] = {}

    async def note(link: PeerLink) -> None:
        with trio.move_on_after(ANSWER_SECONDS_MAX), suppress(Unavailable):
            answers[link.peer.id] = await ask(link)

    async with trio.open_nursery() as nursery:
        for link in node.links.members():
            nursery.start_soon(note, link)
    return answers


async def _all_pages(ask: Callable[[Status], Awaitable[NodeStatus]]) -> dict[str, Any]:
    status = page = (await ask(Status())).status
    while "next" in page:
        page = (await ask(Status(page["next"]))).status
        status["groups"] += page["groups"]
    return status


def by_group(views: Mapping[int, ClusterView]) -> defaultdict[int, dict[int, GroupView]]:
    """The views of each partition group: by group, by node."""
    found: defaultdict[int, dict[int, GroupView]] = defaultdict(dict)
    for author, view in views.items():
        for group in view.groups:
            found[group.id][author] = group
    return found


def is_agreed(said: Mapping[int, GroupView], holds: Callable[[GroupView], bool]) -> bool:
    """True if something holds of a group by the word of its leader and of most of its voters, in
    one term. Fewer nodes might forget what they say, or might have a later leader.

    Args:
        said: the views of the group, by node.
        holds: whether it holds by one node's view.
    """
    # Without members its replica is missing, or has heard nothing yet: it has no vote.
    known = {author: group for author, group in said.items() if group.members}
    # Only the leader's own word counts: a removed learner names its last leader for ever.
    leaders = [group for author, group in known.items() if group.leader == author]
    leader = max(leaders, key=lambda group: group.term, default=None)
    if leader is None or not holds(leader):
        return False
    agreed = {
        author
        for author, group in known.items()
        # The former self of a node that the leader lists under another member id has no say.
        if any(node_of(each) == author and each in group.members for each in leader.members)
        and group.term == leader.term
        and holds(group)
    }
    # A node that begins again learns first, while its former self still counts as a voter.
    agreed -= set(leader.learners)
    halves = [set(half) for half in (leader.voters, leader.voters_outgoing) if half]
    return all(2 * len(agreed & half) > len(half) for half in halves)


def _node_view(node: Host, known: Node) -> NodeView:
    catalog = node.catalog
    place = catalog.places.get(known.id, Place())
    return NodeView(
        known.id,
        known.host,
        known.port,
        is_leaving=known.is_leaving,
        is_drained=known.id in catalog.drained,
        zone=place.zone,
        machine=place.machine,
        is_absent=known.id in catalog.absent,
    )


def _group_view(node: Host, number: int) -> GroupView:
    group = node.groups.get(number)
    placed = node.catalog.groups[number]
    wanted = 0 if number == SYSTEM_GROUP else copies(placed)
    if group is None:
        return GroupView(number, 0, 0, placed.members, [], copies=wanted, wanted=placed.members)
    conf, machine = group.conf_state, group.machine
    forgotten = machine.offsets.forgotten if isinstance(machine, PartitionMachine) else 0
    return GroupView(
        id=number,
        leader=node_of(group.leader),
        term=group.raft.term,
        voters=[node_of(member) for member in conf.voters],
        learners=[node_of(member) for member in conf.learners],
        voters_outgoing=[node_of(member) for member in conf.voters_outgoing],
        members=sorted(group.members | group.parting),
        forgotten=forgotten,
        copies=wanted,
        member=0 if group.abstains or group.is_starved else group.raft.id,
        wanted=placed.members,
    )
