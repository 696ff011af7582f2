"""The driver is killed by `kill -9` in the middle of a batch, and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.nodes import Nodes

from .attempts import stored

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

FILES, ROWS = 1, 300_000


@contextmanager
def driver(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`stream_driver` as a process of its own; at the end it is killed."""
    program = Path(__file__).with_name("stream_driver.py")
    process = subprocess.Popen([sys.executable, str(program), *words], start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def count(mq: "BlockingClient", topic: str) -> int:
    return sum(queue.end for queue in mq.admin.describe_topic(topic).queues)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_killed_driver_stores_each_row_once(
    mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(FILES):
        lines = [f'{{"body":"{n}","key":"k{n % 9}"}}\n' for n in range(file, FILES * ROWS, FILES)]
        (folder / f"{file}.json").write_text("".join(lines))
    words = (str(folder), topic, checkpoint, nodes.url)
    for batch in range(FILES):
        with driver(*words) as process:
            # In the middle of the batch, and so of a task.
            while count(mq, topic) < batch * ROWS + ROWS // 4:
                assert process.poll() is None
                time.sleep(0.01)
    killed_at = count(mq, topic)
    assert killed_at < FILES * ROWS
    with driver(*words) as process:
        assert process.wait(300) == 0
    assert stored(mq, topic) == sorted(b"%d" % n for n in range(FILES * ROWS))
