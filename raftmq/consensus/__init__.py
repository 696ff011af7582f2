"""Raft without I/O: one pure core that takes in events and says what to do.

Start reading at `core` (the state, figure 2 of the paper), then `election`, `leader` and
`replication`, `follower`; then `ready`, and `raft` for the public methods.
docs/tour/raft.md has each section of the paper with its code, tests and invariants.

**The loop.** One `Raft` is one node of one group. The shell calls it from one thread:

    raft = Raft(Config(id=1, draw=rng.randrange), storage)
    each tick:              raft.tick()
    each message:           raft.step(message)
    each client's append:   raft.propose([(Kind.BATCH, payload, 1)], now=ms)
    then:                   while raft.has_ready(): do(raft.ready())

**The order of effects**, synchronous mode. For each `Ready`, before `advance()`:

1. *persist*: `snapshot`, then `entries` (superseding what is stored from their first index on),
   then `hard_state`; one fdatasync if `must_sync`. A failed sync ends the process.
2. *send* `messages`. Not before 1: they promise what 1 makes durable. They may be sent after or
   while 3 runs; loss, doubling and reordering are allowed. A leader's APPENDs alone may be sent
   before 1, to write its own disk and the followers' in parallel (thesis §10.2.1).
3. *apply* `committed` in order, after 1; a MEMBERSHIP record through `apply_membership`.
   `read_states` are served once their index is applied.
4. `advance()`.

**With `async_storage_writes`** there is no `advance()`, and several `Ready` may be under way. The
work of 1 is a STORAGE_APPEND message to `APPEND_THREAD`, that of 3 a STORAGE_APPLY message to
`APPLY_THREAD`. Each thread must take its messages in order and lose none; the threads need not
wait for each other. All other messages may be sent *at once*. When a STORAGE_APPEND is durable,
its `responses` are delivered in order: those to this node through `step`, the others over the
network. Responses to peers hold votes and acknowledgements, so they must never leave earlier.
An append with no responses needs no sync. A crash loses only appends without a response yet.
A snapshot in a STORAGE_APPEND replaces log and machine; from the `Ready` that holds it on, queued
STORAGE_APPLY records at or below its index must no longer be applied, though their responses may
still be stepped. The recovered state must never claim a commit index past the last record that is
left, nor one below a MEMBERSHIP record that is followed by another: the later record proves that
the earlier is committed, and a member that forgets it would elect by the membership before both.

**Founding and joining.** Each first member starts from the same snapshot, at index 1 or above, and
its membership names them all. A node that joins later starts empty and is sent a snapshot first,
even one older than its own addition.

**Losing messages on purpose** is allowed: of several APPENDs to one peer in a `Ready`, an empty one
that is followed by another carries nothing that the later one does not.

**Records.** The leader encodes (`raftmq.log.record.encode`) in `propose`; followers write the same
bytes. A record's chain field holds the CRC of the one before it.

**Errors.** A refused proposal raises `ProposalDropped`, an impossible membership change
`InvalidChange`. Everything that cannot happen is an assert and stops the node.

Invariants (checked at every event of the simulation in `raftmq.chaos.core`):
- Election safety, leader append-only, log matching, leader completeness, state machine safety
  (Raft figure 3).

Left out: a snapshot's transport in chunks (the shell's), batching of reads, quiescence of idle
groups, witnesses.

Sources: Raft, extended version (Ongaro and Ousterhout, 2014) and Ongaro's thesis; etcd-io/raft,
whose behaviour and test data this follows.
"""

from raftmq.consensus.changes import (
    Change,
    ChangeKind,
    MembershipChange,
    Transition,
    decode_change,
    encode_change,
)
from raftmq.consensus.config import Config, ReadMode
from raftmq.consensus.membership import InvalidChange, Membership
from raftmq.consensus.messages import APPEND_THREAD, APPLY_THREAD, Message, MessageKind, Proposal
from raftmq.consensus.progress import ProgressState
from raftmq.consensus.raft import Raft
from raftmq.consensus.ready import Ready
from raftmq.consensus.status import ProgressStatus, Status
from raftmq.consensus.storage import (
    Compacted,
    MemoryStorage,
    NotInMemory,
    SnapshotTemporarilyUnavailable,
    Storage,
)
from raftmq.consensus.trace import Event, Trace
from raftmq.consensus.types import (
    NONE,
    UNLIMITED,
    ConfState,
    DropReason,
    Fetch,
    HardState,
    ProposalDropped,
    ReadState,
    Role,
    Snapshot,
    SnapshotMeta,
    SoftState,
    StepRefusal,
)

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "NONE",
    "UNLIMITED",
    "Change",
    "ChangeKind",
    "Compacted",
    "ConfState",
    "Config",
    "DropReason",
    "Event",
    "Fetch",
    "HardState",
    "InvalidChange",
    "Membership",
    "MembershipChange",
    "MemoryStorage",
    "Message",
    "MessageKind",
    "NotInMemory",
    "ProgressState",
    "ProgressStatus",
    "Proposal",
    "ProposalDropped",
    "Raft",
    "ReadMode",
    "ReadState",
    "Ready",
    "Role",
    "Snapshot",
    "SnapshotMeta",
    "SnapshotTemporarilyUnavailable",
    "SoftState",
    "Status",
    "StepRefusal",
    "Storage",
    "Trace",
    "Transition",
    "decode_change",
    "encode_change",
]
