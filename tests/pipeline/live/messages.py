"""Made-up messages, their partial sums in plain Python, and the direct computation of a board."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from raftmq.pipeline.live import Board, Named
from raftmq.pipeline.live.windows import Group, Partial

BOARD = Board(
    ("t",), window_ms=100, lateness_ms=200, by=(Named("tag", "tag"),),
    sums=(Named("cents", "json.cents"),), distincts=(Named("buyers", "json.buyer"),),
)  # fmt: skip
LENGTH = BOARD.window_ms * 1000


class Message(NamedTuple):
    """A message as a board reads it. `event` is in microseconds, None: unusable."""

    queue: int
    offset: int
    event: int | None
    tag: str | None
    cents: int
    code: int
    """Of the buyer, as `hyperloglog` takes it."""


def window_of(message: Message) -> int | None:
    return None if message.event is None else message.event - message.event % LENGTH


def partials(messages: Iterable[Message]) -> list[Partial]:
    """As Spark sums them up."""
    rows: dict[tuple[int, int | None, Group], list[Message]] = defaultdict(list)
    for message in messages:
        start = window_of(message)
        rows[message.queue, start, (None if start is None else message.tag,)].append(message)
    return [
        Partial(
            ("t", queue), start, group, len(found),
            (sum(message.cents for message in found),),
            (np.array(sorted({message.code for message in found}), np.int32),),
            max(message.event or 0 for message in found),
            min(message.offset for message in found),
            max(message.offset for message in found) + 1,
        )
        for (queue, start, group), found in rows.items()
    ]  # fmt: skip


def direct(messages: Iterable[Message]) -> dict[tuple[int, Group], tuple[int, int]]:
    """Count and sum of each window and group, without batches."""
    found: dict[tuple[int, Group], tuple[int, int]] = {}
    for message in messages:
        start = window_of(message)
        if start is not None:
            count, cents = found.get((start, (message.tag,)), (0, 0))
            found[start, (message.tag,)] = (count + 1, cents + message.cents)
    return found
