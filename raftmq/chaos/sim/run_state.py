"""The state of a run: the cluster, the nodes that may be damaged next, restarts of dead nodes.

A *seat* is a place among the founding nodes, numbered from 1 as in schedules. A node that is
replaced leaves its seat to its successor, so "node 2" of a schedule always names a node.

A dead process is started again after a short pause, as a service manager would do. A node mends a
damaged disk itself, and is *whole* again when the node has all that it had promised. Only a node
whose disk names another node, or does not tell in which term the node voted, stays stopped until
the drain replaces the node, as an operator would.

The *atlas* keeps damage within the limits that the product promises to survive: fewer than half of
the seats, and of each partition group's voters, carry damage at any time; a damaged node counts as
damaged until it was seen to be whole. Records that a node is made to forget without a trace must
still be held by a majority of the nodes. Damage beyond these limits is withheld, and counted.

Invariants:
- At each moment fewer than half of the seats, and of the voters of each partition group, carry
  lasting damage.

Sources: TigerBeetle's fault atlas.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

import trio

from raftmq.broker.cluster.links import ADVICE
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.replica.opener import GONE
from raftmq.broker.settings import Peer
from raftmq.chaos.faults.schedule import Event
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.checks.handed import Handed
from raftmq.chaos.sim.checks.logs import held_logs
from raftmq.chaos.sim.checks.watch import Watch
from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.sim.cluster import PORT, Cluster
from raftmq.chaos.sim.faults.lies import SAYS
from raftmq.chaos.sim.faults.taps import Taps
from raftmq.checkers import Derived, Recovery
from raftmq.consensus import ConfState
from raftmq.machine.catalog.catalog import Catalog

RESTART_SECONDS = (0.1, 2.0)
"""A process that died comes back after a time between these."""

GIVES_UP_MAX = 4
"""After the heal, a node that gives up this often without serving in between is hopeless."""

REFRESH_SECONDS = 0.2
"""Seconds between two looks at the cluster's membership."""

GONE_SECONDS = 4.0
"""Seconds from the end of a node's membership until the node is stopped."""

MENDED_SECONDS = 2.0
"""Seconds between two looks whether damaged nodes are whole."""

BEYOND_MENDING = ("WrongFolder", "KnownOtherwise", "Superseded", "WrongLog")
"""Errors of stopped nodes for which a restart is of no use: beginnings of their texts."""

TERM_UNKNOWN = "the term of the last vote is unknown"
"""Part of the error of a node that cannot mend its rot."""


