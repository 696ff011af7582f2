"""Prints our messages, states and events in the words of etcd-io/raft's test data.

The core knows none of these words: it reports `Event`s with plain fields, and this table gives
each one its level and its line.

Source: the output format is that of etcd-io/raft's data files, which fixes the wording.
"""

import json
from collections.abc import Callable, Iterable, Sequence

import msgspec

from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    NONE,
    ChangeKind,
    ConfState,
    DropReason,
    Event,
    HardState,
    MembershipChange,
    Message,
    MessageKind,
    Ready,
    Role,
    Snapshot,
    SoftState,
    Transition,
    decode_change,
)
from raftmq.consensus.log import RaftLog
from raftmq.consensus.membership import Membership
from raftmq.consensus.membership import describe as describe_membership
from raftmq.consensus.progress import Progress, ProgressState
from raftmq.log.record import Kind, Record

DEBUG, INFO, WARN, ERROR, FATAL, SILENT = range(6)
LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE")

V1 = b"v1"
"""Context that marks a change which etcd would write in its older encoding."""

DROPPED = "raft proposal dropped"
PEER_NOT_FOUND = "raft: cannot step as peer not found"
LOCAL_MESSAGE = "raft: cannot step raft local message"

VOTES = (
    MessageKind.VOTE,
    MessageKind.VOTE_RESPONSE,
    MessageKind.PRE_VOTE,
    MessageKind.PRE_VOTE_RESPONSE,
)
MESSAGE_NAMES = {
    MessageKind.PROPOSE: "MsgProp",
    MessageKind.APPEND: "MsgApp",
    MessageKind.APPEND_RESPONSE: "MsgAppResp",
    MessageKind.VOTE: "MsgVote",
    MessageKind.VOTE_RESPONSE: "MsgVoteResp",
    MessageKind.PRE_VOTE: "MsgPreVote",
    MessageKind.PRE_VOTE_RESPONSE: "MsgPreVoteResp",
    MessageKind.SNAPSHOT: "MsgSnap",
    MessageKind.HEARTBEAT: "MsgHeartbeat",
    MessageKind.HEARTBEAT_RESPONSE: "MsgHeartbeatResp",
    MessageKind.TRANSFER_LEADER: "MsgTransferLeader",
    MessageKind.TIMEOUT_NOW: "MsgTimeoutNow",
    MessageKind.TRANSFER_DECLINED: "MsgTransferDeclined",
    MessageKind.READ_INDEX: "MsgReadIndex",
    MessageKind.READ_INDEX_RESPONSE: "MsgReadIndexResp",
    MessageKind.FORGET_LEADER: "MsgForgetLeader",
    MessageKind.CAMPAIGN: "MsgHup",
    MessageKind.UNREACHABLE: "MsgUnreachable",
    MessageKind.SNAPSHOT_STATUS: "MsgSnapStatus",
    MessageKind.STORAGE_APPEND: "MsgStorageAppend",
    MessageKind.STORAGE_APPEND_RESPONSE: "MsgStorageAppendResp",
    MessageKind.STORAGE_APPLY: "MsgStorageApply",
    MessageKind.STORAGE_APPLY_RESPONSE: "MsgStorageApplyResp",
}
KINDS_BY_NAME = {name: kind for kind, name in MESSAGE_NAMES.items()}

ROLE_NAMES = {
    Role.FOLLOWER: "StateFollower",
    Role.CANDIDATE: "StateCandidate",
    Role.LEADER: "StateLeader",
    Role.PRE_CANDIDATE: "StatePreCandidate",
}
_PROGRESS_NAMES = {
    ProgressState.PROBE: "StateProbe",
    ProgressState.REPLICATE: "StateReplicate",
    ProgressState.SNAPSHOT: "StateSnapshot",
}
_CHANGE_NAMES = {
    ChangeKind.ADD_VOTER: "ConfChangeAddNode",
    ChangeKind.ADD_LEARNER: "ConfChangeAddLearnerNode",
    ChangeKind.REMOVE: "ConfChangeRemoveNode",
    ChangeKind.UPDATE: "ConfChangeUpdateNode",
}
CHANGE_LETTERS = {
    "v": ChangeKind.ADD_VOTER,
    "l": ChangeKind.ADD_LEARNER,
    "r": ChangeKind.REMOVE,
    "u": ChangeKind.UPDATE,
}
_LETTERS = {kind: letter for letter, kind in CHANGE_LETTERS.items()}
_TRANSITION_NAMES = {
    Transition.AUTO: "ConfChangeTransitionAuto",
    Transition.JOINT_IMPLICIT: "ConfChangeTransitionJointImplicit",
    Transition.JOINT_EXPLICIT: "ConfChangeTransitionJointExplicit",
}


