"""What Raft promises, checked on a simulated cluster after every step.

| promise | source | checked when |
|---|---|---|
| election safety: one leader a term | Raft figure 3 | each step |
| leader append-only | figure 3 | each step, for each leader |
| log matching | figure 3 | each record that appears anywhere |
| leader completeness | figure 3 | each new leader |
| state machine safety | figure 3 | each applied record |
| one vote a term, over restarts | §5.2 | each vote that is sent |
| terms, commit and applied never fall | §5.1 | each step |
| match < next; what is matched is durable there | figure 2 | each step, for each leader |
| what is committed is durable on a majority | §5.3 | each commit by a leader |
| reads see all that was committed before | thesis §6.4 | each granted read |

The checks look at the nodes' insides, never at what the core says of itself alone: a record counts
as durable only if the simulated disk would keep it.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from raftmq.consensus import Message, MessageKind, Raft, Ready
from raftmq.log.record import Record

if TYPE_CHECKING:
    from tests.consensus.simulation import Node


class Broken(AssertionError):
    """A promise was broken."""


def require(condition: bool, promise: str, *facts: object) -> None:
    if not condition:
        raise Broken(f"{promise}: {facts}")


class Safety:
    """Remembers what happened to the cluster and raises `Broken` when it may not."""

    def __init__(self, nodes: Mapping[int, "Node"]) -> None:
        self._nodes = nodes
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, tuple[int, int]] = {}
        """By index: (crc, term) of each record that some leader committed or some node applied."""
        self.applied_count = 0
        self.reads_granted = 0
        self._crcs: dict[tuple[int, int], int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._terms: dict[int, int] = {}
        self._commits: dict[int, int] = {}
        self._leader_tails: dict[int, tuple[int, int, int]] = {}
        self._reads: dict[bytes, int] = {}

    # What the simulation tells

    def started(self, node: "Node") -> None:
        """`node` has started from its disk."""
        raft = _raft(node)
        durable = node.disk.synced_hard_state.term
        require(raft.term >= durable, "terms never fall over a restart", node.id)
        self._terms[node.id] = raft.term
        self._commits[node.id] = raft.commit
        self._leader_tails.pop(node.id, None)

    def crashing(self, node: "Node") -> None:
        """`node` is about to lose what it did not sync."""
        self._leader_tails.pop(node.id, None)

    def saw_ready(self, node: "Node", ready: Ready) -> None:
        """`node` handed out work."""
        self.records(ready.entries)
        for state in ready.read_states:
            self.reads_granted += 1
            floor = self._reads[state.context]
            require(state.index >= floor, "a read misses a committed record", state, floor)

    def records(self, records: Iterable[Record]) -> None:
        """Raft figure 3, log matching: "if two logs contain an entry with the same index and
        term, then the logs are identical in all entries up through the given index"."""
        for record in records:
            known = self._crcs.setdefault((record.index, record.term), record.crc)
            require(known == record.crc, "log matching", record.index, record.term)

    def sent(self, node: "Node", message: Message) -> None:
        """`node` sent a message, perhaps to itself."""
        if message.kind is MessageKind.VOTE_RESPONSE and not message.reject:
            voted = self._votes.setdefault((node.id, message.term), message.to)
            require(voted == message.to, "one vote a term", node.id, message.term, voted)
            durable = node.disk.synced_hard_state
            require(
                durable.term > message.term or durable == (message.term, message.to, durable[2]),
                "a vote is durable before it is sent",
                durable,
                message,
            )
        if message.kind is MessageKind.APPEND_RESPONSE and not message.reject:
            self._acknowledged(node, message)

    def _acknowledged(self, node: "Node", message: Message) -> None:
        disk, term = node.disk, message.term
        require(disk.synced_hard_state.term >= term, "a term is durable before it is named", term)
        base = disk.synced_base.index
        last = base + len(disk.synced_records)
        # After a later leader's truncation the old acknowledgement is stale, not wrong.
        is_stale = disk.synced_hard_state.term > term
        require(message.index <= last or is_stale, "acknowledged before durable", node.id, message)

    def applied(self, node: "Node", record: Record) -> None:
        """Figure 3, state machine safety: no other server will ever apply a different log entry
        for the same index."""
        self.applied_count += 1
        known, _ = self.committed.setdefault(record.index, (record.crc, record.term))
        require(known == record.crc, "state machine safety", node.id, record.index)

    def read_started(self, context: bytes) -> None:
        """A read begins: it must see all that anyone knows to be committed."""
        commits = [node.raft.commit for node in self._nodes.values() if node.raft is not None]
        self._reads[context] = max([*commits, *self.committed], default=0)

    # What is looked at after every step

    def check(self) -> None:
        """All promises that hold at any moment."""
        for node in self._nodes.values():
            raft = node.raft
            if raft is None:
                continue
            require(raft.term >= self._terms[node.id], "terms never fall", node.id)
            require(raft.commit >= self._commits[node.id], "commit never falls", node.id)
            require(node.applied <= raft.commit, "applied before committed", node.id)
            self._terms[node.id] = raft.term
            if raft.is_leader:
                self._check_leader(node, raft)
            else:
                self._leader_tails.pop(node.id, None)
            self._commits[node.id] = raft.commit

    def _check_leader(self, node: "Node", raft: Raft) -> None:
        is_new = raft.term not in self.leaders
        known = self.leaders.setdefault(raft.term, node.id)
        require(known == node.id, "election safety", raft.term, known, node.id)
        if is_new:
            self._check_completeness(node, raft)
        tail = self._leader_tails.get(node.id)
        log = raft._core.log
        if tail is not None and tail[0] == raft.term and tail[1] >= log.first_index - 1:
            crc = crc_at(node, tail[1])
            require(crc == tail[2], "leader append-only", node.id, tail)
        self._leader_tails[node.id] = (raft.term, log.last_index, log.last_crc)
        if raft.commit > self._commits[node.id]:
            self._check_commit(node, raft)
        self._check_progress(raft)

    def _check_completeness(self, node: "Node", raft: Raft) -> None:
        """Figure 3: "if a log entry is committed in a given term, then that entry will be present
        in the logs of the leaders for all higher-numbered terms"."""
        for index, (crc, _) in self.committed.items():
            require(index <= raft.last_index, "leader completeness", node.id, index)
            own = crc_at(node, index)
            require(own in (None, crc), "leader completeness", node.id, index)

    def _check_commit(self, node: "Node", raft: Raft) -> None:
        index = raft.commit
        crc = crc_at(node, index)
        term = raft._core.log.term(index)
        require(term == raft.term, "only records of the own term are counted (§5.4.2)", index)
        membership = raft.status().membership
        for half in (membership.incoming, membership.outgoing):
            held = [v for v in half if self._holds(v, index, crc)]
            require(2 * len(held) > len(half) or not half, "committed without a majority", index)
        for place in range(self._commits[node.id] + 1, index + 1):
            own = crc_at(node, place)
            if own is not None:
                known, _ = self.committed.setdefault(place, (own, raft.term))
                require(known == own, "a committed record was replaced", place)

    def _holds(self, voter: int, index: int, crc: int | None) -> bool:
        disk = self._nodes[voter].disk
        return disk.synced_base.index > index or (crc is not None and disk.crc_at(index) == crc)

    def _check_progress(self, raft: Raft) -> None:
        for peer, progress in raft.status().progress.items():
            require(progress.match < progress.next, "match < next", peer, progress)
            disk = self._nodes[peer].disk
            if peer == raft.id or disk.synced_hard_state.term != raft.term:
                continue
            last = disk.synced_base.index + len(disk.synced_records)
            require(progress.match <= last, "matched but not durable", peer, progress, last)


def _raft(node: "Node") -> Raft:
    assert node.raft is not None
    return node.raft


def crc_at(node: "Node", index: int) -> int | None:
    """CRC of the record at `index` in a running node's log, if it still has it."""
    log = _raft(node)._core.log
    unstable = log.unstable
    place = index - unstable.offset
    if index == log.last_index:
        return log.last_crc
    if 0 <= place < len(unstable.records):
        return unstable.records[place].crc
    if index > log.last_index or index < log.first_index - 1:
        return None
    return log._storage.tail(index)[0]
