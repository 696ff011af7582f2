"""The leader: proposals, answers of followers, heartbeats, CheckQuorum.

A leader appends, sends, counts, commits, and tells. Its own disk is one vote among the others:
its acknowledgement to itself is a message too, delivered once its records are durable.

Invariants:
- Raft §5.3, leader append-only: it never changes or deletes records of its own log.
- Timestamps never fall along the log, whatever the shell's clock does.

Left out: serving reads from followers without asking the leader (thesis §6.4 end).

Sources: Raft §5.3, §5.4, §8; thesis §4.2, §6.2; etcd-io/raft's stepLeader.
"""

from collections.abc import Callable, Sequence

from raftmq.consensus import leader_reads, transfer
from raftmq.consensus.changes import MembershipChange, decode_change, encode_change
from raftmq.consensus.core import Core
from raftmq.consensus.membership import describe
from raftmq.consensus.messages import Message, MessageKind, Proposal
from raftmq.consensus.progress import PROBE, REPLICATE, SNAPSHOT, Progress
from raftmq.consensus.quorum import VoteResult, joint_vote_result
from raftmq.consensus.replication import (
    advance_commit,
    broadcast_append,
    broadcast_heartbeat,
    send_append,
)
from raftmq.consensus.trace import Event
from raftmq.consensus.types import NONE, DropReason, Role
from raftmq.errors import CorruptRecord
from raftmq.log.record import HEADER_BYTES, Kind, Record, encode

# Bound once: looking a member up in its enum class costs 0.1 µs, and these are in the hot path.
_LEADER = Role.LEADER
_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE
_MEMBERSHIP = int(Kind.MEMBERSHIP)
_VERSION = 1
"""The version of the payloads that consensus writes itself."""
_NOOP: Proposal = (Kind.NOOP, b"", _VERSION)


def take_office(core: Core) -> None:
    """Become leader and append the no-op that lets this term commit (Raft §8)."""
    core.become_leader()
    core.term_first_index = core.log.last_index + 1
    # The no-op is stamped with the last record's time: a new leader's clock decides nothing yet.
    core.now = 0
    refused = _append(core, (_NOOP,))
    assert not isinstance(refused, DropReason), "an empty record is never refused"
    # All records from here on are of this term: `advance_commit` compares indexes only.
    assert refused == core.term_first_index == core.log.last_index, "a record beside the no-op"
    core.note(Event.BECAME_LEADER, core.term)


# Proposals


def propose(core: Core, proposals: Sequence[Proposal]) -> int | DropReason:
    """Append `proposals` and send them out. Returns the first one's index, or why not.

    All of them or none. A membership change that the active membership rules out is appended as
    a no-op, so that a follower that forwarded it sees an index either way.
    """
    assert core.role is _LEADER, "only a leader appends (Raft §5.3)"
    # A leader that was removed and did not step down must not extend a log that it has no part in.
    if core.id not in core.members:
        return DropReason.NOT_MEMBER
    # Thesis §3.10: new records would keep the successor's log from becoming as long as ours.
    if core.transferee != NONE:
        core.note(Event.PROPOSAL_DROPPED_IN_TRANSFER, core.term, core.transferee)
        return DropReason.TRANSFERRING
    for kind, _, _ in proposals:
        if kind == _MEMBERSHIP:
            proposals = _screen_changes(core, proposals)
            break
    first = _append(core, proposals)
    if isinstance(first, int):
        broadcast_append(core)
    return first


def _append(core: Core, proposals: Sequence[Proposal]) -> int | DropReason:
    size_bytes = sum([len(payload) for _, payload, _ in proposals])
    weight = size_bytes + HEADER_BYTES * len(proposals)
    held = core.uncommitted_bytes
    # Empty records are never refused: an election and the way out of a joint membership need one.
    if held and size_bytes and held + weight > core.config.uncommitted_bytes_max:
        core.note(Event.PROPOSAL_DROPPED_TOO_LARGE)
        return DropReason.TOO_MUCH_UNCOMMITTED
    core.uncommitted_bytes = held + weight

    log = core.log
    first = index = log.last_index + 1
    chain = log.last_crc
    timestamp = core.stamp(core.now)
    term = core.term
    assert term >= log.last_term, f"a leader of term {term} has records of term {log.last_term}"
    records: list[Record] = []
    for kind, payload, version in proposals:
        record = encode(
            payload,
            index=index,
            term=term,
            kind=kind,
            timestamp=timestamp,
            chain=chain,
            version=version,
        )
        records.append(record)
        chain = record.crc
        index += 1
    log.append(records)
    assert log.last_index == index - 1, "the log does not end with what was appended"
    # Our own vote for these records, counted like any other once they are on our disk.
    core.after_append.append(
        Message(_APPEND_RESPONSE, core.id, sender=core.id, term=term, index=index - 1)
    )
    return first


