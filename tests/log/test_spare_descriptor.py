"""A folder can be synced where the process has no descriptor left."""

import os
import resource
from pathlib import Path

import pytest

from raftmq.log.files import RealFiles


def take_all(taken: list[int]) -> None:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))


def test_folder_is_synced_again_and_again_when_no_descriptor_is_left(tmp_path: Path) -> None:
    files = RealFiles()
    files.sync_folder(str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            take_all(taken)
        for _ in range(3):
            files.sync_folder(str(tmp_path))
        # Other errors are raised as they are.
        with pytest.raises(FileNotFoundError):
            files.sync_folder(str(tmp_path / "none"))
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
