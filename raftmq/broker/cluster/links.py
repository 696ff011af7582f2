"""A node's links to all others: the nodes that are linked, and what a lost link says of its node.

If no process listens at the other end of a link (the other machine says so), the node there is
dead, and the groups that it led need not wait for the election timeout: each survivor forgets the
leader at once and campaigns after a short random pause. Pre-votes still ask a majority, so a wrong
guess costs nothing but a few messages.

When a link opens and a group has no leader, the cluster starts again, and need not wait for a
timeout either. Then the members take turns, in another order in each group, so that the leaderships
spread over the nodes as they did before.

A node that joins says in its `Hello` where it is, and is linked back as a *guest*, as no catalog
names it yet. Any stranger may do so, and name an address that is not its own: guests are few, must
know the cluster's name, and are linked for as long as their own connection lasts.

*Members* are believed: the nodes that the settings or this node's catalog name. A node without a
catalog, or with an old one, may know none of the nodes that lead today. It asks its members for
their tables, and the nodes of the newest table are members from then on (`introduce`):

    settings: 1, 2, 3     table of 2: 2, 4, 5     table of 5, newer: 4, 5, 6     leader: 6

A member that says Hello from another address than the one known here has this node ask the members
for their tables: the member moved while this node was down, or the member's settings are wrong.

Invariants:
- There is one link to each node that the settings, the catalog or a member's table named, and to
  guests, and none to this node itself; a node that was removed from the cluster loses its link.
- No more than `GUESTS_MAX` links lead to addresses that only a `Hello` gave.
- The word of a guest lets no node in, not even at a node's start: each member was named by the
  settings, the catalog, or the table of a member. A guest can have a founder wait, or end one that
  has no topic yet (`admission`).
- A link leads to the address in the newest table known here.
- The word of one peer ends no node: the leader of the system group must confirm, over the link to a
  member, that the node's data folder was replaced.

Left out: proof of a node's identity without TLS (`certificates`): a process that answers at a
member's address is taken for that member. A member that moved since the newest table within reach:
only after a restart is it looked for at the address in the settings.
"""

from collections import Counter
from contextlib import suppress
from functools import partial

import trio

from raftmq.broker.access.agreement import access_digest
from raftmq.broker.host import SOFTWARE, Host
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.settings import Peer
from raftmq.consensus import Message, MessageKind
from raftmq.errors import Unavailable
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.levels import LEVEL
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
from .copy_pace import CopyPace
from .peer_identities import SUPERSEDED, superseded
from .peers import PeerLink
from .upgrade import allowed_level, check_level
from .views import ANSWER_SECONDS_MAX, ask_all

CAMPAIGN_SECONDS_MAX = 0.1
"""A survivor campaigns after up to this time, so that survivors do not get in each other's way."""

GUESTS_MAX = 8
"""Nodes that are linked back on their own word alone, at most."""

ADVICE = "name some of them in `join`, in place of `peers`"
"""The remedy for a node whose settings name no node that is left in the cluster."""

CONFIRM_SECONDS = 0.2
"""Pause between two rounds of asking whether this node was replaced: the peers that refuse it cut
their links again and again."""

CONFIRM_ROUNDS = 10

LOOK_SECONDS = 1.0
"""Pause between two rounds of asking where a member is: any process may claim that one moved."""

FOLDER_CHARACTERS_MAX = 64
"""Characters kept of a folder's name that a guest gives; names that nodes choose are shorter."""

TURN_SECONDS = 0.1
"""Pause between the turns of members that campaign at a cluster's start: a vote takes a few
syncs."""


