"""The cost of idle queues: 16 queues busy among 20,000, against 16 queues alone.

Two clusters. One has a topic of 20,000 queues, and each queue holds messages of a producer with its
own session, so that no queue is blank; the other has a topic of 16. Both clusters in turn write the
same 16 queues and read them at the end. Then the traffic goes to all 20,000.
"""

import time
from collections.abc import Callable
from functools import partial

import trio

import raftmq

from .loads import BATCH, CONNECT_SECONDS_MAX, SIZE, TOPIC, Load, alternate, create_topic
from .nodes import VERSION, Nodes
from .outcome import Outcome, Window, middle

QUEUES = 20_000
BUSY_QUEUES = 16
LEAST_RATIO = 0.8
RESIDENT_MIB_MAX = 400.0
IDLE_SECONDS = 4.0
SETTINGS = f"3 nodes, 3 partition groups, batches of {BATCH}"


def run(scale: float, seconds: float, rounds: int, tell: Callable[[str], None]) -> Outcome:
    """Measure; `scale` shrinks the number of queues for a trial."""
    outcome = Outcome("queues", VERSION)
    queues = max(2 * BUSY_QUEUES, int(QUEUES * scale))
    with Nodes("few") as few, Nodes("many") as many:
        for nodes, count in ((few, BUSY_QUEUES), (many, queues)):
            nodes.start()
            for number in nodes.numbers:
                nodes.wait_answering(number)
            begun = time.perf_counter()
            trio.run(create_topic, nodes, count)
        outcome.add(f"create a topic of {queues:,} queues", time.perf_counter() - begun, "s")
        outcome.add("largest node's resident memory, queues blank", many.resident_max(), "MiB")
        trio.run(_compare, outcome, few, many, queues, seconds, rounds, tell)
        trio.run(_spread, outcome, many, queues, seconds, tell)
        name = f"largest node's resident memory, {queues:,} queues after all traffic"
        outcome.add(name, many.resident_max(), "MiB", at_most=RESIDENT_MIB_MAX)
        tell("starting again")
        many.stop(*many.numbers)
        begun = time.perf_counter()
        many.start()
        answered = max(many.wait_answering(number) for number in many.numbers)
        outcome.add(f"start of all nodes with {queues:,} queues", answered - begun, "s")
        name = f"largest node's resident memory, {queues:,} queues after a restart"
        outcome.add(name, many.resident_max(), "MiB", at_most=RESIDENT_MIB_MAX)
    return outcome


async def _compare(
    outcome: Outcome,
    few: Nodes,
    many: Nodes,
    queues: int,
    seconds: float,
    rounds: int,
    tell: Callable[[str], None],
) -> None:
    busy = list(range(BUSY_QUEUES))
    async with Load.on(few) as plain, Load.on(many) as grown:
        begun = time.perf_counter()
        await grown.fill(queues * BATCH, tell=tell)
        outcome.add(f"first batch to each of {queues:,} queues", time.perf_counter() - begun, "s")
        for case, nodes in ((f"{BUSY_QUEUES} queues", few), (f"{queues:,} queues", many)):
            outcome.add(f"processor used by 3 idle nodes, {case}", await _idle(nodes), "%")
        for operation, load, grown_load in (
            ("produce", plain.produce, grown.produce),
            ("tail", plain.tail, grown.tail),
        ):
            tell(f"{operation} on {BUSY_QUEUES} queues")
            sides = await alternate(
                partial(load, seconds, busy), partial(grown_load, seconds, busy), rounds=rounds
            )
            _note(outcome, operation, queues, sides)


def _note(
    outcome: Outcome, operation: str, queues: int, sides: tuple[list[Window], list[Window]]
) -> None:
    plain, grown = sides
    what = f"{operation}, {BUSY_QUEUES} of {queues:,} queues over {BUSY_QUEUES} alone"
    outcome.compare(what, plain, grown, at_least=LEAST_RATIO)
    alone, among = f"{BUSY_QUEUES} queues", f"{BUSY_QUEUES} busy of {queues:,} queues"
    for case, windows in ((alone, plain), (among, grown)):
        outcome.add_row(operation, f"raftmq, {case}", SETTINGS, SIZE, middle(windows))


async def _spread(
    outcome: Outcome, many: Nodes, queues: int, seconds: float, tell: Callable[[str], None]
) -> None:
    async with Load.on(many) as load:
        tell("publishing to all queues")
        window = await load.produce(seconds)
        case = f"raftmq, all of {queues:,} queues"
        outcome.add_row("produce", case, SETTINGS, SIZE, window)
        outcome.add("produce to all queues: a million messages cost", window.server_cost, "s")
        tell("reading at the end of all queues")
        outcome.add_row("tail", case, SETTINGS, SIZE, await load.tail(seconds))
        tell("reading all queues")
    async with raftmq.connect(many.url, timeout=CONNECT_SECONDS_MAX) as client:
        begun = time.perf_counter()
        async with client.consumer(TOPIC) as consumer:
            outcome.add("open a consumer of all queues", time.perf_counter() - begun, "s")
            window = await load.read(seconds, consumer)
            outcome.add_row("consume", case, SETTINGS, SIZE, window)


async def _idle(nodes: Nodes) -> float:
    """Processor time of a cluster without requests, in percent of one processor."""
    await trio.sleep(1.0)
    before = nodes.cpu_seconds()
    await trio.sleep(IDLE_SECONDS)
    return 100.0 * (nodes.cpu_seconds() - before) / IDLE_SECONDS
