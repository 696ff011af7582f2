"""`raftmq serve --nodes`: a process that runs the nodes of one machine, each in its own.

The nodes write their events to the stderr of this process; its own lines name no node, or tell of
one that ended. A node that ends is started again after a pause that grows; the others go on.

| signal to this process | the nodes |
|---|---|
| SIGTERM, SIGINT | all stop gracefully at once: nodes of other machines take over |
| a second one | are killed |
| SIGHUP | take up changed certificates; without TLS they stop |
| SIGKILL | die with it |

It exits with 0 if each node ended gracefully. To systemd it is ready once each node has served.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.broker.cluster.identity import lock_folder
from raftmq.broker.local_nodes import SERVE, start_node
from raftmq.cli.exits import ExitCode, Failure
from raftmq.log.faults import LogFault
from raftmq.log.files import RealFiles

from .log_lines import LogLines, log_of
from .machine import MachineNode, folders_of, nodes_of
from .notify import notify
from .settings_file import read_settings
from .supervisor import Supervisor

if TYPE_CHECKING:
    from raftmq.broker.settings import NodeSettings

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class MachineNodes(Supervisor):
    """The nodes of one machine."""

    def __init__(
        self,
        config: Path,
        folder: Path,
        nodes: Sequence[MachineNode],
        *,
        log: LogLines,
        arguments: Sequence[str] = (),
        command: Sequence[str] = SERVE,
    ) -> None:
        """`arguments`: further ones of each node's command."""
        numbers = [node.id for node in nodes]
        super().__init__(numbers, folder, say=lambda what: log.warning("restart", what=what))
        self._config = config
        self._arguments = arguments
        self._command = command
        self._overrides = {node.id: node.overrides for node in nodes}
        self._is_told = False
        self._status = ""

    @property
    def failed(self) -> list[int]:
        """The nodes whose last process did not end gracefully, or never ran."""
        # A process that SIGTERM ended had not begun to listen to signals, and had opened nothing.
        graceful = (0, -signal.SIGTERM)
        return [child.node for child in self.children if child.code not in graceful]

    def launch(self, node: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start the process of a node, which writes to this process's stderr."""
        sets = [word for override in self._overrides[node] for word in ("--set", override)]
        command = (*self._command, *self._arguments, *sets)
        return start_node(self._config, None, command=command, environment=environment)

    def step(self) -> None:
        """Also tell systemd what the nodes say."""
        super().step()
        self.changed()

    def changed(self) -> None:
        """Tell systemd what the nodes do, and once that all serve."""
        status = "; ".join(f"node {child.node} {child.role}" for child in self.children)
        if status != self._status:
            self._status = status
            notify(f"STATUS={status}")
        if self.is_ready and not self._is_told:
            self._is_told = True
            notify("READY=1")

    def renew_certificates(self) -> None:
        """Have the nodes take up changed certificates."""
        for child in self.children:
            # A process that is starting may not listen to the signal yet, and reads them anyway.
            if child.process is not None and child.role != "starting":
                child.process.send_signal(signal.SIGHUP)


def serve_machine(
    config: Path, overrides: Sequence[str], log_format: str, wanted: int | None
) -> int:
    """Run the nodes of this machine until a signal stops them; the exit code.

    Args:
        wanted: how many nodes; None: one a processor.

    Raises:
        Failure: the settings or the folders do not allow it; nothing was started.
    """
    settings = read_settings(config, tuple(overrides))
    nodes = nodes_of(settings, wanted)
    for node in nodes:
        read_settings(config, (*overrides, *node.overrides))
    log = log_of(log_format, None)
    signals: list[int] = []
    for number in (*END_SIGNALS, signal.SIGHUP):
        signal.signal(number, lambda received, _: signals.append(received))
    with ExitStack() as held:
        _hold_folders(settings.node, held)
        arguments = ["--log", log_format]
        for override in overrides:
            arguments += ["--set", override]
        folder = Path(settings.node.data)
        running = MachineNodes(config, folder, nodes, log=log, arguments=arguments)
        try:
            log.info("starting", nodes=[node.id for node in nodes])
            running.start()
            ended_by = _run(running, signals, is_under_tls=bool(settings.tls.cert))
            log.info("stopping", signal=signal.Signals(ended_by).name)
            notify("STOPPING=1", "STATUS=handing over")
        finally:
            # Only a further signal kills the nodes: the first one asks for a graceful stop.
            signals.clear()
            running.stop(is_hurried=lambda: any(map(signals.count, END_SIGNALS)))
    if running.failed:
        log.error("stopped, and not each node gracefully", nodes=running.failed)
        return ExitCode.FAILED
    log.info("stopped")
    return ExitCode.OK


def _hold_folders(own: "NodeSettings", held: ExitStack) -> None:
    """Lock the folders of a machine, so that no second process starts the same nodes.

    Raises:
        Failure: another process has one of them, or it cannot be used.
    """
    try:
        for folder in folders_of(own):
            held.callback(lock_folder(RealFiles(), str(folder)).close)
    except LogFault as fault:
        fix = "stop that process; or let this user write there, or name another folder"
        raise Failure(str(fault), fix=fix) from fault


def _run(running: MachineNodes, signals: list[int], *, is_under_tls: bool) -> int:
    """Keep the nodes running until a signal ends them; that signal."""
    while True:
        running.step()
        while signals:
            number = signals.pop(0)
            if number != signal.SIGHUP or not is_under_tls:
                return number
            running.renew_certificates()
