"""One machine with several nodes against one: `python -m bench.alone.machine_nodes`.

    python -m bench.alone.machine_nodes [--nodes 2] [--clients 4] [--rounds 5] [--seconds 5]
        [--json FILE]

Two clusters of one machine each stand beside each other and take turns: one runs
`raftmq serve --nodes N`, the other `--nodes 1`. Both have N data groups of one replica, so the same
records go to the same disk, by N processes or by one. The load is `raftmq bench produce` in some
processes at once.

Run it on a machine with more cores than nodes and clients together: else the clients take the cores
that the nodes would use, and the ratio says nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from bench.figures import compared, table, write
from bench.machine import run_facts
from bench.processes import Clustered
from raftmq.broker.local_nodes import SERVE, node_settings, toml_text
from raftmq.cli.node.machine import STRIDE
from raftmq.testing import free_ports

HOST = "127.0.0.1"
TOPIC = "load"
QUEUES = 16
"""More than data groups, which share them evenly."""
READY_SECONDS_MAX = 60.0


class Machine(Clustered):
    """A cluster of one machine, and the load on it."""

    def __init__(self, nodes: int, groups: int, *, clients: int, seconds: float) -> None:
        self.name = f"machine-{nodes}"
        self._nodes = nodes
        self._groups = groups
        self._clients = clients
        self._seconds = seconds
        self._url = ""

    def _start(self) -> None:
        ports = free_ports(64)
        first = next(p for p in ports if all(p + at in ports for at in range(self._nodes)))
        own = node_settings(
            1,
            (HOST, first),
            cluster="bench",
            data=self._cluster.folder / "data",
            founders=self._groups,
            others={1 + at * STRIDE: (HOST, first + at) for at in range(self._nodes)},
        )
        config = self._cluster.folder / "node.toml"
        config.write_text(toml_text({"node": {**own, "replicas": 1}}))
        self._url = f"raftmq://{HOST}:{first}"
        command = [*SERVE, "-c", str(config), "--nodes", str(self._nodes)]
        self._cluster.start(command, name="machine")
        until = time.monotonic() + READY_SECONDS_MAX
        while not self._is_led():
            self._cluster.check_alive()
            if time.monotonic() > until:
                log = self._cluster.log_tail("machine")
                raise RuntimeError(f"not each node leads its share:\n{log}")
            time.sleep(0.2)
        self._call("topic", "create", TOPIC, "--queues", str(QUEUES)).check_returncode()

    def take(self) -> float:
        """One turn: messages a second over all clients."""
        words = ["bench", "produce", "--topic", TOPIC, "--duration", f"{self._seconds:g}s"]
        loads = [
            subprocess.Popen(self._words(*words, "-o", "json"), stdout=subprocess.PIPE, text=True)
            for _ in range(self._clients)
        ]
        answers = [load.communicate()[0] for load in loads]
        return sum(float(json.loads(answer)["messages_per_s"]) for answer in answers)

    def _is_led(self) -> bool:
        status = self._call("cluster", "status", "-o", "json")
        if status.returncode:
            return False
        return all(node["leads"] for node in json.loads(status.stdout)["nodes"])

    def _call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self._words(*words), capture_output=True, text=True, check=False)

    def _words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "raftmq", *words, "--url", self._url]


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.machine_nodes")
    parser.add_argument("--nodes", type=int, default=2, help="of the machine that has several")
    parser.add_argument("--clients", type=int, default=4, help="processes that send at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    facts = run_facts()

    def machine(nodes: int) -> Machine:
        return Machine(nodes, options.nodes, clients=options.clients, seconds=options.seconds)

    with machine(options.nodes) as several, machine(1) as single:
        found = compared(
            f"produce, {options.clients} clients",
            several.take,
            single.take,
            rounds=options.rounds,
            words=(f"{options.nodes} nodes", "1 node"),
            unit="messages/s",
            wanted=None,
        )
    Console(width=120).print(table(found))
    if options.json:
        write(options.json, facts, found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
