"""A disk that is really full: a small tmpfs for each node.

A leader whose disk is full hands over to a node with space; if there is none, it refuses and says
why, and its queues wait until there is space.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

import raftmq
from raftmq.errors import OutcomeUnknown, Unavailable
from raftmq.testing import Cluster, cluster

pytestmark = [pytest.mark.process, pytest.mark.anyio]

MIB = 1024 * 1024
DISK_BYTES = 24 * MIB
BALLAST_BYTES = 8 * MIB
BODY = bytes(100_000)
SETTINGS = {"log": {"segment_bytes": MIB, "cache_bytes": MIB, "reserve_bytes": 2 * MIB}}


class Disks:
    """One small file system for each node, mounted where its data folder will be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mounted = ExitStack()

    def mount(self) -> None:
        """Mount and put some ballast on each; skip the test where that is not allowed."""
        for node in (1, 2, 3):
            place = self.folder / f"node-{node}"
            place.mkdir(parents=True)
            size = f"size={DISK_BYTES}"
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                self.close()
                pytest.skip(f"a small disk needs the right to mount a tmpfs: {done.stderr.strip()}")
            self._mounted.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
            self.ballast(node).write_bytes(bytes(BALLAST_BYTES))

    def ballast(self, node: int) -> Path:
        """A file whose removal gives space."""
        return self.folder / f"node-{node}" / "ballast"

    def close(self) -> None:
        """Unmount all."""
        self._mounted.close()


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path / "cluster")
    made.mount()
    yield made
    made.close()


async def fill(producer: raftmq.Producer) -> tuple[list[raftmq.Receipt], str]:
    """Send until the cluster refuses: the receipts of acked messages, and the reason."""
    receipts = []
    while True:
        try:
            receipts.append(await producer.send(BODY, queue=0, timeout=3.0))
        except (Unavailable, OutcomeUnknown) as error:
            return receipts, str(error)
        assert len(receipts) * len(BODY) < 3 * DISK_BYTES, "the disk does not fill"


async def send_again(producer: raftmq.Producer, *, timeout: float) -> raftmq.Receipt:
    """Send one message, trying until the time is over."""
    with anyio.fail_after(timeout):
        while True:
            try:
                return await producer.send(b"again", queue=0, timeout=5.0)
            except (Unavailable, OutcomeUnknown):
                continue


async def bodies_of(mq: raftmq.Client) -> list[bytes]:
    """All that queue 0 holds."""
    async with mq.consumer("t", queues=[0]) as consumer:
        end = (await mq.admin.find_offsets("t", "latest", queues=[0]))[0]
        found: list[bytes] = []
        while consumer.position[0] < end:
            batch = await consumer.fetch(wait=5.0)
            assert batch, f"nothing to read at {consumer.position}, the end is {end}"
            found += batch.bodies
        return found


async def assert_alive(nodes: Cluster) -> None:
    """No process has ended."""
    assert [nodes.exit_status(node) for node in nodes.nodes] == [None] * 3


async def test_full_disks_refuse_writes_serve_reads_and_recover(disks: Disks) -> None:
    async with (
        cluster(folder=disks.folder, settings=SETTINGS) as nodes,
        raftmq.connect(nodes.url) as mq,
    ):
        await mq.admin.create_topic("t", queues=3)
        async with mq.producer("t") as producer:
            receipts, why = await fill(producer)
            await assert_alive(nodes)
            assert "the disk of node" in why
            assert "reads go on" in why
            assert len(receipts) > 20
            stored = await bodies_of(mq)
            assert stored[: len(receipts)] == [BODY] * len(receipts)
            for node in nodes.nodes:
                disks.ballast(node).unlink()
            receipt = await send_again(producer, timeout=40.0)
        await assert_alive(nodes)
        assert receipt.offset is not None
        assert receipt.offset >= len(receipts)
        stored = await bodies_of(mq)
        assert stored[: len(receipts)] == [BODY] * len(receipts)
        assert stored[receipt.offset] == b"again"


async def test_one_full_disk_stops_nothing_as_its_node_gives_away_what_it_leads(
    disks: Disks,
) -> None:
    async with (
        cluster(folder=disks.folder, settings=SETTINGS) as nodes,
        raftmq.connect(nodes.url) as mq,
    ):
        await mq.admin.create_topic("t", queues=3)
        led = [queue.leader for queue in (await mq.admin.describe_topic("t")).queues]
        full = led[0]
        filler = disks.folder / f"node-{full}" / "filler"
        fill_up(filler)
        async with mq.producer("t") as producer:
            for queue in range(3):
                for _ in range(10):
                    await producer.send(BODY, queue=queue, timeout=20.0)
            await assert_alive(nodes)
            view = await mq.admin.cluster()
            assert full not in [group.leader for group in view.groups]
            assert (await mq.admin.status(full))["leads"] == []
            filler.unlink()
            disks.ballast(full).unlink()
            with anyio.fail_after(40.0):
                while led[0] not in (await mq.admin.status(full))["leads"]:
                    await anyio.sleep(0.5)
            await producer.send(b"again", queue=0, timeout=20.0)
        stored = await bodies_of(mq)
        assert stored == [BODY] * 10 + [b"again"]


def fill_up(file: Path) -> None:
    """Leave no byte free."""
    with file.open("wb", buffering=0) as opened:
        try:
            while True:
                opened.write(bytes(4096))
        except OSError:
            return