class RunState:
    """Everything a fault may touch."""

    shrinks_by = 0
    """A node that may leave though no other node takes over its copies; 0: none. Until the catalog
    has forgotten the node, groups may lose a voter at any time."""

    def __init__(
        self,
        cluster: Cluster,
        watch: Watch,
        clients: Clients,
        nursery: trio.Nursery,
        *,
        taps: Taps,
        seed: int,
    ) -> None:
        self.cluster = cluster
        """The nodes, their machines and the network."""
        self.watch = watch
        """Observations of the nodes."""
        self.clients = clients
        """The users of the cluster."""
        self.taps = taps
        """Recorded connections, and the kinds of frames that are left out of them."""
        self.handed = Handed(cluster, watch)
        """Records that the nodes sent and acknowledged."""
        # The label is part of each seed: with another one all seeds would make other runs.
        self.random = Random(f"stage {seed}")
        """Draws all that a schedule leaves open."""
        self.agenda = cluster.agenda
        """The clock of the simulated world, and its due calls."""
        self.counts: Counter[str] = Counter()
        """Crashes, restarts and so on; faults that had no effect, by name."""
        self.struck: Counter[str] = Counter()
        """Faults that had an effect, by name."""
        self.violations: list[Violation] = []
        """Violations that were noticed during the run."""
        self.seats = {peer.id: peer.id for peer in cluster.peers}
        """Node by seat."""
        self.damaged: set[int] = set()
        """Nodes whose disks were damaged, until the nodes were seen to be whole again."""
        self.was_damaged: set[int] = set()
        """Nodes whose disks were ever damaged, harmless damage included."""
        self._promised: dict[int, dict[int, int]] = {}
        self.joining: set[int] = set()
        """Nodes that were started to join, and are not in the catalog yet."""
        self.known: set[int] = set(self.seats.values())
        """The nodes of the catalog, by the newest of its replicas."""
        self.leaving: set[int] = set()
        """Known nodes that are about to leave."""
        self.retired: set[int] = set()
        """Nodes that have left the cluster."""
        self.final_members: dict[int, set[int]] = {}
        """By partition group: its voters at the end of the run."""
        self.recoveries: dict[int, list[Recovery]] = defaultdict(list)
        """By partition group: results of recoveries of disk copies, made before each start."""
        self.derived: dict[int, list[Derived]] = defaultdict(list)
        """By partition group: index files that a node had to write again."""
        self.own_failpoints: tuple[str, ...] = ()
        """Failpoints of requests that only this workload's clients make."""
        self.had_members: dict[int, list[list[int]]] = {}
        """By partition group: all sets of members so far, the founders first."""
        self.stays_until: dict[int, float] = {}
        """By partition group: the time from which the group may be moved again."""
        self._nursery = nursery
        self._left_dead: set[int] = set()
        self._is_over = False
        self._applied = 0
        self._held: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._on_serving: dict[int, Callable[[], object]] = {}
        self._power_on_crash: set[int] = set()
        self._looked_at = 0.0
        cluster.listeners.append(self._changed)
        cluster.disk_listeners.append(self._noted_call)

    @property
    def is_healing(self) -> bool:
        """True from the heal on: no fault of the schedule begins."""
        return self.clients.is_healed

    def _noted_call(self, node: int, call: str) -> None:
        """Note a deleted replica: its node creates the file `GONE` before the log is deleted."""
        if call.endswith(f"/{GONE}") and call.startswith("create"):
            self.watch.note_deleted(node, int(call.split("/")[-2]))
            self.counts["logs deleted"] += 1

    def begin(self) -> None:
        """Follow the cluster's membership from now on."""
        if not self._is_over:
            self.refresh()
            if self.agenda.now >= self._looked_at + MENDED_SECONDS:
                self._looked_at = self.agenda.now
                self.note_mended()
                self._follow_advice()
            self.agenda.call_after(REFRESH_SECONDS, self.begin)

    def _follow_advice(self) -> None:
        """After the heal, act as the operator of a node that says that its settings are outdated.

        While a node that the settings name serves, that node's table of the cluster is enough.
        """
        if not self.is_healing:
            return
        running = sorted(self.cluster.nodes.items())
        today = [number for number, node in running if node.is_serving]
        for number, node in running:
            own = node.settings.node
            is_lost = not {peer.id for peer in (*own.peers, *own.join)}.intersection(today)
            if ADVICE in node.waits_for and is_lost and today:
                self.cluster.join[number] = [Peer(one, self.host(one), PORT) for one in today]
                self.counts["settings of old"] += 1
                self.kill(number, crash=False)
                self.restart_soon(number)

    def end(self) -> None:
        """Stop following the cluster: the run is over."""
        self._is_over = True
        # A drain that ended early may have left a process that stands still, which could not end.
        for process in self.cluster.processes.values():
            process.wake()

    # Membership

    def node(self, seat: int) -> int:
        """The node on a seat."""
        return self.seats.get(seat, seat)

    def nodes_of(self, event: Event) -> list[int]:
        """The nodes that an event names."""
        return [self.node(seat) for seat in event.nodes]

    def members(self) -> list[int]:
        """All nodes that belong to the cluster now."""
        return sorted((self.known | self.joining) - self.retired)

    def has_left(self, node: int) -> bool:
        """True if the cluster has forgotten a node."""
        return node in self.retired

    def alive(self, nodes: Iterable[int]) -> list[int]:
        """Those of the nodes that have a process."""
        return [node for node in nodes if node in self.cluster.processes]

    def leader(self) -> int:
        """The leader of the busiest data group that has one, else of the system group; 0: none."""
        groups = sorted(self.watch.commits.items(), key=lambda item: (-item[1], item[0]))
        leaders = [self.cluster.leader(group) for group, _ in groups if group]
        return next((leader for leader in leaders if leader), self.cluster.leader(0))

    def host(self, node: int) -> str:
        """A node's name on the network."""
        return f"node{node}"

    def hosts(self) -> list[str]:
        """All machines that talk to each other, clients last."""
        return [*map(self.host, self.members()), *self.clients.hosts()]

    def newest_catalog(self) -> Catalog | None:
        """The newest catalog of the nodes that run; None if no node runs."""
        catalogs = [node.catalog for node in self.cluster.nodes.values()]
        return max(catalogs, key=lambda one: one.applied, default=None)

    def _is_catalog_known(self) -> bool:
        """False while no running node has a catalog as new as one that was seen before.

        An older catalog does not tell what a node should hold: a node that lost the catalog and
        runs alone would seem to lack nothing.
        """
        catalog = self.newest_catalog()
        return (catalog.applied if catalog is not None else 0) >= self._applied

    def _wanted_on(self, node: int) -> set[int]:
        """The partition groups that the newest catalog places on a node."""
        catalog = self.newest_catalog()
        groups = catalog.groups.values() if catalog is not None else ()
        return {group.id for group in groups if node in group.members}

    def refresh(self) -> None:
        """Read the members from the newest catalog, and give free seats to those without one."""
        catalog = self.newest_catalog()
        # An older catalog than one seen before would bring back nodes that have left.
        if catalog is None or len(catalog.nodes) < 2 or catalog.applied < self._applied:
            return
        for listed in catalog.nodes.values():
            # A fault that brings a node sets up its machine: a stranger asked for this node.
            if listed.id not in self.cluster.machines:
                text = f"the catalog names node {listed.id} at {listed.host!r}, {listed.port}"
                self._note_belief(text)
        self._applied, known = catalog.applied, catalog.nodes.keys() & self.cluster.machines.keys()
        for node in sorted(self.known - known):
            self._check_uncounted(node)
            self.retired.add(node)
            self.watch.note(node, "has left the cluster")
            self.agenda.call_after(GONE_SECONDS, partial(self.kill, node, crash=False))
        self.known = known
        self.leaving = {node.id for node in catalog.nodes.values() if node.is_leaving}
        self.joining -= known
        for seat, node in self.seats.items():
            free = sorted(known - set(self.seats.values()))
            if node not in known and free:
                self.seats[seat] = free[0]

    def _check_uncounted(self, node: int) -> None:
        """The catalog has forgotten a node: its operator stops it, so no vote of it may count."""
        for number in sorted(self.watch.moments):
            leader = self.cluster.leader(number)
            group = self.cluster.nodes[leader].groups[number] if leader else None
            # A leader that has not applied all of its log may lack the end of a change.
            if group is None or not group.is_current:
                continue
            conf = group.conf_state
            if node in map(node_of, (*conf.voters, *conf.voters_outgoing)):
                text = f"group {number}: node {node} has left, and counts by its leader: {conf}"
                self.violations.append(Violation("V10", self.watch.now_ms, text))

    # Kills and restarts

    def kill(self, node: int, *, power: bool = False, crash: bool = True) -> None:
        """End a node's process, or cut its machine's power; no effect if the node is down."""
        if node in self.cluster.processes:
            self.counts["crashes"] += crash
            self.cluster.kill(node, power=power)

    def lose_power_on_crash(self, node: int) -> None:
        """Let the next failpoint that the node reaches cut the machine's power, too."""
        self._power_on_crash.add(node)
        process = self.cluster.processes.get(node)
        if process is not None:
            process.on_crash = lambda: self._crash(node)

    def _crash(self, node: int) -> None:
        power = node in self._power_on_crash
        self._power_on_crash.discard(node)
        self.kill(node, power=power)

    def hold_down(self, node: int) -> None:
        """Keep a node from being started before `let_up` is called as often as `hold_down`."""
        self._held[node] += 1

    def let_up(self, node: int) -> None:
        """Undo one `hold_down`; after the last one the node is started soon."""
        self._held[node] -= 1
        self.restart_soon(node)

    def once_serving(self, node: int, task: Callable[[], object]) -> None:
        """Call `task` when the node next has opened its logs, unless the heal has begun."""
        self._on_serving[node] = task

    def restart_soon(self, node: int, seconds: float | None = None) -> None:
        """Start a node after a pause, if the node is then down and may be up."""
        pause = self.random.uniform(*RESTART_SECONDS) if seconds is None else seconds
        self.agenda.call_after(pause, lambda: self.restart(node))

    def restart(self, node: int) -> None:
        """Start a node if it is down and may be up."""
        is_wanted = node not in self.retired and not self._held[node] and not self._is_over
        if not is_wanted or node in self.cluster.processes or self.is_spoilt(node):
            return
        # An operator restarts the machine after a refused sync: the page cache may show lost data.
        self.cluster.machines[node].disk.drop_caches()
        self.counts["restarts"] += 1
        self._try_recovery(node)
        for group in self.watch.moments if node in self.damaged else ():
            # The start finds rot that came while the node ran, and cuts the log before the rot.
            self.watch.rename(node, group)
        self.cluster.start_soon(node)

    def _try_recovery(self, node: int) -> None:
        """Recover a copy of a disk twice: synced data must be there, and the second time changes
        nothing."""
        if node in self.damaged:
            return
        trial = self.cluster.machines[node].disk.copy()
        held = held_logs(trial, node)
        once = trial.digest()
        held_logs(trial, node)
        again = trial.digest()
        if isinstance(held, str):
            return
        for group, log in held.items():
            durable, term = self.watch.durable.get((node, group), (0, 0))
            if log.entries and log.entries[-1].term > term:
                # Records of a newer leader superseded the end, and no look came before the crash.
                durable = min(durable, log.last)
            self.recoveries[group].append(Recovery(node, durable, log.last, once, again))

    def leave_dead(self, node: int) -> None:
        """End a node for good, without notice to the cluster."""
        self._left_dead.add(node)
        self.watch.note(node, "stays dead")
        self.hold_down(node)
        self.kill(node, crash=False)

    def is_left_dead(self, node: int) -> bool:
        """True if `leave_dead` ended the node."""
        return node in self._left_dead

    def is_spoilt(self, node: int) -> bool:
        """True if the node gave up for good: only a replacement helps."""
        stopped = self.cluster.stopped.get(node)
        if node in self.cluster.broken:
            return True
        if stopped is None:
            return False
        # Before the heal, a disk that refuses calls may work again later.
        is_hopeless = self.is_healing and self._failures[node] >= GIVES_UP_MAX
        text = str(stopped)
        return text.startswith(BEYOND_MENDING) or TERM_UNKNOWN in text or is_hopeless

    def _changed(self, node: int, what: str) -> None:
        if what == "starts":
            return
        if what == "serves":
            self._failures[node] = 0
            task = self._on_serving.pop(node, None)
            if task is not None and not self.is_healing:
                task()
        elif what.startswith("breaks"):
            text = self.cluster.broken[node]
            self.violations.append(Violation("bug", self.watch.now_ms, f"node {node}: {text}"))
        elif what.startswith("gives up"):
            self.counts["nodes that gave up"] += 1
            self._failures[node] += self.is_healing
            if SAYS in what:
                self._note_belief(f"node {node} {what}")
            if self.is_spoilt(node):
                self._note_spoilt(node)
        self.restart_soon(node)

    def spawn(self, task: Callable[..., Any], *args: Any) -> None:
        """Run a task in the background; its exceptions end the run."""
        self._nursery.start_soon(task, *args)

    # The atlas: lasting damage

    def may_damage(self, node: int) -> bool:
        """True if, with this disk damaged, fewer than half of the seats, and of the voters of each
        partition group, carry damage."""
        # A group may lose a voter at any time, or an old catalog does not tell the voters.
        if self.shrinks_by or not self._is_catalog_known():
            return False
        hurt = self.damaged | {node}
        if 2 * len(hurt & set(self.members())) >= len(self.seats):
            return False
        return all(2 * len(hurt & voters) < len(voters) for voters in self._voters() if voters)

    def _voters(self) -> Iterator[set[int]]:
        """Sets of nodes that vote together, by the newest catalog and by each running replica."""
        catalog = self.newest_catalog()
        if catalog is not None:
            for placed in catalog.groups.values():
                yield set(catalog.voters(placed))
        for node in self.cluster.nodes.values():
            for group in node.groups.values():
                conf = group.conf_state
                yield {node_of(member) for member in conf.voters}
                yield {node_of(member) for member in conf.voters_outgoing}

    def note_damage(self, node: int, *, forgets: bool = True) -> None:
        """Note a damaged disk. With `forgets`, earlier promises no longer bind its replicas."""
        self.damaged.add(node)
        self.was_damaged.add(node)
        # The node is whole when it holds all that may have been committed by now.
        self._promised[node] = dict(self.watch.commits)
        for group in self.watch.moments if forgets else ():
            self.watch.rename(node, group)

    def _note_belief(self, text: str) -> None:
        if all(text != noted.text for noted in self.violations):
            self.violations.append(Violation("stranger-believed", self.watch.now_ms, text))

    def _note_spoilt(self, node: int) -> None:
        if node not in self.damaged and node in self.known:
            text = f"node {node} gave up with a disk that no fault had damaged: "
            text += str(self.cluster.stopped.get(node) or self.cluster.broken.get(node))
            self.violations.append(Violation("bug", self.watch.now_ms, text))
        self.note_damage(node)

    def note_mended(self, *, reads_snapshots: bool = True) -> None:
        """Find out which damaged nodes are whole again.

        Nodes do not mend snapshots. With `reads_snapshots` a node with a rotten one stays damaged:
        the next damage might hit the node with a good one. The drain damages nothing, and ignores
        rotten snapshots.
        """
        for node in sorted(self.damaged) if self._is_catalog_known() else ():
            if self._is_whole(node, reads_snapshots=reads_snapshots):
                self.damaged.discard(node)
                self.counts["nodes mended"] += 1
                self.watch.note(node, "is whole again")

    def _memberships(self) -> Iterator[tuple[int, ConfState]]:
        """By group: the memberships that count for the nodes which the catalog places it on."""
        for other in self.cluster.nodes.values():
            for number in self._wanted_on(other.id) & other.groups.keys():
                yield number, other.groups[number].conf_state

    def _is_missed(self, node: int) -> bool:
        """True if a group counts on a member of the node whose log is lost.

        A wiped node enters again as another member, which is a learner first. While a joint
        membership needs the lost member, the loss of one more would be the loss of a majority. A
        group that moves away from the node may need the lost member, too.
        """
        own = self.cluster.nodes[node].groups
        return any(
            node_of(member) == node and (number not in own or own[number].raft.id != member)
            for number, conf in self._memberships()
            for member in (*conf.voters, *conf.voters_outgoing)
        )

    def _has_its_part(self, node: int, group: Group) -> bool:
        """True if a node votes in a group by each membership that counts, or learns if it shall."""
        catalog, own = self.newest_catalog(), group.raft.id
        shall_vote = catalog is None or node in catalog.voters(catalog.groups[group.number])
        confs = [conf for number, conf in self._memberships() if number == group.number]
        return all(
            own in conf.voters or (own in conf.learners and not shall_vote) for conf in confs
        )

    def _is_whole(self, node: int, *, reads_snapshots: bool) -> bool:
        """True if a node votes in its groups, has nothing to mend, and holds all it promised."""
        running, wanted = self.cluster.nodes.get(node), self._wanted_on(node)
        if running is None or not running.is_serving or wanted - set(running.groups):
            return False
        if self._is_missed(node):
            return False
        for number in wanted:
            group = running.groups[number]
            if group.abstains or running.repairs.status(number):
                return False
            if not self._has_its_part(node, group):
                return False
            durable = min(group.raft.commit, group.cache.last_index())
            if durable < self._promised[node].get(number, 0):
                return False
        held = held_logs(self.cluster.machines[node].disk.copy(), node)
        if isinstance(held, str) or wanted - set(held):
            return False
        return not (reads_snapshots and any(one.has_rotten_snapshot for one in held.values()))
