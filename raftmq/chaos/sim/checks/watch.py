"""Observations of every node during a run: roles, terms, commit indexes, digests.

The watch looks at each replica on each node every tenth of a second, and whenever a node starts or
ends: that gives the time line of the evidence, the changes of role for the report, and the
coverage. The watch notes what a crash cannot take from a node: term, vote and last record on its
disk; of a leader also what it holds in memory, as an election rests on that.

Invariants:
- Observing changes nothing: no call here has an effect on a node.
- A replica's identity is its member id: a replica whose log was deleted or lost must come back
  under another id, or is held to the promises of the old one.
- A replica that a fault made to forget something on its disk, without a trace, gets another name
  (`rename`): the promises under the old name do not bind it.

Left out: events between two looks; the core simulator looks at every step.
"""

from collections import Counter, defaultdict

from raftmq.broker.replica.group import Group
from raftmq.chaos.outcome import Coverage, Happening
from raftmq.chaos.sim.cluster import Cluster
from raftmq.checkers.servers.evidence import Moment, ProgressAt
from raftmq.consensus import ProgressState, Role
from raftmq.machine.machine import PartitionMachine

AHEAD_MS_MAX = 1_800_000
"""A clock that is further ahead may make records look old: retention here is an hour."""
LOOK_SECONDS = 0.1
"""Between two looks."""

RENAMED = 1000
"""Added to a member id for each time that the replica was made to forget."""

_ROLES = {
    Role.FOLLOWER: "follower",
    Role.PRE_CANDIDATE: "candidate",
    Role.CANDIDATE: "candidate",
    Role.LEADER: "leader",
}
_PROGRESS = {
    ProgressState.PROBE: "probe",
    ProgressState.REPLICATE: "level",
    ProgressState.SNAPSHOT: "snapshot",
}


