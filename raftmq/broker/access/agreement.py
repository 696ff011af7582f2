"""Whether all nodes of the cluster have the same `[access]`.

Each Hello between nodes carries a digest of the sender's `[access]`. A node whose own access is off
refuses clients while a member's is on, or once there are users or rules: a client could change all
groups that this node leads. `access.is_given_up` says that this is meant.

Nodes whose access is on and differs serve clients by their own settings, and report the difference.

Left out: a cluster without any user or rule, where a node that has just started knows of no member
with access until that one has connected to it.
"""

from collections.abc import Collection
from hashlib import sha256

import msgspec

from raftmq.broker.settings import Access

_REMEDY = (
    "add `[access]` to this node's settings, or `access.is_given_up = true` where everybody may do "
    "everything"
)
OFF = "off"
DIGEST_CHARACTERS = 16
"""Characters of a digest: enough to tell settings apart, not to prove anything."""


def access_digest(access: Access) -> str:
    """A text that is equal for equal settings; `OFF`: access is off."""
    if not access.is_on:
        return OFF
    settings = [access.is_open, sorted(set(access.admins))]
    return sha256(msgspec.json.encode(settings)).hexdigest()[:DIGEST_CHARACTERS]


class Agreement:
    """The digests of all nodes that have connected to this one."""

    def __init__(self, access: Access) -> None:
        self._own = access_digest(access)
        self._is_given_up = access.is_given_up
        self._digests: dict[int, str] = {}

    def note(self, node: int, digest: str) -> None:
        """A node said Hello; empty: it runs older software, and nothing is known of its access."""
        self._digests[node] = digest

    def why_no_clients(self, members: Collection[int], *, was_on: bool) -> str:
        """Why this node serves no client; empty: it does. `was_on`: access has been on."""
        if self._own != OFF or self._is_given_up:
            return ""
        secured = self._secured(members)
        if secured:
            nodes = ", ".join(map(str, secured))
            return f"access is off here, and on at {nodes}: {_REMEDY}"
        return f"access is off here, and there are users or rules: {_REMEDY}" if was_on else ""

    def _secured(self, members: Collection[int]) -> list[int]:
        return sorted(
            node
            for node, digest in self._digests.items()
            if digest not in ("", OFF) and node in members
        )

    def differences(self, members: Collection[int]) -> list[str]:
        """Sentences about members whose access is set otherwise, for people."""
        if self._own == OFF:
            return [
                f"access is off, and on at node {node}: {_REMEDY}"
                for node in self._secured(members)
            ]
        return [
            f"access is off at node {node}: give it the `[access]` of this node"
            if digest == OFF
            else f"`access.admins` or `access.is_open` differs from that of node {node}"
            for node, digest in sorted(self._digests.items())
            if digest not in ("", self._own) and node in members
        ]