class Links:
    """The links of one node."""

    def __init__(self, node: Host, nursery: trio.Nursery) -> None:
        self._node = node
        self._nursery = nursery
        self._links: dict[int, PeerLink] = {}
        self._copy_pace = CopyPace(lambda: node.settings.limits.copy_bytes_per_second)
        self._orphans: dict[int, int] = {}
        self._met: Counter[int] = Counter()
        """Open connections, by the node that the other end says it is."""
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
        """True once this folder has a place of its own; before, another folder may have it."""
        # All nodes that a catalog ever named; the first catalog names the founders.
        self._listed = {peer.id for peer in node.settings.node.peers}
        self._told: list[NodeView] = []
        """The nodes of the newest table that a member told."""
        self._told_version = 0

    @property
    def level(self) -> int:
        """The highest feature level that this node allows."""
        return allowed_level(self._node.settings)

    def get(self, node: int) -> PeerLink | None:
        """The link to a node; None if there is none."""
        return self._links.get(node)

    def all(self) -> list[PeerLink]:
        """All links, by the other node's number."""
        return [self._links[number] for number in sorted(self._links)]

    def members(self) -> list[PeerLink]:
        """The links to nodes that the settings, the catalog or a member's table name. Only answers
        over these links count, not those of guests.

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
            reason = f"nodes {sorted(self._guests)} say Hello, and none of {numbers} has named them"
        else:
            return ""
        return f"; {reason}: if the cluster has other nodes by now, {ADVICE}"

    async def introduce(self) -> None:
        """Ask the members for their tables, and take in the nodes of the newest as members.

        The members that are asked first may all have old tables: call this again until the node
        that is looked for answers. Cancelling leaves nothing behind.
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
        """A node connected to this one: link back. A node that joins has no other way to get
        answers, as neither node has a catalog yet that names the other.

        Raises:
            Refusal: its software is too old for the cluster.
        """
        check_level(hello, self._node.catalog.level)
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
            # Any process may claim an address, so the newest table decides. A leader that moved
            # while this node was down cannot bring that table, as it gets no answer from here.
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
        """Note that a guest knows this founder by another folder; this counts until a restart."""
        if len(self.objections) < GUESTS_MAX:
            self.objections[guest] = folder[:FOLDER_CHARACTERS_MAX]

    def part(self, hello: Hello) -> None:
        """A connection that `meet` counted is gone: a guest's link ends with its last one."""
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
        """True if the catalog named a node but no longer does, and no group here counts on it.

        A node that no table ever named may be one that joins, or one that this node's old catalog
        does not know yet: it may be the very leader that brings the newer catalog. So may a node of
        a table that is newer than the catalog.
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
        is_sent = False
        # Encoded only where it can go: this is done for each message.
        if link is not None:
            frame = raft_wire.encode(group.number, message)
            is_sent = link.send(frame)
            if is_sent and message.entries and _is_copying(group, message.to):
                self._copy_pace.sent(sum(map(len, frame)))
        if not is_sent and message.kind is MessageKind.APPEND:
            group.raft.report_unreachable(message.to)

    def copy_pause(self, group: Group, member: int) -> float:
        """Seconds to wait before records are read back for a member."""
        return self._copy_pace.pause if _is_copying(group, member) else 0.0

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
        # Without TLS no node is asked: access needs it.
        digest = access_digest(node.settings.access) if node.world.is_under_tls else ""
        return Hello(
            PROTOCOL,
            own.cluster,
            node.id,
            node.incarnation,
            SOFTWARE,
            own.host,
            own.port,
            digest,
            LEVEL,
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
        """A link is open: for a group without a leader, this may be the first chance to elect."""
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
        # Again at each refusal until a leader is known, as one campaign may fail.
        if self._orphans.get(group.number) == peer:
            pause = self._node.world.random.random() * CAMPAIGN_SECONDS_MAX
            self._node.timers.call_after(pause, partial(self._campaign, group))

    def _campaign(self, group: Group) -> None:
        if not group.leader and self._node.is_serving:
            group.campaign()


def _is_copying(group: Group, member: int) -> bool:
    """True if a member copies the log of a data group, to vote later."""
    return member in group.conf_state.learners and group.number != SYSTEM_GROUP
