"""The state of one process that checks and watched parts see: a `Replica` without its work."""

from raftmq.broker.replica.group import Group
from raftmq.chaos.core.checks.views import View
from raftmq.chaos.core.host import Host
from raftmq.chaos.core.replica.machine import Machine
from raftmq.consensus import ConfState, Role
from raftmq.consensus.core import Core
from raftmq.log.record import Record


class Process:
    """One life of one node's process; `Replica` makes the parts and works with them."""

    group: Group
    """The partition group, as the broker has it."""
    core: Core
    """The state of consensus."""
    machine: Machine
    """The group's machine, without the checks around it."""
    view: View
    """The log as consensus has it, durable or not."""

    def __init__(self, node: Host) -> None:
        self.node = node
        self.ticks = self.led_since = self.conf_tick = 0
        """Ticks of this life; when it began to lead; when its members last changed."""
        self.heard: dict[int, int] = {}
        """Leader: by node, the tick of its last message."""

    @property
    def conf_state(self) -> ConfState:
        """The membership after the last applied record."""
        return self.group.conf_state

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.core.role is Role.LEADER

    def membership_applied(self, record: Record) -> None:
        """A membership change took effect, or was refused."""
        self.node.knows_members(record.index, self.conf_state)
        self.conf_tick = self.ticks
