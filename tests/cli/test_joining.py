"""A process that joins or leaves a cluster reports at once why it waits, and that it has left."""

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.cli.node.playground import choose_ports
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.process

SECONDS_MAX = 60.0


class Words:
    """A process's lines on stderr, each with its time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[tuple[float, str]] = queue.Queue()
        self._stream = process.stderr
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._stream is not None
        for line in self._stream:
            self._lines.put((time.monotonic(), line))

    def wait_for(self, words: str) -> tuple[float, str]:
        """The first line with these words, and when it came."""
        until = time.monotonic() + SECONDS_MAX
        while True:
            at, line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            if words in line:
                return at, line


@pytest.fixture
def fourth(cluster: LocalCluster, tmp_path: Path) -> Iterator[tuple[Words, str]]:
    """A node that asks the three others to be let in, and its address."""
    (port,) = choose_ports(1, 20_000, any_port=True)
    founders = cluster.state.nodes
    settings = cluster.playground.config(1).read_text()
    (name,) = re.findall(r'^cluster = "(.*)"$', settings, re.MULTILINE)
    join = [
        '{{ id = {}, host = "{}", port = {} }}'.format(each.id, *each.address.split(":"))
        for each in founders
    ]
    config = tmp_path / "node.toml"
    config.write_text(
        f'[node]\nid = 4\ncluster = "{name}"\nhost = "127.0.0.1"\nport = {port}\n'
        f'data = "{tmp_path / "data"}"\njoin = [{", ".join(join)}]\n'
    )
    with subprocess.Popen(
        [sys.executable, "-m", "raftmq", "serve", "-c", str(config)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield Words(process), f"127.0.0.1:{port}"
        process.kill()


def test_newcomer_says_what_to_type_and_soon_that_it_is_removed(
    raftmq: CommandLine, fourth: tuple[Words, str]
) -> None:
    words, address = fourth
    served, _ = words.wait_for("serving")
    said, line = words.wait_for("waits")
    assert said - served < 4
    assert f"`raftmq cluster add 4 {address}`" in line
    raftmq.ok("cluster", "add", "4", address)
    words.wait_for("is a member of the cluster")
    raftmq.ok("cluster", "remove", "4", "--yes")
    removed = time.monotonic()
    out, _ = words.wait_for("removed from the cluster")
    assert out - removed < 4
