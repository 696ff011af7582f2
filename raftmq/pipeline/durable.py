"""Files that are durable before they have their name, and locks between processes.

A job's progress is a file that is replaced (`replace`) or a row of numbered files (`create`); the
files that it names are written first (`writing`):

    with durable.writing(folder / "v=8" / "rows.parquet") as unfinished:
        parquet.write_table(table, unfinished)
    durable.replace(folder / "CURRENT", b'{"version": 8}')

| a kill or a loss of power | leaves |
|---|---|
| before the rename | the file as it was, or none; perhaps an unfinished one beside it |
| after the rename, before the fsync of the folder | a kill: the new file; a loss of power: either |
| after that | the new file |

Invariants:
- A file has its name when its content is durable, and no file that has its name is written into.
- On return the file, its name, and the folders that `make_folders` made are durable.
- The name of an unfinished file begins with a dot, and has the number of the process in it: Spark
  passes over such files, and two attempts at a task do not write into one file.
- A lock is held by an open file: the kernel releases it when the process ends, in any way.

Left out: object stores. A file system needs `rename`, `link` and `flock`, and all of Spark's
workers have to share it; on one machine any disk will do. Files of caches (`java`, `spark_home`,
`class_archive`) are renamed without an fsync, as they can be made again.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raftmq.pipeline.errors import PipelineError

UNFINISHED = ".unfinished"
"""The suffix of a file's name until the file is durable."""


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Gives the path to write at. At the end the file has its name, in place of one that was there.

    After an exception within it the file that was there is as it was. The folder has to be there.
    """
    try:
        yield unfinished(path)
        finish(path)
    except BaseException:
        unfinished(path).unlink(missing_ok=True)
        raise


def replace(path: Path, content: bytes) -> None:
    """Make a file with this content, in place of one that was there; durable on return."""
    with writing(path) as written:
        written.write_bytes(content)


def create(path: Path, content: bytes) -> None:
    """Make a new file with this content; durable on return.

    Raises:
        FileExistsError: there is a file with that name; it is as it was.
    """
    written = unfinished(path)
    try:
        written.write_bytes(content)
        sync_file(written)
        # A rename would replace a file of that name; a link does not.
        os.link(written, path)
    finally:
        written.unlink(missing_ok=True)
    sync_folder(path.parent)


def unfinished(path: Path) -> Path:
    """Where this process writes the file until `finish`, if `writing` does not fit.

    >>> unfinished(Path("events/p3.parquet")).name.replace(str(os.getpid()), "77")
    '.p3.parquet.77.unfinished'
    """
    return path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")


def finish(path: Path) -> None:
    """Give the file that was written at `unfinished(path)` its name; durable on return."""
    sync_file(unfinished(path))
    unfinished(path).replace(path)
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing; their names are durable on return."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    # The process that made this folder may be about to fsync its name, or was killed before that.
    # A folder above which this process cannot read is older than the job.
    if os.access(folder.parent, os.R_OK):
        sync_folder(folder.parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


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


def sync_files(folder: Path) -> None:
    """Make the files that are in a folder, and their names, survive a loss of power."""
    for file in folder.iterdir():
        sync_file(file)
    sync_folder(folder)


def withdraw(path: Path) -> None:
    """Remove a file, if it is there; it stays removed after a loss of power."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def locked(
    path: Path, *, busy: str | None = None, fix: str = "wait for it, or end it"
) -> Iterator[None]:
    """Inside, no other process holds the lock.

    Args:
        path: the file of the lock; it is made, and stays. Its folder has to be there.
        busy: the error's message when another process is inside; None: wait until it has left.
        fix: the error's remedy.

    Raises:
        PipelineError: another process is inside.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            assert busy is not None
            raise PipelineError(busy, fix) from None
        yield
