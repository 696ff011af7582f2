"""New consumer groups: the number of unfiltered messages that they may get at first."""

from collections import Counter
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from raftmq.chaos.workloads.newcomers import ASKED, QUEUES, Newcomers
from raftmq.chaos.workloads.popping import RED

ALLOWED = ASKED * (QUEUES + 1)
"""Most unfiltered messages: one answer of each leader, and of the pop right after the filter came.
"""


def read_filtered(
    tags: list[str], wanted: dict[tuple[int, int], str], *, unheard: int = 0, seconds: float = 0
) -> None:
    """Have a newcomer with a filter handed nothing first, then messages of these tags, by one or
    two pops of `seconds` each. A leader hears of the filter after `unheard` looks."""
    messages = [SimpleNamespace(queue=0, offset=n, tag=tag) for n, tag in enumerate(tags)]
    answers = [[], messages[: ALLOWED + 2], messages[ALLOWED + 2 :]]

    async def done(*_: Any, **__: Any) -> None:
        pass

    async def pop(count: int, *, wait: float) -> list[SimpleNamespace]:
        await trio.sleep(seconds)
        return answers.pop(0)

    def filters() -> tuple[int, int]:
        nonlocal unheard
        unheard -= 1
        return 7, 7 if unheard < 0 else 6

    consumer: Any = SimpleNamespace(pop=pop, ack=done)
    client: Any = SimpleNamespace(admin=SimpleNamespace(subscribe=done))

    async def read() -> None:
        newcomers = Newcomers(counts=Counter(), filters=filters)
        await newcomers._read_filtered(client, consumer, "newcomer-1", Random(1), wanted)

    trio.run(read, clock=MockClock(autojump_threshold=0))


def test_messages_that_match_and_whose_sends_are_in_doubt_are_let_by() -> None:
    read_filtered([RED] * (ALLOWED + 5), {(0, 0): RED})


@pytest.mark.parametrize(("count", "is_wrong"), [(ALLOWED, False), (ALLOWED + 1, True)])
def test_messages_that_do_not_match_are_let_by_if_they_were_asked_for_before(
    count: int, is_wrong: bool
) -> None:
    with pytest.raises(AssertionError, match="does not let by") if is_wrong else nullcontext():
        read_filtered(["blue"] * count + [RED], {(0, count): RED})


@pytest.mark.parametrize(("unheard", "is_wrong"), [(9, False), (0, True)])
def test_seed_1109756_leader_that_has_not_heard_of_a_filter_does_not_go_by_it(
    unheard: int, is_wrong: bool
) -> None:
    """It does not reach the system group."""
    with pytest.raises(AssertionError, match="does not let by") if is_wrong else nullcontext():
        tags = ["blue"] * (ALLOWED + ASKED) + [RED]
        read_filtered(tags, {(0, len(tags) - 1): RED}, unheard=unheard, seconds=2)
