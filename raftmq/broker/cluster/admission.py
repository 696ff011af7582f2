"""May a blank folder take part? The question at the start, and the nodes that may answer it.

Raft counts on votes and acknowledged records that survive a restart. A node whose disk was wiped
has forgotten both; if it came back as its old self, a majority could vote twice in one term, or a
committed record could be missing from every majority. So a blank folder asks before it takes part:

| answers | meaning | what follows |
|---|---|---|
| all founders: "never seen" | the cluster is being founded, or this node never spoke | it founds |
| a founder: the same, and others founded its cluster | a second cluster would begin | it waits |
| a founder: the same, and another founding | two clusters would begin, or an odd one | it waits |
| the system group's leader: "never seen", to a node that joins | nothing counts on it | it joins |
| any node: "known under another name" | this disk was wiped, or swapped | it asks for that place |
| a guest of a founder: the same | the cluster was founded before | it founds nothing, and waits |
| the leader: "you have that place" | the old folder is fenced off | it re-enters |
| others: "you have that place" | it stopped before it noted that | it waits for the leader |
| the leader: "you cannot have it" | the node leaves, or left | it stops and says so |
| others are missing | cannot be told apart | it waits, and says for what |

A node that *re-enters* gets the next generation from the catalog (`RenewNode`), and with it new
member ids: its groups take it in as a learner that lacks everything, and when it has caught up, one
joint change lets it vote and removes its old self. Until then the old self counts as a member that
does not answer. So each group needs a majority without the node, and two wiped nodes of three wait
for ever: records that only they held are lost, and no program can tell that there were none.

The leader's word is enough because the catalog names each node's folder, and a group takes a node
in only after that. The nodes that the settings name may know the leader without being it, and some
may be gone for good: as long as no leader answers, the nodes of their tables are asked too
(`links`).

Invariants:
- Only members are believed, no guests (`links`): a wrong answer could end the node, or let it in.
  But a founder founds nothing if a guest knows it by another folder: nodes that joined later are
  guests of founders that all lost their folders.
- A founder whose catalog has no topic yet ends when a guest knows it by another folder: the guest
  may come after the founding. Without a topic, no message was acknowledged here.
- A blank folder's name is durable before any node hears it: a restart during the wait keeps it.
- A node founds only with nodes that would found the same cluster, and that are in no cluster
  without it (`founders`).
- A folder takes only the place of the folder that a peer named, and not as long as the leader
  reaches a process with that folder, or a group has no leader without that folder: a folder that a
  group still needs is never fenced off.

Left out: proving that the old folder is lost. A folder that is only out of reach is fenced off as
well, and stops when it meets any other node. Founders that all lost their folders at once, and meet
no node that joined later before their new cluster has a topic: none of them remembers the old
cluster.

Sources: openraft's documentation on blank nodes; Viewstamped Replication Revisited (2012) §4.3.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec
import trio

from raftmq.broker.host import Host
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest
from raftmq.broker.serve.dispatcher import route
from raftmq.broker.service import Service
from raftmq.broker.tickets import Callback
from raftmq.errors import Reason, Unavailable
from raftmq.log.faults import LogFault
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog, RenewNode
from raftmq.machine.catalog.replicas import GENERATION_MAX
from raftmq.machine.commands import encode_commands
from raftmq.results import Refused, Result
from raftmq.wire.messages import ClusterView, ErrorReply, FrameKind, Probe, ProbeReply

from .founders import addition_of, founders_of, founding_around, is_opening, why_apart, why_silent
from .identity import Identity, save
from .peers import PeerLink
from .views import ask_all

ASK_SECONDS = 0.1
"""Pause between two rounds of asking."""

ANSWER_SECONDS_MAX = 2.0
"""A peer that has not answered after this time is asked again in the next round."""

PATIENCE_TIMEOUTS = 2
"""Election timeouts before a folder asks for the place of a lost one: a leader that needed the lost
folder for its majority has stepped down by then."""


class FoundedBefore(LogFault):
    """The cluster was founded before this folder, and lives on beside it or waits."""


class KnownOtherwise(LogFault):
    """The node was known under another incarnation, whose place this folder cannot have."""


async def wait_admitted(node: Host, identity: Identity) -> None:
    """Wait until this blank folder may take part, and note that in it.

    Cancelling leaves nothing behind; but the catalog may have given the place to this folder, which
    gets the same answer when it asks again. Raises:
        KnownOtherwise: this folder must not take the node's place.
    """
    node.generation = await wait_allowed(node)
    node.waits_for = ""
    admitted = msgspec.structs.replace(identity, is_admitted=True, generation=node.generation)
    save(node.world.files, node.settings.node.data, admitted)


async def wait_allowed(node: Host) -> int:
    """Wait until this blank folder may take part; the generation in which it does.

    Cancelling and errors as in `wait_admitted`.
    """
    question = _Question(node)
    while question.is_open:
        knows_leader = False
        for link in node.links.members():
            reply = await _ask(node, link, replaces=question.replaces)
            if reply is not None:
                knows_leader |= reply.is_latest
                generation = question.take(link.peer.id, reply)
                if generation is not None:
                    return generation
        node.waits_for = question.described()
        if question.is_open and not knows_leader:
            await node.links.introduce()
        if question.is_open:
            await trio.sleep(ASK_SECONDS)
    return 0


class _Question:
    """The answers that a blank folder has heard so far."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._objections = node.links.objections
        founders = {peer.id for peer in node.settings.node.peers}
        self.is_joining = not founders
        """True if the cluster was founded without this node."""
        self.waiting = founders - {node.id}
        """Founders that have not said yet that they never saw this node."""
        self.lost = ""
        """The name under which another node knew this one, if it was not this folder's."""
        self._asks_at = 0.0
        self._refusal = ""
        self._apart: dict[int, str] = {}
        """Founders that this one must not found with, and why."""

    @property
    def is_open(self) -> bool:
        """True while another node has to be asked."""
        return bool(self.waiting or self.lost or self.is_joining or self._objections)

    @property
    def replaces(self) -> str:
        """The folder whose place to ask for now; empty: none, or not yet."""
        return self.lost if trio.current_time() >= self._asks_at else ""

    def take(self, peer: int, reply: ProbeReply) -> int | None:
        """Take in an answer; the generation in which to take part, or None: not decided yet."""
        known, own = reply.known_incarnation, self._node.incarnation
        # If the leader names yet another folder, the place of that one is asked for next.
        if reply.is_latest and reply.refusal and known in ("", self.lost):
            raise KnownOtherwise(
                f"node {self._node.id} had another data folder, {self.lost}, and this one is "
                "blank: its disk was wiped or swapped. It cannot take the other's place: "
                f"{reply.refusal}. Give the node its old folder, or add it under a new number"
            )
        if self.replaces and (reply.refusal or reply.is_latest):
            self._refusal = reply.refusal
        if known not in ("", own):
            self._asks_at = self._asks_at or trio.current_time() + _patience_seconds(self._node)
            # A peer that is behind may know of a folder that was replaced long ago.
            self.lost = known if reply.is_latest else self.lost or known
        elif reply.is_latest and reply.generation:
            return reply.generation
        elif reply.is_latest and self.is_joining and not self.lost:
            return 0
        elif not reply.generation:
            # A peer that has heard of this folder's re-entry is not counted: the leader's answer
            # will give the generation.
            self._count(peer, reply)
        return None

    def _count(self, peer: int, reply: ProbeReply) -> None:
        """Count a founder's "never seen", unless it means another cluster than this one's."""
        self.waiting.discard(peer)
        self._apart.pop(peer, None)
        apart = "" if self.is_joining else why_apart(self._node.settings.node, peer, reply)
        if apart:
            # An earlier "never seen" of this peer dates from before its cluster was founded.
            self.waiting.add(peer)
            self._apart[peer] = apart

    def described(self) -> str:
        """Why the folder still waits, for people."""
        advice = self._node.links.advice
        if self.lost:
            reason = f" ({self._refusal})" if self._refusal else ""
            return (
                f"its data folder is blank, and it had another, {self.lost}: it waits for the "
                "leader of the system group, and so for a majority of the other nodes, to let it "
                f"take that place{reason}{advice}"
            )
        if self.is_joining:
            text = "its data folder is blank: it waits for the leader of the system group"
            return f"{text}{self._unreached()}{advice}"
        if self.waiting:
            text = (
                f"its data folder is blank: it waits for an answer of nodes {sorted(self.waiting)}"
            )
            apart = [self._apart[peer] for peer in sorted(self._apart)]
            return "; ".join((text, *apart)) + self._unreached() + advice * (not apart)
        return f"its data folder is blank: {_objection(self._node)}{advice}"

    def _unreached(self) -> str:
        """The addresses of the nodes that are waited for, and why those are not heard."""
        links = [link for link in self._node.links.members() if link.peer.id not in self._apart]
        if not self.is_joining:
            links = [link for link in links if link.peer.id in self.waiting]
        elif any(link.is_connected for link in links):
            links = []
        return "".join(f"; {why_silent(link)}" for link in links)


