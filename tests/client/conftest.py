"""Every async test of the client runs on trio, with a clock that jumps, and on asyncio."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import trio.testing

from .fake_cluster import FakeCluster


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param == "trio":
        # Waiting costs nothing: when all tasks sleep, time jumps to the first that wakes.
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0.002)}
    return "asyncio", {}


@pytest.fixture
async def cluster(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[FakeCluster]:
    async with anyio.create_task_group() as tasks:
        yield FakeCluster(tasks)
        tasks.cancel_scope.cancel()
