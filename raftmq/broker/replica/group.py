"""One replica of a partition group: the pump between consensus, disk, machine and indexes.

A group does no I/O. Whatever arrives (a proposal, a peer's message, a finished write, a tick) is
put into the group, and the group is *marked*; the node's pump then runs each marked group once. So
all that arrived meanwhile shares one append, one message to each follower, one write and one fsync:
that is the group commit. `pump` yields the effects (`effects`) in order; the node performs them.
Tickets and waiting reads are answered by the group itself, by plain calls.

    propose ───┐                     ┌─> Send      (append, heartbeat, vote)
    step ──────┤                     ├─> Persist   (and later: persisted)
    tick ──────┼─> mark ─> pump ─────┼─> ReadBack  (and later: fetched)
    persisted ─┤                     ├─> Applied   (indexes, fetches, services)
    fetched ───┘                     └─> TakeSnapshot, Led, ...

Order of effects (Raft §5.3, and `raftmq.consensus`): appends go to the followers while the leader's
own disk still writes; an answer to a peer leaves only after what it claims is durable, because it
travels in the `responses` of the storage message; a client is answered after apply, so after a
majority's fdatasync.

Invariants:
- A ticket is used exactly once: with the result of its own record (same index, same term), or
  failed. A leader that loses office fails them all as `outcome_unknown`.
- The machine sees each committed record once, in order, from its snapshot on.
"""

from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from raftmq.broker.tickets import Ticket
from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    Change,
    ConfState,
    DropReason,
    InvalidChange,
    MembershipChange,
    Message,
    ProposalDropped,
    Raft,
    Role,
    SnapshotMeta,
    decode_change,
)
from raftmq.errors import Reason
from raftmq.log.cache import LogCache
from raftmq.log.index import LogIndex
from raftmq.log.record import Kind, Record
from raftmq.log.segment import Link, SegmentInfo
from raftmq.log.store import LogStore
from raftmq.machine.catalog.replicas import generation_of, listed_members, member_id, node_of
from raftmq.results import Result
from raftmq.wire.messages import ErrorReply

from .effects import (
    Applied,
    Effect,
    EndAbstention,
    Led,
    NoteLoss,
    Persist,
    ReadBack,
    RestoreSnapshot,
    Send,
    TakeSnapshot,
)
from .storage import GroupStorage, since_last_snapshot

__all__ = ["Group", "Machine", "Parts", "generation_of", "member_id", "node_of"]

PROPOSE_RECORDS_MAX = 1024
"""Records appended in one go; bounds how long the loop is held."""
PROPOSE_BYTES_MAX = 8 * 1024 * 1024
"""Bytes appended in one go, exceeded by one record at most."""
LEADERS_MAX = 1000
"""Newest terms whose leaders are remembered."""
READS_MAX = 64
"""Reads that wait for another leader's word, which may be lost."""

TERM_FAR = 1 << 62
"""A term that no group reaches, so that from there on elections have terms left for ever."""
TERM_LEAP_MAX = 1 << 32
"""Terms by which a message may be ahead of this member and of `TERM_FAR`: more than the elections
of a century. Else one message with the highest term would leave the next election none."""

_READ_CONTEXT_BITS = (1 << 63) - 1


class Machine(Protocol):
    """The replicated machine of a group; see `raftmq.machine`."""

    applied: int
    """Index of the last record applied."""
    digest: int
    """Comparable between replicas at the same index."""
    log_start: int
    """The first index that retention keeps."""
    record_version: int
    """The newest version of records that `apply` accepts."""

    def apply(self, record: Record) -> list[Result]:
        """Apply the record at `applied + 1`."""

    state_version: int
    """Version of the snapshot format; machines of one version and one log give equal bytes."""

    def snapshot(self) -> bytes:
        """The whole state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a group; see the fields of `Group`."""

    raft: Raft
    storage: GroupStorage
    cache: LogCache
    store: LogStore
    index: LogIndex
    machine: Machine
    conf_state: ConfState
    abstains: str = ""


