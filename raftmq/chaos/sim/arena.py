"""The simulated world as an arena: how whole brokers on simulated machines do the verbs of faults.

A cut blocks links between machines: sent data waits and arrives after the cut, as TCP sends it
again.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from raftmq.chaos.faults import Event, World
from raftmq.chaos.faults.arena import (
    CLIENTS,
    Arena,
    DiskCall,
    Lasting,
    OddAck,
    Pair,
    RunningFault,
    Skipped,
    Steps,
    WrongClock,
)
from raftmq.chaos.sim.faults import damage, failpoints, hostile, members, replay
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world.disk import DISK_CALLS, MemoryFiles
from raftmq.chaos.world.link import Strike
from raftmq.chaos.world.process import Process
from raftmq.consensus import MessageKind

SLICE_SECONDS = 0.05
"""A slow process runs once in each slice of this length."""

CLOCK_FIELDS: Mapping[WrongClock, str] = {
    "skew": "skew_ms",
    "drift": "drift",
    "strobe": "strobe_ms",
    "periodic": "swing_ms",
}


class SimArena(Arena):
    """The surroundings of one fault."""

    world = World.SIM
    damages = damage.HARMS.keys()

    def __init__(self, state: RunState, event: Event) -> None:
        self.state = state
        self._event = event
        self.random = state.random

    def members(self) -> list[int]:
        """All nodes that belong to the cluster now."""
        return self.state.members()

    def leader(self) -> int:
        """The leader of the busiest data group that has one, else of the system group; 0: none."""
        return self.state.leader()

    def play(self, steps: Steps) -> RunningFault:
        """A fault that is resumed by the agenda; `go_on` begins it."""
        return RunningFault(steps, self.state.agenda.call_after)

    # Links

    def _hosts(self, party: int) -> list[str]:
        return self.state.clients.hosts() if party == CLIENTS else [self.state.host(party)]

    def _edges(self, pairs: Iterable[Pair]) -> list[tuple[str, str]]:
        return [
            (a, b) for one, other in pairs for a in self._hosts(one) for b in self._hosts(other)
        ]

    @contextmanager
    def cut(self, pairs: Iterable[Pair], *, resets: bool = False) -> Iterator[None]:
        """Data that is sent on a cut link waits until the end, and is then sent again."""
        network, edges = self.state.cluster.network, self._edges(pairs)
        for source, target in edges:
            network.block(source, target)
            for pipe in network.pipes(source, target) if resets else ():
                pipe.connection.reset()
        try:
            yield
        finally:
            for source, target in edges:
                network.unblock(source, target)

    def age(self, pairs: Iterable[Pair], seconds: float) -> None:
        """Let links that are cut seem cut for this long already to the systems of both ends."""
        for source, target in self._edges(pairs):
            self.state.cluster.network.age(source, target, seconds)

    def delay(self, ms: float) -> Lasting:
        """An exponential delay, of which one in twenty is ten times as long."""
        return self._everywhere(delay_seconds=ms / 1000, is_heavy=True)

    def reorder(self, share: float) -> Lasting:
        """A share of the pieces is held up on its connection, so that pieces of others overtake."""
        return self._everywhere(lag_share=share)

    def lose(self, share: float) -> Lasting:
        """A share of the pieces is sent again later, or breaks its connection."""
        return self._everywhere(loss_share=share)

    @contextmanager
    def _everywhere(self, *, is_heavy: bool = False, **amounts: float) -> Iterator[None]:
        network, hosts = self.state.cluster.network, self.state.hosts()
        links = [network.link(a, b) for a in hosts for b in hosts if a != b]
        for link in links:
            link.is_heavy |= is_heavy
            for name, amount in amounts.items():
                setattr(link, name, amount)
        try:
            yield
        finally:
            for link in links:
                for name in amounts:
                    setattr(link, name, 0.0)

    @contextmanager
    def duplicate(self, share: float) -> Iterator[None]:
        """Parts of recorded connections are played again, on connections of their own."""
        running = self.play(self._duplicates(share))
        running.go_on()
        try:
            yield
        finally:
            running.end()

    def _duplicates(self, share: float) -> Steps:
        clients = set(self.state.clients.hosts())
        kinds = (
            lambda source, target: source in clients,
            lambda source, target: source not in clients,
        )
        while True:
            # Links between nodes carry most frames, and clients send each change once: each kind
            # of connection gets half of the replays.
            replay.play_again(self.state, kinds[self.random.random() >= 0.5])
            yield 0.2 / share * self.random.random()

    @contextmanager
    def drop(self, kinds: frozenset[MessageKind]) -> Iterator[None]:
        """Frames of these kinds are taken out of the streams between nodes."""
        taps = self.state.taps
        taps.dropped_kinds |= kinds
        try:
            yield
        finally:
            taps.dropped_kinds -= kinds

    @contextmanager
    def limit(self, pairs: Sequence[Pair], bytes_per_second: float) -> Iterator[None]:
        """Links carry this many bytes a second."""
        links = [self.state.cluster.network.link(a, b) for a, b in self._edges(pairs)]
        for link in links:
            link.rate = bytes_per_second
        try:
            yield
        finally:
            for link in links:
                link.rate = 0.0

    @contextmanager
    def swallow(self, pairs: Sequence[Pair]) -> Iterator[None]:
        """Connections take all data and deliver none."""
        network, edges = self.state.cluster.network, self._edges(pairs)
        for source, target in edges:
            network.swallow(source, target)
        try:
            yield
        finally:
            for source, target in edges:
                network.spit(source, target)

    def replay(self, pair: Pair) -> None:
        """A part of a recorded connection between any nodes is played again."""
        hosts = set(map(self.state.host, self.members()))
        replay.play_again(self.state, lambda source, target: {source, target} <= hosts)

    def cut_frame(self, pair: Pair) -> None:
        """The next piece arrives in part, and the connection breaks."""

        def strike(data: bytes, reset: Callable[[], None]) -> bytes:
            self.state.agenda.call_after(0.001, reset)
            return data[: self.random.randrange(len(data))]

        self._strike(pair, strike)

    def corrupt_frame(self, pair: Pair) -> None:
        """One bit of the next piece is flipped when the piece arrives."""

        def strike(data: bytes, _reset: Callable[[], None]) -> bytes:
            changed = bytearray(data)
            changed[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            return bytes(changed)

        self._strike(pair, strike)

    def _strike(self, pair: Pair, strike: Strike) -> None:
        """Change the next piece from one node to another, and from a client to the latter."""
        source, target = map(self.state.host, pair)
        network = self.state.cluster.network
        network.link(source, target).strikes.append(strike)
        for client in self.state.clients.hosts()[:1]:
            network.link(client, target).strikes.append(strike)

    @contextmanager
    def stranger(self, node: int) -> Iterator[None]:
        """A process on a machine of its own attacks the node, and may stay as a guest of all."""
        stranger = hostile.Stranger(self.state, node)
        self.state.spawn(stranger.run)
        try:
            yield
        finally:
            stranger.leave()

    # Processes

    def kill(self, node: int, *, down_seconds: float | None = None) -> None:
        """No effect on a node that is down, which may start sooner."""
        self.state.kill(node)
        if down_seconds is not None:
            self.state.restart_soon(node, down_seconds)

    def stop(self, node: int) -> None:
        """A node that serves is stopped gracefully, another one is killed."""
        self.state.spawn(self._stop, node)

    async def _stop(self, node: int) -> None:
        running = self.state.cluster.nodes.get(node)
        if node in self.state.cluster.processes and running is not None and running.is_serving:
            await self.state.cluster.stop(node)
        else:
            self.state.kill(node)

    def _process(self, node: int) -> Process:
        process = self.state.cluster.processes.get(node)
        if process is None:
            raise Skipped("the node is down")
        return process

    @contextmanager
    def pause(self, node: int) -> Iterator[None]:
        """A process of a machine that runs on: see `raftmq.chaos.world.process`."""
        process = self._process(node)
        process.freeze()
        try:
            yield
        finally:
            if not process.is_dead:
                process.thaw()

    @contextmanager
    def slow(self, node: int, times: float) -> Iterator[None]:
        """A process runs for a short part of each slice of time."""
        running = self.play(self._slices(node, times))
        running.go_on()
        try:
            yield
        finally:
            running.end()

    def _slices(self, node: int, times: float) -> Steps:
        while True:
            with ExitStack() as paused:
                if node in self.state.cluster.processes:
                    paused.enter_context(self.pause(node))
                yield SLICE_SECONDS * (1 - 1 / times)
            yield SLICE_SECONDS / times

    def stall(self, node: int, seconds: float) -> None:
        """A process stands still, and time passes."""
        if node in self.state.cluster.processes:
            stall = ExitStack()
            stall.enter_context(self.pause(node))
            self.state.agenda.call_after(seconds, stall.close)

    def crash_at_failpoint(self, node: int) -> None:
        """A call of the disk, or a place where the node sends, receives or has applied something;
        the machine may lose power, too."""
        failpoints.set_failpoint(self.state, node)

    def power_off(self, nodes: Sequence[int]) -> None:
        """No effect on a node that is down."""
        for node in nodes:
            self.state.kill(node, power=True)

    # Disks

    def _disk(self, node: int) -> MemoryFiles:
        return self.state.cluster.machines[node].disk

    def refuse(self, node: int, call: DiskCall) -> None:
        """The next call of the kind that logs make."""
        self._disk(node).fail_next(DISK_CALLS[call], errno.EIO)

    def lie(self, node: int) -> None:
        """The next sync fails, the one after it succeeds, and the data is lost."""
        self._disk(node).lie_next()

    def tear_write(self, node: int) -> None:
        """The machine loses power inside the next write."""
        if node in self.state.cluster.processes:
            self.state.lose_power_on_crash(node)
            self._disk(node).crash_at(1)

    def shorten_write(self, node: int) -> None:
        """The next write takes a part of its data, or none: the writer goes on with the rest."""
        self._disk(node).short_next()

    def interrupt_write(self, node: int) -> None:
        """A write that a signal interrupts is a short one."""
        self.shorten_write(node)

    def fill(self, node: int, space_bytes: int) -> Lasting:
        """The disk takes only this much more."""
        return self._filled(node, space_bytes, errno.ENOSPC)

    def fill_quota(self, node: int, space_bytes: int) -> Lasting:
        """As `fill`, with the error of a quota."""
        return self._filled(node, space_bytes, errno.EDQUOT)

    @contextmanager
    def _filled(self, node: int, space_bytes: int, error: int) -> Iterator[None]:
        disk = self._disk(node)
        disk.space, disk.full_errno = disk.used() + space_bytes, error
        try:
            yield
        finally:
            disk.space = None

    @contextmanager
    def forbid_writes(self, node: int) -> Iterator[None]:
        """The disk refuses every change."""
        disk = self._disk(node)
        disk.is_read_only = True
        try:
            yield
        finally:
            disk.is_read_only = False

    @contextmanager
    def slow_disk(self, node: int, times: float) -> Iterator[None]:
        """Every job of the disk takes longer."""
        machine = self.state.cluster.machines[node]
        machine.slowness = times
        try:
            yield
        finally:
            machine.slowness = 1.0

    def damage(self, node: int, kind: str) -> None:
        """The atlas may withhold it: see `damage`."""
        damage.HARMS[kind](self.state, node)

    def clone(self, node: int, source: int) -> None:
        """The atlas may withhold it."""
        damage.clone(self.state, node, source)

    # Clocks

    @contextmanager
    def distort(self, node: int, effect: WrongClock, level: float) -> Iterator[None]:
        """Skews of several faults add up; of the other effects the newest counts."""
        clock, field = self.state.cluster.machines[node].clock, CLOCK_FIELDS[effect]
        before = clock.skew_ms if effect == "skew" else 0.0
        setattr(clock, field, before + level)
        try:
            yield
        finally:
            setattr(clock, field, clock.skew_ms - level if effect == "skew" else 0.0)

    def step_clock(self, node: int, ms: float) -> None:
        """The wall clock of a machine jumps."""
        self.state.cluster.machines[node].clock.skew_ms += ms

    # Members

    def add_member(self) -> None:
        """A node joins."""
        members.add_voter(self.state)

    def promote_learner(self) -> None:
        """Each node that joins learns first, and votes when it has caught up."""
        members.add_voter(self.state)

    def remove_member(self, node: int) -> None:
        """Only if as many sound nodes stay as there were founders, or in a cluster of three."""
        members.remove_voter(self.state, node, at_ms=self._event.at_ms)

    def replace_member(self, node: int) -> None:
        """No effect when the cluster has had as many nodes as it may have."""
        members.replace_node(self.state, node)

    @contextmanager
    def drain(self, node: int) -> Iterator[None]:
        """The end is asked for again until it is granted."""
        members.drain(self.state, node)
        try:
            yield
        finally:
            members.undrain(self.state, node)

    def even_out(self) -> None:
        """No node whose disk is damaged gets another group."""
        members.even_out(self.state)

    def bring_back(self, node: int) -> None:
        """The node must do no harm, and ends again soon."""
        members.rejoin(self.state, node, at_ms=self._event.at_ms)

    # Clients

    def _some_client(self, prefix: str = "") -> str:
        names = [name for name in self.state.clients.names() if name.startswith(prefix)]
        return self.random.choice(names) if names else ""

    def crash_client(self) -> None:
        """One process of a client ends."""
        name = self._some_client()
        if name:
            self.state.clients.kill(name)

    def end_consumers(self) -> None:
        """One consumer ends, and another one takes over."""
        name = self._some_client("consumer")
        if name:
            self.state.clients.kill(name)

    @contextmanager
    def hang_consumers(self) -> Iterator[None]:
        """One consumer stands still."""
        name = self._some_client("consumer")
        if not name:
            raise Skipped("there is no consumer")
        process = self.state.clients.process(name)
        process.freeze()
        try:
            yield
        finally:
            process.thaw()

    @contextmanager
    def slow_consumers(self) -> Iterator[None]:
        """Consumers need a second more for each batch."""
        self.state.clients.slowness += 1.0
        try:
            yield
        finally:
            self.state.clients.slowness -= 1.0

    def resend(self) -> None:
        """Requests arrive again, at the node they were sent to or at another one."""
        clients = set(self.state.clients.hosts())
        replay.play_again(self.state, lambda source, _: source in clients, is_elsewhere=True)

    def ack_oddly(self, how: OddAck) -> None:
        """A consumer repeats its next commit, or commits an older position after a later one."""
        if how == "twice":
            self.state.clients.repeats += 1
        else:
            self.state.clients.late_acks += 1

    def reset_clients(self) -> None:
        """Both ends learn it."""
        hosts = set(self.state.clients.hosts())
        for connection in list(self.state.cluster.network.connections):
            if connection.ends[0] in hosts:
                connection.reset()


Make = Callable[[SimArena, Event], Steps]
