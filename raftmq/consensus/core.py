"""The state of one Raft node and the transitions between its roles.

    follower --timeout--> (pre-candidate --quorum would--> ) candidate --majority--> leader
       ^------------------ higher term, or another leader in this term ---------------'

`Core` holds what figure 2 of the Raft paper lists as state, and the outboxes. It has no opinion
on messages: the modules that do take it as their first argument.

| module | holds |
|---|---|
| `election`, `patience` | campaigns, votes, the term rules; elections on slow disks |
| `leader`, `replication` | proposals, appends to followers, commit, reads, transfer |
| `follower` | appends, heartbeats, snapshots from a leader |
| `reconfigure` | switching membership |
| `ready` | what the shell must do |

Invariants:
- `term` never falls; within a term `vote` changes only once, from `NONE` to a node.
- Messages that vouch for something (votes, acknowledged appends) wait in `after_append` until
  all that was unstable when they were made is on disk (thesis §3.8).

Sources: Raft §5.1, §5.2, figure 2 and 4; etcd-io/raft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.consensus.config import Config
from raftmq.consensus.log import RaftLog
from raftmq.consensus.membership import Members, Membership
from raftmq.consensus.messages import Message
from raftmq.consensus.progress import Progress
from raftmq.consensus.reads import ReadQueue
from raftmq.consensus.storage import Storage
from raftmq.consensus.trace import Event
from raftmq.consensus.types import NONE, Fetch, HardState, ReadState, Role, SoftState
from raftmq.log.record import Record


@dataclass(slots=True)
class VotesWritten:
    """How our own votes come to the disk: see `patience`."""

    durable: tuple[int, int] = (0, NONE)
    """Term and vote that are known to be durable."""
    ticks_so_far: int = 0
    """Ticks without a leader since what was durable was last up to date."""
    ticks: int = 0
    """Ticks that it took the last time; 0 also once a leader is known."""
    has_yielded: bool = False
    """Whether a pre-candidate has restarted our timer since our own last campaign."""

    def forget(self) -> None:
        """A leader is known: the next election begins as if on a quick disk."""
        self.ticks = self.ticks_so_far = 0


class Core:
    """All that a node remembers. It is state: the role modules change it."""

    __slots__ = (
        "abstains",
        "after_append",
        "behind_since",
        "config",
        "election_elapsed",
        "election_timeout",
        "fetches",
        "fetching",
        "has_lost",
        "heartbeat_elapsed",
        "id",
        "incoming",
        "last_read",
        "last_read_key",
        "leader",
        "log",
        "members",
        "membership",
        "messages",
        "now",
        "outgoing",
        "peers",
        "pending_change_index",
        "pending_reads",
        "read_states",
        "reads",
        "role",
        "term",
        "term_first_index",
        "transferee",
        "uncommitted_bytes",
        "vote",
        "votes",
        "votes_written",
    )

    def __init__(self, config: Config, storage: Storage) -> None:
        self.config = config
        self.id = config.id
        self.log = RaftLog(
            storage,
            committed_bytes_max=config.committed_bytes_max,
            measure=config.measure,
            note=self.note,
        )
        self.abstains = config.abstains
        """Whether it neither votes nor campaigns, as it lost a part of its log."""
        self.has_lost = False
        """Whether a leader counts records as ours that are not here."""
        self.term = 0
        """currentTerm of figure 2."""
        self.vote = NONE
        """votedFor of figure 2."""
        self.role = Role.FOLLOWER
        self.leader = NONE
        self.votes: dict[int, bool] = {}
        """Candidate: the votes received in this campaign."""

        self.election_elapsed = 0
        """Ticks since the election timer was reset."""
        self.heartbeat_elapsed = 0
        """Leader: ticks since the last heartbeats."""
        self.election_timeout = config.election_ticks  # see `draw_timeout`
        self.votes_written = VotesWritten()
        self.now = 0
        """The latest time the shell told, in ms; only stamps records."""
        self.behind_since: tuple[int, int] | None = None
        """Clock and log time from which stamps go on at half the pace; None: not behind."""

        self.membership = Membership()
        self.members: Members = {}
        """Progress by member, this node included."""
        self.peers: list[tuple[int, Progress]] = []
        """The members but this node, sorted: whom a leader sends to."""
        self.incoming: list[Progress] = []
        """Progress of the incoming voters: whose majority commits."""
        self.outgoing: list[Progress] = []
        """Progress of the outgoing voters; empty when not joint."""
        self.pending_change_index = 0
        """Leader: no membership change after this index is known to be in the log. A new one may
        be proposed once it is applied."""

        self.term_first_index = 0
        """Leader: index of its first record in this term, the no-op."""
        self.transferee = NONE
        """Leader: whom it is handing over to."""
        self.uncommitted_bytes = 0
        """Leader: record bytes appended in this term and not applied."""
        self.last_read: tuple[Sequence[Record], int] = ((), 0)
        """Leader: the records read for the last append, and their weight."""
        self.last_read_key = (0, 0, 0)
        """Leader: term, first index and the log's last index of that read."""
        self.reads = ReadQueue()
        self.pending_reads: list[tuple[int, bytes]] = []
        """Leader: reads (requester, context) that came before its first commit in this term."""

        self.messages: list[Message] = []
        """To be sent, now."""
        self.after_append: list[Message] = []
        """To be sent, or stepped if to this node, once all that is unstable now is durable."""
        self.read_states: list[ReadState] = []
        """Granted reads of this node."""
        self.fetches: list[Fetch] = []
        """Records that storage must fetch; to be told to the shell."""
        self.fetching: set[int] = set()
        """Peers that wait for such records."""

    # Small facts

    def note(self, event: Event, *fields: object) -> None:
        """Report `event` if anyone listens."""
        trace = self.config.trace
        if trace is not None:
            trace(event, self.id, fields)

    @property
    def soft_state(self) -> SoftState:
        """The leader, and this node's role."""
        return SoftState(self.leader, self.role)

    @property
    def hard_state(self) -> HardState:
        """The state that must be on disk."""
        return HardState(self.term, self.vote, self.log.committed)

    @property
    def is_promotable(self) -> bool:
        """Whether it may become leader: a voter that is not in the middle of a snapshot, and holds
        all that it ever acknowledged."""
        if self.abstains:
            return False
        progress = self.members.get(self.id)
        if progress is None or progress.is_learner:
            return False
        return self.log.unstable.snapshot is None

    @property
    def in_lease(self) -> bool:
        """Whether it heard from a leader too recently to listen to candidates (thesis §4.2.3)."""
        return (
            self.config.check_quorum
            and self.leader != NONE
            and self.election_elapsed < self.config.election_ticks
        )

    def stamp(self, now: int) -> int:
        """The time of a record that is appended at `now` by our clock; it never goes back.

        The log may be ahead: an earlier leader's clock was fast, or ours was set back. If its time
        stood still until ours had caught up, nothing that is timed by it would fall due. So it goes
        on at half the pace, and ours catches up all the same.
        """
        last = self.log.last_timestamp
        if not 0 < now < last:
            self.behind_since = None
            return max(now, last)
        since, time = self.behind_since or (now, last)
        if now < since or time + (now - since) // 2 < last:
            # Our clock was set back again, or another leader has gone further ahead meanwhile.
            since, time = now, last
        self.behind_since = (since, time)
        stamp = time + (now - since) // 2
        assert stamp >= last, f"stamp {stamp} is before the last record's {last}"
        return stamp

    def index_members(self) -> None:
        """Refresh what is derived from `members`; to be called whenever they change."""
        self.peers = [(node, self.members[node]) for node in sorted(self.members)]
        self.peers = [(node, progress) for node, progress in self.peers if node != self.id]
        self.incoming = [self.members[node] for node in sorted(self.membership.incoming)]
        self.outgoing = [self.members[node] for node in sorted(self.membership.outgoing)]
        # Else a leader would count, or send to, a node that has no part in the group.
        known = self.membership.voters | self.membership.learners
        assert self.members.keys() == known, "a member without progress, or progress of no member"
        assert self.incoming or not self.outgoing, "a joint membership without an incoming half"

    # Transitions

    def reset(self, term: int) -> None:
        """Forget what belongs to a role or a term; every transition but one begins here."""
        if self.term != term:
            assert term > self.term, "terms never fall"
            self.term = term
            self.vote = NONE
        self.leader = NONE
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.draw_timeout()
        self.transferee = NONE
        self.votes = {}
        last = self.log.last_index
        for node, progress in self.members.items():
            # Raft figure 2: nextIndex starts at the leader's last index + 1, matchIndex at 0.
            progress.restart(match=last if node == self.id else 0, next=last + 1)
        self.pending_change_index = 0
        self.uncommitted_bytes = 0
        self.reads = ReadQueue()
        self.pending_reads = []
        self.fetching.clear()
        self.fetches.clear()
        self.last_read, self.last_read_key = ((), 0), (0, 0, 0)

    def draw_timeout(self) -> None:
        """Raft §5.2: "election timeouts are chosen randomly from a fixed interval": from
        election_ticks to one less than twice that, and longer after a slow vote (`patience`)."""
        ticks = self.config.election_ticks + 2 * self.votes_written.ticks
        self.election_timeout = ticks + self.config.draw(ticks)
        assert ticks <= self.election_timeout < 2 * ticks, "a draw outside of its range"

    def become_follower(self, term: int, leader: int) -> None:
        """Follow `leader` in `term`; `NONE`: no leader is known yet (Raft §5.1)."""
        self.reset(term)
        self.leader = leader
        self.role = Role.FOLLOWER
        assert not self.votes, "a follower holds votes of a campaign"
        self.note(Event.BECAME_FOLLOWER, self.term)

    def become_pre_candidate(self) -> None:
        """Ask before campaigning (thesis §9.6). Neither term nor vote changes."""
        assert self.role is not Role.LEADER, "a leader does not campaign"
        assert self.is_promotable, "a learner or a member that abstains does not ask for votes"
        self.votes = {}
        self.leader = NONE
        self.role = Role.PRE_CANDIDATE
        self.note(Event.BECAME_PRE_CANDIDATE, self.term)

    def become_candidate(self) -> None:
        """Raft §5.2: "a follower increments its current term and transitions to candidate state.
        It then votes for itself"."""
        assert self.role is not Role.LEADER, "a leader does not campaign"
        assert self.is_promotable, "a learner or a member that abstains does not campaign"
        self.reset(self.term + 1)
        assert self.vote == NONE, "a vote in a term that has just begun"
        self.vote = self.id
        self.role = Role.CANDIDATE
        self.note(Event.BECAME_CANDIDATE, self.term)

    def become_leader(self) -> None:
        """Lead in the present term; `leader.take_office` does the rest."""
        # A pre-candidate asked for votes in a term that it is not in.
        assert self.role is Role.CANDIDATE, "only a candidate is elected"
        assert self.vote == self.id, f"elected in term {self.term} with a vote for {self.vote}"
        assert self.is_promotable, "a learner or a member that abstains is elected"
        self.votes_written.forget()
        self.reset(self.term)
        assert self.vote == self.id, "a leader's vote is for itself until its term ends"
        self.leader = self.id
        self.role = Role.LEADER
        own = self.members[self.id]
        own.become_replicate()
        own.is_recently_active = True
        # There may be a membership change in the tail; wait until all of it is applied.
        self.pending_change_index = self.log.last_index
