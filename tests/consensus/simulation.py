"""A made-up cluster for property tests: bad network, crashes, full control, one seed.

Every step one random thing happens to one node or one message, then all that Raft promises is
checked (`safety`). A crash loses what was not synced: the disk keeps the synced state, and of the
write that was under way any prefix. The same seed gives the same run.

What can happen: ticks, delivery, loss, doubling and reordering of messages, partitions, proposals,
membership changes of all kinds, transfers, reads, forgotten leaders, snapshots and compaction,
records that must be fetched from disk, crashes and restarts.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    Change,
    ChangeKind,
    Config,
    ConfState,
    Event,
    HardState,
    InvalidChange,
    MembershipChange,
    MemoryStorage,
    Message,
    MessageKind,
    NotInMemory,
    ProposalDropped,
    Raft,
    Ready,
    Snapshot,
    SnapshotMeta,
    SnapshotTemporarilyUnavailable,
    Transition,
    decode_change,
)
from raftmq.log.record import Kind, Record
from tests.consensus.safety import Safety

ELECTION_TICKS = 4


class Disk(MemoryStorage):
    """A storage with a page cache: what is written is readable at once and lost if not synced."""

    def __init__(self, rng: random.Random, *, cold_share: float) -> None:
        super().__init__()
        self._rng = rng
        self._cold_share = cold_share
        self._hot: set[int] = set()
        self.synced_records: list[Record] = []
        self.synced_base = SnapshotMeta()
        self.synced_hard_state = HardState()
        self.synced_snapshot = Snapshot()

    def sync(self) -> None:
        """What was written survives from now on."""
        self.synced_records = self.records[:]
        self.synced_base = self._base
        self.synced_hard_state = self.hard_state
        self.synced_snapshot = self.snapshot_state

    def crash(self, torn: Message | None) -> None:
        """Lose what was not synced; of the write under way, keep the hard state and a prefix."""
        self.records = self.synced_records[:]
        self._base = self.synced_base
        self.hard_state = self.synced_hard_state
        self.snapshot_state = self.synced_snapshot
        if torn is not None and torn.snapshot is None and self._rng.random() < 0.5:
            kept = list(torn.entries)[: self._rng.randrange(len(torn.entries) + 1)]
            self.append(kept)
            if torn.term:
                commit = min(torn.commit, self.last_index())
                commit = max(commit, self.hard_state.commit)
                self.hard_state = HardState(torn.term, torn.vote, commit)
        self.sync()

    def entries(self, low: int, high: int, bytes_max: int) -> list[Record]:
        records = super().entries(low, high, bytes_max)
        if low in self._hot:
            self._hot.discard(low)
        elif self._rng.random() < self._cold_share:
            raise NotInMemory(low)
        return records

    def warm(self, low: int) -> None:
        """The records from `low` on were fetched."""
        self._hot.add(low)

    def snapshot(self) -> Snapshot:
        if self._rng.random() < 0.1:
            raise SnapshotTemporarilyUnavailable
        return super().snapshot()

    def crc_at(self, index: int) -> int | None:
        """CRC of the synced record at `index`, if the synced log reaches there."""
        place = index - self.synced_base.index - 1
        if place == -1:
            return self.synced_base.crc
        return self.synced_records[place].crc if 0 <= place < len(self.synced_records) else None


@dataclass
class Node:
    """One node: disk, core while it is up, and the work of its threads."""

    id: int
    disk: Disk
    raft: Raft | None = None
    appends: list[Message] = field(default_factory=list)
    applies: list[Message] = field(default_factory=list)
    fetches: list[tuple[int, int]] = field(default_factory=list)
    applied: int = 0
    conf_state: ConfState = field(default_factory=ConfState)


class Simulation:
    """A cluster and its fate."""

    def __init__(self, seed: int, *, is_async: bool) -> None:
        self.rng = random.Random(seed)
        nodes = 3 + seed % 5
        self.is_async = is_async
        self.has_pre_vote, self.has_check_quorum = seed % 2 == 0, seed % 3 == 0
        self.announces_commit = seed % 4 < 2
        self.counts: Counter[str] = Counter()
        self.network: list[Message] = []
        self.blocked: set[tuple[int, int]] = set()
        self.reads = 0
        self.now = 0
        self.is_calm = False
        """Whether nothing bad happens any more."""
        voters = tuple(range(1, nodes + 1))
        bootstrap = Snapshot(SnapshotMeta(1, 1, ConfState(voters)))
        self.nodes: dict[int, Node] = {}
        # Two more than the voters wait to be added; they start with nothing.
        for number in range(1, nodes + 3):
            disk = Disk(self.rng, cold_share=0.05)
            if number <= nodes:
                disk.install(bootstrap)
            disk.sync()
            self.nodes[number] = Node(number, disk)
        self.safety = Safety(self.nodes)
        for node in self.nodes.values():
            self.start(node)

    # One step

    ACTIONS = (
        ("tick", 50), ("campaign", 0.5), ("deliver", 200), ("lose", 4), ("double", 3),
        ("work", 120), ("append", 90), ("apply", 50), ("fetch", 20), ("propose", 15),
        ("change", 4), ("transfer", 0.5), ("read", 6), ("forget", 0.5), ("crash", 1.5),
        ("restart", 10), ("compact", 1.5), ("partition", 0.3), ("isolate", 0.6), ("heal", 1.4),
        ("report", 1),
    )  # fmt: skip

    def step(self) -> None:
        """One random event, then all checks."""
        names, weights = zip(*self.ACTIONS, strict=True)
        (name,) = self.rng.choices(names, weights)
        getattr(self, name)(self._pick(name))
        self.safety.check()

    def _pick(self, name: str) -> Node:
        nodes = list(self.nodes.values())
        if name in ("propose", "change", "read") and self.rng.random() < 0.9:
            leaders = [one for one in nodes if one.raft is not None and one.raft.is_leader]
            nodes = leaders or nodes
        return self.rng.choice(nodes)

    def start(self, node: Node) -> None:
        """Start a node from its disk; the machine starts from its last snapshot."""
        meta = node.disk.snapshot_state.meta
        node.applied, node.conf_state = meta.index, meta.conf_state
        config = Config(
            id=node.id,
            applied=meta.index,
            election_ticks=ELECTION_TICKS,
            draw=self.rng.randrange,
            pre_vote=self.has_pre_vote,
            check_quorum=self.has_check_quorum,
            async_storage_writes=self.is_async,
            disable_proposal_forwarding=False,
            announce_commit=self.announces_commit,
            message_bytes_max=self.rng.choice([0, 100, 2**40]),
            inflight_messages_max=self.rng.choice([1, 2, 256]),
            inflight_bytes_max=2**50,
            committed_bytes_max=self.rng.choice([1, 200, 2**40]),
            trace=self._count,
        )
        node.raft = Raft(config, node.disk)
        self.safety.started(node)

    def _count(self, event: Event, own: int, fields: tuple[object, ...]) -> None:
        self.counts[event.name] += 1

    # Events, each of one node; most do nothing if it is down

    def tick(self, node: Node) -> None:
        self.now += self.rng.choice([1, 1, 1, -5])
        if node.raft is not None:
            node.raft.tick()

    def deliver(self, node: Node) -> None:
        if not self.network:
            return
        # Mostly in order, sometimes any: both happen on real networks.
        is_jump = not self.is_calm and self.rng.random() < 0.3
        place = self.rng.randrange(len(self.network)) if is_jump else 0
        message = self.network.pop(place)
        if (message.sender, message.to) in self.blocked:
            self.counts["lost"] += 1
            return
        target = self.nodes[message.to]
        if target.raft is not None:
            self.counts["delivered"] += 1
            target.raft.step(message, now=self.now)

    def lose(self, node: Node) -> None:
        if self.network:
            self.network.pop(self.rng.randrange(len(self.network)))
            self.counts["lost"] += 1

    def double(self, node: Node) -> None:
        if self.network:
            self.network.append(self.rng.choice(self.network))
            self.counts["doubled"] += 1

    def work(self, node: Node) -> None:
        """Take a Ready and do it, or queue it for the threads."""
        raft = node.raft
        if raft is None or not raft.has_ready():
            return
        ready = raft.ready()
        self.safety.saw_ready(node, ready)
        node.fetches += [(fetch.peer, fetch.low) for fetch in ready.fetches]
        if self.is_async:
            self._queue(node, ready)
        else:
            self._do(node, ready)

    def _queue(self, node: Node, ready: Ready) -> None:
        if ready.snapshot is not None:
            # What the snapshot covers must not be applied after it.
            node.applies.clear()
        for message in ready.messages:
            if message.to == APPEND_THREAD:
                node.appends.append(message)
            elif message.to == APPLY_THREAD:
                node.applies.append(message)
            else:
                self._send(node, message)

    def _do(self, node: Node, ready: Ready) -> None:
        state = ready.hard_state or HardState()
        write = Message(
            MessageKind.STORAGE_APPEND, APPEND_THREAD, term=state.term, vote=state.vote,
            commit=state.commit, entries=ready.entries, snapshot=ready.snapshot,
        )  # fmt: skip
        # A leader's appends may leave before its own write is done.
        early = [one for one in ready.messages if one.kind is MessageKind.APPEND]
        late = [one for one in ready.messages if one.kind is not MessageKind.APPEND]
        for message in early:
            self._send(node, message)
        if not self.is_calm and self.rng.random() < 0.004:
            self._crash(node, write)
            return
        self._write(node, write, sync=ready.must_sync or ready.snapshot is not None)
        if not self.is_calm and self.rng.random() < 0.004:
            self._crash(node, None)
            return
        for message in late:
            self._send(node, message)
        self._apply(node, ready.committed)
        assert node.raft is not None
        node.raft.advance()

    def _write(self, node: Node, write: Message, *, sync: bool) -> None:
        disk = node.disk
        if write.snapshot is not None:
            disk.install(write.snapshot)
            node.applied = write.snapshot.meta.index
            node.conf_state = write.snapshot.meta.conf_state
            self.counts["snapshots installed"] += 1
        disk.append(write.entries)
        if write.term:
            disk.hard_state = HardState(write.term, write.vote, write.commit)
        if sync:
            disk.sync()

    def _send(self, node: Node, message: Message) -> None:
        self.safety.sent(node, message)
        self.network.append(message)

    def append(self, node: Node) -> None:
        """The append thread does one piece of work."""
        if node.raft is None or not node.appends:
            return
        message = node.appends.pop(0)
        self._write(node, message, sync=bool(message.responses))
        for response in message.responses:
            if response.to == node.id:
                self.safety.sent(node, response)
                node.raft.step(response)
            else:
                self._send(node, response)

    def apply(self, node: Node) -> None:
        """The apply thread does one piece of work."""
        if node.raft is None or not node.applies:
            return
        message = node.applies.pop(0)
        self._apply(node, message.entries)
        for response in message.responses:
            node.raft.step(response)

    def _apply(self, node: Node, records: "list[Record] | tuple[Record, ...] | object") -> None:
        assert isinstance(records, list | tuple)
        assert node.raft is not None
        for record in records:
            assert record.index == node.applied + 1, "a gap in what is applied"
            node.applied = record.index
            self.safety.applied(node, record)
            if record.kind == Kind.MEMBERSHIP:
                try:
                    node.conf_state = node.raft.apply_membership(decode_change(record.payload))
                    self.counts["memberships applied"] += 1
                except InvalidChange:
                    self.counts["memberships refused"] += 1

    def fetch(self, node: Node) -> None:
        if node.raft is not None and node.fetches:
            peer, low = node.fetches.pop(0)
            node.disk.warm(low)
            node.raft.entries_fetched(peer)
            self.counts["fetched"] += 1

    def propose(self, node: Node) -> None:
        if node.raft is None:
            return
        count = self.rng.choice([1, 1, 2, 5])
        items = [(int(Kind.BATCH), self.rng.randbytes(self.rng.randrange(80)))] * count
        try:
            node.raft.propose(items, now=self.now)
            self.counts["proposed"] += count
        except ProposalDropped:
            self.counts["refused"] += 1

    def change(self, node: Node) -> None:
        """Propose a random membership change."""
        if node.raft is None:
            return
        count = self.rng.choice([0, 1, 1, 1, 2, 3])
        kinds = [ChangeKind.ADD_VOTER, ChangeKind.ADD_VOTER, ChangeKind.ADD_LEARNER]
        kinds += [ChangeKind.REMOVE]
        changes = tuple(
            Change(self.rng.choice(kinds), self.rng.choice(list(self.nodes))) for _ in range(count)
        )
        transition = self.rng.choice(list(Transition)) if count else Transition.AUTO
        try:
            node.raft.propose_membership(MembershipChange(changes, transition), now=self.now)
            self.counts["changes proposed"] += 1
        except ProposalDropped:
            self.counts["refused"] += 1

    def transfer(self, node: Node) -> None:
        if node.raft is not None:
            node.raft.transfer_leadership(self.rng.choice(list(self.nodes)))

    def read(self, node: Node) -> None:
        if node.raft is not None:
            self.reads += 1
            context = str(self.reads).encode()
            self.safety.read_started(context)
            node.raft.read_index(context)

    def campaign(self, node: Node) -> None:
        if node.raft is not None:
            node.raft.campaign()

    def forget(self, node: Node) -> None:
        if node.raft is not None:
            node.raft.forget_leader()

    def crash(self, node: Node) -> None:
        if node.raft is not None and self.rng.random() < 0.3:
            self._crash(node, node.appends[0] if node.appends else None)

    def _crash(self, node: Node, torn: Message | None) -> None:
        self.safety.crashing(node)
        node.disk.crash(torn)
        node.raft = None
        node.appends.clear()
        node.applies.clear()
        node.fetches.clear()
        self.counts["crashes"] += 1

    def restart(self, node: Node) -> None:
        if node.raft is None:
            self.start(node)
            self.counts["restarts"] += 1

    def compact(self, node: Node) -> None:
        """Snapshot the machine and drop a part of the log before it."""
        disk = node.disk
        if node.raft is None or node.appends or node.applied <= disk.snapshot_state.meta.index:
            return
        if node.applied > disk.last_index():
            return
        disk.make_snapshot(node.applied, node.conf_state, b"machine")
        low = self.rng.randrange(disk.first_index() - 1, node.applied + 1)
        if low >= disk.first_index():
            disk.compact(low)
        disk.sync()
        self.counts["compactions"] += 1

    def partition(self, node: Node) -> None:
        everyone = list(self.nodes)
        side = set(self.rng.sample(everyone, self.rng.randrange(1, len(everyone))))
        self.blocked = {(a, b) for a in everyone for b in everyone if (a in side) != (b in side)}
        if self.rng.random() < 0.3:  # one-way only
            self.blocked = {(a, b) for a, b in self.blocked if a in side}

    def isolate(self, node: Node) -> None:
        """Cut off a leader, alone or with one friend: it goes on appending what is lost later."""
        leaders = [n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]
        if leaders:
            side = {self.rng.choice(leaders).id, node.id}
            pairs = [(a, b) for a in self.nodes for b in self.nodes]
            self.blocked = {(a, b) for a, b in pairs if (a in side) != (b in side)}

    def heal(self, node: Node) -> None:
        self.blocked = set()

    def report(self, node: Node) -> None:
        """The shell reports what became of messages and snapshots, rightly or not."""
        if node.raft is None:
            return
        peer = self.rng.choice(list(self.nodes))
        if self.rng.random() < 0.5:
            node.raft.report_unreachable(peer)
        else:
            node.raft.report_snapshot(peer, ok=self.rng.random() < 0.5)

    # The end

    def settle(self, rounds: int = 2000) -> bool:
        """Let all go well from now on; returns whether the members agree in the end."""
        self.is_calm = True
        self.heal(self.nodes[1])
        for node in self.nodes.values():
            self.restart(node)
        for number in range(rounds):
            for node in self.nodes.values():
                self.tick(node)
                self.report_arrived(node)
                for event in (self.work, self.append, self.apply, self.fetch) * 2:
                    event(node)
                    self.safety.check()
            for _ in range(len(self.network)):
                self.deliver(node)
                self.safety.check()
            if number % 20 == 19 and self.agreed():
                return True
        return False

    def report_arrived(self, node: Node) -> None:
        """The shell's part in snapshots: each gets a report."""
        if node.raft is not None and node.raft.is_leader:
            for peer, progress in node.raft.status().progress.items():
                if progress.pending_snapshot and self.rng.random() < 0.1:
                    node.raft.report_snapshot(peer, ok=False)

    def agreed(self) -> bool:
        """Whether a leader has committed in its term and all its members applied the same."""
        leaders = [n.raft for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]
        if not leaders:
            return False
        leader = max(leaders, key=lambda raft: raft.term)
        members = leader.status().progress
        return leader.commit == leader.last_index and all(
            self.nodes[number].applied == leader.commit for number in members
        )
