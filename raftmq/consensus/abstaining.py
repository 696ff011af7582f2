"""A member that lost a part of its log, and may have vouched for it: when does it count again?

Its shell found rot, cut the log before it, and starts the core with `Config.abstains` in a term T0
above all terms in which the member can have voted or acknowledged anything. It follows, stores and
acknowledges what a leader sends; it does not campaign, and grants neither votes nor pre-votes.

It counts again when its commit index stands on a record of the present term that is on its own
disk. Why that suffices, for 2f + 1 voters: let r be any record that was or will be committed in a
term before T0, by f + 1 acknowledgements of which ours may be one that we lost. The leader of the
present term T >= T0 was elected by f + 1 votes, none of them ours: before the loss we were in no
such term, after it we gave none. Of the 2f other members f acknowledged r, so one of them also
voted for the leader, and acknowledged r before it did, as r is of an earlier term. By Raft's
argument (§5.4.3) the leader's log had r at its election, before its first record of term T. A
commit index on a record of term T lies behind all those, our log equals the leader's up to there
(log matching), and it is durable. Acknowledgements in T itself came after the loss: we have them.

With k such members it is the same sum: of r's majority f + 1 - k at least did not lose it, the
leader had f + 1 votes of the 2f + 1 - k others, and the two overlap.

Invariants:
- An abstaining member's acknowledgements may be counted: they are kept, and its vote elects no
  leader before it holds all that counted.

Left out: a change of members in between; each of its quorums overlaps with the one before, and the
sums are the same.

Sources: Protocol-Aware Recovery (FAST '18) §3.3, §3.4; Raft §5.4; "Viewstamped Replication
Revisited" §4.3.
"""

from raftmq.consensus.core import Core
from raftmq.consensus.types import NONE


def may_count_again(core: Core) -> bool:
    """Whether an abstaining member holds again all that it can ever have acknowledged."""
    log = core.log
    return (
        core.leader != NONE
        and log.unstable.snapshot is None
        and log.committed < log.unstable.offset
        and log.term(log.committed) == core.term
    )
