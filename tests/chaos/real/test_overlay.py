"""The overlay as a mounted file system; skipped, with a remedy, where there is none."""

import mmap
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from raftmq.chaos.real.disk.disks import Disks, disks, why_no_overlay
from raftmq.log.files import RealFiles, prepare, publish
from tests.chaos.real.test_damage import make, readable

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(why_no_overlay()), reason=why_no_overlay()),
]

T = TypeVar("T")


async def on(made: Disks, work: Callable[[Path], T], node: int = 1) -> T:
    """Work on a node's folder, in a thread: the overlay is another process and this one waits."""
    data = made.folder / f"node-{node}"
    await trio.Path(data).mkdir(exist_ok=True)
    return await trio.to_thread.run_sync(work, data)


@pytest.mark.anyio
async def test_log_lives_on_the_overlay_and_survives_a_power_loss(tmp_path: Path) -> None:
    async with disks(tmp_path / "disks", seed=1, can_fail=True) as made:
        await on(made, lambda data: make(data, 30))
        for _ in range(3):
            await made.power_loss(1)
            assert await on(made, readable) == 30


@pytest.mark.anyio
async def test_unsynced_bytes_are_at_risk_and_synced_ones_are_not(tmp_path: Path) -> None:
    def write(data: Path) -> None:
        files = RealFiles()
        prepare(files, str(data), "a", [b"s" * 5_000]).close()
        publish(files, str(data), "a")
        file = files.open(str(data / "a"), writable=True)
        file.append([b"u" * 5_000])
        view = file.map()
        assert bytes(view[4_999:5_001]) == b"su"
        view.release()
        file.close()

    async with disks(tmp_path / "disks", seed=3, can_fail=True) as made:
        await on(made, write)
        assert await made.power_loss(1) == {"bytes": 5_000, "names": 0}
        left = await on(made, lambda data: (data / "a").read_bytes())
        assert left[:5_000] == b"s" * 5_000


@pytest.mark.anyio
async def test_reader_sees_what_the_disk_became_and_not_what_it_was(tmp_path: Path) -> None:
    def create(data: Path) -> None:
        (data / "a").write_bytes(b"x" * 4_096)
        with (data / "a").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as m:
            assert m[0] == ord("x")

    lefts = set()
    async with disks(tmp_path / "disks", seed=1, can_fail=True) as made:
        for node in range(1, 9):
            await on(made, create, node)
            await made.power_loss(node)
            lefts.add(await on(made, lambda data: tuple(p.name for p in data.iterdir()), node))
    assert lefts == {(), ("a",)}


@pytest.mark.anyio
async def test_faults_reach_system_calls_and_end_with_a_heal(tmp_path: Path) -> None:
    def append(data: Path) -> None:
        with (data / "a").open("ab", buffering=0) as file:
            file.write(b"0123456789")
            os.fdatasync(file.fileno())

    async def fails(made: Disks, why: str) -> None:
        with pytest.raises(OSError, match=why):
            await on(made, append)

    async with disks(tmp_path / "disks", seed=1, can_fail=True) as made:
        await on(made, append)
        await made.refuse(1, "fsync", 5)
        async with made.spared(1):
            # An edit of a stopped node's files meets no fault, and uses none up.
            await on(made, append)
        await fails(made, "Input/output")
        await made.refuse(1, "write", 5)
        await fails(made, "Input/output")
        await made.set(1, space_bytes=0)
        await fails(made, "No space left")
        await made.set(1, space_bytes=None, is_read_only=True)
        await fails(made, "Read-only")
        assert await made.heal(1) == {"fsync": 1, "write": 1, "ENOSPC": 1}
        await on(made, append)


@pytest.mark.anyio
async def test_space_is_that_of_the_disk_of_who_asks(tmp_path: Path) -> None:
    async with disks(tmp_path / "disks", seed=1, can_fail=True) as made:
        await made.set(1, space_bytes=1 << 20)
        free = RealFiles().free_bytes
        assert await on(made, lambda data: free(str(data))) > 1 << 30
        await made.work_for(1, os.getpid())
        assert await on(made, lambda data: free(str(data))) == 1 << 20


def test_mount_is_gone_when_it_ends_even_if_its_process_was_killed(tmp_path: Path) -> None:
    async def mount(folder: Path, *, is_killed: bool) -> None:
        async with disks(folder, seed=1, can_fail=True) as made:
            assert await trio.to_thread.run_sync(os.path.ismount, folder)
            if is_killed:
                assert made.process is not None
                made.process.kill()
                await made.process.wait()

    for is_killed in (False, True):
        folder = tmp_path / f"disks-{is_killed}"
        trio.run(partial(mount, folder, is_killed=is_killed))
        assert not os.path.ismount(folder)
        assert not any(folder.iterdir())