def _screen_changes(core: Core, proposals: Sequence[Proposal]) -> Sequence[Proposal]:
    screened = list(proposals)
    for place, (kind, payload, _) in enumerate(proposals):
        if kind != _MEMBERSHIP:
            continue
        try:
            change = decode_change(payload)
        except CorruptRecord:
            screened[place] = _NOOP
            continue
        reason = change_refusal(core, change)
        if reason is None or core.config.disable_membership_validation:
            core.pending_change_index = core.log.last_index + 1 + place
            continue
        pending, applied = core.pending_change_index, core.log.applied
        core.note(Event.CHANGE_IGNORED, change, core.membership, reason, pending, applied)
        screened[place] = _NOOP
    return screened


def change_refusal(core: Core, change: MembershipChange) -> DropReason | None:
    """Why `change` may not be proposed now.

    Thesis §4.1: a new change may start only when the last one is over. Over means applied here,
    not committed, since that is when a membership takes effect in this implementation.
    """
    if core.pending_change_index > core.log.applied:
        return DropReason.CHANGE_PENDING
    leaving = not change.changes
    if core.membership.is_joint and not leaving:
        return DropReason.MUST_LEAVE_JOINT
    if leaving and not core.membership.is_joint:
        return DropReason.NOT_JOINT
    return None


def leave_joint_if_due(core: Core) -> None:
    """Propose to leave a joint membership once it is applied, where that is automatic.

    Refused during a transfer; tried again with each record applied and each election timeout, here
    or by the next leader.
    """
    if not core.membership.auto_leave or core.role is not Role.LEADER:
        return
    # The way out may be in the log already, proposed here or by an earlier leader.
    if core.log.applied < core.pending_change_index:
        return
    assert core.membership.is_joint, "a membership that is not joint is left by nothing"
    membership = describe(core.membership)
    core.now = 0
    refused = propose(core, ((_MEMBERSHIP, encode_change(MembershipChange()), _VERSION),))
    if isinstance(refused, DropReason):
        core.note(Event.NOT_LEAVING_JOINT, membership, refused)
    else:
        core.note(Event.LEAVING_JOINT, membership)


# Time


def tick(core: Core) -> None:
    """One tick of a leader: CheckQuorum each election timeout, heartbeats in between."""
    assert core.role is _LEADER, "heartbeats of a node that does not lead"
    assert core.leader == core.id, f"a leader that follows {core.leader}"
    core.heartbeat_elapsed += 1
    core.election_elapsed += 1
    if core.election_elapsed >= core.config.election_ticks:
        core.election_elapsed = 0
        if core.config.check_quorum:
            check_quorum(core)  # which may end its office
        # Thesis §3.10: "If leadership transfer does not complete after about an election timeout,
        # the prior leader aborts the transfer and resumes accepting client requests."
        if core.role is Role.LEADER:
            core.transferee = NONE
            # A transfer may have held it up, and a quiet group applies no record.
            leave_joint_if_due(core)
    if core.role is Role.LEADER and core.heartbeat_elapsed >= core.config.heartbeat_ticks:
        core.heartbeat_elapsed = 0
        broadcast_heartbeat(core, core.reads.newest_context)


def check_quorum(core: Core) -> None:
    """Step down if no majority answered since the last check (thesis §6.2)."""
    active = {
        node: progress.is_recently_active
        for node, progress in core.members.items()
        if not progress.is_learner
    }
    membership = core.membership
    result = joint_vote_result(membership.incoming, membership.outgoing, active)
    if result is not VoteResult.WON:
        core.note(Event.QUORUM_LOST)
        core.become_follower(core.term, NONE)
    # Without ourselves: a leader needs no sign of its own life.
    for _, progress in core.peers:
        progress.was_recently_active = progress.is_recently_active
        progress.is_recently_active = False


# Answers


def on_propose(core: Core, message: Message) -> DropReason | None:
    """A follower forwards proposals."""
    assert message.proposals, "an empty proposal"
    outcome = propose(core, message.proposals)
    return outcome if isinstance(outcome, DropReason) else None


def on_append_response(core: Core, message: Message) -> None:
    """A follower, or our own disk, answered an append."""
    sender = message.sender
    # A member may answer after it was removed.
    progress = core.members.get(sender)
    if progress is None:
        core.note(Event.NO_PROGRESS, sender)
        return
    progress.is_recently_active = True
    if message.reject:
        _on_rejection(core, message, progress)
        return
    index = message.index
    # An old index matters only while probing: then it says where the logs agree.
    if not progress.matched(index) and (progress.match != index or progress.state is not PROBE):
        return
    _resume(core, sender, progress)

    is_peer = sender != core.id
    if advance_commit(core):
        # With the first commit of this term, reads that waited for it can be started.
        if core.pending_reads:
            leader_reads.start_pending(core)
        broadcast_append(core, even_if_empty=core.config.announce_commit)
    elif is_peer and core.config.announce_commit and progress.may_bump_commit(core.log.committed):
        # A member that was behind hears of the commit index now: no record may follow for long.
        send_append(core, sender, progress, even_if_empty=True)
    if is_peer:
        # Room in the window, or a probe that found its place: send as much as fits.
        while progress.next <= core.log.last_index and send_append(
            core, sender, progress, even_if_empty=False
        ):
            pass
    if sender == core.transferee and progress.match == core.log.last_index:
        core.note(Event.TIMEOUT_NOW_SENT, sender)
        transfer.send_timeout_now(core, sender)


