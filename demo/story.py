"""The story in order: start, stream, freeze, kill at 40 %, failover, restart, prove.

| when | what |
|---|---|
| 20 % of the messages are acked | one of the consumers that share a group freezes |
| 40 % of the messages are acked | SIGKILL to the leader of the first queue's partition group |
| 60 % are about to be sent | sending waits for the kill, so that the kill is never missed |
| the killed leader's queues ack again | the node is started again, with the folder it had |
| all are acked or given up | the readers learn where the queues end, and read to there |
| the restarted node has caught up | the replicas' digests are compared |

Left out: faults of the network, the disk or the clock. Every viewer can see a kill.
"""

import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

import raftmq
from raftmq.testing import Cluster, cluster

from .checker import Ledger, Witness
from .flights import flights
from .report import Check, Figures, Report, checks_of
from .roles import QUEUES, TOPIC, Reader, Sender
from .screen import Screen
from .sharing import Sharing

BOARD, GATES, PLANES, WALL = "board", "gates", "planes", "wall"
"""The consumer groups: pull, pop, ordered, broadcast."""
SCREENS = ("wall-1", "wall-2")
"""The instances of the broadcast group."""
FREEZE_AT, KILL_AT, HOLD_AT = 0.2, 0.4, 0.6
"""Shares of the messages: acked when a consumer freezes and when the leader is killed, sent before
that has happened."""
DEMO_SECONDS_MAX = 900.0
READY_SECONDS_MAX = 60.0
RESTART_SECONDS_MAX = 60.0
CATCH_UP_SECONDS_MAX = 60.0
SHOW_SECONDS = 0.1
LOOK_SECONDS = 0.1


@dataclass(slots=True)
class Kill:
    """The kill of a leader."""

    group: int
    """The partition group whose leader is killed."""
    node: int = 0
    """The killed node; 0: none yet."""
    new_leader: int = 0
    """The group's next leader; 0: none yet."""
    seconds: float = 0.0
    """The longest pause between receipts of the group so far."""


async def tell(rows: int, screen: Screen, *, folder: Path | None = None) -> Report:
    """Run the demo with this many messages. `folder` None: a temporary one.

    Cancelling ends every process and removes a temporary folder.

    Raises:
        RaftmqError: the cluster did not get ready, or could not be asked.
        TimeoutError: it all took too long.
    """
    begun = anyio.current_time()
    with anyio.fail_after(DEMO_SECONDS_MAX):
        async with cluster(folder=folder, timeout=READY_SECONDS_MAX) as nodes:
            ready_seconds = anyio.current_time() - begun
            pids = ", ".join(f"{node} is pid {nodes.pid(node)}" for node in nodes.nodes)
            screen.note(f"three nodes are ready: {pids}")
            story = Story(nodes, rows, screen)
            checks = await story.run()
            return Report(story.figures(ready_seconds, anyio.current_time() - begun), checks)


