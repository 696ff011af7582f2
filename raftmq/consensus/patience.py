"""Elections on a slow disk.

A vote counts once it is durable. Where that takes as long as an election timeout, as when the many
groups of a node elect at once on a busy disk, fixed timeouts find no leader for minutes: the next
candidate overtakes each one whose votes are still on their way to the disks. So, while no leader is
known:

- the election timer stands still until our own term and vote are durable;
- they take the others about as long, so the next timeouts are longer by twice the ticks it took;
- after a slow vote, a pre-candidate that we would vote for restarts our timer. Only once between
  two campaigns of ours: it may be one that hears no answers;
- the shell's wishes to campaign are ignored: the timer alone decides.

Where no tick passes while a vote is written, nothing differs from Raft §5.2. With a leader all of
this ends.

Sources: Raft §5.6: the time that a vote takes must stay well below the election timeout; it
counts the write to stable storage, 0.5 ms to 20 ms.
"""

from raftmq.consensus.core import Core
from raftmq.consensus.types import NONE, Role

VOTE_TIMEOUTS_MAX = 4
"""Bound of the ticks that a vote is taken to need, in shortest election timeouts: a disk that stood
still for an hour says nothing about the next vote."""


def has_to_wait(core: Core) -> bool:
    """One tick of anyone but a leader: whether the election timer stands still."""
    written = core.votes_written
    if core.leader != NONE:
        was_slow = written.ticks > 0
        written.forget()
        if was_slow:
            core.draw_timeout()
        return False
    if not _is_under_way(core):
        return False
    written.ticks_so_far += 1
    return True


def is_slow(core: Core) -> bool:
    """Whether votes take so long that the election timer alone may begin a campaign."""
    return core.leader == NONE and (_is_under_way(core) or core.votes_written.ticks > 0)


def _is_under_way(core: Core) -> bool:
    is_durable = core.votes_written.durable == (core.term, core.vote)
    return core.config.waits_for_votes and not is_durable


def on_stored(core: Core, term: int, vote: int) -> None:
    """Term and vote are durable."""
    written = core.votes_written
    written.durable = (term, vote)
    if written.durable != (core.term, core.vote):
        return
    before = written.ticks
    written.ticks = min(written.ticks_so_far, VOTE_TIMEOUTS_MAX * core.config.election_ticks)
    written.ticks_so_far = 0
    if (before or written.ticks) and core.role is not Role.LEADER:
        core.election_elapsed = 0
        core.draw_timeout()


def yield_once(core: Core) -> None:
    """A pre-candidate gets our answer that we would vote for it."""
    written = core.votes_written
    if core.leader == NONE and written.ticks and not written.has_yielded:
        written.has_yielded = True
        core.election_elapsed = 0
