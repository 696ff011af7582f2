"""The driver is killed by `kill -9` while it archives, and started again."""

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline.archive import manifest
from tests.pipeline.archive.archives import held
from tests.pipeline.archive.drivers import driver
from tests.pipeline.archive.test_archive_job import numbers, send
from tests.pipeline.archive.test_verify import findings
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient


def version(folder: Path) -> int:
    return manifest.newest(folder).version if folder.exists() else 0


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_killed_driver_archives_each_message_once(
    mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    folder, chance = tmp_path / "archive", random.Random(6)
    words = ("archive", "run", topic, "--to", str(folder), "--once", "--max-per-trigger", "700")
    send(mq, topic, 0, 3000)
    total = 3000
    for _ in range(2):
        with driver(nodes, *words) as process:
            wanted = version(folder) + chance.randint(1, 2)
            while version(folder) < wanted:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(chance.random() / 2)
            # Python alone; its Java is killed a moment later.
            process.kill()
            process.wait()
        before = numbers(held(folder))
        assert len(before) == len(set(before))
        send(mq, topic, total, total + 100)
        total += 100
    with driver(nodes, *words) as process:
        assert process.wait() == 0
    assert numbers(held(folder)) == [*range(total)]
    assert findings(folder, is_deep=True) == []
