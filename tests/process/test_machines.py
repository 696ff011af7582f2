"""`raftmq serve --nodes` with real processes: machines that run two nodes each."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.cli.node.notify import parse
from raftmq.testing import free_ports
from tests.cli.command_line import process
from tests.cli.local_cluster import is_alive, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

SECONDS_MAX = 120.0


class Machine:
    """One machine, at an address of its own: its settings, and the process that runs its nodes."""

    def __init__(self, folder: Path, number: int, port: int) -> None:
        self.folder = folder
        self.number = number
        self.host = f"127.0.0.{number}"
        self.port = port
        self.config = folder / "node.toml"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    @property
    def rows(self) -> list[str]:
        """Its two nodes as they stand in `peers`."""
        return [
            f'{{ id = {self.number + at * 100}, host = "{self.host}", port = {self.port + at} }}'
            for at in (0, 1)
        ]

    def found(self, machines: "list[Machine]", *, groups: int) -> None:
        """Write its settings, as one of the founding machines."""
        peers = [row for machine in machines for row in machine.rows]
        self.config.write_text(
            f'[node]\nid = {self.number}\ncluster = "c"\nhost = "{self.host}"\n'
            f'port = {self.port}\ndata = "{self.folder}/one"\ndisks = ["{self.folder}/two"]\n'
            f'machine = "m{self.number}"\ngroups = {groups}\npeers = [{", ".join(peers)}]\n'
        )

    def words(self, count: int) -> list[str]:
        """The arguments that run its nodes."""
        return ["serve", "-c", str(self.config), "--nodes", str(count)]

    def start(self, count: int, **environment: str) -> None:
        """Run its nodes."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raftmq", *self.words(count)],
                stderr=log,
                env={**os.environ, **environment},
            )

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process that runs its nodes."""
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """What that process and the nodes wrote."""
        return self._log.read_text()

    def close(self) -> None:
        """Leave no process, whatever the test found."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Three machines; nothing runs there yet."""
    ports = free_ports(40)
    port = next(port for port in ports if {port + 1, port + 2} <= set(ports))
    found = [Machine(tmp_path / f"machine-{number}", number, port) for number in (1, 2, 3)]
    yield found
    for machine in found:
        machine.close()


def url_of(machines: list[Machine]) -> str:
    return f"raftmq://{','.join(f'{each.host}:{each.port}' for each in machines)}"


def wait_well(machines: list[Machine], *, nodes: int) -> dict[str, Any]:
    """`raftmq cluster status -o json` once there are `nodes` nodes and all groups are well."""
    pictures: list[dict[str, Any]] = []

    def is_well() -> bool:
        status = process(["cluster", "status", "-o", "json", "--url", url_of(machines)])
        if status.code != 0:
            return False
        pictures.append(status.json)
        known = pictures[-1]["nodes"]
        return len(known) == nodes and all(node["machine"] for node in known)

    wait_until(is_well, what="all is well", seconds=SECONDS_MAX)
    return pictures[-1]


def pids_of(picture: dict[str, Any]) -> dict[int, int]:
    return {node["id"]: node["pid"] for node in picture["nodes"]}


def test_three_machines_with_two_nodes_each_hold_no_two_replicas_on_one(
    machines: list[Machine],
) -> None:
    for machine in machines:
        machine.found(machines, groups=6)
        machine.start(2)
    picture = wait_well(machines, nodes=6)
    machine_of = {node["id"]: node["machine"] for node in picture["nodes"]}
    assert machine_of == {1: "m1", 101: "m1", 2: "m2", 102: "m2", 3: "m3", 103: "m3"}
    data = [group for group in picture["groups"] if group["id"]]
    assert len(data) == 6
    for group in data:
        places = [machine_of[node] for node in group["voters"]]
        assert sorted(places) == ["m1", "m2", "m3"], group
    # Of the five voters of the system group the loss of a machine leaves a majority.
    voters = next(group["voters"] for group in picture["groups"] if group["id"] == 0)
    assert max(Counter(machine_of[node] for node in voters).values()) == 2

    before = pids_of(picture)
    os.kill(before[102], signal.SIGKILL)
    wait_until(
        lambda: pids_of(wait_well(machines, nodes=6))[102] != before[102], what="node 102 is back"
    )
    after = pids_of(wait_well(machines, nodes=6))
    assert {node for node in after if after[node] != before[node]} == {102}
    assert f"node 102 (pid {before[102]}) was ended by SIGKILL" in machines[1].log

    for machine in machines:
        machine.process.send_signal(signal.SIGTERM)
    assert [machine.process.wait(60) for machine in machines] == [0, 0, 0]
    assert not any(map(is_alive, after.values()))


def test_machine_alone_grows_and_its_nodes_die_with_it(
    machines: list[Machine], tmp_path: Path
) -> None:
    machine, *_ = alone = machines[:1]
    machine.found(alone, groups=2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(SECONDS_MAX)
        machine.start(2, NOTIFY_SOCKET=str(tmp_path / "notify"))
        while "READY" not in (said := parse(channel.recv(4096))):
            pass
        assert said["MAINPID"] == str(machine.process.pid)
    # There is no other machine, so both replicas are on this one.
    picture = wait_well(alone, nodes=2)
    assert [sorted(group["voters"]) for group in picture["groups"]] == [[1, 101]] * 3
    folders = [node["data"] for node in picture["nodes"]]
    assert folders == [f"{machine.folder}/one/node-1", f"{machine.folder}/two/node-101"]
    second = process(machine.words(2))
    assert second.code == 1
    assert f"is in use by process {machine.process.pid}" in second.stderr

    machine.close()
    wait_until(lambda: not any(map(is_alive, pids_of(picture).values())), what="the nodes are gone")
    fewer = process(machine.words(1))
    assert fewer.code == 1
    assert "--nodes 1 leaves out node 101" in fewer.stderr

    machine.start(3)
    wait_until(lambda: "cluster add 201" in machine.log, what="node 201 says what it waits for")
    (command,) = set(re.findall(r"`raftmq (cluster add 201 [^`]*)`", machine.log))
    assert command == f"cluster add 201 {machine.host}:{machine.port + 2} --machine m1"
    added = process([*command.split(), "--url", url_of(alone)])
    assert added.code == 0, added.stderr
    wait_well(alone, nodes=3)
    machine.process.send_signal(signal.SIGINT)
    assert machine.process.wait(60) == 0