def why_not_counted(node: Host) -> str:
    """The reason why no cluster counts a node that serves, and the remedy; empty: one does."""
    own = node.settings.node
    if own.peers or node.catalog.is_bootstrapped:
        return ""
    return f"the cluster does not count node {node.id} yet: {addition_of(own)} makes it a member"


async def ask_guest(node: Host, link: PeerLink) -> None:
    """Ask a node that only said Hello whether it knows this founder by another folder: then the
    cluster was founded before. A stranger that lies keeps a founder waiting, or ends one that has
    no topic; no message is lost by either. Cancelling leaves nothing behind."""
    if not node.settings.node.peers:
        return
    if SYSTEM_GROUP in node.groups and not _may_have_founded_again(node):
        return
    reply = await _ask(node, link, replaces="", joins=False)
    if reply is None or reply.known_incarnation in ("", node.incarnation) or reply.generation:
        return
    node.links.note_objection(link.peer.id, reply.known_incarnation)
    heed_objections(node)


def heed_objections(node: Host) -> None:
    """End this founder if guests say that the cluster was founded before, and if there is no topic
    in the part of its log that is known to be committed."""
    if node.links.objections and _may_have_founded_again(node):
        system = node.groups[SYSTEM_GROUP]
        # Committed records that are not applied yet may still hold a topic.
        if system.machine.applied == system.raft.status().hard_state.commit:
            node.fail(
                FoundedBefore(f"this folder founded the cluster a second time: {_objection(node)}")
            )


