"""The cost of slow and dead members and readers: rate and memory of the other nodes meanwhile.

One node leads no group, and is the follower of every case. It is paused (SIGSTOP), slowed (paused
for most of each tenth of a second), killed, and let catch up. Readers are of two kinds: connections
that ask for megabytes and never read an answer, and a consumer far behind, which reads messages
that only the disk has, a few at a time. A healthy window precedes each window of a case.

The nodes of this cluster share the processors of one machine: a paused follower leaves its share to
the others, so a ratio above 1 is no merit. A follower that catches up takes a larger share, and so
does reading for the connections that ask: these two cases have no target.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import NamedTuple

import trio

import raftmq
from raftmq.client import TopicDescription

from .loads import BATCH, CONNECT_SECONDS_MAX, SIZE, TOPIC, Load, create_topic
from .nodes import VERSION, Nodes
from .outcome import Outcome, Window, middle
from .probe import Probe, Reading, applied_indexes

MESSAGES = 6_000_000
"""Messages stored before the cases: three times what the caches hold."""
QUEUES = 6
FOLLOWER = 3
LEADERS = (1, 2)
LEAST_RATIO = 0.9
ROUNDS_MAX = 3
LONG_WINDOWS = 6
"""Length of a window in which memory is watched, in windows."""
DRIFT_MIB_MAX = 16.0
"""Most growth of memory in the second half of a long window."""
RUN_SECONDS, PAUSE_SECONDS = 0.01, 0.09
CAUGHT_UP_SECONDS_MAX = 60.0
STUCK_READERS = 4
STUCK_FETCHES = 100
STUCK_FETCH_BYTES = 1 << 20
BEHIND_MESSAGES = 1_000
BEHIND_PAUSE_SECONDS = 0.05
SETTINGS = f"3 nodes, 3 partition groups on 2 leaders, {QUEUES} queues, batches of {BATCH}"


class _Cluster(NamedTuple):
    """The cluster, its load and topic, for all cases."""

    nodes: Nodes
    load: Load
    topic: TopicDescription
    seconds: float

    def led_by(self, node: int) -> list[Reading]:
        """The beginning of each queue that the node leads."""
        queues = [queue.queue for queue in self.topic.queues if queue.leader == node]
        return [Reading(self.topic.id << 16 | queue, 0) for queue in queues]


def run(scale: float, seconds: float, rounds: int, tell: Callable[[str], None]) -> Outcome:
    """Measure; `scale` shrinks what is stored for a trial."""
    outcome = Outcome("slow", VERSION)
    messages = max(BATCH, int(MESSAGES * scale))
    with Nodes("slow") as nodes:
        nodes.start()
        for number in nodes.numbers:
            nodes.wait_answering(number)
        trio.run(create_topic, nodes, QUEUES)
        trio.run(_measure, outcome, nodes, messages, seconds, rounds, tell)
    return outcome


async def _measure(
    outcome: Outcome,
    nodes: Nodes,
    messages: int,
    seconds: float,
    rounds: int,
    tell: Callable[[str], None],
) -> None:
    async with Load.on(nodes) as load:
        await _lead_elsewhere(load.client)
        await load.fill(messages, tell=tell)
        topic = await load.client.admin.describe_topic(TOPIC, timeout=CONNECT_SECONDS_MAX)
        cluster = _Cluster(nodes, load, topic, seconds)
        rounds = min(rounds, ROUNDS_MAX)
        healthy: list[Window] = []
        for name, case in CASES.items():
            grown = []
            for number in range(rounds):
                tell(f"{name}, {number + 1} of {rounds}")
                healthy.append(await load.produce(seconds))
                is_last = number == rounds - 1
                async with case(cluster):
                    if is_last:
                        grown.append(await _watched(outcome, name, cluster))
                    else:
                        grown.append(await load.produce(seconds))
                outcome_name = f"{name}: until the follower has caught up, {number + 1}"
                took = await _wait_caught_up(nodes)
                if is_last and took > 1.0:
                    outcome.add(outcome_name.rpartition(",")[0], took, "s")
            what = f"produce, {name} over all healthy"
            least = None if case in (_catching_up, _asking_readers) else LEAST_RATIO
            outcome.compare(what, healthy[-rounds:], grown, at_least=least)
            outcome.add_row("produce", f"raftmq, {name}", SETTINGS, SIZE, middle(grown))
        outcome.add_row("produce", "raftmq, all healthy", SETTINGS, SIZE, middle(healthy))


async def _watched(outcome: Outcome, name: str, cluster: _Cluster) -> Window:
    """A long window, during which the memory of the leaders is sampled."""
    samples: list[float] = []

    async def watch() -> None:
        while True:
            samples.append(max(cluster.nodes.memory(number).resident for number in LEADERS))
            await trio.sleep(0.25)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        window = await cluster.load.produce(LONG_WINDOWS * cluster.seconds)
        nursery.cancel_scope.cancel()
    half = len(samples) // 2
    outcome.add(f"{name}: largest leader's resident memory", max(samples), "MiB")
    drift = max(samples[half:]) - max(samples[:half])
    seconds = LONG_WINDOWS * cluster.seconds / 2
    outcome.add(
        f"{name}: its growth in the last {seconds:g} s", drift, "MiB", at_most=DRIFT_MIB_MAX
    )
    return window


async def _lead_elsewhere(client: raftmq.Client) -> None:
    """Transfer the follower's groups to other leaders, until the follower leads none."""
    with trio.fail_after(CONNECT_SECONDS_MAX):
        while True:
            view = await client.admin.cluster()
            led = [group.id for group in view.groups if group.leader not in LEADERS]
            if not led:
                return
            for group in led:
                await client.admin.transfer(group, to=LEADERS[group % 2])
            await trio.sleep(0.2)


