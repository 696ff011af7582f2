"""Mutants of members that return, planted.

Their table stands in `tests.quality.mutants.brokers.returning_members`, which needs no event loop.
"""

from collections.abc import Mapping, Set
from typing import Any

import msgspec

from raftmq.broker.cluster import member_changes, views
from raftmq.broker.cluster.admission import _Question
from raftmq.broker.cluster.member_changes import MemberChanges
from raftmq.broker.cluster.reconfiguration import Wanted, next_step
from raftmq.broker.node import Node
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.removal import ReplicaRemoval, has_left
from raftmq.broker.replica.replicas import Replicas
from raftmq.chaos.mutant import Patch
from raftmq.consensus import Change, ChangeKind, Raft
from raftmq.machine.catalog.replicas import member_id, node_of
from raftmq.wire.messages import ClusterView, GroupView, ProbeReply


def _delete_without_asking(patch: Patch) -> None:
    async def give_up(removal: ReplicaRemoval, group: Group, told: dict[int, ClusterView]) -> None:
        if has_left(group.raft.id, group.number, told):
            removal._retire(group)

    patch.set(ReplicaRemoval, "_give_up", give_up)


def _open_under_the_first_id(patch: Patch, *, founds: bool) -> None:
    def open_one(
        replicas: Replicas,
        number: int,
        replica: int,
        founders: list[int],
        *,
        may_be_blank: bool = False,
    ) -> bool:
        node = replicas._node
        replicas._remains.discard(number)
        is_first = founds or number not in replicas._identity.replicas
        is_founder = node.id in founders and not node.generation and is_first
        member = member_id(node.id, node.generation)
        node.groups[number] = replicas._opener.open(number, member, founders * is_founder)
        replicas._note(number, 0)
        node.mark(node.groups[number])
        return True

    def open_wanted(replicas: Replicas) -> None:
        for group in list(replicas._node.catalog.groups.values()):
            if replicas._is_missing(group.id):
                replicas._open(group.id, 0, group.founders)

    patch.set(Replicas, "_open", open_one)
    patch.set(Replicas, "open_wanted", open_wanted)
    patch.set(Replicas, "think", lambda replicas: None)


def founds_again(patch: Patch) -> None:
    """180"""
    _delete_without_asking(patch)
    _open_under_the_first_id(patch, founds=True)


def returns_under_the_old_id(patch: Patch) -> None:
    """181"""
    _delete_without_asking(patch)
    _open_under_the_first_id(patch, founds=False)


def takes_a_lost_log_for_a_blank_one(patch: Patch) -> None:
    """182"""
    _open_under_the_first_id(patch, founds=False)


def forgets_outgoing_voters(patch: Patch) -> None:
    """183"""
    group_view = views._group_view

    def without(node: Node, number: int) -> GroupView:
        view = group_view(node, number)
        outgoing = set(view.voters_outgoing) - set(view.voters) - set(view.learners)
        kept = [member for member in view.members if node_of(member) not in outgoing]
        return msgspec.structs.replace(view, voters_outgoing=[], members=kept)

    patch.set(views, "_group_view", without)


def counts_who_knows_the_folder_as_who_does_not(patch: Patch) -> None:
    """184"""
    take = _Question.take

    def take_unheard(question: _Question, peer: int, reply: ProbeReply) -> int | None:
        generation = reply.generation if reply.is_latest else 0
        return take(question, peer, msgspec.structs.replace(reply, generation=generation))

    patch.set(_Question, "take", take_unheard)


def remembers_what_was_left_for_ever(patch: Patch) -> None:
    """323"""
    open_one = Replicas._open

    def opening(replicas: Replicas, number: int, *rest: Any, **more: Any) -> bool:
        had_no_log = number in replicas._remains
        is_open = open_one(replicas, number, *rest, **more)
        if had_no_log:
            replicas._remains.add(number)
        return is_open

    patch.set(Replicas, "_open", opening)


def deletes_no_log(patch: Patch) -> None:
    """324"""

    async def give_up(*_: object) -> None:
        pass

    patch.set(ReplicaRemoval, "_give_up", give_up)


def forgets_who_left_at_once(patch: Patch) -> None:
    """325"""
    patch.set(Group, "owes_mark", False)


def writes_of_removals_only(patch: Patch) -> None:
    """326"""

    def owes_mark(group: Group) -> bool:
        return bool(group._parting) and group.store.proven_commit < group._changed_at

    patch.set(Group, "owes_mark", property(owes_mark))


def notes_the_next_id_after_its_log(patch: Patch) -> None:
    """327"""
    open_one, note = Replicas._open, Replicas._note
    held: list[tuple[int, int]] = []

    def opening(replicas: Replicas, *given: Any, **more: Any) -> bool:
        # A crash may have left something here.
        held.clear()
        is_open = open_one(replicas, *given, **more)
        for number, replica in held:
            note(replicas, number, replica)
        return is_open

    patch.set(Replicas, "_open", opening)
    patch.set(Replicas, "_note", lambda _, number, replica: held.append((number, replica)))


def changes_by_any_catalog(patch: Patch) -> None:
    """328"""

    async def at_once(_: object) -> bool:
        return True

    patch.set(member_changes, "renew_catalog", at_once)


def counts_on_the_dead(patch: Patch) -> None:
    """329"""

    def everyone(views: Mapping[int, ClusterView]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for group in (group for view in views.values() for group in view.groups):
            found.setdefault(group.id, set()).update(group.members)
        return found

    patch.set(member_changes, "present_members", everyone)
    counts_on_the_unheard(patch)


def counts_on_the_unheard(patch: Patch) -> None:
    """372"""

    def everyone(raft: Raft) -> frozenset[int]:
        return frozenset(raft.status().progress)

    patch.set(Raft, "roll_call_answers", property(everyone))


def takes_old_answers(patch: Patch) -> None:
    """373"""
    patch.set(MemberChanges, "_has_called", lambda changes, group: group.is_leader)


def leaves_the_learners_alone(patch: Patch) -> None:
    """374"""

    def hasty(
        group: Group, wanted: Wanted, held: int, present: Set[int], *, hands_over: bool = True
    ) -> list[Change] | int:
        step = next_step(group, wanted, held, present, hands_over=hands_over)
        if isinstance(step, list) and step and step[0].kind is ChangeKind.ADD_VOTER:
            going = [voter for voter in group.conf_state.voters if voter not in wanted.voters]
            named = {change.node for change in step}
            step += [Change(ChangeKind.REMOVE, voter) for voter in going if voter not in named]
        return step

    patch.set(member_changes, "next_step", hasty)
