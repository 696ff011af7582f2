"""Do all nodes of the cluster have the same `[access]`?

A node tells other nodes, in its Hello, how its access is set. A node whose own access is off serves
no client as long as a member's is on: whoever reaches it could do everything with the groups that
it leads. Nor does it, where there are users, before it has heard a member.

Nodes whose access is on and set otherwise serve clients, each by its own settings, and say so.
"""

from collections.abc import Collection
from hashlib import sha256

import msgspec

from raftmq.broker.settings import Access

STANCE_CHARACTERS = 16


def stance_of(access: Access) -> str:
    """What a node tells others of its settings: equal settings, equal text. Empty: access is
    off, or the node runs older software."""
    if not access.is_on:
        return ""
    settings = [access.is_open, sorted(set(access.admins))]
    return sha256(msgspec.json.encode(settings)).hexdigest()[:STANCE_CHARACTERS]


class Agreement:
    """The stances of all nodes that have connected to this one."""

    def __init__(self, access: Access) -> None:
        self._own = stance_of(access)
        self._told: dict[int, str] = {}

    def note(self, node: int, stance: str) -> None:
        """A node said Hello."""
        self._told[node] = stance

    def why_shut(self, members: Collection[int], *, has_users: bool) -> str:
        """Why this node serves no client; empty: it does. `has_users`: access has been on."""
        if self._own:
            return ""
        secured = self._secured(members)
        if secured:
            return (
                f"access is off here, and on at {', '.join(map(str, secured))}: give it `[access]`"
            )
        if has_users and len(members) > 1 and not self._told.keys() & set(members):
            return "access is off here, there are users, and no other node has told its `[access]`"
        return ""

    def _secured(self, members: Collection[int]) -> list[int]:
        return sorted(node for node, stance in self._told.items() if stance and node in members)

    def differences(self, members: Collection[int]) -> list[str]:
        """Sentences about members whose access is set otherwise, for people."""
        if not self._own:
            return [
                f"access is off, and on at node {node}: give this node the `[access]` of that one"
                for node in self._secured(members)
            ]
        return [
            f"access is off at node {node}: give it this node's `[access]`"
            if not stance
            else f"`access.admins` or `access.is_open` differs from that of node {node}"
            for node, stance in sorted(self._told.items())
            if stance != self._own and node in members
        ]
