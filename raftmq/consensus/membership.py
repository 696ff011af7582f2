"""The members of a group, and the rules by which they change.

A `Membership` has two sets of voters. Usually `outgoing` is empty and one majority decides. While
more than one voter changes, both sets decide together (joint consensus), and the way is

    voters (1 2 3)  --enter joint-->  (1 2 4)&&(1 2 3)  --leave joint-->  (1 2 4)

A change that alters at most one voter takes the short way: the majorities before and after must
overlap, so the joint step is not needed (thesis §4.1). A voter that becomes a learner in a joint
change still votes in the outgoing half, so it waits in `learners_next` until that half is gone.

Invariants, checked before and after each change:
- Each member has a progress; a learner is no voter of either half.
- A node that waits in `learners_next` is an outgoing voter.
- Without an outgoing half there is no `learners_next` and no `auto_leave`.

A refused change raises `InvalidChange` and leaves everything as it was, on every replica alike.

Sources: thesis §4.1 to §4.3; Raft §6; etcd-io/raft's confchange package, whose data files are run
against this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raftmq.consensus.changes import Change, ChangeKind
from raftmq.consensus.progress import Inflights, Progress
from raftmq.consensus.types import ConfState

Ids = frozenset[int]
Members = dict[int, Progress]
EMPTY: Ids = frozenset()


class InvalidChange(Exception):
    """A membership change that the present membership does not allow; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The voters and learners of a group."""

    incoming: Ids = EMPTY
    """The voters; in a joint membership, those of the new half."""
    outgoing: Ids = EMPTY
    """The voters of the old half, empty when not joint."""
    learners: Ids = EMPTY
    """Members that receive the log and do not vote (thesis §4.2.1)."""
    learners_next: Ids = EMPTY
    """Outgoing voters that are to be learners once the joint membership is left."""
    auto_leave: bool = False
    """The leader proposes to leave the joint membership as soon as it is applied."""

    @property
    def voters(self) -> Ids:
        """The voters of both halves."""
        return self.incoming | self.outgoing

    @property
    def is_joint(self) -> bool:
        """Whether two halves decide together."""
        return bool(self.outgoing)

    @property
    def is_singleton(self) -> bool:
        """Whether one voter decides alone."""
        return len(self.incoming) == 1 and not self.outgoing

    def conf_state(self) -> ConfState:
        """The same as sorted ids, for snapshots and storage."""
        return ConfState(
            voters=tuple(sorted(self.incoming)),
            learners=tuple(sorted(self.learners)),
            voters_outgoing=tuple(sorted(self.outgoing)),
            learners_next=tuple(sorted(self.learners_next)),
            auto_leave=self.auto_leave,
        )


@dataclass(slots=True)
class Changer:
    """Works out the next membership from the present one, which it never touches.

    New members start at `last_index`, a guess from which they are probed, with windows of the
    given limits.
    """

    membership: Membership
    members: Mapping[int, Progress]
    last_index: int
    inflight_messages_max: int
    inflight_bytes_max: int

    def enter_joint(
        self, changes: Iterable[Change], *, auto_leave: bool
    ) -> tuple[Membership, Members]:
        """Keep the present voters as the outgoing half and apply `changes` to the incoming one.

        Thesis §4.3: "the cluster first switches to a transitional configuration".
        """
        draft = self._draft()
        if self.membership.is_joint:
            raise InvalidChange("config is already joint")
        if not draft.incoming:
            raise InvalidChange("can't make a zero-voter config joint")
        draft.outgoing = set(draft.incoming)
        draft.apply(changes)
        draft.auto_leave = auto_leave
        # Thesis §4.3: agreement needs a majority of the voters of before, whatever `changes` say.
        assert draft.outgoing == self.membership.incoming, "a change altered the outgoing half"
        return draft.finish()

    def leave_joint(self) -> tuple[Membership, Members]:
        """Drop the outgoing half; nodes that waited to become learners become learners."""
        draft = self._draft()
        if not self.membership.is_joint:
            raise InvalidChange("can't leave a non-joint config")
        for node in draft.learners_next:
            draft.learners.add(node)
            draft.members[node].is_learner = True
        draft.learners_next = set()
        for node in draft.outgoing - draft.incoming - draft.learners:
            del draft.members[node]
        draft.outgoing = set()
        draft.auto_leave = False
        assert draft.incoming == self.membership.incoming, "leaving a joint membership altered it"
        return draft.finish()

    def simple(self, changes: Iterable[Change]) -> tuple[Membership, Members]:
        """Apply `changes` at once; they may alter at most one voter.

        Thesis §4.1: with one server added or removed, "any majority of the old cluster overlaps
        with any majority of the new cluster".
        """
        draft = self._draft()
        if self.membership.is_joint:
            raise InvalidChange("can't apply simple config change in joint config")
        draft.apply(changes)
        if len(draft.incoming ^ self.membership.incoming) > 1:
            raise InvalidChange("more than one voter changed without entering joint config")
        assert not draft.outgoing, "a simple change became a joint one"
        return draft.finish()

    def restore(self, state: ConfState) -> tuple[Membership, Members]:
        """The membership that `state` describes, built from nothing by ordinary changes."""
        adds = [Change(ChangeKind.ADD_VOTER, node) for node in state.voters]
        adds += [Change(ChangeKind.ADD_LEARNER, node) for node in state.learners]
        if not state.voters_outgoing:
            for change in adds:
                self.membership, self.members = self.simple([change])
            return self.membership, dict(self.members)
        # First the outgoing half alone, then the joint change that leads to `state`.
        for node in state.voters_outgoing:
            change = Change(ChangeKind.ADD_VOTER, node)
            self.membership, self.members = self.simple([change])
        removes = [Change(ChangeKind.REMOVE, node) for node in state.voters_outgoing]
        waiting = [Change(ChangeKind.ADD_LEARNER, node) for node in state.learners_next]
        return self.enter_joint(removes + adds + waiting, auto_leave=state.auto_leave)

    def _draft(self) -> "_Draft":
        now = self.membership
        draft = _Draft(
            incoming=set(now.incoming),
            outgoing=set(now.outgoing),
            learners=set(now.learners),
            learners_next=set(now.learners_next),
            auto_leave=now.auto_leave,
            members={node: progress.copy() for node, progress in self.members.items()},
            last_index=self.last_index,
            inflight_messages_max=self.inflight_messages_max,
            inflight_bytes_max=self.inflight_bytes_max,
        )
        draft.check()
        return draft


@dataclass(slots=True)
class _Draft:
    """A membership in the making."""

    incoming: set[int]
    outgoing: set[int]
    learners: set[int]
    learners_next: set[int]
    auto_leave: bool
    members: Members
    last_index: int
    inflight_messages_max: int
    inflight_bytes_max: int

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.node == 0:
                continue  # a change that its proposer has taken back
            match change.kind:
                case ChangeKind.ADD_VOTER:
                    self._make_voter(change.node)
                case ChangeKind.ADD_LEARNER:
                    self._make_learner(change.node)
                case ChangeKind.REMOVE:
                    self._remove(change.node)
                case ChangeKind.UPDATE:
                    pass  # its context is for the shell
        if not self.incoming:
            raise InvalidChange("removed all voters")

    def finish(self) -> tuple[Membership, Members]:
        self.check()
        assert self.incoming, "a group without voters decides nothing and cannot be changed"
        membership = Membership(
            frozenset(self.incoming),
            frozenset(self.outgoing),
            frozenset(self.learners),
            frozenset(self.learners_next),
            self.auto_leave,
        )
        return membership, self.members

    def check(self) -> None:
        """The invariants of the heading; a breach means that storage handed in nonsense."""
        for node in self.incoming | self.outgoing | self.learners | self.learners_next:
            _require(node in self.members, f"no progress for {node}")
        for node in self.learners_next:
            _require(node in self.outgoing, f"{node} is in learners_next, but not outgoing")
            _require(not self.members[node].is_learner, f"{node} waits to be a learner and is one")
        for node in self.learners:
            _require(node not in self.outgoing, f"{node} is a learner and an outgoing voter")
            _require(node not in self.incoming, f"{node} is a learner and an incoming voter")
            _require(self.members[node].is_learner, f"{node} is a learner but not marked as one")
        if not self.outgoing:
            _require(not self.learners_next, "learners_next must be empty when not joint")
            _require(not self.auto_leave, "auto_leave must be false when not joint")

    def _make_voter(self, node: int) -> None:
        progress = self.members.get(node)
        if progress is None:
            self._add_member(node, is_learner=False)
        else:
            progress.is_learner = False
            self.learners.discard(node)
            self.learners_next.discard(node)
        self.incoming.add(node)

    def _make_learner(self, node: int) -> None:
        progress = self.members.get(node)
        if progress is None:
            self._add_member(node, is_learner=True)
            self.learners.add(node)
            return
        if progress.is_learner:
            return
        # `_remove` may drop the progress as well, and with it the place where the logs agree.
        self._remove(node)
        self.members[node] = progress
        if node in self.outgoing:
            self.learners_next.add(node)
        else:
            progress.is_learner = True
            self.learners.add(node)

    def _remove(self, node: int) -> None:
        self.incoming.discard(node)
        self.learners.discard(node)
        self.learners_next.discard(node)
        # An outgoing voter still decides, so the leader must go on replicating to it.
        if node not in self.outgoing:
            self.members.pop(node, None)

    def _add_member(self, node: int, *, is_learner: bool) -> None:
        self.members[node] = Progress(
            match=0,
            next=max(self.last_index, 1),
            inflights=Inflights(self.inflight_messages_max, self.inflight_bytes_max),
            is_learner=is_learner,
            # CheckQuorum must not count it as silent before it had a chance to speak.
            is_recently_active=True,
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidChange(message)


def describe(membership: Membership) -> str:
    """The membership on one line, for logs and traces.

    >>> describe(Membership(incoming=frozenset({1, 2}), outgoing=frozenset({1})))
    'voters=(1 2)&&(1)'
    """
    text = f"voters={_ids(membership.incoming)}"
    if membership.is_joint:
        text += f"&&{_ids(membership.outgoing)}"
    if membership.learners:
        text += f" learners={_ids(membership.learners)}"
    if membership.learners_next:
        text += f" learners_next={_ids(membership.learners_next)}"
    return text + " autoleave" if membership.auto_leave else text


def _ids(nodes: Iterable[int]) -> str:
    return f"({' '.join(map(str, sorted(nodes)))})"


def is_member(state: ConfState, node: int) -> bool:
    """Whether `node` has any part in `state`."""
    groups: Sequence[tuple[int, ...]] = (state.voters, state.learners, state.voters_outgoing)
    return any(node in group for group in groups)


def is_consistent(state: ConfState) -> bool:
    """Whether some series of changes leads to `state`.

    >>> is_consistent(ConfState(voters=(1, 2))), is_consistent(ConfState(learners=(1,)))
    (True, False)
    """
    if not state.voters:
        return False
    changer = Changer(Membership(), {}, 0, inflight_messages_max=1, inflight_bytes_max=0)
    try:
        membership, _ = changer.restore(state)
    except InvalidChange:
        return False
    return membership.conf_state() == state
