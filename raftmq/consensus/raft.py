"""One node of one Raft group: the public face of the core.

A `Raft` does no I/O and has no clock: the shell calls it, one call at a time, and does what
`ready()` says. See the package heading for the loop and the order of effects.

Sources: Raft; etcd-io/raft's RawNode.
"""

from collections.abc import Callable, Sequence

from raftmq.consensus import (
    abstaining,
    applying,
    election,
    follower,
    leader,
    patience,
    reconfigure,
    transfer,
)
from raftmq.consensus.changes import MembershipChange, encode_change
from raftmq.consensus.config import Config
from raftmq.consensus.core import Core
from raftmq.consensus.membership import InvalidChange
from raftmq.consensus.messages import (
    APPLY_THREAD,
    KINDS_END,
    LOCAL_KINDS,
    RESPONSE_KINDS,
    Message,
    MessageKind,
    Proposal,
)
from raftmq.consensus.ready import Ready, ReadyMaker
from raftmq.consensus.replication import broadcast_heartbeat, send_append
from raftmq.consensus.status import Status, progress_status
from raftmq.consensus.storage import Storage
from raftmq.consensus.trace import Event
from raftmq.consensus.types import NONE, ConfState, DropReason, ProposalDropped, Role, StepRefusal
from raftmq.log.record import Kind

# Bound once: looking a member up in its enum class costs 0.1 µs, and this is in the hot path.
_LEADER = Role.LEADER

Handler = Callable[[Core, Message], DropReason | None]

_ANY_ROLE: dict[MessageKind, Handler] = {
    MessageKind.VOTE: election.on_vote_request,
    MessageKind.PRE_VOTE: election.on_vote_request,
    MessageKind.STORAGE_APPEND_RESPONSE: applying.on_stored,
    MessageKind.STORAGE_APPLY_RESPONSE: applying.on_applied,
}


def _ignore(core: Core, message: Message) -> None:
    """A kind that has no meaning for this role in its own term."""


def _table(handlers: dict[MessageKind, Handler], default: Handler) -> tuple[Handler, ...]:
    known = handlers | _ANY_ROLE
    by_kind = [default] * KINDS_END
    for kind, handler in known.items():
        by_kind[kind] = handler
    return tuple(by_kind)


_CANDIDATE = _table(election.HANDLERS, _ignore)
_HANDLERS = {
    Role.FOLLOWER: _table(
        follower.HANDLERS | {MessageKind.TIMEOUT_NOW: election.on_timeout_now}, _ignore
    ),
    Role.CANDIDATE: _CANDIDATE,
    Role.LEADER: _table(leader.HANDLERS, leader.ignore),
    Role.PRE_CANDIDATE: _CANDIDATE,
}
_BY_ROLE = tuple(_HANDLERS[role] for role in Role)
_NEEDS_CHECK = tuple(kind in LOCAL_KINDS or kind in RESPONSE_KINDS for kind in range(KINDS_END))


