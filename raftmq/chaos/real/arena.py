"""The real world as an arena: how faults reach the processes of a run, their links and their disks.

Verbs are plain calls, and much of their work has to wait: for a process to end, for the disk's
daemon to answer. Such work is queued, and done before the fault goes on: `done` does it.

Invariants:
- When a fault was closed and `done` has returned, the fault is over; of a disk whose fault was cut
  short in the middle, after the heal.
"""

import errno
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import trio

from raftmq.chaos.faults import Event, World
from raftmq.chaos.faults.arena import (
    CLIENTS,
    Arena,
    DiskCall,
    Lasting,
    OddAck,
    Pair,
    Skipped,
    Steps,
    WrongClock,
)
from raftmq.chaos.faults.partitions import between
from raftmq.chaos.real.disk.overlay_model import Faults
from raftmq.chaos.real.failpoints import FAILPOINTS, RARE
from raftmq.chaos.real.faults import disk, members
from raftmq.chaos.real.faults.clocks import ClockEffect
from raftmq.chaos.real.faults.hostile import Stranger
from raftmq.chaos.real.network.rules import Kind, Rule
from raftmq.chaos.real.run_state import RunState, leaders_of
from raftmq.chaos.real.waiting import wait_found, wait_true
from raftmq.chaos.real.watch import Watch
from raftmq.consensus import MessageKind

FRAME_SECONDS_MAX = 3.0
"""Time within which a frame must come by that a fault is to hit."""
SLICE_SECONDS = 0.01
"""A slow process runs this long at a time."""
STOP_SECONDS_MAX = 20.0
"""Time within which a process must end after SIGTERM."""
SERVE_SECONDS_MAX = 5.0
"""How long a rolling restart waits for a node before it stops the next one."""
CRASH_SECONDS_MAX = 4.0
"""Time within which a process must reach its failpoint."""
COMMON_FAILPOINTS = tuple(point for point in FAILPOINTS if point not in RARE)
STRIKE_SECONDS = 3.0
"""Time within which a call of the disk must come that a fault is to hit."""
SLOW_CALL_MS = 0.2
"""Delay of a call at level 1; a slow disk delays each call by a multiple."""
DISK_CALLS: Mapping[DiskCall, str] = {"sync": "fsync", "write": "write"}
RESENDS = 5
"""Old batches that each node is sent."""
REPLAYS = 30
"""Most old frames of a direction that one replay sends again."""


