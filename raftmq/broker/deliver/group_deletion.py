"""Deleted consumer groups: data groups forget their offsets, and the catalog then forgets them.

    catalog: deleted at 40 ──> leader of a data group: ForgetOffsets, a part in each record
                           ──> FORGET_GROUP: answered when the machine has come to 40
    all data groups have come to 40 ──> leader of the system group: PruneDeletions(40)

A member of a later group with the deleted name may claim queues before that. The claim waits: else
the later group would begin where the deleted one stood.

    claim of a queue, epoch 60 ──> "try again", and the deletion 40 is proposed
    the same claim, repeated   ──> granted, and nothing is committed

Invariants:
- A member's commits and claims follow all deletions of its group's name before its epoch.
- A record has at most `NAMES_MAX` names with about `ROWS_MAX` rows, so that applying it does not
  hold the loop for long; records keep the catalog's order of deletions.
"""

from collections.abc import Iterator

from raftmq.broker.cluster.views import ask_all
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest
from raftmq.broker.serve.dispatcher import data_group, group_route
from raftmq.broker.service import Service
from raftmq.broker.tickets import Callback
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.catalog.deletions import Deletion, PruneDeletions
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.offsets import CommitOffsets, ForgetOffsets, Offsets
from raftmq.wire.consumer_groups import ForgetGroup
from raftmq.wire.messages import ClusterView, Done, ErrorReply, FrameKind

NAMES_MAX = 1000
"""Names in one record."""
ROWS_MAX = 20_000
"""Offsets and epochs behind the names of one record, and those of one name more."""
RETRY_MS = 20
"""A node that has not heard of a deletion yet is asked again after this time."""


class Forgetting(Service):
    """The handler of FORGET_GROUP."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self.routes = {
            FrameKind.FORGET_GROUP: group_route(ForgetGroup, data_group(node), self._forget),
        }

    def _forget(self, request: ForgetGroup, group: Group, asked: OpenRequest) -> Answer:
        """Answer if all is forgotten, else propose the next part and come back after it."""
        assert isinstance(group.machine, PartitionMachine)
        catalog, offsets = self._node.catalog, group.machine.offsets
        # Any replica may answer this: a record that it has applied is committed.
        if offsets.forgotten >= request.until:
            return Done()
        if not group.is_leader:
            return group.not_leader()
        command = next_part(catalog, offsets) if group.is_current else None
        if command is None or catalog.deletions.last < request.until:
            message = "the leader has not heard of the deletion yet"
            return ErrorReply("unavailable", message, group=group.number, retry_ms=RETRY_MS)
        ticket = Callback(lambda _: asked.answer(self._forget(request, group, asked)), asked.failed)
        group.propose(Kind.COMMANDS, encode_commands([command]), ticket, is_upkeep=True)
        return LATER


def forget_first(catalog: Catalog, group: Group, command: CommitOffsets) -> ErrorReply | None:
    """Why an owner must send a commit again: a deletion before its epoch is carried out first.
    None: the commit may be proposed. A plain commit names no epoch and waits for no deletion."""
    epoch = max(command.epochs, default=0)
    if not epoch:
        return None
    assert isinstance(group.machine, PartitionMachine)
    offsets = group.machine.offsets
    # Epochs are indexes of the catalog's log: before `epoch`, this catalog may lack a deletion.
    if catalog.applied >= epoch:
        forgotten = offsets.forgotten
        if all(not forgotten < at < epoch for at in _deletions(catalog, command.consumer_group)):
            return None
        part = next_part(catalog, offsets) if group.is_current else None
        if part is not None:
            ticket = Callback(lambda _: None, lambda _: None)
            group.propose(Kind.COMMANDS, encode_commands([part]), ticket, is_upkeep=True)
    message = "an earlier consumer group with this name is not removed yet"
    return ErrorReply("unavailable", message, group=group.number, retry_ms=RETRY_MS)


def _deletions(catalog: Catalog, name: str) -> Iterator[int]:
    """Indexes of the deletions that take what is kept under a name, of a group or an instance."""
    of_group, separator, _ = name.rpartition("@")
    for each in (name, of_group if separator else ""):
        deletion = catalog.deletions.find(each)
        if deletion is not None and (each == name or deletion.has_instances):
            yield deletion.index


def next_part(catalog: Catalog, offsets: Offsets) -> ForgetOffsets | None:
    """The next record for a data group's log; None: the group has carried out all deletions that
    this node's catalog knows of."""
    since = until = offsets.forgotten
    names: list[str] = []
    deletions: list[int] = []
    rows = 0
    for deletion in catalog.deletions.after(since):
        for name in _names(deletion, offsets):
            if len(names) >= NAMES_MAX or rows >= ROWS_MAX:
                return ForgetOffsets(names, deletions, since, until, offsets.parts)
            names.append(name)
            deletions.append(deletion.index)
            rows += offsets.rows(name)
        until = deletion.index
    return ForgetOffsets(names, deletions, since, until, offsets.parts) if names else None


def _names(deletion: Deletion, offsets: Offsets) -> Iterator[str]:
    # Also if nothing is kept under the name, so that a late commit of a member is fenced.
    yield deletion.name
    if deletion.has_instances:
        prefix = f"{deletion.name}@"
        for name in {**offsets.committed, **offsets.epochs}:
            # Later instances stay: if parts listed those, the parts would never come to an end.
            if name.startswith(prefix) and offsets.has_older(name, deletion.index):
                yield name


async def find_done(node: Host) -> PruneDeletions | None:
    """The deletions that all data groups have carried out; None: there are none, by the answers of
    the nodes that answer in time.

    Cancelling leaves nothing behind.
    """
    views = list((await ask_all(node)).values())
    until = forgotten_everywhere(node.catalog, views)
    first = next(node.catalog.deletions.after(0), None)
    return PruneDeletions(until) if first is not None and first.index <= until else None


def forgotten_everywhere(catalog: Catalog, views: list[ClusterView]) -> int:
    """The deletion up to which every data group has carried out all."""
    # A record that one replica has applied is committed, so a group's furthest replica counts.
    furthest = {number: 0 for number in catalog.groups if number != SYSTEM_GROUP}
    for view in views:
        for group in view.groups:
            if group.id in furthest:
                furthest[group.id] = max(furthest[group.id], group.forgotten)
    return min(furthest.values(), default=0)
