"""One machine: its disk, its clock, its faults, and the process that runs on it most of the time.

    up --kill, power loss, fault--> down --(a second later)--> up
                                      |--recovery refuses--> refused, until it is replaced
                                      `--recovery cuts the log--> up, and abstains

A place (1, 2, 3, ...) is taken by one node after the other: who replaces a node gets an id of its
own, as the broker does it (`node_of`).

Invariants:
- A node that refuses its disk, or lost it, never comes back under its id; one whose log was cut
  counts as damaged until it holds all again.
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
"""A process that ended is started again after the first to both together."""


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
        """The newest membership that it applied, in any life."""
        self.conf_index = 0
        """Where that stands in the log."""
        self.lives = 0
        self.is_paused = False
        self.stash: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """What happened to it while it was paused."""
        self.disk_factor = 1.0
        """How much longer the disk takes."""
        self.apply_ms = 0.0
        """Longest lag of its machine behind the commit index."""
        self.is_damaged = False
        """A fault destroyed something of its disk: it counts as no copy any more."""
        self.vouched_for: list[Record] = []
        """Records of its log before it was cut; empty once it counts again."""
        self.flipped_indexes: set[str] = set()
        """Names of index files that a fault has damaged at some time."""
        self.refusal = ""
        """Why it does not start any more; empty: it does."""
        self.is_held_down = False
        """Whether it is to stay dead for now."""
        self.crash_point = ""
        """Where its process ends next; see `Replica.point`."""
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
        """What its clock shows."""
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
            # Space or the device may be better next time.
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
        """What is derived from a log may be gone at any start, which is no damage."""
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
        """The process ends now; with the power, what was not synced is lost or torn."""
        replica = self.replica
        if replica is not None:
            replica.is_gone = True
            self.replica = None
            self._felt(ENDED)
            self.cluster.counts["crashes"] += 1
            self.cluster.tell(self.id, "loses power" if power else "is killed")
        self.is_paused = False
        self.stash.clear()
        self.crash_point = ""
        self.loses_power = False
        self._leave_disk(power=power)

    def _leave_disk(self, *, power: bool) -> None:
        # After a failed sync nobody knows what is on the disk: only a restart of the machine tells
        # (see *Left out* of `raftmq.log.store`).
        if power or self.disk.has_failed_sync:
            self.disk.power_loss()
            self._felt(DARK)
        else:
            self.disk.kill()

    def counts_again(self) -> None:
        """Its member holds all that it may have held: if its disk is sound, it is a copy again."""
        self.cluster.counts["members that count again"] += 1
        self.cluster.tell(self.id, "counts again")
        self.cluster.safety.returned(self)
        self.is_damaged = not self.cluster.safety.is_sound(self)

    def crash_now(self) -> None:
        """The process ends in the middle of what it does; it is started again later."""
        self.end(power=self.loses_power)
        self.start_later()

    def stopped(self, fault: BaseException) -> None:
        """The process ends by itself, at a fault that it must not live on with."""
        self.cluster.counts["stopped at a fault"] += 1
        self.cluster.tell(self.id, f"stops: {type(fault).__name__}")
        self.end(power=False)
        self.start_later()

    def refuse(self, why: str) -> None:
        """It will not start under this id again."""
        self.refusal = why
        self.cluster.counts["refused to start"] += 1
        self.cluster.tell(self.id, f"refuses: {why}")

    def _felt(self, effect: str) -> None:
        self.cluster.loop.effects[effect] += 1

    # What happens to it

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
            self.cluster.counts["to nobody"] += 1
        else:
            replica.turn(replica.step, message)

    def pause(self) -> None:
        """Stand still."""
        if self.is_up:
            self.is_paused = True
            self.cluster.tell(self.id, "stands still")

    def keep(self, call: Callable[..., None], *args: object) -> None:
        """Something happens to it while it stands still."""
        self.stash.append((call, args))
        self._felt(STOOD)

    def resume(self) -> None:
        """Go on, with all that has happened meanwhile."""
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
        """Something that happened while it was paused."""
        if replica is None or replica.is_gone:
            return
        if call == self.tick:
            call(*args)
        else:
            replica.turn(call, *args)