def _resume(core: Core, sender: int, progress: Progress) -> None:
    state = progress.state
    if state is REPLICATE:
        progress.inflights.free_to(progress.match)
    elif state is PROBE:
        progress.become_replicate()
    elif progress.match + 1 >= core.log.first_index:
        # Whichever snapshot the follower has applied, from here on the log can serve it.
        core.note(Event.SNAPSHOT_CAUGHT_UP, sender, progress)
        progress.become_probe()
        progress.become_replicate()


def _on_rejection(core: Core, message: Message, progress: Progress) -> None:
    """The logs differ at the record before. Go back and try again.

    Raft §5.3: "After a rejection, the leader decrements nextIndex and retries". Rather than by
    one, it goes back to the follower's hint, and from there past all our records whose term is
    higher than the follower's term at the hint, as none of those can be in its log.

        index      1 2 3 4 5 6 7 8 9
        leader     1 3 3 3 5 5 5 5 5     refused after 9, hint 6 with term 2:
        follower   1 1 1 1 2 2           our terms at 2..6 are above 2, so try after 1
    """
    hint, hint_term = message.hint, message.log_term
    core.note(Event.APPEND_REJECTION_RECEIVED, hint, hint_term, message.sender, message.index)
    if hint_term:
        hint, _ = core.log.guess_conflict(hint, hint_term)
    if progress.rejected(message.index, hint):
        core.note(Event.PROGRESS_DECREASED, message.sender, progress)
        # The appends that are still in flight will be refused as well.
        if progress.state is REPLICATE:
            progress.become_probe()
        send_append(core, message.sender, progress, even_if_empty=True)


def on_heartbeat_response(core: Core, message: Message) -> None:
    """A follower is alive: it gets what it lacks, and its echo counts for reads."""
    progress = core.members.get(message.sender)
    if progress is None:
        core.note(Event.NO_PROGRESS, message.sender)
        return
    progress.is_recently_active = True
    progress.is_flow_paused = False
    # A full window sends an empty append here, and a caught-up follower in PROBE too: the answer
    # frees the one and brings the other back to REPLICATE.
    if progress.match < core.log.last_index or progress.state is PROBE:
        send_append(core, message.sender, progress, even_if_empty=True)
    if message.context and message.context == core.reads.roll_call:
        core.reads.answers.add(message.sender)
    elif message.context:
        leader_reads.on_echo(core, message)


def on_snapshot_status(core: Core, message: Message) -> None:
    """The shell knows whether the snapshot arrived; the follower's own answer may be lost."""
    progress = core.members.get(message.sender)
    if progress is None:
        core.note(Event.NO_PROGRESS, message.sender)
        return
    if progress.state is not SNAPSHOT:
        return
    if message.reject:
        # Cleared first: probing must not start from a snapshot that never arrived.
        progress.pending_snapshot = 0
        progress.become_probe()
        assert progress.next == progress.match + 1, "probing after a snapshot that failed"
        core.note(Event.SNAPSHOT_FAILED, message.sender, progress)
    else:
        progress.become_probe()
        core.note(Event.SNAPSHOT_SUCCEEDED, message.sender, progress)
    # Wait for the follower's answer after a success, for a heartbeat's time after a failure.
    progress.is_flow_paused = True


def on_unreachable(core: Core, message: Message) -> None:
    """A message did not get through, so appends in flight are probably lost: probe."""
    progress = core.members.get(message.sender)
    if progress is None:
        core.note(Event.NO_PROGRESS, message.sender)
        return
    if progress.state is REPLICATE:
        progress.become_probe()
    core.note(Event.UNREACHABLE, message.sender, progress)


def ignore(core: Core, message: Message) -> None:
    """A kind that has no meaning for this role in its own term."""
    if message.kind is not MessageKind.FORGET_LEADER and message.sender not in core.members:
        core.note(Event.NO_PROGRESS, message.sender)


HANDLERS: dict[MessageKind, Callable[[Core, Message], DropReason | None]] = {
    MessageKind.PROPOSE: on_propose,
    MessageKind.APPEND_RESPONSE: on_append_response,
    MessageKind.HEARTBEAT_RESPONSE: on_heartbeat_response,
    MessageKind.SNAPSHOT_STATUS: on_snapshot_status,
    MessageKind.UNREACHABLE: on_unreachable,
    MessageKind.TRANSFER_LEADER: transfer.on_transfer_request,
    MessageKind.TRANSFER_DECLINED: transfer.on_declined,
    MessageKind.READ_INDEX: leader_reads.on_read_request,
}
"""A leader's handlers of messages of its own term; it ignores other kinds."""
