"""A call that asks several leaders has one timeout for all of them."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from raftmq.client.consume.offsets import commit_offsets, find_offsets
from raftmq.client.routing.requests import seconds_left

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class SlowRouter(SimpleNamespace):
    """Leaders that take a while, and say that they were asked with which timeout."""

    seconds_max = 30.0

    def __init__(self) -> None:
        super().__init__(timeouts=[])

    async def call_leader(self, *_: Any, timeout: float, **__: Any) -> Any:
        self.timeouts.append(timeout)
        await anyio.sleep(0.05)
        raise TimeoutError


async def test_what_is_left_of_a_timeout_shrinks_and_is_never_negative() -> None:
    left = seconds_left(SlowRouter(), 0.1)  # type: ignore[arg-type]
    first = left()
    await anyio.sleep(0.05)
    assert left() < first <= 0.1
    await anyio.sleep(0.1)
    assert left() == 0.0


async def test_default_timeout_is_that_of_the_client() -> None:
    router: Any = SlowRouter()
    for call in (find_offsets(router, {1: 1}, 0), commit_offsets(router, 1, "g", {1: 0})):
        with pytest.raises(TimeoutError):
            await call
    assert all(29.0 < timeout <= 30.0 for timeout in router.timeouts)
