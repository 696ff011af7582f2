"""Calls of the other mode, as `pop` of a consumer that reads by offset: errors name the mode."""

from typing import Any

import pytest

from raftmq.client import Consumer, Message, PopConsumer
from raftmq.client.blocking.client import BlockingConsumer
from raftmq.client.blocking.popping import BlockingPopConsumer


@pytest.mark.parametrize(
    ("kind", "name", "there"),
    [
        (Consumer, "pop", 'mode="pop"'),
        (BlockingConsumer, "ack", 'mode="pop"'),
        (Message, "ack", 'mode="pop"'),
        (PopConsumer, "commit", "without a mode reads by offset"),
        (BlockingPopConsumer, "fetch", "without a mode reads by offset"),
    ],
)
def test_a_call_of_the_other_mode_names_that_mode(kind: Any, name: str, there: str) -> None:
    made = kind.__new__(kind)
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}': .*{there}"):
        getattr(made, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = made.nonsense
    assert not hasattr(made, "__length_hint__")
