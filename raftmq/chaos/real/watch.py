"""The observer: asks all nodes for their status again and again, and remembers.

The answers give the time line, the situations in which faults struck, and two promises that can be
checked on statuses:

| promise | broken if |
|---|---|
| R1 | two nodes say that they lead one group in one term |
| R21 | two replicas that applied the same index have different digests |

The resources of the processes are measured at the same time: see `gauges`.

Left out: promises about logs and votes, which a status does not show; the simulators see them.
"""

from typing import Any

import trio

from raftmq.chaos.outcome import Coverage

from .gauges import Gauges
from .run_state import RunState

LOOK_SECONDS = 0.2


class Watch:
    """The observations of a run's nodes."""

    def __init__(self, state: RunState) -> None:
        self.statuses: dict[int, dict[str, Any]] = {}
        """Node → its last status; without nodes that did not answer."""
        self.gauges = Gauges(state)
        """The largest use of resources."""
        self._state = state
        self._leaders: dict[tuple[int, int], int] = {}
        self._digests: dict[tuple[int, int], tuple[int, int]] = {}
        self._roles: dict[tuple[int, int], tuple[int, str]] = {}
        """(node, group) → process and role, as last seen: a new process counts as a change."""

    @property
    def elections(self) -> int:
        """Number of terms, over all groups, in which a leader was seen."""
        return len(self._leaders)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            self.gauges.look()
            await trio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Ask all nodes once."""
        nodes = self._state.nodes
        asked = {node: nodes.pid(node) for node in nodes.nodes}
        statuses = await nodes.statuses()
        # A node may have ended since its answer: the status is one of an earlier process.
        self.statuses = {n: s for n, s in statuses.items() if nodes.pid(n) == asked.get(n)}
        for node, status in self.statuses.items():
            for group in status["groups"]:
                self._take(node, group)

    def situation(self, node: int, fault: str) -> Coverage:
        """The situation in which a fault strikes a node; 0: the fault names no node."""
        groups = {
            other: next((g for g in status["groups"] if g["group"] == 1), None)
            for other, status in self.statuses.items()
        }
        own = groups.get(node)
        if not node or node not in self.statuses or own is None:
            return Coverage("dead" if node else "none", "same", "unknown", fault)
        highest = max(group["term"] for group in groups.values() if group is not None)
        relation = "same" if own["term"] == highest else "behind"
        leaders = [g for g in groups.values() if g is not None and g["role"] == "leader"]
        progress = leaders[-1]["progress"].get(str(node)) if leaders else None
        progress_state = "unknown" if progress is None else progress["state"]
        words = {"replicate": "level", "probe": "probe", "snapshot": "snapshot"}
        return Coverage(own["role"], relation, words.get(progress_state, "unknown"), fault)

    # -- inside ----------------------------------------------------------------------------------

    def _take(self, node: int, group: dict[str, Any]) -> None:
        state, number, term = self._state, group["group"], group["term"]
        if group["role"] == "leader":
            first = self._leaders.setdefault((number, term), node)
            if first != node:
                state.complain("R1", f"nodes {first} and {node} lead group {number}, term {term}")
        role = f"{group['role']} of group {number}, term {term}"
        office = (state.nodes.pid(node), role)
        if self._roles.get((node, number)) != office:
            self._roles[node, number] = office
            state.note(node, role)
        self._compare(node, number, group["applied"], group["digest"])

    def _compare(self, node: int, number: int, applied: int, digest: int) -> None:
        other, known = self._digests.setdefault((number, applied), (node, digest))
        if known != digest:
            text = f"group {number} at index {applied}: node {other} {known:x}, node {node}"
            self._state.complain("R21", f"{text} {digest:x}")
