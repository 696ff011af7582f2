"""Positions of groups that read by offset, from a look at the cluster."""

from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.client import ConsumerGroup, GroupOffset
from raftmq.pipeline.report.cluster_poll import _standings


@pytest.mark.parametrize(
    ("committed", "lag"),
    [((5, 5), 10), ((10, 10), 0), ((5, None), 5), ((10, None), None), ((None, None), None)],
)
def test_lag_is_what_is_known_of_it(committed: tuple[int | None, ...], lag: int | None) -> None:
    offsets = [
        GroupOffset("orders", queue, offset, 0, 10, 0) for queue, offset in enumerate(committed)
    ]
    listed = [ConsumerGroup("audit", [*offsets, GroupOffset("orders", 9, None, 0, 0, 0)])]
    mq: Any = SimpleNamespace(admin=SimpleNamespace(list_groups=lambda: listed))
    (standing,) = _standings(mq, [])
    assert (standing.topic, standing.group, standing.lag) == ("orders", "audit", lag)
