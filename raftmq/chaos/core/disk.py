"""A node's disk: the simulated disk, with a short path for calls while no fault is armed.

Invariants:
- A failed sync is remembered until the process ends: after a failed sync nothing may be
  acknowledged.
"""

from collections.abc import Callable
from random import Random

from raftmq.chaos.world.disk import MemoryFiles

_SYNCS = ("datasync", "sync_folder")


class CoreDisk(MemoryFiles):
    """The disk of one node."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.trace = None
        self.has_failed_sync = False
        """Whether a sync failed since the process began."""
        self._is_calm = True

    def armed(self) -> "CoreDisk":
        """This disk, whose next calls may go wrong; to be called before a fault is set."""
        self._is_calm = False
        return self

    def calm(self) -> None:
        """Take back all faults that have not struck yet."""
        super().calm()
        self._is_calm = True

    def _release(self) -> None:
        is_full = self.space is not None
        super()._release()
        self.has_failed_sync = False
        self._is_calm = not is_full

    def enter(
        self,
        operation: str,
        path: str,
        partly: Callable[[int], None] | None = None,
        size: int = 0,
    ) -> None:
        """Count a changing call; refuse the call if a fault is due."""
        if self._is_calm:
            self.calls += 1
            return
        try:
            super().enter(operation, path, partly, size)
        except OSError:
            self.has_failed_sync = self.has_failed_sync or operation in _SYNCS
            raise

    def leave(self, operation: str, path: str) -> None:
        """The end of a changing call."""
        if not self._is_calm:
            super().leave(operation, path)


def contents(files: MemoryFiles, folder: str = "log") -> dict[str, bytes]:
    """The files of a folder."""
    return {name: files.bytes_of(f"{folder}/{name}") for name in files.list(folder)}
