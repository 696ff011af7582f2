"""The wait before a request goes to a leader again."""

import anyio
import pytest
import trio
from trio.testing import MockClock

from raftmq.client.routing.calls import Leaders, wait_leader


class FakeLeaders:
    """Waits 0.2 s before a second retry, and finds a leader at once."""

    async def leader(self, group: int) -> int:
        return group

    def delay(self, attempt: int) -> float:
        return attempt / 10


@pytest.mark.parametrize(
    ("failures", "told", "waited"),
    [
        # The hint of a new leader is usually right.
        (1, 0.0, 0.0),
        (2, 0.0, 0.2),
        (1, 3.0, 3.0),
        (2, 3.0, 3.0),
        (1, 0.01, 0.1),
        # The time told has passed while other answers came.
        (1, -1.0, 0.0),
        (2, -1.0, 0.2),
    ],
)
def test_a_retry_waits_as_long_as_the_node_told_and_longer_after_failures(
    failures: int, told: float, waited: float
) -> None:
    async def main() -> None:
        leaders: Leaders = FakeLeaders()  # type: ignore[assignment]
        began = anyio.current_time()
        assert await wait_leader(leaders, 7, failures, told) == 7  # type: ignore[comparison-overlap]
        assert anyio.current_time() - began == pytest.approx(waited)

    trio.run(main, clock=MockClock(autojump_threshold=0))
