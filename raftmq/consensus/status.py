"""A node's statistics at one moment: a frozen picture for people and for dashboards."""

from typing import NamedTuple

from raftmq.consensus.membership import Membership
from raftmq.consensus.progress import Progress, ProgressState
from raftmq.consensus.types import HardState, Role


class ProgressStatus(NamedTuple):
    """A leader's view of one member."""

    state: ProgressState
    match: int
    """Highest index known to be durable there."""
    next: int
    """Index that is sent next."""
    pending_snapshot: int
    """Index of the snapshot on its way, or 0."""
    is_paused: bool
    """Whether nothing is sent for now."""
    is_recently_active: bool
    """Whether it answered since the last CheckQuorum."""
    is_learner: bool


class Status(NamedTuple):
    """One node of one group."""

    id: int
    role: Role
    leader: int
    """The leader as far as this node knows, or `NONE`."""
    hard_state: HardState
    membership: Membership
    transferee: int
    """Leader: the member that it is handing over to, or `NONE`."""
    first_index: int
    last_index: int
    applied: int
    uncommitted_bytes: int
    """Leader: record bytes appended and not applied."""
    progress: dict[int, ProgressStatus]
    """Leader: by member, itself included. Empty on others."""


def progress_status(progress: Progress) -> ProgressStatus:
    """The picture of one progress."""
    return ProgressStatus(
        state=progress.state,
        match=progress.match,
        next=progress.next,
        pending_snapshot=progress.pending_snapshot,
        is_paused=progress.is_paused,
        # A look just after a CheckQuorum would find no one active.
        is_recently_active=progress.is_recently_active or progress.was_recently_active,
        is_learner=progress.is_learner,
    )
