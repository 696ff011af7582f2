"""The system group's leader replaces silent nodes and evens out leaders: setting `[balance]`.

    a node is silent for `absent_ms`   -> `NoteAbsence`; its replicas move to other nodes
    it answers again                   -> `NoteAbsence`; it is a member as any other
    `leaders_ms` have passed           -> the first members of some groups change, so others lead

Copies move for an absent node only, a few groups at a time. An operator evens out what nodes hold
(`raftmq cluster balance`), as that costs copies, and the best time for them is not known here.

A node counts as silent while it answers no heartbeat of this leader. The cause may be the network
between the two. Such a node hears nothing of the catalog and cannot serve clients as it should, so
no other node is asked.

Invariants:
- Less than half of all nodes that ever ran are absent: a leader that hears few others is cut off
  itself.
- A node that is drained or leaving is not made absent: an operator has it in hand.
- Each leader counts silence from its election on, and from zero after its process stood still.

Sources: CockroachDB's `server.time_until_store_dead`; Redpanda's leader balancer.
"""

import math
from collections.abc import Callable

import trio

from raftmq.broker.cluster.views import ask_statuses, view
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group, node_of
from raftmq.machine.catalog.catalog import Command
from raftmq.machine.catalog.levels import ABSENCE_LEVEL
from raftmq.machine.catalog.nodes import MoveGroup, NoteAbsence

from .balance import Move, NodeRoom, even_leaders, vacate
from .loads import Loads, loads

LOOK_SECONDS = 5.0
"""Seconds between two looks at the groups of absent nodes."""
STANDSTILL_SECONDS = 5.0
"""Without a look for this long the process stood still, and heard no node in that time."""
MOVES_MAX = 2
"""Groups that are copied at a time: as many as `raftmq cluster balance` has under way."""
LEADERS_MAX = 10
"""Groups that get another leader at a time: each takes no records for some milliseconds."""
LEADERS_TOLERANCE = 0.25
"""Leaders change if a node leads this much more or less than the mean. They are then evened out
better than that, so that loads which waver do not move them each time."""


class Balancer:
    """The balancer of one node; it acts while the node leads the system group."""

    def __init__(self, node: Host, propose: Callable[[str, list[Command]], None]) -> None:
        """`propose` has the system group carry out commands, unless others of that name are under
        way."""
        self._node = node
        self._propose = propose
        self._term = 0
        self._looked_at = self._asked_at = self._evened_at = -math.inf
        self._heard: dict[int, float] = {}
        """Node → when it was last heard, by trio's clock."""
        self._is_asking = False

    def look(self, group: Group) -> None:
        """Take the steps that are due; called each second by the leader of the system group."""
        now, settings = trio.current_time(), self._node.settings.balance
        if group.raft.term != self._term or now - self._looked_at > STANDSTILL_SECONDS:
            self._term, self._heard = group.raft.term, {}
            self._evened_at = now
        self._looked_at = now
        catalog = self._node.catalog
        if catalog.level < ABSENCE_LEVEL:
            return
        speaking = self._listen(group, now)
        changed = [NoteAbsence(n, is_absent=False) for n in sorted(catalog.absent & speaking)]
        changed += map(NoteAbsence, self._silent(now))
        if changed:
            self._propose("absences", [*changed])
        evens = 0 < settings.leaders_ms <= 1000 * (now - self._evened_at)
        is_due = now - self._asked_at >= LOOK_SECONDS and (evens or self._has_absent_members())
        if is_due and not self._is_asking:
            self._is_asking, self._asked_at = True, now
            self._node.start_soon(self._ask_and_move, evens)

    def _listen(self, group: Group, now: float) -> set[int]:
        """Note the nodes that answer; returns them."""
        progress = group.raft.status().progress
        speaking = {node_of(member) for member, of in progress.items() if of.is_recently_active}
        speaking.add(self._node.id)
        self._heard = {
            node: now if node in speaking else self._heard.get(node, now)
            for node in self._node.catalog.nodes
        }
        return speaking

    def _silent(self, now: float) -> list[int]:
        """The nodes that become absent."""
        catalog, bound = self._node.catalog, self._node.settings.balance.absent_ms / 1000
        silent = {
            node.id
            for node in catalog.nodes.values()
            if bound and now - self._heard[node.id] >= bound and not node.is_leaving
        }
        silent -= catalog.absent | catalog.drained
        seen = {node.id for node in catalog.nodes.values() if node.incarnation}
        is_cut_off = 2 * len((silent | catalog.absent) & seen) >= len(seen)
        return [] if is_cut_off else sorted(silent)

    def _has_absent_members(self) -> bool:
        catalog = self._node.catalog
        return bool(catalog.absent) and any(
            not catalog.absent.isdisjoint(group.members) and group.id
            for group in catalog.groups.values()
        )

    async def _ask_and_move(self, evens: bool) -> None:
        try:
            statuses = await ask_statuses(self._node)
        finally:
            self._is_asking = False
        found = loads(view(self._node, []), statuses)
        moves = self._away(found)
        if not moves and evens and not found.under_way and not found.leaderless:
            self._evened_at = trio.current_time()
            moves = even_leaders(found.nodes, found.groups, tolerance=LEADERS_TOLERANCE)
            moves = moves[:LEADERS_MAX]
        if moves:
            commands = [MoveGroup(move.group, move.members, move.before) for move in moves]
            self._propose("moves", [*commands])

    def _away(self, found: Loads) -> list[Move]:
        """Moves of replicas from an absent node, as many as may begin now."""
        catalog = self._node.catalog
        # A group that waits for an absent node waits until it has another one.
        copying = [
            number
            for number in found.under_way
            if catalog.absent.isdisjoint(catalog.groups[number].members)
        ]
        for node in sorted(catalog.absent):
            rooms = [*found.nodes, NodeRoom(node, is_drained=True)]
            moves = vacate(rooms, found.groups, node, moves_max=MOVES_MAX - len(copying))
            if moves:
                return moves
        return []
