"""Leadership transfer: the leader hands over to a follower that has its whole log.

Thesis §3.10: the leader stops taking proposals, brings the target's log up to its own, and tells
it to campaign at once. If the target does not lead within an election timeout, the leader goes on
leading; at once if the target declines, because its shell has a reason why it must not lead, or
because it may not campaign.

Invariants:
- A declined transfer costs the leader one round trip without proposals, not an election timeout.

Sources: thesis §3.10; etcd-io/raft.
"""

from raftmq.consensus.core import Core
from raftmq.consensus.messages import Message, MessageKind
from raftmq.consensus.replication import send_append
from raftmq.consensus.trace import Event
from raftmq.consensus.types import NONE


def on_transfer_request(core: Core, message: Message) -> None:
    """The leader is asked to hand over to `message.sender`."""
    target = message.sender
    progress = core.members.get(target)
    if progress is None:
        core.note(Event.NO_PROGRESS, target)
        return
    if progress.is_learner:
        core.note(Event.TRANSFER_IGNORED_AS_LEARNER)
        return
    former = core.transferee
    if former == target:
        core.note(Event.TRANSFER_IGNORED_AS_SAME, core.term, target)
        return
    if former != NONE:
        core.transferee = NONE
        core.note(Event.TRANSFER_REPLACED, core.term, former)
    # Naming ourselves ends a transfer that is under way.
    if target == core.id:
        core.note(Event.TRANSFER_IGNORED_AS_SELF)
        return
    core.note(Event.TRANSFER_STARTED, core.term, target)
    assert target in core.membership.voters, "only a voter can be elected"
    # The whole election timeout is there for the transfer: see `leader.tick`.
    core.election_elapsed = 0
    core.transferee = target
    if progress.match == core.log.last_index:
        send_timeout_now(core, target)
        core.note(Event.TIMEOUT_NOW_SENT_AT_ONCE, target)
    else:
        send_append(core, target, progress, even_if_empty=True)


def decline(core: Core, leader: int) -> None:
    """Tell the leader that hands over to this member to go on leading."""
    core.messages.append(
        Message(MessageKind.TRANSFER_DECLINED, leader, sender=core.id, term=core.term)
    )


def on_declined(core: Core, message: Message) -> None:
    """The successor declines to lead: take proposals again."""
    # A member that was replaced as successor meanwhile does not end the newer transfer.
    if core.transferee == message.sender:
        core.transferee = NONE
        core.note(Event.TRANSFER_DECLINED, core.term, message.sender)


def send_timeout_now(core: Core, to: int) -> None:
    """Thesis §3.10: "This request has the same effect as the target server's election timer
    firing"."""
    assert to == core.transferee, "a follower that is not the transferee would campaign"
    assert core.members[to].match == core.log.last_index, "a successor that lacks records"
    core.messages.append(Message(MessageKind.TIMEOUT_NOW, to, sender=core.id, term=core.term))
