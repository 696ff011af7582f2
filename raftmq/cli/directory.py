"""`raftmq directory`: connected clients, message rates, and commands that run under leases."""

import os
import shutil
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import Failure
from raftmq.cli.interrupts import as_interrupts
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.output import Note, Result, Table, dash, time_text, with_output
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import DURATION

if TYPE_CHECKING:
    from anyio.abc import Process

    from raftmq.client import Client, Clients, Lease
    from raftmq.wire.directory import ClientView, FoundDirectoryNodes

TOPICS_SHOWN = 20
"""Topics in the table of rates; JSON has all that were told."""
STOP_SECONDS = 10.0
"""Time for a command to end after its lease was lost; then it is killed."""
FREE_SECONDS = 2.0
"""Seconds in which a free lease is given out."""


@click.group(cls=HintedGroup)
def directory() -> None:
    """Show connected clients and message rates; run commands under leases.

    The nodes keep all of this in memory. It is built again within seconds after a node restarts,
    and no promise about messages rests on it.

    \b
    raftmq directory clients --topic orders
    raftmq directory nodes
    raftmq directory hold nightly-report -- python report.py
    """


@directory.command()
@click.option("--topic", type=TOPIC, help="Only clients that use this topic.")
@click.option("--group", type=GROUP, help="Only clients that consume as members of this group.")
@with_output
@with_session
def clients(session: Session, topic: str | None, group: str | None) -> Result:
    """List the clients that have producers or consumers, and what they do.

    A client that has just connected shows after a few seconds.
    """
    found = session.run(lambda mq: mq.directory.clients(topic=topic, group=group))
    return Result(found, [_clients_table(found)], notes=_notes(found.whole_ms))


def _clients_table(found: "Clients") -> Table | Note:
    if not found.clients:
        return Note("no clients: one shows here while it has a producer or consumer")
    columns = ["CLIENT", "NAME", "USER", "ADDRESS", "NODES", "SINCE", "DOES", "AVOIDS"]
    return Table(columns, [_client_row(each) for each in found.clients])


def _client_row(client: "ClientView") -> tuple[object, ...]:
    places = client.connections
    hosts = sorted({each.address for each in places})
    uses = Counter(" ".join(filter(None, (u.kind, u.topic, u.group))) for u in client.uses)
    return (
        client.id,
        dash(client.name or None),
        dash(client.user or None),
        dash(", ".join(filter(None, hosts)) or None),
        ", ".join(str(each.node) for each in places),
        time_text(min(each.since_ms for each in places)),
        "; ".join(uses),
        dash(", ".join(f"{each.node} ({each.health:.0%})" for each in client.avoided) or None),
    )


def _notes(whole_ms: int) -> list[str]:
    if whole_ms:
        return []
    return ["the directory is being built, and rows may be missing: ask again in some seconds"]


@directory.command()
@with_output
@with_session
def nodes(session: Session) -> Result:
    """Show the nodes that keep the directory, the rates of topics, and who holds leases."""
    found = session.run(lambda mq: mq.directory.nodes())
    return Result(found, _nodes_tables(found), notes=_notes(found.whole_ms))


def _nodes_tables(found: "FoundDirectoryNodes") -> list[Table | str]:
    rows = [
        (
            each.node,
            ("leads" if each.node == found.leader else "present") if each.is_present else "absent",
            dash(each.software or None),
            time_text(each.started_ms) if each.started_ms else "-",
            each.connections if each.is_present else "-",
        )
        for each in found.nodes
    ]
    shown: list[Table | str] = [
        Table([">NODE", "DIRECTORY", "SOFTWARE", "STARTED", ">CONNECTIONS"], rows)
    ]
    rates = Counter[str]()
    for each in found.nodes:
        rates.update(each.rates)
    if rates:
        lines = [(topic, f"{rate:,.2f}") for topic, rate in rates.most_common(TOPICS_SHOWN)]
        shown.append(
            Table(["TOPIC", ">MESSAGES/S"], lines, f"of the last minute; up to {TOPICS_SHOWN}")
        )
    if found.leases:
        held = [(each.name, each.node, dash(each.holder or None)) for each in found.leases]
        shown.append(Table(["LEASE", ">NODE", "HOLDER"], held))
    return shown


@directory.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option(
    "--wait",
    type=DURATION,
    help="Give up if the lease is not free in this time, as 10s or 5m; at least 2s.  "
    "[default: wait for ever]",
)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_session
def hold(session: Session, wait: float | None, name: str, command: tuple[str, ...]) -> int:
    """Run COMMAND while holding the lease NAME: one process in the cluster at a time.

    The exit code is that of COMMAND; 1 if the lease was not free in time, or was lost. If the
    lease is lost, as when the cluster cannot be reached, COMMAND gets SIGTERM. Clocks of nodes
    that differ by more than 5 s may let two commands run.

    \b
    */5 * * * *  raftmq directory hold --wait 10s report -- python report.py
    """
    if command[0] == "--":
        command = command[1:]
    if not command:
        raise click.UsageError("name the command: raftmq directory hold NAME -- COMMAND")
    if shutil.which(command[0]) is None:
        raise Failure(f"there is no command {command[0]}", fix="check its name, or give its path")
    with as_interrupts(signal.SIGTERM, signal.SIGHUP):
        return session.run(lambda mq: _hold(mq, wait, name, command))


async def _hold(mq: "Client", wait: float | None, name: str, command: tuple[str, ...]) -> int:
    import anyio

    from raftmq.errors import Unavailable

    # A lease that is free takes a moment, too.
    lease = mq.directory.lease(name, timeout=None if wait is None else max(wait, FREE_SECONDS))
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(lease)
        except Unavailable as error:
            fix = (
                "`raftmq directory nodes` shows who has it; a longer --wait outlasts a node's start"
            )
            raise Failure(str(error), fix=fix) from error
        words = [*_dying_with_us(), *command]
        process = await anyio.open_process(words, stdin=None, stdout=None, stderr=None)
        stack.push_async_callback(_stop, process)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_when_lost, lease, process)
            code = await process.wait()
            tasks.cancel_scope.cancel()
        if not lease.is_held:
            fix = "`raftmq cluster status` shows how the nodes are"
            raise Failure(f"the lease {name!r} was lost while {command[0]} ran", fix=fix)
    # As shells tell a death by a signal.
    return code if code >= 0 else 128 - code


def _dying_with_us() -> list[str]:
    """The beginning of a command that the system kills when this process ends for any reason: it
    would go on without the lease."""
    if sys.platform != "linux":
        return []
    program = (
        "import ctypes, os, signal, sys; "
        "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0); "
        "os.getppid() == int(sys.argv[1]) or sys.exit(1); "
        "os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-S", "-c", program, str(os.getpid())]


async def _stop_when_lost(lease: "Lease", process: "Process") -> None:
    await lease.wait_lost()
    await _stop(process)


async def _stop(process: "Process") -> None:
    """End a process, if it runs still."""
    import anyio

    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(STOP_SECONDS, shield=True):
        await process.wait()
    with suppress(ProcessLookupError):
        process.kill()
    with anyio.CancelScope(shield=True):
        await process.wait()
