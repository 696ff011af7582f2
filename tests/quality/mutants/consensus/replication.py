"""Mutants of replication and commit.

Sources: Raft §5.3, §5.4.2, figure 2 and 8 for the broken rules; issues of other implementations as
named.
"""

from collections.abc import Sequence

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.consensus import Message, MessageKind, Raft, follower, leader, quorum, replication
from raftmq.consensus.core import Core
from raftmq.consensus.log import RaftLog
from raftmq.consensus.messages import Proposal
from raftmq.consensus.progress import Inflights, Progress, ProgressState
from raftmq.consensus.types import DropReason, Role
from raftmq.log.record import Record

_advance_commit = replication.advance_commit


def truncates_what_matches(patch: Patch) -> None:
    """13"""
    patch.set(RaftLog, "_unknown_part", lambda log, records: records)
    patch.set(RaftLog, "append", _append_anything)


def _append_anything(log: RaftLog, records: Sequence[Record]) -> None:
    """As `RaftLog.append`, without its asserts."""
    last = records[-1]
    log.unstable.append(records)
    log.last_index, log.last_term = last.index, last.term
    log.last_crc, log.last_timestamp = last.crc, last.timestamp


def does_not_look_at_the_term_before(patch: Patch) -> None:
    """14"""
    patch.set(RaftLog, "matches", lambda log, index, term: index <= log.last_index)
    patch.set(RaftLog, "_continues", lambda log, record: True)


def takes_compacted_records_again(patch: Patch) -> None:
    """15"""
    matches = RaftLog.matches

    def behind(log: RaftLog, index: int, term: int) -> bool:
        return index + 1 < log.first_index or matches(log, index, term)

    def on_append(core: Core, message: Message) -> None:
        committed = core.log.committed
        if message.index + 1 < core.log.first_index:
            # The guard that is missing: "old news".
            core.log.committed = 0
        try:
            original(core, message)
        finally:
            core.log.committed = max(core.log.committed, committed)

    original = follower.on_append
    patch.set(RaftLog, "matches", behind)
    patch.set(RaftLog, "append", _append_anything)
    patch.handler(MessageKind.APPEND, original, on_append)


def commits_beyond_what_it_was_sent(patch: Patch) -> None:
    """16"""
    try_append = RaftLog.try_append

    def careless(
        log: RaftLog, previous: int, term: int, records: Sequence[Record], commit: int
    ) -> int | None:
        last = try_append(log, previous, term, records, commit)
        if last is not None:
            log.commit_to(min(commit, log.last_index))
        return last

    def further(progress: Progress, index: int, hint: int) -> bool:
        is_news = rejected(progress, index, hint)
        # Our leader goes back just as far as it must, so that the bug would not show. It may go
        # further, as one without hints does.
        if is_news and progress.state is ProgressState.PROBE:
            progress.next = max(progress.next - 3, progress.match + 1, 1)
        return is_news

    rejected = Progress.rejected
    patch.set(RaftLog, "try_append", careless)
    patch.set(Progress, "rejected", further)


def commit_goes_back(patch: Patch) -> None:
    """17"""

    def commit_to(log: RaftLog, index: int) -> None:
        log.committed = min(index, log.last_index)

    patch.set(RaftLog, "commit_to", commit_to)


def match_goes_back(patch: Patch) -> None:
    """18"""
    matched = Progress.matched

    def careless(progress: Progress, index: int) -> bool:
        is_old = index < progress.match
        if is_old:
            progress.match = index
            return True
        return matched(progress, index)

    patch.set(Progress, "matched", careless)


def next_falls_below_match(patch: Patch) -> None:
    """19"""

    def rejected(progress: Progress, index: int, hint: int) -> bool:
        progress.next = max(min(index, hint + 1), 1)
        progress.is_flow_paused = False
        return True

    patch.set(Progress, "rejected", rejected)


def probes_the_same_place_again(patch: Patch) -> None:
    """20"""
    rejected = Progress.rejected

    def stubborn(progress: Progress, index: int, hint: int) -> bool:
        before = progress.next
        is_news = rejected(progress, index, hint)
        if progress.state is ProgressState.PROBE:
            progress.next = max(before, progress.match + 1)
        return is_news

    patch.set(Progress, "rejected", stubborn)


def commit_stops_at_old_terms(patch: Patch) -> None:
    """21"""

    def advance(core: Core) -> bool:
        first = core.log.committed + 1
        if first < core.term_first_index:
            return False
        return _advance_commit(core)

    patch.set(leader, "advance_commit", advance)