class Watch:
    """Observes the nodes of a cluster."""

    def __init__(self, cluster: Cluster, *, is_kept_by_topic: bool = False) -> None:
        """`is_kept_by_topic`: the nodes keep next to nothing, but all messages are of a topic that
        says that they stay."""
        self._cluster = cluster
        self._is_kept_by_topic = is_kept_by_topic
        self._agenda = cluster.agenda
        self.began = cluster.agenda.now
        """When the run began, in seconds of the world's clock."""
        self._offices: dict[tuple[int, int], tuple[str, int]] = {}
        self._last: dict[tuple[int, int], Moment] = {}
        self._names: Counter[tuple[int, int]] = Counter()
        self._is_over = False
        self.moments: dict[int, list[Moment]] = defaultdict(list)
        """States of replicas, by partition group, in order of time."""
        self.progress: dict[int, list[ProgressAt]] = defaultdict(list)
        """By partition group: the leaders' view of their followers' progress, at each change."""
        self.digests: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        """By partition group: digest of a node's machine, by (node, index)."""
        self.commits: dict[int, int] = defaultdict(int)
        """By partition group: the highest commit index seen."""
        self.durable: dict[tuple[int, int], tuple[int, int]] = {}
        """Index and term of the last record on disk of a (node, group), at the last look."""
        self.timeline: list[Happening] = []
        """Events for the report."""
        self.trimmed: dict[int, int] = {}
        """Partition group → when a replica was first seen whose log retention had cut, in
        milliseconds, though all clocks but one were right, or the topic says that all stays."""
        self._ahead: set[int] = set()
        """Nodes whose clocks were once far ahead: answers of clocks are remembered."""
        self.elections = 0
        """Changes of role to leader."""
        self.coverage: Counter[Coverage] = Counter()
        """Situations in which faults struck."""
        self._progress: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._peers: dict[tuple[int, int], set[int]] = {}
        self._ids: dict[tuple[int, int], int] = {}
        self._used_up: set[tuple[int, int]] = set()
        self.reused: list[str] = []
        """Members that were seen again after their logs were gone, in words."""
        self.missing: dict[str, str] = {}
        """Files that a replica counts on and its disk does not have, by node and path, in words."""
        self._returns: Counter[tuple[int, int, int]] = Counter()

    @property
    def now_ms(self) -> int:
        """Milliseconds since the run began."""
        return int((self._agenda.now - self.began) * 1000)

    def begin(self) -> None:
        """Look from now on."""
        self._cluster.listeners.append(self._changed)
        self._look_again()

    def end(self) -> None:
        """Take a last look."""
        self.look()
        self._is_over = True

    def note(self, node: int, what: str) -> None:
        """Add an event to the time line."""
        self.timeline.append(Happening(self.now_ms, node, what))
        self._agenda.trace(f"{self.now_ms} {node} {what}".encode())

    def rename(self, node: int, group: int) -> None:
        """A fault made a node's replica forget: the replica gets another name."""
        self._names[node, group] += 1
        self.durable.pop((node, group), None)

    def note_deleted(self, node: int, group: int) -> None:
        """A replica's log is deleted or lost: a recovery need not find it, and its member must not
        be seen again."""
        self.durable.pop((node, group), None)
        if (node, group) in self._ids:
            self._used_up.add((group, self._ids.pop((node, group))))

    def _check_id(self, number: int, group: Group) -> None:
        """Note a member id that is used again. A blank log under an old id soon looks like the old
        log, so the id itself is compared."""
        self._ids[number, group.number] = group.raft.id
        used = group.number, group.raft.id
        if used in self._used_up:
            self._used_up.discard(used)
            self.reused.append(
                f"group {group.number}: node {number} is member {group.raft.id} again, whose log "
                "was deleted or lost"
            )

    def _is_too_young(self, group: Group) -> bool:
        """Whether a log that retention has cut lacks what it had to keep."""
        if self._is_kept_by_topic:
            # Segments without messages may go.
            assert isinstance(group.machine, PartitionMachine)
            ends = group.machine.ends.items()
            return any(end and group.index.earliest(queue) != 0 for queue, end in ends)
        # Two wrong clocks are a majority of a group of three, which retention may believe.
        return not self._cluster.log.retention_bytes and len(self._ahead) < 2

    def _check_files(self, number: int, group: Group) -> None:
        """Note files that a replica counts on and its disk lacks: an open log serves a deleted file
        until the process ends, and loses it then."""
        store, files = group.store, self._cluster.files[number]
        paths = [store.path_of_snapshot(meta.index) for meta in store.snapshots]
        paths += map(store.path_of, store.sealed)
        # The replica is not to blame for a file that a fault took.
        for path in [path for path in paths if path not in files.taken]:
            try:
                files.inode(path)
            except FileNotFoundError:
                text = f"{self.now_ms} ms: node {number} runs without {path}"
                self.missing.setdefault(f"{number} {path}", text)

    def _changed(self, node: int, what: str) -> None:
        self.note(node, what)
        self.look()

    def _look_again(self) -> None:
        if not self._is_over:
            self.look()
            self._agenda.call_after(LOOK_SECONDS, self._look_again)

    def look(self) -> None:
        """Look at every replica."""
        for number, node in self._cluster.nodes.items():
            for group in node.groups.values():
                self._look_at(number, group)

    def _look_at(self, number: int, group: Group) -> None:
        self._check_id(number, group)
        self._check_files(number, group)
        raft, machine = group.raft, group.machine
        kind = _ROLES.get(raft.role, "follower")
        office = kind, raft.term
        is_leader = raft.role is Role.LEADER
        key = number, group.number
        if self._offices.get(key) != office:
            self._offices[key] = office
            self.elections += is_leader
            self.note(number, f"group {group.number}: {kind}, term {raft.term}")
        if self._cluster.machines[number].clock.ahead_ms_max > AHEAD_MS_MAX:
            self._ahead.add(number)
        if machine.log_start > 1 and self._is_too_young(group):
            self.trimmed.setdefault(group.number, self.now_ms)
        durable = group.cache.last_index()
        self.durable[key] = durable, group.cache.term(durable)
        last = raft.last_index if is_leader else durable
        # The commit index may be ahead of this node's disk.
        commit = min(raft.commit, durable)
        state = group.store.hard_state
        term = raft.term if is_leader else state.term
        vote = state.vote if state.term == term else 0
        name = raft.id + RENAMED * self._names[key]
        voters = group.conf_state.voters + group.conf_state.voters_outgoing
        moment = Moment(
            self.now_ms, name, self._cluster.incarnations[number], kind, term, vote,
            commit, machine.applied, last, 0 if is_leader else group.cache.tail(durable)[0],
            raft.id in voters or not voters,
        )  # fmt: skip
        if moment[1:] != self._last.get(key, (0,))[1:]:
            self._last[key] = moment
            self.moments[group.number].append(moment)
            self.digests[group.number][number, machine.applied] = machine.digest
            self.commits[group.number] = max(self.commits[group.number], commit)
        if is_leader:
            self._look_at_progress(name, group)

    def _look_at_progress(self, name: int, group: Group) -> None:
        raft, office = group.raft, (name, group.number)
        progress = raft.status().progress
        gone = self._peers.get(office, set()) - set(progress)
        # A learner whose match fell has left and come back between two looks.
        gone |= {
            peer
            for peer, seen in progress.items()
            if seen.is_learner and seen.match < self._match(name, group, peer)
        }
        for peer in sorted(gone):
            # A peer that returns gets another name, as its progress may begin from zero.
            self._returns[name, group.number, peer] += 1
        self._peers[office] = set(progress)
        for peer, seen in progress.items():
            key, known = (name, group.number, peer), (raft.term, seen.match, seen.next)
            if self._progress.get(key) != known:
                self._progress[key] = known
                seat = peer + RENAMED * self._returns[key]
                self.progress[group.number].append(
                    ProgressAt(self.now_ms, name, raft.term, seat, seen.match, seen.next)
                )

    def _match(self, name: int, group: Group, peer: int) -> int:
        term, match, _ = self._progress.get((name, group.number, peer), (0, 0, 0))
        return match if term == group.raft.term else 0

    def situations(self, node: int, fault: str) -> list[Coverage]:
        """The situations of a node's replicas, when a fault is about to strike the node."""
        running = self._cluster.nodes.get(node)
        if running is None or not running.groups:
            return [Coverage("dead" if node else "none", "same", "unknown", fault)]
        return [
            Coverage(*self._situation(node, number, group), fault)
            for number, group in running.groups.items()
        ]

    def _situation(self, node: int, number: int, group: Group) -> tuple[str, str, str]:
        terms = [
            other.groups[number].raft.term
            for other in self._cluster.nodes.values()
            if number in other.groups
        ]
        relation = "behind" if group.raft.term < max(terms) else "same"
        role = _ROLES.get(group.raft.role, "follower")
        if group.raft.id in group.conf_state.learners:
            role = "learner"
        return role, relation, self._progress_of(node, number)

    def _progress_of(self, node: int, number: int) -> str:
        leader = self._cluster.leader(number)
        if not leader:
            return "unknown"
        group = self._cluster.nodes[leader].groups[number]
        if leader == node:
            return "level"
        member = self._cluster.nodes[node].groups[number].raft.id
        progress = group.raft.status().progress.get(member)
        if progress is None:
            return "unknown"
        is_behind = progress.match + 10 < group.raft.last_index
        return "behind" if is_behind else _PROGRESS[progress.state]
