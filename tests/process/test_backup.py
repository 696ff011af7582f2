"""The commands of `raftmq backup` on real processes: killed while they copy, and a cluster that
grows from a restored folder after the old one is gone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import raftmq
from raftmq.broker.local_nodes import toml_text
from raftmq.testing import cluster, free_ports
from tests.backup.loaded import QUEUES, TOPIC, read, send
from tests.cli.command_line import process

pytestmark = [pytest.mark.process, pytest.mark.anyio]

SECONDS_MAX = 60.0
PYTHON = (sys.executable, "-m", "raftmq")
QUICK = {"raft": {"tick_ms": 20}}


async def command(*words: object) -> str:
    """Run a command that must end well; what it printed."""
    ended = await anyio.to_thread.run_sync(process, [str(word) for word in words])
    assert ended.code == 0, ended.stderr
    return ended.stdout


def started(words: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*PYTHON, *words])


@contextmanager
def serving(config: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A node, killed at the end."""
    with config.with_suffix(".err").open("ab") as err:
        node = subprocess.Popen([*PYTHON, "serve", "-c", str(config)], stderr=err)
    try:
        yield node
    finally:
        node.kill()
        node.wait()


def settings(folder: Path, node: int, ports: dict[int, int]) -> Path:
    """The settings of a node of the new cluster; node 1 is the restored one, the others join."""
    others = [{"id": 1, "host": "127.0.0.1", "port": ports[1]}]
    own: dict[str, Any] = {"id": node, "cluster": "again", "port": ports[node]}
    own |= {"data": str(folder / f"new-{node}"), "peers" if node == 1 else "join": others}
    tables = {"node": own, **QUICK}
    config = folder / f"new-{node}.toml"
    config.write_text(toml_text(tables))
    return config


async def wait_copied(mq: raftmq.Client, nodes: set[int]) -> None:
    """Wait until these nodes vote in every group, and each of them knows it: one that does not know
    the end of the change would count on the only voter before."""
    with anyio.fail_after(SECONDS_MAX):
        for node in nodes:
            while not all(
                len(group["voters"]) == len(nodes) and not group["voters_outgoing"]
                for group in (await mq.admin.status(node))["groups"]
            ):
                await anyio.sleep(0.2)


async def test_killed_backup_is_taken_up_and_a_cluster_grows_from_it(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with cluster(settings=QUICK) as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await send(mq, 0, 6000)
        words = ["backup", "take", str(folder), "--rate", "500kB/s", "--url", nodes.url]
        taking = started(words)
        with anyio.fail_after(SECONDS_MAX):
            while sum(p.stat().st_size for p in folder.rglob("*.log")) < 200_000:
                await anyio.sleep(0.02)
        taking.kill()
        assert taking.wait() == -9
        ended = process(["backup", "verify", str(folder)])
        assert (ended.code, "no finished backup" in ended.stderr) == (4, True)
        taken = json.loads(
            await command("backup", "take", folder, "--url", nodes.url, "-o", "json")
        )
        # Only the rest was copied.
        assert 0 < taken["bytes"] < sum(p.stat().st_size for p in folder.rglob("*.log")) - 150_000
        expected = await read(mq)
    assert '"fault": ""' in await command("backup", "verify", folder, "-o", "json")

    ports = dict(zip((1, 2, 4), free_ports(3), strict=True))
    configs = {node: settings(tmp_path, node, ports) for node in ports}
    await command("backup", "restore", folder, "-c", configs[1])
    again = process(["backup", "restore", str(folder), "-c", str(configs[1])])
    assert (again.code, "is not empty" in again.stderr) == (1, True)
    # The old cluster's nodes do not take the folder for theirs.
    old = process(["serve", "-c", str(configs[1]), "--set", "node.cluster=testing"])
    assert (old.code, "belongs to node 1 of cluster 'again'" in old.stderr) == (1, True)
    url = "raftmq://" + ",".join(f"127.0.0.1:{port}" for port in ports.values())
    with serving(configs[1]) as first, serving(configs[2]), serving(configs[4]):
        async with raftmq.connect(url, timeout=SECONDS_MAX) as mq:
            assert await read(mq) == expected
            # One number was the old cluster's, the other is new.
            for node in (2, 4):
                await mq.admin.add_node(node, "127.0.0.1", ports[node])
            await wait_copied(mq, {1, 2, 4})
            first.kill()
            await send(mq, 6000, 30)
            found = await read(mq)
            assert found.items() >= expected.items()
            assert len(found) == 6030
