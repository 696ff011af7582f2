"""`raftmq up` and `raftmq down`: a local cluster in one command.

`up` stays in the foreground and keeps the nodes running until Ctrl-C. With `--detach`, `up` starts
itself in the background, waits until that process's cluster is ready, prints the same and returns;
`down` finds the process by its folder.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from raftmq.broker.local_nodes import SERVE, start_node
from raftmq.cli.exits import Failure
from raftmq.cli.output import Table, bytes_text, note, print_shown
from raftmq.words import counted

from .playground import (
    HOST,
    PORT,
    Playground,
    RunningNode,
    State,
    choose_ports,
    listening,
    running,
    temporary,
)
from .supervisor import Child, Supervisor

TABLE_SECONDS = 2.0
"""Seconds after which the table is printed even if not all nodes are ready; a line follows then."""

GIVE_UP_DEATHS = 3
"""Ends of nodes before the cluster was ready for the first time, at which `up` gives up."""

DETACH_SECONDS_MAX = 30.0
DOWN_SECONDS_MAX = 30.0

TURN_SECONDS = 1.0
"""Seconds between the stops of two nodes, unless the first ends sooner: each can hand over
leadership to nodes still alive."""

LEADS = "leads group"
"""Begins the role of a node that leads: see `serve.leads_text`."""


@click.command()
@click.option("-n", "--nodes", type=click.IntRange(1, 9), help="Number of nodes.  [default: 3]")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cluster in this folder, and go on with the one in it.  "
    "[default: a temporary folder, removed at the end]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Port of the first node; the others take the next ones.  [default: 7400]",
)
@click.option("--any-port", is_flag=True, help="Take free ports.")
@click.option(
    "--secure",
    is_flag=True,
    help="Make certificates, take connections under TLS only, and know users: `admin` is made.",
)
@click.option("--detach", is_flag=True, help="Run in the background until `raftmq down`.")
@click.option("--temporary", "is_temporary", is_flag=True, hidden=True)
def up(
    nodes: int | None,
    data: Path | None,
    port: int | None,
    any_port: bool,
    secure: bool,
    detach: bool,
    is_temporary: bool,
) -> None:
    """Start a local cluster and keep it running: a node that dies is started again.

    Ctrl-C stops it. Each node is a process of its own with settings and data in one folder.
    """
    started = time.monotonic()
    playground = _prepare(nodes, data, port, any_port=any_port, is_secure=secure)
    playground.is_temporary = playground.is_temporary or is_temporary
    warn_of_space(playground.folder)
    if detach:
        _detach(playground)
    else:
        _stay(playground, started)


def warn_of_space(folder: Path) -> None:
    """Warn if the disk has less than the reserve: the nodes will start, but refuse each write."""
    from raftmq.broker.settings import Log

    free, reserve = shutil.disk_usage(folder).free, Log().reserve_bytes
    if free < reserve:
        note(
            f"the disk of {folder} has {bytes_text(free)} left, and nodes take no messages below "
            f"log.reserve_bytes, {bytes_text(reserve)}: free some, or give --data another disk"
        )


@click.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The cluster's folder.  [default: the one cluster in a temporary folder]",
)
@click.option("--all", "is_all", is_flag=True, help="Stop all clusters in temporary folders.")
def down(data: Path | None, is_all: bool) -> None:
    """Stop a cluster that `raftmq up --detach` started, or one in another terminal."""
    for playground in _choose(data, is_all=is_all):
        state = playground.read_state()
        if state is None:
            fix = "`raftmq up --data DIR --detach` starts one"
            raise Failure(f"no cluster is running in {playground.folder}", fix=fix)
        os.kill(state.pid, signal.SIGTERM)
        until = time.monotonic() + DOWN_SECONDS_MAX
        while playground.folder.exists() and playground.is_running():
            if time.monotonic() > until:
                fix = f"look into {playground.folder}, or end it with `kill -9 {state.pid}`"
                raise Failure(f"the cluster (pid {state.pid}) does not end", fix=fix)
            time.sleep(0.05)
        kept = "" if playground.folder.exists() else ", its temporary folder was removed"
        note(f"stopped {counted(len(state.nodes), 'node')} of {playground.folder}{kept}")


class PlaygroundNodes(Supervisor):
    """The nodes of one playground."""

    def __init__(
        self,
        playground: Playground,
        ports: Sequence[int],
        *,
        say: Callable[[str], None],
        command: Sequence[str] = SERVE,
    ) -> None:
        super().__init__(range(1, len(ports) + 1), playground.folder, say=say)
        self._playground = playground
        self._ports = ports
        self._command = command

    @property
    def is_led(self) -> bool:
        """True once every node serves and each partition group has a leader that reported it.

        A cluster made by `up` has one data group a node, and the system group.
        """
        leaders = [child for child in self.children if child.role.startswith(LEADS)]
        led = sum(child.role.count(",") + 1 for child in leaders)
        return self.is_ready and led > len(self.children)

    def state(self) -> State:
        """The present state of the nodes."""
        nodes = [self._running(child) for child in self.children]
        return State(os.getpid(), self.is_ready, nodes, self._playground.certs)

    def launch(self, node: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start the process of a node, whose output is added to its log."""
        config, log = self._playground.config(node), self._playground.log(node)
        return start_node(config, log, command=self._command, environment=environment)

    def last_words(self, node: int) -> str:
        """The last line of the node's log."""
        log = self._playground.log(node)
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return f"\n  its last words ({log}): {lines[-1].strip()}" if lines else ""

    def changed(self) -> None:
        """Note the state in the folder, where `raftmq down` reads it."""
        self._playground.write_state(self.state())

    def _running(self, child: Child) -> RunningNode:
        data = str(self._playground.data(child.node))
        address = f"{HOST}:{self._ports[child.node - 1]}"
        return RunningNode(child.node, address, child.pid, data, child.role)


