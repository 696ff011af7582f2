"""One machine: its disk, its clock, its faults, and the process that runs on it most of the time.

    up --kill, power loss, fault--> down --(a second later)--> up
                                      |--recovery refuses--> refused, until it is replaced
                                      `--recovery cuts the log--> up, and abstains

A place (1, 2, 3, ...) is held by one node after the other: a node that replaces another gets an id
of its own, as in the broker (`node_of`).

Invariants:
- A node that refuses its disk, or lost it, never comes back under its id; a node whose log was cut
  counts as damaged until the node holds all its records again.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from raftmq.broker.replica.group import node_of
from raftmq.chaos.core.checks.views import Durable
from raftmq.chaos.core.clock import Clock
from raftmq.chaos.core.disk import CoreDisk
from raftmq.chaos.core.faults.effects import DARK, ENDED, STOOD
from raftmq.chaos.core.replica import Replica
from raftmq.chaos.world.disk import PowerLoss
from raftmq.consensus import ConfState, Message
from raftmq.errors import CorruptRecord
from raftmq.log.faults import LogFault, RotFound, WrongLog
from raftmq.log.record import Record

if TYPE_CHECKING:
    from raftmq.chaos.core.cluster import Cluster

RESTART_US, RESTART_SPREAD_US = 200_000, 1_500_000
"""Pause before an ended process is started again: at least the first, at most both together."""


class Node:
    """One machine. It is state."""

    def __init__(self, number: int, cluster: "Cluster") -> None:
        self.id = number
        self.place = node_of(number)
        """Which of the cluster's machines; the id's low half."""
        self.cluster = cluster
        self.random = Random(f"node {number} {cluster.seed}")
        self.disk = CoreDisk(Random(f"disk {number} {cluster.seed}"))
        self.disk.on_effect = self._felt
        self.durable = Durable()
        self.clock = Clock(cluster.loop)
        self.replica: Replica | None = None
        self.applied = 0
        """Index of the last record applied, in any life."""
        self.conf_state = ConfState()
        """The newest membership that the node applied, in any life."""
        self.conf_index = 0
        """Log index of that membership."""
        self.lives = 0
        self.is_paused = False
        self.stash: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """Calls that came while the process was paused."""
        self.disk_factor = 1.0
        """Factor on the time that a pass or a job of the disk takes."""
        self.apply_ms = 0.0
        """Longest lag of its machine behind the commit index; 0: as the settings say."""
        self.is_damaged = False
        """A fault destroyed something on its disk: the disk does not count as a copy."""
        self.vouched_for: list[Record] = []
        """Records that its log held before the log was cut; empty once the node counts again."""
        self.flipped_indexes: set[str] = set()
        """Names of index files that a fault has damaged at some time."""
        self.refusal = ""
        """Why the node never starts again; empty: it may start."""
        self.is_held_down = False
        """Whether the node must stay down for now."""
        self.failpoint = ""
        """Name of the failpoint where its process ends next; see `Replica.failpoint`."""
        self.loses_power = False
        """Whether a crash takes the machine along, not only the process."""

    @property
    def is_up(self) -> bool:
        """Whether its process runs, perhaps paused."""
        return self.replica is not None

    def knows_members(self, index: int, conf: ConfState) -> None:
        """A membership took effect here, or came with a snapshot at this index."""
        if index > self.conf_index:
            self.conf_index, self.conf_state = index, conf

    def now_ms(self) -> int:
        """The time that its clock shows, in ms since 1970."""
        return self.clock.now_ms()

    # Life

    def start(self) -> None:
        """Start the process, unless it runs or must not."""
        if self.is_up or self.refusal or self.is_held_down:
            return
        cluster = self.cluster
        self.lives += 1
        self._lose_indexes()
        try:
            replica = Replica(self, cluster)
        except PowerLoss:
            self.crash_now()
            return
        except (RotFound, WrongLog, CorruptRecord) as fault:
            self.disk.kill()
            cluster.safety.refused(self, fault)
            self.refuse(str(fault))
            return
        except (LogFault, OSError):
            # A full disk or a failed call may pass: the next start may succeed.
            self._leave_disk(power=False)
            self.start_later()
            return
        self.replica = replica
        cluster.safety.started(replica)
        cluster.counts["starts"] += 1
        cluster.tell(self.id, f"starts, life {self.lives}")
        phase = int(cluster.random.random() * cluster.tick_us)
        cluster.loop.after(phase, self.tick, replica)
        replica.turn(replica.pump)

    def _lose_indexes(self) -> None:
        """Remove a share of the index files: they are derived from a log, so this is no damage."""
        share = self.cluster.settings.index_loss_share
        if share:
            random = Random(f"indexes {self.id} {self.lives} {self.cluster.seed}")
            for path in self.disk.paths():
                if path.endswith(".index") and random.random() < share:
                    self.disk.remove(path)

    def start_later(self, delay_us: int = 0) -> None:
        """Start the process after a while, as a supervisor does."""
        spread = int(self.cluster.random.random() * RESTART_SPREAD_US)
        self.cluster.loop.after(delay_us or RESTART_US + spread, self.start)

    def end(self, *, power: bool) -> None:
        """End the process now; if the machine loses power, unsynced writes are lost or torn."""
        replica = self.replica
        if replica is not None:
            replica.is_gone = True
            self.replica = None
            self._felt(ENDED)
            self.cluster.counts["crashes"] += 1
            self.cluster.tell(self.id, "loses power" if power else "is killed")
        self.is_paused = False
        self.stash.clear()
        self.failpoint = ""
        self.loses_power = False
        self._leave_disk(power=power)

    def _leave_disk(self, *, power: bool) -> None:
        # After a failed sync the system's memory may show data that never reached the disk: only a
        # restart of the machine shows the truth (see *Left out* of `raftmq.log.store`).
        if power or self.disk.has_failed_sync:
            self.disk.power_loss()
            self._felt(DARK)
        else:
            self.disk.kill()

    def counts_again(self) -> None:
        """The member again holds every record that it may have acknowledged, and counts as a copy
        if its disk is sound."""
        self.cluster.counts["members that count again"] += 1
        self.cluster.tell(self.id, "counts again")
        self.cluster.safety.returned(self)
        self.is_damaged = not self.cluster.safety.is_sound(self)

    def crash_now(self) -> None:
        """End the process in the middle of a call, and start the process again later."""
        self.end(power=self.loses_power)
        self.start_later()

    def stopped(self, fault: BaseException) -> None:
        """The process ends by itself, at a fault after which it must not go on."""
        self.cluster.counts["stopped at a fault"] += 1
        self.cluster.tell(self.id, f"stops: {type(fault).__name__}")
        self.end(power=False)
        self.start_later()

    def refuse(self, why: str) -> None:
        """The node never starts under this id again."""
        self.refusal = why
        self.cluster.counts["refused to start"] += 1
        self.cluster.tell(self.id, f"refuses: {why}")

    def _felt(self, effect: str) -> None:
        self.cluster.loop.effects[effect] += 1

    # Events

    def tick(self, replica: Replica) -> None:
        """A tick of one life."""
        if replica.is_gone:
            return
        if self.is_paused:
            self.keep(self.tick, replica)
            return
        cluster = self.cluster
        cluster.loop.after(self.clock.tick_us(cluster.tick_us), self.tick, replica)
        replica.turn(replica.tick)

    def deliver(self, message: Message) -> None:
        """A message has arrived."""
        replica = self.replica
        if replica is None:
            self.cluster.counts["to no process"] += 1
        else:
            replica.turn(replica.step, message)

    def pause(self) -> None:
        """Stand still until `resume`."""
        if self.replica is not None:
            # A busy node has work under way at any moment: a read begins right before the pause.
            self.cluster.clients.read_at(self.replica)
            self.is_paused = True
            self.cluster.tell(self.id, "stands still")

    def keep(self, call: Callable[..., None], *args: object) -> None:
        """Keep a call that comes while the process stands still."""
        self.stash.append((call, args))
        self._felt(STOOD)

    def resume(self) -> None:
        """Go on, and make the calls that came meanwhile."""
        if self.is_paused:
            self.is_paused = False
            self.cluster.tell(self.id, "goes on")
            replica, stash = self.replica, self.stash
            self.stash = []
            if replica is not None and self.random.random() < 0.5:
                # Clients and peers come over different connections: either may be read first.
                stash.sort(key=lambda event: event[0] == replica.step)
            for call, args in stash:
                self.cluster.loop.after(1, self.again, replica, call, args)

    def again(
        self, replica: Replica | None, call: Callable[..., None], args: tuple[object, ...]
    ) -> None:
        """Make a call that came while the process was paused, if the process still lives."""
        if replica is None or replica.is_gone:
            return
        if call == self.tick:
            call(*args)
        else:
            replica.turn(call, *args)