def _may_have_founded_again(node: Host) -> bool:
    """True if this node carries the first member that it ever was, in a catalog without topics. A
    replica that is filled by a leader has another member id."""
    system = node.groups.get(SYSTEM_GROUP)
    return system is not None and system.raft.id == node.id and not node.catalog.topics


def _objection(node: Host) -> str:
    others = ", ".join(f"node {n} as {name}" for n, name in sorted(node.links.objections.items()))
    return (
        f"the cluster was founded before, as nodes that joined it know node {node.id} by another "
        f"folder ({others}). If that folder is lost, start this node with a blank folder and "
        "`join` in place of `peers`, which names those nodes; if that cluster is given up, stop "
        "its nodes"
    )


def _patience_seconds(node: Host) -> float:
    pace = node.settings.raft
    return PATIENCE_TIMEOUTS * pace.election_ticks * pace.tick_ms / 1000


class Admission(Service):
    """The handler of PROBE."""

    def __init__(self, node: Host) -> None:
        self.routes = {FrameKind.PROBE: route(Probe, partial(_answer, node))}


def _answer(node: Host, probe: Probe, asked: OpenRequest) -> Answer:
    """Answer what is known here of the asking node, and give it the place that it asks for."""
    if asked.connection.names is not None and probe.node != asked.connection.from_node:
        text = f"node {asked.connection.from_node} asks for node {probe.node}"
        return ErrorReply(Reason.TLS.value, text)

    def reply_with(*, is_latest: bool, refusal: str = "") -> ProbeReply:
        generation, name = node.peer_identities.folder_of(probe.node)
        lost, now_ms = sorted(node.lost_logs), node.now_ms()
        may_lead = node.may_lead and node.id not in node.catalog.drained
        reply = ProbeReply(name, is_latest, may_lead, generation, refusal, now_ms, lost)
        if probe.joins and name in ("", probe.incarnation):
            founders, founding = founders_of(node), founding_around(node)
            reply = msgspec.structs.replace(reply, founders=founders, founding=founding)
        return reply

    def ready(error: ErrorReply | None) -> None:
        if error is None and probe.replaces:
            node.start_soon(_renew, node, probe, reply_with, asked)
        else:
            asked.answer(reply_with(is_latest=error is None))

    _, known = node.peer_identities.folder_of(probe.node)
    if probe.joins and not known and is_opening(node):
        # "Never seen" would tell the asking founder that no cluster was founded yet.
        text = f"node {node.id} does not know yet who founded its cluster"
        return ErrorReply("unavailable", text, retry_ms=200)
    # A former leader may not know the folder: only one that passes a read has the latest word.
    if probe.joins and node.is_serving:
        node.groups[SYSTEM_GROUP].read(ready)
        return LATER
    return reply_with(is_latest=False)


