"""Nodes for unit and paper tests: made with a given log, driven message by message or to rest.

    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"x")
    cluster.settle()

Storage is synchronous and never fails; the network delivers in order, except across a cut.
"""

from collections.abc import Iterable, Mapping, Sequence

from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    Config,
    ConfState,
    HardState,
    MemoryStorage,
    Message,
    MessageKind,
    Raft,
    ReadState,
    Role,
    Snapshot,
    SnapshotMeta,
    decode_change,
)
from raftmq.log.record import Kind, Record, encode

BASE = 1
"""Index of the founding snapshot: the first record is at BASE + 1."""


def make_log(terms: Sequence[int], *, salt: bytes = b"") -> list[Record]:
    """Records of the given terms from BASE + 1 on; the payload is the term, and the salt."""
    records: list[Record] = []
    for place, term in enumerate(terms):
        chain = records[-1].crc if records else 0
        payload = b"%d" % term + salt
        index = BASE + 1 + place
        records.append(
            encode(payload, index=index, term=term, kind=Kind.BATCH, timestamp=0, chain=chain)
        )
    return records


def make_storage(
    conf_state: ConfState, terms: Sequence[int] = (), hard_state: HardState | None = None
) -> MemoryStorage:
    """A founded storage with a log of `terms`."""
    storage = MemoryStorage()
    if conf_state.voters:
        storage.install(Snapshot(SnapshotMeta(BASE, 1, conf_state)))
        storage.hard_state = hard_state or HardState(max(terms, default=1), 0, BASE)
    storage.append(make_log(terms))
    return storage


def make_raft(
    storage: MemoryStorage, node: int = 1, *, pre_vote: bool = False, check_quorum: bool = False,
    **settings: object,
) -> Raft:  # fmt: skip
    """A node over `storage`; the plain Raft of the paper unless asked otherwise."""
    fields = {"id": node, "pre_vote": pre_vote, "check_quorum": check_quorum} | settings
    return Raft(Config(**fields), storage)  # type: ignore[arg-type]


class Node:
    """One node: core, storage, and the records that its machine has applied."""

    def __init__(self, number: int, storage: MemoryStorage, settings: dict[str, object]) -> None:
        self.id = number
        self.storage = storage
        self.settings = settings
        self.applied: list[Record] = []
        self.reads: list[ReadState] = []
        self.conf_state = storage.snapshot_state.meta.conf_state
        self.raft = make_raft(storage, number, **settings)  # type: ignore[arg-type]

    def work(self) -> list[Message]:
        """Do all work there is, and return what it sends."""
        sent: list[Message] = []
        while self.raft.has_ready():
            ready = self.raft.ready()
            if ready.snapshot is not None:
                self.storage.install(ready.snapshot)
                self.conf_state = ready.snapshot.meta.conf_state
            self.storage.append(ready.entries)
            if ready.hard_state is not None:
                self.storage.hard_state = ready.hard_state
            sent += ready.messages
            for record in ready.committed:
                self.applied.append(record)
                if record.kind == Kind.MEMBERSHIP:
                    self.conf_state = self.raft.apply_membership(decode_change(record.payload))
            self.reads += ready.read_states
            self.raft.advance()
        return sent

    def step(self, message: Message) -> list[Message]:
        """Take in one message, do the work, and return what it sends."""
        self.raft.step(message)
        return self.work()

    def restart(self) -> None:
        """Start again from storage, as after a crash."""
        self.applied = []
        applied = self.storage.snapshot_state.meta.index
        self.raft = make_raft(
            self.storage,
            self.id,
            **(self.settings | {"applied": applied}),  # type: ignore[arg-type]
        )

    def snapshot(self, keep: int = 0) -> None:
        """Snapshot the machine and compact the log, but for the last `keep` applied records."""
        applied = self.raft.applied
        self.storage.make_snapshot(applied, self.conf_state, b"machine")
        self.storage.compact(applied - keep)

    @property
    def log(self) -> list[tuple[int, int]]:
        """(term, index) of each stored record."""
        return [(record.term, record.index) for record in self.storage.records]

    @property
    def payloads(self) -> list[bytes]:
        """Payloads that were applied, without no-ops and membership changes."""
        return [bytes(one.payload) for one in self.applied if one.kind == Kind.BATCH]


class Cluster:
    """A few nodes and the messages between them."""

    def __init__(
        self,
        voters: int,
        *,
        learners: Iterable[int] = (),
        spare: Iterable[int] = (),
        logs: Mapping[int, Sequence[int]] | None = None,
        **settings: object,
    ) -> None:
        state = ConfState(tuple(range(1, voters + 1)), tuple(learners))
        self.messages: list[Message] = []
        self.cuts: set[tuple[int, int]] = set()
        self.nodes: dict[int, Node] = {}
        for number in (*state.voters, *state.learners, *spare):
            known = ConfState() if number in tuple(spare) else state
            storage = make_storage(known, (logs or {}).get(number, ()))
            self.nodes[number] = Node(number, storage, dict(settings))

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def raft(self, number: int) -> Raft:
        """The core of a node."""
        return self.nodes[number].raft

    def cut(self, *numbers: int) -> None:
        """Cut these nodes off from all others."""
        for one in self.nodes:
            for other in self.nodes:
                if (one in numbers) != (other in numbers):
                    self.cuts.add((one, other))

    def heal(self) -> None:
        """Let all messages through again."""
        self.cuts.clear()

    def collect(self) -> list[Message]:
        """Let every node work; their messages wait."""
        for node in self.nodes.values():
            self.messages += node.work()
        return self.messages

    def settle(self) -> None:
        """Work and deliver until nothing moves."""
        while self.collect():
            taken, self.messages = self.messages, []
            for message in taken:
                assert message.to not in (APPEND_THREAD, APPLY_THREAD)
                if (message.sender, message.to) not in self.cuts and message.to in self.nodes:
                    self.nodes[message.to].raft.step(message)

    def elect(self, number: int) -> None:
        """Have a node campaign, and settle."""
        self.raft(number).campaign()
        self.settle()
        assert self.raft(number).role is Role.LEADER, f"{number} was not elected"

    def propose(self, number: int, *payloads: bytes, now: int = 0) -> int:
        """Propose records at a node; nothing is delivered yet."""
        return self.raft(number).propose([(Kind.BATCH, one, 1) for one in payloads], now=now)

    def tick(self, number: int, count: int) -> None:
        """Let a node's time pass."""
        for _ in range(count):
            self.raft(number).tick()

    def leaders(self) -> list[int]:
        """Nodes that take themselves for the leader."""
        return [number for number, node in self.nodes.items() if node.raft.is_leader]


def of_kind(messages: Iterable[Message], kind: MessageKind) -> list[Message]:
    """The messages of one kind."""
    return [message for message in messages if message.kind is kind]
