"""A loss of power at every line of the code that writes files, on a real folder.

A disk keeps what was fsynced: of a file its content, of a folder the names in it. The rest may be
there or not, so `losses` gives two folders for each line: one that has only what was fsynced, and
one that has all names, with the content of each file as it was fsynced. A third one is the folder
after a kill of the process at that line.

Left out: names of one folder of which some survive and others do not.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from raftmq import pipeline

CODE = str(Path(pipeline.__file__).parent)
TORN = b"torn"
"""The content of a file that was never fsynced."""

View = dict[str, bytes | None]
"""The files of a folder by path, with their content; a folder has None."""


class Disk:
    """The durable state of a folder, kept up to date by each fsync in this process."""

    def __init__(self, root: Path) -> None:
        """All that is in `root` now is durable."""
        self._root = root
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._handles: list[int] = []
        for path in (root, *root.rglob("*")):
            self._note(path)

    def fsync(self, handle: int) -> None:
        """In place of `os.fsync`."""
        self._note(Path(f"/proc/self/fd/{handle}").readlink())

    def views(self) -> Iterator[View]:
        """States of the folder that a loss of power, or a kill, may leave now."""
        everything = [(path, path.stat().st_ino) for path in sorted(self._root.rglob("*"))]
        yield dict(self._synced(self._root.stat().st_ino, Path()))
        paths = [(path, str(path.relative_to(self._root)), number) for path, number in everything]
        yield {name: self._content(path, number) for path, name, number in paths}
        yield {name: None if path.is_dir() else path.read_bytes() for path, name, _ in paths}

    def close(self) -> None:
        """Forget all of it."""
        for handle in self._handles:
            os.close(handle)

    def _note(self, path: Path) -> None:
        # As long as it is open, its number is not given to another file.
        self._handles.append(os.open(path, os.O_RDONLY))
        number = path.stat().st_ino
        if path.is_dir():
            self._folders[number] = {each.name: each.inode() for each in os.scandir(path)}
        else:
            self._files[number] = path.read_bytes()

    def _content(self, path: Path, number: int) -> bytes | None:
        return None if path.is_dir() else self._files.get(number, TORN)

    def _synced(self, folder: int, path: Path) -> Iterator[tuple[str, bytes | None]]:
        for name, number in self._folders.get(folder, {}).items():
            is_folder = number in self._folders or (self._root / path / name).is_dir()
            yield str(path / name), None if is_folder else self._files.get(number, TORN)
            if is_folder:
                yield from self._synced(number, path / name)


def losses(root: Path, work: Callable[[], object]) -> tuple[list[View], View]:
    """Do the work. Returns the states that a loss within it may leave, and those after it."""
    disk = Disk(root)
    seen: list[View] = []

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event != "call":
            seen.extend(view for view in disk.views() if view not in seen)
        return at_line

    before = sys.gettrace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        sys.settrace(at_line)
        try:
            work()
        finally:
            sys.settrace(before)
        after = next(disk.views())
    disk.close()
    return seen, after


def restored(view: View, folder: Path) -> Path:
    """Make a folder of a view."""
    folder.mkdir()
    for name, content in sorted(view.items()):
        if content is None:
            (folder / name).mkdir(parents=True)
        else:
            (folder / name).write_bytes(content)
    return folder
