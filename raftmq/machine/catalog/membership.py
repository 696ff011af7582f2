"""The reader of each queue: the catalog deals out the queues of pull groups, one owner a queue.

Consumers of a consumer group *join* it for a topic. The queues are dealt out evenly, and each has
at most one *owner*. When members come and go, a queue stays where it is if the balance allows, and
no member stops: the owner first gives up a queue that shall move, or the owner's lease runs out.

    Join A       A owns 0 1 2 3
    Join B       A owns 0 1 2 3, and is to give up 2 3
    Release 2    A owns 0 1 3, B owns 2
    Release 3    A owns 0 1, B owns 2 3

Each change of owner gives the queue a new *owner epoch*: the index of the catalog's record that
changed it, so epochs grow for ever, also over a group that was forgotten meanwhile. The new owner
claims its epoch in the queue's own log before it reads how far the old one came (`offsets`); from
then on a commit of an older epoch is refused there. So two processes that both think they own a
queue cannot overwrite each other, whatever their clocks say.

A member has a lease in the log. The leader hears the heartbeats and puts renewals together in one
`RenewMembers` a second; in the same command it names the members whose lease ran out unheard. No
lease lapses without being named: a new leader has heard no member yet.

In a broadcast group each instance is dealt all queues: it is as if `group@instance` were a group of
its own, with one member.

A member with an *instance* name that comes back as another process takes the place of the earlier
one at once: its queues, under new epochs.

An operator who moves the offsets of a group that runs draws an epoch and commits under it, which
fences all owners; then the queues are *regranted*, and their owners take them up from there.

Invariants:
- A queue has one owner if the group has members, and its epoch belongs to no other owner.
- A queue changes its owner only if the owner released it, left, lapsed, or was replaced by the next
  process of its instance.
- The numbers of queues that members are to have differ by one at most.
- The state of members and queues depends on the records alone.

Left out: members that want only some of the queues; weights; racks. Several topics in one
assignment: each topic is dealt out by itself.

Sources: Kafka's KIP-848 (server-side, incremental, epochs), KIP-345 (static members); Chubby's
sequencers (§2.4) for the epoch that the resource itself checks.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

import msgspec

from raftmq.errors import Reason
from raftmq.machine.names import NAME_CHARACTERS_MAX
from raftmq.pop.policy import Mode
from raftmq.results import Changed, Refused, Result

from .beginnings import Beginnings

MEMBERS_MAX = 10_000
"""Members of all groups of a cluster: each node keeps them in memory."""
SESSION_MS_MIN = 1_000
"""The shortest lease: heartbeats are put together once a second."""
SESSION_MS_MAX = 3600 * 1000
"""The longest lease."""


class JoinGroup(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """Become a member of a consumer group for a topic; nothing changes if it is one already."""

    topic: str
    """The topic's name."""
    consumer_group: str
    """The consumer group's name."""
    member: int
    """The member: a random number of the process's own, 1 to 2^63 - 1."""
    session_ms: int
    """Its lease: how long it may be silent, 1,000 to 3,600,000."""
    instance: str = ""
    """A name that outlives the process; empty: none."""
    is_again: bool = False
    """True after a session that was lost: then it does not drive out another process that has
    taken the place of its instance meanwhile."""
    host: str = ""
    """Where it runs, for people."""
    mode: Mode = Mode.PULL
    """`PULL`: the queues are dealt out among the group's members. `BROADCAST`: each instance gets
    all of them, whatever other instances do."""
    must_exist: bool = False
    """True: refused if the group was deleted; so a member that was expelled does not create the
    group again."""
    replaces: int | None = None
    """The only member whose place it may take; 0: none. So a join that arrives a second time, after
    its process has left, does not drive out the next process of the instance. None, which older
    software wrote: any member that has the place."""
    notes_beginning: bool = False
    """True: if a group that pulls is new to the topic, the catalog notes how many queues the topic
    has (`beginnings`). False in records of older software, which noted nothing."""

    @property
    def offsets_name(self) -> str:
        """Under which name offsets are committed: that of the group, or of the group's instance."""
        if self.mode is Mode.BROADCAST:
            return f"{self.consumer_group}@{self.instance}"
        return self.consumer_group


