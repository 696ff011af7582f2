"""Faults for embedded queues: a disk that fails on request."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from raftmq.log.files import RealFile


@contextmanager
def failing_sync(monkeypatch_target: type[RealFile] = RealFile) -> Iterator[None]:
    """While it lasts every fdatasync fails."""
    healthy = monkeypatch_target.datasync

    def fail(self: RealFile) -> None:
        raise OSError(errno.EIO, "the disk has a bad day")

    monkeypatch_target.datasync = fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        monkeypatch_target.datasync = healthy  # type: ignore[method-assign]
