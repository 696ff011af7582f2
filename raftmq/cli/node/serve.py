"""`raftmq serve`: run one node until a signal stops it; with `--nodes` several (`machine_nodes`).

SIGTERM and SIGINT end the node gracefully: it hands over its groups' leadership, answers requests
under way and exits with 0. A node under TLS takes up changed certificates at SIGHUP, and within a
second by itself. A second signal ends the node at once, as a crash: acked messages are
safe. After a fault with which a node must not go on, it exits with 1 and says why.

The node writes events to stderr, one line each (`log_lines`).
"""

import os
import signal
import sys
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.values import NODE_COUNT

from .certificates import DAY_SECONDS, certificate_text, contexts_of
from .log_lines import LogLines, log_of
from .notify import notify
from .settings_file import read_settings, settings_options

if TYPE_CHECKING:
    import trio

    from raftmq.broker.node import Node
    from raftmq.broker.settings import Settings
    from raftmq.broker.world import World
    from raftmq.tls.contexts import NodeContexts

WATCH_SECONDS = 0.2
"""Seconds between two looks at the node's state."""
START_SECONDS, START_WATCH_SECONDS = 3.0, 0.02
"""How long a node counts as starting, and the seconds between two looks in that time: `raftmq up`
waits until all groups are led."""
WAIT_SECONDS = 1.0
"""Seconds after which a starting node reports that it waits for others."""
JOIN_SECONDS = 2.0
"""Seconds after which a node reports that the cluster does not count it; a node that was added
before its start is counted sooner."""
RENEW_SECONDS = 1.0
"""Seconds between two looks at the files of certificates."""
LEAVE_SECONDS = 1.0
"""Seconds between two requests whether a leaving node is out."""


@click.command()
@settings_options("node", example="node.id=2")
@click.option("--log", "log_format", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--nodes",
    type=NODE_COUNT,
    metavar="N|auto",
    help="Number of nodes on this machine, each in a process and a folder of its own; auto: one "
    "for each processor.",
)
@click.option("--parent", type=int, default=0, hidden=True, help="Die with this process.")
def serve(
    config: Path,
    overrides: tuple[str, ...],
    log_format: str,
    nodes: int | str | None,
    parent: int,
) -> int:
    """Run one node, or the nodes of one machine.

    With --nodes the node of the settings is the machine's first one, and node.id, below 100, the
    machine's number: the next nodes have 100 more each, and the next ports. Their folders are
    node-NUMBER in node.data, or spread over it and node.disks. {node} in tls.cert and tls.key is a
    node's number. A node that ends is started again.

    \b
    raftmq serve -c node.toml
    raftmq serve -c node.toml --set node.id=2 --set node.port=7401
    raftmq serve -c node.toml --nodes auto
    """
    if not __debug__:
        fix = "start it without -O and without PYTHONOPTIMIZE"
        raise Failure("a node's assertions guard its data and must stay on", fix=fix)
    if parent:
        die_with(parent)
    if nodes is not None:
        from .machine_nodes import serve_machine

        return serve_machine(config, overrides, log_format, None if nodes == "auto" else int(nodes))

    import trio

    from .machine import require_own_folder

    settings = read_settings(config, overrides)
    require_own_folder(settings.node)

    log = log_of(log_format, settings.node.id)
    return trio.run(_serve, settings, log, parent)


