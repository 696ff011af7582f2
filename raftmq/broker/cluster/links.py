"""A node's links to all others: who is linked, what is lost, and what a lost link tells.

If nobody listens at the other end of a link, that process is dead (the other machine says so), and
the groups that it led need not wait for the election timeout: each survivor forgets the leader at
once and campaigns after a little while, another one each. Pre-votes still ask a majority, so a
wrong guess costs nothing but a few messages.

The same when a link opens and nobody leads: that is a cluster which starts again, and need not wait
for a timeout either. Here the members take turns, in another order in each group, so that the
offices spread over the nodes as they did before.

A node that joins says in its `Hello` where it is, and is linked back as a *guest*, as no catalog
names it yet. So does any stranger, who may name an address that is not its own: guests are few,
must know the cluster's name, and are linked for as long as their own connection lasts.

*Members* are believed: the nodes that the settings or this node's catalog name. A node without a
catalog, or with an old one, may know none of the nodes that lead today. It asks its members for
their tables, and the nodes of the newest table are members from then on (`introduce`):

    settings: 1, 2, 3     table of 2: 2, 4, 5     table of 5, newer: 4, 5, 6     leader: 6

A member that says Hello from another address than the one known here has this node ask the members
for their tables: the member moved while this node was down, or the member's settings are wrong.

Invariants:
- There is one link to each node that the settings, the catalog or a member's table named, and to
  guests, and none to this node itself; a node that was removed from the cluster loses its link.
- No more than `GUESTS_MAX` links lead where only a `Hello` pointed.
- The word of a guest lets no node in, at the start of a node neither: each member was named by the
  settings, the catalog, or the table of a member. A guest can have a founder wait, or end one that
  has no topic yet (`admission`).
- A link leads to the address in the newest table known here.
- The word of one peer ends no node: that its data folder was replaced must be confirmed by the
  leader of the system group, over the link to a member.

Left out: proof of who a node is. A process that answers at a member's address is taken for that
member. A member that moved since the newest table within reach: only a restart asks for it where
the settings say that it is.
"""

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.settings import Peer
from raftmq.consensus import Message, MessageKind
from raftmq.errors import Unavailable
from raftmq.wire import raft as raft_wire
from raftmq.wire.messages import (
    PROTOCOL,
    ErrorReply,
    FrameKind,
    Hello,
    NodeView,
    Probe,
    ProbeReply,
)

from .admission import ask_guest
from .peer_identities import SUPERSEDED, superseded
from .peers import PeerLink
from .views import ANSWER_SECONDS_MAX, ask_all

if TYPE_CHECKING:
    from raftmq.broker.node import Node

CAMPAIGN_SECONDS_MAX = 0.1
"""A survivor campaigns after up to this time, so that survivors do not get in each other's way."""

GUESTS_MAX = 8
"""Nodes that are linked back on their own word alone, at most."""

ADVICE = "name some of them in `join`, in place of `peers`"
"""How a node gets to know a cluster of which its settings name no node that is left."""

CONFIRM_SECONDS = 0.2
"""Pause between two rounds of asking whether this node was replaced: the peers that refuse it cut
their links again and again."""

CONFIRM_ROUNDS = 10

LOOK_SECONDS = 1.0
"""Pause between two rounds of asking where a member is: any process may say that one moved."""

FOLDER_CHARACTERS_MAX = 64
"""Kept of the name that a guest gives to a data folder; those that nodes choose are shorter."""

TURN_SECONDS = 0.1
"""Between the turns of members that campaign when a cluster starts: a vote takes a few syncs."""


