"""Replicas that moved away: their logs are deleted, once nobody counts on them any more.

A group's members are changed by its leader, who stops telling a member that it removed. So the
replica that is left behind cannot know from its own log that it is no member; it asks.

| condition, for ten seconds | why |
|---|---|
| the catalog names other members, and is up to date | nobody wants this replica |
| the group's leader, of the newest term known, has other members | the change is committed |
| nobody leads the replica, or its own log says that it was removed | it was not added again |

Deleting begins with a file that says so, so that a crash in between leaves no log that looks
damaged: the next start goes on. The empty folder stays.

Invariants:
- A log is deleted on the disk thread, after all that was queued for it there.
- A replica that comes back is opened after its old log is gone.
"""

from functools import partial
from typing import TYPE_CHECKING

import trio

from raftmq.pop.catalog import SYSTEM_GROUP
from raftmq.wire.messages import ClusterView

from .group import Group
from .hosting import GroupOpener
from .views import ask_all
from .world import Worker

if TYPE_CHECKING:
    from .node import Node

UNWANTED_SECONDS = 10.0
"""So long a replica must have been unwanted before anybody is asked."""


class Retiring:
    """The replicas of one node that are no longer wanted."""

    def __init__(self, node: "Node", worker: Worker, opener: GroupOpener) -> None:
        self._node = node
        self._worker = worker
        self._opener = opener
        self._since: dict[int, float] = {}
        self._is_asking = False
        self.under_way: set[int] = set()
        """Groups whose log is being deleted."""

    def think(self) -> None:
        """Look whether there is a replica that nobody wants."""
        now = trio.current_time()
        unwanted = [number for number in self._node.groups if self._is_unwanted(number)]
        self._since = {number: self._since.get(number, now) for number in unwanted}
        due = [n for n, since in self._since.items() if now - since >= UNWANTED_SECONDS]
        if due and not self._is_asking:
            self._is_asking = True
            self._node.start_soon(self._ask, due)

    def _is_unwanted(self, number: int) -> bool:
        wanted = self._node.catalog.groups.get(number)
        if number == SYSTEM_GROUP or wanted is None or self._node.id in wanted.members:
            return False
        group = self._node.groups[number]
        conf = group.conf_state
        is_removed = group.raft.id not in (*conf.voters, *conf.voters_outgoing, *conf.learners)
        return bool(self._node.groups[SYSTEM_GROUP].leader) and (is_removed or not group.leader)

    async def _ask(self, due: list[int]) -> None:
        try:
            views = await ask_all(self._node)
        finally:
            self._is_asking = False
        for number in due:
            if number in self._node.groups and self._is_unwanted(number):
                group = self._node.groups[number]
                if has_left(self._node.id, number, list(views.values()), term=group.raft.term):
                    self._retire(group)

    def _retire(self, group: Group) -> None:
        self._node.forget_group(group)
        self.under_way.add(group.number)
        job = partial(self._opener.discard, group.number, group.store)
        self._worker.submit(job, partial(self._retired, group.number))

    def _retired(self, number: int, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._node.fail(error)
            return
        self.under_way.discard(number)
        # It may be wanted again by now.
        self._node.catalog_changed()


def has_left(node: int, number: int, views: list[ClusterView], *, term: int) -> bool:
    """True if the leader of the newest term, not before `term`, has no such member."""
    known = [group for view in views for group in view.groups if group.id == number]
    led = [group for group in known if group.leader and group.leader != node]
    newest = max(led, key=lambda group: group.term, default=None)
    if newest is None or newest.term < term:
        return False
    # One of them may not have applied the newest change yet: all who know this term must agree.
    said = [group for group in led if group.term == newest.term]
    return all(node not in (*group.voters, *group.learners) for group in said)
