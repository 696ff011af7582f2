"""Checks of what Raft and the log promise, at every event of the simulation, each at constant cost.

The names are those of `raftmq.checkers.servers.invariants`. Logs are not compared record by record:
records chain by checksum, so one equal record stands for equal logs up to that record.

| looked at | promises |
|---|---|
| after each event, the node it happened to | R1, R2, R6, R7, R16, R24, V4, as leader R9, R10 |
| each second of a leader | V4 |
| a record enters a log | R3, R15, R17 |
| a node wins an election | R1, R4, R18 |
| a leader's commit index rises | R12, R13, R23 |
| a follower's commit index rises; a record is applied | R5, R8, R16, R21 |
| a vote, a request for one or an acknowledgement leaves | R11, R14, L5 |
| a snapshot is taken or installed | R19, R21 |
| a read is granted | R20 |
| a node starts from its disk | R6, R11, R24, L1, L2, L4 |
| records are read back from disk | L3, L4 |

The checks use what the simulation has seen, never what a node says of itself: a record is durable
if the simulated disk would keep the record.

Invariants:
- A broken promise ends the run: `Broken` carries its name.

Sources: Raft figure 3, §5.2 to §5.4, thesis §4 and §6.4; TLA+ of etcd's raft.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Never

from raftmq.chaos.core.host import Host
from raftmq.chaos.core.replica.machine import Machine
from raftmq.chaos.core.replica.process import Process
from raftmq.chaos.core.settings import Settings
from raftmq.consensus import (
    ConfState,
    HardState,
    Message,
    MessageKind,
    ReadState,
    Role,
    SnapshotMeta,
)
from raftmq.log.record import Kind, Record

from .broken import Broken
from .recovery import Recovering

_LEADER = Role.LEADER

_CAMPAIGNING = (Role.CANDIDATE, Role.PRE_CANDIDATE)

_STATEMENTS = frozenset(
    {
        MessageKind.APPEND,
        MessageKind.APPEND_RESPONSE,
        MessageKind.HEARTBEAT,
        MessageKind.HEARTBEAT_RESPONSE,
        MessageKind.SNAPSHOT,
        MessageKind.VOTE_RESPONSE,
    }
)
"""Kinds whose term is to be taken over if it is higher (Raft §5.1)."""


class Seen:
    """The state of one process at the last look."""

    __slots__ = ("commit", "crc", "last", "matches", "members", "role", "term")

    def __init__(self) -> None:
        self.term = self.commit = self.last = self.crc = 0
        self.role = Role.FOLLOWER
        self.matches: dict[int, int] = {}
        """Leader: by peer, its match index."""
        self.members: object = None
        """Leader: the table of members that `matches` belongs to."""


class Safety(Recovering):
    """Remembers what happened to the cluster, and raises `Broken` at a broken promise."""

    def __init__(
        self,
        settings: Settings,
        hosts: Mapping[int, Host],
        role_changed: Callable[[Process, Role], None],
    ) -> None:
        """`hosts`: by id, every host that ever existed; `role_changed` gets a process that took
        another role, and its role before."""
        super().__init__(settings)
        self._hosts = hosts
        self._role_changed = role_changed
        self.leaders: dict[int, int] = {}
        """By term: id of the node that led."""
        self.commits: list[tuple[int, int]] = []
        """In order of time: (term, index) of the last commit in each term's run of commits."""
        self._votes: dict[tuple[int, int], int] = {}
        self._seen: dict[int, Seen] = {}
        self._confs: dict[int, ConfState] = {}
        self._floors: dict[bytes, int] = {}
        """By the context of a read under way: the highest committed index when the read began."""

    def founded(self, record: Record, digest: int, conf: ConfState) -> None:
        """All founders begin with the same snapshot at this index."""
        self._confs[record.index] = conf
        self.committed[record.index] = record
        self.digests[record.index] = digest
        self.top = record.index

    # After each event

    def look(self, process: Process) -> None:
        """Check all that may have changed in a process that just did something."""
        core, number = process.core, process.node.id
        log = core.log
        seen = self._seen[number]
        role = core.role
        if (
            core.term != seen.term
            or log.committed != seen.commit
            or log.last_index != seen.last
            or log.last_crc != seen.crc
            or role is not seen.role
        ):
            self._changed(process, seen)
        if role is _LEADER:
            matches = seen.matches
            for peer, progress in core.peers:
                match = progress.match
                if progress.next <= match:
                    _broken("R10", f"node {number} has next {progress.next}, match {match}", peer)
                if matches.get(peer, 0) != match:
                    self.compared.update(("R9", "R10"))
                    self._match_moved(process, seen, peer, match)

    def started(self, process: Process) -> None:
        """A process has started: compare it with what its node had synced."""
        core, durable = process.core, process.node.durable.hard_state
        self.compared.update(("R6", "R11"))
        if core.term < durable.term:
            _broken("R6", f"node {core.id} had synced term {durable.term}, starts in {core.term}")
        if core.term == durable.term and durable.vote not in (0, core.vote):
            _broken("R11", f"node {core.id} had voted for {durable.vote}, starts without")
        self._check_conf(process, process.machine.applied, process.conf_state)
        self._check_changes(process)
        seen = self._seen[process.node.id] = Seen()
        seen.term, seen.commit = core.term, core.log.committed
        seen.last, seen.crc = core.log.last_index, core.log.last_crc

    def _changed(self, process: Process, seen: Seen) -> None:
        core, number = process.core, process.node.id
        log = core.log
        self.compared.update(("R6", "R7", "R16"))
        if core.term < seen.term:
            _broken("R6", f"node {number}: term {seen.term}, then {core.term}")
        if log.committed < seen.commit:
            _broken("R7", f"node {number}: commit {seen.commit}, then {log.committed}")
        if not log.applied <= log.committed <= log.last_index:
            _broken("R16", f"node {number}: {log}")
        is_leader = core.role is _LEADER
        has_won = is_leader and (seen.role is not _LEADER or seen.term != core.term)
        if is_leader:
            if has_won:
                self._won(process, seen)
            elif self._is_rewritten(process, seen):
                _broken("R2", f"leader {number} of term {core.term} changed its log", seen.last)
        if log.committed > seen.commit:
            # A winner may learn from a vote what is committed: it did not commit that by counting.
            if is_leader and not has_won:
                self._led_commit(process, seen.commit)
            else:
                self._followed_commit(process)
        self._check_changes(process)
        if core.role is not seen.role:
            if core.role in _CAMPAIGNING:
                self._campaigns(process)
            if core.role is Role.PRE_CANDIDATE and core.term != seen.term:
                _broken("V4", f"node {number} raises its term to {core.term} only to ask")
            self._role_changed(process, seen.role)
        seen.term, seen.commit, seen.role = core.term, log.committed, core.role
        seen.last, seen.crc = log.last_index, log.last_crc

    def _check_changes(self, process: Process) -> None:
        changes, committed = process.view.memberships, process.core.log.committed
        self.compared["R24"] += len(changes) > 1
        if len(changes) > 1 and changes[-2] > committed:
            what = f"holds change {changes[-1]} and takes {changes[-2]} for uncommitted"
            _broken("R24", f"node {process.node.id} {what}: commit is {committed}")

    def _is_rewritten(self, process: Process, seen: Seen) -> bool:
        self.compared["R2"] += 1
        is_shorter = process.core.log.last_index < seen.last
        return is_shorter or self._crc_at(process, seen.last) != seen.crc

    def _crc_at(self, process: Process, index: int) -> int | None:
        record = self._record_at(process, index)
        if record is not None:
            return record.crc
        base = self.committed.get(index)
        return None if base is None else base.crc

    def _record_at(self, process: Process, index: int) -> Record | None:
        # Records that were just taken in are not handed out for writing yet, and may supersede
        # records of the view.
        unstable = process.core.log.unstable
        place = index - unstable.offset
        if 0 <= place < len(unstable.records):
            return unstable.records[place]
        if unstable.snapshot is not None:
            return None
        return process.view.at(index)

    def _campaigns(self, process: Process) -> None:
        applied, committed = process.machine.applied, process.core.log.committed
        self.compared["R17"] += 1
        pending = [at for at in process.view.memberships if applied < at <= committed]
        if pending:
            _broken("R17", f"node {process.node.id} campaigns, change {pending} is not applied")

    def _won(self, process: Process, seen: Seen) -> None:
        core, number = process.core, process.node.id
        term = core.term
        self.compared.update(("R1", "R14", "R18"))
        other = self.leaders.setdefault(term, number)
        if other != number:
            _broken("R1", f"nodes {other} and {number} both lead in term {term}")
        durable = process.node.durable.hard_state
        if durable.term < term:
            # The node could crash, and win this term a second time with another log.
            _broken("R14", f"node {number} leads in term {term}, synced is {durable}")
        conf = process.conf_state
        if number not in conf.voters and number not in conf.voters_outgoing:
            _broken("R18", f"node {number} leads without a vote of its own: {conf}")
        for half in (conf.voters, conf.voters_outgoing):
            votes = [n for n in half if n == number or self._votes.get((n, term)) == number]
            if half and 2 * len(votes) <= len(half):
                _broken("R1", f"node {number} leads in term {term} by the votes of {votes}: {half}")
        earlier = max((index for of, index in self.commits if of < term), default=0)
        if earlier:
            known = self.committed[earlier]
            self.compared["R4"] += 1
            # A snapshot covers the records up to the base, and was checked when it was taken.
            if process.view.base < earlier:
                own = self._record_at(process, earlier)
                if own is None or own.crc != known.crc:
                    _broken("R4", f"leader {number} of term {term} lacks committed {earlier}")
        seen.matches = {}

    def _match_moved(self, process: Process, seen: Seen, peer: int, match: int) -> None:
        core = process.core
        before = seen.matches.get(peer, 0)
        # A member that was removed and came back begins at 0 again.
        if match < before and seen.members is core.members:
            _broken("R9", f"leader {core.id} takes match {match} of {peer} after {before}")
        if seen.members is not core.members:
            seen.members = core.members
            seen.matches = {p: m for p, m in seen.matches.items() if p in core.members}
        seen.matches[peer] = match
        node = self._hosts[peer]
        self.compared["R14"] += 1
        if match <= before or node.is_damaged or node.durable.hard_state.term != core.term:
            return
        own = self._record_at(process, match)
        if match > node.durable.last or (own is not None and not node.durable.holds(own)):
            _broken("R14", f"leader {core.id} counts {match} of {peer}, which it has not synced")

    # Commits

    def _led_commit(self, process: Process, before: int) -> None:
        core = process.core
        index, view = core.log.committed, process.view
        if self.commits and self.commits[-1][0] == core.term:
            self.commits[-1] = core.term, index
        else:
            self.commits.append((core.term, index))
        record = self._record_at(process, index)
        if record is None:
            _broken("R16", f"leader {core.id} commits {index}, which it does not have")
        self.compared["R12"] += 1
        if record.term != core.term:
            _broken("R12", f"leader {core.id} of term {core.term} commits {index} by counting")
        for place in range(max(before, view.base) + 1, index + 1):
            own = self._record_at(process, place)
            assert own is not None
            self.compared["R5"] += place in self.committed
            known = self.committed.setdefault(place, own)
            if known.crc != own.crc:
                _broken("R5", f"leader {core.id} commits another record {place}")
        self.top = max(self.top, index)
        self._check_durable(process, record)

    def _check_durable(self, process: Process, record: Record) -> None:
        conf, hosts = process.conf_state, self._hosts
        self.compared["R13"] += 1
        for half in (conf.voters, conf.voters_outgoing):
            # A damaged node counts: it vouched for what it lost, and abstains, so it elects no one.
            held = [n for n in half if hosts[n].is_damaged or hosts[n].durable.holds(record)]
            if half and 2 * len(held) <= len(half):
                _broken("R13", f"{record.index} is committed and durable on {held} of {half}")
        if conf.voters_outgoing:
            return
        logs = {n: hosts[n].durable for n in conf.voters if not hosts[n].is_damaged}
        ends = sorted(log.up_to_date(log.base_term) for log in logs.values())
        if 2 * len(ends) <= len(conf.voters):
            return
        self.compared["R23"] += 1
        # A voter whose log is at least this up to date could win the votes of a majority.
        enough = ends[len(conf.voters) // 2]
        for voter, log in logs.items():
            if log.up_to_date(log.base_term) >= enough and not log.holds(record):
                _broken("R23", f"node {voter} could be elected without committed {record.index}")

    def _followed_commit(self, process: Process) -> None:
        index, number = process.core.log.committed, process.node.id
        self.compared["R5"] += 1
        own = self._record_at(process, index)
        known = self.committed.get(index)
        if known is None or (own is not None and own.crc != known.crc):
            what = f"{_name(own)}, committed is {_name(known)}"
            _broken("R5", f"node {number} takes for committed {index}, {what}")

    # Records

    def entered(self, process: Process, records: Sequence[Record]) -> None:
        """Records were handed out for writing: they are in the log from now on."""
        view, number = process.view, process.node.id
        first = records[0].index
        old = view.at(first)
        self.compared["R3"] += len(records)
        if old is not None:
            self.compared["R15"] += 1
            known = self.committed.get(first)
            if known is not None and known.crc == old.crc:
                _broken("R15", f"node {number} drops its committed record {first}")
        before = view.at(first - 1)
        chain = before.crc if before is not None else None
        for record in records:
            known = self.records.setdefault((record.index, record.term), record)
            if known is not record and known.encoded != record.encoded:
                _broken("R3", f"two records {record.index} of term {record.term}")
            if chain is not None and record.chain != chain:
                _broken("R3", f"node {number}: record {record.index} does not follow its log")
            chain = record.crc
            if record.kind == Kind.MEMBERSHIP and process.core.role is _LEADER:
                self._change_appended(process, record)
        view.put(records)

    def _change_appended(self, process: Process, record: Record) -> None:
        pending = [index for index in process.view.memberships if index < record.index]
        applied = process.machine.applied
        self.compared["R17"] += 1
        if record.term == process.core.term and pending and pending[-1] > applied:
            _broken("R17", f"change {record.index} while {pending[-1]} is not applied ({applied})")

    def applying(self, process: Process, record: Record) -> None:
        """A record is about to be applied."""
        machine, number = process.machine, process.node.id
        self.compared.update(("R5", "R8", "R16"))
        if record.index != machine.applied + 1:
            _broken("R8", f"node {number} applies {record.index} after {machine.applied}")
        known = self.committed.get(record.index)
        if known is None or record.index > process.core.log.committed:
            _broken("R16", f"node {number} applies {record.index}, which is not committed")
        if known.crc != record.crc:
            _broken("R5", f"node {number} applies another record {record.index}")
        if record.timestamp < machine.time_ms:
            _broken("R5", f"node {number}: time falls at record {record.index}")

    def applied(self, process: Process, record: Record) -> None:
        """A record was applied."""
        digest = process.machine.digest
        self.compared["R21"] += record.index in self.digests
        if self.digests.setdefault(record.index, digest) != digest:
            _broken("R21", f"node {process.node.id} has another state after {record.index}")

    def membership_applied(self, process: Process, record: Record, conf: ConfState) -> None:
        """A membership change took effect, or was refused."""
        known = self._confs.get(record.index)
        self.compared["R17"] += 1
        if known is None:
            known = self._confs[record.index] = conf
            before = self._confs[max(at for at in self._confs if at < record.index)]
            if not _may_follow(before, conf):
                _broken("R17", f"members {before} become {conf} in one step")
        if known != conf:
            _broken("R17", f"node {process.node.id} has members {conf} after {record.index}")

    # Snapshots and reads

    def snapshot_taken(self, process: Process, meta: SnapshotMeta, machine: Machine) -> None:
        """A machine's state is about to be saved as a snapshot, or came with a snapshot."""
        known = self.committed.get(meta.index)
        self.compared.update(("R19", "R21"))
        if known is None or known.crc != meta.crc or machine.applied != meta.index:
            _broken("R19", f"node {process.node.id}: snapshot at {meta.index} is not committed")
        if self.digests.get(meta.index, machine.digest) != machine.digest:
            _broken("R21", f"node {process.node.id}: snapshot at {meta.index} has another state")
        self._check_conf(process, meta.index, meta.conf_state)

    def installing(self, process: Process, meta: SnapshotMeta) -> None:
        """A snapshot is about to take the place of log and machine."""
        self.compared["R15"] += 1
        if meta.index < process.machine.applied:
            _broken("R15", f"node {process.node.id} goes back to a snapshot at {meta.index}")

    def _check_conf(self, process: Process, index: int, conf: ConfState) -> None:
        if index:
            known = self._confs[max(at for at in self._confs if at <= index)]
            if known != conf:
                _broken("R17", f"node {process.node.id} has {conf} at {index}, not {known}")

    def read_begun(self, context: bytes) -> None:
        """A read begins: it must see at least all that is committed by now."""
        self._floors[context] = self.top

    def read_granted(self, process: Process, state: ReadState) -> None:
        """A read may be answered once its index is applied."""
        self.compared["R20"] += 1
        floor = self._floors.pop(state.context, 0)
        if state.index < floor:
            _broken("R20", f"node {process.node.id} reads at {state.index}, {floor} was committed")

    def read_answered(self, process: Process, floor: int) -> None:
        """A client reads the machine now; `floor` was committed when it asked."""
        self.compared["R20"] += 1
        if process.machine.applied < floor:
            what = f"answers a read at {process.machine.applied}, {floor} was committed"
            _broken("R20", f"node {process.node.id} {what}")

    # Messages

    def promised(self, process: Process, message: Message) -> None:
        """A vote or an acknowledgement leaves, perhaps for the node itself."""
        if message.reject:
            return
        kind = message.kind
        if kind is not MessageKind.VOTE_RESPONSE and kind is not MessageKind.APPEND_RESPONSE:
            return
        node = process.node
        self.compared.update(("R14", "L5"))
        if node.disk.has_failed_sync:
            _broken("L5", f"node {node.id} answers after a failed sync")
        durable, term = node.durable.hard_state, message.term
        if kind is MessageKind.VOTE_RESPONSE:
            self._voted(node.id, durable, message)
        elif durable.term < term:
            _broken("R14", f"node {node.id} names term {term}, {durable.term} is synced")
        elif durable.term == term and message.index > node.durable.last:
            # In a later term other records may be in their place: the message is stale, not wrong.
            _broken("R14", f"node {node.id} acknowledges {message.index}, not synced")

    def _voted(self, number: int, durable: HardState, message: Message) -> None:
        term, candidate = message.term, message.to
        self.compared["R11"] += 1
        first = self._votes.setdefault((number, term), candidate)
        if first != candidate:
            _broken("R11", f"node {number} votes for {first} and {candidate} in term {term}")
        if durable.term < term or (durable.term == term and durable.vote != candidate):
            _broken("R14", f"node {number} votes in term {term}, synced is {durable}")

    def asked(self, process: Process, message: Message) -> None:
        """A request for a vote leaves: the candidate's own must be durable (Raft figure 2)."""
        number, durable = process.node.id, process.node.durable.hard_state
        self.compared["R14"] += 1
        if durable.term < message.term or (durable.term == message.term and durable.vote != number):
            _broken("R14", f"node {number} asks for votes of {message.term}, synced is {durable}")

    def is_foreign_campaign(self, process: Process, message: Message) -> bool:
        """Whether a request for a vote comes from no member, while this node hears its leader."""
        core, conf = process.core, process.conf_state
        is_member = message.sender in conf.voters or message.sender in conf.voters_outgoing
        if is_member or message.context or not core.config.check_quorum or not core.leader:
            return False
        return core.election_elapsed < core.config.election_ticks

    def ignored_term(self, process: Process, message: Message) -> None:
        """A message of a higher term arrived, and the term is still the lower one."""
        # A request for a vote may leave the term as it is, and no node listens to a non-member.
        if message.kind in _STATEMENTS and message.sender in process.core.members:
            _broken("R6", f"node {process.node.id} hears of term {message.term} and stays behind")

    def still_leads(self, process: Process) -> None:
        """A second of a leader has passed: check that it heard from a majority lately."""
        core = process.core
        limit = 3 * core.config.election_ticks
        since = max(process.led_since, process.conf_tick)
        if not core.config.check_quorum or process.ticks - since <= limit:
            return
        for half in (process.conf_state.voters, process.conf_state.voters_outgoing):
            heard = [
                n for n in half if n == core.id or process.ticks - process.heard.get(n, 0) <= limit
            ]
            if half and 2 * len(heard) <= len(half):
                _broken("V4", f"node {core.id} leads on and hears only {heard} of {half}")

    def disturbed(self, process: Process, message: Message, before: int) -> None:
        """A node heard a campaign of a non-member; `before`: the node's term before."""
        self.compared["R22"] += 1
        if process.core.term != before:
            _broken("R22", f"node {message.sender}, no member, moves {process.node.id} on")


def _may_follow(before: ConfState, after: ConfState) -> bool:
    """Whether one step leads from one to the other: by one voter, or through a joint membership
    (thesis §4.1, §4.3)."""
    if after.voters_outgoing:
        return after.voters_outgoing == (before.voters_outgoing or before.voters)
    if before.voters_outgoing:
        return after.voters == before.voters
    return len(set(after.voters) ^ set(before.voters)) <= 1


def _name(record: Record | None) -> str:
    return "none" if record is None else f"({record.index}, {record.term}, {record.crc:08x})"


def _broken(name: str, text: str, *facts: object) -> Never:
    raise Broken(name, " ".join([text, *map(str, facts)]))