async def _wait_caught_up(nodes: Nodes) -> float:
    """Wait until the follower has applied what the leaders have applied; returns the seconds."""
    begun = trio.current_time()
    # A call blocks the event loop for a moment, in which no other task has work.
    wanted = applied_indexes(nodes.port(LEADERS[0]))
    for group, index in applied_indexes(nodes.port(LEADERS[1])).items():
        wanted[group] = max(index, wanted.get(group, 0))
    with trio.fail_after(CAUGHT_UP_SECONDS_MAX):
        while True:
            applied = applied_indexes(nodes.port(FOLLOWER))
            if all(applied.get(group, 0) >= index for group, index in wanted.items()):
                return trio.current_time() - begun
            await trio.sleep(0.05)


@asynccontextmanager
async def _paused(cluster: _Cluster) -> AsyncIterator[None]:
    cluster.nodes.pause(FOLLOWER)
    try:
        yield
    finally:
        cluster.nodes.resume(FOLLOWER)


@asynccontextmanager
async def _catching_up(cluster: _Cluster) -> AsyncIterator[None]:
    cluster.nodes.pause(FOLLOWER)
    await cluster.load.produce(cluster.seconds)
    cluster.nodes.resume(FOLLOWER)
    yield


@asynccontextmanager
async def _slowed(cluster: _Cluster) -> AsyncIterator[None]:
    async def pause_and_resume() -> None:
        while True:
            cluster.nodes.pause(FOLLOWER)
            await trio.sleep(PAUSE_SECONDS)
            cluster.nodes.resume(FOLLOWER)
            await trio.sleep(RUN_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pause_and_resume)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
            cluster.nodes.resume(FOLLOWER)


@asynccontextmanager
async def _killed(cluster: _Cluster) -> AsyncIterator[None]:
    cluster.nodes.kill(FOLLOWER)
    yield
    cluster.nodes.start(FOLLOWER)
    await trio.to_thread.run_sync(cluster.nodes.wait_answering, FOLLOWER)


@asynccontextmanager
async def _asking_readers(cluster: _Cluster) -> AsyncIterator[None]:
    with ExitStack() as probes:
        for node in LEADERS:
            # The node would answer at once, with an error, for a queue that another node leads.
            readings = cluster.led_by(node)
            for _ in range(STUCK_READERS):
                probe = probes.enter_context(Probe(cluster.nodes.port(node)))
                probe.post_fetches(readings, count=STUCK_FETCHES, bytes_max=STUCK_FETCH_BYTES)
        yield


@asynccontextmanager
async def _stuck_readers(cluster: _Cluster) -> AsyncIterator[None]:
    async with _asking_readers(cluster):
        # After one window the leaders have read as much for these readers as they may hold.
        await cluster.load.produce(cluster.seconds)
        yield


@asynccontextmanager
async def _far_behind(cluster: _Cluster) -> AsyncIterator[None]:
    async def read_slowly(consumer: raftmq.Consumer) -> None:
        while True:
            await consumer.fetch(BEHIND_MESSAGES)
            await trio.sleep(BEHIND_PAUSE_SECONDS)

    behind = cluster.load.client.consumer(TOPIC, prefetch_bytes=1)
    async with behind, trio.open_nursery() as nursery:
        nursery.start_soon(read_slowly, behind)
        yield
        nursery.cancel_scope.cancel()


CASES = {
    "a follower paused": _paused,
    "a follower slowed to a tenth": _slowed,
    "a follower killed": _killed,
    "a follower catching up": _catching_up,
    f"{STUCK_READERS} readers a leader asking for {STUCK_FETCHES} MiB each": _asking_readers,
    f"{STUCK_READERS} readers a leader that never read": _stuck_readers,
    "a consumer far behind": _far_behind,
}
