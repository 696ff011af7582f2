"""Reports of storage and the machine: durable, installed, applied.

Sources: etcd-io/raft's asynchronous storage writes; thesis §3.8 on what must be durable.
"""

from raftmq.consensus import leader, patience
from raftmq.consensus.core import Core
from raftmq.consensus.messages import Message
from raftmq.consensus.storage import Compacted, NotInMemory
from raftmq.consensus.types import Snapshot
from raftmq.log.record import Kind


def on_stored(core: Core, message: Message) -> None:
    """Storage holds the log up to the message's (index, log_term), its snapshot, and the term and
    vote of when it was asked."""
    patience.on_stored(core, message.term, message.vote)
    if message.index:
        core.log.unstable.stable_to(message.index, message.log_term)
    if message.snapshot is not None:
        on_snapshot_stored(core, message.snapshot)


def on_snapshot_stored(core: Core, snapshot: Snapshot) -> None:
    """Storage and the machine hold `snapshot`."""
    index = snapshot.meta.index
    core.log.unstable.snapshot_stable_to(index)
    applied_to(core, index)


def on_applied(core: Core, message: Message) -> None:
    """The machine has applied the message's records."""
    if message.entries:
        applied_to(core, message.entries[-1].index)


def applied_to(core: Core, index: int) -> None:
    """The machine has applied all up to `index`; a joint membership may be left now."""
    log = core.log
    freed = log.applied_to(max(index, log.applied))
    assert log.applied <= log.applying, "a record is applied that was not handed out"
    if core.uncommitted_bytes:
        # Records of an earlier leader were never counted, so this may only underestimate.
        core.uncommitted_bytes = max(0, core.uncommitted_bytes - freed)
    if core.membership.auto_leave:
        leader.leave_joint_if_due(core)


def has_unapplied_change(core: Core) -> bool:
    """Whether a committed membership change waits to be applied. Unknown counts as yes."""
    log = core.log
    index = log.applied + 1
    while index <= log.committed:
        try:
            records, _ = log.entries(index, core.config.committed_bytes_max)
        except (Compacted, NotInMemory):
            return True
        known = records[: log.committed + 1 - index]
        assert known, f"the committed record {index} is nowhere"
        if any(record.kind == Kind.MEMBERSHIP for record in known):
            return True
        index += len(known)
    return False