def numbers(values: Iterable[int]) -> str:
    """A list the way Go prints it."""
    return f"[{' '.join(map(str, values))}]"


def quoted(data: bytes) -> str:
    """Bytes as a quoted string."""
    return json.dumps(data.decode("latin-1"))


def ids(nodes: Iterable[int]) -> str:
    """A set of node ids."""
    return f"({' '.join(map(str, sorted(nodes)))})"


# Records


def proposal(kind: int, payload: bytes, *, term: int = 0, index: int = 0) -> str:
    """An entry that may not have a place in the log yet."""
    if kind != Kind.MEMBERSHIP:
        return f"{term}/{index} EntryNormal {quoted(payload)}"
    change = decode_change(payload)
    name = "EntryConfChange" if change.context == V1 else "EntryConfChangeV2"
    singles = " ".join(f"{_LETTERS[one.kind]}{one.node}" for one in change.changes)
    return f"{term}/{index} {name} {singles}".rstrip()


def entry(record: Record) -> str:
    """A record."""
    return proposal(record.kind, bytes(record.payload), term=record.term, index=record.index)


def entries(records: Iterable[Record]) -> str:
    """Records, a line each."""
    return "".join(entry(record) + "\n" for record in records)


def change_text(change: MembershipChange) -> str:
    """A change the way protobuf prints it."""
    singles = [f"type:{_CHANGE_NAMES[one.kind]} node_id:{one.node}" for one in change.changes]
    if change.context == V1:
        return singles[0]
    return " ".join(
        [f"transition:{_TRANSITION_NAMES[change.transition]}"]
        + [f"changes:{{{single}}}" for single in singles]
    )


# States


def conf_state(state: ConfState) -> str:
    """A membership."""
    return (
        f"Voters:{numbers(state.voters)} VotersOutgoing:{numbers(state.voters_outgoing)} "
        f"Learners:{numbers(state.learners)} LearnersNext:{numbers(state.learners_next)} "
        f"AutoLeave:{str(state.auto_leave).lower()}"
    )


def conf_state_proto(state: ConfState) -> str:
    """A membership the way protobuf prints it."""
    parts = [f"voters:{node}" for node in state.voters]
    parts += [f"learners:{node}" for node in state.learners]
    parts += [f"voters_outgoing:{node}" for node in state.voters_outgoing]
    parts += [f"learners_next:{node}" for node in state.learners_next]
    return " ".join([*parts, f"auto_leave:{str(state.auto_leave).lower()}"])


def snapshot(value: Snapshot) -> str:
    """Where a snapshot stands."""
    meta = value.meta
    return f"Index:{meta.index} Term:{meta.term} ConfState:{conf_state(meta.conf_state)}"


def hard_state(state: HardState) -> str:
    """Term, vote if any, commit."""
    vote = f" Vote:{state.vote}" if state.vote else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def soft_state(state: SoftState) -> str:
    """Leader and role."""
    return f"Lead:{state.leader} State:{ROLE_NAMES[state.role]}"


def progress(value: Progress) -> str:
    """A leader's view of one member."""
    text = f"{_PROGRESS_NAMES[value.state]} match={value.match} next={value.next}"
    text += " learner" if value.is_learner else ""
    text += " paused" if value.is_paused else ""
    text += f" pendingSnap={value.pending_snapshot}" if value.pending_snapshot else ""
    text += "" if value.is_recently_active else " inactive"
    if len(value.inflights):
        text += f" inflight={len(value.inflights)}"
        text += "[full]" if value.inflights.is_full() else ""
    return text


def progress_map(members: dict[int, Progress]) -> str:
    """All members, a line each."""
    return "".join(f"{node}: {progress(members[node])}\n" for node in sorted(members))


