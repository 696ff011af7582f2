"""Backups of a running cluster: increments, restored clusters, damage, stopped runs."""

import os
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from raftmq.backup.copying import Copying, Taken
from raftmq.backup.manifest import BackupFault, Folder
from raftmq.backup.replay import Replay
from raftmq.backup.restoring import NewNode, Restored, Restoring
from raftmq.backup.verification import verify
from raftmq.client import Client
from raftmq.inprocess.cluster import InProcessCluster, in_process
from raftmq.log.files import RealFiles
from raftmq.log.record import decode_many
from raftmq.machine.catalog.replicas import generation_of, node_of

from .loaded import GROUP, HOST, NEW_CLUSTER, QUEUES, READERS, SETTINGS, TOPIC, read, restored, send

pytestmark = [pytest.mark.process, pytest.mark.anyio]

SEGMENT_BYTES = 64 * 1024


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def take(mq: Client, folder: Path) -> Taken:
    return await Copying(mq, RealFiles(), str(folder), segment_bytes=SEGMENT_BYTES).take()


def restore(
    folder: Path,
    data: Path,
    *,
    number: int | None = None,
    cluster: str = NEW_CLUSTER,
    node: int = 1,
) -> Restored:
    new = NewNode(cluster, node, HOST, node)
    restoring = Restoring(
        RealFiles(), str(folder), str(data), new, number=number, segment_bytes=SEGMENT_BYTES
    )
    return restoring.restore()


def sizes(folder: Path) -> dict[Path, bytes]:
    """The bytes of all files of logs."""
    return {path: path.read_bytes() for path in folder.rglob("*.*") if path.suffix != ".json"}


async def test_each_backup_of_a_folder_is_restored_as_the_cluster_was(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with in_process(settings=SETTINGS) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await mq.admin.create_consumer_group(GROUP)
        await send(mq, 0, 900)
        async with mq.consumer(TOPIC, group=GROUP, mode="pop") as consumer:
            for m in await consumer.pop(30):
                await m.ack()
        async with mq.consumer(TOPIC, group=READERS) as reader:
            got = await reader.fetch(100)
            await reader.commit()
            committed = dict(reader.position)
        assert got
        async with mq.claimed_producer(TOPIC, "nightly") as job:
            await job.send_many(bodies=[b"row"] * 7, queue=0)
        # A group's leader changes: terms and memberships of the copies are not all the first ones.
        await nodes.kill(await nodes.leader(1))
        await send(mq, 900, 90)
        early = await read(mq)
        stop, sent = anyio.Event(), [990]

        async def keep_sending() -> None:
            while not stop.is_set():
                await send(mq, sent[0], 30)
                sent[0] += 30

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_sending)
            first = await take(mq, folder)
            stop.set()
        before = sizes(folder)
        await mq.admin.create_topic("refunds", queues=1)
        await send(mq, sent[0], 600)
        second = await take(mq, folder)
        late = await read(mq)
        await take(mq, folder)
    after = sizes(folder)
    assert second.bytes < first.bytes
    assert {path: after[path] for path in before} == before
    assert [group.fault for group in verify(RealFiles(), str(folder)).groups] == [""] * 4

    for number, taken in enumerate((first, second), start=1):
        home = tmp_path / f"home-{number}"
        restore(folder, home / "node-1", number=number)
        async with restored(home) as nodes, nodes.connect() as mq:
            found = await read(mq)
            # What was acknowledged before the backup began is there, in the same places.
            assert found.items() >= (early if number == 1 else late).items()
            assert found.items() <= late.items()
            topics = {topic.name for topic in await mq.admin.list_topics()}
            assert topics == {TOPIC, *(["refunds"] if number == 2 else [])}
            backlogs = await mq.admin.backlogs(topic=TOPIC, group=GROUP)
            assert sum(backlog.acked for backlog in backlogs) == 30
            async with mq.consumer(TOPIC, group=READERS) as reader:
                assert dict(reader.position) == committed
            async with mq.claimed_producer(TOPIC, "nightly") as job:
                assert job.stored[0].count == 7
            await check_digests(mq, nodes, folder, taken)
            # It goes on as a cluster.
            await send(mq, 10_000, 30)
            assert len(await read(mq)) == len(found) + 30


