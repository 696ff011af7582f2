"""Majorities, single and joint: the committed index, and the state of an election.

A *majority* is decided by a set of voter ids. A *joint* membership (thesis §4.3) has two such
sets, and every decision needs both. An empty set decides nothing and so never holds up the other:
its committed index is `INFINITE`, its elections are won.

Invariants:
- The committed index is the highest one that at least a majority of each set has reached.
- Interchanging the two halves changes no result.

Sources: Raft §5.3 and §5.4; thesis §4.3; etcd-io/raft's quorum package, whose data files are run
against this module.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

INFINITE = 2**64 - 1
"""The committed index of an empty set of voters."""


class VoteResult(Enum):
    """How an election stands."""

    PENDING = 1
    """Votes still out decide it."""
    LOST = 2
    """A majority is out of reach."""
    WON = 3
    """A majority said yes."""


def majority_index(reached: list[int]) -> int:
    """The highest index that a majority has reached, given what each voter has.

    >>> majority_index([7, 5, 0])
    5
    """
    if not reached:
        return INFINITE
    reached.sort()
    # A majority of n is n // 2 + 1: that many values stand at this place and above it.
    return reached[(len(reached) - 1) // 2]


def joint_committed_index(incoming: list[int], outgoing: list[int]) -> int:
    """Thesis §4.3: agreement needs majorities of both memberships, so the lower one counts."""
    return min(majority_index(incoming), majority_index(outgoing))


def vote_result(voters: Iterable[int], votes: Mapping[int, bool]) -> VoteResult:
    """How the election stands among `voters`; a voter missing from `votes` has not answered."""
    answers = [votes.get(voter) for voter in voters]
    if not answers:
        return VoteResult.WON
    needed = len(answers) // 2 + 1
    yes = answers.count(True)
    if yes >= needed:
        return VoteResult.WON
    if yes + answers.count(None) >= needed:
        return VoteResult.PENDING
    return VoteResult.LOST


def joint_vote_result(
    incoming: Iterable[int], outgoing: Iterable[int], votes: Mapping[int, bool]
) -> VoteResult:
    """Thesis §4.3: a joint election is won in both halves, and lost in either."""
    one, other = vote_result(incoming, votes), vote_result(outgoing, votes)
    if one is other:
        return one
    if VoteResult.LOST in (one, other):
        return VoteResult.LOST
    return VoteResult.PENDING