# Messages


def target(node: int) -> str:
    """Name of a sender or receiver."""
    names = {NONE: "None", APPEND_THREAD: "AppendThread", APPLY_THREAD: "ApplyThread"}
    return names.get(node, f"{node:x}")


def _message_entries(message: Message) -> list[str]:
    if message.proposals:
        return [proposal(kind, payload) for kind, payload, _ in message.proposals]
    if message.kind in (MessageKind.READ_INDEX, MessageKind.READ_INDEX_RESPONSE):
        return [proposal(Kind.BATCH, message.context)]
    return [entry(record) for record in message.entries]


def message(value: Message, indent: str = "") -> str:
    """A message, on several lines if it carries much."""
    if value.kind in VOTES:
        # etcd's votes do not say what is committed.
        value = msgspec.structs.replace(value, commit=0, commit_term=0)
    text = (
        f"{indent}{target(value.sender)}->{target(value.to)} {MESSAGE_NAMES[value.kind]} "
        f"Term:{value.term} Log:{value.log_term}/{value.index}"
    )
    text += f" Rejected (Hint: {value.hint})" if value.reject else ""
    text += f" Commit:{value.commit}" if value.commit else ""
    text += f" Vote:{value.vote}" if value.vote else ""
    carried = _message_entries(value)
    if len(carried) == 1:
        text += f" Entries:[{carried[0]}]"
    elif carried:
        text += " Entries:[" + "".join(f"\n{indent}  {one}" for one in carried) + f"\n{indent}]"
    if value.snapshot is not None and value.snapshot.meta.index:
        text += f"\n{indent}  Snapshot: {snapshot(value.snapshot)}"
    if value.responses:
        text += " Responses:["
        text += "".join("\n" + message(one, indent + "  ") for one in value.responses)
        text += f"\n{indent}]"
    return text


def ready(value: Ready) -> str:
    """All work in a Ready."""
    text = ""
    if value.soft_state is not None:
        text += soft_state(value.soft_state) + "\n"
    if value.hard_state is not None and value.hard_state != HardState():
        text += f"HardState {hard_state(value.hard_state)}\n"
    if value.read_states:
        reads = [f"{{{one.index} {numbers(one.context)}}}" for one in value.read_states]
        text += f"ReadStates [{' '.join(reads)}]\n"
    if value.entries:
        text += "Entries:\n" + entries(value.entries)
    if value.snapshot is not None:
        text += f"Snapshot {snapshot(value.snapshot)}\n"
    if value.committed:
        text += "CommittedEntries:\n" + entries(value.committed)
    if value.messages:
        text += "Messages:\n" + "".join(message(one) + "\n" for one in value.messages)
    if not text:
        return "<empty Ready>"
    return f"Ready MustSync={str(value.must_sync).lower()}:\n{text}"


# Events

Line = tuple[int, Callable[..., str]]


def _log_text(log: RaftLog) -> str:
    unstable = log.unstable
    return (
        f"committed={log.committed}, applied={log.applied}, applying={log.applying}, "
        f"unstable.offset={unstable.offset}, "
        f"unstable.offsetInProgress={unstable.offset_in_progress}, "
        f"len(unstable.Entries)={len(unstable.records)}"
    )


def _vote_line(verb: str) -> Callable[..., str]:
    def line(
        own: str, log_term: int, index: int, vote: int, kind: MessageKind, sender: int,
        its_term: int, its_index: int, term: int, left: int | None = None,
    ) -> str:  # fmt: skip
        name, word = MESSAGE_NAMES[kind], "for" if verb == "cast" else "from"
        text = (
            f"{own} [logterm: {log_term}, index: {index}, vote: {vote:x}] {verb} {name} {word} "
            f"{sender:x} [logterm: {its_term}, index: {its_index}] at term {term}"
        )
        return text if left is None else f"{text}: lease is not expired (remaining ticks: {left})"

    return line


def _change_ignored(
    own: str, change: MembershipChange, membership: Membership, reason: DropReason, pending: int,
    applied: int,
) -> str:  # fmt: skip
    texts = {
        DropReason.CHANGE_PENDING: (
            f"possible unapplied conf change at index {pending} (applied to {applied})"
        ),
        DropReason.MUST_LEAVE_JOINT: "must transition out of joint config first",
        DropReason.NOT_JOINT: "not in joint state; refusing empty conf change",
    }
    config = describe_membership(membership)
    return f"{own} ignoring conf change {change_text(change)} at config {config}: {texts[reason]}"


