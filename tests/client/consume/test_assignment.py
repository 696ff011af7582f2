"""A group's member alone: the length of its silence."""

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import anyio
import trio
from trio.testing import MockClock

from raftmq.client.consume.assignment import AssignedQueues
from raftmq.errors import Reason, Rejected
from raftmq.wire.assignment import Assigned

SESSION_SECONDS = 30.0
FENCED_AT = 7.0


class FencedMember:
    """A membership that is fenced at `FENCED_AT`, though its lease would have run for longer, and
    that cannot join again."""

    join_command = SimpleNamespace(member=7, session_ms=int(1000 * SESSION_SECONDS))

    async def heartbeat(self, version: int, wait_ms: int) -> tuple[Assigned, float]:
        if not version:
            return Assigned(
                1, [], [], [], int(1000 * SESSION_SECONDS)
            ), anyio.current_time() + SESSION_SECONDS
        await anyio.sleep(FENCED_AT - anyio.current_time())
        raise Rejected(Reason.FENCED, "another one has its place")

    async def join(self, *, is_again: bool = False, timeout: float | None = None) -> None:
        if is_again:
            await anyio.sleep_forever()


class Fetcher:
    """A fetcher that reads nothing."""

    def __init__(self) -> None:
        self.cursors: dict[int, Any] = {}

    def remove(self, cursors: list[Any]) -> None:
        assert not cursors

    def tell(self) -> None:
        pass


async def within(_timeout: float, work: Awaitable[None], _what: str) -> None:
    await work


def test_silence_of_a_fenced_member_counts_from_its_fencing() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            parts: Any = (
                SimpleNamespace(commits_by_itself=False),
                FencedMember(),
                SimpleNamespace(last_error="", within=within),
            )
            assigned = AssignedQueues(*parts)
            tasks: Any = SimpleNamespace(start=nursery.start_soon)
            fetcher: Any = Fetcher()
            await assigned.begin(fetcher, tasks, 1.0)
            silences: list[float | None] = []
            for _ in range(2):
                await trio.sleep(FENCED_AT - 2)
                silences.append(assigned.silent_since)
            # The silence begins at the fencing, not at the end of the former lease, nor before.
            assert silences == [None, FENCED_AT]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
