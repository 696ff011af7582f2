"""One process of one node: consensus, log, machine, and the pump between them.

It lives from a start to the next crash. What it does is what the broker's `Group`, `DiskLoop`,
`Snapshots` and `AfterApply` do with a group, in the same order of effects and with the same
classes below (`Raft`, `LogStore`, `LogCache`, `GroupStorage`); what is told to clients and found
for them is left out.

    deliver, tick, propose --> step --> pump --> writing --> persisted --> step
                                          `----> apply                (at once, or a little later)

Every call from the loop goes through `turn`, which lets a gone process rest, keeps a paused one's
events for later, ends the process at faults that a broker ends at, and has all promises checked.

Invariants:
- An answer that claims something durable leaves only from `persisted`.

Left out: several groups in a process, back-pressure, sessions, segments mended from peers, and so
records that peers give while one is damaged (`Repairs.lend`): here such a node stops.

Sources: `raftmq.broker.replica.group`, `.disk`, `.opener`, `.after_apply`, `.snapshots`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from raftmq.broker.replica.opener import consensus_meta, log_meta, oldest_snapshot
from raftmq.broker.replica.storage import GroupStorage, since_last_snapshot
from raftmq.chaos.core.checks.broken import Broken
from raftmq.chaos.core.checks.views import View
from raftmq.chaos.core.faults.effects import LAGGED, NEEDLESS, STOPPED
from raftmq.chaos.core.machine import Machine, restore
from raftmq.chaos.core.writing import Writing
from raftmq.chaos.world.disk import PowerLoss
from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    Config,
    ConfState,
    HardState,
    InvalidChange,
    Message,
    MessageKind,
    Raft,
    Ready,
    Role,
    Snapshot,
    SnapshotMeta,
    decode_change,
)
from raftmq.errors import CorruptRecord
from raftmq.log.builder import SegmentBuilder
from raftmq.log.cache import LogCache
from raftmq.log.faults import Dropped, LogFault
from raftmq.log.index_file import IndexDamaged
from raftmq.log.record import Kind, Record
from raftmq.log.segment import Identity, Link
from raftmq.log.store import LogSettings, LogStore, Recovered

if TYPE_CHECKING:
    from raftmq.chaos.core.cluster import Cluster
    from raftmq.chaos.core.node import Node

FOLDER = "log"
IDLE_TICKS = 10
"""A log that was not written for so long gets a mark, as the broker's logs do each second."""

FETCH_BYTES = 4096