async def check_digests(mq: Client, nodes: InProcessCluster, folder: Path, taken: Taken) -> None:
    """The node's machines are those of the backup, with the records that the node has since."""
    manifest = Folder(RealFiles(), str(folder)).read()
    for standing in taken.point.groups[1:]:
        replay = Replay(Folder(RealFiles(), str(folder)), manifest, standing.group)
        for _ in replay.records(standing.index):
            pass
        assert replay.machine.digest == standing.digest
        log = await mq.admin.log(standing.group)
        assert log.last > standing.index
        while replay.machine.applied < log.last:
            low = replay.machine.applied + 1
            for record in decode_many(
                await mq.admin.log_records(standing.group, low, log.last + 1)
            ):
                replay.machine.apply(record)
        assert replay.machine.digest == log.digest
    (status,) = (await nodes.statuses()).values()
    members = {member for group in status["groups"] for member in group["voters"]}
    # No member of the old cluster: those were of generation 0.
    assert [(node_of(member), generation_of(member)) for member in members] == [(1, 1)]


async def test_flipped_byte_in_each_kind_of_file_is_found_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with in_process(1, settings=SETTINGS) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await send(mq, 0, 900)
        await take(mq, folder)
        await send(mq, 900, 90)
        await take(mq, folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 16)
    files = [path for path in files if path.name != "LOCK"]
    assert {path.suffix for path in files} == {".json", ".log", ".snapshot"}
    for path in files:
        sound = path.read_bytes()
        for at in sorted({0, 20, len(sound) // 3, len(sound) // 2, len(sound) - 2}):
            damaged = bytearray(sound)
            damaged[at] ^= 0x01
            path.write_bytes(damaged)
            text = faults(folder)
            assert str(path) in text, f"byte {at} of {path}: {text or 'not found'}"
            with pytest.raises(BackupFault):
                restore(folder, tmp_path / "home")
            assert os.listdir(tmp_path) == ["backup"]
        path.write_bytes(sound)
        assert not faults(folder)


def faults(folder: Path) -> str:
    try:
        return "; ".join(g.fault for g in verify(RealFiles(), str(folder)).groups if g.fault)
    except BackupFault as fault:
        return str(fault)


async def test_catalog_is_copied_last_and_no_faster_than_the_rate(tmp_path: Path) -> None:
    async with in_process(1, settings=SETTINGS) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await send(mq, 0, 900)
        groups: list[int] = []
        started = anyio.current_time()
        copying = Copying(
            mq,
            RealFiles(),
            str(tmp_path / "backup"),
            rate=400_000,
            on_bytes=lambda group, _: groups.append(group),
        )
        taken = await copying.take()
        assert anyio.current_time() - started >= taken.bytes / 400_000
    assert list(dict.fromkeys(groups)) == [1, 0]


@pytest.mark.parametrize("field", ["index", "term", "crc", "digest"])
async def test_state_that_is_not_the_one_of_the_manifest_is_found(
    field: str, tmp_path: Path
) -> None:
    async with in_process(1, settings=SETTINGS) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await send(mq, 0, 90)
        taken = await take(mq, tmp_path / "backup")
    folder = Folder(RealFiles(), str(tmp_path / "backup"))
    system, data = taken.point.groups
    other = replace(data, **{field: getattr(data, field) - 1})
    point = replace(taken.point, groups=[system, other])
    folder.write(replace(folder.read(), points=[point]))
    assert "groups/00001: the state after record" in faults(tmp_path / "backup")
    with pytest.raises(BackupFault, match="the state after record"):
        restore(tmp_path / "backup", tmp_path / "home")


async def test_missing_file_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with in_process(1, settings=SETTINGS) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await send(mq, 0, 900)
        await take(mq, folder)
    for path in (*folder.glob("groups/00001/*.log"), *folder.glob("groups/00001/*.snapshot")):
        sound = path.read_bytes()
        path.unlink()
        assert "groups/00001" in faults(folder), path
        path.write_bytes(sound)
    (folder / "manifest.json").unlink()
    assert "manifest.json is missing" in faults(folder)


async def test_stopped_backup_is_taken_up_and_leaves_finished_ones_whole(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with in_process(1, settings=SETTINGS) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await send(mq, 0, 90)
        await take(mq, folder)
        await send(mq, 90, 6000)
        size = sum(path.stat().st_size for path in nodes.data(1).rglob("*.log"))

        class Stopped(Exception):
            pass

        def stop(group: int, count: int) -> None:
            copied.append(count)
            if sum(copied) > size // 2:
                raise Stopped

        copied: list[int] = []
        with pytest.raises(Stopped):
            await Copying(mq, RealFiles(), str(folder), on_bytes=stop).take()
        # As after a power loss: a part of the last write is missing.
        newest = max(folder.glob("groups/00001/*.log"))
        newest.write_bytes(newest.read_bytes()[:-7])
        assert not faults(folder)
        assert len(verify(RealFiles(), str(folder)).manifest.points) == 1
        rest = await take(mq, folder)
        expected = await read(mq)
    assert rest.number == 2
    assert 0 < rest.bytes < size
    assert not faults(folder)
    restore(folder, tmp_path / "home" / "node-1")
    async with restored(tmp_path / "home") as nodes, nodes.connect() as mq:
        assert await read(mq) == expected


async def test_folder_of_another_cluster_or_with_other_files_is_refused(tmp_path: Path) -> None:
    other: dict[str, dict[str, int | str]] = {**SETTINGS, "node": {"cluster": "another"}}
    async with in_process(1, settings=SETTINGS) as nodes, nodes.connect() as mq:
        await take(mq, tmp_path / "backup")
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "list.txt").write_text("mine")
        with pytest.raises(BackupFault, match=r"manifest\.json is missing"):
            await take(mq, tmp_path / "notes")
    async with in_process(1, settings=other) as nodes, nodes.connect() as mq:
        with pytest.raises(BackupFault, match="not of 'another'"):
            await take(mq, tmp_path / "backup")
    for data in (tmp_path / "notes", tmp_path / "notes" / "list.txt"):
        with pytest.raises(BackupFault, match="not empty"):
            restore(tmp_path / "backup", data)
    with pytest.raises(BackupFault, match="another name"):
        restore(tmp_path / "backup", tmp_path / "new", cluster="in-process")
    with pytest.raises(BackupFault, match="backups 1 to 1, not 2"):
        restore(tmp_path / "backup", tmp_path / "new", number=2)
    assert (tmp_path / "notes" / "list.txt").read_text() == "mine"


async def test_backup_behind_retention_asks_for_a_new_folder(tmp_path: Path) -> None:
    log = {**SETTINGS["log"], "retention_bytes": 64 * 1024}
    settings: dict[str, dict[str, int | str]] = {**SETTINGS, "log": log}
    async with in_process(1, settings=settings) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await take(mq, tmp_path / "backup")
        with anyio.fail_after(60):
            # A queue may have got its first messages late, in a segment that stays at first.
            while 0 in (await mq.admin.find_offsets(TOPIC, "earliest")).values():
                await send(mq, 0, 900)
            while (await mq.admin.log(1)).snapshot == 1:
                await send(mq, 0, 900)
        with pytest.raises(BackupFault, match="into a new folder"):
            await take(mq, tmp_path / "backup")
        assert not faults(tmp_path / "backup")
        await take(mq, tmp_path / "later")
        expected = await read_kept(mq)
        assert min(offset for _, offset in expected) > 0
    restore(tmp_path / "later", tmp_path / "home" / "node-1")
    async with restored(tmp_path / "home") as nodes, nodes.connect() as mq:
        # Retention may have gone on at the old cluster after the backup.
        assert (await read_kept(mq)).items() >= expected.items()


async def read_kept(mq: Client) -> dict[tuple[int, int], bytes]:
    """The messages that are kept, by queue and offset."""
    ends = await mq.admin.find_offsets(TOPIC, "latest")
    found: dict[tuple[int, int], bytes] = {}
    async with mq.consumer(TOPIC, start="earliest", on_trimmed="earliest") as consumer:
        while any(consumer.position[queue] < end for queue, end in ends.items()):
            found |= {(m.queue, m.offset): m.body for m in await consumer.fetch(500)}
    return found
