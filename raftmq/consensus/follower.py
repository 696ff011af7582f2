"""The follower: appends, heartbeats and snapshots from a leader, and requests that it passes on.

Sources: Raft §5.2, §5.3, §7, figure 2 (AppendEntries receiver); etcd-io/raft's stepFollower.
"""

from collections.abc import Callable

from raftmq.consensus.config import ReadMode
from raftmq.consensus.core import Core
from raftmq.consensus.membership import is_member
from raftmq.consensus.messages import Message, MessageKind
from raftmq.consensus.reconfigure import restore_membership
from raftmq.consensus.trace import Event
from raftmq.consensus.types import NONE, DropReason, ReadState, Role, Snapshot

_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE


def on_append(core: Core, message: Message) -> None:
    """AppendEntries (Raft figure 2). The answer waits until the records are durable."""
    core.election_elapsed = 0
    core.leader = message.sender
    log = core.log
    records = message.entries
    # A peer's mistake must not reach the asserts, which would stop this node.
    if records and (records[0].index, records[-1].index) != (
        message.index + 1,
        message.index + len(records),
    ):
        core.note(Event.APPEND_MALFORMED, message.sender, message.index)
        return
    if message.index < log.committed:
        # An old append; all up to our commit index matches any leader's log.
        _answer(core, message.sender, log.committed)
        return
    last = log.try_append(message.index, message.log_term, records, message.commit)
    if last is not None:
        _answer(core, message.sender, last)
        return
    ours = log.term(message.index) or 0
    core.note(Event.APPEND_REJECTED, ours, message.index, message.log_term, message.sender)
    # Tell the leader where the logs may agree: our records before its own with terms above the
    # term it named cannot be in its log. `leader._on_rejection` is the other half.
    hint, hint_term = log.guess_conflict(min(message.index, log.last_index), message.log_term)
    core.after_append.append(
        Message(
            _APPEND_RESPONSE,
            message.sender,
            sender=core.id,
            term=core.term,
            index=message.index,
            reject=True,
            hint=hint,
            log_term=hint_term,
        )
    )


def _answer(core: Core, leader: int, index: int) -> None:
    core.after_append.append(
        Message(_APPEND_RESPONSE, leader, sender=core.id, term=core.term, index=index)
    )


def on_heartbeat(core: Core, message: Message) -> None:
    """The leader lives, and sends a commit index that our log surely reaches."""
    core.election_elapsed = 0
    core.leader = message.sender
    if message.commit > core.log.last_index:
        # The commit index is never above our acknowledgements to this leader: our disk lost synced
        # records. An answer would count for a log that is not there.
        core.has_lost = True
        return
    core.log.commit_to(message.commit)
    core.messages.append(
        Message(
            MessageKind.HEARTBEAT_RESPONSE,
            message.sender,
            sender=core.id,
            term=core.term,
            context=message.context,
        )
    )


def on_snapshot(core: Core, message: Message) -> None:
    """InstallSnapshot (Raft §7), already assembled from its chunks by the shell."""
    core.election_elapsed = 0
    core.leader = message.sender
    snapshot = message.snapshot or Snapshot()
    meta = snapshot.meta
    if _restore(core, snapshot):
        core.note(Event.SNAPSHOT_ACCEPTED, core.log.committed, meta.index, meta.term)
        _answer(core, message.sender, core.log.last_index)
    else:
        core.note(Event.SNAPSHOT_IGNORED, core.log.committed, meta.index, meta.term)
        # The leader waits for an answer in any case before it sends on.
        _answer(core, message.sender, core.log.committed)


def _restore(core: Core, snapshot: Snapshot) -> bool:
    log, meta = core.log, snapshot.meta
    if meta.index <= log.committed:
        return False
    assert core.role is Role.FOLLOWER, "only a follower is sent snapshots"
    if core.config.refuse_foreign_snapshots and not is_member(meta.conf_state, core.id):
        core.note(Event.SNAPSHOT_NOT_MEMBER, meta.conf_state)
        return False
    if log.matches(meta.index, meta.term):
        # Raft §7: "If instead the follower receives a snapshot that describes a prefix of its
        # log", the records after it stay; here the prefix stays, too, as it is known to be
        # committed.
        core.note(
            Event.SNAPSHOT_FAST_FORWARDED,
            log.committed, log.last_index, log.last_term, meta.index, meta.term,
        )  # fmt: skip
        log.commit_to(meta.index)
        return False
    # The log here differs at the snapshot or is shorter: nothing applied may be lost with it.
    assert log.applied <= log.applying < meta.index, "a snapshot of what is applied already"
    log.restore(snapshot)
    restore_membership(core, meta.conf_state, last_index=log.last_index)
    assert log.committed == log.last_index == meta.index, "records beside a restored snapshot"
    core.note(
        Event.SNAPSHOT_RESTORED,
        log.committed, log.last_index, log.last_term, meta.index, meta.term,
    )  # fmt: skip
    return True


# Requests that are passed on to the leader


def on_propose(core: Core, message: Message) -> DropReason | None:
    """Forward proposals to the leader, if allowed and if there is one."""
    if core.leader == NONE:
        core.note(Event.PROPOSAL_DROPPED_NO_LEADER, core.term)
        return DropReason.NO_LEADER
    if core.config.disable_proposal_forwarding:
        core.note(Event.PROPOSAL_NOT_FORWARDED, core.leader, core.term)
        return DropReason.NOT_LEADER
    core.messages.append(
        Message(
            MessageKind.PROPOSE,
            core.leader,
            sender=message.sender or core.id,
            proposals=message.proposals,
        )
    )
    return None


def on_transfer_request(core: Core, message: Message) -> None:
    """Tell the leader that `message.sender` should take over."""
    if core.leader == NONE:
        core.note(Event.TRANSFER_DROPPED_NO_LEADER, core.term)
        return
    core.messages.append(
        Message(MessageKind.TRANSFER_LEADER, core.leader, sender=message.sender, term=core.term)
    )


def on_read_request(core: Core, message: Message) -> None:
    """Ask the leader for a read index; a read without a leader is dropped, to be asked again."""
    if core.leader == NONE:
        core.note(Event.READ_DROPPED_NO_LEADER, core.term)
        return
    core.messages.append(
        Message(
            MessageKind.READ_INDEX,
            core.leader,
            sender=message.sender or core.id,
            context=message.context,
        )
    )


def on_read_response(core: Core, message: Message) -> None:
    """The leader granted a read of ours."""
    core.read_states.append(ReadState(message.index, message.context))


def on_forget_leader(core: Core, message: Message) -> None:
    """Stop waiting for the leader, so that candidates are listened to at once."""
    if core.config.read_mode is ReadMode.LEASE:
        # The leader answers reads because we promised not to vote for a while.
        core.note(Event.FORGET_LEADER_IGNORED)
    elif core.leader != NONE:
        core.note(Event.LEADER_FORGOTTEN, core.leader, core.term)
        core.leader = NONE


HANDLERS: dict[MessageKind, Callable[[Core, Message], DropReason | None]] = {
    MessageKind.PROPOSE: on_propose,
    MessageKind.APPEND: on_append,
    MessageKind.HEARTBEAT: on_heartbeat,
    MessageKind.SNAPSHOT: on_snapshot,
    MessageKind.TRANSFER_LEADER: on_transfer_request,
    MessageKind.READ_INDEX: on_read_request,
    MessageKind.READ_INDEX_RESPONSE: on_read_response,
    MessageKind.FORGET_LEADER: on_forget_leader,
}
"""A follower's handlers of messages of its own term, beside TIMEOUT_NOW; it ignores other kinds."""