class Story:
    """One run on a cluster that is ready."""

    def __init__(self, nodes: Cluster, rows: int, screen: Screen) -> None:
        self._nodes = nodes
        self._rows = rows
        self._screen = screen
        self._ledger = Ledger(rows)
        self._gates = Sharing(
            Witness(self._ledger, GATES, is_ordered=False), mode="pop", consumers=3
        )
        planes = Sharing(Witness(self._ledger, PLANES), mode="ordered", consumers=2)
        walls = [Reader(Witness(self._ledger, name), broadcast_group=WALL) for name in SCREENS]
        board = Reader(Witness(self._ledger, BOARD))
        self._readers: list[Reader | Sharing] = [board, self._gates, planes, *walls]
        self._kill = Kill(0)
        self._is_killed = anyio.Event()
        self._moved = anyio.Event()
        self._sender: Sender | None = None

    async def run(self) -> list[Check]:
        """Everything between the start of the cluster and its end."""
        async with raftmq.connect(self._nodes.url) as mq:
            await mq.admin.create_topic(TOPIC, queues=QUEUES)
            topic = await mq.admin.describe_topic(TOPIC)
            groups = [queue.partition_group for queue in topic.queues]
            self._kill.group = groups[0]
            self._sender = sender = Sender(self._ledger, groups, self._stir)
            async with self._showing(), anyio.create_task_group() as tasks:
                for reader in self._readers:
                    tasks.start_soon(self._read, reader)
                tasks.start_soon(self._fault, sender)
                await self._send(sender)
                ends = await self._ends(mq)
                for reader in self._readers:
                    reader.finish_at(ends)
            self._screen.note("everything was read; comparing what was read with what was sent")
            return [
                *self._verdicts(sender),
                *await self._books(mq),
                await self._committed(mq),
                await self._agreed(),
            ]

    def figures(self, ready_seconds: float, total_seconds: float) -> Figures:
        """The measured figures."""
        assert self._sender is not None
        ledger, sender = self._ledger, self._sender
        reading = {r.witness.name: r.witness.read / max(r.seconds, 1e-3) for r in self._readers}
        return Figures(
            messages=ledger.sent,
            keyless=ledger.keyless,
            send_per_s=ledger.acked / max(sender.ended - sender.started, 1e-3),
            read_per_s=reading,
            frozen_with=self._gates.frozen_with,
            refused=self._gates.refused,
            failover_seconds=self._kill.seconds,
            killed_node=self._kill.node,
            new_leader=self._kill.new_leader,
            ready_seconds=ready_seconds,
            total_seconds=total_seconds,
            memory_bytes_max=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    async def _send(self, sender: Sender) -> None:
        async with raftmq.connect(self._nodes.url) as mq:
            hold_at = int(self._rows * HOLD_AT)
            await sender.run(mq, flights(self._rows), hold_at=hold_at, hold=self._is_killed)

    async def _read(self, reader: Reader | Sharing) -> None:
        async with raftmq.connect(self._nodes.url) as mq:
            await reader.run(mq)

    async def _fault(self, sender: Sender) -> None:
        """Kill the leader, see the failover through, start the node again."""
        nodes, kill, screen = self._nodes, self._kill, self._screen
        is_frozen = False
        while self._ledger.acked < int(self._rows * KILL_AT):
            if not is_frozen and self._ledger.acked >= int(self._rows * FREEZE_AT):
                is_frozen = True
                self._gates.freeze()
                screen.note("one of the three consumers of `gates` freezes", style="bold red")
            if sender.errors:
                # The run went wrong before any fault: let the verdict say so.
                self._is_killed.set()
                return
            await self._moved.wait()
        kill.node = await nodes.leader(kill.group)
        sender.times.fault_group = kill.group
        sender.times.fault_at = anyio.current_time()
        nodes.kill(kill.node)
        self._is_killed.set()
        screen.note(
            f"SIGKILL to node {kill.node}, leader of partition group {kill.group}, "
            f"after {self._ledger.acked:,} receipts",
            style="bold red",
        )
        kill.new_leader = await nodes.leader(kill.group)
        # Receipts that were on their way at the moment of the kill are no sign of recovery.
        before = sender.times.counts.get(kill.group, 0)
        while sender.times.counts.get(kill.group, 0) == before and not sender.errors:
            await self._moved.wait()
        kill.seconds = seconds = sender.times.pause_seconds
        text = f"node {kill.new_leader} leads group {kill.group}: receipts again after"
        screen.note(f"{text} {seconds:.2f} s", style="bold green")
        await nodes.restart(kill.node, timeout=RESTART_SECONDS_MAX)
        screen.note(f"node {kill.node} was started again (pid {nodes.pid(kill.node)})")

    async def _ends(self, mq: raftmq.Client) -> dict[int, int]:
        return await mq.admin.find_offsets(TOPIC, "latest")

    def _verdicts(self, sender: Sender) -> list[Check]:
        for reader in self._readers:
            reader.witness.finish()
        troubles = [f"{r.witness.name}: {r.trouble}" for r in self._readers if r.trouble]
        checks = checks_of(self._ledger, sender.errors, [r.witness for r in self._readers])
        return [
            *checks,
            Check("all reached the queues' ends", "", len(troubles), troubles),
        ]

    async def _books(self, mq: raftmq.Client) -> list[Check]:
        """The brokers' backlogs of the sharing groups: every message is acked."""
        total = sum((await self._ends(mq)).values())
        checks = []
        for name in (GATES, PLANES):
            backlogs = await mq.admin.backlogs(topic=TOPIC, group=name)
            acked = sum(backlog.acked for backlog in backlogs)
            wrong = [] if acked == total else [f"{name}: {acked:,} of {total:,} are acked"]
            checks.append(Check("the broker's books: all is acked", name, total - acked, wrong))
        return checks

    async def _committed(self, mq: raftmq.Client) -> Check:
        """The pull group's committed offsets are the ends of the queues."""
        ends = await self._ends(mq)
        group = await mq.admin.describe_group(BOARD)
        committed = {offset.queue: offset.committed or 0 for offset in group.offsets}
        # A queue without messages needs no commit.
        wrong = [
            f"{BOARD}: queue {queue} ends at {end}, committed {committed.get(queue)}"
            for queue, end in ends.items()
            if committed.get(queue, 0) != end
        ]
        return Check("committed offsets are the ends", BOARD, len(wrong), wrong[:3])

    async def _agreed(self) -> Check:
        """Each node, the restarted one too, holds the same state of each partition group."""
        promise = "the three replicas agree"
        wrong = ["not asked"]
        with anyio.move_on_after(CATCH_UP_SECONDS_MAX):
            while wrong:
                wrong = disagreements(await self._nodes.statuses(), self._nodes.nodes)
                if wrong:
                    await anyio.sleep(LOOK_SECONDS)
        return Check(promise, "", len(wrong), wrong[:3])

    @asynccontextmanager
    async def _showing(self) -> AsyncIterator[None]:
        """Keep the screen up to date."""

        def show() -> None:
            read = {reader.witness.name: reader.witness.read for reader in self._readers}
            self._screen.show(self._ledger.acked, read)

        async def keep_showing() -> None:
            while True:
                show()
                await anyio.sleep(SHOW_SECONDS)

        names = [reader.witness.name for reader in self._readers]
        with self._screen.progress(self._rows, names):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keep_showing)
                yield
                tasks.cancel_scope.cancel()
            show()

    def _stir(self) -> None:
        """After an ack: wake the tasks that wait for acks."""
        moved, self._moved = self._moved, anyio.Event()
        moved.set()


def disagreements(statuses: dict[int, dict[str, Any]], nodes: list[int]) -> list[str]:
    """Differences between the nodes' replicas in applied index or digest, by partition group."""
    wrong = [f"node {node} does not answer" for node in nodes if node not in statuses]
    seen: dict[int, set[tuple[int, str]]] = {}
    for status in statuses.values():
        for group in status["groups"]:
            seen.setdefault(group["group"], set()).add((group["applied"], str(group["digest"])))
    for number, states in sorted(seen.items()):
        if len(states) > 1:
            wrong.append(f"group {number}: (applied, digest) {sorted(states)}")
    return wrong
