"""The real file store, and that the simulated one loses what it should."""

import errno
import os
import time
import warnings
from pathlib import Path
from random import Random

import pytest

from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.log.faults import FolderLocked
from raftmq.log.files import FileSystem, RealFiles, prepare, publish


def test_appends_of_many_buffers_arrive_in_order(tmp_path: Path) -> None:
    file = RealFiles().create(f"{tmp_path}/f")
    buffers = [b"%d," % i for i in range(3000)]
    file.append(buffers)
    file.append([b"end"])
    assert file.pread(10**6, 0) == b"".join(buffers) + b"end"
    assert file.size() == len(b"".join(buffers)) + 3
    assert file.pread(3, file.size() - 3) == b"end"
    assert file.pread(3, file.size()) == b""


def test_appends_go_to_the_end_after_a_truncation(tmp_path: Path) -> None:
    file = RealFiles().create(f"{tmp_path}/f")
    file.append([b"0123456789"])
    file.truncate(4)
    file.append([b"x"])
    file.datasync()
    assert RealFiles().open(f"{tmp_path}/f").pread(10, 0) == b"0123x"


def test_a_map_outlives_its_file(tmp_path: Path) -> None:
    files = RealFiles()
    file = files.create(f"{tmp_path}/f")
    assert bytes(file.map()) == b""
    file.append([b"mapped"])
    view = file.map()
    file.close()
    files.unlink(f"{tmp_path}/f")
    assert bytes(view) == b"mapped"


@pytest.mark.parametrize("real", [True, False])
def test_both_file_systems_keep_the_same_rules(real: bool, tmp_path: Path) -> None:
    files: FileSystem = RealFiles() if real else MemoryFiles()
    folder = f"{tmp_path}/a/b"
    files.make_folder(folder)
    files.make_folder(folder)
    assert files.list(folder) == []
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/none")
    with pytest.raises(FileNotFoundError):
        files.unlink(f"{folder}/none")
    with pytest.raises(FileNotFoundError):
        files.list(f"{folder}/none")
    prepare(files, folder, "x", [b"one", b"two"]).close()
    assert files.list(folder) == ["x.new"]
    publish(files, folder, "x")
    assert files.open(f"{folder}/x").pread(9, 0) == b"onetwo"
    files.create(f"{folder}/x")
    assert files.open(f"{folder}/x").size() == 0
    assert files.free_bytes(folder) > 0
    lock = files.lock(folder)
    with pytest.raises(FolderLocked, match="one process at a time"):
        files.lock(folder)
    lock.close()
    files.lock(folder).close()


def test_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    files = RealFiles()
    lock = files.lock(str(tmp_path))
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The test runner has threads; the child does nothing that would need them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent has looked, or is gone
        os._exit(0)
    os.close(reading)
    try:
        with pytest.raises(FolderLocked):
            files.lock(str(tmp_path))
        lock.close()
        # The child closes its copy as soon as it runs, which a busy machine puts off.
        deadline = time.monotonic() + 60
        while True:
            try:
                files.lock(str(tmp_path)).close()
                break
            except FolderLocked:
                assert time.monotonic() < deadline, "the child holds the folder"
                time.sleep(0.01)
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_power_loss_keeps_what_was_synced_and_any_part_of_the_rest() -> None:
    seen, names = set(), set()
    for seed in range(200):
        files = MemoryFiles(Random(seed))
        files.make_folder("f")
        file = files.create("f/a")
        file.append([b"s" * 600])
        file.datasync()
        files.sync_folder("f")
        file.append([b"u" * 1500])
        files.create("f/b")
        files.rename("f/b", "f/c")
        files.power_loss()
        data = files.bytes_of("f/a")
        assert data[:600] == b"s" * 600
        assert len(data) <= 2100
        seen.add((len(data) == 2100, b"u" in data, b"\0" in data))
        names.add(tuple(files.list("f")))
        with pytest.raises(OSError, match="power loss"):
            file.pread(1, 0)
    assert len(seen) >= 6
    assert names == {("a",), ("a", "b"), ("a", "c")}


def test_faults_strike_the_call_they_were_set_for() -> None:
    files = MemoryFiles()
    files.make_folder("f")
    file = files.create("f/a")
    files.fail_at(2, errno.EIO)
    file.append([b"fine"])
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    file.datasync()
    files.crash_at(1)
    with pytest.raises(PowerLoss):
        file.append([b"never"])
    files.space = 10
    file.truncate(0)
    with pytest.raises(OSError, match="No space"):
        file.append([bytes(11)])
    assert file.size() == 10, "what fits is written, as the system does"


def test_folder_that_somebody_else_made_is_made_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss took a data folder whose name had not been synced, and the node came back as a
    stranger that its peers refused (real world, seed 102)."""
    synced: list[str] = []
    monkeypatch.setattr(RealFiles, "sync_folder", lambda self, folder: synced.append(folder))
    (tmp_path / "data").mkdir()
    RealFiles().make_folder(f"{tmp_path}/data")
    RealFiles().make_folder(f"{tmp_path}/data/groups/1")
    assert synced == [f"{tmp_path}", f"{tmp_path}/data", f"{tmp_path}/data/groups"]


def test_files_and_folders_are_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = RealFiles()
        files.make_folder(f"{tmp_path}/a/b")
        files.create(f"{tmp_path}/a/b/f")
        files.lock(f"{tmp_path}/a/b").close()
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")}
    assert len(found) >= 3
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in found.items())
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
