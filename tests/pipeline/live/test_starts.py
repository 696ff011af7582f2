"""A query whose Python does not come up in time is started again, and no other is."""

import signal
import threading

import pytest
from pyspark.errors import StreamingQueryException

from raftmq.pipeline.live.job import _ended, _interruption

SLOW = "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. XXKST"


class Query:
    """Runs for a while, and may end with an error."""

    def __init__(self, error: str = "", looks: int = 3) -> None:
        self._error = error
        self._looks = looks

    @property
    def isActive(self) -> bool:
        self._looks -= 1
        return self._looks > 0

    def awaitTermination(self) -> None:
        if self._error:
            raise StreamingQueryException(self._error)


def ended(query: Query, starts_left: int) -> bool:
    return _ended(query, threading.Event(), starts_left)  # type: ignore[arg-type]


def test_query_that_ends_is_not_started_again() -> None:
    assert ended(Query(), 4)


def test_slow_start_is_repeated_as_long_as_starts_are_left() -> None:
    assert not ended(Query(SLOW), 1)
    with pytest.raises(StreamingQueryException, match="connect back"):
        ended(Query(SLOW), 0)


def test_other_errors_end_the_job() -> None:
    with pytest.raises(StreamingQueryException, match="poison"):
        ended(Query("[STREAM_FAILED] a poison row"), 4)


def test_interrupt_ends_the_wait_at_once_and_leaves_spark_alone() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with _interruption() as asked:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            _ended(Query(looks=1_000_000), asked, 4)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGINT) is handler
