"""The events that consensus reports, for logs and for the conformance adapter.

No result depends on them. They are reported where they happen, in order, with plain fields, and
only if they are rare: elections, refusals, membership, snapshots, conflicts. Steady replication
reports none, so a node without a trace pays nothing.

Each event's line lists the fields that come with it, after the node's own id.
"""

from collections.abc import Callable
from enum import Enum, auto


class Event(Enum):
    """The kinds of events; the text after each names its fields."""

    STARTED = auto()
    """voters, term, commit, applied, last index, last term"""
    BECAME_FOLLOWER = auto()
    """term"""
    BECAME_PRE_CANDIDATE = auto()
    """term"""
    BECAME_CANDIDATE = auto()
    """term"""
    BECAME_LEADER = auto()
    """term"""
    CAMPAIGN_STARTED = auto()
    """term"""
    CAMPAIGN_IGNORED_AS_LEADER = auto()
    """nothing"""
    CAMPAIGN_IGNORED_AS_UNPROMOTABLE = auto()
    """nothing"""
    CAMPAIGN_IGNORED_FOR_PENDING_CHANGE = auto()
    """term"""
    VOTE_REQUESTED = auto()
    """last term, last index, message kind, to, term"""
    VOTE_RECEIVED = auto()
    """message kind, sender, term, granted"""
    VOTES_COUNTED = auto()
    """granted, message kind, rejected"""
    VOTE_CAST = auto()
    """last term, last index, vote, message kind, sender, its last term and index, term"""
    VOTE_REJECTED = auto()
    """last term, last index, vote, message kind, sender, its last term and index, term"""
    VOTE_IGNORED_IN_LEASE = auto()
    """last term, last index, vote, kind, sender, its last term and index, term, ticks left"""
    HIGHER_TERM_SEEN = auto()
    """term, message kind, sender, its term"""
    LOWER_TERM_IGNORED = auto()
    """term, message kind, sender, its term"""
    LOWER_TERM_STORAGE_IGNORED = auto()
    """term, message kind, its term"""
    QUORUM_LOST = auto()
    """nothing: a leader steps down"""
    NO_PROGRESS = auto()
    """sender: a leader has no progress of it"""
    PROPOSAL_DROPPED_NO_LEADER = auto()
    """term"""
    PROPOSAL_NOT_FORWARDED = auto()
    """leader, term"""
    PROPOSAL_DROPPED_IN_TRANSFER = auto()
    """term, transfer target"""
    PROPOSAL_DROPPED_TOO_LARGE = auto()
    """nothing"""
    CHANGE_IGNORED = auto()
    """change, membership, reason, pending index, applied"""
    MEMBERSHIP_SWITCHED = auto()
    """membership"""
    LEAVING_JOINT = auto()
    """membership"""
    NOT_LEAVING_JOINT = auto()
    """membership, reason"""
    APPEND_MALFORMED = auto()
    """sender, index: its records do not follow the record before; ignored"""
    APPEND_REJECTED = auto()
    """our term at index, index, its term there, sender"""
    APPEND_REJECTION_RECEIVED = auto()
    """hint, hint term, sender, index"""
    PROGRESS_DECREASED = auto()
    """peer, progress"""
    UNREACHABLE = auto()
    """peer, progress"""
    SNAPSHOT_SENT = auto()
    """first index, commit, snapshot index, snapshot term, peer, progress"""
    REPLICATION_PAUSED = auto()
    """peer, progress"""
    SNAPSHOT_NOT_SENT_INACTIVE = auto()
    """peer"""
    SNAPSHOT_UNAVAILABLE = auto()
    """peer"""
    SNAPSHOT_CAUGHT_UP = auto()
    """peer, progress"""
    SNAPSHOT_SUCCEEDED = auto()
    """peer, progress"""
    SNAPSHOT_FAILED = auto()
    """peer, progress"""
    SNAPSHOT_RESTORE_STARTED = auto()
    """log, index, term"""
    SNAPSHOT_RESTORED = auto()
    """commit, last index, last term, index, term"""
    SNAPSHOT_FAST_FORWARDED = auto()
    """commit, last index, last term, index, term"""
    SNAPSHOT_NOT_MEMBER = auto()
    """membership of the snapshot"""
    SNAPSHOT_ACCEPTED = auto()
    """commit, index, term"""
    SNAPSHOT_IGNORED = auto()
    """commit, index, term"""
    CONFLICT_FOUND = auto()
    """index, existing term, conflicting term"""
    UNSTABLE_REPLACED = auto()
    """from index"""
    UNSTABLE_TRUNCATED = auto()
    """before index"""
    STABLE_MISSING = auto()
    """index"""
    STABLE_MATCHED_SNAPSHOT = auto()
    """index"""
    STABLE_MISMATCHED = auto()
    """index, term, our term"""
    TRANSFER_STARTED = auto()
    """term, target"""
    TRANSFER_IGNORED_AS_LEARNER = auto()
    """nothing"""
    TRANSFER_IGNORED_AS_SELF = auto()
    """nothing"""
    TRANSFER_IGNORED_AS_SAME = auto()
    """term, target"""
    TRANSFER_REPLACED = auto()
    """term, former target"""
    TRANSFER_DECLINED = auto()
    """term, target"""
    TRANSFER_DROPPED_NO_LEADER = auto()
    """term"""
    TIMEOUT_NOW_SENT = auto()
    """target, after its append response"""
    TIMEOUT_NOW_SENT_AT_ONCE = auto()
    """target, which was up to date already"""
    TIMEOUT_NOW_RECEIVED = auto()
    """term, sender"""
    TIMEOUT_NOW_IGNORED = auto()
    """term, role, sender"""
    READ_DROPPED_NO_LEADER = auto()
    """term"""
    LEADER_FORGOTTEN = auto()
    """leader, term"""
    FORGET_LEADER_IGNORED = auto()
    """nothing: lease reads need the leader"""


Trace = Callable[[Event, int, tuple[object, ...]], None]
"""Called as trace(event, own id, fields)."""
