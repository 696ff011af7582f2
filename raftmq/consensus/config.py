"""The settings of one Raft node, a paragraph a field.

Built once at start and never changed. Time is counted in ticks; how long a tick is, only the
shell knows (100 ms is usual).

Sources: etcd-io/raft's Config, whose meanings these follow; Raft §5.2 and §9.3 for the timeouts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from raftmq.consensus.trace import Trace
from raftmq.consensus.types import NONE, UNLIMITED
from raftmq.log.record import RECORD_BYTES_MAX, Record


class ReadMode(Enum):
    """How a leader makes sure that a read is linearizable."""

    SAFE = "safe"
    """A round of heartbeats for each batch of reads (thesis §6.4)."""
    LEASE = "lease"
    """Trust the clock: a leader that heard a quorum within the election timeout answers at once
    (thesis §6.4.1). Wrong when clocks drift or stop."""


def record_bytes(records: Sequence[Record]) -> int:
    """The weight of records against the byte limits: their encoded length."""
    return sum([len(record.encoded) for record in records])


def never_random(count: int) -> int:
    """The draw of a node that has not been given any randomness: always the middle."""
    return count // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of one node of one group. `validate` is called by `Raft`."""

    id: int
    """This node's id in the group: 1 or more, never used again once its log is lost or deleted."""

    election_ticks: int = 10
    """A follower campaigns when it hears from no leader for between this many ticks and one less
    than twice as many, drawn again each time (Raft §5.2). Must exceed `heartbeat_ticks`; ten times
    as many avoids needless elections."""

    heartbeat_ticks: int = 1
    """Ticks between a leader's heartbeats."""

    applied: int = 0
    """The last index that the machine has applied, after a restart. Committed records above it
    are handed out by `ready`; too low a value hands out some again. 0 means: what the storage's
    first index implies."""

    abstains: bool = False
    """This member lost a part of its log, and its storage says a term above all in which it can
    have voted or acknowledged: it follows without campaigning or voting until `end_abstention`
    (see `raftmq.consensus.abstaining`)."""

    pre_vote: bool = True
    """Ask whether an election could be won before starting one (thesis §9.6), so that a node that
    comes back from a partition does not unseat a working leader."""

    check_quorum: bool = True
    """A leader steps down when no quorum answered within `election_ticks` (thesis §6.2), and
    nodes that hear from a leader ignore vote requests (thesis §4.2.3). Needed by lease reads."""

    read_mode: ReadMode = ReadMode.SAFE
    """How `read_index` is answered. `LEASE` needs `check_quorum`."""

    inflight_messages_max: int = 256
    """Appends that may be on their way to one follower. Bounds the memory of the send queue."""

    inflight_bytes_max: int = 64 * 1024 * 1024
    """Record bytes that may be on their way to one follower; at least `message_bytes_max`.
    Little's law: throughput to a follower cannot exceed this over the round trip."""

    message_bytes_max: int = 4 * 1024 * 1024
    """Record bytes in one append. One record always fits, however large; 0 means one record a
    message."""

    uncommitted_bytes_max: int = 256 * 1024 * 1024
    """Record bytes that a leader may have appended and not seen applied; beyond, `propose`
    refuses. A proposal is always taken while there are none."""

    committed_bytes_max: int = 64 * 1024 * 1024
    """Record bytes handed out to be applied and not yet acknowledged as applied."""

    async_storage_writes: bool = False
    """Storage work comes as messages to two local threads whose responses are stepped back, in
    place of `Ready.entries`, `hard_state`, `snapshot`, `committed` and `advance()`. Lets the next
    append start while the last one syncs."""

    votes_wait: bool = True
    """With asynchronous writes: a candidate's requests leave when its own term and vote are durable
    (Raft figure 2). Else it could be elected by the others, crash, and be elected in the same term
    again, with another log. Election timers stand still meanwhile (`patience`). False only to
    replay etcd's data files: etcd does not wait."""

    announce_commit: bool = True
    """When the commit index moves and there are no records to send along, followers get an empty
    append at once, which they answer. False saves those messages: followers learn the index with
    the next records, or with the next heartbeat. Only their own applying is later for it."""

    step_down_on_removal: bool = True
    """A leader that is removed or demoted becomes a follower once that change is applied (Raft
    §6); otherwise it leads on without counting itself."""

    refuse_foreign_snapshots: bool = False
    """Ignore a snapshot whose membership lacks this node. Off, because a new member is sent the
    oldest snapshot that is kept, which may be older than its own addition; it learns of that from
    the records that follow. It cannot campaign before, as no membership before its addition has
    its id: that takes an id that no earlier log of the group had."""

    disable_proposal_forwarding: bool = True
    """A follower refuses proposals (`NOT_LEADER`, with the leader's id) instead of sending them
    on. Forwarded proposals can be lost without an error."""

    disable_membership_validation: bool = False
    """Take membership proposals without checking them against the active membership, which may
    lag behind the log. Only for a shell that orders and checks them itself."""

    draw: Callable[[int], int] = never_random
    """Uniform in [0, n): spreads election timeouts. The only randomness of the core."""

    trace: Trace | None = None
    """Called with each noteworthy event (see `raftmq.consensus.trace`); None costs nothing."""

    measure: Callable[[Sequence[Record]], int] = record_bytes
    """The weight of records against `message_bytes_max` and `committed_bytes_max`."""

    @property
    def waits_for_votes(self) -> bool:
        """Whether campaigns and election timers wait until term and vote are durable."""
        return self.async_storage_writes and self.votes_wait

    def validate(self) -> None:
        """Check all fields and their combinations.

        Raises:
            ValueError: names the fields in conflict and what would be right.
        """
        if not NONE < self.id < 2**63:
            raise ValueError(f"id must be between 1 and 2**63 - 1, not {self.id}")
        if self.heartbeat_ticks < 1:
            raise ValueError(f"heartbeat_ticks must be at least 1, not {self.heartbeat_ticks}")
        if self.election_ticks <= self.heartbeat_ticks:
            raise ValueError(
                f"election_ticks ({self.election_ticks}) must be greater than "
                f"heartbeat_ticks ({self.heartbeat_ticks})"
            )
        if self.applied < 0:
            raise ValueError(f"applied must not be negative, not {self.applied}")
        if self.inflight_messages_max < 1:
            raise ValueError(
                f"inflight_messages_max must be at least 1, not {self.inflight_messages_max}"
            )
        if self.read_mode is ReadMode.LEASE and not self.check_quorum:
            raise ValueError("read_mode LEASE needs check_quorum")
        self._validate_bytes()

    def _validate_bytes(self) -> None:
        for name in ("uncommitted_bytes_max", "committed_bytes_max", "inflight_bytes_max"):
            value = getattr(self, name)
            if not 1 <= value <= UNLIMITED:
                raise ValueError(f"{name} must be between 1 and 2**63 - 1, not {value}")
        if not 0 <= self.message_bytes_max <= UNLIMITED:
            raise ValueError(
                f"message_bytes_max must not be negative, not {self.message_bytes_max}"
            )
        if self.inflight_bytes_max < self.message_bytes_max:
            raise ValueError(
                f"inflight_bytes_max ({self.inflight_bytes_max}) must be at least "
                f"message_bytes_max ({self.message_bytes_max})"
            )


assert Config(id=1).inflight_bytes_max >= RECORD_BYTES_MAX, "one record must fit the window"
