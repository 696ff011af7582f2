"""A cluster of whole brokers in a made-up world."""

from collections.abc import Callable
from itertools import count
from random import Random

import trio

from raftmq.broker.node import Node, NodeStopped
from raftmq.broker.settings import Limits, Log, NodeSettings, Peer, Raft, Settings
from raftmq.chaos.world.disk import Disk
from raftmq.chaos.world.made_up import MadeUpWorld
from raftmq.chaos.world.network import Network


class Cluster:
    """Nodes 1 to n of one cluster, each in a world of its own on a shared network."""

    def __init__(self, nursery: trio.Nursery, *, size: int = 3, seed: int = 0) -> None:
        self._nursery = nursery
        self._seed = seed
        self.network = Network()
        self.peers = [Peer(n, f"node{n}", 7400) for n in range(1, size + 1)]
        self.files = {peer.id: Disk(Random(seed)) for peer in self.peers}
        self.worlds: dict[int, MadeUpWorld] = {}
        self.nodes: dict[int, Node] = {}
        self.stopped: dict[int, NodeStopped] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self.log = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0)
        self._starts = count()

    def settings(self, number: int) -> Settings:
        """A node's settings."""
        own = Peer(number, f"node{number}", 7400)
        is_founder = own in self.peers
        node = NodeSettings(
            number,
            "test",
            "/data",
            own.host,
            own.port,
            peers=self.peers if is_founder else [],
            join=[] if is_founder else self.peers[:1],
        )
        return Settings(node, Raft(tick_ms=50), self.log, Limits()).validate()

    async def start(self, *numbers: int) -> None:
        """Start nodes, all if none is named, and wait until they serve."""
        chosen = numbers or tuple(peer.id for peer in self.peers)
        async with trio.open_nursery() as starting:
            for number in chosen:
                starting.start_soon(self._start, number)

    async def _start(self, number: int) -> None:
        seed = self._seed * 1000 + next(self._starts)
        self.files.setdefault(number, Disk(Random(seed)))
        world = MadeUpWorld(self.network, self.files[number], seed=seed)
        self.worlds[number] = world
        self.nodes[number] = Node(self.settings(number), world)
        await self._nursery.start(self._live, number)

    async def _live(self, number: int, task_status: trio.TaskStatus[None]) -> None:
        is_started = False

        class Started:
            """Notes that the node serves, so that a node that gives up earlier is noticed too."""

            def started(self, value: None = None) -> None:
                nonlocal is_started
                is_started = True
                task_status.started()

        with trio.CancelScope() as scope:
            self._scopes[number] = scope
            try:
                await self.nodes[number].run(task_status=Started())
            except NodeStopped as stopped:
                self.stopped[number] = stopped
                self.nodes.pop(number, None)
                self.files[number].kill()
                if not is_started:
                    task_status.started()
        self._scopes.pop(number, None)

    def kill(self, number: int, *, power: bool = False) -> None:
        """Stop a node at once: the process crashes, or its machine loses power."""
        self._scopes.pop(number).cancel()
        del self.nodes[number]
        if power:
            self.files[number].power_loss()
        else:
            self.files[number].kill()

    def wipe(self, number: int) -> None:
        """Give a node that is down an empty disk."""
        self.files[number] = Disk(Random(self._seed))

    async def stop(self, number: int) -> None:
        """Stop a node gracefully."""
        self.nodes[number].stop()
        await self.wait_until(lambda: number not in self._scopes)
        del self.nodes[number]

    def leader(self, group: int) -> int:
        """The node that leads a partition group; 0: none."""
        leading = [
            (node.groups[group].raft.term, number)
            for number, node in self.nodes.items()
            if group in node.groups and node.groups[group].is_leader
        ]
        return max(leading)[1] if leading else 0

    async def found(self) -> None:
        """Start all nodes and wait until the cluster is founded and each node leads a group."""
        await self.start()
        await self.wait_led(0)
        await self.wait_until(lambda: self.nodes[self.leader(0)].catalog.is_bootstrapped)
        # Each node shall lead one data group: wait until the leadership has been handed round.
        await self.wait_until(lambda: [self.leader(group) for group in (1, 2, 3)] == [1, 2, 3])

    async def wait_known(self, topic: str) -> None:
        """Wait until every node that runs knows a topic."""
        await self.wait_until(
            lambda: all(topic in node.catalog.topics for node in self.nodes.values())
        )

    def leader_of(self, queue: int) -> int:
        """The node that leads a queue's partition group."""
        node = next(iter(self.nodes.values()))
        group = node.catalog.group_of(queue)
        assert group is not None
        return self.leader(group)

    async def wait_until(self, holds: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until something is so."""
        with trio.fail_after(seconds):
            # Under a made-up clock, looking again after a sleep costs nothing.
            while not holds():  # noqa: ASYNC110
                await trio.sleep(0.01)

    def members(self, group: int) -> set[int]:
        """The voters of a partition group, as its leader sees them; none if nobody leads."""
        leader = self.leader(group)
        return set(self.nodes[leader].groups[group].conf_state.voters) if leader else set()

    async def wait_led(self, *groups: int) -> None:
        """Wait until all these groups have a leader."""
        await self.wait_until(lambda: all(self.leader(group) for group in groups))
