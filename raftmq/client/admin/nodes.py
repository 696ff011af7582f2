"""The administrative calls about nodes, and about the partition groups that they carry."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from raftmq.client.arguments import typed
from raftmq.client.routing.calls import reply_in
from raftmq.client.routing.connection import Connection
from raftmq.client.routing.pages import Pages
from raftmq.client.routing.requests import ask_leader, change_catalog
from raftmq.client.routing.router import Router
from raftmq.machine.catalog.nodes import AddGroup, DrainNode, MoveGroup
from raftmq.wire.codec import pack
from raftmq.wire.messages import ChangeNode, Done, FrameKind, NodeStatus, Status, Transfer


@typed()
class NodeCalls:
    """The part of `Admin` about nodes and partition groups."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def status(self, node: int, *, timeout: float | None = None) -> dict[str, Any]:
        """A node's status; see `raftmq.broker.status`.

        Raises:
            Rejected: `UNKNOWN_NODE`.
            Unavailable: the node does not answer.
        """
        asking = self._status(node)
        return await self._router.within(timeout, asking, f"the status of node {node}")

    async def transfer(
        self, partition_group: int, *, to: int = 0, timeout: float | None = None
    ) -> None:
        """Hand the leadership of a partition group to node `to`; 0: to any caught-up node."""
        request = Transfer(partition_group, to)
        await ask_leader(self._router, request, Done, timeout=timeout)

    async def add_node(
        self,
        node: int,
        host: str,
        port: int,
        *,
        zone: str = "",
        machine: str = "",
        timeout: float | None = None,
    ) -> None:
        """Let a node, running or to be started with `join`, enter the cluster. Where its settings
        name a zone or a machine, they must be given here as well: the node may not run yet."""
        change = ChangeNode("add", node, host, port, zone=zone, machine=machine)
        await self._change_node(change, timeout)

    async def remove_node(self, node: int, *, timeout: float | None = None) -> None:
        """Take a node out of the cluster."""
        await self._change_node(ChangeNode("remove", node), timeout)

    async def replace_node(
        self,
        node: int,
        new: int,
        host: str,
        port: int,
        *,
        zone: str = "",
        machine: str = "",
        timeout: float | None = None,
    ) -> None:
        """Let a new node, with a number that was never used, take over a node's partition groups.

        The old node may be dead. On return the groups begin to move; the old node is forgotten when
        no group counts on it. Zone and machine are the new node's, as for `add_node`.
        """
        change = ChangeNode("replace", node, host, port, new, zone, machine)
        await self._change_node(change, timeout)

    async def drain_node(
        self, node: int, *, is_on: bool = True, timeout: float | None = None
    ) -> None:
        """Mark a node to lead no partition group, before its restart for instance; `is_on=False`
        ends that. On return the mark is committed, and leaders change after that. A repeat is safe;
        cancelling leaves open whether the mark was set.

        Raises:
            Rejected: `UNKNOWN_NODE`; `BAD_ARGUMENT` if a group would have no node that may lead;
                `OLD_SOFTWARE` as long as a node runs software that knows no drained nodes.
        """
        await change_catalog(self._router, DrainNode(node, is_on), timeout)

    async def move_group(
        self,
        partition_group: int,
        members: Sequence[int],
        *,
        before: Sequence[int],
        timeout: float | None = None,
    ) -> None:
        """Have a data group carried by these nodes; the first shall lead. On return that is
        committed, and the group begins to move: the nodes that come copy it, while it serves.

        Args:
            partition_group: its number, from 1.
            members: the nodes from then on.
            before: the nodes until then, as `GroupView.wanted` has them: a change that came between
                is not undone.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT` if the group is on other nodes by now, or no such set can carry
                it; `UNKNOWN_NODE`; `OLD_SOFTWARE` as long as a node runs software that knows no
                such moves.
        """
        command = MoveGroup(partition_group, list(members), list(before))
        await change_catalog(self._router, command, timeout)

    async def add_group(
        self, partition_group: int, members: Sequence[int], *, timeout: float | None = None
    ) -> None:
        """Found another data group on these nodes; the first shall lead. On return that is
        committed, and the nodes found it. New topics and new queues of old ones go to the groups
        that have the fewest of the topic's queues. A repeat is safe.

        Args:
            partition_group: the next number, after that of the last group.
            members: the nodes that carry it; as many as it shall have copies.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT` if the number is not the next one, or a node can carry nothing;
                `UNKNOWN_NODE`; `OLD_SOFTWARE` as long as a node runs software that adds no groups.
        """
        await change_catalog(self._router, AddGroup(partition_group, list(members)), timeout)

    # -- inside ----------------------------------------------------------------------------------

    async def _change_node(self, change: ChangeNode, timeout: float | None) -> None:
        await ask_leader(self._router, change, Done, timeout=timeout)

    async def _status(self, node: int) -> dict[str, Any]:
        connection = await self._router.node(node)
        status: dict[str, Any] = {}
        async for page in Pages(partial(_status_page, connection), Status()):
            groups = status.get("groups", []) + page.status.get("groups", [])
            status |= page.status | {"groups": groups}
        status.pop("next", None)
        return status


async def _status_page(connection: Connection, question: Status) -> NodeStatus:
    return reply_in(await connection.call(FrameKind.STATUS, pack(question)), NodeStatus)
