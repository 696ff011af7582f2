"""A queue that is the only copy of its messages: rot costs no more than the bytes that rotted."""

import errno
import struct
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import raftmq
from raftmq.broker.replica import scrub
from raftmq.errors import Unavailable
from raftmq.log import index_file
from raftmq.log.index_file import HEADER_BYTES

SETTINGS: dict[str, Any] = {"log": {"segment_bytes": 65536, "scrub_bytes_per_second": 0}}
SCRUBBED: dict[str, Any] = {"log": {"segment_bytes": 65536, "scrub_bytes_per_second": 1 << 26}}
SECTION = struct.Struct("<QII")
COUNT = 200


@pytest.fixture(params=["trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """One is enough: rot has no backend."""
    return str(request.param)


async def fill(folder: Path, count: int = COUNT) -> Path:
    """A queue with `count` messages under seven keys; the folder of its group."""
    async with raftmq.open(folder, settings=SETTINGS) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.producer("orders") as producer:
            for n in range(count):
                await producer.send(b"%d " % n + b"x" * 1000, key=f"k{n % 7}")
        group = folder / "groups/00001"
        while count == COUNT and len(indexes(group)) < 2:
            await anyio.sleep(0.05)
    return group


def indexes(group: Path) -> list[Path]:
    """The index files of sealed segments."""
    return sorted(group.glob("*.index"))


async def read_all(mq: Any) -> list[int]:
    """The numbers of all messages."""
    found: list[int] = []
    async with mq.consumer("orders", start="earliest") as consumer:
        while messages := await consumer.fetch(500, wait=0.5):
            found += [int(message.body.split()[0]) for message in messages]
    return found


def flip(path: Path, byte: int) -> None:
    """Invert a bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def column(path: Path, number: int) -> tuple[int, int]:
    """Where a section of an index stands, and its entries."""
    offset, length, _ = SECTION.unpack_from(path.read_bytes(), 80 + number * SECTION.size)
    assert offset >= HEADER_BYTES
    return offset, length


@pytest.mark.anyio
@pytest.mark.parametrize("count", [5, COUNT])
async def test_bit_in_the_oldest_snapshot_costs_nothing(tmp_path: Path, count: int) -> None:
    group = await fill(tmp_path, count)
    oldest = min(group.glob("*.snapshot"))
    size = oldest.stat().st_size
    for byte in (0, 8, 20, 40, 79, size - 1):
        flip(oldest, byte)
        async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
            assert await read_all(mq) == list(range(count))
        assert not list(group.glob("*rotten*"))
        assert not (group / "ABSTAIN").exists()


@pytest.mark.anyio
async def test_rot_in_the_last_segment_is_told_at_once_and_nothing_is_cut(tmp_path: Path) -> None:
    group = await fill(tmp_path, 50)
    (log,) = group.glob("*.log")
    flip(log, log.stat().st_size // 2)
    before = {path.name: path.read_bytes() for path in group.iterdir()}
    with pytest.raises(Unavailable, match=r"(?s)RotFound.*the only copy.*backup"):
        async with raftmq.open(tmp_path, settings=SETTINGS):
            pass
    assert {path.name: path.read_bytes() for path in group.iterdir()} == before
    flip(log, log.stat().st_size // 2)
    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        assert await read_all(mq) == list(range(50))


@pytest.mark.anyio
async def test_rot_in_all_snapshots_is_told_at_once_and_none_is_removed(tmp_path: Path) -> None:
    group = await fill(tmp_path)
    snapshots = sorted(group.glob("*.snapshot"))
    assert len(snapshots) > 1
    for snapshot in snapshots:
        flip(snapshot, snapshot.stat().st_size - 1)
    # The group's founding snapshot is known; that of a later start is not.
    snapshots[0].unlink()
    before = {path.name: path.read_bytes() for path in snapshots[1:]}
    with pytest.raises(Unavailable, match=r"(?s)RotFound.*the only copy.*backup"):
        async with raftmq.open(tmp_path, settings=SETTINGS):
            pass
    assert {path.name: path.read_bytes() for path in group.glob("*.snapshot")} == before


@pytest.mark.anyio
@pytest.mark.parametrize("number", [9, 10])
async def test_rot_in_a_rarely_read_column_is_built_again_when_it_is_met(
    tmp_path: Path, number: int
) -> None:
    group = await fill(tmp_path)
    index = indexes(group)[0]
    before = index.read_bytes()
    flip(index, column(index, number)[0])
    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        assert len(await mq.find("orders", key="k1")) == len(range(1, COUNT, 7))
    assert index.read_bytes() == before


@pytest.mark.anyio
async def test_rot_in_the_events_is_built_again_when_a_message_is_asked_about(
    tmp_path: Path,
) -> None:
    async def words(mq: Any) -> list[str]:
        return [event.what for event in await mq.why(first)]

    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with (
            mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer,
            mq.producer("orders") as producer,
        ):
            first = (await producer.send(b"first")).id
            (message,) = await consumer.pop(1, wait=5.0)
            await message.extend(60)
            await message.ack()
            await producer.send_many(bodies=[b"x" * 1000] * COUNT)
        group = tmp_path / "groups/00001"
        while not indexes(group):
            await anyio.sleep(0.05)
        told = await words(mq)
    assert told[0] == "stored"
    assert "extended" in told
    assert told[-1] == "acked"
    index = indexes(group)[0]
    before = index.read_bytes()
    offset, length = column(index, 11)
    assert length > 3 * 64
    # A row's kind, a row's token, the number of rows.
    for byte in (offset + 8 + 62, offset + 8 + 64 + 8, offset):
        flip(index, byte)
        async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
            assert set(await words(mq)) <= set(told)
            while index.read_bytes() != before:
                await anyio.sleep(0.05)
            assert await words(mq) == told


@pytest.mark.anyio
async def test_trace_that_meets_rot_says_so_and_has_the_index_built_again(tmp_path: Path) -> None:
    group = await fill(tmp_path, 5)
    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        async with mq.consumer("orders", group="g", mode="pop") as consumer:
            (message, *_) = await consumer.pop(1, wait=5.0)
            await message.ack()
        async with mq.producer("orders") as producer:
            for _ in range(COUNT):
                await producer.send(b"x" * 1000)
        whole = await mq.trace(message.id)
        while not indexes(group):
            await anyio.sleep(0.05)
    assert whole.is_whole
    index = indexes(group)[0]
    before = index.read_bytes()
    offset, length = column(index, 11)
    assert length
    flip(index, offset)
    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        assert not (await mq.trace(message.id)).is_whole
        with anyio.fail_after(60):
            while index.read_bytes() != before:
                await anyio.sleep(0.05)
        again = await mq.trace(message.id)
    # A node that was started again does not know who led before.
    assert [each._replace(node=0) for each in again.events] == [
        each._replace(node=0) for each in whole.events
    ]


@pytest.mark.anyio
async def test_look_for_a_key_without_descriptors_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    refused: list[int] = []
    original = index_file._read_again

    def read(*arguments: Any) -> bytes:
        if len(refused) < 3:
            refused.append(1)
            raise OSError(errno.EMFILE, "too many open files")
        return original(*arguments)

    monkeypatch.setattr(index_file, "_read_again", read)
    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        assert len(await mq.find("orders", key="k1")) == len(range(1, COUNT, 7))
    assert len(refused) == 3


@pytest.mark.anyio
async def test_look_for_a_key_reads_indexes_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    threads: set[str] = set()
    original = index_file._read_again

    def read(*arguments: Any) -> bytes:
        threads.add(threading.current_thread().name)
        return original(*arguments)

    monkeypatch.setattr(index_file, "_read_again", read)
    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        assert len(await mq.find("orders", key="k1")) == len(range(1, COUNT, 7))
    assert threads == {"raftmq-read-1"}


@pytest.mark.anyio
async def test_scrub_finds_rot_in_any_column_and_in_the_only_snapshot(tmp_path: Path) -> None:
    group = await fill(tmp_path)
    index = indexes(group)[0]
    before = index.read_bytes()
    numbers = [number for number in (9, 10, 11) if column(index, number)[1]]
    assert len(numbers) > 1
    for number in numbers:
        flip(index, column(index, number)[0])
    async with raftmq.open(tmp_path, settings=SCRUBBED) as mq:
        with anyio.fail_after(60):
            while index.read_bytes() != before:
                await anyio.sleep(0.1)
        assert await read_all(mq) == list(range(COUNT))


@pytest.mark.anyio
async def test_only_snapshot_that_rots_is_replaced_by_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "ROUND_SECONDS_MIN", 0.5)
    group = await fill(tmp_path, 5)
    (oldest,) = group.glob("*.snapshot")
    async with raftmq.open(tmp_path, settings=SCRUBBED) as mq:
        flip(oldest, 40)
        async with mq.producer("orders") as producer:
            await producer.send(b"5 ", key="k")
        with anyio.fail_after(60):
            while len(list(group.glob("*.snapshot"))) < 2:
                await anyio.sleep(0.1)
    async with raftmq.open(tmp_path, settings=SETTINGS) as mq:
        assert await read_all(mq) == list(range(6))