async def _renew(
    node: Host, probe: Probe, reply_with: Callable[..., ProbeReply], asked: OpenRequest
) -> None:
    """On the system group's leader: let a blank folder take the place of a lost one."""
    catalog = node.catalog
    # A catalog that does not list the founders yet would turn every node away for good.
    if not catalog.is_bootstrapped:
        asked.answer(reply_with(is_latest=False))
        return
    if probe.node not in catalog.nodes:
        text = f"node {probe.node} does not belong to the cluster"
        asked.answer(reply_with(is_latest=True, refusal=text))
        return
    # Without `is_latest` this is no last word, here and below: the asking folder waits.
    if _is_up(node, probe.node, probe.replaces):
        text = f"node {probe.node} is up with the folder {probe.replaces}: stop it first"
        asked.answer(reply_with(is_latest=False, refusal=text))
        return
    without_leader = groups_without_leader(probe.node, node.catalog, await ask_all(node))
    if without_leader:
        text = f"partition groups {without_leader} have no leader without its old folder"
        asked.answer(reply_with(is_latest=False, refusal=text))
        return

    def done(results: list[Result]) -> None:
        refused = results[0] if isinstance(results[0], Refused) else None
        asked.answer(reply_with(is_latest=True, refusal=refused.message if refused else ""))

    command = RenewNode(probe.node, probe.replaces, probe.incarnation)
    ticket = Callback(done, lambda _: asked.answer(reply_with(is_latest=False)))
    payload = encode_commands([command])
    node.groups[SYSTEM_GROUP].propose(Kind.COMMANDS, payload, ticket, is_upkeep=True)


def groups_without_leader(
    node: int, catalog: Catalog, views: Mapping[int, ClusterView]
) -> list[int]:
    """The partition groups to which a node belongs and of which no node says that it leads them."""
    told = [(author, group) for author, view in views.items() for group in view.groups]
    led = {group.id for author, group in told if group.leader == author}
    counted = {g.id for _, g in told if node in g.voters or node in g.voters_outgoing}
    wanted = {group.id for group in catalog.groups.values() if node in group.members}
    return sorted((counted | wanted) - led)


def _is_up(node: Host, number: int, incarnation: str) -> bool:
    """True if a process with that folder is up: the asking node's disk is blank by mistake."""
    link = node.links.get(number)
    return number == node.id or (link is not None and link.incarnation == incarnation)


async def _ask(
    node: Host, link: PeerLink, *, replaces: str, joins: bool = True
) -> ProbeReply | None:
    """A peer's answer to our probe; None if it gives none in time, or one that cannot be true."""
    probe = Probe(node.id, node.incarnation, joins=joins, replaces=replaces)
    with trio.move_on_after(ANSWER_SECONDS_MAX), suppress(Unavailable):
        reply = await link.ask(FrameKind.PROBE, probe, ProbeReply)
        if 0 <= reply.generation <= GENERATION_MAX:
            return reply
    return None