def window_is_never_freed(patch: Patch) -> None:
    """22"""
    patch.set(Inflights, "free_to", lambda window, index: None)
    patch.set(Inflights, "clear", lambda window: None)


def appends_after_it_stepped_down(patch: Patch) -> None:
    """23"""
    propose = Raft.propose

    def on(raft: Raft, items: Sequence[Proposal], *, now: int) -> int:
        core = raft._core
        if core.role is Role.FOLLOWER and core.term_first_index and core.members:
            outcome = leader.propose(core, items)
            if not isinstance(outcome, DropReason):
                return outcome
        return propose(raft, items, now=now)

    patch.set(Raft, "propose", on)


def heartbeats_commit_what_may_not_match(patch: Patch) -> None:
    """24"""
    broadcast = replication.broadcast_heartbeat

    def heartbeat(core: Core, context: bytes) -> None:
        before = len(core.messages)
        broadcast(core, context)
        for place in range(before, len(core.messages)):
            message = core.messages[place]
            core.messages[place] = Message(
                message.kind, message.to, sender=core.id, term=core.term,
                commit=core.log.committed, context=context,
            )  # fmt: skip

    patch.set(leader, "broadcast_heartbeat", heartbeat)


def commits_old_terms_by_counting(patch: Patch) -> None:
    """25"""

    def advance(core: Core) -> bool:
        first, core.term_first_index = core.term_first_index, 0
        is_news = _advance_commit(core)
        core.term_first_index = first
        return is_news

    patch.set(leader, "advance_commit", advance)


def counts_learners(patch: Patch) -> None:
    """26"""

    def advance(core: Core) -> bool:
        needed = len(core.incoming) // 2 + 1
        matches = sorted([p.match for p in core.members.values()], reverse=True)
        index = min(matches[needed - 1], core.log.last_index)
        if index <= core.log.committed or index < core.term_first_index:
            return False
        core.log.commit_to(index)
        return True

    patch.set(leader, "advance_commit", advance)


def counts_itself_before_its_own_sync(patch: Patch) -> None:
    """27"""
    propose = leader.propose

    def eager(core: Core, proposals: Sequence[Proposal]) -> int | DropReason:
        first = propose(core, proposals)
        if core.id in core.members:
            core.members[core.id].matched(core.log.last_index)
        return first

    patch.set(leader, "propose", eager)


def answers_before_its_sync(patch: Patch) -> None:
    """28"""

    def answer(core: Core, to: int, index: int) -> None:
        kind = MessageKind.APPEND_RESPONSE
        core.messages.append(Message(kind, to, sender=core.id, term=core.term, index=index))

    patch.set(follower, "_answer", answer)


def applies_before_commit(patch: Patch) -> None:
    """29"""

    def end(log: RaftLog) -> int:
        return log.unstable.offset - 1

    def has(log: RaftLog, *, allow_unstable: bool) -> bool:
        is_ready = log.unstable.snapshot is None and log.is_applying_fetched
        return is_ready and log.applying < end(log)

    def take(log: RaftLog, *, allow_unstable: bool) -> list[Record]:
        if not has(log, allow_unstable=allow_unstable):
            return []
        records, _ = log._slice(log.applying + 1, end(log) + 1, 2**40)
        log.applying = records[-1].index
        return records

    patch.set(RaftLog, "has_committed", has)
    patch.set(RaftLog, "take_committed", take)


def commits_beyond_its_end(patch: Patch) -> None:
    """32"""

    def commit_to(log: RaftLog, index: int) -> None:
        log.committed = max(log.committed, index)

    try_append = RaftLog.try_append

    def careless(
        log: RaftLog, previous: int, term: int, records: Sequence[Record], commit: int
    ) -> int | None:
        last = try_append(log, previous, term, records, 0)
        if last is not None:
            log.commit_to(commit)
        return last

    patch.set(RaftLog, "commit_to", commit_to)
    patch.set(RaftLog, "try_append", careless)


def keeps_conflicting_records(patch: Patch) -> None:
    """103"""

    def unknown(log: RaftLog, records: Sequence[Record]) -> Sequence[Record]:
        return [record for record in records if record.index > log.last_index]

    patch.set(RaftLog, "_unknown_part", unknown)
    patch.set(RaftLog, "_continues", lambda log, record: True)


