"""The time of a start with a 2 GiB log: from the start of the process to the first answer.

| moment | is reached when |
|---|---|
| answering | the node gives its routing table: all groups are open |
| caught up | the node has applied what the others had applied when the node was started |
| serving | each queue is read at its leader, which has applied all that was committed |

Times are wall-clock time since the processes were started, Python's own start included. Three nodes
that start at once share the processors of one machine, unlike nodes on machines of their own.
"""

import time
from collections.abc import Callable, Sequence

import trio

from .loads import BATCH, CONNECT_SECONDS_MAX, SIZE, TOPIC, Load, create_topic
from .nodes import START_SECONDS_MAX, VERSION, Nodes
from .outcome import Outcome
from .probe import Reading, applied_indexes, served_queues

LOG_BYTES = 2 << 30
RECORD_BYTES = BATCH * (SIZE + 1)
"""Approximate size of a batch in the log, to choose the number of messages."""
QUEUES = 6
SERVING_SECONDS_MAX = 3.0
ROUNDS_MAX = 3
_POLL_SECONDS = 0.02


def run(scale: float, seconds: float, rounds: int, tell: Callable[[str], None]) -> Outcome:
    """Start up to `rounds` times in each case, and note the slowest; `scale` shrinks the log."""
    outcome = Outcome("restart", VERSION)
    with Nodes("restart") as nodes:
        nodes.start()
        for number in nodes.numbers:
            nodes.wait_answering(number)
        trio.run(create_topic, nodes, QUEUES)
        messages = int(LOG_BYTES * 1.01 * scale / RECORD_BYTES) * BATCH
        readings = trio.run(_fill, nodes, messages, tell)
        outcome.add("log of each node", nodes.data_bytes(1) / 2**30, "GiB")
        outcome.add("largest node's resident memory before", nodes.resident_max(), "MiB")
        rounds = min(rounds, ROUNDS_MAX)
        one, caught = [], []
        for number in range(rounds):
            tell(f"one node killed, {number + 1} of {rounds}")
            answering, caught_up = _restart_one(nodes, 1 + number % 3)
            one.append(answering)
            caught.append(caught_up)
        _note(outcome, "one node killed: answering", one)
        _note(outcome, "one node killed: caught up", caught)
        ends: list[tuple[str, Callable[[], None]]] = [
            ("all nodes killed", lambda: nodes.kill(*nodes.numbers)),
            ("all nodes stopped", lambda: nodes.stop(*nodes.numbers)),
            ("all nodes killed, page cache empty", lambda: _kill_cold(nodes)),
        ]
        for case, end in ends:
            answering_all, serving = [], []
            for number in range(rounds):
                tell(f"{case}, {number + 1} of {rounds}")
                end()
                answering, served = _start_all(nodes, readings)
                answering_all.append(answering)
                serving.append(served)
            _note(outcome, f"{case}: all answering", answering_all)
            _note(outcome, f"{case}: all queues served", serving)
        outcome.add("largest node's resident memory after", nodes.resident_max(), "MiB")
    return outcome


def _note(outcome: Outcome, name: str, seconds: Sequence[float]) -> None:
    outcome.add(
        f"{name}, slowest of {len(seconds)}", max(seconds), "s", at_most=SERVING_SECONDS_MAX
    )


async def _fill(nodes: Nodes, messages: int, tell: Callable[[str], None]) -> list[Reading]:
    """Fill the log; returns a position for each queue from which it can be read."""
    async with Load.on(nodes) as load:
        await load.fill(messages, tell=tell)
        found = await load.client.admin.describe_topic(TOPIC, timeout=CONNECT_SECONDS_MAX)
        # After a start the newest batch of a queue is in no cache: it must be read from the log.
        return [Reading(found.id << 16 | queue.queue, queue.end - 1) for queue in found.queues]


def _restart_one(nodes: Nodes, number: int) -> tuple[float, float]:
    """Kill and start one node: seconds until it answers, and until it has caught up."""
    others = [other for other in nodes.numbers if other != number]
    nodes.kill(number)
    _wait(lambda: all(applied_indexes(nodes.port(other)) for other in others))
    wanted = applied_indexes(nodes.port(others[0]))
    begun = time.perf_counter()
    nodes.start(number)
    answering = nodes.wait_answering(number) - begun

    def is_caught_up() -> bool:
        applied = applied_indexes(nodes.port(number))
        return all(applied.get(group, 0) >= index for group, index in wanted.items())

    _wait(is_caught_up)
    return answering, time.perf_counter() - begun


def _kill_cold(nodes: Nodes) -> None:
    nodes.kill(*nodes.numbers)
    nodes.forget_pages()


def _start_all(nodes: Nodes, readings: list[Reading]) -> tuple[float, float]:
    """Start all nodes: seconds until each answers, and until each queue is served."""
    begun = time.perf_counter()
    nodes.start()
    answering = max(nodes.wait_answering(number) for number in nodes.numbers) - begun
    wanted = {each.queue for each in readings}
    served: set[int] = set()

    def are_all_served() -> bool:
        missing = [each for each in readings if each.queue not in served]
        for number in nodes.numbers:
            served.update(served_queues(nodes.port(number), missing))
        return served == wanted

    _wait(are_all_served)
    return answering, time.perf_counter() - begun


def _wait(is_done: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + START_SECONDS_MAX
    while not is_done():
        if time.perf_counter() > deadline:
            raise RuntimeError("the cluster does not come back")
        time.sleep(_POLL_SECONDS)
