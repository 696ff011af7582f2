"""Mutants of applying, membership, snapshots and reads.

Sources: Raft §6, §7, thesis §4 and §6.4 for the broken rules; issues of other implementations as
named.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from raftmq.broker.replica import opener
from raftmq.chaos.core.replica.machine import Machine
from raftmq.chaos.core.replica.watched import WatchedRaft
from raftmq.chaos.mutant import Mutant, Patch
from raftmq.consensus import (
    ConfState,
    DropReason,
    Message,
    MessageKind,
    Snapshot,
    applying,
    election,
    follower,
    leader,
    leader_reads,
    replication,
)
from raftmq.consensus.changes import MembershipChange
from raftmq.consensus.core import Core
from raftmq.consensus.membership import Changer, Members, Membership, _Draft
from raftmq.consensus.quorum import majority_index, vote_result
from raftmq.consensus.reads import ReadQueue, ReadRequest
from raftmq.consensus.reconfigure import restore_membership
from raftmq.consensus.unstable import Unstable
from raftmq.log.record import Record
from raftmq.log.snapshot import SnapshotReceiver


def counts_a_record_before_its_effect(patch: Patch) -> None:
    """30"""

    def snapshot(machine: Machine) -> bytes:
        ahead = Machine(machine.applied + 1, machine.digest, machine.time_ms, machine.latest)
        return msgspec.msgpack.encode(ahead)

    patch.set(Machine, "snapshot", snapshot)


def depends_on_its_own_clock(patch: Patch) -> None:
    """31"""
    apply = Machine.apply
    calls = [0]

    def drift(machine: Machine, record: Record) -> None:
        apply(machine, record)
        calls[0] += 1
        if not record.index % 50:
            machine.digest ^= calls[0]

    patch.set(Machine, "apply", drift)


def changes_while_a_change_is_pending(patch: Patch) -> None:
    """35"""

    def refusal(core: Core, change: MembershipChange) -> DropReason | None:
        if core.membership.is_joint and change.changes:
            return DropReason.MUST_LEAVE_JOINT
        return None if core.membership.is_joint or change.changes else DropReason.NOT_JOINT

    patch.set(leader, "change_refusal", refusal)


def joint_needs_only_the_new_half(patch: Patch) -> None:
    """36"""

    def advance(core: Core) -> bool:
        index = majority_index([progress.match for progress in core.incoming])
        if index <= core.log.committed or index < core.term_first_index:
            return False
        core.log.commit_to(index)
        return True

    for module in (leader, replication):
        patch.set(module, "advance_commit", advance)
    patch.set(election, "joint_vote_result", lambda one, other, votes: vote_result(one, votes))


def listens_to_who_was_removed(patch: Patch) -> None:
    """37"""
    patch.set(Core, "in_lease", property(lambda core: False))


def takes_new_voters_for_caught_up(patch: Patch) -> None:
    """38"""
    add = _Draft._add_member

    def trusting(draft: _Draft, node: int, *, is_learner: bool) -> None:
        add(draft, node, is_learner=is_learner)
        draft.members[node].match = draft.last_index
        draft.members[node].next = draft.last_index + 1

    patch.set(_Draft, "_add_member", trusting)


def takes_the_term_of_a_snapshot(patch: Patch) -> None:
    """39"""
    on_snapshot = follower.on_snapshot

    def on(core: Core, message: Message) -> None:
        on_snapshot(core, message)
        if message.snapshot is not None and core.log.unstable.snapshot is message.snapshot:
            core.term = message.snapshot.meta.term

    patch.handler(MessageKind.SNAPSHOT, on_snapshot, on)


def installs_old_snapshots(patch: Patch) -> None:
    """40"""

    def restore(core: Core, snapshot: Snapshot) -> bool:
        core.log.restore(snapshot)
        conf_state = snapshot.meta.conf_state
        restore_membership(core, conf_state, last_index=core.log.last_index)
        return True

    patch.set(follower, "_restore", restore)


def installs_over_what_it_has(patch: Patch) -> None:
    """130"""

    def restore(core: Core, snapshot: Snapshot) -> bool:
        # The guard that is missing: a log that matches keeps what follows.
        if snapshot.meta.index <= core.log.committed:
            return False
        core.log.restore(snapshot)
        conf_state = snapshot.meta.conf_state
        restore_membership(core, conf_state, last_index=core.log.last_index)
        return True

    patch.set(follower, "_restore", restore)


def begins_again_at_each_chunk(patch: Patch) -> None:
    """41"""
    write = SnapshotReceiver.write

    def again(receiver: SnapshotReceiver, offset: int, data: bytes) -> int:
        if offset:
            receiver._restart()
        return write(receiver, offset, data)

    patch.set(SnapshotReceiver, "write", again)


def snapshots_keep_the_first_members(patch: Patch) -> None:
    """42"""
    encode = opener.encode_conf_state
    first: list[ConfState] = []

    def stale(conf: ConfState) -> bytes:
        first.append(conf)
        return encode(first[0])

    patch.set(opener, "encode_conf_state", stale)


def applies_while_it_installs(patch: Patch) -> None:
    """43"""
    patch.set(WatchedRaft, "drop_covered", lambda raft: None)


def reads_without_a_quorum(patch: Patch) -> None:
    """44"""
    start = leader_reads._start

    def eager(core: Core, requester: int, context: bytes) -> None:
        start(core, requester, context)
        for request in core.reads.grant_to(context):
            index = request.index
            leader_reads._grant(core, request.requester, index=index, context=request.context)

    patch.set(leader_reads, "_start", eager)


def reads_before_its_first_commit(patch: Patch) -> None:
    """45"""
    on_request = leader_reads.on_read_request

    def eager(core: Core, message: Message) -> None:
        first, core.term_first_index = core.term_first_index, 0
        on_request(core, message)
        core.term_first_index = first

    patch.handler(MessageKind.READ_INDEX, on_request, eager)


def _reads_by_lease(patch: Patch, ticks: int) -> None:
    """Grant a read at once if a quorum was heard from within `ticks` of the own clock."""

    def start(core: Core, requester: int, context: bytes) -> None:
        if core.election_elapsed <= ticks:
            leader_reads._grant(core, requester, index=core.log.committed, context=context)

    patch.set(leader_reads, "_start", start)


def trusts_a_lease_by_its_own_clock(patch: Patch) -> None:
    """46"""
    _reads_by_lease(patch, 20)


def trusts_a_lease_after_a_pause(patch: Patch) -> None:
    """47"""
    _reads_by_lease(patch, 10)


def changes_two_voters_at_once(patch: Patch) -> None:
    """105"""
    patch.set(MembershipChange, "enters_joint", property(lambda change: False))

    def simple(changer: Changer, changes: Sequence[object]) -> tuple[Membership, Members]:
        draft = changer._draft()
        draft.apply(changes)  # type: ignore[arg-type]
        return draft.finish()

    patch.set(Changer, "simple", simple)


def takes_superseded_records_for_stable(patch: Patch) -> None:
    """106"""
    stable_to = Unstable.stable_to
    settle = election.settle_term

    def careless(unstable: Unstable, index: int, term: int) -> None:
        stable_to(unstable, index, unstable.term(index) or term)

    def trusting(core: Core, message: Message) -> bool:
        if message.kind is MessageKind.STORAGE_APPEND_RESPONSE and message.term < core.term:
            return True
        return settle(core, message)

    patch.set(Unstable, "stable_to", careless)
    patch.set(election, "settle_term", trusting)


def campaigns_over_a_pending_change(patch: Patch) -> None:
    """107"""
    patch.set(applying, "has_unapplied_change", lambda core: False)


def grants_reads_by_any_echo(patch: Patch) -> None:
    """108"""
    everyone = dict.fromkeys(range(1, 20), True)
    patch.set(ReadQueue, "echo", lambda queue, node, context: everyone)


def grants_reads_by_an_early_echo(patch: Patch) -> None:
    """121"""
    grant_to = ReadQueue.grant_to

    def all_of_them(queue: ReadQueue, context: bytes) -> list[ReadRequest]:
        known = context in queue._requests
        return grant_to(queue, queue.newest_context) if known else []

    patch.set(ReadQueue, "grant_to", all_of_them)


def stamps_by_its_own_clock(patch: Patch) -> None:
    """122"""
    patch.set(Core, "stamp", lambda core, now: now or core.log.last_timestamp)


MUTANTS = (
    Mutant(
        number=30,
        name="applied-too-early",
        what="A state is saved with the index of a record that it lacks [openraft 89bb48f].",
        killers=("R19", "R21", "R8"),
        plant=counts_a_record_before_its_effect,
        is_of_the_simulator=True,
    ),
    Mutant(
        number=31,
        name="own-clock",
        what="The machine depends on something of its own process.",
        killers=("R21",),
        plant=depends_on_its_own_clock,
        is_of_the_simulator=True,
    ),
    Mutant(
        number=33,
        name="config-on-commit",
        what="A membership is used only from its commit on.",
        reason=(
            "here a membership counts from where it is applied, as in etcd; 35 and 107 break the "
            "rules that make this safe"
        ),
    ),
    Mutant(
        number=34,
        name="config-not-rolled-back",
        what="A membership whose record was truncated stays in use.",
        reason=(
            "a membership is in use only once its record is committed, so that there is nothing to "
            "roll back; a committed record that is truncated is R15, see 13"
        ),
    ),
    Mutant(
        number=35,
        name="change-on-change",
        what="A change is proposed while an earlier one is not applied [single-server bug].",
        killers=("R17",),
        plant=changes_while_a_change_is_pending,
    ),
    Mutant(
        number=36,
        name="new-half-only",
        what="A joint membership needs only the majority of its new half.",
        killers=("R13", "R1"),
        plant=joint_needs_only_the_new_half,
    ),
    Mutant(
        number=37,
        name="removed-disturbs",
        what="Nodes listen to a candidate that was removed, though they hear their leader.",
        killers=("R22",),
        plant=listens_to_who_was_removed,
    ),
    Mutant(
        number=38,
        name="new-voter-counts",
        what="A new voter is taken for caught up, and counted.",
        # V3: the leader never sends the new voter what it takes it to have.
        killers=("L2", "R14", "R13", "R9", "V3", "assert"),
        plant=takes_new_voters_for_caught_up,
    ),
    Mutant(
        number=39,
        name="snapshot-term",
        what="A snapshot's term overwrites the node's own [WRaft #4].",
        killers=("R6",),
        plant=takes_the_term_of_a_snapshot,
    ),
    Mutant(
        number=40,
        name="old-snapshot",
        what="An old snapshot is installed, and the records after it are thrown away.",
        killers=("R7", "R15", "assert"),
        plant=installs_old_snapshots,
    ),
    Mutant(
        number=41,
        name="chunk-restarts",
        what="Each later chunk of a snapshot begins the transfer again [openraft 2eccb9e].",
        killers=("V1", "V3", "V6"),
        plant=begins_again_at_each_chunk,
    ),
    Mutant(
        number=42,
        name="snapshot-members",
        what="Later snapshots keep the members of the first one [openraft dba2403].",
        killers=("R17",),
        plant=snapshots_keep_the_first_members,
    ),
    Mutant(
        number=43,
        name="apply-and-install",
        what="Records are applied while a snapshot of them is installed [openraft eed681d].",
        killers=("R8", "R16", "R21"),
        plant=applies_while_it_installs,
        is_of_the_simulator=True,
        kinds=("slow-apply", "isolate-node", "kill"),
        settings=lambda s: replace(
            s, segments_kept=1, segment_bytes=1024, proposals_per_second=10.0
        ),
        why_hinted="a machine that lags has to be sent a snapshot, so the log must be cut often",
    ),
    Mutant(
        number=44,
        name="read-without-quorum",
        what="A leader answers reads without a round to a majority.",
        killers=("R20",),
        plant=reads_without_a_quorum,
    ),
    Mutant(
        number=45,
        name="read-too-early",
        what="A leader answers reads before it has committed in its term.",
        killers=("R20",),
        plant=reads_before_its_first_commit,
    ),
    Mutant(
        number=46,
        name="lease-by-clock",
        what="Reads trust a lease that is longer, by the leader's clock, than others wait.",
        killers=("R20",),
        plant=trusts_a_lease_by_its_own_clock,
    ),
    Mutant(
        number=47,
        name="lease-after-pause",
        what="Reads trust a lease that ran out while the process stood still.",
        killers=("R20",),
        plant=trusts_a_lease_after_a_pause,
    ),
    Mutant(
        number=105,
        name="two-at-once",
        what="Two voters change at once, without a joint membership.",
        killers=("R17", "R13", "R1", "R4", "R5", "R23"),
        plant=changes_two_voters_at_once,
    ),
    Mutant(
        number=106,
        name="superseded-is-stable",
        what="The acknowledgement of a write counts for records that have superseded it.",
        killers=("R13", "R14", "R5", "R16", "R2", "assert"),
        plant=takes_superseded_records_for_stable,
    ),
    Mutant(
        number=107,
        name="campaigns-over-change",
        what="A node campaigns though a committed membership change waits to be applied.",
        killers=("R17", "R1", "R4", "R18"),
        plant=campaigns_over_a_pending_change,
    ),
    Mutant(
        number=108,
        name="any-echo-grants",
        what="One echo of a read's heartbeat is taken for all.",
        killers=("R20",),
        plant=grants_reads_by_any_echo,
    ),
    Mutant(
        number=121,
        name="early-echo-grants",
        what="The echo of an early read grants later ones too.",
        killers=("R20",),
        plant=grants_reads_by_an_early_echo,
    ),
    Mutant(
        number=122,
        name="stamps-fall",
        what="A leader stamps records by its own clock, also when the log is ahead.",
        killers=("R5", "assert"),
        plant=stamps_by_its_own_clock,
    ),
    Mutant(
        number=130,
        name="snapshot-over-more",
        what="A snapshot is installed over a log that holds all it covers, and more.",
        killers=("L2", "R4", "R13", "R14", "R15", "R23"),
        plant=installs_over_what_it_has,
        kinds=("needless-snapshot", "kill-leader", "isolate-leader"),
        why_hinted="one of a hundred faults sends a snapshot without need",
    ),
)