def _started(
    own: str, voters: Sequence[int], term: int, commit: int, applied: int, index: int, log_term: int
) -> str:
    peers = ",".join(f"{voter:x}" for voter in voters)
    return (
        f"newRaft {own} [peers: [{peers}], term: {term}, commit: {commit}, applied: {applied}, "
        f"lastindex: {index}, lastterm: {log_term}]"
    )


def _restored(verb: str) -> Callable[..., str]:
    return lambda own, commit, last, last_term, index, term: (
        f"{own} [commit: {commit}, lastindex: {last}, lastterm: {last_term}] {verb} "
        f"[index: {index}, term: {term}]"
    )


_N = MESSAGE_NAMES
LINES: dict[Event, Line] = {
    Event.STARTED: (INFO, _started),
    Event.BECAME_FOLLOWER: (INFO, lambda own, term: f"{own} became follower at term {term}"),
    Event.BECAME_PRE_CANDIDATE: (
        INFO, lambda own, term: f"{own} became pre-candidate at term {term}"),
    Event.BECAME_CANDIDATE: (INFO, lambda own, term: f"{own} became candidate at term {term}"),
    Event.BECAME_LEADER: (INFO, lambda own, term: f"{own} became leader at term {term}"),
    Event.CAMPAIGN_STARTED: (
        INFO, lambda own, term: f"{own} is starting a new election at term {term}"),
    Event.CAMPAIGN_IGNORED_AS_LEADER: (
        DEBUG, lambda own: f"{own} ignoring MsgHup because already leader"),
    Event.CAMPAIGN_IGNORED_AS_UNPROMOTABLE: (
        WARN, lambda own: f"{own} is unpromotable and can not campaign"),
    Event.CAMPAIGN_IGNORED_FOR_PENDING_CHANGE: (
        WARN, lambda own, term: f"{own} cannot campaign at term {term} since there are still "
        "pending configuration changes to apply"),
    Event.VOTE_REQUESTED: (
        INFO, lambda own, log_term, index, kind, to, term:
        f"{own} [logterm: {log_term}, index: {index}] sent {_N[kind]} request to {to:x} "
        f"at term {term}"),
    Event.VOTE_RECEIVED: (
        INFO, lambda own, kind, sender, term, granted:
        f"{own} received {_N[kind]}{'' if granted else ' rejection'} from {sender:x} "
        f"at term {term}"),
    Event.VOTES_COUNTED: (
        INFO, lambda own, granted, kind, rejected:
        f"{own} has received {granted} {_N[kind]} votes and {rejected} vote rejections"),
    Event.VOTE_CAST: (INFO, _vote_line("cast")),
    Event.VOTE_REJECTED: (INFO, _vote_line("rejected")),
    Event.VOTE_IGNORED_IN_LEASE: (INFO, _vote_line("ignored")),
    Event.HIGHER_TERM_SEEN: (
        INFO, lambda own, term, kind, sender, its_term:
        f"{own} [term: {term}] received a {_N[kind]} message with higher term from {sender:x} "
        f"[term: {its_term}]"),
    Event.LOWER_TERM_IGNORED: (
        INFO, lambda own, term, kind, sender, its_term:
        f"{own} [term: {term}] ignored a {_N[kind]} message with lower term from {sender:x} "
        f"[term: {its_term}]"),
    Event.LOWER_TERM_STORAGE_IGNORED: (
        INFO, lambda own, term, kind, its_term:
        f"{own} [term: {term}] ignored entry appends from a {_N[kind]} message with lower term "
        f"[term: {its_term}]"),
    Event.QUORUM_LOST: (
        WARN, lambda own: f"{own} stepped down to follower since quorum is not active"),
    Event.NO_PROGRESS: (DEBUG, lambda own, node: f"{own} no progress available for {node:x}"),
    Event.PROPOSAL_DROPPED_NO_LEADER: (
        INFO, lambda own, term: f"{own} no leader at term {term}; dropping proposal"),
    Event.PROPOSAL_NOT_FORWARDED: (
        INFO, lambda own, leader, term:
        f"{own} not forwarding to leader {leader:x} at term {term}; dropping proposal"),
    Event.PROPOSAL_DROPPED_IN_TRANSFER: (
        DEBUG, lambda own, term, to:
        f"{own} [term {term}] transfer leadership to {to:x} is in progress; dropping proposal"),
    Event.PROPOSAL_DROPPED_TOO_LARGE: (
        WARN, lambda own: f"{own} appending new entries to log would exceed uncommitted entry "
        "size limit; dropping proposal"),
    Event.CHANGE_IGNORED: (INFO, _change_ignored),
    Event.MEMBERSHIP_SWITCHED: (
        INFO, lambda own, membership: f"{own} switched to configuration {membership}"),
    Event.LEAVING_JOINT: (
        INFO, lambda own, membership:
        f"initiating automatic transition out of joint configuration {membership}"),
    Event.NOT_LEAVING_JOINT: (
        DEBUG, lambda own, membership, reason:
        f"not initiating automatic transition out of joint configuration {membership}: {DROPPED}"),
    Event.APPEND_MALFORMED: (
        ERROR, lambda own, sender, index:
        f"{own} ignored malformed MsgApp from {sender:x} at index {index}"),
    Event.APPEND_REJECTED: (
        DEBUG, lambda own, ours, index, log_term, sender:
        f"{own} [logterm: {ours}, index: {index}] rejected MsgApp "
        f"[logterm: {log_term}, index: {index}] from {sender:x}"),
    Event.APPEND_REJECTION_RECEIVED: (
        DEBUG, lambda own, hint, term, sender, index:
        f"{own} received MsgAppResp(rejected, hint: (index {hint}, term {term})) from {sender:x} "
        f"for index {index}"),
    Event.PROGRESS_DECREASED: (
        DEBUG, lambda own, to, value:
        f"{own} decreased progress of {to:x} to [{progress(value)}]"),
    Event.UNREACHABLE: (
        DEBUG, lambda own, to, value:
        f"{own} failed to send message to {to:x} because it is unreachable [{progress(value)}]"),
    Event.SNAPSHOT_SENT: (
        DEBUG, lambda own, first, commit, index, term, to, value:
        f"{own} [firstindex: {first}, commit: {commit}] sent snapshot[index: {index}, "
        f"term: {term}] to {to:x} [{progress(value)}]"),
    Event.REPLICATION_PAUSED: (
        DEBUG, lambda own, to, value:
        f"{own} paused sending replication messages to {to:x} [{progress(value)}]"),
    Event.SNAPSHOT_NOT_SENT_INACTIVE: (
        DEBUG, lambda own, to:
        f"ignore sending snapshot to {to:x} since it is not recently active"),
    Event.SNAPSHOT_UNAVAILABLE: (
        DEBUG, lambda own, to: f"{own} failed to send snapshot to {to:x} because snapshot is "
        "temporarily unavailable"),
    Event.SNAPSHOT_CAUGHT_UP: (
        DEBUG, lambda own, to, value: f"{own} recovered from needing snapshot, resumed sending "
        f"replication messages to {to:x} [{progress(value)}]"),
    Event.SNAPSHOT_SUCCEEDED: (
        DEBUG, lambda own, to, value: f"{own} snapshot succeeded, resumed sending replication "
        f"messages to {to:x} [{progress(value)}]"),
    Event.SNAPSHOT_FAILED: (
        DEBUG, lambda own, to, value: f"{own} snapshot failed, resumed sending replication "
        f"messages to {to:x} [{progress(value)}]"),
    Event.SNAPSHOT_RESTORE_STARTED: (
        INFO, lambda own, log, index, term:
        f"log [{_log_text(log)}] starts to restore snapshot [index: {index}, term: {term}]"),
    Event.SNAPSHOT_RESTORED: (INFO, _restored("restored snapshot")),
    Event.SNAPSHOT_FAST_FORWARDED: (INFO, _restored("fast-forwarded commit to snapshot")),
    Event.SNAPSHOT_NOT_MEMBER: (
        WARN, lambda own, state: f"{own} attempted to restore snapshot but it is not in the "
        f"ConfState {conf_state_proto(state)}; should never happen"),
    Event.SNAPSHOT_ACCEPTED: (
        INFO, lambda own, commit, index, term:
        f"{own} [commit: {commit}] restored snapshot [index: {index}, term: {term}]"),
    Event.SNAPSHOT_IGNORED: (
        INFO, lambda own, commit, index, term:
        f"{own} [commit: {commit}] ignored snapshot [index: {index}, term: {term}]"),
    Event.CONFLICT_FOUND: (
        INFO, lambda own, index, ours, term: f"found conflict at index {index} "
        f"[existing term: {ours}, conflicting term: {term}]"),
    Event.UNSTABLE_REPLACED: (
        INFO, lambda own, index: f"replace the unstable entries from index {index}"),
    Event.UNSTABLE_TRUNCATED: (
        INFO, lambda own, index: f"truncate the unstable entries before index {index}"),
    Event.STABLE_MISSING: (
        INFO, lambda own, index: f"entry at index {index} missing from unstable log; ignoring"),
    Event.STABLE_MATCHED_SNAPSHOT: (
        INFO, lambda own, index: f"entry at index {index} matched unstable snapshot; ignoring"),
    Event.STABLE_MISMATCHED: (
        INFO, lambda own, index, term, ours: f"entry at (index,term)=({index},{term}) mismatched "
        f"with entry at ({index},{ours}) in unstable log; ignoring"),
    Event.TRANSFER_STARTED: (
        INFO, lambda own, term, to:
        f"{own} [term {term}] starts to transfer leadership to {to:x}"),
    Event.TRANSFER_IGNORED_AS_LEARNER: (
        DEBUG, lambda own: f"{own} is learner. Ignored transferring leadership"),
    Event.TRANSFER_IGNORED_AS_SELF: (
        DEBUG, lambda own: f"{own} is already leader. Ignored transferring leadership to self"),
    Event.TRANSFER_IGNORED_AS_SAME: (
        INFO, lambda own, term, to: f"{own} [term {term}] transfer leadership to {to:x} is in "
        f"progress, ignores request to same node {to:x}"),
    Event.TRANSFER_REPLACED: (
        INFO, lambda own, term, to:
        f"{own} [term {term}] abort previous transferring leadership to {to:x}"),
    Event.TRANSFER_DECLINED: (
        INFO, lambda own, term, to: f"{own} [term {term}] {to:x} declined the leadership"),
    Event.TRANSFER_DROPPED_NO_LEADER: (
        INFO, lambda own, term:
        f"{own} no leader at term {term}; dropping leader transfer msg"),
    Event.TIMEOUT_NOW_SENT: (
        INFO, lambda own, to: f"{own} sent MsgTimeoutNow to {to:x} after received MsgAppResp"),
    Event.TIMEOUT_NOW_SENT_AT_ONCE: (
        INFO, lambda own, to: f"{own} sends MsgTimeoutNow to {to:x} immediately as {to:x} "
        "already has up-to-date log"),
    Event.TIMEOUT_NOW_RECEIVED: (
        INFO, lambda own, term, sender: f"{own} [term {term}] received MsgTimeoutNow from "
        f"{sender:x} and starts an election to get leadership."),
    Event.TIMEOUT_NOW_IGNORED: (
        DEBUG, lambda own, term, role, sender: f"{own} [term {term} state {ROLE_NAMES[role]}] "
        f"ignored MsgTimeoutNow from {sender:x}"),
    Event.READ_DROPPED_NO_LEADER: (
        INFO, lambda own, term: f"{own} no leader at term {term}; dropping index reading msg"),
    Event.LEADER_FORGOTTEN: (
        INFO, lambda own, leader, term: f"{own} forgetting leader {leader:x} at term {term}"),
    Event.FORGET_LEADER_IGNORED: (
        ERROR, lambda own: "ignoring MsgForgetLeader due to ReadOnlyLeaseBased"),
}  # fmt: skip
assert set(LINES) == set(Event), "each event needs its line"


def event_line(event: Event, own: int, fields: tuple[object, ...]) -> tuple[int, str]:
    """The level of an event and its line, without the level's name."""
    level, line = LINES[event]
    return level, line(f"{own:x}", *fields)