def _choose(data: Path | None, *, is_all: bool) -> list[Playground]:
    if data is not None:
        return [Playground(data.resolve(), is_temporary=False)]
    found = running()
    if not found:
        fix = "`raftmq up --detach` starts one; --data DIR names one that is kept in a folder"
        if kept := listening(PORT):
            fix = f"`{kept.down}` stops the one that listens at port {PORT}"
        raise Failure("no cluster without --data is running", fix=fix)
    if len(found) > 1 and not is_all:
        folders = ", ".join(str(playground.folder) for playground in found)
        what = f"{len(found)} clusters without --data are running: {folders}"
        raise Failure(what, fix="name one with --data, or --all")
    return found


def _prepare(
    nodes: int | None, data: Path | None, port: int | None, *, any_port: bool, is_secure: bool
) -> Playground:
    """The folder of a cluster whose ports are free; a new cluster is founded if there is none.

    Raises:
        Failure: the folder's cluster differs from the options, or runs already.
    """
    if data is None:
        ports = choose_ports(nodes or 3, port or PORT, any_port=any_port)
        playground = temporary()
        playground.found(ports, is_secure=is_secure)
        return playground
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "let this user make it and write to it, or give --data another folder"
        raise Failure(f"the folder {data} cannot be used: {error}", fix=fix) from error
    playground = Playground(data.resolve(), is_temporary=False)
    if playground.is_running():
        fix = f"`{playground.down}` stops it"
        raise Failure(f"a cluster is running in {data} already", fix=fix)
    ports = playground.ports()
    if not ports:
        ports = choose_ports(nodes or 3, port or PORT, any_port=any_port)
        playground.found(ports, is_secure=is_secure)
    elif (nodes or len(ports)) != len(ports) or (port or ports[0]) != ports[0]:
        raise Failure(
            f"{data} holds a cluster of {counted(len(ports), 'node')} on port {ports[0]} and after",
            fix="leave out -n and --port to go on with it, or give --data another folder",
        )
    elif is_secure and not playground.certs:
        raise Failure(
            f"{data} holds a cluster without TLS",
            fix="leave out --secure, or add a table [tls] to its settings: docs/security.md",
        )
    else:
        playground.check_data()
        for known in ports:
            choose_ports(1, known, any_port=False)
    return playground