async def _serve(settings: "Settings", log: LogLines, parent: int) -> int:
    import trio

    from raftmq.broker.cluster.first_election import hasten
    from raftmq.broker.collector import Collector
    from raftmq.broker.node import Node, NodeStopped
    from raftmq.broker.settings import listens_elsewhere
    from raftmq.broker.system_world import RealWorld, tune_interpreter

    contexts = contexts_of(settings)
    tune_interpreter()
    # After the imports, whose objects are frozen.
    collector = Collector()
    node = Node(settings, _with_faults(RealWorld(contexts)))
    own = settings.node
    try:
        async with trio.open_nursery() as nursery:
            is_serving = trio.Event()
            await nursery.start(_await_signals, node, log, nursery, is_serving)
            if contexts is not None:
                await nursery.start(_renew_certificates, node, contexts, log)
            log.info("starting", host=own.host, port=own.port, data=own.data, cluster=own.cluster)
            if text := listens_elsewhere(own):
                log.warning("listens elsewhere", what=text)
            nursery.start_soon(_tell_waiting, node, log)
            await nursery.start(_run_node, node, nursery)
            is_serving.set()
            log.info("serving", host=own.host, port=own.port, incarnation=node.incarnation)
            notify("READY=1", f"STATUS={leads_text([])}")
            node.start_soon(hasten, node)
            nursery.start_soon(collector.run, lambda: node.disk.passes)
            nursery.start_soon(_watch, node, log, parent)
            nursery.start_soon(_look_for_removal, node)
    except* NodeStopped as stopped:
        log.error("stopped by a fault", reason=str(stopped.exceptions[0]))
        return_code = ExitCode.FAILED
    else:
        log.info("stopped")
        return_code = ExitCode.OK
    return return_code


async def _renew_certificates(
    node: "Node",
    contexts: "NodeContexts",
    log: LogLines,
    *,
    task_status: "trio.TaskStatus[None]",
) -> None:
    """Take up certificates that have changed: at SIGHUP at once, else within a second. Warn each
    day, and after each change, if the node's ends soon. Note logins that have failed and requests
    that were denied meanwhile."""
    import trio

    problem, failed, denied, warned = "", 0, 0, -inf
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        while True:
            with trio.move_on_after(RENEW_SECONDS):
                await anext(signals)
            changed = contexts.reload()
            if changed:
                log.info("took up certificates", changed=sorted(changed))
            if changed & {"ca", "crl"}:
                node.trust_changed()
            if contexts.problem and contexts.problem != problem:
                log.error("certificates not taken up", what=contexts.problem)
            problem = contexts.problem
            if changed or trio.current_time() >= warned + DAY_SECONDS:
                warned = trio.current_time()
                for text in (certificate_text(contexts.ends_ms), contexts.doubt):
                    if text:
                        log.warning("certificate", what=text)
            if (count := node.gate.failures.count) > failed:
                log.error("logins failed", count=count - failed, last=node.gate.failures.last)
                failed = count
            if (count := node.gate.denied) > denied:
                log.error("requests denied", count=count - denied, last=node.gate.last_denied)
                denied = count


def _with_faults(world: "World") -> "World":
    """The world itself, or one with faults if the environment asks for them (chaos tests do)."""
    if not ({"RAFTMQ_FAILPOINT", "RAFTMQ_CHAOS"} & os.environ.keys()):
        return world
    from raftmq.chaos.real.fault_injection import with_faults

    try:
        return with_faults(world, os.environ)
    except ValueError as error:
        raise Failure(str(error), fix="unset RAFTMQ_FAILPOINT: it is for tests") from error


async def _run_node(
    node: "Node", nursery: "trio.Nursery", *, task_status: "trio.TaskStatus[None]"
) -> None:
    await node.run(task_status=task_status)
    nursery.cancel_scope.cancel()


async def _await_signals(
    node: "Node",
    log: LogLines,
    nursery: "trio.Nursery",
    is_serving: "trio.Event",
    *,
    task_status: "trio.TaskStatus[None]",
) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        is_first = True
        async for number in signals:
            name = signal.Signals(number).name
            if not is_first:
                log.warning("ending at once", signal=name)
                os._exit(ExitCode.FAILED)
            is_first = False
            log.info("stopping", signal=name)
            notify("STOPPING=1", "STATUS=handing over")
            if is_serving.is_set():
                node.stop()
            else:
                # Before it serves, a node waits for its peers and leads no group: there is nothing
                # to hand over.
                nursery.cancel_scope.cancel()


