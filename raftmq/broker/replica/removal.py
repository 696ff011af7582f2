"""Replicas that are no longer wanted: their logs are deleted when no group counts on them.

A group's leader changes its members, and sends a removed member nothing more. So the replica that
is left behind cannot know from its own log that it is no member; it asks.

| condition, for ten seconds | why |
|---|---|
| the catalog names other members, and is up to date | this replica is not wanted |
| the group's leader and most of its voters say that it has other members | that is committed |
| these voters know of no newer term | no later leader added it again |
| the replica heard nothing since they were asked | no later leader counts on it |

A voter names a removed member until it has it in writing that the change is committed: started
again, it might need that member to elect a leader (`Group.parting`).
The replica's own knowledge of leaders and terms proves nothing else. It may have stood for election
and lost unheard; a learner hears nothing of its removal and never stands for election.

Then the catalog is asked to use up the member's id (`RetireReplica`), and only when it has done so,
by the catalog's replica on this node, the log is deleted. If the node is wanted again before that,
the catalog refuses, and log and id stay. A log whose id is used up goes also if its node is wanted:
as another member, which the leader has taken in by then.

Deleting begins with a file that says so, so that a crash in between leaves no log that looks
damaged: the next start goes on. A crash before that file leaves the whole log, which may vote and
acknowledge under its id until the catalog is heard again. The empty folder stays.

Left out: a node that is out of the cluster. Its catalog never hears that its ids are used up, so
its logs stay until its data folder is removed.

Invariants:
- A log is deleted on the disk thread, after all that was queued for it there.
- A log is deleted after its member id was used up, and begun again under another one.
- A replica that comes back is opened after its old log is gone.
"""

from contextlib import suppress
from functools import partial

import trio

from raftmq.broker.cluster.peers import PeerLink
from raftmq.broker.cluster.views import ask_all, by_group, is_agreed
from raftmq.broker.host import Host
from raftmq.broker.tickets import Callback
from raftmq.broker.world import Worker
from raftmq.errors import Unavailable
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.replicas import RetireReplica, member_of, node_of
from raftmq.machine.commands import encode_commands
from raftmq.results import Changed, Result
from raftmq.wire.messages import Admin, AdminDone, ClusterView, FrameKind, GroupView

from .group import Group
from .opener import GroupOpener

ANSWER_SECONDS_MAX = 2.0
"""A peer that does not answer a request to retire a member within this time is passed over."""

UNWANTED_SECONDS = 10.0
"""Grace period before other nodes are asked whether a replica may be deleted."""


