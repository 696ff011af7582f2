"""A call that asks several leaders has one timeout for all of them."""

from collections.abc import Awaitable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from raftmq.client.admin.admin import Admin
from raftmq.client.routing.router import Router
from raftmq.errors import OutcomeUnknown, Unavailable
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import AdminDone, FrameKind, TopicView


class SlowRouter:
    """Each request takes three seconds, or the rest of its timeout."""

    seconds_max = 30.0

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def draw_request(self) -> int:
        return 1

    async def _wait(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        await trio.sleep(min(timeout, 3.0))

    async def call_leader(self, *_: Any, timeout: float, **__: Any) -> Frame:
        await self._wait(timeout)
        return Frame(FrameKind.ADMIN, 0, pack(AdminDone()), b"")

    async def within(self, timeout: float, work: Awaitable[Any], what: str) -> Any:
        await self._wait(timeout)
        return await work

    async def topic(self, name: str, *, is_fresh: bool = False) -> TopicView:
        return TopicView(name, 1, [1])


@pytest.mark.parametrize(("timeout", "parts"), [(5.0, [5.0, 2.0]), (None, [30.0, 27.0])])
def test_second_leader_has_what_the_first_one_left(
    timeout: float | None, parts: list[float]
) -> None:
    made = SlowRouter()
    router: Router = made  # type: ignore[assignment]

    async def main() -> None:
        await Admin(router).create_topic("orders", timeout=timeout)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert made.timeouts == pytest.approx(parts)


def test_topic_that_is_created_and_not_found_in_time_is_not_said_to_be_absent() -> None:
    class Lost(SlowRouter):
        async def topic(self, name: str, *, is_fresh: bool = False) -> TopicView:
            raise Unavailable(f"nobody answers about {name}")

    router: Router = Lost()  # type: ignore[assignment]

    async def main() -> None:
        with pytest.raises(OutcomeUnknown, match=r"done before: topic \['orders'\]"):
            await Admin(router).create_topic("orders")

    trio.run(main, clock=MockClock(autojump_threshold=0))
