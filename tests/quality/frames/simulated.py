"""An attack on a node in a simulated world: the same seed gives the same run.

The node is the broker's own; network, disk and clock are simulated, and a certificate is a name.
What a frame costs is measured in the node's handler for the frame, in each settling, and in each
step of a task that is not the attacker's: as processor time of this thread, to within some
milliseconds above.

The collector of cycles runs between bursts alone, so that its work counts for no frame.
"""

import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from raftmq.broker.node import Node
from raftmq.broker.serve.connection import Connection
from raftmq.chaos.sim.cluster import CLUSTER, PORT, Cluster
from raftmq.chaos.world import agenda
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.process import Machine, Process
from raftmq.tls.local_cluster import ADMIN
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind, Metadata

from .attack import Attack, Outcome, told
from .stage import Opens, Peer, plant

STALL_SECONDS = 0.05
"""The loop may be held no longer."""
MARK_SECONDS = 0.005
WORST = 5
"""Number of frames kept that took most."""
SLICE_FRAMES = 1000
"""After so many frames the node is looked at."""
SETTLE_SECONDS = 70.0
"""After so long nothing waits for a connection that is gone."""
IDLE_RECORDS_MAX = 1000
"""Records that an idle node writes in that time, far more than its upkeep needs."""


@dataclass(eq=False)
class Meter(trio.abc.Instrument):
    """What the node's work costs, in seconds of processor time."""

    worst: list[tuple[float, str]] = field(default_factory=list)
    """The frames that took most, with what they are."""
    handled: int = 0
    """Frames that reached the node's handler."""
    longest_step: float = 0.0
    steps: list[str] = field(default_factory=list)
    """Steps that held the loop for too long."""
    _begun: tuple[float, float] = (0.0, 0.0)
    own: trio.lowlevel.Task | None = None
    """The attacker's task."""
    context: Callable[[], str] = lambda: ""
    """What the attacker did last, for a finding."""
    # Both clocks at a moment a while ago. Reading the processor's takes 60 us on some machines.
    _mark: tuple[float, float] = (0.0, 0.0)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """As trio says."""
        self._begun = self._begin()

    def _begin(self) -> tuple[float, float]:
        """The beginning of a piece of work: now, and the processor time of a moment before."""
        now = time.perf_counter()
        if now - self._mark[0] > MARK_SECONDS:
            self._mark = now, time.thread_time()
        return now, self._mark[1]

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """As trio says."""
        if task is not self.own:
            self.note_step(self._begun, task.name)

    def note_step(self, begun: tuple[float, float], name: str) -> None:
        """Note a step of the node, which ends now."""
        seconds = time.perf_counter() - begun[0]
        if seconds <= self.longest_step and seconds <= STALL_SECONDS:
            return
        seconds = min(seconds, time.thread_time() - begun[1])
        self.longest_step = max(self.longest_step, seconds)
        if seconds > STALL_SECONDS:
            self.steps.append(f"{seconds * 1000:.0f} ms in {name}, after {self.context()}")

    def watch(self, node: Node) -> None:
        """Measure what a node does with each frame."""
        handle, settle = node.handle, node.settle

        def measured(connection: Connection, frame: Frame) -> None:
            begun = self._begin()
            try:
                handle(connection, frame)
            finally:
                self._note_frame(begun, frame)

        def settled() -> None:
            begun = self._begin()
            settle()
            self.note_step(begun, "settle")

        vars(node).update(handle=measured, settle=settled)

    def _note_frame(self, begun: tuple[float, float], frame: Frame) -> None:
        self.handled += 1
        seconds = time.perf_counter() - begun[0]
        if len(self.worst) < WORST or seconds > self.worst[-1][0]:
            seconds = min(seconds, time.thread_time() - begun[1])
            text = f"kind {frame.kind}, {len(frame.header)} + {len(frame.body)} bytes"
            self.worst = sorted([*self.worst, (seconds, text)], reverse=True)[:WORST]


def opens_of(cluster: Cluster) -> Opens:
    """Opens connections to the only node of a simulated cluster."""

    @asynccontextmanager
    async def opens(user: str) -> AsyncIterator[trio.abc.Stream]:
        machine = Machine("attacker", cluster.agenda, MemoryFiles())
        process = Process(machine, cluster.agenda, seed=0)
        if user:
            process.names = frozenset((CertificateName(CLUSTER, USER, user),))
        async with await cluster.network.connect(process, "node1", PORT) as stream:
            yield stream

    return opens


def play(user: str, seed: int, frames: int) -> tuple[Outcome, Meter]:
    """Attack a new cluster."""
    meter = Meter()
    gc.collect()
    gc.disable()
    # The collections between bursts leave out all that was there before.
    gc.freeze()
    try:
        outcome = agenda.run(_play, user, seed, frames, meter, seed=seed)
    finally:
        gc.unfreeze()
        gc.enable()
    outcome.findings += meter.steps
    return outcome, meter


async def _play(user: str, seed: int, frames: int, meter: Meter) -> Outcome:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery, size=1, seed=seed)
        cluster.network.is_under_tls = True
        await cluster.found()
        opens = opens_of(cluster)
        things = await plant(opens)
        random = Random(f"frames {user} {seed}")
        attack = Attack(opens, things, user, random)
        meter.context = lambda: "; ".join(told(sent) for sent in attack.last)
        meter.watch(cluster.nodes[1])
        meter.own = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(meter)
        while attack.outcome.frames < frames and not attack.outcome.findings:
            await attack.run(min(attack.outcome.frames + SLICE_FRAMES, frames))
            gc.collect()
            _look(cluster, attack)
        trio.lowlevel.remove_instrument(meter)
        if 1 in cluster.nodes:
            await _look_at_the_end(cluster, opens, attack.outcome)
        nursery.cancel_scope.cancel()
    return attack.outcome


def _look(cluster: Cluster, attack: Attack) -> None:
    if 1 not in cluster.nodes:
        why: Any = cluster.broken.get(1) or cluster.stopped.get(1)
        burst = "\n".join(map(told, attack.last))
        attack.outcome.find(f"the node ended: {why}\nafter one of\n{burst}")


async def _look_at_the_end(cluster: Cluster, opens: Opens, outcome: Outcome) -> None:
    """Others are served, and nothing of the attacker is left."""
    with trio.move_on_after(SETTLE_SECONDS) as scope:
        async with opens(ADMIN) as stream:
            peer = Peer(stream)
            await peer.greet()
            await peer.ask(FrameKind.METADATA, Metadata([]))
    if scope.cancelled_caught:
        outcome.find("a bystander is not served")
    node = cluster.nodes[1]
    before = sum(group.raft.status().last_index for group in node.groups.values())
    await trio.sleep(SETTLE_SECONDS)
    written = sum(group.raft.status().last_index for group in node.groups.values()) - before
    if written > IDLE_RECORDS_MAX:
        outcome.find(f"{written} records were written for nobody in {SETTLE_SECONDS:.0f} s")
    load = node.load
    if load.connections or load.request_bytes:
        outcome.find(f"{load.connections} connections and {load.request_bytes} bytes are left")
    gc.collect()
    left = sum(type(each) is Connection for each in gc.get_objects())
    if left:
        outcome.find(f"{left} connections are still in memory")
