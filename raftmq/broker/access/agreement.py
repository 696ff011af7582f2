"""Whether all nodes of the cluster have the same `[access]`.

Each Hello between nodes carries a digest of the sender's `[access]`. A node whose own access is off
refuses clients while a member's is on: a client could change every group that this node leads.
Where access was on before, as the catalog has users or rules, such a node also refuses clients
until a member has said Hello.

Nodes whose access is on and differs serve clients by their own settings, and report the difference.
"""

from collections.abc import Collection
from hashlib import sha256

import msgspec

from raftmq.broker.settings import Access

DIGEST_CHARACTERS = 16
"""Characters of a digest: enough to tell settings apart, not to prove anything."""


def access_digest(access: Access) -> str:
    """A text that is equal for equal settings; empty: access is off."""
    if not access.is_on:
        return ""
    settings = [access.is_open, sorted(set(access.admins))]
    return sha256(msgspec.json.encode(settings)).hexdigest()[:DIGEST_CHARACTERS]


class Agreement:
    """The digests of all nodes that have connected to this one."""

    def __init__(self, access: Access) -> None:
        self._own = access_digest(access)
        self._digests: dict[int, str] = {}

    def note(self, node: int, digest: str) -> None:
        """A node said Hello; empty: its access is off, or it runs older software."""
        self._digests[node] = digest

    def why_no_clients(self, members: Collection[int], *, was_on: bool) -> str:
        """Why this node serves no client; empty: it does. `was_on`: access has been on."""
        if self._own:
            return ""
        secured = self._secured(members)
        if secured:
            nodes = ", ".join(map(str, secured))
            return f"access is off here, and on at {nodes}: add `[access]` to this node's settings"
        if was_on and len(members) > 1 and not self._digests.keys() & set(members):
            return "access is off here, there are users, and no other node has said Hello yet"
        return ""

    def _secured(self, members: Collection[int]) -> list[int]:
        return sorted(node for node, digest in self._digests.items() if digest and node in members)

    def differences(self, members: Collection[int]) -> list[str]:
        """Sentences about members whose access is set otherwise, for people."""
        if not self._own:
            return [
                f"access is off, and on at node {node}: add `[access]` to this node's settings"
                for node in self._secured(members)
            ]
        return [
            f"`access.admins` or `access.is_open` differs from that of node {node}"
            if digest
            else f"access is off at node {node}, or that node runs older software: give it the "
            "`[access]` of this node, or upgrade it"
            for node, digest in sorted(self._digests.items())
            if digest != self._own and node in members
        ]
