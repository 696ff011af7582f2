"""The deletion of a consumer group, in all parts of the catalog; see `deletions`."""

from raftmq.errors import Reason
from raftmq.pop.policy import Mode
from raftmq.results import Changed, Refused, Result

from .consumer_groups import GROUPS_MAX, DeleteConsumerGroup
from .deletions import DONE_MAX, Deletion
from .membership import JoinGroup
from .state import CatalogState

DELETIONS_MAX = 10_000
"""Deletions that wait for data groups; each node keeps them all in memory."""

_SHOWN = 140
"""Characters of a name in a message."""


def delete_group(catalog: CatalogState, command: DeleteConsumerGroup) -> Result:
    """Delete a consumer group: the value is the deletion's index; None for the old command, which
    leaves committed offsets where they are."""
    name, index = command.name, catalog.applied + 1
    since = 0 if command.seen is None else catalog.deletions.since(name, command.seen)
    if since is None:
        message = f"{DONE_MAX} consumer groups were deleted since this was asked: ask again"
        return Refused(Reason.TOO_LARGE, message)
    if since:
        return Changed(since)
    refused = _check(catalog, command)
    if refused is not None:
        return refused
    known = catalog.consumer_groups.groups.get(name)
    pending = catalog.deletions.find(name)
    catalog.memberships.expel(name, index)
    had_filters = catalog.subscribers.drop_group(name, index)
    was_there = catalog.consumer_groups.delete(name, index) or had_filters
    if not command.is_whole:
        return Changed() if was_there else _unknown(name)
    if not was_there and not command.has_offsets:
        return _unknown(name)
    broadcast = known is not None and known.mode is Mode.BROADCAST
    # The earlier deletion gives way to this one, which has to do its work as well.
    has_instances = broadcast or (pending is not None and pending.has_instances)
    catalog.deletions.add(Deletion(name, index, has_instances))
    return Changed(index)


def is_expelled(catalog: CatalogState, command: JoinGroup) -> bool:
    """True if a member that joins again does so because its group, which has no entry, is deleted:
    not because there were too many groups for one."""
    return command.must_exist and len(catalog.consumer_groups.groups) < GROUPS_MAX


def gone(name: str) -> Refused:
    """The refusal for a member of a deleted group."""
    message = f"consumer group {name!r} was deleted: open the consumer again to create it"
    return Refused(Reason.UNKNOWN_GROUP, message)


def _check(catalog: CatalogState, command: DeleteConsumerGroup) -> Refused | None:
    """Why a consumer group cannot be deleted now."""
    name = command.name
    members = catalog.memberships.count(name)
    if members and not command.is_forced:
        message = (
            f"consumer group {name[:_SHOWN]!r} has {members} members: stop them first, "
            "or force it, which ends them with an error"
        )
        return Refused(Reason.BAD_ARGUMENT, message)
    if not command.is_whole:
        return None
    if len(catalog.deletions) >= DELETIONS_MAX and catalog.deletions.find(name) is None:
        message = (
            f"{DELETIONS_MAX} deleted consumer groups wait for partition groups without a leader: "
            "delete this one when these have one again"
        )
        return Refused(Reason.TOO_LARGE, message)
    known = catalog.consumer_groups.groups
    if name in known and known[name].mode is Mode.BROADCAST:
        taken = next((other for other in known if other.startswith(f"{name}@")), None)
        if taken is not None:
            message = (
                f"consumer group {taken!r} has the name of an instance of {name!r}: delete it first"
            )
            return Refused(Reason.BAD_NAME, message)
    return None


def _unknown(name: str) -> Refused:
    message = f"there is no consumer group {name[:_SHOWN]!r}: list the existing ones"
    return Refused(Reason.UNKNOWN_GROUP, message)