def _stay(playground: Playground, started: float) -> None:
    """Run the cluster until a signal comes."""
    lock = playground.lock()
    if lock is None:
        fix = f"`{playground.down}` stops it"
        raise Failure(f"a cluster is running in {playground.folder} already", fix=fix)
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: signals.append(received))
    supervisor = PlaygroundNodes(playground, playground.ports(), say=note)
    try:
        supervisor.start()
        note(f"starting {counted(len(playground.ports()), 'node')} in {playground.folder}")
        _watch(supervisor, playground, signals, started)
        note("stopping: each node hands over and ends (a second Ctrl-C kills them)")
    finally:
        # Only a further signal kills the nodes: the first one asks for a graceful stop.
        count = len(signals)
        supervisor.stop(turn_seconds=TURN_SECONDS, is_hurried=lambda: len(signals) > count)
        if playground.is_temporary:
            shutil.rmtree(playground.folder, ignore_errors=True)
        os.close(lock)
    note(f"stopped; {'removed' if playground.is_temporary else 'kept'} {playground.folder}")


def _watch(
    supervisor: PlaygroundNodes, playground: Playground, signals: list[int], started: float
) -> None:
    """Keep the nodes running until a signal comes; print the table, and a line when all are ready.

    Raises:
        Failure: the nodes never became ready.
    """
    is_shown = is_led = is_announced = False
    while not signals:
        supervisor.step()
        is_led = is_led or supervisor.is_led
        seconds = time.monotonic() - started
        if not is_shown and (is_led or seconds > TABLE_SECONDS):
            is_shown = True
            _show(supervisor.state())
            note(f"{_fate(playground)}; Ctrl-C stops it")
        if is_shown and is_led and not is_announced:
            is_announced = True
            roles = "; ".join(f"node {node.id} {node.role}" for node in supervisor.state().nodes)
            note(f"ready after {seconds:.1f} s: {roles}")
            playground.write_state(supervisor.state())
        if not supervisor.is_ready and supervisor.deaths >= GIVE_UP_DEATHS:
            # Keep the folder: only the nodes' logs tell why they end.
            playground.is_temporary = False
            fix = f"read {playground.folder}/node-*.log; `raftmq doctor` examines this machine"
            raise Failure("the nodes do not stay alive", fix=fix)


def _detach(playground: Playground) -> None:
    """Start the supervisor in the background and wait until its cluster is ready."""
    command = [sys.executable, "-m", "raftmq", "up", "--data", str(playground.folder)]
    if playground.is_temporary:
        command.append("--temporary")
    with (playground.folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        state = _wait_ready(playground, process)
    except BaseException:
        # A failure, or Ctrl-C, must not leave a cluster running in the background.
        process.terminate()
        raise
    _show(state)
    folder = "" if playground.is_temporary else f" --data {playground.folder}"
    note(f"{_fate(playground)}; `raftmq down{folder}` stops it")


def _wait_ready(playground: Playground, process: "subprocess.Popen[bytes]") -> State:
    until = time.monotonic() + DETACH_SECONDS_MAX
    while time.monotonic() < until:
        state = playground.read_state()
        # The file may still be of a supervisor that ran here before.
        if state is not None and state.is_ready and state.pid == process.pid:
            return state
        if process.poll() is not None:
            note((playground.folder / "up.log").read_text().strip())
            raise Failure("the cluster did not start", fix=f"see above and {playground.folder}")
        time.sleep(0.02)
    fix = f"read the logs in {playground.folder}; `raftmq doctor` examines this machine"
    raise Failure(f"the cluster is not ready after {DETACH_SECONDS_MAX:g} s", fix=fix)


def _fate(playground: Playground) -> str:
    if playground.is_temporary:
        return f"{playground.folder} is removed at the end; --data DIR keeps a cluster"
    return f"{playground.folder} is kept; `raftmq up --data {playground.folder}` goes on with it"


def _show(state: State) -> None:
    rows = [(node.id, node.role, node.address, node.pid, node.data) for node in state.nodes]
    print_shown(
        [
            Table([">NODE", "ROLE", "ADDRESS", ">PID", "DATA"], rows),
            f"\nexport RAFTMQ_URL={shlex.quote(state.url)}\n",
            "raftmq topic create orders",
            "raftmq produce orders hello -k order-1",
            "raftmq consume orders -n 1\n",
        ]
    )
    sys.stdout.flush()
