"""One process of one node: a partition group as brokers run it, on a simulated host.

A replica lives from a start to the next crash. The loop, the writing of storage messages and the
opening are the broker's own (`Group`, `Write`, `assemble`), so every seed tries the code that
ships. The group's effects are performed on a simulated disk, network and clock.

    deliver, tick, propose --> Group.pump --> effects --> writing --> persisted --> Group

Every call from the loop goes through `turn`. `turn` ignores calls into a process that is gone,
keeps calls into a paused process for later, ends the process at faults at which a broker ends, and
has all promises checked.

Invariants:
- An answer that claims something durable leaves only from `persisted`.

Left out: several groups in a process, back-pressure, sessions, segments mended from peers, and so
records that peers give while one is damaged (`Repairs.lend`): here such a node stops.

Sources: `raftmq.broker.replica.snapshots` and `.after_apply`, whose steps are done here for one
group on a simulated disk thread.
"""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from raftmq.broker.replica.effects import (
    Applied,
    Effect,
    EndAbstention,
    Led,
    NoteLoss,
    Persist,
    ReadBack,
    RestoreSnapshot,
    Send,
    TakeSnapshot,
)
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.opener import Opened, assemble, log_meta, restored
from raftmq.chaos.core.checks.broken import Broken
from raftmq.chaos.core.checks.views import View
from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.faults.effects import NEEDLESS
from raftmq.chaos.core.host import Host
from raftmq.chaos.core.replica.machine import Machine, restore
from raftmq.chaos.core.replica.process import Process
from raftmq.chaos.core.replica.watched import WatchedLog, WatchedMachine, WatchedRaft
from raftmq.chaos.core.replica.writing import Writing
from raftmq.chaos.core.settings import Settings
from raftmq.chaos.world.disk import PowerLoss
from raftmq.consensus import Config, Message, MessageKind, Role, SnapshotMeta
from raftmq.errors import CorruptRecord
from raftmq.log.builder import SegmentBuilder
from raftmq.log.faults import DiskFull, Dropped, LogFault, RecordsLost
from raftmq.log.index_file import SegmentIndex
from raftmq.log.record import Record
from raftmq.log.segment import Identity, Link
from raftmq.log.store import LogSettings, Recovered
from raftmq.wire.messages import ErrorReply

FOLDER = "log"
IDLE_TICKS = 10
"""Ticks between two marks of a log that was written and is idle; a broker marks each second."""

FETCH_BYTES = 4096

NUMBER = 1
"""Number of the only partition group."""