class Group:
    """One member of one partition group, on this node."""

    def __init__(
        self,
        number: int,
        parts: Parts,
        *,
        mark: Callable[["Group"], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`mark` has the group's `pump` run soon; `now_ms` is the wall clock in milliseconds."""
        self.number = number
        """The partition group's number."""
        self.raft = parts.raft
        """The consensus core."""
        self.storage = parts.storage
        """The durable log as consensus reads it."""
        self.cache = parts.cache
        """The durable log, as far as it is in memory."""
        self.store = parts.store
        """The durable log on disk; only for jobs on a worker."""
        self.index = parts.index
        """Where the queues' batches stand in the log."""
        self.machine = parts.machine
        """The replicated state."""
        self.record_version = 1
        """The version of proposed records: see `raftmq.machine.catalog.levels`."""
        self.conf_state = parts.conf_state
        """The membership after the last applied record."""
        self.abstains = parts.abstains
        """Why this member neither votes nor leads: what was cut off its log; empty: it does."""
        self._mark = mark
        self._now_ms = now_ms
        self._waiting: list[tuple[int, bytes, Ticket]] = []
        self._tickets: dict[int, tuple[int, Ticket]] = {}
        # An answer to the process before this one must grant nothing. Bounded, as a clock may show
        # any year, and a context has 8 bytes for the number.
        self._read_context = (now_ms() << 20) & _READ_CONTEXT_BITS
        self._reads: dict[int, list[Callable[[ErrorReply | None], None]]] = {}
        self._granted: list[tuple[int, int]] = []
        self._new_reads: list[Callable[[ErrorReply | None], None]] = []
        self.trimmed = self.machine.log_start
        """The index up to which the log drops segments."""
        self.leaders: dict[int, int] = {}
        """Term → the node that led it, as far as was seen here; the latest ones."""
        self._office = 0
        self._office_index = 0
        self._parting: frozenset[int] = frozenset()
        self._changed_at = 0
        self._borders: set[int] = set()
        self._layout: tuple[SegmentInfo, ...] = self.store.layout
        self.stopping = ""
        """Why this node no longer takes proposals; empty: it does."""
        self.is_retired = False
        """True once this node carries the group no more: nothing that comes back late counts."""
        self.differs = ""
        """How its machine differs from what the log says (`comparison`); empty: it does not."""
        self.full = ""
        """Why this node takes no messages for lack of space, though upkeep; empty: it does."""
        self.is_starved = False
        """True if it takes no commands of clients either (pops, acks, commits), only upkeep."""

    @property
    def is_leader(self) -> bool:
        """True while this member leads, as far as it knows."""
        return self.raft.role is Role.LEADER

    @property
    def is_alone(self) -> bool:
        """True if this member is the only voter."""
        conf = self.conf_state
        return tuple(conf.voters) == (self.raft.id,) and not conf.voters_outgoing

    @property
    def members(self) -> frozenset[int]:
        """All members, by the changes applied here."""
        conf = self.conf_state
        return frozenset((*conf.voters, *conf.voters_outgoing, *conf.learners))

    @property
    def parting(self) -> frozenset[int]:
        """Members that were removed, and whose votes may be needed again."""
        return self._parting if self.owes_mark else frozenset()

    @property
    def owes_mark(self) -> bool:
        """True if this replica would count on the members of before if it started again now: that
        the last change is committed is not written yet."""
        return self.store.proven_commit < self._changed_at

    @property
    def is_settled(self) -> bool:
        """True if every record appended here is applied: what the machine says is the latest."""
        return not self._waiting and self.machine.applied >= self.raft.last_index

    def now_ms(self) -> int:
        """The time that a record would be stamped with; deadlines in the log compare with it."""
        return self.raft.record_time(self._now_ms())

    @property
    def refusal(self) -> str:
        """Why no messages are taken at the moment; empty: they are."""
        return self.stopping or self.differs or self.full

    @property
    def is_current(self) -> bool:
        """True once a leader has applied all that earlier leaders committed (Raft §8): before, it
        does not know how far its queues go. The no-op of its own term comes after all of that."""
        is_caught_up = self.machine.applied >= self._office_index
        return self.is_leader and is_caught_up and not self.differs

    def became_current(self, records: list[Record]) -> bool:
        """True if applying these records made the leader current."""
        return self.is_current and records[0].index <= self._office_index

    @property
    def leader(self) -> int:
        """The member that leads, as far as is known here; 0: none."""
        return self.raft.leader

    def propose(
        self, kind: int, payload: bytes, ticket: Ticket, *, is_upkeep: bool = False
    ) -> None:
        """Append a record; the ticket hears of the outcome, perhaps before this returns.

        Upkeep is taken on a full disk too: it is small, and lets old segments go. Requests of
        clients beside messages are small as well, and are taken down to half of the reserve.
        """
        is_small = is_upkeep or (kind == Kind.COMMANDS and not self.is_starved)
        if not self.is_leader or self.is_retired:
            ticket.failed(self.not_leader())
        elif self.stopping or self.differs or (self.full and not is_small):
            ticket.failed(ErrorReply("busy", self.refusal, retry_ms=1000))
        else:
            self._waiting.append((kind, payload, ticket))
            self._mark(self)

    def read(self, ready: Callable[[ErrorReply | None], None]) -> None:
        """Call `ready(None)` once the machine is as new as this moment (Raft thesis §6.4).

        A read of the machine inside that call is linearizable. On failure it gets the reason.
        """
        if not self.is_leader or self.is_retired:
            ready(self.not_leader())
            return
        self._new_reads.append(ready)
        self._mark(self)

    def read_behind_leader(self, ready: Callable[[ErrorReply | None], None]) -> None:
        """As `read`, on any member. No call follows if a message to or from the leader is lost."""
        if not self.leader:
            ready(self.not_leader())
            return
        if not self.is_leader and len(self._reads) >= READS_MAX:
            self._fail_reads()
        self._new_reads.append(ready)
        self._mark(self)

    def call_roll(self) -> None:
        """Ask each member for a sign of life: see `Raft.call_roll`."""
        self.raft.call_roll(self._next_context())
        self._mark(self)

    def step(self, message: Message) -> None:
        """Take in a message from a peer; one of an impossible term is dropped."""
        if message.term <= max(self.raft.term, TERM_FAR) + TERM_LEAP_MAX:
            self.raft.step(message)
            self._mark(self)

    def decline(self, message: Message) -> None:
        """Answer a leader that hands over to this member: it must not lead now."""
        self.raft.decline(message)
        self._mark(self)

    def tick(self) -> None:
        """Let one tick pass."""
        self.raft.tick()
        self._lead_if_alone()
        self._mark(self)

    def persisted(self, messages: list[Message]) -> Iterator[Effect]:
        """Storage messages are durable: make them visible to consensus, pass on the answers.

        Without messages the store began a segment. The effects are performed as those of `pump`.
        """
        for message in since_last_snapshot(messages):
            if message.snapshot is not None:
                yield RestoreSnapshot(message.snapshot)
            if message.entries:
                self.cache.append(message.entries)
        # Before the answers are stepped: they may let the machine pass a new segment's border.
        if self.store.layout is not self._layout:
            self._arrange()
            # A quiet log rolls when its last record is long applied: the border is here and now.
            record = self.cache.get(self.machine.applied)
            if record is not None and any(s.base == record.index + 1 for s in self._layout):
                yield TakeSnapshot(record)
        for message in messages:
            yield from self._respond(message)
        self._mark(self)

    def _arrange(self) -> None:
        """The store began or sealed a segment."""
        self._layout = self.store.layout
        self.index.arrange(self._layout)
        borders = {segment.base - 1 for segment in self._layout}
        self._borders = {index for index in borders if index > self.machine.applied}

    def fetched(self, peer: int, records: list[Record]) -> None:
        """The records of a `ReadBack` are here."""
        self.storage.lend(peer, records)
        self.raft.entries_fetched(peer)
        self._mark(self)

    def stop(self, refusal: str) -> None:
        """Take no more proposals; those under way are still answered."""
        self.stopping = refusal

    def retire(self) -> None:
        """This node carries the group no more: tell all who wait for it, and act on nothing."""
        self.is_retired = True
        waiting, self._waiting = self._waiting, []
        reads, self._new_reads = self._new_reads, []
        for _, _, ticket in waiting:
            ticket.failed(self.not_leader())
        for ready in reads:
            ready(self.not_leader())
        self._lose_office()

    def give_up(self, why: str) -> None:
        """Fail all tickets as `outcome_unknown`: their records may be written at any time."""
        unknown = ErrorReply("outcome_unknown", why, group=self.number)
        tickets, self._tickets = self._tickets, {}
        for _, ticket in tickets.values():
            ticket.failed(unknown)

    def replace_machine(self, machine: Machine, meta: SnapshotMeta) -> None:
        """A snapshot took the place of log and machine."""
        self.machine = machine
        self.conf_state = meta.conf_state
        self._parting, self._changed_at = frozenset(), 0
        self.cache.restore(Link(meta.index, meta.term, meta.crc, meta.timestamp))
        self.index.restore(self.store.layout)
        self._arrange()

    def forget_leader(self) -> None:
        """The leader's process is known to be gone: listen to candidates at once."""
        self.raft.forget_leader()
        self._mark(self)

    def campaign(self) -> None:
        """Ask for votes now, by pre-vote, rather than at the election timeout."""
        self.raft.campaign()
        self._mark(self)

    def transfer(self, to: int, *, drained: Container[int] = ()) -> ErrorReply | None:
        """Start handing the leadership to a member; 0: the furthest voter on no drained node.

        Returns why it cannot be done, or None; whether it succeeds shows in who leads later.
        """
        if not self.is_leader:
            return self.not_leader()
        progress = self.raft.status().progress
        others = {m: p.match for m, p in progress.items() if m != self.raft.id and not p.is_learner}
        able = [member for member in others if node_of(member) not in drained]
        target = to or max(able, key=lambda member: (others[member], -member), default=0)
        if target == self.raft.id:
            return None
        if target not in others:
            conf, leader = self.conf_state, node_of(self.raft.id)
            members = listed_members(conf.voters, conf.learners, leader=leader)
            text = f"node {node_of(to)} is no voter of partition group {self.number}"
            message = f"{text}; its members are nodes {members}"
            return ErrorReply(Reason.UNKNOWN_NODE.value, message)
        self.raft.transfer_leadership(target)
        self._mark(self)
        return None

    def voter_of(self, node: int) -> int:
        """The member id under which a node votes here; its plain number if it does not vote."""
        return max((m for m in self.conf_state.voters if node_of(m) == node), default=node)

    def change_members(self, changes: list[Change], ticket: Ticket) -> None:
        """Propose a change of the membership; several changes at once go through a joint one."""
        change = MembershipChange(tuple(changes))
        try:
            index = self.raft.propose_membership(change, now=self._now_ms())
        except ProposalDropped as dropped:
            ticket.failed(self._refusal_of(dropped))
            return
        self._tickets[index] = (self.raft.term, ticket)
        self._mark(self)

    def snapshot_meta(self, record: Record) -> SnapshotMeta:
        """Where the machine stands just after it applied `record`, the last one it did."""
        assert record.index == self.machine.applied
        conf_state = self.conf_state
        return SnapshotMeta(record.index, record.term, conf_state, record.crc, record.timestamp)

    def not_leader(self) -> ErrorReply:
        """The refusal that tells a client where to go."""
        message = f"this node does not lead partition group {self.number}"
        return ErrorReply("not_leader", message, group=self.number, leader=node_of(self.leader))

    def pump(self) -> Iterator[Effect]:
        """Let consensus take in all that waits; yields the effects in their order.

        Each effect must be performed before the next one is asked for, and all must be asked for.
        """
        if self._waiting:
            self._propose_waiting()
        if self._new_reads:
            self._ask_for_read()
        raft = self.raft
        while raft.has_ready():
            ready = raft.ready()
            for message in ready.messages:
                if message.to == APPEND_THREAD:
                    yield Persist(message)
                elif message.to == APPLY_THREAD:
                    yield from self._apply(message)
                else:
                    yield Send(message)
            for fetch in ready.fetches:
                yield ReadBack(fetch.peer, fetch.low, fetch.high)
            granted = [(each.index, int.from_bytes(each.context[8:])) for each in ready.read_states]
            self._granted += [each for each in granted if each[1] in self._reads]
        if self._granted:
            self._answer_reads()
        if raft.has_lost:
            yield NoteLoss()
        if self.abstains and raft.may_count_again:
            yield EndAbstention()
        if raft.leader and raft.term not in self.leaders:
            self._note_leader()
        office = raft.term if self.is_leader else 0
        if office != self._office:
            self._change_office(office)
            yield Led(bool(office))

    def _propose_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        while waiting:
            count, size = 0, 0
            while count < len(waiting) and count < PROPOSE_RECORDS_MAX and size < PROPOSE_BYTES_MAX:
                size += len(waiting[count][1])
                count += 1
            self._propose(waiting[:count])
            del waiting[:count]

    def _propose(self, items: list[tuple[int, bytes, Ticket]]) -> None:
        records = [(kind, payload, self.record_version) for kind, payload, _ in items]
        try:
            first = self.raft.propose(records, now=self._now_ms())
        except ProposalDropped as dropped:
            error = self._refusal_of(dropped)
            for _, _, ticket in items:
                ticket.failed(error)
            return
        term = self.raft.term
        for index, (_, _, ticket) in enumerate(items, first):
            self._tickets[index] = (term, ticket)

    def _refusal_of(self, dropped: ProposalDropped) -> ErrorReply:
        match dropped.reason:
            case DropReason.NO_LEADER | DropReason.NOT_LEADER | DropReason.NOT_MEMBER:
                return self.not_leader()
            case DropReason.CHANGE_PENDING | DropReason.MUST_LEAVE_JOINT:
                return ErrorReply("change_in_progress", str(dropped))
            case DropReason.TOO_MUCH_UNCOMMITTED:
                message = "the records not yet on a majority's disks are at their limit"
                return ErrorReply("busy", message, retry_ms=50)
            case _:
                return ErrorReply("busy", str(dropped), retry_ms=200)

    def _ask_for_read(self) -> None:
        reads, self._new_reads = self._new_reads, []
        context = self._next_context()
        self._reads[self._read_context] = reads
        self.raft.read_index(context)

    def _next_context(self) -> bytes:
        self._read_context += 1
        # All members ask one leader: their contexts must differ.
        return self.raft.id.to_bytes(8) + self._read_context.to_bytes(8)

    def _answer_reads(self) -> None:
        still = []
        for index, context in self._granted:
            if self.machine.applied < index:
                still.append((index, context))
                continue
            for ready in self._reads.pop(context, ()):
                ready(None)
        self._granted = still

    def _apply(self, message: Message) -> Iterator[Effect]:
        """Apply committed records, answer who waits for them, and tell consensus."""
        records = list(message.entries)
        results = []
        for record in records:
            if record.kind == Kind.MEMBERSHIP:
                self._change_membership(record)
            result = self.machine.apply(record)
            results.append(result)
            if self._borders and record.index in self._borders:
                self._borders.discard(record.index)
                yield TakeSnapshot(record)
            held = self._tickets.pop(record.index, None)
            if held is not None:
                self._settle(held, record, result)
        yield Applied(records, results)
        yield from self._respond(message)
        self._lead_if_alone()

    def _lead_if_alone(self) -> None:
        """A lone member need not leave time to others. Consensus refuses as long as the end of the
        log is not applied."""
        if self.raft.role is Role.FOLLOWER and self.is_alone:
            self.raft.campaign()

    def _change_membership(self, record: Record) -> None:
        # An impossible change is refused alike on every replica: the membership stays as it is.
        with suppress(InvalidChange):
            before = self.members
            self.conf_state = self.raft.apply_membership(decode_change(record.payload))
            self._parting = (self.parting | before) - self.members
            self._changed_at = record.index

    def _settle(self, held: tuple[int, Ticket], record: Record, result: list[Result]) -> None:
        term, ticket = held
        if record.term == term:
            ticket.done(result)
        else:
            # Another leader's record took the place: ours can never be committed (Raft §5.4).
            ticket.failed(self.not_leader())

    def _respond(self, message: Message) -> Iterator[Effect]:
        for response in message.responses:
            if response.to == self.raft.id:
                self.raft.step(response)
            else:
                yield Send(response)

    def _note_leader(self) -> None:
        self.leaders[self.raft.term] = node_of(self.raft.leader)
        if len(self.leaders) > LEADERS_MAX:
            del self.leaders[next(iter(self.leaders))]

    def _change_office(self, office: int) -> None:
        """The term in which this member leads changed; 0: it leads in none."""
        was, self._office = self._office, office
        self._office_index = self.raft.last_index
        if was:
            self._lose_office()

    def _lose_office(self) -> None:
        unknown = ErrorReply(
            "outcome_unknown",
            f"partition group {self.number} changed its leader before the record was committed",
            group=self.number,
            leader=node_of(self.leader),
        )
        tickets, self._tickets = self._tickets, {}
        for _, ticket in tickets.values():
            ticket.failed(unknown)
        self._fail_reads()

    def _fail_reads(self) -> None:
        reads = [ready for group in self._reads.values() for ready in group]
        self._reads, self._granted = {}, []
        for ready in reads:
            ready(self.not_leader())