class LeaveGroup(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """A member goes; its queues are free at once."""

    member: int
    """The member that leaves."""


class ReleaseQueues(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """A member has given up queues: it reads them no more and will commit nothing of them."""

    member: int
    """The member that owned the queues."""
    queues: list[int]
    """Their numbers within the topic, from 0."""
    epochs: list[int]
    """For each the epoch under which it was owned; another one means nothing here."""


class RenewMembers(msgspec.Struct, frozen=True, array_like=True, tag="renew"):
    """Member leases that the leader renews, and those that it found expired."""

    heard: list[int]
    """Members whose lease runs for a whole session from now on."""
    lapsed: list[int]
    """Members that go, if their lease did run out by the log's time."""


class RegrantQueues(msgspec.Struct, frozen=True, array_like=True, tag="regrant"):
    """Every owner takes up its queues again, from the offsets committed by then."""

    topic: str
    """The topic's name."""
    consumer_group: str
    """The consumer group's name, `group@instance` for an instance of a broadcast group."""
    is_epoch_only: bool = False
    """True: nothing changes; only an epoch is drawn, higher than those of all owners."""


MemberCommand = JoinGroup | LeaveGroup | ReleaseQueues | RenewMembers | RegrantQueues


class Member(msgspec.Struct, array_like=True):
    """A process that takes part in a consumer group."""

    number: int
    """Its own random number."""
    session_ms: int
    """How long it may be silent."""
    deadline: int
    """When its lease runs out, in milliseconds of the log's time."""
    version: int
    """Index of the last record that changed what it has."""
    instance: str
    """The name that outlives the process; empty: none."""
    host: str
    """Where it runs, for people."""


class Holding(NamedTuple):
    """A member's queues."""

    version: int
    """Index of the record that last changed any of it."""
    queues: list[int]
    """Its queues, by their numbers within the topic, in order."""
    epochs: list[int]
    """Their owner epochs."""
    giving_up: list[int]
    """Those that it is to give up."""


class Assignment:
    """The members of a consumer group for one topic, and the owner of each queue."""

    def __init__(self, consumer_group: str, topic: int, queues: int) -> None:
        self.consumer_group = consumer_group
        """The consumer group's name; with broadcast `group@instance`."""
        self.topic = topic
        """The topic's number."""
        self.members: dict[int, Member] = {}
        """In the order in which they joined."""
        self.owners = [0] * queues
        """For each queue its owner; 0: none, as there are no members."""
        self.epochs = [0] * queues
        """For each queue the epoch of its owner."""
        self.targets = [0] * queues
        """For each queue the member that shall have it."""
        # Member → its queues, in order; empty: not known.
        self._queues_of: dict[int, list[int]] = {}

    def holding(self, number: int) -> Holding:
        """The member's queues."""
        if not self._queues_of:
            # All members ask after a change: one pass for each would hold up the event loop.
            self._queues_of = {member: [] for member in [0, *self.members]}
            for queue, owner in enumerate(self.owners):
                self._queues_of[owner].append(queue)
        queues = self._queues_of[number]
        epochs = [self.epochs[queue] for queue in queues]
        giving_up = [queue for queue in queues if self.targets[queue] != number]
        return Holding(self.members[number].version, queues.copy(), epochs, giving_up)

    def grow(self, queues: int) -> None:
        """The topic has more queues."""
        assert queues >= len(self.owners), "a topic never has fewer queues than before"
        self._queues_of = {}
        more = [0] * (queues - len(self.owners))
        self.owners += more
        self.epochs += more
        self.targets += more
        assert len(self.owners) == len(self.epochs) == len(self.targets), "columns out of step"

    def replace(self, old: int, new: int, index: int) -> None:
        """A member takes the place of another one: the same queues, under new epochs."""
        assert new in self.members, f"queues of {old} go to {new}, which is no member"
        self._queues_of = {}
        del self.members[old]
        for queue, owner in enumerate(self.owners):
            if owner == old:
                self.owners[queue], self.epochs[queue] = new, index
            if self.targets[queue] == old:
                self.targets[queue] = new

    def remove(self, numbers: Iterable[int]) -> None:
        """These members are gone, and their queues are free."""
        self._queues_of = {}
        gone = set(numbers)
        for number in gone:
            del self.members[number]
        for queue, owner in enumerate(self.owners):
            if owner in gone:
                self.owners[queue] = 0

    def deal(self, index: int) -> None:
        """Decide the owner of each queue, and give away free queues."""
        if not self.members:
            return
        self._queues_of = {}
        before = self.targets
        self.targets = deal(self.owners, list(self.members))
        for queue, target in enumerate(self.targets):
            owner = self.owners[queue]
            if owner == 0:
                assert index >= self.epochs[queue], "an owner epoch that goes back"
                self.owners[queue], self.epochs[queue] = target, index
                self.members[target].version = index
            elif target != before[queue]:
                # To be given up, or no longer so.
                self.members[owner].version = index
        assert all(self.owners), "a queue without an owner, though there are members"

    def release(self, number: int, queues: list[int], epochs: list[int], index: int) -> int:
        """A member gives up queues that it owns under these epochs; returns their number. Each goes
        to its target at once: not back to the member while another one is short."""
        self._queues_of = {}
        released = 0
        for queue, epoch in zip(queues, epochs, strict=True):
            is_one = 0 <= queue < len(self.owners)
            if is_one and (number, epoch) == (self.owners[queue], self.epochs[queue]):
                self.owners[queue] = 0
                released += 1
        if released:
            self.members[number].version = index
            self._give(index)
        return released

    def _give(self, index: int) -> None:
        """Give free queues to the members that shall have them."""
        for queue, owner in enumerate(self.owners):
            if owner == 0:
                target = self.targets[queue]
                self.owners[queue], self.epochs[queue] = target, index
                self.members[target].version = index


def deal(owners: list[int], members: list[int]) -> list[int]:
    """For each queue the member that shall have it: evenly, and as few as possible move.

    Args:
        owners: for each queue its owner; 0: none.
        members: all there are; of equals the earlier one gets more.

    >>> deal([0, 0, 0, 0, 0], [7, 8])
    [7, 7, 7, 8, 8]
    >>> deal([7, 7, 7, 8, 8], [7, 8, 9])
    [7, 7, 9, 8, 8]
    >>> deal([0, 0, 0, 8, 8], [8, 9])
    [8, 9, 9, 8, 8]
    """
    held: dict[int, list[int]] = {member: [] for member in members}
    for queue, owner in enumerate(owners):
        if owner:
            held[owner].append(queue)
    share, more = divmod(len(owners), len(members))
    # Members with the most queues keep the remainder; the stable sort gives ties to the earlier
    # member.
    order = sorted(members, key=lambda member: -len(held[member]))
    shares = {member: share + (at < more) for at, member in enumerate(order)}
    assert sum(shares.values()) == len(owners), "queues that are no member's share"
    targets = [0] * len(owners)
    for member, queues in held.items():
        for queue in queues[: shares[member]]:
            targets[queue] = member
    open_places = (m for m in members for _ in range(shares[m] - len(held[m])))
    for queue, target in enumerate(targets):
        if not target:
            targets[queue] = next(open_places)
    return targets


class Memberships:
    """All members of all consumer groups, in the catalog."""

    def __init__(self) -> None:
        self.assignments: dict[tuple[str, int], Assignment] = {}
        """By consumer group and topic number; those without members are forgotten."""
        self.of_member: dict[int, Assignment] = {}
        """Member → where it takes part."""
        # Group's name → members; with broadcast the name of the group, and that of the instance.
        self._members_of: dict[str, dict[int, None]] = {}
        self.beginnings = Beginnings()
        """How many queues topics had when groups began there."""

    def member(self, number: int) -> Member | None:
        """A member; None: there is no such member now."""
        assignment = self.of_member.get(number)
        return assignment.members[number] if assignment is not None else None

    def holding(self, number: int) -> Holding | None:
        """A member's queues; None: there is no such member now."""
        assignment = self.of_member.get(number)
        return assignment.holding(number) if assignment is not None else None

    def old_queue_count(self, number: int) -> int | None:
        """How many queues, from the first, are older than a member's group; None: not known."""
        assignment = self.of_member.get(number)
        if assignment is None:
            return None
        return self.beginnings.find(assignment.consumer_group, assignment.topic)

    def count(self, consumer_group: str) -> int:
        """Members of a consumer group; of one that broadcasts: its instances."""
        return len(self._members_of.get(consumer_group, ()))

    def join(self, topic: int, queues: int, command: JoinGroup, *, index: int, now: int) -> Result:
        """Carry out a command for a topic that exists; the value is the member's `Holding`."""
        refusal = _check(command)
        if refusal is not None:
            return refusal
        key = (command.offsets_name, topic)
        number = command.member
        known = self.of_member.get(number)
        if known is not None:
            if (known.consumer_group, known.topic) != key:
                message = f"member {number} takes part in {known.consumer_group!r} already"
                return Refused(Reason.BAD_ARGUMENT, message)
            return Changed(list(known.holding(number)))
        assignment = self.assignments.get(key) or Assignment(*key, queues)
        replaced = _of_instance(assignment, command.instance)
        if replaced is not None and (command.is_again or command.replaces not in (None, replaced)):
            message = f"another process has taken the place of instance {command.instance!r}"
            return Refused(Reason.FENCED, message)
        if replaced is None and len(self.of_member) >= MEMBERS_MAX:
            return Refused(Reason.TOO_LARGE, f"a cluster has {MEMBERS_MAX} members at the most")
        self.assignments[key] = assignment
        deadline, host = now + command.session_ms, command.host[:NAME_CHARACTERS_MAX]
        member = Member(number, command.session_ms, deadline, index, command.instance, host)
        self._keep(assignment, member)
        if replaced is not None:
            # First, as `replace` removes the member that this reads.
            self._forget(replaced)
            assignment.replace(replaced, number, index)
        assert replaced or len(self.of_member) <= MEMBERS_MAX, "more members than were let in"
        assignment.deal(index)
        # An instance of a broadcast group knows by its own offsets where it began.
        if command.notes_beginning and command.mode is Mode.PULL:
            self.beginnings.note(*key, queues)
        return Changed(list(assignment.holding(number)))

    def regrant(self, topic: int, command: RegrantQueues, *, index: int) -> Result:
        """Carry out a command for a topic that exists; the value is the epoch."""
        assignment = self.assignments.get((command.consumer_group, topic))
        if assignment is not None and not command.is_epoch_only:
            assignment.epochs = [index] * len(assignment.epochs)
            for member in assignment.members.values():
                member.version = index
        return Changed(index)

    def apply(
        self, command: LeaveGroup | ReleaseQueues | RenewMembers, *, index: int, now: int
    ) -> Result:
        """Carry out a command of the record at `index`."""
        match command:
            case LeaveGroup(member=number):
                self._remove([number], index)
                return Changed()
            case ReleaseQueues():
                return self._release(command, index)
            case RenewMembers():
                return self._renew(command, index, now)
            case _:
                assert_never(command)

    def _release(self, command: ReleaseQueues, index: int) -> Result:
        """The value says how many queues it owned until now; a repeat finds none."""
        if len(command.queues) != len(command.epochs):
            return Refused(Reason.BAD_ARGUMENT, "as many epochs as queues are needed")
        assignment = self.of_member.get(command.member)
        if assignment is None:
            return Changed(0)
        released = assignment.release(command.member, command.queues, command.epochs, index)
        return Changed(released)

    def _renew(self, command: RenewMembers, index: int, now: int) -> Result:
        for number in command.heard:
            member = self.member(number)
            if member is not None:
                member.deadline = now + member.session_ms
        named = dict.fromkeys(command.lapsed)
        lapsed = [n for n in named if (m := self.member(n)) is not None and m.deadline <= now]
        self._remove(lapsed, index)
        return Changed(len(lapsed))

    def _remove(self, numbers: list[int], index: int) -> None:
        by_assignment: dict[tuple[str, int], list[int]] = {}
        for number in numbers:
            assignment = self._forget(number)
            if assignment is not None:
                key = (assignment.consumer_group, assignment.topic)
                by_assignment.setdefault(key, []).append(number)
        for key, gone in by_assignment.items():
            assignment = self.assignments[key]
            assignment.remove(gone)
            if assignment.members:
                assignment.deal(index)
            else:
                del self.assignments[key]

    def expel(self, consumer_group: str, index: int) -> None:
        """A consumer group is deleted, and its members with it."""
        self.beginnings.drop_group(consumer_group)
        self._remove(list(self._members_of.get(consumer_group, ())), index)

    def topic_changed(self, topic: int, queues: int, index: int) -> None:
        """A topic has more queues."""
        for assignment in self.assignments.values():
            if assignment.topic == topic:
                assignment.grow(queues)
                assignment.deal(index)

    def drop_topic(self, topic: int) -> None:
        """A topic is deleted."""
        self.beginnings.drop_topic(topic)
        for key, assignment in list(self.assignments.items()):
            if assignment.topic == topic:
                for number in assignment.members:
                    self._forget(number)
                del self.assignments[key]

    def _keep(self, assignment: Assignment, member: Member) -> None:
        """Add a member to its assignment and to the look-up tables."""
        assignment.members[member.number] = member
        self.of_member[member.number] = assignment
        for name in _names_of(assignment, member):
            self._members_of.setdefault(name, {})[member.number] = None

    def _forget(self, number: int) -> Assignment | None:
        """Remove a member from the look-up tables; its assignment, which still lists it. None:
        there is no such member."""
        assignment = self.of_member.pop(number, None)
        if assignment is None:
            return None
        for name in _names_of(assignment, assignment.members[number]):
            del self._members_of[name][number]
            if not self._members_of[name]:
                del self._members_of[name]
        return assignment

    def dump(self) -> list[Any]:
        """The whole state as plain values, alike on every replica."""
        return [
            [
                each.consumer_group,
                each.topic,
                msgspec.to_builtins(list(each.members.values())),
                list(each.owners),
                list(each.epochs),
                list(each.targets),
            ]
            for each in self.assignments.values()
        ]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        for consumer_group, topic, members, owners, epochs, targets in state:
            assignment = Assignment(consumer_group, topic, 0)
            assignment.owners, assignment.epochs = owners, epochs
            assignment.targets = targets
            for member in msgspec.convert(members, list[Member]):
                self._keep(assignment, member)
            self.assignments[consumer_group, topic] = assignment


def _names_of(assignment: Assignment, member: Member) -> set[str]:
    """The names under which a member counts: its group's, and of an instance that broadcasts,
    `group@instance`, also the name without the instance."""
    name = assignment.consumer_group
    return {name, name.removesuffix(f"@{member.instance}")}


def _of_instance(assignment: Assignment, instance: str) -> int | None:
    """The member that has an instance's place."""
    if not instance:
        return None
    return next((m.number for m in assignment.members.values() if m.instance == instance), None)


def _check(command: JoinGroup) -> Refused | None:
    if command.mode not in (Mode.PULL, Mode.BROADCAST):
        message = f"members join groups that pull or broadcast, not groups that {command.mode}"
        return Refused(Reason.BAD_ARGUMENT, message)
    if command.mode is Mode.BROADCAST and not command.instance:
        return Refused(Reason.BAD_NAME, "a member of a broadcast group names its instance")
    if not command.consumer_group or len(command.offsets_name) > NAME_CHARACTERS_MAX:
        message = (
            f"a consumer group's name has 1 to {NAME_CHARACTERS_MAX} characters, "
            "with broadcast that of the instance included"
        )
        return Refused(Reason.BAD_NAME, message)
    if len(command.instance) > NAME_CHARACTERS_MAX:
        message = f"an instance's name has {NAME_CHARACTERS_MAX} characters at the most"
        return Refused(Reason.BAD_NAME, message)
    if not 1 <= command.member < 1 << 63:
        return Refused(Reason.BAD_ARGUMENT, "a member's number is 1 to 2^63 - 1")
    if not SESSION_MS_MIN <= command.session_ms <= SESSION_MS_MAX:
        message = f"a session is {SESSION_MS_MIN} to {SESSION_MS_MAX} ms"
        return Refused(Reason.BAD_ARGUMENT, message)
    return None
