"""The published bugs of pysyncobj 0.3.11: the promise that each bug breaks, or why no run shows it.

A bug counts as found if the harness's checkers find its invariant broken in a run. Where another
cause breaks the same invariant, the bug has a function (`look`) that searches the evidence for it.

Sources: SandTable (EuroSys 2024); the issues and pull requests of bakwc/PySyncObj as numbered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftmq.checkers.servers.evidence import Evidence, Moment

Look = Callable[[Evidence], str]
"""A sentence that shows the bug in the evidence; empty: the evidence does not show it."""


def commit_falls_over_a_standing_log(evidence: Evidence) -> str:
    """The commit index falls while the log stays: the node copied the leader's commit index."""
    last: dict[int, Moment] = {}
    for moment in evidence.timeline:
        before = last.get(moment.node)
        last[moment.node] = moment
        if before is None or before.incarnation != moment.incarnation:
            continue
        if moment.commit < before.commit <= moment.last:
            return (
                f"node {moment.node}'s commit index fell from {before.commit} to {moment.commit}, "
                f"though its log reaches {moment.last}"
            )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One published bug."""

    issue: str
    """Number of the issue in bakwc/PySyncObj."""
    what: str
    """The bug in one sentence."""
    invariant: str = ""
    """The promise of Raft that the bug breaks; empty: no run can show the bug, see `reason`."""
    look: Look | None = None
    """Finds the bug where the broken invariant may have another cause; None: the invariant does."""
    reason: str = ""
    """Why no run can show the bug."""

    def __post_init__(self) -> None:
        assert bool(self.invariant) != bool(self.reason), self

    def shown(self, broken: Mapping[str, str], evidence: Evidence) -> str:
        """A sentence that shows the bug in a run; empty: the run does not show it."""
        if self.look is not None:
            return self.look(evidence)
        return broken.get(self.invariant, "")


BUGS = (
    Bug(
        issue="166",
        what="A follower takes the leader's commit index as it is, also if its own is higher.",
        invariant="R7",
        look=commit_falls_over_a_standing_log,
    ),
    Bug(
        issue="167",
        what="A late answer takes a match index back.",
        invariant="R9",
    ),
    Bug(
        issue="167",
        what="Next indexes and match indexes are set apart, so that the next one may be the lower.",
        invariant="R10",
    ),
    Bug(
        issue="169",
        what="A leader commits entries of older terms by counting copies.",
        invariant="R12",
    ),
    Bug(
        issue="201",
        what="The term is forgotten at a restart.",
        invariant="R6",
    ),
    Bug(
        issue="84",
        what="The vote is forgotten at a restart.",
        invariant="R11",
    ),
    Bug(
        issue="202",
        what="After a restart of all, committed entries are overwritten.",
        invariant="L8",
    ),
    Bug(
        issue="84",
        what="The journal is never synced: a power loss takes what was acknowledged.",
        reason="the journal is a memory-mapped file of the real file system; the simulated disk, "
        "which knows what was synced, would have to lie under it",
    ),
    Bug(
        issue="161",
        what="A connection that broke while it was made counts as connected, and sending over it "
        "raises.",
        reason="it is in the TCP transport, whose place the simulated one takes",
    ),
)
"""Bugs that a run can show, then bugs that no run can show."""
