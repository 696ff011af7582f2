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

from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.faults.effects import DARK, ENDED
from raftmq.chaos.core.host import Host
from raftmq.chaos.core.replica.replica import Replica
from raftmq.chaos.world.disk import PowerLoss
from raftmq.consensus import Message
from raftmq.errors import CorruptRecord
from raftmq.log.faults import LogFault, RotFound, WrongLog

RESTART_US, RESTART_SPREAD_US = 200_000, 1_500_000
"""Pause before an ended process is started again: at least the first, at most both together."""


class Node(Host):
    """One machine and its process. It is state."""

    def __init__(
        self,
        number: int,
        environment: Environment,
        *,
        send_snapshot: Callable[[Replica, Message], None],
        before_pause: Callable[[Replica], None],
    ) -> None:
        """`before_pause` gets the process that is about to stand still; for `send_snapshot` see
        `Replica`."""
        super().__init__(number, environment.seed, environment.loop)
        self._environment = environment
        self._send_snapshot = send_snapshot
        self._before_pause = before_pause
        self.replica: Replica | None = None
        self.flipped_indexes: set[str] = set()
        """Names of index files that a fault has damaged at some time."""
        self.refusal = ""
        """Why the node never starts again; empty: it may start."""
        self.is_held_down = False
        """Whether the node must stay down for now."""

    @property
    def is_up(self) -> bool:
        """Whether its process runs, perhaps paused."""
        return self.replica is not None

    # Life

    def start(self) -> None:
        """Start the process, unless it runs or must not."""
        if self.is_up or self.refusal or self.is_held_down:
            return
        environment = self._environment
        self.lives += 1
        self._lose_indexes()
        try:
            replica = Replica(
                self, environment, ends=self._ended_by, send_snapshot=self._send_snapshot
            )
        except PowerLoss:
            self._crash_now()
            return
        except (RotFound, WrongLog, CorruptRecord) as fault:
            self.disk.kill()
            environment.safety.refused(self, fault)
            self.refuse(str(fault))
            return
        except (LogFault, OSError):
            # A full disk or a failed call may pass: the next start may succeed.
            self._leave_disk(power=False)
            self.start_later()
            return
        self.replica = replica
        environment.safety.started(replica)
        environment.counts["starts"] += 1
        environment.tell(self.id, f"starts, life {self.lives}")
        phase = int(environment.random.random() * environment.settings.tick_us)
        environment.loop.after(phase, self.tick, replica)
        replica.turn(replica.pump)

    def _lose_indexes(self) -> None:
        """Remove a share of the index files: they are derived from a log, so this is no damage."""
        share = self._environment.settings.index_loss_share
        if share:
            random = Random(f"indexes {self.id} {self.lives} {self._environment.seed}")
            for path in self.disk.paths():
                if path.endswith(".index") and random.random() < share:
                    self.disk.remove(path)

    def start_later(self, delay_us: int = 0) -> None:
        """Start the process after a while, as a supervisor does."""
        spread = int(self._environment.random.random() * RESTART_SPREAD_US)
        self._environment.loop.after(delay_us or RESTART_US + spread, self.start)

    def end(self, *, power: bool) -> None:
        """End the process now; if the machine loses power, unsynced writes are lost or torn."""
        replica = self.replica
        if replica is not None:
            replica.is_gone = True
            self.replica = None
            self.felt(ENDED)
            self._environment.counts["crashes"] += 1
            self._environment.tell(self.id, "loses power" if power else "is killed")
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
            self.felt(DARK)
        else:
            self.disk.kill()

    def _ended_by(self, fault: BaseException) -> None:
        """The process ends at a fault after which it must not go on."""
        if isinstance(fault, PowerLoss):
            self._crash_now()
        elif isinstance(fault, AssertionError):
            self.end(power=False)
            self.refuse(str(fault))
        else:
            self._environment.counts["stopped at a fault"] += 1
            self._environment.tell(self.id, f"stops: {type(fault).__name__}")
            self.end(power=False)
            self.start_later()

    def _crash_now(self) -> None:
        """End the process in the middle of a call, and start the process again later."""
        self.end(power=self.loses_power)
        self.start_later()

    def refuse(self, why: str) -> None:
        """The node never starts under this id again."""
        self.refusal = why
        self._environment.counts["refused to start"] += 1
        self._environment.tell(self.id, f"refuses: {why}")

    # Events

    def tick(self, replica: Replica) -> None:
        """A tick of one life."""
        if replica.is_gone:
            return
        if self.is_paused:
            self.keep(self.tick, replica)
            return
        environment = self._environment
        tick_us = self.clock.tick_us(environment.settings.tick_us)
        environment.loop.after(tick_us, self.tick, replica)
        replica.turn(replica.tick)

    def deliver(self, message: Message) -> None:
        """A message has arrived."""
        replica = self.replica
        if replica is None:
            self._environment.counts["to no process"] += 1
        else:
            replica.turn(replica.step, message)

    def pause(self) -> None:
        """Stand still until `resume`."""
        if self.replica is not None:
            # A busy node has work under way at any moment: a read begins right before the pause.
            self._before_pause(self.replica)
            self.is_paused = True
            self._environment.tell(self.id, "stands still")

    def resume(self) -> None:
        """Go on, and make the calls that came meanwhile."""
        if self.is_paused:
            self.is_paused = False
            self._environment.tell(self.id, "goes on")
            replica, stash = self.replica, self.stash
            self.stash = []
            if replica is not None and self.random.random() < 0.5:
                # Clients and peers come over different connections: either may be read first.
                stash.sort(key=lambda event: event[0] == replica.step)
            for call, args in stash:
                self._environment.loop.after(1, self.again, replica, call, args)

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