def commits_with_a_minority(patch: Patch) -> None:
    """104"""
    for module in (quorum, replication):
        patch.set(module, "majority_index", lambda reached: sorted(reached)[-2:][0])


MUTANTS = (
    Mutant(
        number=13,
        name="truncates-matches",
        what="An append that holds nothing new truncates the log [openraft 9540c90, RaftOS #26].",
        killers=("R15", "R2", "R14", "assert"),
        plant=truncates_what_matches,
    ),
    Mutant(
        number=14,
        name="no-term-check",
        what="The term of the record before an append is not compared.",
        killers=("R3", "R5", "R15"),
        plant=does_not_look_at_the_term_before,
    ),
    Mutant(
        number=15,
        name="compacted-again",
        what="Records that were compacted away are appended again [WRaft #1].",
        killers=("R15", "R3", "R16", "assert"),
        plant=takes_compacted_records_again,
    ),
    Mutant(
        number=16,
        name="commits-beyond-append",
        what="A follower commits up to its own last record, not the last one sent [WRaft #2].",
        killers=("R5",),
        plant=commits_beyond_what_it_was_sent,
    ),
    Mutant(
        number=17,
        name="commit-falls",
        what="A late message takes the commit index back [PySyncObj #166].",
        killers=("R7",),
        plant=commit_goes_back,
    ),
    Mutant(
        number=18,
        name="match-falls",
        what="A late answer takes a match index back [PySyncObj #167, RaftOS #25].",
        killers=("R9",),
        plant=match_goes_back,
    ),
    Mutant(
        number=19,
        name="next-below-match",
        what="A rejection takes the next index down to the match index [PySyncObj #167, WRaft #7].",
        killers=("R10",),
        plant=next_falls_below_match,
    ),
    Mutant(
        number=20,
        name="probe-stays",
        what="A rejected append is tried again at the same place [openraft 6d53aa1].",
        killers=("V3", "V6"),
        plant=probes_the_same_place_again,
    ),
    Mutant(
        number=21,
        name="commit-stops",
        what="Committing stops at the first record of an older term [RaftOS #30].",
        killers=("V1", "V3"),
        plant=commit_stops_at_old_terms,
    ),
    Mutant(
        number=22,
        name="window-never-freed",
        what="Answers do not free the window of appends in flight [etcd #14633].",
        killers=("V3", "V1", "assert"),
        plant=window_is_never_freed,
    ),
    Mutant(
        number=23,
        name="appends-after-office",
        what="A leader that stepped down goes on appending [camunda #5360].",
        killers=("R3", "R2", "R15", "assert"),
        plant=appends_after_it_stepped_down,
    ),
    Mutant(
        number=24,
        name="heartbeat-commits-all",
        what="A heartbeat tells the whole commit index, also where other records may stand.",
        killers=("L2", "R5", "assert"),
        plant=heartbeats_commit_what_may_not_match,
    ),
    Mutant(
        number=25,
        name="counts-old-terms",
        what="Records of older terms are committed by counting [PySyncObj #169].",
        killers=("R12",),
        plant=commits_old_terms_by_counting,
    ),
    Mutant(
        number=26,
        name="learners-count",
        what="Learners count in the majority that commits [openraft d882e74].",
        killers=("R13",),
        plant=counts_learners,
    ),
    Mutant(
        number=27,
        name="counts-itself-early",
        what="A leader counts itself before its own sync.",
        killers=("R13",),
        plant=counts_itself_before_its_own_sync,
    ),
    Mutant(
        number=28,
        name="answers-before-sync",
        what="A follower answers before its sync [NATS #7564, etcd #14143].",
        killers=("R14",),
        plant=answers_before_its_sync,
    ),
    Mutant(
        number=29,
        name="applies-before-commit",
        what="Records are applied when they are durable here, committed or not.",
        killers=("R16",),
        plant=applies_before_commit,
    ),
    Mutant(
        number=32,
        name="commit-past-end",
        what="The commit index rises above the end of a log that was truncated [DLedger #316].",
        killers=("R16", "R5"),
        plant=commits_beyond_its_end,
    ),
    Mutant(
        number=103,
        name="conflicts-kept",
        what="Conflicting records are not truncated.",
        # R13: the acknowledged records are not the stored ones.
        killers=("R3", "R5", "R13", "R14"),
        plant=keeps_conflicting_records,
    ),
    Mutant(
        number=104,
        name="two-are-enough",
        what="Two copies commit, however many voters there are.",
        killers=("R13",),
        plant=commits_with_a_minority,
    ),
)
