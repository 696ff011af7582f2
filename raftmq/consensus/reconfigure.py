"""Switching a node to a new membership, when a change is applied or a snapshot restored.

Raft §6 lets a server use a new membership as soon as it is in its log. Like etcd, this
implementation switches when the record is *applied*; it is therefore safe only because a new
change is not proposed before the last one is applied (`leader.change_refusal`), and no node
campaigns over an unapplied one (`election`). Both hold after a crash only if the commit index that
is recovered covers every MEMBERSHIP record but the last: `raftmq.log.recovery` sees to that.

Sources: Raft §6; thesis §4; etcd-io/raft.
"""

from raftmq.consensus.changes import MembershipChange
from raftmq.consensus.core import Core
from raftmq.consensus.membership import Changer, Members, Membership, describe
from raftmq.consensus.replication import advance_commit, broadcast_append, send_append
from raftmq.consensus.trace import Event
from raftmq.consensus.types import NONE, ConfState, Role


def _changer(core: Core, membership: Membership, members: Members, last_index: int) -> Changer:
    config = core.config
    return Changer(
        membership,
        members,
        last_index,
        inflight_messages_max=config.inflight_messages_max,
        inflight_bytes_max=config.inflight_bytes_max,
    )


def planned(core: Core, change: MembershipChange) -> tuple[Membership, Members]:
    """The membership that `change` would make of the present one.

    Raises:
        InvalidChange: the change is impossible; nothing was changed.
    """
    changer = _changer(core, core.membership, core.members, core.log.last_index)
    if change.leaves_joint:
        return changer.leave_joint()
    if change.enters_joint:
        return changer.enter_joint(change.changes, auto_leave=change.auto_leave)
    return changer.simple(change.changes)


def apply_change(core: Core, change: MembershipChange) -> ConfState:
    """A committed change takes effect.

    Raises:
        InvalidChange: it is impossible; nothing was changed, on any replica.
    """
    assert core.membership.incoming, "a node without a membership must be sent a snapshot first"
    membership, members = planned(core, change)
    return _switch(core, membership, members)


def restore_membership(core: Core, state: ConfState, *, last_index: int) -> None:
    """Start over with the membership of a snapshot or of storage."""
    changer = _changer(core, Membership(), {}, last_index)
    membership, members = changer.restore(state)
    restored = _switch(core, membership, members)
    assert restored == state, f"the membership {state} is inconsistent: it restores to {restored}"


def _switch(core: Core, membership: Membership, members: Members) -> ConfState:
    core.membership = membership
    core.members = members
    core.index_members()
    core.note(Event.MEMBERSHIP_SWITCHED, describe(membership))
    state = membership.conf_state()
    if core.role is not Role.LEADER:
        return state
    own = members.get(core.id)
    if own is None or own.is_learner:
        # Raft §6: "the leader steps down (returns to follower state) once it has committed the
        # C_new log entry".
        if core.config.step_down_on_removal:
            core.become_follower(core.term, NONE)
        return state
    _catch_up(core)
    # A member that is no voter now cannot take over.
    if core.transferee not in membership.voters:
        core.transferee = NONE
    return state


def _catch_up(core: Core) -> None:
    """A smaller quorum may commit more at once; a new member need not wait for a heartbeat."""
    if advance_commit(core):
        broadcast_append(core)
        return
    for node, progress in core.peers:
        send_append(core, node, progress, even_if_empty=False)
