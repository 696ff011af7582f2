"""A producer with wrong settings is refused when it is made; the error names the right values."""

from typing import Any

import pytest

from raftmq.client.produce.settings import ProducerSettings
from raftmq.errors import Reason, Rejected


def test_what_stands_by_itself_is_right() -> None:
    assert ProducerSettings().validate() == ProducerSettings()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"linger": -0.1}, "linger must not be negative"),
        ({"batch_bytes": 0}, "batch_bytes must be positive"),
        ({"batch_messages": 65_537}, "batch_messages must be 1 to 65536"),
        ({"buffer_bytes": 0}, "buffer_bytes must be positive"),
        ({"buffer_messages": 0}, "buffer_messages must be positive"),
        ({"compression": "zstd"}, "compression must be one of .*Compression.ZSTD"),
    ],
)
def test_what_is_wrong_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(Rejected, match=words) as refused:
        ProducerSettings(**wrong).validate()
    assert refused.value.reason is Reason.BAD_ARGUMENT