class Replica(Process):
    """One life of one node's process. It is state."""

    def __init__(
        self,
        node: Host,
        environment: Environment,
        *,
        ends: Callable[[BaseException], None],
        send_snapshot: "Callable[[Replica, Message], None]",
    ) -> None:
        """Start from the node's disk. Raises what `LogStore.open` raises.

        `ends` gets the fault that ends the process; `send_snapshot` brings a snapshot to another
        node, and then its message.
        """
        super().__init__(node)
        self._environment = environment
        self._ends = ends
        self._send_snapshot = send_snapshot
        self.is_gone = False
        self.store, recovered = open_store(node, environment.settings)
        watched, conf_state = restored(
            self.store, blank=self._blank, restore=lambda state: self._watched(restore(state))
        )
        assert isinstance(watched, WatchedMachine)
        self.machine = watched.machine
        environment.safety.recovered(node, self.store, recovered, self.machine)
        opened = Opened(self.store, recovered, watched, conf_state)
        consensus = partial(WatchedRaft, self, environment, self.turn)
        config = self._config(watched.applied, abstains=bool(recovered.abstains))
        parts = assemble(opened, config, environment.settings.cache_bytes, consensus)
        self.group = Group(NUMBER, parts, mark=_pumped_anyway, now_ms=node.now_ms)
        self.raft, self.cache = self.group.raft, self.group.cache
        self.core = self.raft._core
        self.view = View(node.durable.base, node.durable.records)
        self.store.node = node
        self.writing = Writing(
            self, environment, self.store,
            turn=self.turn, persisted=self._persisted, met_full_disk=self._met_full_disk,
        )  # fmt: skip
        self._is_returning = False
        self._marked_passes = 0
        self.is_full = False
        """Whether a write waits for space."""

    def _blank(self) -> WatchedMachine:
        return self._watched(Machine())

    def _watched(self, machine: Machine) -> WatchedMachine:
        return WatchedMachine(self, self._environment.safety, machine)

    def _config(self, applied: int, *, abstains: bool) -> Config:
        settings, node = self._environment.settings, self.node
        return Config(
            id=node.id,
            election_ticks=settings.election_ticks,
            heartbeat_ticks=settings.heartbeat_ticks,
            applied=applied,
            abstains=abstains,
            pre_vote=settings.pre_vote,
            check_quorum=settings.check_quorum,
            announce_commit=settings.announce_commit,
            disable_proposal_forwarding=not settings.forwards_proposals,
            async_storage_writes=True,
            message_bytes_max=settings.message_bytes_max,
            inflight_messages_max=settings.inflight_messages_max,
            committed_bytes_max=settings.committed_bytes_max,
            draw=node.random.randrange,
            trace=self._environment.heard,
        )

    @property
    def watched(self) -> WatchedMachine:
        """The machine as the group has it."""
        machine = self.group.machine
        assert isinstance(machine, WatchedMachine)
        return machine

    @property
    def abstains(self) -> bool:
        """Whether its log was cut, so that it neither votes nor campaigns."""
        return bool(self.group.abstains)

    # Calls of the loop

    def turn(self, call: Callable[..., None], *args: object) -> None:
        """Do something in this process, let it act, and check what it promised."""
        node = self.node
        if self.is_gone:
            return
        if node.is_paused:
            node.keep(call, *args)
            return
        look = self._environment.safety.look
        try:
            call(*args)
            self.pump()
        # The state before the end is checked too: it may have been answered for already.
        except PowerLoss as fault:
            look(self)
            self._ends(fault)
        except (LogFault, OSError, CorruptRecord) as fault:
            look(self)
            if isinstance(fault, FileNotFoundError) and not node.is_damaged:
                # No fault takes a file away from a sound disk: the process removed it itself.
                raise
            self._ends(fault)
        except AssertionError as error:
            if isinstance(error, Broken) or not node.is_damaged or self.abstains:
                raise
            # A damaged log contradicts the other logs: the node notices, and stops for good.
            self._ends(error)

    def tick(self) -> None:
        """A tick passes."""
        self.group.tick()
        self.ticks += 1
        if self.ticks % IDLE_TICKS == 0:
            self._mark_idle()
            if self.core.role is Role.LEADER:
                self._environment.safety.still_leads(self)

    def step(self, message: Message) -> None:
        """A message arrived."""
        kind, core = message.kind, self.core
        if core.role is Role.LEADER:
            self.heard[message.sender] = self.ticks
        if kind is MessageKind.VOTE or kind is MessageKind.PRE_VOTE:
            safety = self._environment.safety
            if safety.is_foreign_campaign(self, message):
                before = self.core.term
                self.raft.step(message)
                safety.disturbed(self, message, before)
                return
        if message.snapshot is not None and core.log.last_index >= message.snapshot.meta.index:
            self.node.felt(NEEDLESS)
        now = self.node.now_ms() if kind is MessageKind.PROPOSE else 0
        is_newer = message.term > core.term
        self.raft.step(message, now=now)
        if is_newer and core.term < message.term:
            self._environment.safety.ignored_term(self, message)

    def pump(self) -> None:
        """Let the group act on all that came in. Its promises are checked between its rounds
        (`WatchedRaft.ready`), and at the end."""
        for effect in self.group.pump():
            self._perform(effect)
        self._environment.safety.look(self)
        self.writing.flush()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(message):
                self.send(message)
            case Persist(message):
                self.writing.write(message)
            case ReadBack(peer, low, high):
                delay = 100 + int(self._environment.random.random() * 400 * self.node.disk_factor)
                self._environment.loop.after(delay, self.turn, self._fetched, peer, low, high)
            case Applied():
                self.node.applied = max(self.node.applied, self.group.machine.applied)
                self._seal()
                self.node.reach("after apply")
            case TakeSnapshot(record):
                self._take_snapshot(record)
            case RestoreSnapshot(snapshot):
                self._restore(snapshot.meta)
            case Led():
                pass  # `Safety.look` has seen it.
            case NoteLoss():
                self._note_loss()
            case EndAbstention():
                if not self._is_returning:
                    self._is_returning = True
                    self.writing.submit(self.store.end_abstention, self._counts_again)
            case _:
                assert_never(effect)

    def send(self, message: Message) -> None:
        """Send a message to another node, after a look at what it promises."""
        environment = self._environment
        kind = message.kind
        if kind is MessageKind.APPEND_RESPONSE or kind is MessageKind.VOTE_RESPONSE:
            environment.safety.promised(self, message)
        elif kind is MessageKind.VOTE:
            environment.safety.asked(self, message)
        if kind is MessageKind.SNAPSHOT:
            self._send_snapshot(self, message)
        else:
            environment.network.send(message)

    def _fetched(self, peer: int, low: int, high: int) -> None:
        high = min(high, self.cache.last_index() + 1)
        try:
            records = self.store.read(low, high, FETCH_BYTES) if low < high else []
        except (Dropped, OSError):
            records = []
        self._environment.safety.read_back(self.node, records)
        self._environment.counts["fetched"] += 1
        self.group.fetched(peer, records)

    def _take_snapshot(self, record: Record) -> None:
        group = self.group
        meta = group.snapshot_meta(record)
        # The state is encoded now: the machine may go on before the disk thread takes the job.
        state = group.machine.snapshot()
        self._environment.safety.snapshot_taken(self, meta, self.machine)

        def save() -> None:
            self.node.reach("before snapshot")
            self.store.save_snapshot(log_meta(meta), state)

        self.writing.submit(save, self._saved)

    def _restore(self, meta: SnapshotMeta) -> None:
        node = self.node
        self._environment.safety.installing(self, meta)
        machine = restore(self.store.open_snapshot(meta.index).state())
        self.group.replace_machine(self._watched(machine), meta)
        self.machine = machine
        node.applied = max(node.applied, meta.index)
        node.knows_members(meta.index, meta.conf_state)
        self._environment.safety.snapshot_taken(self, meta, machine)
        self._environment.counts["snapshots installed"] += 1

    def _note_loss(self) -> None:
        if not self.node.is_damaged:
            raise Broken("L2", f"node {self.node.id} misses synced records, on a sound disk")
        if self._is_returning:
            return
        self._is_returning = True
        why = f"records after {self.store.last_index} were acknowledged here and are gone"

        # Stop only once the note is on disk: without it the next life would vote.
        def stop(_: object) -> None:
            raise RecordsLost(why)

        self.writing.submit(partial(self.store.note_loss, why), stop)

    def _counts_again(self, _: object) -> None:
        self.raft.end_abstention()
        self.group.abstains = ""
        self._is_returning = False
        environment, node = self._environment, self.node
        environment.counts["members that count again"] += 1
        environment.tell(node.id, "counts again")
        environment.safety.returned(node)
        # The member counts as a copy again if its disk is sound.
        node.is_damaged = not environment.safety.is_sound(node)

    # Storage

    def _persisted(self, messages: list[Message]) -> None:
        """Storage messages are durable."""
        self.is_full = False
        for effect in self.group.persisted(messages):
            self._perform(effect)

    def _met_full_disk(self) -> None:
        """A write waits for space; clients learn that the fate of their records is unknown."""
        self.is_full = True
        self.group.give_up("the disk is full")

    def _saved(self, result: object) -> None:
        # No snapshot was taken: the disk is full, or the border has left the log meanwhile.
        if isinstance(result, DiskFull | Dropped):
            return
        self._environment.counts["snapshots taken"] += 1
        sizes = self.store.segments()
        kept = self._environment.settings.segments_kept
        if len(sizes) > kept:
            low = sizes[-kept].base
            self.writing.submit(partial(self.store.drop_before, low), self._dropped)

    def _dropped(self, start: object) -> None:
        assert isinstance(start, Link)
        self.cache.drop_before(start)
        self.group.index.drop_before(start.index + 1)

    def _seal(self) -> None:
        group = self.group
        while (builder := group.index.sealable(group.machine.applied)) is not None:
            self.writing.submit(partial(self.store.seal, builder), partial(self._sealed, builder))

    def _sealed(self, builder: SegmentBuilder, sealed: object) -> None:
        if isinstance(sealed, SegmentIndex):
            self.group.index.sealed(sealed)
            self._environment.counts["segments sealed"] += 1
        elif not isinstance(sealed, Dropped):
            self.group.index.seal_failed(builder)

    def _mark_idle(self) -> None:
        if self.writing.is_idle and self._marked_passes != self.writing.passes:
            self._marked_passes = self.writing.passes
            self.writing.submit(self.store.mark_idle, lambda _: None)

    # Clients

    def read(self, answer: Callable[[ErrorReply | None], None]) -> None:
        """Begin a linearizable read; `answer` gets None if the machine may be read, or an error."""
        if self.is_leader:
            self.group.read(answer)
        else:
            self.group.read_behind_leader(answer)


def _pumped_anyway(group: Group) -> None:
    """Each turn ends with a pump of the group, whether it is marked or not."""


def open_store(node: Host, settings: Settings) -> tuple[WatchedLog, Recovered]:
    """Open the node's log."""
    log_settings = LogSettings(segment_bytes=settings.segment_bytes)
    identity, mends = Identity("core", node.id, 0), settings.mends
    store, recovered = WatchedLog.open(node.disk, FOLDER, log_settings, identity, mends=mends)
    assert isinstance(store, WatchedLog)
    if recovered.rotten:
        # Only a broker can have its peers mend a sealed segment.
        raise recovered.rotten[0]
    return store, recovered
