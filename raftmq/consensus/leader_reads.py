"""The leader's side of linearizable reads.

Thesis §6.4, in its order: (1) the leader must have committed a record of its own term, else it
may not know the latest commit index: earlier reads wait in `pending_reads`; (2) it notes its
commit index; (3) a round of heartbeats proves that it still leads; (4) the machine applies up to
that index and serves the read. Step 4 is the shell's: it receives a `ReadState`.

Sources: thesis §6.4 and §6.4.1; etcd-io/raft.
"""

from raftmq.consensus.config import ReadMode
from raftmq.consensus.core import Core
from raftmq.consensus.messages import Message, MessageKind
from raftmq.consensus.quorum import VoteResult, joint_vote_result
from raftmq.consensus.replication import broadcast_heartbeat
from raftmq.consensus.types import NONE, ReadState


def on_read_request(core: Core, message: Message) -> None:
    """A read of our own, or one that a follower forwarded."""
    requester = core.id if message.sender == NONE else message.sender
    if core.log.committed < core.term_first_index:
        # A sole leader's reads wait, too: the commit index that it came back with may lag behind.
        core.pending_reads.append((requester, message.context))
    else:
        _start(core, requester, message.context)


def start_pending(core: Core) -> None:
    """The first record of this term is committed: start the reads that waited for it."""
    assert core.log.committed >= core.term_first_index, "reads before a commit in this term"
    waiting, core.pending_reads = core.pending_reads, []
    for requester, context in waiting:
        _start(core, requester, context)


def _start(core: Core, requester: int, context: bytes) -> None:
    # Thesis §6.4.1: no other leader is elected while the lease runs; a sole voter is its majority.
    if core.config.read_mode is ReadMode.LEASE or core.membership.is_singleton:
        _grant(core, requester, index=core.log.committed, context=context)
        return
    # Thesis §6.4, step 1: an earlier leader may have committed more than this one knows.
    assert core.log.committed >= core.term_first_index, "a read before a commit in this term"
    core.reads.add(requester, index=core.log.committed, context=context)
    core.reads.echo(core.id, context)
    broadcast_heartbeat(core, context)


def on_echo(core: Core, message: Message) -> None:
    """A follower echoed a read's context: it still took us for the leader when it did."""
    if core.config.read_mode is not ReadMode.SAFE:
        return
    votes = core.reads.echo(message.sender, message.context)
    membership = core.membership
    result = joint_vote_result(membership.incoming, membership.outgoing, votes)
    if result is VoteResult.WON:
        for request in core.reads.grant_to(message.context):
            _grant(core, request.requester, index=request.index, context=request.context)


def _grant(core: Core, requester: int, *, index: int, context: bytes) -> None:
    assert index <= core.log.committed, f"a read at {index}, which is not committed"
    if requester == core.id:
        core.read_states.append(ReadState(index, context))
        return
    core.messages.append(
        Message(
            MessageKind.READ_INDEX_RESPONSE,
            requester,
            sender=core.id,
            term=core.term,
            index=index,
            context=context,
        )
    )