class RealArena(Arena):
    """The surroundings of one fault."""

    world = World.REAL
    damages = disk.HARMS.keys()

    def __init__(self, state: RunState, watch: Watch) -> None:
        self.state = state
        self.random = state.random
        self._watch = watch
        self._queue: list[Callable[[], Awaitable[object]]] = []
        self._has_stalled = False

    def later(self, work: Callable[[], Awaitable[object]]) -> None:
        """Queue work; it may raise `Skipped`."""
        self._queue.append(work)

    async def done(self) -> None:
        """Do what was queued. Cancelling leaves the rest queued."""
        while self._queue:
            await self._queue.pop(0)()

    def forget(self) -> None:
        """Forget what was queued and is not done."""
        self._queue.clear()

    @contextmanager
    def task(self, work: Callable[[], Awaitable[object]]) -> Iterator[None]:
        """Run a task until the end of the block."""
        scope, is_over = trio.CancelScope(), trio.Event()

        async def run() -> None:
            try:
                with scope:
                    await work()
            finally:
                # Also if the run itself ends: the undo waits for this, and cannot be cancelled.
                is_over.set()

        self.state.nursery.start_soon(run)
        try:
            yield
        finally:
            scope.cancel()
            self.later(is_over.wait)

    def members(self) -> list[int]:
        """The members' numbers."""
        return self.state.everyone

    def leader(self) -> int:
        """The leader of the first data group when all nodes were last asked; 0: none was seen."""
        leaders = leaders_of(self._watch.statuses)
        return next((leaders[group] for group in sorted(leaders) if group), 0)

    # Links

    @contextmanager
    def rule(
        self,
        kind: Kind,
        pairs: Iterable[Pair] | None = None,
        level: float = 0.0,
        kinds: frozenset[MessageKind] = frozenset(),
    ) -> Iterator[Rule]:
        """Keep a rule of the network; without `pairs` it covers all connections."""
        rule = self.state.rules.add(kind, pairs, level, kinds)
        try:
            yield rule
        finally:
            self.state.rules.remove(rule)

    @contextmanager
    def cut(self, pairs: Iterable[Pair], *, resets: bool = False) -> Iterator[None]:
        """Frames wait until the end, and fill the sender's socket."""
        pairs = set(pairs)
        with self.rule(Kind.BLOCK, pairs):
            if resets:
                self.state.network.break_connections(pairs)
            yield

    def delay(self, ms: float) -> Lasting:
        """Each frame comes later, one in ten four times as late."""
        return self.rule(Kind.DELAY, level=ms)

    def reorder(self, share: float) -> Lasting:
        """A share of the frames waits a little, so that other connections overtake it."""
        return self.rule(Kind.REORDER, level=share)

    def duplicate(self, share: float) -> Lasting:
        """A share of the frames comes a second time, on a connection of its own."""
        return self.rule(Kind.DUPLICATE, level=share)

    def lose(self, share: float) -> Lasting:
        """A share of the frames breaks its connection."""
        return self.rule(Kind.LOSS, level=share)

    def drop(self, kinds: frozenset[MessageKind]) -> Lasting:
        """Frames with messages of these kinds are gone, and the connections stay."""
        if not self.state.network.is_proxy:
            raise Skipped("packets have no kinds")
        return self.rule(Kind.DROP, kinds=kinds)

    def limit(self, pairs: Sequence[Pair], bytes_per_second: float) -> Lasting:
        """Frames wait for their turn."""
        return self.rule(Kind.RATE, pairs, bytes_per_second)

    @contextmanager
    def swallow(self, pairs: Sequence[Pair]) -> Iterator[None]:
        """Frames are gone, and the connections stay until the end."""
        with self.rule(Kind.SWALLOW, pairs):
            try:
                yield
            finally:
                # The streams lack the swallowed frames: no peer can read on.
                self.state.network.break_connections(set(pairs))

    def replay(self, pair: Pair) -> None:
        """Old frames come again: of two nodes to each other, and of clients to both."""
        pairs = [*between(pair[:1], pair[1:]), *((CLIENTS, node) for node in pair)]
        if not sum([self.state.network.repeat_old(flow, REPLAYS) for flow in pairs]):
            raise Skipped("nothing to repeat yet")

    def cut_frame(self, pair: Pair) -> None:
        """Break a connection of two nodes inside a frame."""
        self.later(partial(self._strike, Kind.CUT, pair))

    def corrupt_frame(self, pair: Pair) -> None:
        """Change a bit of a frame between two nodes."""
        self.later(partial(self._strike, Kind.CORRUPT, pair))

    async def _strike(self, kind: Kind, pair: Pair) -> None:
        with self.rule(kind, between(pair[:1], pair[1:])) as rule:
            is_struck = await wait_true(lambda: rule.struck > 0, timeout=FRAME_SECONDS_MAX)
        if not is_struck:
            raise Skipped("no frame came by")

    @contextmanager
    def stranger(self, node: int) -> Iterator[None]:
        """Connections of a stranger to the node's private port, which no rule covers."""
        self.state.running(node)
        with self.task(Stranger(self.state, node).run):
            yield

    # Processes

    def kill(self, node: int, *, down_seconds: float | None = None) -> None:
        """SIGKILL, if the node runs; the operator starts it."""
        if not self.state.nodes.pid(node):
            return
        # A paused process must end without having moved, and `RunState.kill` would resume it.
        self.state.end(node)
        self.state.kill(node, down_seconds=down_seconds)

    def stop(self, node: int) -> None:
        """SIGTERM, if the node runs; a node that does not end in time breaks a promise. The fault
        goes on when the node serves again, if it does so soon."""
        self.later(partial(self._stop, node))

    async def _stop(self, node: int) -> None:
        state = self.state
        state.nodes.resume_quietly(node)
        process = state.nodes.pid(node)
        if not process:
            return
        # The operator must not take the end for a crash, and start the node while it hands over.
        state.down[node] = trio.current_time() + STOP_SECONDS_MAX
        try:
            await state.nodes.stop(node, timeout=STOP_SECONDS_MAX)
            state.note(node, "stopped")
        except TimeoutError:
            if state.nodes.pid(node) == process and state.nodes.is_running(node):
                text = f"node {node} did not end within {STOP_SECONDS_MAX:g} s of SIGTERM"
                state.complain("V3", text)
        state.kill(node, down_seconds=0.1)
        await wait_found(partial(self._serves, node), timeout=SERVE_SECONDS_MAX)

    async def _serves(self, node: int) -> bool:
        return await self.state.nodes.status(node) is not None

    @contextmanager
    def pause(self, node: int) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end."""
        process = self.state.running(node)
        self.state.nodes.pause(node)
        try:
            yield
        finally:
            if self.state.nodes.pid(node) == process:
                self.state.nodes.resume(node)

    @contextmanager
    def slow(self, node: int, times: float) -> Iterator[None]:
        """The process runs for one part in `times` of the time, in short slices."""
        self.state.running(node)
        with self.task(partial(self._throttle, node, times)):
            yield

    async def _throttle(self, node: int, times: float) -> None:
        while True:
            if self.state.nodes.is_running(node):
                with self.pause(node):
                    await trio.sleep(SLICE_SECONDS * (times - 1))
            await trio.sleep(SLICE_SECONDS)

    def stall(self, node: int, seconds: float) -> None:
        """The node's own loop blocks, if the node runs: see `fault_injection`."""
        if not self._has_stalled:
            self.state.running(node)
        elif not self.state.nodes.is_running(node):
            return
        self._has_stalled = True
        number = self.state.nodes.orders(node).stall[0] + 1
        self.state.nodes.order(node, stall=(number, int(seconds * 1000)))

    def crash_at_failpoint(self, node: int) -> None:
        """A node that does not reach the failpoint in time goes on."""
        self.later(partial(self._crash_at_failpoint, node))

    async def _crash_at_failpoint(self, node: int) -> None:
        nodes, process = self.state.nodes, self.state.running(node)
        point, count = self.random.choice(COMMON_FAILPOINTS), self.random.choice([1, 1, 2, 5, 20])
        nodes.order(node, failpoint=f"{point}:{count}")
        try:
            await self._wait_gone(node, process, timeout=CRASH_SECONDS_MAX)
        finally:
            nodes.order(node, failpoint="")
        if nodes.pid(node) == process:
            raise Skipped("the failpoint was not reached")
        self.state.note(node, f"crashed at {point}")
        self.state.counts[f"crash at {point}"] += 1
        self.state.kill(node)

    async def _wait_gone(self, node: int, process: int, *, timeout: float) -> bool:
        """Wait for the end of a node's process; False if it does not end in time."""
        return await wait_true(lambda: self.state.nodes.pid(node) != process, timeout=timeout)

    def power_off(self, nodes: Sequence[int]) -> None:
        """The overlay drops what was not synced; the machines close no connection."""
        self.state.need_overlay()
        self.later(partial(self._power_off, nodes))

    async def _power_off(self, nodes: Sequence[int]) -> None:
        async with self.state.stopped(*nodes, is_dark=True):
            for node in nodes:
                await self._lose_unsynced(node)

    async def _lose_unsynced(self, node: int) -> None:
        """Drop what a machine that is off has not synced."""
        lost = await self.state.nodes.disks.power_loss(node)
        self.state.counts["unsynced bytes at power losses"] += lost["bytes"]
        self.state.counts["unsynced names at power losses"] += lost["names"]

    # Disks

    def refuse(self, node: int, call: DiskCall) -> None:
        """A read is refused at the node's next start: it reads from memory while it runs."""
        if call == "read":
            self.state.need_overlay()
            self.later(partial(self._refuse_at_start, node))
        else:
            self._refuse(node, DISK_CALLS[call], errno.EIO)

    async def _refuse_at_start(self, node: int) -> None:
        await self.state.nodes.disks.refuse(node, "read", errno.EIO)
        self.state.kill(node)

    def interrupt_write(self, node: int) -> None:
        """The call of a write ends with `EINTR`."""
        self._refuse(node, "write", errno.EINTR)

    def _refuse(self, node: int, call: str, error: int) -> None:
        self.state.need_overlay()
        self.state.running(node)
        self.later(partial(self.state.nodes.disks.refuse, node, call, error))
        self.later(partial(trio.sleep, STRIKE_SECONDS))

    def lie(self, node: int) -> None:
        """The node must end at once; then the bytes of the sync are lost."""
        self.state.need_overlay()
        self.later(partial(self._lie, node))

    async def _lie(self, node: int) -> None:
        disks = self.state.nodes.disks
        await self._end_by(node, "nothing was synced", is_lying=True)
        async with self.state.stopped(node):
            self.state.counts["bytes that syncs lied about"] += await disks.evict(node)

    def tear_write(self, node: int) -> None:
        """The process ends inside its next write, and what was not synced is lost."""
        self.state.need_overlay()
        self.later(partial(self._tear_write, node))

    async def _tear_write(self, node: int) -> None:
        process = self.state.running(node)
        await self._end_by(node, "nothing was written", cut_at_write=process)
        async with self.state.stopped(node):
            await self._lose_unsynced(node)

    async def _end_by(self, node: int, why_not: str, **fault: int) -> None:
        """Set a fault of the disk until it has ended the node's process. Raises `Skipped`."""
        process, disks = self.state.running(node), self.state.nodes.disks
        await disks.set(node, **fault)
        is_gone = await self._wait_gone(node, process, timeout=STRIKE_SECONDS)
        # A late call must not end the node when the fault is over.
        await disks.set(node, **_well(fault))
        if not is_gone:
            raise Skipped(why_not)

    def shorten_write(self, node: int) -> None:
        """The overlay takes a part of the next write."""
        self.state.need_overlay()
        self.later(partial(self.state.nodes.disks.set, node, is_short=True))

    def fill(self, node: int, space_bytes: int) -> Lasting:
        """The overlay has no more space."""
        return self._with_disk(node, space_bytes=space_bytes)

    def fill_quota(self, node: int, space_bytes: int) -> Lasting:
        """The overlay has a quota."""
        return self._with_disk(node, quota_bytes=space_bytes)

    def forbid_writes(self, node: int) -> Lasting:
        """The overlay is read only."""
        return self._with_disk(node, is_read_only=True)

    def slow_disk(self, node: int, times: float) -> Lasting:
        """Each call of the overlay is delayed."""
        return self._with_disk(node, delay_ms=SLOW_CALL_MS * times)

    @contextmanager
    def _with_disk(self, node: int, **fault: float) -> Iterator[None]:
        self.state.need_overlay()
        disks = self.state.nodes.disks
        self.later(partial(disks.set, node, **fault))
        try:
            yield
        finally:
            self.later(partial(disks.set, node, **_well(fault)))

    def damage(self, node: int, kind: str) -> None:
        """Done when the other members hold all records of the node: see `faults.disk`."""
        self.later(partial(disk.HARMS[kind], self.state, node))

    def clone(self, node: int, source: int) -> None:
        """The node must refuse the other's files, and gets its own back."""
        self.later(partial(disk.clone, self.state, node, source))

    # Clocks

    @contextmanager
    def distort(self, node: int, effect: WrongClock, level: float) -> Iterator[None]:
        """The node's own clock: see `fault_injection`."""
        wrong = self._order_clock(node, effect, level)
        try:
            yield
        finally:
            left = [other for other in self.state.nodes.orders(node).clocks if other != wrong]
            self.state.nodes.order(node, clocks=left)

    def step_clock(self, node: int, ms: float) -> None:
        """The node's own clock jumps."""
        self._order_clock(node, "step", ms)

    def _order_clock(self, node: int, kind: str, level: float) -> ClockEffect:
        wrong = ClockEffect(kind, level, time.time_ns() // 1_000_000)
        clocks = [*self.state.nodes.orders(node).clocks, wrong]
        self.state.nodes.order(node, clocks=clocks)
        return wrong

    # Members

    def add_member(self) -> None:
        """There is a largest number of members."""
        self.later(partial(members.add_voter, self.state))

    def remove_member(self, node: int) -> None:
        """There is a smallest number of members. Not while a disk is damaged."""
        if self.state.broken:
            raise Skipped("a disk is damaged")
        self.later(partial(members.remove_voter, self.state, node))

    def replace_member(self, node: int) -> None:
        """Not while a disk is damaged."""
        if self.state.broken:
            raise Skipped("a disk is damaged")
        self.later(partial(members.replace, self.state, node))

    @contextmanager
    def drain(self, node: int) -> Iterator[None]:
        """By an administrator's request, and another one at the end."""
        self.later(partial(members.drain, self.state, node, is_on=True))
        try:
            yield
        finally:
            self.later(partial(members.drain, self.state, node, is_on=False))

    def even_out(self) -> None:
        """Not while a disk is damaged."""
        if self.state.broken:
            raise Skipped("a disk is damaged")
        self.later(partial(members.even_out, self.state))

    def bring_back(self, node: int) -> None:
        """The node must do no harm, and ends again soon."""
        self.later(partial(members.rejoin, self.state))

    # Clients

    def crash_client(self) -> None:
        """A producer ends between a send and its answer."""
        self.state.workload.crash_producer()

    def end_consumers(self) -> None:
        """All consumers end."""
        self.state.workload.churn()

    @contextmanager
    def hang_consumers(self) -> Iterator[None]:
        """All consumers stand still."""
        self.state.workload.consumers_stand_still = True
        try:
            yield
        finally:
            self.state.workload.consumers_stand_still = False

    @contextmanager
    def slow_consumers(self) -> Iterator[None]:
        """All consumers need half a second more."""
        self.state.workload.consumer_pause_seconds = 0.5
        try:
            yield
        finally:
            self.state.workload.consumer_pause_seconds = 0.0

    def resend(self) -> None:
        """Each node is sent old batches: the leader must recognize a batch as a repetition."""
        sent = [self.state.network.resend(node) for node in self.members() for _ in range(RESENDS)]
        if not any(sent):
            raise Skipped("nothing was sent yet")

    def ack_oddly(self, how: OddAck) -> None:
        """The next commit of each group."""
        self.state.workload.commit_oddly(how)

    def reset_clients(self) -> None:
        """The connections of all clients to all members break."""
        flows = set(between([CLIENTS], self.members()))
        self.state.network.break_connections(flows)


def _well(fault: Iterable[str]) -> dict[str, object]:
    """The values that these fields of a disk have without faults."""
    return {name: getattr(Faults(), name) for name in fault}


Make = Callable[[RealArena, Event], Steps]
