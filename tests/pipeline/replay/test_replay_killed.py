"""The driver of a replay is killed by `kill -9`, and started again."""

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.archive.archives import archived
from tests.pipeline.archive.drivers import driver
from tests.pipeline.archive.rowsets import rows
from tests.pipeline.nodes import Nodes
from tests.pipeline.replay.test_replay_job import places, received

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_killed_replay_adds_what_is_missing_and_nothing_twice(
    mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    archived(tmp_path, rows(0, 4000), rows(0, 4000, queue=1))
    words = ["replay", str(tmp_path), "--topic", "orders", "--into", topic]
    words += ["--max-per-trigger", "1000"]

    def stored() -> int:
        return sum(queue.end for queue in mq.admin.describe_topic(topic).queues)

    # In the middle of its first batch, and of one of the others.
    for wanted in (1, random.Random(7).randint(2000, 6000)):
        with driver(nodes, *words) as process:
            while stored() < wanted:
                assert process.poll() is None
                time.sleep(0.01)
            process.kill()
            process.wait()
    with driver(nodes, *words) as process:
        assert process.wait() == 0
    assert places(received(mq, topic)) == [(q, q, n) for q in range(2) for n in range(4000)]
