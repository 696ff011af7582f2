"""Groups that are moved while they work: some messages may come again, and no others."""

from collections import Counter
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from raftmq.chaos.workloads.group_lives import POPPED, SHARED, GroupLives


class Resets(Random):
    """A generator with which a mover resets, and deletes no group."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("group", "is_meanwhile", "is_wrong"),
    [(SHARED, True, False), (SHARED, False, True), (POPPED, True, True)],
)
def test_seed_1110244_what_members_settle_while_a_reset_is_under_way_may_come_again(
    group: str, is_meanwhile: bool, is_wrong: bool
) -> None:
    lives = GroupLives(counts=Counter())

    def settle() -> None:
        lives._handed(group, [0])
        lives._note(group, [0], 1, is_sure=True)

    async def reset(*_: Any, **__: Any) -> None:
        if is_meanwhile:
            settle()

    async def work() -> None:
        client: Any = SimpleNamespace(admin=SimpleNamespace(reset_group=reset))
        lives._note(group, [0], 0, is_sure=True)
        await lives._move(client, group, Resets())
        if not is_meanwhile:
            settle()
        with pytest.raises(AssertionError, match="settled 2 times") if is_wrong else nullcontext():
            lives._handed(group, [0])

    trio.run(work)