class Links:
    """The links of one node."""

    def __init__(self, node: "Node", nursery: trio.Nursery) -> None:
        self._node = node
        self._nursery = nursery
        self._links: dict[int, PeerLink] = {}
        self._orphans: dict[int, int] = {}
        self._met: Counter[int] = Counter()
        """Open connections by the node that says to be at the other end."""
        self._guests: dict[int, None] = {}
        """Links that a `Hello` alone asked for, oldest first."""
        self.objections: dict[int, str] = {}
        """Guests that know this founder by another folder, and that folder's name; `GUESTS_MAX` of
        them."""
        self._is_confirming = False
        self._is_looking = False
        # True: a member may have moved since the members were last asked.
        self._is_look_due = False
        self.is_admitted = False
        """True once this folder has a place of its own: before that another one may have it."""
        # All that a catalog ever named: the founders are in the first one.
        self._listed = {peer.id for peer in node.settings.node.peers}
        self._told: list[NodeView] = []
        """The nodes of the newest table that a member told."""
        self._told_version = 0

    def get(self, node: int) -> PeerLink | None:
        """The link to a node; None if there is none."""
        return self._links.get(node)

    def all(self) -> list[PeerLink]:
        """All links, by the other node's number."""
        return [self._links[number] for number in sorted(self._links)]

    def members(self) -> list[PeerLink]:
        """Those to nodes that the settings, the catalog or a member's table name, no guests: what
        these say counts.

        A leader that this node's catalog does not know yet is left out, until it is introduced.
        """
        return [link for link in self.all() if link.peer.id not in self._guests]

    @property
    def advice(self) -> str:
        """Advice to the operator of a node that finds no leader at its start; empty: none."""
        numbers = [link.peer.id for link in self.members()]
        if any(link.is_of_other_cluster for link in self.members()):
            # The name of the cluster is wrong here or there: other nodes would not help.
            return ""
        if not any(link.is_connected for link in self.members()):
            reason = f"none of nodes {numbers} is reached"
        elif self._guests:
            reason = f"nodes {sorted(self._guests)} say Hello, which none of {numbers} has named"
        else:
            return ""
        return f"; {reason}: if the cluster has other nodes by now, {ADVICE}"

    async def introduce(self) -> None:
        """Ask the members for their tables, and take in the nodes of the newest as members.

        Whose own table is old may be asked before who knows more: call it again until the node that
        is looked for answers. Cancelling leaves nothing behind.
        """
        views = await ask_all(self._node)
        newest = max(views.values(), key=lambda view: view.version)
        # An older table would take links back to addresses of long ago.
        if newest.version > self._told_version:
            self._told, self._told_version = newest.nodes, newest.version
            self.connect()

    def connect(self) -> None:
        """Have a link to each other node that the settings or the newest table known here name."""
        own, catalog = self._node.settings.node, self._node.catalog
        peers = {peer.id: peer for peer in (*own.peers, *own.join)}
        is_behind = catalog.version < self._told_version
        for node in self._told if is_behind else catalog.nodes.values():
            peers[node.id] = Peer(node.id, node.host, node.port)
            self._listed.add(node.id)
        for peer in peers.values():
            if self._is_removed(peer.id):
                continue
            self._guests.pop(peer.id, None)
            link = self._links.get(peer.id)
            if link is not None:
                link.move(peer)
            else:
                self._start(peer)

    def meet(self, hello: Hello) -> None:
        """A node connected to us: link back. One that joins has no other way to get answers, as
        neither of us has a catalog yet that names the other."""
        number = hello.node
        if number < 1 or number == self._node.id:
            return
        self._met[number] += 1
        link = self._links.get(number)
        if link is not None:
            link.hurry()
        is_ours = hello.cluster == self._node.settings.node.cluster and bool(hello.host)
        if not is_ours or self._is_removed(number):
            return
        if link is None and self._make_room():
            self._guests[number] = None
            self._start(Peer(number, hello.host, hello.port))
        elif link is not None and number in self._guests:
            link.move(Peer(number, hello.host, hello.port))
        elif link is not None and (hello.host, hello.port) != (link.peer.host, link.peer.port):
            # Any process may say so: where a member is, the newest table says. A leader that moved
            # while this node was down cannot bring the news, as it gets no answer from here.
            self._look_up()

    def _look_up(self) -> None:
        self._is_look_due = True
        if not self._is_looking:
            self._is_looking = True
            self._nursery.start_soon(self._look_while_due)

    async def _look_while_due(self) -> None:
        while self._is_look_due:
            self._is_look_due = False
            await self.introduce()
            await trio.sleep(LOOK_SECONDS)
        self._is_looking = False

    def note_objection(self, guest: int, folder: str) -> None:
        """A guest knows this founder by another folder: it counts until this node is restarted."""
        if len(self.objections) < GUESTS_MAX:
            self.objections[guest] = folder[:FOLDER_CHARACTERS_MAX]

    def part(self, hello: Hello) -> None:
        """A connection that `meet` was told of is gone: a guest's link goes with its last one."""
        number = hello.node
        if number < 1 or number == self._node.id:
            return
        self._met[number] -= 1
        if not self._met[number]:
            del self._met[number]
            if number in self._guests:
                self._end(number)

    def _make_room(self) -> bool:
        """May another guest be linked? One that does not answer gives way."""
        if len(self._guests) < GUESTS_MAX:
            return True
        silent = next((n for n in self._guests if not self._links[n].is_connected), 0)
        if silent:
            self._end(silent)
        return bool(silent)

    def _end(self, number: int) -> None:
        self._guests.pop(number, None)
        self._links.pop(number).stop()

    def prune(self) -> None:
        """End the links to nodes that were removed from the cluster."""
        for number in [number for number in self._links if self._is_removed(number)]:
            self._end(number)

    def _is_removed(self, number: int) -> bool:
        """True if the catalog named a node, does not any more, and no group here counts on it.

        A node that no table ever named may be one that joins, or one that this node's old catalog
        does not know yet: it may be the very leader that brings the news. So may one of a newer
        table than the catalog.
        """
        catalog = self._node.catalog
        if number not in self._listed or number in catalog.nodes:
            return False
        if not catalog.is_bootstrapped or catalog.version < self._told_version:
            return False
        confs = [group.conf_state for group in self._node.groups.values()]
        return not any(
            number in map(node_of, (*conf.voters, *conf.voters_outgoing, *conf.learners))
            for conf in confs
        )

    def send(self, group: Group, message: Message) -> None:
        """Send a consensus message, best effort."""
        link = self._links.get(node_of(message.to))
        is_sent = link is not None and link.send(raft_wire.encode(group.number, message))
        if not is_sent and message.kind is MessageKind.APPEND:
            group.raft.report_unreachable(message.to)

    def _start(self, peer: Peer) -> None:
        if peer.id == self._node.id:
            return
        limits = self._node.settings.limits
        link = PeerLink(
            peer,
            self._hello,
            world=self._node.world,
            step=self._node.load.step,
            unsent_bytes_max=limits.peer_bytes_max,
            frame_bytes_max=limits.frame_bytes_max,
            on_open=self._opened,
            on_lost=self._lost,
            on_refused=self._refused,
        )
        self._links[peer.id] = link
        self._nursery.start_soon(link.run)

    def _hello(self) -> Hello:
        node, own = self._node, self._node.settings.node
        return Hello(
            PROTOCOL, own.cluster, node.id, node.incarnation, node.software, own.host, own.port
        )

    def _refused(self, reply: ErrorReply) -> None:
        """A peer ended a link, and said why."""
        if reply.code == SUPERSEDED and self.is_admitted and not self._is_confirming:
            self._is_confirming = True
            self._nursery.start_soon(self._confirm)

    async def _confirm(self) -> None:
        """Find out from the leader of the system group whether another folder took this place."""
        for _ in range(CONFIRM_ROUNDS):
            await self.introduce()
            with trio.move_on_after(ANSWER_SECONDS_MAX):
                async with trio.open_nursery() as nursery:
                    for link in self.members():
                        nursery.start_soon(self._ask_for_folder, link)
            await trio.sleep(CONFIRM_SECONDS)
        self._is_confirming = False

    async def _ask_for_folder(self, link: PeerLink) -> None:
        node = self._node
        with suppress(Unavailable):
            probe = Probe(node.id, node.incarnation, joins=True)
            reply = await link.ask(FrameKind.PROBE, probe, ProbeReply)
            if reply.is_latest and reply.generation > node.generation:
                node.fail(superseded(node.id, mine=node.incarnation, other=reply.known_incarnation))

    def _opened(self, peer: int) -> None:
        """A link is open: if nobody leads a group, this may be the first chance to elect."""
        self._node.think()
        if peer in self._guests:
            self._nursery.start_soon(ask_guest, self._node, self._links[peer])
        for group in self._node.groups.values():
            if not group.leader and peer in map(node_of, group.conf_state.voters):
                pause = TURN_SECONDS * (self._turn(group) + self._node.world.random.random() / 2)
                self._node.timers.call_after(pause, partial(self._campaign, group))

    def _turn(self, group: Group) -> int:
        """Which turn among a group's voters this node has, from 0; the founding leader's is 0."""
        voters = sorted(map(node_of, group.conf_state.voters))
        if self._node.id not in voters:
            return len(voters)
        return (voters.index(self._node.id) - group.number + 1) % len(voters)

    def _lost(self, peer: int, was_refused: bool) -> None:
        """A link broke, or could not be made: called again for each attempt."""
        for group in self._node.groups.values():
            if group.is_leader:
                for member in group.conf_state.voters + group.conf_state.learners:
                    if node_of(member) == peer:
                        group.raft.report_unreachable(member)
            elif was_refused:
                self._leader_may_be_down(group, peer)

    def _leader_may_be_down(self, group: Group, peer: int) -> None:
        if group.leader and node_of(group.leader) == peer:
            self._orphans[group.number] = peer
            group.forget_leader()
        elif group.leader:
            self._orphans.pop(group.number, None)
        if self._orphans.get(group.number) == peer:
            pause = self._node.world.random.random() * CAMPAIGN_SECONDS_MAX
            self._node.timers.call_after(pause, partial(self._campaign, group))

    def _campaign(self, group: Group) -> None:
        if not group.leader and self._node.is_serving:
            group.campaign()
