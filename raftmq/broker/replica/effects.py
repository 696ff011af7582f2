"""The effects of a group: all that `Group.pump` and `Group.persisted` ask their process to do, in
order. The answers to tickets and reads are not effects: the group calls them itself.

The broker's node and the core simulator perform them, each with one `match` over this closed union.
An effect is performed before the next one is computed.

Sources: etcd-io/raft's `Ready`; openraft's engine and its commands.
"""

import msgspec

from raftmq.consensus import Message, Snapshot
from raftmq.log.record import Record
from raftmq.results import Result


class Send(msgspec.Struct, frozen=True):
    """Send a consensus message to another member, best effort."""

    message: Message


class Persist(msgspec.Struct, frozen=True):
    """Make a storage message durable, then call `Group.persisted` with it."""

    message: Message


class ReadBack(msgspec.Struct, frozen=True):
    """Read the records [low, high) back from disk for a follower, then call `Group.fetched`."""

    peer: int
    low: int
    high: int


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Take a snapshot of the machine, which has just applied `record`, the last one before a
    segment. The machine goes on with the next effect."""

    record: Record


class RestoreSnapshot(msgspec.Struct, frozen=True):
    """Put the state of a snapshot, which took the place of the log, in place of the machine's."""

    snapshot: Snapshot


class Applied(msgspec.Struct, frozen=True):
    """Records were applied, and their tickets answered: place them in the indexes, and let fetches
    and services act on them."""

    records: list[Record]
    results: list[list[Result]]
    """The results of each record."""


class Led(msgspec.Struct, frozen=True):
    """The group won or lost the leadership."""

    is_leader: bool


class NoteLoss(msgspec.Struct, frozen=True):
    """A leader counts records as this replica's that are not here: note the loss on disk."""


class EndAbstention(msgspec.Struct, frozen=True):
    """The replica was cut, and holds again all that it ever acknowledged: let it count."""


Effect = (
    Send
    | Persist
    | ReadBack
    | TakeSnapshot
    | RestoreSnapshot
    | Applied
    | Led
    | NoteLoss
    | EndAbstention
)
