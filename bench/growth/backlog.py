"""The cost of a backlog: an empty log against 20 million stored messages.

Two clusters, one topic of six queues each. One is filled first, with batches like those that are
then measured; the other is a new cluster for each round, since its log would not stay empty. In a
round both publish, and then both read at the end while publishing, one cluster after the other.
"""

from collections.abc import Callable
from typing import NamedTuple

import trio

from .loads import BATCH, SIZE, Load, alternate, create_topic
from .nodes import VERSION, Nodes
from .outcome import Outcome, Window, middle

MESSAGES = 20_000_000
QUEUES = 6
LEAST_RATIO = 0.9
SETTINGS = f"3 nodes, 3 partition groups, {QUEUES} queues, batches of {BATCH}"


class _Round(NamedTuple):
    """The windows of one round: [plain, grown] of each operation."""

    produce: list[Window]
    tail: list[Window]


def run(scale: float, seconds: float, rounds: int, tell: Callable[[str], None]) -> Outcome:
    """Measure; `scale` shrinks the backlog for a trial."""
    outcome = Outcome("backlog", VERSION)
    messages = max(BATCH, int(MESSAGES * scale))
    with Nodes("loaded") as loaded:
        _found(loaded)
        before = loaded.resident_max()
        trio.run(_fill, loaded, messages, tell)
        loaded_size = f"{messages:,} messages"
        outcome.add("largest node's resident memory, empty log", before, "MiB")
        name = f"largest node's resident memory, {loaded_size}"
        outcome.add(name, loaded.resident_max(), "MiB")
        anonymous = max(memory.anonymous for memory in loaded.memories())
        outcome.add(f"{name}, without mapped files", anonymous, "MiB")
        found = []
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            with Nodes("empty") as empty:
                _found(empty)
                found.append(trio.run(_round, empty, loaded, seconds, number % 2 == 1))
    for operation in _Round._fields:
        pairs = [getattr(each, operation) for each in found]
        plain, grown = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        outcome.compare(f"{operation}, backlog over empty log", plain, grown, at_least=LEAST_RATIO)
        for case, windows in (("empty log", plain), (loaded_size, grown)):
            outcome.add_row(operation, f"raftmq, {case}", SETTINGS, SIZE, middle(windows))
    return outcome


def _found(nodes: Nodes) -> None:
    nodes.start()
    for number in nodes.numbers:
        nodes.wait_answering(number)
    trio.run(create_topic, nodes, QUEUES)


async def _fill(nodes: Nodes, messages: int, tell: Callable[[str], None]) -> None:
    async with Load.on(nodes) as load:
        await load.fill(messages, tell=tell)


async def _round(empty: Nodes, loaded: Nodes, seconds: float, is_reversed: bool) -> _Round:
    async with Load.on(empty) as plain, Load.on(loaded) as grown:
        produce = await alternate(
            lambda: plain.produce(seconds),
            lambda: grown.produce(seconds),
            rounds=1,
            is_reversed=is_reversed,
        )
        tail = await alternate(
            lambda: plain.tail(seconds),
            lambda: grown.tail(seconds),
            rounds=1,
            is_reversed=is_reversed,
        )
    return _Round([produce[0][0], produce[1][0]], [tail[0][0], tail[1][0]])
