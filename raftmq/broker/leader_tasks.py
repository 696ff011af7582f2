"""Periodic tasks of leaders. Each task is small and idempotent.

| task | leader | when |
|---|---|---|
| found the cluster | of the system group | the catalog is empty |
| name the nodes' data folders | of the system group | a node is up that has no name yet |
| raise the feature level | of the system group | all nodes allow a higher one (`upgrade`) |
| note where nodes stand | of the system group | a node says another zone or machine |
| note absences, move groups (`balancer`) | of the system group | the settings `[balance]` say so |
| spread the leadership | of any group | its first member that is not drained is well, and follows |
| give the leadership away | of any group | this node is drained or its disk full, another one not |
| retention | of a data group | sealed segments are too old or too many (`retention`) |
| forget deleted topics | of a data group | its machine knows queues of a deleted topic |
| take over subscriptions | of a data group | the catalog has newer ones than its log |
| forget deleted consumer groups | of a data group | its machine serves some |
| forget what those committed | of a data group | the catalog has newer deletions |
| forget deletions | of the system group | all data groups have carried them out |
| count what retention took | of a data group | it was of use to a consumer group |
| change members (`member_changes`) | of any group | the catalog wants others than it has |
| forget nodes that left | of the system group | a leaving node is in no group |

A task is only a proposal; the log decides whether it takes effect. The next leader does a task
again that a change of leader lost.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import trio

from raftmq.broker.cluster.clocks import Clocks
from raftmq.broker.cluster.member_changes import MemberChanges
from raftmq.broker.cluster.reconfiguration import is_unused
from raftmq.broker.cluster.upgrade import next_level, record_version
from raftmq.broker.cluster.views import ask_all
from raftmq.broker.deliver.group_deletion import find_done, next_part
from raftmq.broker.deliver.subscription_sync import resubscription
from raftmq.broker.host import Host
from raftmq.broker.placement.balancer import Balancer
from raftmq.broker.placement.write_rates import WriteRates
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.retention import Retention
from raftmq.broker.replica.space import first_not_in, heirs
from raftmq.broker.service import Service
from raftmq.broker.tickets import Callback
from raftmq.consensus import ProgressState
from raftmq.log.record import Kind, Record
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Bootstrap, RemoveNode
from raftmq.machine.catalog.catalog import Command as CatalogCommand
from raftmq.machine.catalog.catalog import Node as CatalogNode
from raftmq.machine.catalog.levels import PLACES_LEVEL, RaiseLevel
from raftmq.machine.catalog.nodes import NameNode, PlaceNode
from raftmq.machine.catalog.replicas import member_of
from raftmq.machine.catalog.state import Place
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import Command, DropQueues, PartitionMachine, Trim
from raftmq.machine.names import why_no_place
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.calls import CloseGroups, Lose
from raftmq.results import Refused, Result

PAUSE_SECONDS = 1.0
"""How often the leader tasks are looked at when nothing calls for them."""

REFUSED_SECONDS = 10.0
"""Pause before a task is tried again whose commands the machine refused. Each record of the catalog
wakes the tasks, a refused one as well: without a pause they would fill the log."""

SPREAD_SECONDS = 5.0
"""A new leader keeps the office for this time before it hands over to the preferred leader, which
may have given the office up a moment ago because it is stopping."""

HAND_OVER_LAG_MAX = 256
"""Records that the preferred leader may lack when it is handed the leadership."""


CLOSED_MAX = 1000
"""Attachments in one record that forgets them."""

LOST_MAX = 10_000
"""Queues in one record that tells what is lost, each counted for every consumer group that follows
it, and at least once: 20,000 queues of 50 groups in two records held the loops of all replicas for
2 s each."""

ASK_AGAIN_SECONDS = 30.0
"""Least pause before a member that was asked in vain to take over is asked again. A leader that
hands over takes no records until the member declines, or for an election timeout if its answer is
lost; so the pause is never less than two of these."""


class _Look(NamedTuple):
    """Progress of a led group at one look, with the look before."""

    at: float
    """When, by trio's clock."""
    last_index: int
    """The newest record then."""
    last_index_before: int
    """The newest record at the look before."""