class Replica:
    """One life of one node's process. It is state."""

    def __init__(self, node: "Node", cluster: "Cluster") -> None:
        """Start from the node's disk. Raises what `LogStore.open` raises."""
        self.node = node
        self.cluster = cluster
        self.is_gone = False
        self.store, recovered = open_store(node, cluster)
        self.abstains = bool(recovered.abstains)
        """Whether its log was cut, and its vote counts for nothing."""
        self._is_returning = False
        self.machine, self.conf_state = _restored(self.store)
        self._assemble(recovered)
        self.view = View(node.durable.base, node.durable.records)
        """The log as consensus has it, durable or not."""
        self.writing = Writing(self)
        self.tickets: dict[int, int] = {}
        """By index: the term in which a client's record was proposed here."""
        self.reads: dict[bytes, int] = {}
        self._applies: deque[Message] = deque()
        self._borders: set[int] = set()
        self._layout = self.store.layout
        self._sealing: set[int] = set()
        self._is_working = False
        self._marked_passes = 0
        self.ticks = self.led_since = self.conf_tick = 0
        """Ticks of this life; when it began to lead; when its members last changed."""
        self.heard: dict[int, int] = {}
        """Leader: by node, the tick at which it last said something."""
        self.is_full = False
        """Whether a write waits for space."""

    def _assemble(self, recovered: Recovered) -> None:
        settings, node = self.cluster.settings, self.node
        self.cache = LogCache(
            start=recovered.start,
            last=recovered.end,
            terms=recovered.terms,
            bytes_max=settings.cache_bytes,
        )
        term, vote, commit = recovered.hard_state
        self.cluster.safety.recovered(node, self.store, recovered, self.machine)
        self.storage = GroupStorage(
            self.cache,
            HardState(term, vote, max(commit, self.machine.applied)),
            self.conf_state,
            partial(oldest_snapshot, self.store),
        )
        self.raft = Raft(
            Config(
                id=node.id,
                election_ticks=settings.election_ticks,
                heartbeat_ticks=settings.heartbeat_ticks,
                applied=self.machine.applied,
                abstains=self.abstains,
                pre_vote=settings.pre_vote,
                check_quorum=settings.check_quorum,
                announce_commit=settings.announce_commit,
                disable_proposal_forwarding=not settings.forwards_proposals,
                async_storage_writes=settings.is_async,
                message_bytes_max=settings.message_bytes_max,
                inflight_messages_max=settings.inflight_messages_max,
                committed_bytes_max=settings.committed_bytes_max,
                draw=node.random.randrange,
                trace=self.cluster.heard,
            ),
            self.storage,
        )
        self.core = self.raft._core
        """The insides, for the checks."""

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.core.role is Role.LEADER

    # What the loop calls

    def turn(self, call: Callable[..., None], *args: object) -> None:
        """Do something in this process, let it act, and check what it promised."""
        node = self.node
        if self.is_gone:
            return
        if node.is_paused:
            node.keep(call, *args)
            return
        look = self.cluster.safety.look
        try:
            call(*args)
            look(self)
            self.pump()
        except PowerLoss:
            look(self)
            node.crash_now()
        except (LogFault, OSError, CorruptRecord) as fault:
            look(self)
            if isinstance(fault, FileNotFoundError) and not node.is_damaged:
                # No fault takes a file away from a sound disk: the process removed it itself.
                raise
            node.stopped(fault)
        except AssertionError as error:
            if isinstance(error, Broken) or not node.is_damaged or self.abstains:
                raise
            # What is left of its log contradicts the others: it notices, and stops for good.
            node.end(power=False)
            node.refuse(str(error))

    def tick(self) -> None:
        """A tick passes."""
        self.raft.tick()
        self.ticks += 1
        if self.ticks % IDLE_TICKS == 0:
            self._mark_idle()
            if self.core.role is Role.LEADER:
                self.cluster.safety.still_leads(self)

    def step(self, message: Message) -> None:
        """A message arrived."""
        kind, core = message.kind, self.core
        if core.role is Role.LEADER:
            self.heard[message.sender] = self.ticks
        if kind is MessageKind.VOTE or kind is MessageKind.PRE_VOTE:
            safety = self.cluster.safety
            if safety.is_foreign_campaign(self, message):
                before = self.core.term
                self.raft.step(message)
                safety.disturbed(self, message, before)
                return
        if message.snapshot is not None and core.log.last_index >= message.snapshot.meta.index:
            self.cluster.loop.effects[NEEDLESS] += 1
        now = self.node.now_ms() if kind is MessageKind.PROPOSE else 0
        is_newer = message.term > core.term
        self.raft.step(message, now=now)
        if is_newer and core.term < message.term:
            self.cluster.safety.ignored_term(self, message)

    def pump(self) -> None:
        """Let consensus act on all that came in."""
        raft, safety = self.raft, self.cluster.safety
        while not self._is_working and raft.has_ready():
            ready = raft.ready()
            if ready.snapshot is not None:
                self._drop_covered()
                self.view = View(ready.snapshot.meta.index)
            if ready.entries:
                safety.entered(self, ready.entries)
            for fetch in ready.fetches:
                self._fetch(fetch.peer, fetch.low, fetch.high)
            for state in ready.read_states:
                safety.read_granted(self, state)
            if self.cluster.settings.is_async:
                self._dispatch(ready.messages)
            else:
                self._work(ready)
            # Before the next round applies what this one committed.
            safety.look(self)
        if self.abstains and not self._is_returning and raft.may_count_again:
            self._is_returning = True
            self.writing.submit(self.store.end_abstention, self._counts_again)
        self.writing.flush()

    def _counts_again(self, _: object) -> None:
        self.raft.end_abstention()
        self.abstains = False
        self.node.counts_again()

    def _drop_covered(self) -> None:
        # What a snapshot covers must not be applied after it.
        self._applies.clear()

    def _dispatch(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.to == APPEND_THREAD:
                self.writing.write(message)
            elif message.to == APPLY_THREAD:
                self._applies.append(message)
                self._apply_soon()
            else:
                self.send(message)

    def _work(self, ready: Ready) -> None:
        """Synchronous mode: one `Ready` at a time, see the heading of `raftmq.consensus`."""
        for message in ready.messages:
            if message.kind is MessageKind.APPEND:
                self.send(message)
        self._is_working = True
        state = ready.hard_state or HardState()
        done = Message(MessageKind.STORAGE_APPEND_RESPONSE, self.node.id)
        if ready.entries or ready.hard_state or ready.snapshot is not None:
            self.writing.write(
                Message(
                    MessageKind.STORAGE_APPEND,
                    APPEND_THREAD,
                    term=state.term,
                    vote=state.vote,
                    commit=state.commit,
                    entries=ready.entries,
                    snapshot=ready.snapshot,
                    responses=(done,),
                )
            )
            self._under_way = ready
        else:
            self._finish_work(ready)

    def _finish_work(self, ready: Ready) -> None:
        for message in ready.messages:
            if message.kind is not MessageKind.APPEND:
                self.send(message)
        self._apply(ready.committed)
        self.raft.advance()
        self._is_working = False

    def send(self, message: Message) -> None:
        """Send a message to another node."""
        cluster = self.cluster
        kind = message.kind
        if kind is MessageKind.APPEND_RESPONSE or kind is MessageKind.VOTE_RESPONSE:
            cluster.safety.promised(self, message)
        elif kind is MessageKind.VOTE:
            cluster.safety.asked(self, message)
        if kind is MessageKind.SNAPSHOT:
            cluster.transfers.send(self, message)
        else:
            cluster.network.send(message)

    def point(self, name: str) -> None:
        """A named point of the code; a fault may end the process here."""
        if self.node.crash_point == name:
            self.cluster.loop.effects[STOPPED] += 1
            raise PowerLoss(name)

    # Storage

    def persisted(self, messages: list[Message]) -> None:
        """Storage messages are durable."""
        self.is_full = False
        for message in since_last_snapshot(messages):
            if message.snapshot is not None:
                self._install(message.snapshot)
            if message.entries:
                self.cache.append(message.entries)
        if self.store.layout is not self._layout:
            self._arrange()
        if not self.cluster.settings.is_async:
            self._finish_work(self._under_way)
            return
        for message in messages:
            for response in message.responses:
                if response.to == self.node.id:
                    self.cluster.safety.promised(self, response)
                    self.raft.step(response)
                else:
                    self.send(response)

    def met_full_disk(self) -> None:
        """A write waits for space; who waits for a record is told that nobody can tell."""
        self.is_full = True
        self.tickets.clear()

    def _install(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        self.cluster.safety.installing(self, meta)
        self.machine = restore(self.store.open_snapshot(meta.index).state())
        self.conf_state = meta.conf_state
        self.node.applied = max(self.node.applied, meta.index)
        self.node.knows_members(meta.index, meta.conf_state)
        self.cache.restore(Link(meta.index, meta.term, meta.crc, meta.timestamp))
        self.cluster.safety.snapshot_taken(self, meta, self.machine)
        self.cluster.counts["snapshots installed"] += 1

    def _arrange(self) -> None:
        self._layout = self.store.layout
        applied = self.machine.applied
        borders = {segment.base - 1 for segment in self._layout}
        self._borders = {index for index in borders if index > applied}
        record = self.cache.get(applied)
        if applied in borders and record is not None:
            self._take_snapshot(record)

    def _take_snapshot(self, record: Record) -> None:
        meta = SnapshotMeta(
            record.index, record.term, self.conf_state, record.crc, record.timestamp
        )
        state = self.machine.snapshot()
        self.cluster.safety.snapshot_taken(self, meta, self.machine)

        def save() -> None:
            self.point("before snapshot")
            # A later snapshot may have replaced the log meanwhile.
            if any(segment.base - 1 == meta.index for segment in self.store.layout):
                self.store.save_snapshot(log_meta(meta), state)

        self.writing.submit(save, self._saved)

    def _saved(self, _: object) -> None:
        self.cluster.counts["snapshots taken"] += 1
        self._seal()
        sizes = self.store.segments()
        kept = self.cluster.settings.segments_kept
        if len(sizes) > kept:
            low = sizes[-kept].base
            self.writing.submit(partial(self.store.drop_before, low), self._dropped)

    def _dropped(self, start: object) -> None:
        assert isinstance(start, Link)
        self.cache.drop_before(start)

    def _seal(self) -> None:
        for info in self.store.layout:
            if info.last is None or info.last > self.machine.applied:
                return
            if info.name not in self._sealing:
                self._sealing.add(info.name)
                self.writing.submit(partial(self._seal_one, info.name), self._sealed)

    def _seal_one(self, name: int) -> None:
        if any(info.name == name and info.last is not None for info in self.store.layout):
            try:
                self.store.seal(SegmentBuilder(name))
            except IndexDamaged:
                # What was written cannot be read back: it is written again.
                self._sealing.discard(name)

    def _sealed(self, _: object) -> None:
        self._layout = self.store.layout
        self.cluster.counts["segments sealed"] += 1

    def _mark_idle(self) -> None:
        if self.writing.is_idle and self._marked_passes != self.writing.passes:
            self._marked_passes = self.writing.passes
            self.writing.submit(self.store.mark_idle, lambda _: None)

    def _fetch(self, peer: int, low: int, high: int) -> None:
        delay = 100 + int(self.cluster.random.random() * 400 * self.node.disk_factor)
        self.cluster.loop.after(delay, self.turn, self._fetched, peer, low, high)

    def _fetched(self, peer: int, low: int, high: int) -> None:
        high = min(high, self.cache.last_index() + 1)
        try:
            records = self.store.read(low, high, FETCH_BYTES) if low < high else []
        except (Dropped, OSError):
            records = []
        self.cluster.safety.read_back(self, records)
        self.cluster.counts["fetched"] += 1
        self.storage.lend(peer, records)
        self.raft.entries_fetched(peer)

    # Applying

    def _apply_soon(self) -> None:
        cluster, lag_ms = self.cluster, self.node.apply_ms
        if lag_ms:
            cluster.loop.effects[LAGGED] += 1
        lag_ms = lag_ms or cluster.settings.apply_ms_max
        if lag_ms:
            delay = int(cluster.random.random() * lag_ms)
            cluster.loop.after(delay * 1000, self.turn, self._apply_next)
        else:
            self._apply_next()

    def _apply_next(self) -> None:
        if not self._applies:
            return
        message = self._applies.popleft()
        self._apply(message.entries)
        for response in message.responses:
            self.raft.step(response)

    def _apply(self, records: Sequence[Record]) -> None:
        safety = self.cluster.safety
        self.point("before apply")
        for record in records:
            safety.applying(self, record)
            if record.kind == Kind.MEMBERSHIP:
                self._change_membership(record)
            self.machine.apply(record)
            safety.applied(self, record)
            if record.index in self._borders:
                self._borders.discard(record.index)
                self._take_snapshot(record)
            if self.tickets and record.index in self.tickets:
                term = self.tickets.pop(record.index)
                self.cluster.clients.settled(self, record, is_ours=record.term == term)
        self.node.applied = self.machine.applied
        self.point("after apply")

    def _change_membership(self, record: Record) -> None:
        try:
            self.conf_state = self.raft.apply_membership(decode_change(record.payload))
            self.node.knows_members(record.index, self.conf_state)
            self.conf_tick = self.ticks
            self.cluster.counts["memberships applied"] += 1
        except InvalidChange:
            self.cluster.counts["memberships refused"] += 1
        self.cluster.safety.membership_applied(self, record, self.conf_state)


def open_store(node: "Node", cluster: "Cluster") -> tuple[LogStore, Recovered]:
    """Open the node's log."""
    settings = LogSettings(segment_bytes=cluster.settings.segment_bytes)
    identity, mends = Identity("core", node.id, 0), cluster.settings.mends
    store, recovered = LogStore.open(node.disk, FOLDER, settings, identity, mends=mends)
    if recovered.rotten:
        # Only a broker can have its peers mend a sealed segment.
        raise recovered.rotten[0]
    return store, recovered


def _restored(store: LogStore) -> tuple[Machine, ConfState]:
    if not store.snapshots:
        return Machine(), ConfState()
    newest = store.snapshots[-1]
    state = store.open_snapshot(newest.index).state()
    return restore(state), consensus_meta(newest).conf_state