class Raft:
    """One node. Not thread-safe; every method returns at once.

    It starts as a follower without a leader, in the term and with the vote that `storage` has.

    A group is founded by giving each first member the same snapshot, at index 1 or above, whose
    membership names them all. A node that joins later starts empty, with no membership at all: as
    nothing in its log can match, its first leader sends it a snapshot, and so a membership.
    Replaying the log from 0 instead would have it apply the changes without the membership that
    they change, up to a membership of itself alone that elects it (found by simulation).

    Raises:
        ValueError: `config` is inconsistent (see `Config.validate`), or the founding membership
            has no snapshot under it.
    """

    __slots__ = ("_core", "_ready")

    def __init__(self, config: Config, storage: Storage) -> None:
        config.validate()
        core = Core(config, storage)
        hard_state, conf_state = storage.initial_state()
        if conf_state.voters and storage.first_index() == 1:
            raise ValueError("a group is founded by a snapshot at index 1 or above, not at 0")
        reconfigure.restore_membership(core, conf_state, last_index=core.log.last_index)
        _restore_hard_state(core, *hard_state)
        if config.applied:
            # Applied records were committed, though the commit index may not have been synced.
            core.log.commit_to(config.applied)
            core.log.applied_to(config.applied)
        core.votes_written.durable = (core.term, core.vote)
        core.become_follower(core.term, NONE)
        log = core.log
        assert log.applied <= log.committed <= log.last_index, f"recovered out of order: {log}"
        core.note(
            Event.STARTED,
            sorted(core.membership.voters),
            core.term,
            log.committed,
            log.applied,
            log.last_index,
            log.last_term,
        )
        self._core = core
        self._ready = ReadyMaker(core, async_storage_writes=config.async_storage_writes)

    # Input

    def tick(self) -> None:
        """One tick has passed: elections, heartbeats and CheckQuorum count them."""
        core = self._core
        if core.role is Role.LEADER:
            leader.tick(core)
        else:
            election.tick(core)

    def step(self, message: Message, *, now: int = 0) -> StepRefusal | None:
        """Take in a message from a peer, or a response from this node's own storage threads.

        `now` (ms) stamps proposals that a follower forwarded; the last record's time if 0.
        Returns why the message was ignored, or None. Old, doubled and reordered messages are
        normal and not reported. `message.entries` must be records whose CRC was checked.
        """
        core = self._core
        kind = message.kind
        # A peer cannot speak for this node's own threads, and a stranger was asked nothing.
        if _NEEDS_CHECK[kind] and message.sender < APPLY_THREAD:
            if kind in LOCAL_KINDS:
                return StepRefusal.LOCAL_MESSAGE
            if message.sender not in core.members:
                return StepRefusal.UNKNOWN_PEER
        core.now = now
        return self._step(message)

    def _step(self, message: Message) -> StepRefusal | None:
        core = self._core
        term = message.term
        if term and term != core.term and not election.settle_term(core, message):
            return None
        refused = _BY_ROLE[core.role][message.kind](core, message)
        return None if refused is None else StepRefusal.PROPOSAL_DROPPED

    def propose(self, items: Sequence[Proposal], *, now: int) -> int:
        """Append records, given as `Proposal`s, in one go: consecutive, all or nothing.

        They are stamped by `record_time(now)`, `now` in ms since 1970. Returns the index of the
        first; 0 if they were forwarded to the leader, in which case their fate is unknown.
        Nothing is durable or committed yet: that shows when they come back in
        `Ready.committed` with the same term; if another term's record has the index, they are
        lost.

        Raises:
            ProposalDropped: nothing was appended; the reason says whether to go elsewhere.
        """
        assert items, "a proposal without records"
        core = self._core
        core.now = now
        if core.role is _LEADER:
            outcome = leader.propose(core, items)
            if isinstance(outcome, DropReason):
                raise ProposalDropped(outcome, leader=core.leader)
            return outcome
        message = Message(MessageKind.PROPOSE, core.id, sender=core.id, proposals=tuple(items))
        refused = _BY_ROLE[core.role][MessageKind.PROPOSE](core, message)
        if refused is not None:
            raise ProposalDropped(refused, leader=core.leader)
        return 0

    def record_time(self, now: int) -> int:
        """The stamp of a record appended at `now`, in ms since 1970: `now`, or a time after it that
        goes on at half the pace while the log is ahead of our clock."""
        return self._core.stamp(now)

    def propose_membership(self, change: MembershipChange, *, now: int) -> int:
        """Append a membership change. Returns its index, or 0 if it was forwarded.

        It takes effect on each node when that node's shell passes it to `apply_membership`. A
        joint one is left by itself unless its transition is JOINT_EXPLICIT.

        Raises:
            ProposalDropped: nothing was appended. CHANGE_PENDING and MUST_LEAVE_JOINT pass with
                time; INVALID_CHANGE does not.
        """
        core = self._core
        if core.role is Role.LEADER and not core.config.disable_membership_validation:
            reason = leader.change_refusal(core, change)
            if reason is not None:
                raise ProposalDropped(reason, leader=core.leader)
            try:
                reconfigure.planned(core, change)
            except InvalidChange as error:
                reason = DropReason.INVALID_CHANGE
                raise ProposalDropped(reason, leader=core.leader, detail=str(error)) from error
        return self.propose([(Kind.MEMBERSHIP, encode_change(change), 1)], now=now)

    def campaign(self) -> None:
        """Ask for votes now. Ignored by a leader, a learner, and a node that must apply a change
        first; and where votes are slow to become durable (`patience`): a campaign on top of one
        that is on would undo it."""
        if not patience.is_slow(self._core):
            election.campaign(self._core)

    def transfer_leadership(self, to: int) -> None:
        """Hand over to `to`, or ask the leader to. Watch `Ready.soft_state` for the outcome."""
        self._step(Message(MessageKind.TRANSFER_LEADER, self._core.id, sender=to))

    def decline(self, message: Message) -> None:
        """Answer a TIMEOUT_NOW that this member must not act on, instead of stepping it: the
        leader that sent it goes on at once."""
        assert message.kind is MessageKind.TIMEOUT_NOW, message.kind
        if message.term == self._core.term:
            transfer.decline(self._core, message.sender)

    def read_index(self, context: bytes) -> None:
        """Ask for a linearizable read; the answer is a `ReadState` with the same `context`.

        `context` must be unique among the reads in progress. There is no answer if there is no
        leader or it changes meanwhile: ask again after a while, with a new context.
        """
        assert context, "a read needs a context to be recognised by"
        self._step(Message(MessageKind.READ_INDEX, self._core.id, context=context))

    def call_roll(self, context: bytes) -> None:
        """Leader: send a heartbeat that each member answers; `roll_call_answers` has who did.

        An answer proves that messages pass both ways, and at a later moment than this call, however
        long the process stands still in between. `context` must differ from those of all reads.
        """
        core = self._core
        core.reads.roll_call, core.reads.answers = context, {core.id}
        if core.role is Role.LEADER:
            broadcast_heartbeat(core, context)

    @property
    def roll_call_answers(self) -> frozenset[int]:
        """The members that have answered the last `call_roll`; empty after a change of the term."""
        return frozenset(self._core.reads.answers)

    @property
    def abstains(self) -> bool:
        """Whether this member neither votes nor campaigns, as it lost a part of its log."""
        return self._core.abstains

    @property
    def may_count_again(self) -> bool:
        """Whether an abstaining member holds all again; `end_abstention` once that is noted."""
        return abstaining.may_count_again(self._core)

    @property
    def has_lost(self) -> bool:
        """Whether this member was found to lack what it acknowledged: it must abstain."""
        return self._core.has_lost

    def end_abstention(self) -> None:
        """Vote and campaign again, once `may_count_again` was true: what this member held then
        it holds still, though `may_count_again` turns false in the next term."""
        self._core.abstains = False

    def forget_leader(self) -> None:
        """Follower: listen to candidates at once, though the leader was heard from recently."""
        self._step(Message(MessageKind.FORGET_LEADER, self._core.id))

    def report_unreachable(self, peer: int) -> None:
        """A message to `peer` was lost on the way: stop streaming to it, probe."""
        self._step(Message(MessageKind.UNREACHABLE, self._core.id, sender=peer))

    def report_snapshot(self, peer: int, *, ok: bool) -> None:
        """The snapshot for `peer` has arrived, or failed. Each SNAPSHOT message needs this."""
        kind = MessageKind.SNAPSHOT_STATUS
        self._step(Message(kind, self._core.id, sender=peer, reject=not ok))

    def apply_membership(self, change: MembershipChange) -> ConfState:
        """A committed MEMBERSHIP record is being applied (decode it with `decode_change`).

        Call it for each one, in log order. Returns the membership from there on: to be kept with
        the machine's state, for snapshots and for `Storage.initial_state`.

        Raises:
            InvalidChange: the change is impossible; nothing was changed, and the same happens on
                each replica. Go on with the next record.
        """
        return reconfigure.apply_change(self._core, change)

    def entries_fetched(self, peer: int) -> None:
        """The records of a `Fetch` for `peer` are in memory now, or could not be read.

        Consensus asks storage again, and hands out another `Fetch` if it must.
        """
        core = self._core
        if peer == core.id:
            core.log.is_applying_fetched = True
            return
        core.fetching.discard(peer)
        progress = core.members.get(peer)
        if core.role is Role.LEADER and progress is not None:
            while progress.next <= core.log.last_index and send_append(
                core, peer, progress, even_if_empty=False
            ):
                pass

    # Output

    def has_ready(self) -> bool:
        """Whether there is work for the shell. Cheap."""
        return self._ready.has_ready()

    def ready(self) -> Ready:
        """All work that is there now. It must be done, in the order the package heading states."""
        return self._ready.make()

    def advance(self) -> None:
        """Synchronous mode: the last `Ready` is done, down to the applied records."""
        for message in self._ready.take_advance():
            self._step(message)

    # Facts

    @property
    def id(self) -> int:
        """This node's id."""
        return self._core.id

    @property
    def role(self) -> Role:
        """The node's present role."""
        return self._core.role

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows; only a read index proves it."""
        return self._core.role is Role.LEADER

    @property
    def leader(self) -> int:
        """The leader as far as this node knows, or `NONE`."""
        return self._core.leader

    @property
    def term(self) -> int:
        """Its current term."""
        return self._core.term

    @property
    def commit(self) -> int:
        """Highest index it knows to be committed."""
        return self._core.log.committed

    @property
    def applied(self) -> int:
        """Highest index reported as applied."""
        return self._core.log.applied

    @property
    def last_index(self) -> int:
        """Index of the last record, durable or not."""
        return self._core.log.last_index

    def status(self) -> Status:
        """A picture of this node, and of its followers if it leads."""
        core = self._core
        log = core.log
        members = core.members if core.role is Role.LEADER else {}
        return Status(
            id=core.id,
            role=core.role,
            leader=core.leader,
            hard_state=core.hard_state,
            membership=core.membership,
            transferee=core.transferee,
            first_index=log.first_index,
            last_index=log.last_index,
            applied=log.applied,
            uncommitted_bytes=core.uncommitted_bytes,
            progress={node: progress_status(members[node]) for node in sorted(members)},
        )


def _restore_hard_state(core: Core, term: int, vote: int, commit: int) -> None:
    if (term, vote, commit) == (0, NONE, 0):
        return
    log = core.log
    assert log.committed <= commit <= log.last_index, (
        f"stored commit {commit} is outside the log [{log.committed}, {log.last_index}]"
    )
    log.committed = commit
    core.term, core.vote = term, vote
