"""The leader's side of AppendEntries: sending to followers, and advancing the commit index.

Invariants:
- An append's records follow, in the leader's log, the record it names as the one before.
- Only records of the leader's own term are committed by counting replicas (Raft §5.4.2).

Sources: Raft §5.3, §5.4.2, §7; etcd-io/raft; TiKV raft-rs for records that are not in memory.
"""

from collections.abc import Sequence

from raftmq.consensus.core import Core
from raftmq.consensus.messages import Message, MessageKind
from raftmq.consensus.progress import REPLICATE, SNAPSHOT, Progress
from raftmq.consensus.quorum import joint_committed_index, majority_index
from raftmq.consensus.storage import Compacted, NotInMemory, SnapshotTemporarilyUnavailable
from raftmq.consensus.trace import Event
from raftmq.consensus.types import Fetch, Role
from raftmq.log.record import Record

# Bound once: looking a member up in its enum class costs 0.1 µs, and these are in the hot path.
_LEADER = Role.LEADER
_APPEND = MessageKind.APPEND
_NO_RECORDS: Sequence[Record] = ()


def send_append(core: Core, to: int, progress: Progress, *, even_if_empty: bool) -> bool:
    """Send the next records, or a snapshot if they are gone. False if nothing was sent.

    An empty append still carries the commit index, and probes where the logs agree.
    """
    if progress.is_flow_paused or progress.state is SNAPSHOT:
        return False
    log = core.log
    previous = progress.next - 1
    previous_term = log.term(previous)
    # Without the term of the record before, no append passes the follower's check (Raft §5.3).
    if previous_term is None:
        return send_snapshot(core, to, progress)

    records, weight = _NO_RECORDS, 0
    # With the window full only empty appends go out: the answer to one shows whether all appends in
    # the window were lost.
    replicating = progress.state is REPLICATE
    if previous < log.last_index and not (replicating and progress.inflights.is_full()):
        # Storage fetches these records already: `Raft.entries_fetched` sends them.
        if to in core.fetching:
            return False
        try:
            records, weight = _read(core, progress.next)
        except Compacted:
            return even_if_empty and send_snapshot(core, to, progress)
        except NotInMemory:
            core.fetching.add(to)
            core.fetches.append(Fetch(to, progress.next, log.last_index + 1))
            return False
    if not records and not even_if_empty:
        return False
    # Log matching (Raft §5.3) rests on it; `follower.on_append` checks the other end.
    assert not records or records[0].index == progress.next, "an append with a gap"
    committed = log.committed
    core.messages.append(
        Message(
            _APPEND,
            to,
            sender=core.id,
            term=core.term,
            log_term=previous_term,
            index=previous,
            commit=committed,
            entries=records,
        )
    )
    progress.sent(len(records), weight)
    progress.sent_commit = committed
    return True


def _read(core: Core, low: int) -> tuple[Sequence[Record], int]:
    """Records from `low` on, and their weight; read once for followers at the same place.

    A leader only appends to its log, so term, first and last index name the same records.
    """
    key = (core.term, low, core.log.last_index)
    if core.last_read_key != key:
        core.last_read = core.log.entries(low, core.config.message_bytes_max)
        core.last_read_key = key
    return core.last_read


def send_snapshot(core: Core, to: int, progress: Progress) -> bool:
    """Send the snapshot to a follower whose next record is gone (Raft §7). False if not sent."""
    # A member that is down takes in nothing: its next answer to a heartbeat brings the snapshot.
    if not progress.is_recently_active:
        core.note(Event.SNAPSHOT_NOT_SENT_INACTIVE, to)
        return False
    try:
        snapshot = core.log.snapshot()
    except SnapshotTemporarilyUnavailable:
        core.note(Event.SNAPSHOT_UNAVAILABLE, to)
        return False
    meta = snapshot.meta
    assert meta.index, "storage has compacted its log without having a snapshot"
    log = core.log
    core.note(
        Event.SNAPSHOT_SENT, log.first_index, log.committed, meta.index, meta.term, to, progress
    )
    progress.become_snapshot(meta.index)
    core.note(Event.REPLICATION_PAUSED, to, progress)
    core.messages.append(
        Message(MessageKind.SNAPSHOT, to, sender=core.id, term=core.term, snapshot=snapshot)
    )
    return True


def broadcast_append(core: Core, *, even_if_empty: bool = True) -> None:
    """Send each member the records that it lacks; with `even_if_empty` a member that lacks none
    gets the commit index."""
    assert core.role is _LEADER, "an append of a node that does not lead"
    for node, progress in core.peers:
        send_append(core, node, progress, even_if_empty=even_if_empty)


def broadcast_heartbeat(core: Core, context: bytes) -> None:
    """Tell each member that this leader is alive; `context` comes back in the answers."""
    assert core.role is _LEADER, "a heartbeat of a node that does not lead"
    committed = core.log.committed
    for node, progress in core.peers:
        # A follower must not commit records that it may lack: only up to its surely matched index.
        commit = min(progress.match, committed)
        core.messages.append(
            Message(
                MessageKind.HEARTBEAT,
                node,
                sender=core.id,
                term=core.term,
                commit=commit,
                context=context,
            )
        )
        progress.sent_commit = commit


def advance_commit(core: Core) -> bool:
    """Commit the records that a majority holds, if the last is of this term. Returns whether any
    were.

    Raft §5.4.2: "Raft never commits log entries from previous terms by counting replicas. Only
    log entries from the leader's current term are committed by counting replicas". All records
    from the leader's no-op on are of its term, so comparing indexes is enough.
    """
    reached = [progress.match for progress in core.incoming]
    if core.outgoing:
        index = joint_committed_index(reached, [progress.match for progress in core.outgoing])
    else:
        index = majority_index(reached)
    if index <= core.log.committed or index < core.term_first_index:
        return False
    core.log.commit_to(index)
    return True