class ReplicaRemoval:
    """The replicas of one node that are no longer wanted."""

    def __init__(self, node: Host, worker: Worker, opener: GroupOpener) -> None:
        self._node = node
        self._worker = worker
        self._opener = opener
        self._since: dict[int, float] = {}
        self._is_asking = False
        self.under_way: set[int] = set()
        """Groups whose log is being deleted."""
        self.is_removed = False
        """True if no other node knows this one, of those whose catalog is not behind this node's:
        asked for while it holds an unwanted replica, and by `look`."""
        # The catalog has named this node; a newcomer first applies the log of before.
        self._was_named = False

    def think(self) -> None:
        """Look for replicas that are no longer wanted."""
        now = trio.current_time()
        self._was_named |= self._node.id in self._node.catalog.nodes
        unwanted = [number for number in self._node.groups if self._is_unwanted(number)]
        self._since = {number: self._since.get(number, now) for number in unwanted}
        due = [n for n, since in self._since.items() if now - since >= UNWANTED_SECONDS]
        if due and not self._is_asking:
            self._is_asking = True
            # Asked again after as long.
            self._since.update(dict.fromkeys(due, now))
            self._node.start_soon(self._ask, due)

    @property
    def is_leaving(self) -> bool:
        """True if the catalog, as this node knows it, says that it leaves or has left."""
        own = self._node.catalog.nodes.get(self._node.id)
        is_leaving = self._was_named if own is None else own.is_leaving
        return self._node.catalog.is_bootstrapped and is_leaving

    async def look(self) -> None:
        """If this node leaves, or was removed, ask the others whether it is out; nothing is
        deleted. Leaders tell a node that is out nothing, and `think` asks ten seconds later."""
        if self.is_leaving or self.is_removed:
            self._note_removal(await ask_all(self._node))

    def _note_removal(self, found: dict[int, ClusterView]) -> None:
        own, version = self._node.id, self._node.catalog.version
        believed = [
            {each.id for each in view.nodes}
            for author, view in found.items()
            # A member that lags may not have heard yet that this node was added.
            if author != own and (view.version >= version or _leads(author, view))
        ]
        # Without an answer that counts, the last word stays.
        if believed:
            self.is_removed = not any(own in ids for ids in believed)

    def _is_unwanted(self, number: int) -> bool:
        wanted = self._node.catalog.groups.get(number)
        if number == SYSTEM_GROUP or wanted is None or not self._node.groups[SYSTEM_GROUP].leader:
            return False
        group = self._node.groups[number]
        return self._node.id not in wanted.members or self._taker(group) > group.raft.id

    def _taker(self, group: Group) -> int:
        """This node's member id in a group by the catalog; a lower id must not be used again."""
        return member_of(self._node.catalog, group.number, self._node.id)

    async def _ask(self, due: list[int]) -> None:
        try:
            groups = self._node.groups
            heard = {number: _heard(groups[number]) for number in due if number in groups}
            found = await ask_all(self._node)
            self._note_removal(found)
            for number, before in heard.items():
                # The answers grow old. A leader that has come to count on this replica since the
                # question has sent it something.
                is_as_before = number in groups and _heard(groups[number]) == before
                if is_as_before and self._is_unwanted(number):
                    await self._give_up(groups[number], found)
        finally:
            self._is_asking = False

    async def _give_up(self, group: Group, views: dict[int, ClusterView]) -> None:
        own, taker = group.raft.id, self._taker(group)
        # A leader that takes in the next member knows that this one is used up.
        is_replaced = taker > own and has_taken_in(taker, group.number, views)
        if is_replaced or has_left(own, group.number, views):
            if taker > own:
                self._retire(group)
            else:
                await self.retire(group.number, own)

    async def retire(self, number: int, member: int, *, is_lost: bool = False) -> int:
        """Ask the catalog to use up a member's id.

        Returns the member that takes its place; 0: refused, or no answer. It may have happened all
        the same; asking again is safe. Cancelling leaves it open.
        """
        command, node = RetireReplica(number, member, is_lost), self._node
        system = node.groups.get(SYSTEM_GROUP)
        if system is not None and system.is_leader:
            return await self._propose(command)
        leader = node_of(system.leader) if system is not None else 0
        # Without a known leader each member is asked: one may lead, or know that the id is used up.
        links = [link for link in node.links.members() if leader in (0, link.peer.id)]
        for link in links:
            taker = await _ask_to_retire(link, command)
            if taker:
                return taker
        return 0

    async def _propose(self, command: RetireReplica) -> int:
        results: list[Result] = []
        settled = trio.Event()

        def done(found: list[Result]) -> None:
            results.extend(found)
            settled.set()

        payload = encode_commands([command])
        ticket = Callback(done, lambda _: settled.set())
        system = self._node.groups[SYSTEM_GROUP]
        system.propose(Kind.COMMANDS, payload, ticket, is_upkeep=True)
        await settled.wait()
        return _first_id([result.value for result in results if isinstance(result, Changed)])

    def _retire(self, group: Group) -> None:
        self._node.forget_group(group)
        self.under_way.add(group.number)
        job = partial(self._opener.discard, group.number, group.store)
        self._worker.submit(job, partial(self._retired, group.number))

    def _retired(self, number: int, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._node.fail(error)
            return
        self.under_way.discard(number)
        # It may be wanted again by now.
        self._node.catalog_changed()


def _heard(group: Group) -> tuple[int, int, int]:
    """The replica's member id, and the newest term and record that it heard of."""
    return group.raft.id, group.raft.term, group.raft.last_index


async def _ask_to_retire(link: PeerLink, command: RetireReplica) -> int:
    question = Admin.of(command)
    # Any answer but a member's id means: ask again.
    with trio.move_on_after(ANSWER_SECONDS_MAX), suppress(Unavailable):
        return _first_id([(await link.ask(FrameKind.ADMIN, question, AdminDone)).result])
    return 0


def _first_id(values: list[object]) -> int:
    return next((value for value in values if isinstance(value, int)), 0)


def _leads(author: int, view: ClusterView) -> bool:
    """True if the node that gave this view leads the system group, by its own word."""
    return any(group.id == SYSTEM_GROUP and group.leader == author for group in view.groups)


def has_left(member: int, number: int, views: dict[int, ClusterView]) -> bool:
    """True if the group has no such member, by what each node says (see `ask_all`)."""

    def holds(group: GroupView) -> bool:
        return member not in group.members and group.leader != node_of(member)

    return is_agreed(by_group(views)[number], holds)


def has_taken_in(member: int, number: int, views: dict[int, ClusterView]) -> bool:
    """True if the group has this member, and no former self of it that votes, by what each node
    says (see `ask_all`)."""
    node = node_of(member)

    def holds(group: GroupView) -> bool:
        votes = node in group.voters or node in group.voters_outgoing
        return member in group.members and not votes and group.leader != node

    return is_agreed(by_group(views)[number], holds)
