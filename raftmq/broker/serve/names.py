"""New names of consumer groups, instances and producer groups: refused here if they break the rule.

Nothing is refused when a record is applied: logs of older software may hold other names, and a
record must have one result on all replicas. A name that the cluster has stays in use.
"""

from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import Catalog, Command, Once
from raftmq.machine.catalog.consumer_groups import Attach, PutConsumerGroup
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.catalog.subscribers import Subscribe
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.names import NAME_CHARACTERS_MAX, why_no_name
from raftmq.wire.messages import ErrorReply

GROUP = "consumer group"


def misnamed(command: Command, catalog: Catalog) -> ErrorReply | None:
    """The refusal of a change of the catalog that brings a name against the rule; else None."""
    if isinstance(command, Once):
        command = command.change
    match command:
        case PutConsumerGroup():
            problem = _of_group(command.name, catalog)
        case Attach() | Subscribe():
            problem = _of_group(command.consumer_group, catalog)
        case JoinGroup():
            problem = _of_group(command.consumer_group, catalog) or _of_instance(command, catalog)
        case _:
            problem = ""
    return _refusal(problem)


def misnamed_commit(name: str, machine: PartitionMachine, catalog: Catalog) -> ErrorReply | None:
    """The refusal of a commit for a group, or for `group@instance`, against the rule; else None."""
    group, at, instance = name.partition("@")
    problem = why_no_name(group, GROUP) or (why_no_name(instance, "instance") if at else "")
    if not problem and len(name) > NAME_CHARACTERS_MAX:
        most = f"a group and its instance have {NAME_CHARACTERS_MAX} characters"
        problem = f"{name[:140]!r} is too long: {most} with the @ at the most"
    is_known = bool(problem) and (
        bool(machine.offsets.rows(name))
        or not _of_group(name, catalog)
        # The group's own name is known, and its instance's is right.
        or bool(at and not _of_group(group, catalog) and not why_no_name(instance, "instance"))
    )
    return None if is_known else _refusal(problem)


def misnamed_producers(name: str) -> ErrorReply | None:
    """The refusal of a producer group against the rule; else None. Empty: there is none."""
    return _refusal(why_no_name(name, "producer group") if name else "")


def _of_group(name: str, catalog: Catalog) -> str:
    problem = why_no_name(name, GROUP)
    if not problem or name in catalog.consumer_groups.groups:
        return ""
    known = (name in groups for groups in catalog.subscribers.of_topic.values())
    return "" if any(known) else problem


def _of_instance(command: JoinGroup, catalog: Catalog) -> str:
    problem = why_no_name(command.instance, "instance") if command.instance else ""
    places = catalog.memberships.assignments.values() if problem else ()
    known = (
        member.instance == command.instance
        for place in places
        if place.consumer_group == command.offsets_name
        for member in place.members.values()
    )
    return "" if any(known) else problem


def _refusal(problem: str) -> ErrorReply | None:
    return ErrorReply(Reason.BAD_NAME.value, problem) if problem else None
