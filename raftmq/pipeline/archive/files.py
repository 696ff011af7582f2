"""Files that are durable before they have their name, and locks between processes.

Invariants:
- A name is given once: a file is written under another one, fsynced, and renamed; then its folder
  is fsynced. Nothing is ever written into a file that has its name.
- A lock is held by an open file: the kernel releases it when the process ends, in any way.

Left out: object stores. The archive needs a file system with `rename`, `link` and `flock` that all
of Spark's workers share; on one machine any disk is that.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raftmq.pipeline.errors import PipelineError

UNFINISHED = ".unfinished"
"""The suffix of a file's name until the file is durable."""


def sync_file(path: Path) -> None:
    """Make the file's content survive a loss of power."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in the folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(folder: Path, *, below: Path) -> None:
    """Make a folder and those between it and `below`, which is there; their names are durable."""
    missing = []
    while folder != below and not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def publish(path: Path, content: bytes) -> None:
    """Make a new file with this content; durable on return.

    Raises:
        FileExistsError: there is a file with that name; it is as it was.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        # A rename would replace a file of that name; a link does not.
        os.link(unfinished, path)
    finally:
        unfinished.unlink()
    sync_folder(path.parent)


@contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Inside, no other process holds the lock.

    Args:
        path: the file of the lock; it is made, and stays.
        busy: the error's message when another process is inside; None: wait until it has left.

    Raises:
        PipelineError: another process is inside.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            assert busy is not None
            raise PipelineError(busy, "wait for it, or end it") from None
        yield