async def _tell_waiting(node: "Node", log: LogLines) -> None:
    """Log what a node waits for if that takes long: before it serves, then until the cluster counts
    it."""
    import trio

    from raftmq.broker.cluster.admission import why_not_counted

    told = ""
    await trio.sleep(WAIT_SECONDS)
    while not node.is_serving:
        if node.waits_for and node.waits_for != told:
            told = node.waits_for
            log.warning("waits", what=told)
            notify(f"STATUS=waits: {told}")
        await trio.sleep(WATCH_SECONDS)
    if node.generation:
        log.info("has a new data folder", generation=node.generation)
    await trio.sleep(JOIN_SECONDS)
    is_told = False
    while waits := why_not_counted(node):
        if not is_told:
            is_told = True
            log.warning("waits", what=waits)
            notify(f"STATUS=waits: {waits}")
        await trio.sleep(WATCH_SECONDS)
    if is_told:
        log.info("is a member of the cluster")
        notify(f"STATUS={leads_text([])}")


async def _look_for_removal(node: "Node") -> None:
    """Once this node leaves, ask the others whether it is out, and whether it is a member again."""
    import trio

    while True:
        await node.removal.look()
        await trio.sleep(LEAVE_SECONDS)


async def _watch(node: "Node", log: LogLines, parent: int) -> None:
    """Log changes: the groups this node leads, damage, losses of dead letters, the peers it
    reaches."""
    import trio

    from raftmq.broker.cluster.founders import settings_not_followed

    led: list[int] = []
    damaged: set[str] = set()
    gone: dict[int, int] = {}
    reached: dict[int, bool] = {}
    differences: list[str] = []
    is_removed = is_corrected = False
    start_ends = trio.current_time() + START_SECONDS
    while True:
        now_led = sorted(number for number, group in node.groups.items() if group.is_leader)
        if now_led != led:
            led = now_led
            log.info("leads", groups=led)
            notify(f"STATUS={leads_text(led)}")
        damaged = _tell_damage(node, log, damaged)
        gone = tell_gone(node.retention.gone, log, gone)
        if node.removal.is_removed and not is_removed:
            log.warning("removed from the cluster", fix="stop this process; its folder can go")
        is_removed = node.removal.is_removed
        if not is_corrected and (text := settings_not_followed(node)):
            is_corrected = True
            log.warning("settings not followed", what=text)
        for link in node.links.all():
            peer = link.peer.id
            if reached.get(peer) == link.is_connected:
                continue
            reached[peer] = link.is_connected
            if link.is_connected:
                log.info("peer reached", peer=peer)
            else:
                log.warning("peer not reached", peer=peer, why=link.last_error)
        if (texts := node.gate.differences) != differences:
            differences = texts
            for text in texts:
                log.warning("access differs", what=text)
        if parent and os.getppid() != parent:
            node.stop()
        is_start = trio.current_time() < start_ends
        await trio.sleep(START_WATCH_SECONDS if is_start else WATCH_SECONDS)


def _tell_damage(node: "Node", log: LogLines, before: set[str]) -> set[str]:
    """Log damage: each new finding or state of one, and the end of all damage."""
    now = {
        f"group {number}: {found['found']}; {found['state']}"
        for number in list(node.groups)
        for found in node.repairs.status(number)
    }
    now |= {
        f"group {number} abstains: {group.abstains}"
        for number, group in node.groups.items()
        if group.abstains
    }
    for text in sorted(now - before):
        log.error("damaged", what=text)
    if before and not now:
        log.info("all damage is mended", segments_mended=node.repairs.mended)
    return now


def tell_gone(gone: Mapping[int, int], log: LogLines, before: Mapping[int, int]) -> dict[int, int]:
    """Log the groups whose dead letters lost more messages to retention than before."""
    for group, messages in sorted(gone.items()):
        if messages > before.get(group, 0):
            log.warning("dead letters lost messages to retention", group=group, messages=messages)
    return dict(gone)


def leads_text(groups: list[int]) -> str:
    """The groups that a node leads, in words.

    >>> leads_text([0, 2]), leads_text([2]), leads_text([])
    ('leads groups 0, 2', 'leads group 2', 'follows')
    """
    if not groups:
        return "follows"
    what = "group" if len(groups) == 1 else "groups"
    return f"leads {what} {', '.join(map(str, groups))}"


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends for any reason."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the call above; on systems other than Linux only this check
    # and `_watch` notice the end.
    if os.getppid() != parent:
        raise Failure("the process that started this node is gone", fix="start it again")
