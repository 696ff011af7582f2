"""Rolling upgrades: when the cluster's feature level may rise, and what is refused until then.

See `raftmq.machine.catalog.levels` for what a level is.

    nodes 1, 2, 3 allow level   1, 1, 1    the cluster is at 1
                                2, 1, 1    still: node 1 writes what the others read
                                2, 2, 2    and all are connected: the leader raises it

A node *knows* the levels of its software (`Hello.level`), and *allows* as many of them as its
setting `node.level_max` says (`Welcome.level`): with a bound the cluster stays there, and the nodes
can be taken back to the older software.

Invariants:
- The level is raised only while all nodes of the catalog are connected to the leader and allow the
  new one. (A node that is taken back to older software after that stops.)
"""

from raftmq.broker.host import Host
from raftmq.broker.serve.connection import Refusal
from raftmq.broker.settings import Settings
from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import Command, Once
from raftmq.machine.catalog.levels import (
    DRAIN_LEVEL,
    FIRST_LEVEL,
    GROUPS_LEVEL,
    LEVEL,
    MOVES_LEVEL,
    SETTINGS_LEVEL,
    VERSIONS,
)
from raftmq.machine.catalog.nodes import AddGroup, DrainNode, MoveGroup
from raftmq.machine.catalog.settings import PutSettings
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.wire.messages import ErrorReply, Hello


def allowed_level(settings: Settings) -> int:
    """The highest level that a node with these settings allows."""
    return min(LEVEL, settings.node.level_max or LEVEL)


def record_version(level: int, *, partition_group: int) -> int:
    """The version of the records that are proposed at a level."""
    versions = VERSIONS[level]
    return versions.catalog if partition_group == SYSTEM_GROUP else versions.data


def next_level(node: Host) -> int:
    """The level that the cluster may have now: the highest that all nodes allow, if all are
    connected, and never less than it has."""
    common = min(_allowed_by(node, number) for number in node.catalog.nodes)
    return max(common, node.catalog.level)


def check_level(hello: Hello, level: int) -> None:
    """Raises `Refusal` if a node's software is older than the cluster's level."""
    known = max(FIRST_LEVEL, hello.level)
    if hello.node and known < level:
        message = (
            f"the cluster is at feature level {level}, and {hello.software} at node {hello.node} "
            f"knows levels up to {known}: upgrade that node"
        )
        raise Refusal(ErrorReply(Reason.OLD_SOFTWARE.value, message))


def why_too_early(node: Host, command: Command) -> ErrorReply | None:
    """On the leader of the system group: the refusal of a command that older software does not
    know, as long as a node runs it."""
    change = command.change if isinstance(command, Once) else command
    level = node.catalog.level
    match change:
        case DrainNode():
            what, needed = "draining", DRAIN_LEVEL
        case MoveGroup():
            what, needed = "moving a group", MOVES_LEVEL
        case AddGroup():
            what, needed = "adding a group", GROUPS_LEVEL
        case PutSettings():
            what, needed = "a dynamic setting", SETTINGS_LEVEL
        case _:
            return None
    if level >= needed:
        return None
    behind = [number for number in node.catalog.nodes if _allowed_by(node, number) < needed]
    if behind:
        nodes = ", ".join(map(str, behind))
        why = f"node {nodes} has older software or `node.level_max`, or is not connected"
    else:
        why = "it rises in a moment"
    message = f"{what} needs feature level {needed}, and the cluster is at {level}: {why}"
    return ErrorReply(Reason.OLD_SOFTWARE.value, message)


def _allowed_by(node: Host, number: int) -> int:
    """The highest level that a node allows, by its own word; 0: it is not connected."""
    if number == node.id:
        return node.links.level
    link = node.links.get(number)
    return link.level if link is not None and link.is_connected else 0
