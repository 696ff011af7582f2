"""The machine that a process runs on, as the process and the checks see it: disk, clock, faults.

A host outlives its processes: it knows what was synced, what was applied in any life, and what the
faults of the moment ask of the process. `Node` is a host that starts and ends its process.

Invariants:
- A host knows nothing of the process that runs on it.
"""

from collections.abc import Callable
from random import Random

from raftmq.broker.replica.group import node_of
from raftmq.chaos.core.checks.views import Durable
from raftmq.chaos.core.clock import Clock
from raftmq.chaos.core.disk import CoreDisk
from raftmq.chaos.core.faults.effects import STOOD, STOPPED
from raftmq.chaos.core.loop import Loop
from raftmq.chaos.world.disk import PowerLoss
from raftmq.consensus import ConfState
from raftmq.log.record import Record


class Host:
    """One machine without its process. It is state."""

    def __init__(self, number: int, seed: int, loop: Loop) -> None:
        self.id = number
        self.place = node_of(number)
        """Which of the cluster's machines; the id's low half."""
        self._loop = loop
        self.random = Random(f"node {number} {seed}")
        self.disk = CoreDisk(Random(f"disk {number} {seed}"))
        self.disk.on_effect = self.felt
        self.durable = Durable()
        self.clock = Clock(loop)
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
        self.failpoint = ""
        """Name of the failpoint where its process ends next; see `reach`."""
        self.loses_power = False
        """Whether a crash takes the machine along, not only the process."""

    def knows_members(self, index: int, conf: ConfState) -> None:
        """A membership took effect here, or came with a snapshot at this index."""
        if index > self.conf_index:
            self.conf_index, self.conf_state = index, conf

    def now_ms(self) -> int:
        """The time that its clock shows, in ms since 1970."""
        return self.clock.now_ms()

    def felt(self, effect: str) -> None:
        """A fault has an effect here: count the effect."""
        self._loop.effects[effect] += 1

    def keep(self, call: Callable[..., None], *args: object) -> None:
        """Keep a call that comes while the process stands still."""
        self.stash.append((call, args))
        self.felt(STOOD)

    def reach(self, name: str) -> None:
        """The process is at a named place of the code, where a fault may end the process.

        Raises:
            PowerLoss: a fault does.
        """
        if self.failpoint == name:
            self.felt(STOPPED)
            raise PowerLoss(name)