class LeaderTasks(Service):
    """The leader tasks of one node, for the groups that it leads."""

    def __init__(
        self,
        node: Host,
        *,
        keep_up: Callable[[], None],
        retention: Retention,
        trimmable: Callable[[Group, int], int],
        is_behind_filters: Callable[[], bool],
    ) -> None:
        """`keep_up` does what every node does now and then, whether it leads a group or not;
        `trimmable`: see `DelayScheduler`; `is_behind_filters`: see `Matching`."""
        self._node = node
        self._keep_up = keep_up
        self._retention = retention
        self._trimmable = trimmable
        self._is_behind_filters = is_behind_filters
        self._wake = trio.Event()
        self._clocks = Clocks(node)
        self.write_rates = WriteRates()
        """How fast the logs here grow."""
        self._under_way: set[tuple[str, int]] = set()
        self._moved: dict[int, CatalogNode] = {}
        # Number → entry of the catalog; see `has_moved`.
        self._clean: dict[int, tuple[int, int, int]] = {}
        """Group → (last deletion of a topic, queues with messages, queues with delayed ones) at
        which no queue of a deleted topic was found."""
        self._told: dict[int, tuple[int, int]] = {}
        """Group → (term, times that retention moved) at which its log told of all that is lost."""
        self._letting_go: dict[int, int] = {}
        """Group → up to where consumer groups are being told that the log is dropped."""
        self._led_since: dict[tuple[int, int], float] = {}
        self._looks: dict[tuple[int, int], _Look] = {}
        """Group and term → the newest look."""
        # Group and term → member → when it was asked to take over: in vain, as this node leads.
        self._asked: dict[tuple[int, int], dict[int, float]] = {}
        self._balancer = Balancer(node, self._propose_to_system)
        self._changes = MemberChanges(
            node,
            hand_over=self._hand_over,
            held_before=self._held_before,
            is_leaving=self._is_leaving,
        )

    def think(self) -> None:
        """Look at the leader tasks now: something changed."""
        self._wake.set()

    def led(self, group: Group, is_leader: bool) -> None:
        """A new leader has work at once."""
        self.think()

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Some leader tasks wait until a new leader is current: one takes over new filters."""
        if group.became_current(records):
            self.think()

    def has_moved(self, node: int) -> bool:
        """True if a node that leaves belongs to no data group, by the word of their leaders, as the
        leader of the system group has heard."""
        # A node that was added again has another entry: it may carry groups when it leaves again.
        entry = self._moved.get(node)
        return entry is not None and self._node.catalog.nodes.get(node) is entry

    async def run(self) -> None:
        """Do the leader tasks until cancelled."""
        while True:
            with trio.move_on_after(PAUSE_SECONDS):
                await self._wake.wait()
            self._wake = trio.Event()
            self._keep_up()
            await self._look_at_letters()
            led = [group for group in self._node.groups.values() if group.is_leader]
            self._clocks.look(is_asking=bool(led))
            self.write_rates.look(self._node.groups.values(), trio.current_time())
            self._retention.forget(group.number for group in led)
            now = trio.current_time()
            offices = [(group.number, group.raft.term) for group in led]
            self._led_since = {office: self._led_since.get(office, now) for office in offices}
            self._looks = {(g.number, g.raft.term): self._look(g, now) for g in led}
            self._asked = {office: self._asked.get(office, {}) for office in offices}
            if all(group.number != SYSTEM_GROUP for group in led):
                # Until this node leads the system group again, a node may come back and leave.
                self._moved.clear()
            self._changes.look(led)
            for group in led:
                # A group that stops refuses proposals.
                if not group.stopping:
                    self._do(group)

    async def _look_at_letters(self) -> None:
        for group in list(self._node.groups.values()):
            if group.is_leader and group.number != SYSTEM_GROUP:
                await self._retention.look(group, now=self._clocks.agreed_ms(group))

    def _look(self, group: Group, now: float) -> "_Look":
        last = group.raft.last_index
        look = self._looks.get((group.number, group.raft.term))
        if look is None:
            return _Look(now, last, last)
        return look if now - look.at < PAUSE_SECONDS else _Look(now, last, look.last_index)

    def _held_before(self, group: Group) -> int:
        """The last record that the leader held one to two looks ago."""
        look = self._looks.get((group.number, group.raft.term))
        return group.raft.last_index if look is None else look.last_index_before

    def _do(self, group: Group) -> None:
        if group.number == SYSTEM_GROUP:
            self._found()
            self._name()
            self._raise_level(group)
            self._note_places(group)
            self._balancer.look(group)
            self._forget_left()
            self._prune_deletions()
        else:
            if group.is_current:
                # By what earlier leaders committed: with consumer groups and dead letters of today.
                self._retain(group)
                self._lose(group)
            self._forget_deleted(group)
            self._resubscribe(group)
            self._close_groups(group)
            self._forget_offsets(group)
        if group.full:
            # A member that acknowledges what it is sent has space. The change may wait for long.
            self._hand_over(group, heirs(group, self._node.catalog.drained))
        elif not self._changes.is_changing(group):
            self._spread(group)

    def _propose(
        self, name: str, group: Group, payload: bytes, *, then: Callable[[], None] = lambda: None
    ) -> None:
        """Propose a task's commands, unless the task is under way. `then` is called once they are
        applied, also if one was refused.

        The task stays under way for `REFUSED_SECONDS` if a command is refused.
        """
        task = (name, group.number)
        if task in self._under_way:
            return
        self._under_way.add(task)

        def done(results: list[Result]) -> None:
            if any(isinstance(result, Refused) for result in results):
                again = partial(self._under_way.discard, task)
                self._node.timers.call_after(REFUSED_SECONDS, again)
            else:
                self._under_way.discard(task)
            then()

        ticket = Callback(done, lambda _: self._under_way.discard(task))
        group.propose(Kind.COMMANDS, payload, ticket, is_upkeep=True)

    def _propose_to_system(self, name: str, commands: list[CatalogCommand]) -> None:
        self._propose(name, self._node.groups[SYSTEM_GROUP], encode_commands(commands))

    def _found(self) -> None:
        own = self._node.settings.node
        if self._node.catalog.is_bootstrapped or not own.peers:
            return
        nodes = [CatalogNode(peer.id, peer.host, peer.port) for peer in own.peers]
        command = Bootstrap(nodes, own.groups, own.replicas)
        self._propose("found", self._node.groups[SYSTEM_GROUP], encode_commands([command]))

    def _name(self) -> None:
        """Note which data folder each node has: groups take in no node before that is known."""
        unnamed = [node.id for node in self._node.catalog.nodes.values() if not node.incarnation]
        seen = {number: self._incarnation_of(number) for number in unnamed}
        names = [NameNode(number, name) for number, name in seen.items() if name]
        if names:
            self._propose("name", self._node.groups[SYSTEM_GROUP], encode_commands(names))

    def _raise_level(self, group: Group) -> None:
        catalog = self._node.catalog
        level = next_level(self._node) if catalog.is_bootstrapped else catalog.level
        # Also back, if an earlier command got lost and a node no longer knows that level.
        group.record_version = record_version(level, partition_group=group.number)
        if level > catalog.level:
            self._propose("level", group, encode_commands([RaiseLevel(level)]))

    def _note_places(self, group: Group) -> None:
        catalog, own = self._node.catalog, self._node.settings.node
        if catalog.level < PLACES_LEVEL:
            return
        # The word of a link that broke is old: the node may have been restarted since.
        links = [link for link in self._node.links.members() if link.is_connected]
        told = {link.peer.id: link.place for link in links}
        told[self._node.id] = Place(own.zone, own.machine)
        moved = [
            PlaceNode(node, place.zone, place.machine)
            for node, place in told.items()
            if place is not None
            and node in catalog.nodes
            and place != catalog.places.get(node, Place())
            and not (why_no_place(place.zone) or why_no_place(place.machine))
        ]
        if moved:
            self._propose("places", group, encode_commands(moved))

    def _incarnation_of(self, number: int) -> str:
        if number == self._node.id:
            return self._node.incarnation
        link = self._node.links.get(number)
        _, name = self._node.peer_identities.folder_of(number)
        return name or (link.incarnation if link else "")

    def _is_leaving(self, number: int) -> bool:
        node = self._node.catalog.nodes.get(number)
        return node is not None and node.is_leaving and not self.has_moved(number)

    def _forget_left(self) -> None:
        """Remove leaving nodes from the catalog, once every group has moved away from them."""
        catalog = self._node.catalog
        leaving = [node for node in catalog.nodes.values() if node.is_leaving]
        if leaving and ("left", SYSTEM_GROUP) not in self._under_way:
            self._under_way.add(("left", SYSTEM_GROUP))
            self._node.start_soon(self._ask_and_forget, leaving)

    async def _ask_and_forget(self, leaving: list[CatalogNode]) -> None:
        try:
            views = await ask_all(self._node)
        finally:
            self._under_way.discard(("left", SYSTEM_GROUP))
        self._moved = {n.id: n for n in leaving if is_unused(n.id, views, is_data=True)}
        # The answers say nothing of a node that was added again since they were asked for.
        still = [n.id for n in leaving if self._node.catalog.nodes.get(n.id) is n]
        gone = [RemoveNode(number) for number in still if is_unused(number, views)]
        if gone:
            payload = encode_commands(gone)
            self._propose("left", self._node.groups[SYSTEM_GROUP], payload)

    def _prune_deletions(self) -> None:
        """Forget deletions of consumer groups that every data group has carried out."""
        task = ("prune", SYSTEM_GROUP)
        if len(self._node.catalog.deletions) and task not in self._under_way:
            self._under_way.add(task)
            self._node.start_soon(self._ask_and_prune)

    async def _ask_and_prune(self) -> None:
        try:
            command = await find_done(self._node)
        finally:
            self._under_way.discard(("prune", SYSTEM_GROUP))
        if command is not None:
            payload = encode_commands([command])
            self._propose("prune", self._node.groups[SYSTEM_GROUP], payload)

    def _spread(self, group: Group) -> None:
        """Hand over to the group's first member that is not drained, if it could lead. A node that
        is drained itself hands over to any such member, in the look at which it learns of it."""
        catalog = self._node.catalog
        wanted, drained = catalog.groups.get(group.number), catalog.idle
        # Two nodes with different catalogs would throw the leadership to and fro.
        if not self._node.groups[SYSTEM_GROUP].leader or wanted is None:
            return
        candidates = [number for number in wanted.members if number not in drained]
        if self._node.id not in drained:
            led_since = self._led_since[group.number, group.raft.term]
            is_new = trio.current_time() - led_since < SPREAD_SECONDS
            if group.number == SYSTEM_GROUP or is_new or self._node.id in candidates[:1]:
                return
            candidates = candidates[:1]
        members = (self._member(group, number) for number in candidates)
        self._hand_over(group, [each for each in members if self._could_lead(group, each)])

    def _member(self, group: Group, number: int) -> int:
        """The id of a wanted node's member of a group."""
        member = member_of(self._node.catalog, group.number, number)
        # A voter whose id was used up by mistake stands for its node.
        return member if member in group.members else group.voter_of(number)

    def _could_lead(self, group: Group, member: int) -> bool:
        """Whether a member votes, answers, and lacks few records."""
        status = group.raft.status()
        progress = status.progress.get(member)
        return (
            progress is not None
            and not progress.is_learner
            and progress.is_recently_active
            and progress.state is ProgressState.REPLICATE
            and progress.match + HAND_OVER_LAG_MAX >= status.last_index
            # A member without space stands still, however little it lacks.
            and progress.match >= self._held_before(group)
        )

    def _hand_over(self, group: Group, heirs: Iterable[int]) -> bool:
        """Transfer the leadership to the first candidate that has not failed recently. False: there
        is none."""
        if group.raft.status().transferee:
            return True
        asked = self._asked.setdefault((group.number, group.raft.term), {})
        now, pace = trio.current_time(), self._node.settings.raft
        pause = max(ASK_AGAIN_SECONDS, 2 * pace.election_ticks * pace.tick_ms / 1000)
        heir = first_not_in(heirs, asked, since=now - pause)
        if heir:
            asked[heir] = now
            group.transfer(heir)
        return bool(heir)

    def _retain(self, group: Group) -> None:
        keep_from = self._retention.keep_from(group, now=self._clocks.agreed_ms(group))
        keep_from = self._trimmable(group, keep_from)
        # A segment is dropped as a whole, on each replica at other bounds: the lost part ends
        # with one of ours, and consumer groups hear of it before any replica drops a segment.
        # Otherwise a leader would hand out messages that it cannot read, and the next leader, which
        # can, would do so late.
        bases = [segment.base for segment in group.store.segments()]
        keep_from = max((base for base in bases if base <= keep_from), default=0)
        begun = self._letting_go.get(group.number, 0)
        if group.machine.log_start < begun < keep_from and begun in bases:
            # Segments may be closed faster than groups hear of them all: with another bound at
            # each look, nothing would be dropped as long as that goes on.
            keep_from = begun
        if keep_from > group.machine.log_start:
            self._letting_go[group.number] = keep_from
            if self._tell_lost(group, since=keep_from):
                self._propose("retain", group, encode_commands([Trim(keep_from)]))

    def _forget_deleted(self, group: Group) -> None:
        catalog = self._node.catalog
        assert isinstance(group.machine, PartitionMachine)
        # A queue is found by its topic's deletion or by a batch that came after it. Looking at
        # 20,000 queues holds the loop for tens of milliseconds.
        waiting = group.machine.delays.queues
        state = (catalog.last_drop, len(group.machine.ends), len(waiting))
        if self._clean.get(group.number) == state:
            return
        # A queue of a topic that this node's catalog does not have yet is not deleted.
        deleted = [
            queue
            for queue in dict.fromkeys([*group.machine.ends, *waiting])
            if queue >> QUEUE_BITS <= catalog.topic_last and catalog.topic_of(queue) is None
        ]
        if deleted:
            commands: list[Command] = [DropQueues(deleted)]
            self._propose("forget", group, encode_commands(commands))
        else:
            self._clean[group.number] = state

    def _resubscribe(self, group: Group) -> None:
        """Take over into a data group's log what consumer groups want by now."""
        assert isinstance(group.machine, PartitionMachine)
        # An earlier leader may have committed what is missing here. And filters that keep changing
        # would keep a batch from ever being matched.
        if not group.is_current or self._is_behind_filters():
            return
        command = resubscription(self._node.catalog, group.number, group.machine.subscriptions)
        if command is not None:
            # Another part may follow, or another change have come meanwhile.
            payload = encode_commands([command])
            self._propose("resubscribe", group, payload, then=self.think)

    def _close_groups(self, group: Group) -> None:
        """Forget consumer groups that were deleted, with all that was in hand."""
        assert isinstance(group.machine, PartitionMachine)
        known = self._node.catalog.consumer_groups
        # An attachment that this node's catalog does not have yet is not deleted.
        gone = [
            number
            for number in group.machine.pop_groups.attached
            if number <= known.number_last and number not in known.attachments
        ]
        if gone:
            command = CloseGroups(gone[:CLOSED_MAX])
            self._propose("close", group, encode_commands([command]), then=self.think)

    def _forget_offsets(self, group: Group) -> None:
        """Forget what consumer groups that were deleted had committed."""
        assert isinstance(group.machine, PartitionMachine)
        # An earlier leader may have committed the next parts.
        if not group.is_current:
            return
        command = next_part(self._node.catalog, group.machine.offsets)
        if command is not None:
            self._propose("forget_offsets", group, encode_commands([command]), then=self.think)

    def _lose(self, group: Group) -> None:
        """Tell the consumer groups that pop what this log lacks of their queues: a snapshot may
        have come in place of it, though not while this node leads."""
        state = (group.raft.term, group.index.drops)
        if self._told.get(group.number) != state and self._tell_lost(group):
            self._told[group.number] = state

    def _tell_lost(self, group: Group, *, since: int = 0) -> bool:
        """Propose `Lose` for each queue with messages before the record at `since`. True if the log
        has that already."""
        assert isinstance(group.machine, PartitionMachine)
        if ("lose", group.number) in self._under_way:
            # A look at 20,000 queues holds the loop for tens of milliseconds.
            return False
        pop_groups = group.machine.pop_groups
        # Also of queues that no group follows: one that is opened before the record is dropped
        # begins by these offsets.
        kept = [
            (queue, earliest)
            for queue in sorted(group.machine.ends)
            if (earliest := _earliest(group, queue, since)) > pop_groups.earliest.get(queue, 0)
        ]
        if kept:
            attached = pop_groups.attached.values()
            followed = Counter(queue for each in attached for queue in each.group.backlogs)
            self._tell(group, list(_parts(kept, followed)))
        return not kept

    def _tell(self, group: Group, parts: list[Lose]) -> None:
        """Propose the commands one at a time, so that no single step applies all of them."""

        def told() -> None:
            if rest := parts[1:]:
                self._tell(group, rest)
            else:
                self.think()

        self._propose("lose", group, encode_commands([parts[0]]), then=told)


def _parts(kept: list[tuple[int, int]], followed: Mapping[int, int]) -> Iterator[Lose]:
    """Commands that tell of lost messages; each counts at most `LOST_MAX` queues, or names one."""
    at = 0
    while at < len(kept):
        start, room = at, LOST_MAX
        while at < len(kept) and (at == start or room >= max(1, followed[kept[at][0]])):
            room -= max(1, followed[kept[at][0]])
            at += 1
        part = kept[start:at]
        yield Lose([queue for queue, _ in part], [earliest for _, earliest in part])


def _earliest(group: Group, queue: int, since: int) -> int:
    """The first offset of a queue that is kept if retention drops what stands before a record; the
    queue's end if nothing is."""
    assert isinstance(group.machine, PartitionMachine)
    earliest = group.index.earliest(queue, since=since)
    return group.machine.ends.get(queue, 0) if earliest is None else earliest
