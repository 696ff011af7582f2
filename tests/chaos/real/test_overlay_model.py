"""The disks behind the overlay: their durable state, and the effect of each fault."""

import errno
import os

import pytest

from raftmq.chaos.real.disk.overlay_model import FILE_MODE, FOLDER_MODE, ROOT, Inode, OverlayModel


class Disk:
    """One disk of a model, with a file on it that is named durably."""

    def __init__(self, seed: int = 1) -> None:
        self.model = OverlayModel(seed)
        self.folder = self.model.make(ROOT, "node-1", FOLDER_MODE).number
        self.file = self.model.make(self.folder, "a", FILE_MODE).number
        self.model.sync(self.folder)
        self.faults = self.model.of("node-1")

    def inode(self) -> Inode:
        return self.model.inode(self.file)

    def append(self, data: bytes) -> int:
        return self.model.write(self.file, len(self.inode().data), data)

    def after_power_loss(self) -> bytes:
        self.model.power_loss("node-1")
        return bytes(self.inode().data)


@pytest.mark.parametrize("seed", range(30))
def test_power_loss_keeps_what_was_synced_and_a_part_of_the_rest(seed: int) -> None:
    disk = Disk(seed)
    disk.append(b"s" * 700)
    disk.model.sync(disk.file)
    disk.append(b"u" * 3000)
    left = disk.after_power_loss()
    assert left[:700] == b"s" * 700
    assert len(left) <= 3700
    assert disk.after_power_loss() == left


def test_power_losses_differ_in_what_they_leave() -> None:
    lefts = set()
    for seed in range(30):
        disk = Disk(seed)
        disk.append(b"u" * 3000)
        lefts.add(disk.after_power_loss())
    assert len(lefts) > 10
    assert b"u" * 3000 in lefts
    assert any(0 < left.count(b"u") < len(left) for left in lefts)


def test_names_are_lost_until_their_folder_is_synced() -> None:
    outcomes = set()
    for seed in range(20):
        disk = Disk(seed)
        disk.model.rename(disk.folder, "a", disk.folder, "b")
        disk.model.make(disk.folder, "c", FILE_MODE)
        disk.model.power_loss("node-1")
        outcomes.add(tuple(sorted(disk.model.inode(disk.folder).names)))
    assert outcomes == {("a",), ("b",), ("a", "c"), ("b", "c")}
    disk = Disk()
    disk.model.rename(disk.folder, "a", disk.folder, "b")
    disk.model.sync(disk.folder)
    disk.model.power_loss("node-1")
    assert list(disk.model.inode(disk.folder).names) == ["b"]


def test_truncation_that_is_not_synced_may_not_have_happened() -> None:
    outcomes = set()
    for seed in range(20):
        disk = Disk(seed)
        disk.append(b"0123456789")
        disk.model.sync(disk.file)
        disk.model.truncate(disk.file, 6)
        disk.model.truncate(disk.file, 3)
        outcomes.add(disk.after_power_loss())
    assert outcomes == {b"012", b"0123456789"}


def test_power_loss_of_one_disk_leaves_the_others_alone() -> None:
    disk = Disk()
    other = disk.model.make(ROOT, "node-2", FOLDER_MODE).number
    file = disk.model.make(other, "x", FILE_MODE).number
    disk.model.write(file, 0, b"unsynced")
    disk.model.power_loss("node-1")
    assert disk.model.inode(file).data == b"unsynced"


@pytest.mark.parametrize(
    ("field", "error"), [("space_bytes", errno.ENOSPC), ("quota_bytes", errno.EDQUOT)]
)
def test_full_disk_takes_what_fits_and_refuses_the_rest(field: str, error: int) -> None:
    disk = Disk()
    setattr(disk.faults, field, 100)
    assert disk.append(b"x" * 90) == 90
    assert disk.model.free_bytes("node-1") == 10
    with pytest.raises(OSError, match=os.strerror(error)):
        disk.append(b"x" * 11)
    assert len(disk.inode().data) == 90
    assert disk.append(b"x" * 10) == 10


def test_refused_calls_fail_once() -> None:
    disk = Disk()
    disk.faults.refuse = {"write": errno.EIO, "fsync": errno.EIO, "read": errno.EIO}
    calls = (
        lambda: disk.append(b"0123456789"),
        lambda: disk.model.sync(disk.file),
        lambda: disk.model.read(disk.file, 0, 5),
    )
    for call in calls:
        with pytest.raises(OSError, match="Input/output"):
            call()
        call()
    assert disk.faults.struck == {"write": 1, "fsync": 1, "read": 1}


def test_short_write_says_how_much_it_took() -> None:
    disk = Disk()
    disk.faults.is_short = True
    taken = disk.append(b"0123456789")
    assert 0 < taken < 10
    assert disk.inode().data == b"0123456789"[:taken]
    assert disk.append(b"rest") == 4


def test_read_only_disk_changes_nothing() -> None:
    disk = Disk()
    disk.faults.is_read_only = True
    changes = (
        lambda: disk.append(b"x"),
        lambda: disk.model.truncate(disk.file, 0),
        lambda: disk.model.make(disk.folder, "b", FILE_MODE),
        lambda: disk.model.rename(disk.folder, "a", disk.folder, "b"),
        lambda: disk.model.unlink(disk.folder, "a"),
        lambda: disk.model.sync(disk.file),
    )
    for change in changes:
        with pytest.raises(OSError, match="Read-only"):
            change()


def test_disk_that_ignores_syncs_keeps_nothing_of_them() -> None:
    lefts = set()
    for seed in range(20):
        disk = Disk(seed)
        disk.faults.ignores_syncs = True
        disk.append(b"u" * 3000)
        disk.model.sync(disk.file)
        lefts.add(disk.after_power_loss())
    assert len(lefts) > 5


def test_sync_that_lies_fails_once_and_its_bytes_are_gone_with_the_cache() -> None:
    disk = Disk()
    disk.append(b"kept")
    disk.model.sync(disk.file)
    disk.append(b"lost")
    disk.faults.is_lying = True
    with pytest.raises(OSError, match="Input/output"):
        disk.model.sync(disk.file)
    disk.model.sync(disk.file)
    assert disk.model.read(disk.file, 0, 8) == b"keptlost"
    assert disk.model.evict("node-1") == 4
    assert disk.model.read(disk.file, 0, 8) == b"kept\0\0\0\0"
    assert disk.model.evict("node-1") == 0
